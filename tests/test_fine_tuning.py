"""Trainings that begin where another ended, or are done again, or begun again."""

import contextlib
import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.cli.training import configure
from keras_transformer.runs.run import Run
from keras_transformer.train import train
from tests.support.command_line import run
from tests.support.reversed_text import config_of, write_corpus


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A run of one epoch, its directory beside a log of each of its steps."""
    folder = tmp_path_factory.mktemp("fine tuning")
    options = dict(vocabulary_size=5000)  # more than there are
    options |= dict(epochs=1, steps_per_epoch=25, ema=0.9, parallel_microbatches=1)
    config = config_of(folder, 200, 0, valid_fraction=0.1, log_every=1e-9, **options)
    with open(folder / "log", "w") as log, contextlib.redirect_stderr(log):
        train(config, folder / "origin")
    return folder, config


@pytest.fixture(scope="module")
def tuned(origin):
    """Fine-tuned on other pairs for an epoch, which is no multiple of the log's points."""
    folder, _ = origin
    source, target = write_corpus(folder, 150, 2)
    result = run(
        *["train", "--start-from", folder / "origin", "--output", folder / "tuned"],
        *["--train-source", source, "--train-target", target, "--valid-fraction", "0.2"],
        *["--freeze", "encoder", "source-embeddings", "--parallel-microbatches", "1"],
        *["--epochs", "1", "--steps-per-epoch", "25"],
    )
    assert result.returncode == 0, result.stderr.decode()
    return folder, (source, target)


def weights_of(path):
    return kt.load(path).model.get_weights()


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


# Again.


def test_a_configuration_repeats_a_run_bit_for_bit(origin):
    folder, _ = origin
    config = folder / "origin" / "config.yaml"
    options = ["--parallel-microbatches", "1"]  # the machine's
    result = run("train", "--config", config, "--output", folder / "again", *options)
    assert result.returncode == 0, result.stderr.decode()
    assert_equal(weights_of(folder / "origin"), weights_of(folder / "again"))


def test_a_run_killed_before_its_first_checkpoint_begins_again(origin):
    folder, _ = origin
    killed = shutil.copytree(folder / "origin", folder / "killed")
    for name in ("model.keras", "history.csv"):
        (killed / name).unlink()
    for name in ("checkpoints", "logs"):
        shutil.rmtree(killed / name)
        (killed / name).mkdir()
    options = ["--parallel-microbatches", "1"]
    result = run("train", "--output", killed, "--resume", *options)
    assert result.returncode == 0, result.stderr.decode()
    assert_equal(weights_of(folder / "origin"), weights_of(killed))


def test_a_failed_start_leaves_nothing(origin, monkeypatch):
    folder, config = origin
    (folder / "failed.tmp").mkdir()  # of one that was killed while it made the directory

    def fail(*_):
        raise OSError("No space left")

    monkeypatch.setattr("keras_transformer.train.summarize_training", fail)
    with pytest.raises(OSError, match="No space left"):
        train(config, folder / "failed")
    assert not list(folder.glob("failed*"))


# From there.


def test_fine_tuning_has_the_weights_tokenizers_and_recipe_of_its_origin(tuned):
    folder, _ = tuned
    for name in ("source.spm", "target.spm"):
        assert (folder / "tuned" / name).read_bytes() == (folder / "origin" / name).read_bytes()
    old, new = (kt.load(folder / name).model for name in ("origin", "tuned"))
    for part in ("encoder", "source_embedding"):
        assert_equal(getattr(old, part).get_weights(), getattr(new, part).get_weights())
        assert not getattr(new, part).trainable
    moved = zip(old.decoder.get_weights(), new.decoder.get_weights(), strict=True)
    assert not any(np.array_equal(a, b) for a, b in moved)
    begun, config = (Run(folder / name).read_config() for name in ("origin", "tuned"))
    assert config.learning_rate == 3e-4
    assert (config.ema, config.seed, config.warmup_steps) == (begun.ema, begun.seed, 50)
    assert config.start_from == str(folder / "origin")
    (first,), (second,) = (Run(folder / name).read_history() for name in ("origin", "tuned"))
    assert second["step"] == first["step"] and second["loss"] < first["loss"]


