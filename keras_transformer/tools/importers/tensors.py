"""Reads tensors of other systems: safetensors, PyTorch's `.bin`, NumPy's `.npz`.

The files are parsed, never executed, and PyTorch is not needed. What a file claims is compared with
its size before memory is taken, and each tensor is read only when it is needed.
"""

import collections
import functools
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401 - by which NumPy knows bfloat16; TensorFlow needs it too
import numpy as np

from keras_transformer.utils import Path, describe_corruption

LFS = b"version https://git-lfs"
MAX_HEADER_BYTES = 16 << 20  # of the names and shapes of a file
DTYPES = ("F32", "F16", "BF16")  # of safetensors
STORAGES = {  # of PyTorch
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
}
ARRAYS = ("float32", "float16", "int8", "int32", "int64")  # of NumPy


class StoredTensor(NamedTuple):
    """A tensor in a file.

    Attributes:
        shape: Its shape.
        read: Function that returns it as an array.
        place: Where it is in the file: equal for copies that share their memory, None if unknown.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    place: Any = None


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Finds the tensors of a safetensors file, a state dict of PyTorch or an `.npz`, by content."""
    start = read_start(path)
    try:
        if start[8:9] == b"{":  # first, as the size before it may be of any bytes
            return _read_safetensors(path)
        if start.startswith(b"PK"):
            with zipfile.ZipFile(path) as archive:
                if any(name.endswith(".npy") for name in archive.namelist()):
                    return _read_npz(path, archive)
                return _read_torch_zip(path, archive)
        if start.startswith(b"\x80"):
            return _read_torch_stream(path)
    except (ValueError, ModuleNotFoundError):
        raise
    except Exception as error:  # zipfile and pickle raise anything for a corrupted file
        raise ValueError(describe_corruption(path, error)) from None
    raise ValueError(
        f"{path} is neither a safetensors file, a state dict of PyTorch nor an .npz: copy it again "
        "from its origin."
    )


def read_start(path: Path) -> bytes:
    """Returns the first bytes of a file."""
    if not os.path.isfile(path):
        raise ValueError(f"{path} is missing: copy all files of the model from its origin.")
    try:
        with open(path, "rb") as file:
            start = file.read(len(LFS))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None
    if start == LFS:
        raise ValueError(f"{path} is a Git LFS pointer: fetch the file itself with git lfs pull.")
    return start


# --- safetensors ---


def _read_safetensors(path):
    from safetensors import safe_open

    file, tensors = safe_open(path, "numpy"), {}
    for name in file.keys():  # noqa: SIM118 - it is not a dict
        described = file.get_slice(name)
        if (kind := described.get_dtype()) not in DTYPES:
            raise ValueError(
                f"{path}: {name} must be {', '.join(DTYPES)}, received {kind}: convert it."
            )
        read = functools.partial(file.get_tensor, name)
        tensors[name] = StoredTensor(tuple(described.get_shape()), read)
    return tensors


# --- NumPy ---


def _read_npz(path, archive):
    tensors = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
        if dtype.name not in ARRAYS:
            raise ValueError(f"{path}: {name} must be float32 or float16, received {dtype}.")
        if entry.file_size - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{path} is corrupted: the size of {name} is not that of its shape.")
        read_array = functools.partial(_read_npz_array, path, entry.filename)
        tensors[name] = StoredTensor(shape, read_array)
    return tensors


def _read_npz_array(path, name):
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


# --- PyTorch ---


def _are_sizes(values):
    return isinstance(values, list | tuple) and all(type(x) is int and x >= 0 for x in values)


def _check_end(path, name, end, size):
    if end > size:
        raise ValueError(
            f"{path} is truncated: {name} ends at byte {end:,} of its data, which has "
            f"{max(size, 0):,}; copy or download it again."
        )


class _Storage(NamedTuple):
    """The memory of one tensor or several, by its key in the file."""

    key: str
    dtype: str
    numbers: int


class _View(NamedTuple):
    """A tensor: a part of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _RebuildTensor:
    """Stands for torch._utils._rebuild_tensor_v2; a pickle cannot change it."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _View:
        valid = isinstance(storage, _Storage) and _are_sizes((offset, *shape, *strides))
        if not valid or len(shape) != len(strides) or math.prod(shape) > storage.numbers:
            raise ValueError("a tensor is larger than its storage")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if math.prod(shape) and last >= storage.numbers:
            raise ValueError("a tensor ends behind its storage")
        return _View(storage, offset, tuple(shape), tuple(strides))


