"""Tensors in the files of other systems: read as they are, never executed, whatever they claim."""

import collections
import io
import os
import pickle
import pickletools
import re
import shutil
import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import keras_transformer as kt
from keras_transformer.tools.importers.tensors import read_tensors
from tests.tools.importers.conftest import MARIAN, write_zip


class Call:
    """Pickled as the call of a function, as an attacker does."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


CALLS = [
    lambda marker: Call(os.system, f"touch {marker}"),
    lambda marker: Call(eval, f"__import__('os').system('touch {marker}')"),
    lambda marker: Call(exec, f"open({str(marker)!r}, 'w')"),
    lambda marker: Call(__import__, "subprocess"),
]
PLACES = [lambda call: call, lambda call: {"weight": [call]}, lambda call: (1, {"b": call})]
KINDS = ["zip", "stream", "first of a stream"]


@given(*map(st.sampled_from, (CALLS, PLACES, range(6), KINDS)))
def test_no_pickle_is_executed(tmp_path_factory, call, place, protocol, kind):
    folder = tmp_path_factory.mktemp("attack")
    path, marker = folder / "x.bin", folder / "executed"
    attack = pickle.dumps(place(call(marker)), protocol)
    parts = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
    if kind == "zip":
        write_zip(path, {"archive/data.pkl": attack, "archive/version": "3"})
    else:
        head = b"".join(pickle.dumps(x, 2) for x in parts) if kind == "stream" else b""
        path.write_bytes(head + attack)
    with pytest.raises(ValueError, match="nothing was run"):
        read_tensors(path)
    assert not marker.exists()


def test_a_folder_with_a_pickle_that_attacks(tmp_path):
    attack = pickle.dumps({"w": CALLS[0](tmp_path / "executed")})
    folder = shutil.copytree(MARIAN / "separate", tmp_path / "model")
    write_zip(folder / "pytorch_model.bin", {"a/data.pkl": attack})
    with pytest.raises(ValueError, match="nothing was run"):
        kt.import_model(folder, tmp_path / "run")
    assert os.listdir(tmp_path) == ["model"]


def integer(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def torch_zip(shape, strides, offset=0, numbers=6, kind=b"Float", data=None):
    """A state dict of one tensor, written without PyTorch."""
    sizes, steps = (b"(" + b"".join(map(integer, x)) + b"t" for x in (shape, strides))
    content = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n("
    content += b"(X\x07\x00\x00\x00storagectorch\n" + kind + b"Storage\n"
    content += b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + integer(numbers) + b"tQ"
    content += integer(offset) + sizes + steps + b"\x89NtRs."
    data = np.arange(6, dtype="<f4").tobytes() if data is None else data
    return {"a/data.pkl": content, "a/data/0": data, "a/version": "3", "a/byteorder": "little"}


SIZES, STRIDES = st.integers(0, 4) | st.just(1 << 40), st.integers(-2, 4) | st.just(1 << 50)


@example((2, 2), (1, 3), 1, 6)
@example((1 << 40, 1), (0, 0), 0, 6)
@example((2, 3), (3, 1), 0, 1 << 50)
@given(st.tuples(SIZES, SIZES), st.tuples(STRIDES, STRIDES), st.integers(-1, 6), st.integers(0, 8))
def test_a_tensor_is_inside_its_storage(tmp_path_factory, shape, strides, offset, numbers):
    """Its numbers are those that its strides lead to; otherwise the file is corrupted."""
    path = tmp_path_factory.mktemp("view") / "x.bin"
    write_zip(path, torch_zip(shape, strides, offset, numbers))
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    reached = [offset, offset + last]
    fits = 0 <= min(reached) and max(reached) < numbers <= 6 and min(strides) >= 0
    try:
        found = read_tensors(path)["w"]
    except ValueError as error:
        assert re.search("is corrupted", str(error)) and "\n" not in str(error)
        assert not fits or 0 in shape or shape[0] * shape[1] > numbers
    else:
        storage, steps = np.arange(6, dtype="f4"), [stride * 4 for stride in strides]
        expected = np.ndarray(shape, "f4", storage.view("u1"), offset * 4, steps)
        np.testing.assert_array_equal(found, expected)
        assert fits or 0 in shape or min(strides) < 0 <= min(reached)


def test_bfloat16_of_pytorch(tmp_path):
    data = np.arange(6, dtype="<f4").view("<u2")[1::2].tobytes()  # the upper halves
    entries = torch_zip((2, 3), (3, 1), kind=b"BFloat16", data=data)
    found = read_tensors(write_zip(tmp_path / "x.bin", entries))["w"]
    np.testing.assert_array_equal(found.astype("float32"), [[0, 1, 2], [3, 4, 5]])
    entries["a/data/0"] = data[:-1]
    with pytest.raises(ValueError, match="is corrupted .*it is truncated"):
        read_tensors(write_zip(tmp_path / "x.bin", entries))


@given(st.sampled_from(["untied", "half", "tied"]), st.floats(0, 0.999))
def test_truncated_files_are_corrupted(tmp_path_factory, name, part):
    (source,) = [*(MARIAN / name).glob("*.bin"), *(MARIAN / name).glob("*.safetensors")]
    path = tmp_path_factory.mktemp("truncated") / "x.bin"
    content = source.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ValueError, match="is corrupted"):
        read_tensors(path)


def test_a_stream_that_lacks_a_storage_is_corrupted(tmp_path):
    """Its tensor would be zeros."""
    content = (MARIAN / "untied" / "pytorch_model.bin").read_bytes()
    file = io.BytesIO(content)
    for _ in range(4):
        collections.deque(pickletools.genops(file), maxlen=0)
    start, keys = file.tell(), pickle.load(file)
    kept = pickle.dumps(keys[:-1], 2) + content[file.tell() :]
    (tmp_path / "x.bin").write_bytes(content[:start] + kept)
    with pytest.raises(ValueError, match="is corrupted .*storages are missing"):
        read_tensors(tmp_path / "x.bin")


@pytest.mark.parametrize("start", [b"\x80", b"PK"])
def test_a_size_like_the_start_of_another_format(start, tmp_path):
    """A header of 128 bytes begins like a pickle, one of 19,280 like a zip."""
    path, size = tmp_path / "x", int.from_bytes(start, "little")
    for number in range(max(0, size - 128), size):
        save_file({"a": np.ones(2, "float32")}, path, {"b": "c" * number})
        if path.read_bytes().startswith(start):
            break
    np.testing.assert_array_equal(read_tensors(path)["a"], [1, 1])


def test_files_that_claim_a_terabyte_or_are_elsewhere(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    huge = struct.pack("<Q", 1 << 40) + b"{}"
    for content, message in ((huge, "is corrupted .Error while de"), (pointer, "git lfs pull")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_tensors(tmp_path / "x")
