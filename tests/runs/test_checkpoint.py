"""What a run says of its model, the best checkpoint, is true."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.runs.run_callbacks import RunCheckpoint

PAIRS = [("abc", "abc"), ("de", "de")]


@pytest.fixture(scope="module")
def learned():
    """A model that has learned two sentences by heart, and will learn no more."""
    keras.utils.set_random_seed(1)
    tokenizer = kt.SubwordTokenizer.train(["abcde"], None, "char")
    dataset = kt.make_dataset(PAIRS, tokenizer, tokenizer, 64, 16, shuffle=False)
    size = tokenizer.vocabulary_size
    model = kt.Transformer(size, size, 1, 8, 2, 16, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.5), kt.SmoothedCrossEntropy(0.0), jit_compile=False)
    model.fit(dataset, epochs=30, shuffle=False, verbose=0)
    model.optimizer.learning_rate = 0.0
    return model, model.get_weights(), dataset


def fit_at(learned, places, path):
    """An epoch at each of some places on a line through what was learned, which is at 0.

    Returns the losses, the place of the model that was kept, and what the run says of it.
    """
    model, weights, dataset = learned
    generator = np.random.default_rng(1)
    away = [
        generator.normal(0, 0.3, w.shape) if w.dtype == "float32" else np.zeros_like(w)
        for w in weights
    ]

    def put(epoch, logs):
        model.set_weights([w + places[epoch] * d for w, d in zip(weights, away, strict=True)])

    (path / "checkpoints").mkdir()
    config = kt.TrainConfig(keep_checkpoints=len(places))
    checkpoint = RunCheckpoint(Run(path), dataset, config)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=put), checkpoint]
    options = dict(epochs=len(places), validation_data=dataset, shuffle=False, verbose=0)
    losses = model.fit(dataset, callbacks=callbacks, **options).history["val_loss"]
    kept = keras.saving.load_model(path / "model.keras", compile=False).get_weights()
    place = np.ravel(kept[0] - weights[0])[0] / np.ravel(away[0])[0]
    return losses, place, json.loads((path / "model.json").read_text())


def test_model_is_the_best_checkpoint(learned, tmp_path):
    losses, place, scores = fit_at(learned, [1.0, 0.0, 1.0], tmp_path)
    assert place == pytest.approx(0.0, abs=1e-3)
    assert scores["metrics"] == Run(tmp_path).read_state()["history"][1]
    assert scores.keys() == {"sha256", "metrics", "files"}  # of one file: nothing else is there
    assert scores["files"].keys() == {"model.keras"}
