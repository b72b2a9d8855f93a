"""What a run says of its model is true: of the best checkpoint, and of a mean of several."""

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


def fit_at(learned, places, path, average):
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

    def validate(model):
        return {"val_loss": model.evaluate(dataset, verbose=0, return_dict=True)["loss"]}

    (path / "checkpoints").mkdir()
    config = kt.TrainConfig(keep_checkpoints=len(places), average=average)
    checkpoint = RunCheckpoint(Run(path), dataset, validate, config)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=put), checkpoint]
    options = dict(epochs=len(places), validation_data=dataset, shuffle=False, verbose=0)
    losses = model.fit(dataset, callbacks=callbacks, **options).history["val_loss"]
    kept = keras.saving.load_model(path / "model.keras", compile=False).get_weights()
    place = np.ravel(kept[0] - weights[0])[0] / np.ravel(away[0])[0]
    return losses, place, json.loads((path / "model.json").read_text())


def test_mean_that_is_better_is_the_model(learned, tmp_path, capsys):
    """Halfway between two checkpoints, each as far from what was learned as the other."""
    losses, place, scores = fit_at(learned, [1.0, -1.0], tmp_path, "last")
    assert place == pytest.approx(0.0, abs=1e-3)
    assert scores["metrics"].keys() == {"val_loss"}
    assert scores["metrics"]["val_loss"] < min(losses) - 0.1
    found = {name: row["val_loss"] for name, row in scores["mean_of"].items()}
    assert found == {"epoch 1": losses[0], "epoch 2": losses[1]}
    first, second = (row["step"] for row in scores["mean_of"].values())
    assert second == first + 1
    assert "worse_mean" not in scores and capsys.readouterr().err == ""


def test_mean_that_is_worse_is_not(learned, tmp_path, capsys):
    losses, place, scores = fit_at(learned, [2.0, 0.0, 2.0], tmp_path, "best")
    assert place == pytest.approx(0.0, abs=1e-3)
    assert scores["metrics"]["val_loss"] == min(losses) == losses[1]
    assert "mean_of" not in scores
    assert min(losses) < scores["worse_mean"]["val_loss"]
    assert scores["worse_mean"]["mean_of"] == ["epoch 1", "epoch 2", "epoch 3"]
    assert "is worse than epoch 2 (val_loss" in capsys.readouterr().err


def test_model_is_the_best_checkpoint(learned, tmp_path):
    losses, place, scores = fit_at(learned, [1.0, 0.0, 1.0], tmp_path, "none")
    assert place == pytest.approx(0.0, abs=1e-3)
    assert scores["metrics"] == Run(tmp_path).read_state()["history"][1]
    assert scores.keys() == {"sha256", "metrics", "files"}  # of one file: nothing else is there
    assert scores["files"].keys() == {"model.keras"}