class _TensorUnpickler(pickle.Unpickler):
    """Unpickles a dict of tensors, and calls nothing but what is listed here."""

    KNOWN: dict[tuple[str, str], Any] = {
        ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
        ("collections", "OrderedDict"): collections.OrderedDict,
        **{("torch", name): dtype for name, dtype in STORAGES.items()},
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise ValueError(
                f"it names {module[:60]}.{name[:60]}, but a state dict consists of float32, "
                "float16 or bfloat16 tensors"
            )
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count = pid[:5]
        if kind != "storage" or dtype not in STORAGES.values() or not _are_sizes([count]):
            raise ValueError("it refers to something other than the memory of a tensor")
        return _Storage(str(key), dtype, count)


def _unpickle(path, file):
    """Reads one object of a stream; nothing in it is executed."""
    try:
        return _TensorUnpickler(file).load()
    except Exception as error:  # pickle raises anything
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is not a safe state dict: {reason}; nothing was run.") from None


def _views(path, state):
    """The tensors of a state dict by name."""
    if not isinstance(state, dict):
        raise ValueError(f"{path} must hold a state dict, received a {type(state).__name__}.")
    found = dict(dict.items(state))
    for name, view in found.items():
        if not isinstance(name, str) or not isinstance(view, _View):
            raise ValueError(
                f"{path} must hold a state dict of tensors, but {str(name)[:60]!r} is none: save "
                "model.state_dict()."
            )
    return found


def _make_tensor(view, read):
    """A `StoredTensor`; `read` reads its storage."""

    def read_view():
        values = read()[view.offset :]
        steps = [step * values.itemsize for step in view.strides]
        return np.lib.stride_tricks.as_strided(values, view.shape, steps)

    return StoredTensor(view.shape, read_view, view)


def _read_torch_zip(path, archive):
    names = [name for name in archive.namelist() if name.endswith("data.pkl")]
    if len(names) != 1:
        raise ValueError(f"{path} is a zip without a state dict of PyTorch, or with several.")
    root = names[0].removesuffix("data.pkl")
    if archive.getinfo(names[0]).file_size > MAX_HEADER_BYTES:
        raise ValueError(f"{path} is corrupted: its data.pkl is too large for names and shapes.")
    with archive.open(names[0]) as file:
        views = _views(path, _unpickle(path, file))
    if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
        raise ValueError(f"{path} must be little-endian: save it on another machine.")
    tensors = {}
    for name, view in views.items():
        entry, dtype = f"{root}data/{view.storage.key}", np.dtype(view.storage.dtype)
        size = archive.getinfo(entry).file_size if entry in archive.namelist() else 0
        _check_end(path, name, view.storage.numbers * dtype.itemsize, size)
        read = functools.partial(_read_entry, path, entry, dtype, view.storage.numbers)
        tensors[name] = _make_tensor(view, read)
    return tensors


def _read_entry(path, name, dtype, count):
    """Reads the numbers of a storage from an entry of a zip."""
    with zipfile.ZipFile(path) as archive, archive.open(name) as file:
        content = file.read(count * dtype.itemsize)
    if len(content) < count * dtype.itemsize:
        raise ValueError(f"{path} is truncated: {name} ends early; copy or download it again.")
    return np.frombuffer(content, dtype)


def _read_torch_stream(path):
    """Reads the format of PyTorch before 1.6: pickles, then the storages one after the other."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        for _ in range(3):  # a number, the version of the format, properties of the machine
            _unpickle(path, file)
        views = _views(path, _unpickle(path, file))
        keys = _unpickle(path, file)
        storages = {view.storage.key: view.storage for view in views.values()}
        starts = {}
        for key in map(str, keys if isinstance(keys, list) else []):
            count = int.from_bytes(file.read(8), "little")
            if key not in storages or storages[key].numbers != count:
                raise ValueError(f"{path} is corrupted: storage {key[:60]} is of another size.")
            starts[key] = file.tell()
            end = starts[key] + count * np.dtype(storages[key].dtype).itemsize
            _check_end(path, f"storage {key}", end, size)
            file.seek(end)
    tensors = {}
    for name, view in views.items():
        if view.storage.key not in starts:
            raise ValueError(f"{path} is truncated: the values of {name} are missing.")
        where = starts[view.storage.key]
        read = functools.partial(
            np.fromfile, path, view.storage.dtype, view.storage.numbers, "", where
        )
        tensors[name] = _make_tensor(view, read)
    return tensors
