"""`--resume` on a run that something has happened to: a sentence, or the run as it was."""

import dataclasses
import fcntl
import shutil

import numpy as np
import pytest

from keras_transformer.kernels.tensorflow import machine
from keras_transformer.runs.averaging import average
from keras_transformer.runs.opening import load
from keras_transformer.runs.run import Run
from keras_transformer.runs.run_callbacks import write_weights
from keras_transformer.train import train
from tests.support import child_process
from tests.support.command_line import refused
from tests.support.layer_harness import assert_equal


@pytest.fixture
def run(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "run")


def everything(run):
    files = (path for path in run.rglob("*") if path.is_file() and path.name != "lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def points_of(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def test_nothing_is_left_to_do_and_nothing_is_written(run, trained_config, capsys):
    before = everything(run)
    changed = dataclasses.replace(trained_config, patience=5, save_every=4)
    assert train(changed, run, resume=True) == {}
    assert everything(run) == before
    assert "has completed its 3 epochs" in capsys.readouterr().err


def test_what_a_kill_left_is_put_in_order(run, trained_config, monkeypatch):
    """What it kept out is written, what it left half is removed, and a changed option is kept."""
    missing = {name: (run / name).read_bytes() for name in ("history.csv", "data.json")}
    for name in missing:
        (run / name).unlink()
    leftovers = ["tmp.config.yaml", "checkpoints/tmp.resume.json", "checkpoints/000007.weights.h5"]
    leftovers.append("checkpoints/000001-00000007.safetensors")
    for name in (*leftovers, "checkpoints/notes.txt"):  # the user's own
        (run / name).write_bytes(b"half")
    (run / "tmp.models").mkdir()  # an export that was killed

    def choose(precision):  # not what the run was begun with
        return "mixed_bfloat16" if precision == "auto" else precision

    monkeypatch.setattr(machine, "choose_precision", choose)
    changes = dict(epochs=4, save_every=1, precision="auto")
    train(dataclasses.replace(trained_config, **changes), run, resume=True)
    for name, content in missing.items():
        assert (run / name).read_bytes().startswith(content)
    assert len(Run(run).read_history()) == 4
    assert not any((run / name).exists() for name in leftovers)
    assert (run / "checkpoints" / "notes.txt").exists()
    config = Run(run).read_config()
    assert (config.save_every, config.precision) == (1, "float32")
    for state in (point["state"] for point in Run(run).checkpoints.read()):
        assert state["additional"]["epoch"] == state["epoch"], "as when it was saved"


def test_the_last_point_is_damaged(run, trained_run, trained_config, capsys):
    rows, newest = Run(run).read_history(), points_of(run)[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    (run / "model.keras").unlink()
    history = train(trained_config, run, resume=True)
    assert f"{newest} is corrupted" in capsys.readouterr().err
    assert history["val_loss"] == [rows[2]["val_loss"]]
    for one, other in zip(Run(run).read_history(), rows, strict=True):
        assert one | {"minutes": 0} == other | {"minutes": 0}
    assert_equal(*(load(x).model.get_weights() for x in (run, trained_run)))


def test_a_full_disk_loses_nothing(run):
    """Where HDF5 would end the process. Of points: `test_checkpoints.py`."""
    before, model = everything(run), load(run).model
    path = run / "checkpoints" / "000003.weights.h5"
    said, half = f"{path} cannot be written .*File too large", path.stat().st_size // 2
    with pytest.raises(ValueError, match=said), child_process.largest_file(half):
        write_weights(path, model)
    assert everything(run) == before


def test_two_trainings_into_one_directory(run, trained_config):
    with open(run / "checkpoints" / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="is in use by another training process"):
            train(dataclasses.replace(trained_config, epochs=4), run, resume=True)


def of_another_model(run):
    points = Run(run).checkpoints
    state, arrays = points.latest()
    points.write("000003-00000001", state, {name: arrays[name] for name in list(arrays)[1:]})


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda run: [path.write_bytes(b"") for path in points_of(run)], "No checkpoint is valid"),
        (lambda run: (run / "data.json").write_text('{"train": '), "data.json is corrupted: it is"),
        (of_another_model, "resume with the same model, optimizer and strategy"),
    ],
)
def test_damage_that_cannot_be_mended_is_one_sentence(run, trained_config, damage, message):
    """And nothing is written, not even other options: the run is what it was trained with."""
    damage(run)
    before = everything(run)
    with pytest.raises(ValueError, match=message) as caught:
        train(dataclasses.replace(trained_config, epochs=4, patience=5), run, resume=True)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert everything(run) == before


def test_run_that_was_killed_after_its_text_had_changed(run, trained_config):
    """What is written anew before the model is has the checksum of what it is now."""
    Run(run).write_data({"train": {"pairs": 7, "sha256": "another"}})
    Run(run).write_config(dataclasses.replace(trained_config, epochs=4))
    assert load(run).translate(["ba"])


def test_weights_that_are_not_finite(run, trained_config, tmp_path):
    """What an older version has left: nothing is done with it, not even the trials of an export."""
    model = load(run).model
    weight = model.trainable_variables[-1]
    weight.assign(np.full(weight.shape, np.nan))
    Run(run).write_model(model, {"metrics": {}})
    said = f"{run}/model.keras has weights that are not finite, such as "
    for command in (["translate", run], ["export", run, tmp_path / "models"]):
        refused(command, said, stdin=b"ba ce\n")
    with pytest.raises(ValueError, match=said):
        average(run, tmp_path / "mean", 1)
    with pytest.raises(ValueError, match=said):
        train(dataclasses.replace(trained_config, start_from=str(run)), tmp_path / "tuned")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
