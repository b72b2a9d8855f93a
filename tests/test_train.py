"""A training leaves a complete run directory, and goes on where it stopped."""

import dataclasses
import os
import random
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import run_directory
from keras_transformer.train import train

MODEL = kt.ModelConfig(num_layers=1, d_model=16, num_heads=2, d_ff=32, max_length=32)


def write_corpus(folder, rows, seed):
    """Sentences of made-up words and, as their translation, the words in reverse order."""
    words = ["ba", "ce", "di", "fo", "gu", "kala", "melo", "nitu"]
    chooser = random.Random(seed)
    sources = [chooser.choices(words, k=chooser.randint(2, 6)) for _ in range(rows)]
    paths = folder / f"{rows}.source", folder / f"{rows}.target"
    paths[0].write_text("".join(" ".join(line) + "\n" for line in sources))
    paths[1].write_text("".join(" ".join(line[::-1]) + "\n" for line in sources))
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    train_files, valid_files = write_corpus(folder, 300, 1), write_corpus(folder, 40, 2)
    return kt.TrainConfig(
        *train_files,
        *valid_files,
        vocabulary_size=300,
        model=MODEL,
        epochs=3,
        tokens_per_batch=256,
        peak=3e-3,
        warmup_steps=20,
        strategy="one",
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A training of three epochs without a stop: its directory and its history."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    return output, train(config, output)


def test_loss_falls(whole):
    _, history = whole
    assert len(history["loss"]) == len(history["val_loss"]) == 3
    assert history["loss"][2] < history["loss"][0]
    assert 1 < history["val_perplexity"][2] < history["val_perplexity"][0]


def test_run_directory_is_complete_and_can_be_moved(whole, config, tmp_path):
    output, _ = whole
    names = {"model.keras", "source.spm", "target.spm", "config.yaml", "logs", "checkpoints"}
    assert {entry.name for entry in output.iterdir()} == names
    assert any("tfevents" in name for _, _, files in os.walk(output / "logs") for name in files)
    assert run_directory.read_config(output) == config
    before = kt.load(output).translate(["ba ce di", "kala melo"])
    moved = tmp_path / "elsewhere"
    shutil.copytree(output, moved)
    shutil.move(output, tmp_path / "gone")
    try:
        assert kt.load(moved).translate(["ba ce di", "kala melo"]) == before
    finally:
        shutil.move(tmp_path / "gone", output)


def test_resumed_training_has_the_same_loss_curve(whole, config, tmp_path):
    """Weights, optimizer, schedule, dropout and the order of the batches go on."""
    _, history = whole
    output = tmp_path / "resumed"
    first = train(dataclasses.replace(config, epochs=1), output)
    rest = train(config, output, resume=True)
    assert len(first["loss"]) == 1 and len(rest["loss"]) == 2
    for name, values in history.items():
        np.testing.assert_allclose(first[name] + rest[name], values, rtol=1e-5, err_msg=name)
    assert run_directory.read_config(output) == config
    assert not train(config, output, resume=True), "nothing is left to do"


def test_best_model_is_kept(whole):
    """model.keras has the validation loss of the best epoch, not of the last."""
    output, history = whole
    state = (output / "checkpoints" / "last.json").read_text()
    assert repr(min(history["val_loss"])) in state
    assert len(list((output / "checkpoints").iterdir())) == 2  # the last weights and the state


def test_output_with_another_run_is_refused(whole, config):
    output, _ = whole
    before = sorted(os.walk(output))
    with pytest.raises(ValueError, match="is not empty: choose another --output, or go on"):
        train(config, output)
    assert sorted(os.walk(output)) == before


def test_resuming_with_another_recipe_is_refused(whole, config):
    output, _ = whole
    with pytest.raises(ValueError, match="begun with peak=0.003, received 0.001"):
        train(dataclasses.replace(config, peak=1e-3), output, resume=True)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocabulary_size": 5000}, "at most"),
        ({"model": dataclasses.replace(MODEL, num_heads=3)}, "num_heads=3 does not divide"),
        ({"train_source": "/nowhere"}, "/nowhere cannot be read"),
        ({"valid_source": None}, "--valid-source is missing"),
        ({"train_source": None}, "--train-source is missing"),
        ({"tokens_per_batch": 8}, "cannot hold a sentence"),
        ({"strategy": "several"}, "no strategy 'several'"),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"model_type": "syllable"}, "model_type must be one of"),
        ({"epochs": 0}, "epochs"),
        ({"precision": "float8"}, "precision"),
    ],
)
def test_bad_configuration_leaves_nothing_behind(config, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(config, **changes), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_resuming_nothing(config, tmp_path):
    with pytest.raises(ValueError, match="no run directory"):
        train(config, tmp_path / "none", resume=True)


def test_directory_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="is no run directory"):
        kt.load(tmp_path)
