"""Trainings that begin where another ended, or begin again; and what is told of one."""

import dataclasses
import re
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.cli.training import configure
from keras_transformer.runs.run import Run
from tests.support.command_line import run, succeeds
from tests.support.layer_harness import assert_equal
from tests.support.paths import PATTERN
from tests.support.reversed_text import write_corpus


@pytest.fixture(scope="module")
def tuned(trained_run, tmp_path_factory):
    """Fine-tuned on other pairs for an epoch, with a log of each of its steps; its text."""
    folder = tmp_path_factory.mktemp("fine tuning") / PATTERN
    folder.mkdir(parents=True)
    source, target = write_corpus(folder, 150, 2)
    result = succeeds(
        *["train", "--start-from", trained_run, "--output", folder / "tuned"],
        *["--train-source", source, "--train-target", target, "--valid-fraction", "0.2"],
        *["--freeze", "encoder", "source-embeddings", "--parallel-microbatches", "1"],
        *["--plot", "--epochs", "1", "--steps-per-epoch", "5", "--log-every", "1e-9"],
    )
    assert result.stdout == b""
    (folder / "log").write_bytes(result.stderr)
    assert (folder / "tuned" / "curves.png").exists()
    assert list((folder / "tuned" / "logs" / "train").glob("events*"))
    return folder, (source, target)


def test_fine_tuning_has_the_weights_tokenizers_and_recipe_of_its_origin(tuned, trained_run):
    output = tuned[0] / "tuned"
    for name in ("source.spm", "target.spm"):
        assert (output / name).read_bytes() == (trained_run / name).read_bytes()
    old, new = (kt.load(path).model for path in (trained_run, output))
    for part in ("encoder", "source_embedding"):
        assert_equal(*(getattr(model, part).get_weights() for model in (old, new)))
        assert not getattr(new, part).trainable
    moved = zip(old.decoder.get_weights(), new.decoder.get_weights(), strict=True)
    assert not any(np.array_equal(a, b) for a, b in moved)
    begun, config = (Run(path).read_config() for path in (trained_run, output))
    assert (config.learning_rate, config.warmup_steps, config.seed) == (3e-4, 50, begun.seed)
    assert config.start_from == str(trained_run)
    (*_, last), (first,) = (Run(path).read_history() for path in (trained_run, output))
    assert abs(first["loss"] - last["loss"]) < 0.5, "on the same words"


GENTLE = dict(learning_rate=3e-4, warmup_steps=50, cooldown_steps=0)
GENTLE |= dict(epochs=5, steps_per_epoch=None, tokens_per_batch=1024)


def schedule_of(*arguments, **options):
    config = configure(options, *arguments)
    return {name: getattr(config, name) for name in GENTLE}


def test_the_schedule_of_a_fine_tuning(trained_run, trained_config, tmp_path):
    start = {"start_from": str(trained_run)}
    assert schedule_of(**start) == GENTLE
    own = dict(epochs=9, learning_rate=0.1)
    assert schedule_of(**start, **own) == GENTLE | own, "options win"
    preset = schedule_of(None, "tiny", **start)
    assert preset["learning_rate"] == kt.PRESETS["tiny"].learning_rate, "a preset has its own"

    def begin(**changes):
        run = Run(shutil.copytree(trained_run, tmp_path / str(len(changes))))
        run.write_config(dataclasses.replace(trained_config, **changes))
        return schedule_of(start_from=str(run))

    # Without a learning rate, as an imported model, it is that of the paper.
    longer = dataclasses.replace(trained_config.model, max_length=2000)
    sizes = dict(model=longer, tokens_per_batch=2000)
    found = begin(learning_rate=None, warmup_steps=4000, **sizes)
    rate = float(f"{(longer.d_model * 4000) ** -0.5 / 10:.1e}")
    assert found == GENTLE | {"learning_rate": rate, "tokens_per_batch": 2000}
    again = begin(start_from="before", learning_rate=1e-4)
    assert (again["learning_rate"], again["epochs"]) == (1e-4, 3), "passed on"


def test_a_run_killed_before_its_first_checkpoint_begins_again(tuned):
    folder, _ = tuned
    killed = shutil.copytree(folder / "tuned", folder / "killed")
    for name in ("model.keras", "history.csv"):
        (killed / name).unlink()
    for name in ("checkpoints", "logs"):
        shutil.rmtree(killed / name)
        (killed / name).mkdir()
    succeeds("train", "--output", killed, "--resume", "--parallel-microbatches", "1")
    assert_equal(*(kt.load(folder / name).model.get_weights() for name in ("tuned", "killed")))


def test_resume_takes_all_from_the_run(tuned, trained_run):
    """Text that has moved is still that text, the frozen stay, and the origin may be gone."""
    folder, texts = tuned
    resumed = shutil.copytree(folder / "tuned", folder / "resumed")
    Run(resumed).write_config(dataclasses.replace(Run(resumed).read_config(), start_from="/gone"))
    moved = [shutil.copy(path, f"{path}.moved") for path in texts]
    command = ["train", "--output", resumed, "--resume", "--parallel-microbatches", "1"]
    command += ["--train-source", moved[0], "--train-target", moved[1], "--epochs"]
    assert b"start_from must be " in run(*command, "2", "--start-from", "/other").stderr
    succeeds(*command, "2")
    assert_equal(*(kt.load(x).model.encoder.get_weights() for x in (trained_run, resumed)))
    assert [row["step"] for row in Run(resumed).read_history()] == [5, 10]
    config = Run(resumed).read_config()
    assert config.freeze == ("encoder", "source-embeddings") and config.epochs == 2
    for path in moved:
        with open(path, "a") as file:
            file.write("ba\n")
    result = run(*command, "3")
    assert result.returncode == 2 and b"The train text must be that of" in result.stderr


def test_a_log_of_the_training(tuned):
    """A table, a line for each step but the first, a line for the epoch, one for the best."""
    *lines, epoch, best, curves = (tuned[0] / "log").read_text().splitlines()
    assert lines[0].startswith("pairs  ") and "freeze encoder source-embeddings" in str(lines[:12])
    pattern = r"step (\d+) of 5: loss [\d.]+, learning rate [\d.]+e-0\d, .* tokens/s, \d+ s left"
    assert re.findall(pattern, "\n".join(lines)) == ["2", "3", "4", "5"]
    assert re.match(r"epoch 1 of 1: \d+ s, 0 s left; .*loss ", epoch)
    command = r"keras-transformer translate .*tuned'? < FILE"
    assert re.fullmatch(rf"best epoch 1, val_loss [\d.]+; to translate: {command}", best)
    assert curves.endswith("tuned/curves.png")
