"""A training leaves a complete run directory, and goes on where it stopped."""

import csv
import dataclasses
import os
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.text_files import read_pairs
from keras_transformer.presets import change
from keras_transformer.runs.averaging import average
from keras_transformer.runs.run import Run
from keras_transformer.tokenizers import saved
from keras_transformer.train import _compile_model, train
from tests.support.command_line import run
from tests.support.reversed_text import config_of


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return config_of(tmp_path_factory.mktemp("corpus"), epochs=3)


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
    names = {"model.keras", "source.spm", "target.spm", "config.yaml", "history.csv"}
    names |= {"logs", "checkpoints", "data.json", "model.json", "examples.json"}
    assert {entry.name for entry in output.iterdir()} == names
    assert any("tfevents" in name for _, _, files in os.walk(output / "logs") for name in files)
    assert Run(output).read_config() == config
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
        assert first[name] + rest[name] == values, name
    assert Run(output).read_config() == config
    assert not train(config, output, resume=True), "nothing is left to do"


def test_best_model_is_kept(whole):
    """One checkpoint, here the best is the last too, what to resume from, and the state."""
    output, history = whole
    (kept,) = Run(output).read_state()["checkpoints"]
    assert (kept["file"], kept["epoch"]) == ("000003.weights.h5", 3)
    metrics = Run(output).describe()["metrics"]
    assert metrics["val_loss"] == min(history["val_loss"]) and metrics["step"] > 3
    names = {kept["file"], "000003-00000000.safetensors", "resume.json", "lock"}
    # What the point before needs, should the last one be damaged.
    names |= {"000002.weights.h5", "000002-00000000.safetensors"}
    assert {entry.name for entry in (output / "checkpoints").iterdir()} == names


