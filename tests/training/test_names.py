"""The loss and the metrics by their names."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training.names import _BY_NAME, replace_names

IDS = np.array([[4, 5, 3]])


def transformer():
    return kt.Transformer(8, 8, num_layers=1, d_model=4, num_heads=1, d_ff=4)


def test_transformer_by_names(tmp_path):
    """Compiled, fitted under callbacks that watch the names, saved and loaded."""
    model = transformer()
    model.compile("sgd", "smoothed_cross_entropy", metrics=["masked_accuracy", "perplexity"])
    assert type(model.loss) is kt.SmoothedCrossEntropy
    best = tmp_path / "best.keras"
    callbacks = [
        keras.callbacks.EarlyStopping("val_masked_accuracy"),
        keras.callbacks.ModelCheckpoint(best, "val_perplexity", save_best_only=True),
    ]
    data = (IDS, IDS), IDS
    history = model.fit(*data, validation_data=data, callbacks=callbacks, verbose=0).history
    names = {"loss", "masked_accuracy", "perplexity"}
    assert set(history) == names | {f"val_{name}" for name in names}
    loaded = keras.saving.load_model(best)
    scores = loaded.evaluate(*data, verbose=0, return_dict=True)
    assert set(scores) == names
    assert scores["perplexity"] == pytest.approx(history["val_perplexity"][0], rel=1e-5)


def test_wherever_they_stand():
    loss, metrics, other = replace_names(
        ["SmoothedCrossEntropy", {"out": ["target_tokens", None]}, ("adam", 2.0)]
    )
    assert type(loss) is kt.SmoothedCrossEntropy and loss.label_smoothing == 0.1
    (tokens, nothing) = metrics["out"]
    assert type(tokens) is kt.TargetTokens and tokens.name == "target_tokens" and nothing is None
    assert other == ("adam", 2.0)


@pytest.mark.parametrize("name", _BY_NAME)
def test_no_name_of_keras_is_taken(name):
    for get in (keras.losses.get, keras.metrics.get, keras.optimizers.get):
        with pytest.raises(ValueError):
            get(name)
