"""`--resume` on a run that something has happened to: a sentence, or the run as it was."""

import contextlib
import dataclasses
import fcntl
import os
import resource
import shutil

import numpy as np
import pytest

from keras_transformer.runs.averaging import average
from keras_transformer.runs.opening import load
from keras_transformer.runs.run import Run
from keras_transformer.train import train
from tests.support.command_line import run as run_command
from tests.support.reversed_text import config_of

TEXTS = "train_source", "train_target"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    options = dict(steps_per_epoch=5, tokens_per_batch=128, parallel_microbatches=1, save_every=3)
    return config_of(tmp_path_factory.mktemp("corpus"), 60, 20, **options)


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    train(config, output)
    return output


@pytest.fixture
def longer(config):
    return dataclasses.replace(config, epochs=3)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def content(run):
    """All files but for curves and the lock."""
    files = [path for path in run.rglob("*") if path.is_file()]
    kept = [path for path in files if "logs" not in path.parts and path.name != "lock"]
    return {path: path.read_bytes() for path in kept}


def points_of(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def test_nothing_is_left_to_do_and_nothing_is_written(run, config, capsys):
    before, when = content(run), (run / "config.yaml").stat().st_mtime_ns
    assert train(config, run, resume=True) == {}
    assert content(run) == before and (run / "config.yaml").stat().st_mtime_ns == when
    assert "has completed its 2 epochs" in capsys.readouterr().err


def test_what_a_kill_left_is_put_in_order(run, longer):
    """What it kept out is written, what it left half is removed, and a changed option is kept."""
    missing = {name: (run / name).read_bytes() for name in ("history.csv", "data.json")}
    for name in missing:
        (run / name).unlink()
    leftovers = "tmp.config.yaml", "checkpoints/tmp.resume.json", "checkpoints/000007.weights.h5"
    for name in leftovers:
        (run / name).write_bytes(b"half")
    train(dataclasses.replace(longer, save_every=None), run, resume=True)
    for name, content in missing.items():
        assert (run / name).read_bytes().startswith(content)
    assert len(Run(run).read_history()) == 3
    assert not any((run / name).exists() for name in leftovers)
    assert Run(run).read_config().save_every is None
    # A point stays what it was, should the next one be damaged.
    states = [point["state"] for point in Run(run).checkpoints.read()]
    assert [state["additional"]["epoch"] for state in states] == [
        state["epoch"] for state in states
    ]


@pytest.mark.parametrize("why", ["finished", "damaged", "another model"])
def test_a_resume_that_does_not_train_writes_nothing(run, longer, tmp_path, why):
    """Not even other options: the run is what it was trained with."""
    changed = dataclasses.replace(longer, patience=5, save_every=4)
    if why == "finished":
        changed = dataclasses.replace(changed, epochs=2)
    elif why == "damaged":
        for point in points_of(run):
            point.write_bytes(b"")
    else:
        points = Run(run).checkpoints
        state, arrays = points.latest()
        points.write("000002-00000001", state, {name: arrays[name] for name in list(arrays)[1:]})
    before = everything(run)
    with contextlib.nullcontext() if why == "finished" else pytest.raises(ValueError):
        assert not train(changed, run, resume=True)
    assert everything(run) == before


def everything(run):
    """All files but for the lock."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_the_last_point_is_damaged(run, config, capsys):
    """The epoch's end is done once more: the validation, the checkpoint, the model."""
    expected, rows = Run(run).read_state(), Run(run).read_history()
    newest = points_of(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    (run / "model.keras").unlink()
    history = train(config, run, resume=True)
    assert f"{newest} is corrupted" in capsys.readouterr().err
    assert history["val_loss"] == [rows[1]["val_loss"]]
    state = Run(run).read_state()
    for one, other in zip(Run(run).read_history(), rows, strict=True):
        assert one | {"minutes": 0} == other | {"minutes": 0}
    assert [one["epoch"] for one in state["checkpoints"]] == [
        one["epoch"] for one in expected["checkpoints"]
    ]
    assert Run(run).has_model


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda run: [path.unlink() for path in points_of(run)], "No checkpoint is valid"),
        (
            lambda run: (run / "data.json").write_text('{"train": '),
            "data.json is corrupted: it is not JSON",
        ),
        (lambda run: (run / "config.yaml").write_text("{"), "config.yaml is not valid YAML"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "resume.json is missing, although"),
    ],
)
def test_damage_that_cannot_be_mended_is_one_sentence(run, config, damage, message):
    damage(run)
    before = content(run)
    with pytest.raises(ValueError, match=message) as caught:
        train(config, run, resume=True)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert content(run) == before


def test_changed_text_is_refused(run, config, tmp_path):
    with open(config.train_source, encoding="utf-8") as file:
        lines = file.readlines()
    (tmp_path / "source").write_text("".join(lines[::-1]))
    changed = dataclasses.replace(config, train_source=str(tmp_path / "source"))
    with pytest.raises(ValueError, match="The train text must be .* --start-from"):
        train(changed, run, resume=True)


def test_run_that_was_killed_after_its_text_had_changed(run, config):
    """What is written anew before the model is has the checksum of what it is now."""
    Run(run).write_data({"train": {"pairs": 7, "sha256": "another"}})
    Run(run).write_config(dataclasses.replace(config, epochs=9))
    assert load(run).translate(["ba"])


def test_weights_that_are_not_finite(run, longer, tmp_path):
    """What an older version has left: nothing is done with it, not even the trials of an export."""
    model = load(run).model
    weight = model.trainable_variables[-1]
    weight.assign(np.full(weight.shape, np.nan))
    Run(run).write_model(model, {"metrics": {}})
    said = f"{run}/model.keras has weights that are not finite, such as "
    for command in (["translate", run], ["export", run, tmp_path / "models"]):
        result = run_command(*command, stdin=b"ba ce\n")
        assert (result.returncode, result.stdout) == (2, b"")
        assert result.stderr.decode().startswith(f"keras-transformer: {said}")
        assert result.stderr.count(b"\n") == 1
    with pytest.raises(ValueError, match=said):
        average(run, tmp_path / "mean", 1)
    tuned = dataclasses.replace(longer, start_from=str(run), vocabulary_size=300)
    with pytest.raises(ValueError, match=said):
        train(tuned, tmp_path / "tuned")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_two_trainings_into_one_directory(run, config):
    with open(run / "checkpoints" / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is in use by another training process"):
            train(config, run, resume=True)


def test_a_full_disk_loses_nothing(run, config):
    """Python turns the limit of a file's size into the error that a full disk is."""
    before, state = content(run), Run(run).read_state()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = os.path.getsize(points_of(run)[0])
    longer = dataclasses.replace(config, epochs=3)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"safetensors cannot be written \(.*File too large"):
            train(longer, run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = content(run)
    for path in (*points_of(run), run / "model.keras", run / "history.csv"):
        assert after[path] == before[path]
    assert Run(run).read_state() == state
    assert len(train(longer, run, resume=True)["loss"]) == 1