def test_history(whole, config):
    """A row per validation, with totals since the training began."""
    output, history = whole
    with open(output / "history.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == history["loss"]
    assert [float(row["val_loss"]) for row in rows] == history["val_loss"]
    assert all(row["val_bleu"] == "" for row in rows)
    steps, tokens = ([int(row[name]) for row in rows] for name in ("step", "target_tokens"))
    assert steps == [steps[0], 2 * steps[0], 3 * steps[0]] and steps[0] > 1
    with open(config.train_target, encoding="utf-8") as file:
        lines = file.read().splitlines()
    tokenizer = saved.load(output)[1]
    in_a_pass = int(tokenizer(lines).flat_values.shape[0]) + len(lines)
    assert tokens == [in_a_pass, 2 * in_a_pass, 3 * in_a_pass]
    schedule = kt.WarmupInverseSqrt(peak=config.learning_rate, warmup_steps=config.warmup_steps)
    for row, step in zip(rows, steps, strict=True):
        assert float(row["learning_rate"]) == pytest.approx(float(schedule(step)), rel=1e-6)
    minutes = [float(row["minutes"]) for row in rows]
    assert 0 < minutes[0] < minutes[1] < minutes[2]


# Every option of the recipe at once.


@pytest.fixture(scope="module")
def rich_config(config):
    return dataclasses.replace(
        config,
        epochs=4,
        steps_per_epoch=9,
        accumulation_steps=2,
        parallel_microbatches=2,
        cooldown_steps=18,
        clip_norm=1.0,
        weight_decay=0.01,
        ema=0.8,
        rdrop=1.0,
        validate_by="bleu",
        keep_checkpoints=2,
    )


@pytest.fixture(scope="module")
def rich(rich_config, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "rich"
    return output, train(rich_config, output)


@pytest.fixture(scope="module")
def half(rich_config, tmp_path_factory):
    """The first half of it, before a cooldown has been decided upon."""
    output = tmp_path_factory.mktemp("runs") / "half"
    return output, train(dataclasses.replace(rich_config, epochs=2, cooldown_steps=0), output)


def test_options_reach_compile(rich_config):
    model = kt.Transformer(30, 30, 1, 16, 2, 32)
    _compile_model(model, rich_config, total_steps=36)
    assert (model.rdrop, model.clip_norm, model.accumulation_steps) == (1.0, 1.0, 2)
    assert (model.optimizer.weight_decay, model.optimizer.get_config()["ema_momentum"]) == (
        0.01,
        0.8,
    )


def test_rich_training_resumes_where_it_stopped(rich, half, rich_config, tmp_path):
    """Sampled subwords, the running mean and the checkpoints to average go on too.

    The cooldown may be decided upon when it begins.
    """
    whole, history = rich
    started, first = half
    output = shutil.copytree(started, tmp_path / "resumed")
    rest = train(rich_config, output, resume=True)
    assert {"val_bleu", "val_chrf", "target_tokens"} <= history.keys()
    for name, values in history.items():
        assert first[name] + rest[name] == values, name
    states = [Run(path).read_state()["checkpoints"] for path in (whole, output)]
    assert [one["file"] for one in states[0]] == [one["file"] for one in states[1]]
    for a, b in zip(*(kt.load(p).model.get_weights() for p in (whole, output)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_learning_rate_cools_down(rich):
    output, _ = rich
    with open(output / "history.csv", encoding="utf-8", newline="") as file:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(file)]
    assert rates[1] > rates[2] > rates[3] == 0


def assert_weights_are(model, path):
    weights = model.get_weights()
    model.load_weights(path)
    for a, b in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_model_is_the_best(rich):
    """At this rate, while it falls to nothing, the last one is."""
    output, history = rich
    best = int(np.argmin(history["val_loss"]))
    assert max(history["val_bleu"]) < 5 and best == 3
    assert_weights_are(kt.load(output).model, output / "checkpoints" / "000004.weights.h5")
    assert Run(output).describe()["metrics"]["val_loss"] == history["val_loss"][best]
    kept = {entry.name for entry in output.glob("checkpoints/*.weights.h5")}
    assert kept >= {"000003.weights.h5", "000004.weights.h5"}


@pytest.mark.parametrize("by, number", [("last", 2), ("best", 1)])
def test_average_of_a_run(rich, tmp_path, capsys, by, number):
    """Its scores are its own, as the run would have validated it, and it names its members."""
    output, history = rich
    average(output, tmp_path / "mean", number, by)
    chosen = [3, 4] if by == "last" else [4]
    checkpoints = [output / "checkpoints" / f"{i:06}.weights.h5" for i in chosen]
    kt.average_checkpoints(checkpoints, tmp_path / "mean.weights.h5")
    assert_weights_are(kt.load(tmp_path / "mean").model, tmp_path / "mean.weights.h5")
    assert Run(tmp_path / "mean").read_config() == Run(output).read_config()
    described = Run(tmp_path / "mean").describe()
    assert list(described["mean_of"]) == [f"epoch {i}" for i in chosen]
    assert described["mean_of"]["epoch 4"]["val_loss"] == history["val_loss"][3]
    if by == "best":
        for name in ("val_loss", "val_bleu", "val_chrf"):
            assert described["metrics"][name] == pytest.approx(history[name][3], rel=1e-4)
    else:
        assert described["metrics"]["val_loss"] > history["val_loss"][3]
    said = "the mean of epoch 3, epoch 4 (val_bleu" in capsys.readouterr().err
    assert said == (by == "last"), "that it is worse than the best"
    with pytest.raises(ValueError, match="already exists"):
        average(output, tmp_path / "mean", number, by)


def test_a_training_that_diverges(rich, half, rich_config, tmp_path):
    """It stops in an epoch's second step, whose first one had too large a learning rate.

    The run stays as the epoch before has left it: a smaller rate leads where it would have led.
    """
    expected, config = rich[0], rich_config
    output = shutil.copytree(half[0], tmp_path / "run")
    options = ["--epochs", config.epochs, "--cooldown-steps", config.cooldown_steps, "--resume"]
    options += ["--parallel-microbatches", config.parallel_microbatches, "--save-every", 1]
    options += ["--output", output, "--learning-rate"]
    before = {name: (output / name).read_bytes() for name in ("model.keras", "history.csv")}
    result = run("train", *options, "1e30")
    assert result.returncode == 3
    *_, said = result.stderr.decode().splitlines()
    assert "the loss or the gradient norm of step 2 of epoch 3 is not finite" in said
    assert "a smaller learning rate (--learning-rate)" in said
    assert said.endswith("; --resume continues from the end of epoch 2.")
    assert {name: (output / name).read_bytes() for name in before} == before
    assert kt.load(output).translate(["ba ce"])
    assert run("train", *options, config.learning_rate).returncode == 0
    for a, b in zip(*(kt.load(p).model.get_weights() for p in (expected, output)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_training_that_diverges_at_once_leaves_nothing(config, tmp_path):
    with pytest.raises(FloatingPointError, match="step 2 of epoch 1 .*clip-norm\\)\\.$"):
        train(dataclasses.replace(config, learning_rate=1e30), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_checkpoint_is_the_running_mean_that_was_validated(rich, rich_config):
    """Translating with the kept weights gives the logged BLEU."""
    output, history = rich
    model = kt.load(output).model
    model.load_weights(output / "checkpoints" / "000004.weights.h5")
    pairs = read_pairs(rich_config.valid_source, rich_config.valid_target)
    scores = kt.TranslationScores(pairs, *saved.load(output)).measure(model)
    assert scores["val_bleu"] == pytest.approx(history["val_bleu"][3])
    assert scores["val_chrf"] == pytest.approx(history["val_chrf"][3])


def test_training_ends_when_patience_does(config, tmp_path, capsys):
    """Nothing is learned at this rate: the first epoch stays the best, but for rounding."""
    stubborn = dataclasses.replace(config, epochs=9, learning_rate=1e-30, patience=2)
    history = train(stubborn, tmp_path / "run")
    assert len(history["loss"]) == 3
    assert "best epoch 1, val_loss" in capsys.readouterr().err
    assert not train(stubborn, tmp_path / "run", resume=True), "still out of patience"
    said = "run was stopped by --patience 2 after epoch 3 of 9: to continue, --resume with a larger"
    assert said in capsys.readouterr().err
    patient = dataclasses.replace(stubborn, patience=3)
    assert len(train(patient, tmp_path / "run", resume=True)["loss"]) == 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"vocabulary_size": 200}, "vocabulary_size must be greater than 260"),
        ({"tokens_per_batch": 8}, "tokens_per_batch must be at least max_length"),
        ({"strategy": "several"}, "strategy must be one of auto"),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"model_type": "syllable"}, "model_type must be one of"),
        ({"epochs": 0}, "epochs"),
        ({"precision": "float8"}, "precision"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, received 0"),
        ({"accumulation_steps": 0}, "accumulation_steps must be at least 1"),
        ({"parallel_microbatches": 0}, "parallel_microbatches must be at least 1"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),
        ({"validation_beam_size": 0}, "validation_beam_size must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1"),
        ({"subword_sampling": 0.1}, "train no longer has the option subword_sampling"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"validate_by": "ter"}, "validate_by must be one of loss, bleu"),
        ({"valid_fraction": 0.1}, "leave out one of the two"),
        ({"valid_source": None, "valid_target": None, "valid_fraction": 1.0}, "below 1"),
        ({"log_every": 0.0}, "log_every must be above 0"),
        ({"languages": ("de",)}, "--languages applies to the built-in dates"),
    ],
)
def test_bad_configuration_leaves_nothing_behind(config, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(change(config, changes), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["train", "valid"])
def test_whose_pairs_are_all_left_out(config, tmp_path, part):
    (tmp_path / "long.tsv").write_text(f"{'a ' * 99}\tb\n" * 27)
    changes = {f"{part}_source": str(tmp_path / "long.tsv"), f"{part}_target": None}
    purpose = {"train": "learn from", "valid": "validate by"}[part]
    with pytest.raises(ValueError, match=f"remain to {purpose}: kept 0 of 27 pairs; dropped 27 "):
        train(dataclasses.replace(config, **changes), tmp_path / "run")
    model = dataclasses.replace(config.model, max_length=1)
    with pytest.raises(ValueError, match="remain to learn from: kept 0 of 300 pairs; dropped"):
        train(dataclasses.replace(config, model=model), tmp_path / "run")


def test_directory_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="is neither a run directory"):
        kt.load(tmp_path)
