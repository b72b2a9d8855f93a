"""Two points on the disk: whichever file is damaged, it is named, and the other point is used."""

import json
import os
import pickle
import resource
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_transformer.runs.checkpoints import (
    LOCK,
    STATE,
    Checkpoints,
    write_arrays,
)
from keras_transformer.utils import digest
from tests.support import child_process

OWNED = r"\d+\.weights"
OLDER, NEWER = "000000-00000003.safetensors", "000001-00000000.safetensors"


def arrays_of(number):
    random = np.random.default_rng(number)
    return {
        "model/0/kernel": random.normal(size=(5, 3)).astype("float32"),
        "model/1/seed": random.integers(99, size=2).astype("uint32"),
        "optimizer/0/iterations": np.asarray(number),
        "metrics/0/count": np.zeros((0,)),
    }


@pytest.fixture
def folder(tmp_path):
    """Three points have been saved, the last two of them are kept."""
    points = Checkpoints(tmp_path / "points", OWNED)
    points.lock()
    points.begin()
    for number, name in enumerate(("000000-00000002", "000000-00000003", "000001-00000000")):
        kept = tmp_path / "points" / f"{number}.weights"
        kept.write_bytes(bytes([number]) * 100)
        files = {kept.name: digest(kept)}
        points.write(name, {"number": number}, arrays_of(number), files)
    points.release()
    return tmp_path / "points"


def assert_point(found, number):
    state, arrays = found
    assert state == {"number": number}
    for name, array in arrays_of(number).items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def opened(folder):
    return Checkpoints(folder, OWNED).latest()


def test_the_newest_point_is_used_and_what_no_point_needs_is_gone(folder, capsys):
    assert_point(opened(folder), 2)
    assert capsys.readouterr().err == ""
    names = {OLDER, NEWER, "1.weights", "2.weights", STATE, LOCK}
    assert {entry.name for entry in folder.iterdir()} == names


def test_types_that_numpy_does_not_have(tmp_path):
    import ml_dtypes

    array = np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16)
    write_arrays(tmp_path / "x", {"a": array, "b": np.array(True)})
    arrays = load_file(tmp_path / "x")
    np.testing.assert_array_equal(arrays["a"], array)
    assert arrays["b"].dtype == bool and arrays["b"].shape == ()


# Damage.


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-64:] = bytes(255 - byte for byte in data[-64:])
    path.write_bytes(data)


def pickled(path):
    path.write_bytes(pickle.dumps(arrays_of(2)))


DAMAGES = [truncate, empty, flip, pickled, os.remove]


@pytest.mark.parametrize("name", [NEWER, "2.weights"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_the_point_before_is_used(folder, capsys, damage, name):
    damage(folder / name)
    assert_point(opened(folder), 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {folder / name}") and "the checkpoint before it" in line


def test_after_damage_training_goes_on_from_the_older_point(folder, capsys):
    flip(folder / NEWER)
    points = Checkpoints(folder, OWNED)
    points.latest()
    points.write("000001-00000000", {"number": 2}, arrays_of(2))
    capsys.readouterr()
    assert_point(opened(folder), 2)
    assert capsys.readouterr().err == ""
    flip(folder / NEWER)
    assert_point(opened(folder), 1)


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_no_point_is_whole_one_sentence_says_so(folder, damage):
    damage(folder / NEWER)
    damage(folder / OLDER)
    with pytest.raises(ValueError, match="No checkpoint is valid") as caught:
        opened(folder)
    assert OLDER in str(caught.value) and NEWER in str(caught.value)


@pytest.mark.parametrize(
    "damage, message",
    [
        (os.remove, "is missing, although"),
        (empty, "is corrupted"),
        (truncate, "is corrupted"),
        (lambda path: path.write_text("[]"), "is corrupted"),
        (lambda path: path.write_text(path.read_text().replace("1", "3")), "is corrupted"),
    ],
)
def test_what_names_the_points_must_be_whole(folder, damage, message):
    damage(folder / STATE)
    with pytest.raises(ValueError, match=f"{STATE} {message}"):
        opened(folder)


# Whatever the moment of a kill.


def test_nothing_was_saved_yet(tmp_path):
    assert opened(tmp_path / "none") is None
    Checkpoints(tmp_path).begin()
    assert opened(tmp_path) is None


def test_a_kill_before_the_first_point_is_named(tmp_path):
    Checkpoints(tmp_path).begin()
    write_arrays(tmp_path / OLDER, arrays_of(1))
    assert opened(tmp_path) is None


def test_what_killed_processes_left_is_removed(folder):
    before = {entry.name for entry in folder.iterdir()}
    for name in ("tmp.resume.json", "000001-00000007.safetensors", "9.weights"):
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("the user's own")
    points = Checkpoints(folder, OWNED)
    points.latest()
    points.clean()
    assert {entry.name for entry in folder.iterdir()} == before | {"notes.txt"}


@pytest.mark.parametrize("limit, file", [(0, "safetens"), (150, "safetens"), (2000, "json")])
def test_a_full_disk_loses_nothing(folder, capsys, limit, file):
    """Python turns the limit of a file's size into the error that a full disk is."""
    points = Checkpoints(folder, OWNED)
    points.latest()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(ValueError, match=rf"\.{file}.* cannot be written \(.*File too large"):
            points.write("000001-00000004", {"number": "4" * limit}, arrays_of(4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(folder.glob("tmp.*"))
    assert_point(opened(folder), 2)
    points.write("000001-00000004", {"number": 4}, arrays_of(4))
    assert_point(opened(folder), 4)
    assert capsys.readouterr().err == ""


# One training at a time.

HOLD = """
import os, sys
os.environ["KERAS_TRANSFORMER_LIGHT"] = "1"
from keras_transformer.runs.checkpoints import Checkpoints
Checkpoints(sys.argv[1]).lock()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_training_is_refused_until_the_first_is_killed(tmp_path):
    points = Checkpoints(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child_process.running(command, **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            ValueError, match=rf"in use by another training process \({holder.pid}\)"
        ):
            points.lock()
        holder.kill()
    points.lock()
    points.lock()  # a notebook, after an interruption
    points.release()


def test_a_name_that_is_a_file(tmp_path):
    (tmp_path / "points").write_text("")
    with pytest.raises(ValueError, match="points cannot be written"):
        Checkpoints(tmp_path / "points").lock()


def test_numbers_of_numpy_in_a_state(tmp_path):
    points = Checkpoints(tmp_path)
    points.begin()
    points.write("000000-00000001", {"best": np.float32(0.5), "at": (1, 2)}, {})
    points.amend(finished=True)
    assert opened(tmp_path)[0] == {"best": 0.5, "at": [1, 2], "finished": True}
    assert json.loads((tmp_path / STATE).read_text())["checkpoints"]
