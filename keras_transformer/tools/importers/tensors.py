"""Reads tensors of other systems: safetensors, PyTorch's `.bin`, NumPy's `.npz`.

The files are parsed, never executed, and PyTorch is not needed. What a file claims is compared with
its size before memory is taken.
"""

import collections
import math
import os
import pickle
import zipfile
from typing import Any

import ml_dtypes  # noqa: F401 - by which NumPy knows bfloat16; TensorFlow needs it too
import numpy as np
from safetensors import safe_open

from keras_transformer.utils import Path, describe_corruption

LFS = b"version https://git-lfs"
STORAGES = {  # of PyTorch
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
}


def read_tensors(path: Path) -> dict[str, Any]:
    """Reads a safetensors file, a state dict of PyTorch or an `.npz`, by its content.

    The tensors are arrays, or for safetensors what NumPy converts to arrays.
    """
    with open(path, "rb") as file:
        start = file.read(len(LFS))
    if start == LFS:
        raise ValueError(f"{path} is a Git LFS pointer: fetch the file itself with git lfs pull.")
    try:
        if start[8:9] == b"{":  # first, as the size before it may be of any bytes
            with safe_open(path, "numpy") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in [*file.keys()]}
            return {name: _Stored(path, name, tuple(shape)) for name, shape in shapes.items()}
        if start.startswith(b"PK"):
            return _read_zip(path)
        return _read_torch_stream(path)
    except Exception as error:  # readers raise anything for a corrupted file
        raise ValueError(describe_corruption(path, error)) from None


class _Stored:
    """A tensor in a safetensors file, which is read each time that NumPy needs it.

    So a large model is never in memory twice: what is mapped counts, too.
    """

    def __init__(self, path: Path, name: str, shape: tuple[int, ...]) -> None:
        self._path, self._name, self.shape = path, name, shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with safe_open(self._path, "numpy") as file:
            return np.asarray(file.get_tensor(self._name), dtype)


def _read_zip(path):
    """Reads an `.npz`, or the format of PyTorch since 1.6."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.endswith(".npy") for name in names):
            with np.load(path) as arrays:
                return dict(arrays)
        (name,) = (name for name in names if name.endswith("data.pkl"))
        with archive.open(name) as file:
            tensors, storages = _unpickle_tensors(file, os.path.getsize(path))
        for key, storage in storages.items():
            with archive.open(f"{name.removesuffix('data.pkl')}data/{key}") as file:
                _fill(storage, file)
    return tensors


def _read_torch_stream(path):
    """Reads the format of PyTorch before 1.6: pickles, then the storages one after the other."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for _ in range(3):  # a number, the version of the format, properties of the machine
            _Unpickler(file, size).load()
        tensors, storages = _unpickle_tensors(file, size)
        for key in _Unpickler(file, size).load():
            storage = storages.pop(key)
            if int.from_bytes(file.read(8), "little") != len(storage):
                raise ValueError(f"storage {key} is of another size")
            _fill(storage, file)
    if storages:
        raise ValueError(f"it is truncated: {len(storages)} storages are missing")
    return tensors


def _unpickle_tensors(file, size):
    """Returns the tensors of a state dict, views of its storages, and these, still zeros."""
    unpickler = _Unpickler(file, size)
    state = unpickler.load()
    if not isinstance(state, dict) or any(type(x) is not np.ndarray for x in dict.values(state)):
        raise ValueError("it must hold a state dict of tensors only: save model.state_dict()")
    return dict(dict.items(state)), unpickler.storages


def _fill(storage, file):
    if file.readinto(storage.view(np.uint8)) < storage.nbytes:
        raise ValueError("it is truncated")


class _RebuildTensor:
    """Stands for torch._utils._rebuild_tensor_v2; a pickle cannot change it."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> np.ndarray:
        if math.prod(shape) > storage.size:
            raise ValueError("a tensor is larger than its storage")
        steps = [step * storage.itemsize for step in strides]
        start = offset * storage.itemsize
        return np.ndarray(shape, storage.dtype, storage.view(np.uint8), start, steps)


class _Unpickler(pickle.Unpickler):
    """Unpickles a dict of tensors, and calls nothing but what is listed here.

    `storages` are the tensors' memory by its key in the file, of which `size` is the size.
    """

    KNOWN: dict[tuple[str, str], Any] = {
        ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
        ("collections", "OrderedDict"): collections.OrderedDict,
        **{("torch", name): dtype for name, dtype in STORAGES.items()},
    }

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(file)
        self.storages: dict[str, np.ndarray] = {}
        self._size = size

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise ValueError(
                f"it names {module[:60]}.{name[:60]}, not a tensor of float32, float16 or bfloat16;"
                " nothing was run"
            )
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, dtype, key, _, count = pid[:5]
        if dtype not in STORAGES.values():
            raise ValueError("it refers to something other than the memory of a tensor")
        if count * np.dtype(dtype).itemsize > self._size:
            raise ValueError("it is truncated")
        return self.storages.setdefault(key, np.zeros(count, dtype))
