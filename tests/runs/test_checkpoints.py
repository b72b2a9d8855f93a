"""Two points on the disk: whichever file is damaged, it is named, and the other point is used."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.runs.checkpoints import STATE, Checkpoints, write_arrays
from keras_transformer.utils import digest
from tests.support import child_process

OWNED = r"\d+\.weights"
OLDER, NEWER = "000000-00000003.safetensors", "000001-00000000.safetensors"


def arrays_of(number):
    random = np.random.default_rng(number)
    return {
        "model/0/kernel": random.normal(size=(5, 3)).astype("float32"),
        "model/1/half": np.linspace(-3, 3, 7).astype(ml_dtypes.bfloat16),
        "model/2/seed": random.integers(99, size=2).astype("uint32"),
        "optimizer/0/iterations": np.asarray(number),
        "metrics/0/count": np.zeros((0,)),
        "metrics/1/flag": np.array(True),
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
        points.write(name, {"number": np.int64(number)}, arrays_of(number), files)
    points.release()
    return tmp_path / "points"


def assert_point(found, number):
    state, arrays = found
    assert state == {"number": number}
    for name, array in arrays_of(number).items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)


def opened(folder):
    return Checkpoints(folder, OWNED).latest()


@given(
    name=st.sampled_from([NEWER, "2.weights", OLDER, "1.weights"]),
    share=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["flip", "cut", "remove"]),
)
def test_a_damaged_file_is_named_and_the_point_before_is_used(folder, capsys, name, share, kind):
    path, whole = folder / name, (folder / name).read_bytes()
    place = int(share * len(whole))
    flipped = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
    path.unlink()
    if kind != "remove":
        path.write_bytes(flipped if kind == "flip" else whole[:place])
    assert_point(opened(folder), 1 if name in (NEWER, "2.weights") else 2)
    said = capsys.readouterr().err
    if name in (NEWER, "2.weights"):
        assert said.count("\n") == 1 and said.startswith(f"warning: {path}")
        assert "the checkpoint before it" in said
        older = folder / (OLDER if name == NEWER else "1.weights")
        content = older.read_bytes()
        older.write_bytes(content[:-1])
        with pytest.raises(ValueError, match="No checkpoint is valid") as caught:
            opened(folder)
        assert str(older) in str(caught.value) and str(path) in str(caught.value)
        older.write_bytes(content)
    else:
        assert not said
    path.write_bytes(whole)


def test_what_names_the_points_must_be_whole(folder):
    for content in ("[]", (folder / STATE).read_text().replace("1", "3")):
        (folder / STATE).write_text(content)
        with pytest.raises(ValueError, match=f"{STATE} is corrupted"):
            opened(folder)
    (folder / STATE).unlink()
    with pytest.raises(ValueError, match=f"{STATE} is missing, although"):
        opened(folder)


def test_after_damage_training_goes_on_from_the_older_point(folder):
    """Which is the one before the next, should that be damaged, too."""
    points = Checkpoints(folder, OWNED)
    (folder / NEWER).write_bytes(b"")
    points.latest()
    points.write("000001-00000001", {"number": 3}, arrays_of(3))
    assert_point(opened(folder), 3)
    (folder / "000001-00000001.safetensors").write_bytes(b"")
    assert_point(opened(folder), 1)


def test_a_kill_before_the_first_point(tmp_path):
    assert opened(tmp_path / "none") is None
    Checkpoints(tmp_path).begin()
    assert opened(tmp_path) is None
    write_arrays(tmp_path / OLDER, arrays_of(1))
    assert opened(tmp_path) is None


@pytest.mark.parametrize("limit, file", [(150, "safetens"), (2000, "json")])
def test_a_full_disk_loses_nothing(folder, capsys, limit, file):
    points = Checkpoints(folder, OWNED)
    points.latest()
    said = rf"\.{file}.* cannot be written \(.*File too large"
    with pytest.raises(ValueError, match=said), child_process.largest_file(limit):
        points.write("000001-00000004", {"number": "4" * limit}, arrays_of(4))
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
        with pytest.raises(ValueError, match=rf"another training process \({holder.pid}\)"):
            points.lock()
        holder.kill()
    points.lock()
    points.lock()  # a notebook, after an interruption
    points.release()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file cannot be written"):
        Checkpoints(tmp_path / "file").lock()