def schedule_of(*arguments, **options):
    config = configure(options, *arguments)
    return {name: getattr(config, name) for name in SCHEDULE}


SCHEDULE = ("learning_rate", "warmup_steps", "cooldown_steps", "epochs", "steps_per_epoch")
SCHEDULE += ("tokens_per_batch",)
GENTLE = dict(zip(SCHEDULE, (3e-4, 50, 0, 5, None, 1024), strict=True))


def test_the_schedule_of_a_fine_tuning(origin, tmp_path):
    folder, config = origin
    start = {"start_from": str(folder / "origin")}
    assert schedule_of(**start) == GENTLE
    assert schedule_of(**start, epochs=9, learning_rate=0.1) == GENTLE | dict(
        epochs=9, learning_rate=0.1
    ), "options win"
    own = schedule_of(None, "tiny", **start)
    assert own["learning_rate"] == kt.PRESETS["tiny"].learning_rate, "a preset has its own"

    def begin(**changes):
        run = Run(shutil.copytree(folder / "origin", tmp_path / str(len(changes))))
        run.write_config(dataclasses.replace(config, **changes))
        return schedule_of(start_from=str(run))

    # Without a learning rate, as an imported model, it is that of the paper.
    longer = dataclasses.replace(config.model, max_length=2000)
    sizes = dict(model=longer, tokens_per_batch=2000)
    found = begin(learning_rate=None, warmup_steps=4000, **sizes)
    rate = float(f"{(config.model.d_model * 4000) ** -0.5 / 10:.1e}")
    assert found == GENTLE | {"learning_rate": rate, "tokens_per_batch": 2000}
    again = begin(start_from="before", learning_rate=1e-4)
    assert again["learning_rate"] == 1e-4 and again["epochs"] == config.epochs, "passed on"


def test_resume_takes_all_from_the_run(tuned):
    """Text that has moved is still that text, and the frozen stay."""
    folder, texts = tuned
    resumed = shutil.copytree(folder / "tuned", folder / "resumed")
    moved = [shutil.copy(path, f"{path}.moved") for path in texts]
    command = ["train", "--output", resumed, "--resume", "--epochs", "2"]
    places = ["--train-source", moved[0], "--train-target", moved[1]]
    result = run(*command, *places, "--parallel-microbatches", "1", "--start-from", "/gone")
    assert b"start_from must be " in result.stderr
    result = run(*command, *places, "--parallel-microbatches", "1")
    assert result.returncode == 0, result.stderr.decode()
    old, new = (kt.load(folder / name).model for name in ("origin", "resumed"))
    assert_equal(old.encoder.get_weights(), new.encoder.get_weights())
    assert [row["step"] for row in Run(resumed).read_history()] == [25, 50]
    config = Run(resumed).read_config()
    assert config.freeze == ("encoder", "source-embeddings") and config.epochs == 2
    for path in moved:
        with open(path, "a") as file:
            file.write("ba\n")
    result = run(*command[:-1], "3", *places)
    assert result.returncode == 2, result.stderr.decode()
    assert b"The train text must be that of" in result.stderr, "where it was, or in it"


# What is told.


def test_a_log_of_the_training(origin):
    """A table, a line for each step but the first, a line for the epoch, in the file."""
    folder, _ = origin
    lines = (folder / "log").read_text().splitlines()
    table = "\n".join(lines[:12])
    assert "\npairs  " in table and "ema 0.9" in table
    pattern = (
        r"step (\d+) of 25: loss ([\d.]+), learning rate [\d.]+e-0\d, [\d,]+ target tokens/s, "
        r"\d+ s left"
    )
    steps = [match for line in lines if (match := re.fullmatch(pattern, line))]
    assert [int(match[1]) for match in steps] == list(range(2, 26))
    assert re.match(r"epoch 1 of 1: \d+ s, 0 s left; .*loss ", lines[-2])
    assert re.fullmatch(
        r"best epoch 1, val_loss [\d.]+; to translate: keras-transformer translate .*origin < FILE",
        lines[-1],
    )
    with open(folder / "origin" / "data.json") as file:
        assert json.load(file)["train"]["pairs"] + 0 < 200
