"""A `.keras` file: a zip archive of a configuration and an HDF5 file of weights, nothing else."""

import io
import math
import os
import struct
import zipfile
import zlib
from typing import Any

import h5py

from keras_transformer.inspection.files import describe_corruption
from keras_transformer.utils import Path

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
MAX_BYTES = {CONFIG: 1 << 20, METADATA: 1 << 16}  # what is written has one kilobyte
MAX_DEPTH, MAX_OBJECTS = 32, 100_000  # groups within each other; groups and arrays
KINDS = "fiub"  # of the arrays that are weights: NumPy's letters


def open_archive(path: Path) -> zipfile.ZipFile:
    """Opens a `.keras` file after a check of its members."""
    try:
        archive = zipfile.ZipFile(path)
        names = sorted(info.filename for info in archive.infolist())
        if names != sorted([CONFIG, METADATA, WEIGHTS]):
            raise ValueError(
                f"{path} holds {', '.join(map(repr, names[:6]))}, expected {CONFIG}, {METADATA} "
                f"and {WEIGHTS}: this package has not saved it."
            )
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
                raise ValueError(
                    f"{path}: {info.filename} is compressed, which Keras does not do: save the "
                    "model anew."
                )
            if info.file_size > MAX_BYTES.get(info.filename, info.file_size):
                raise ValueError(
                    f"{path}: {info.filename} has {info.file_size:,} bytes, at most "
                    f"{MAX_BYTES[info.filename]:,} are read."
                )
            with archive.open(info):  # the header before it has the same values
                pass
        return archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(describe_corruption(path, error)) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None


def read_config(archive: zipfile.ZipFile) -> str:
    """Reads the configuration in an archive that `open_archive` has opened."""
    try:
        return archive.read(CONFIG).decode()
    except (zipfile.BadZipFile, UnicodeDecodeError, EOFError, OSError) as error:
        raise ValueError(describe_corruption(archive.filename, error)) from None


class StoredMember(io.RawIOBase):
    """A member of an archive that is stored as it is, to be read at any place.

    `ZipFile.open` reads a member from its beginning after each step back, of which HDF5 takes many.

    Args:
        archive: As `open_archive` returns it.
        name: Name of the member.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        info = archive.getinfo(name)
        self._file = open(str(archive.filename), "rb")
        self._file.seek(info.header_offset + 26)  # the lengths of the name and of further fields
        self._start = info.header_offset + 30 + sum(struct.unpack("<HH", self._file.read(4)))
        self._size, self._at = info.file_size, 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a place; returns it."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads bytes into a buffer; returns their number."""
        room = memoryview(buffer)[: max(self._size - self._at, 0)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(room)
        self._at += count
        return count

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def describe_weights(path: Path, file: io.RawIOBase | None = None) -> dict[str, list[int]]:
    """Describes the arrays of an HDF5 file of weights without reading them.

    Args:
        path: Its name.
        file: Where to read instead.

    Returns:
        {name: shape}.
    """
    try:
        if file is None and not os.path.isfile(path):
            raise ValueError(f"{path} is not a file: check the path.")
        size = os.path.getsize(path)
        with h5py.File(file or path, "r") as root:
            weights = _Weights(path)
            weights.visit(root, "", 0)
    except ValueError:
        raise
    # Damage shows in any of these, by the place where it is.
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(describe_corruption(path, error)) from None
    if weights.bytes > size:
        raise ValueError(
            f"{path} declares {weights.bytes:,} bytes of weights, has {size:,}: it is truncated."
        )
    return weights.shapes


class _Weights:
    """The arrays in the groups of an HDF5 file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, list[int]] = {}
        self.bytes = self.objects = 0

    def visit(self, group: Any, where: str, depth: int) -> None:
        """Checks everything in a group."""
        if depth > MAX_DEPTH:
            self._refuse(where, f"is nested more than {MAX_DEPTH} groups deep")
        for name in group:
            inner = f"{where}/{name}"
            self.objects += 1
            if self.objects > MAX_OBJECTS:
                self._refuse(inner, f"exceeds the limit of {MAX_OBJECTS:,} objects")
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                self._refuse(inner, f"is a link ({type(link).__name__}), expected an array")
            item = group[name]
            if isinstance(item, h5py.Group):
                self.visit(item, inner, depth + 1)
            elif isinstance(item, h5py.Dataset):
                self._add(item, inner)
            else:
                self._refuse(inner, f"is a {type(item).__name__}, expected an array")

    def _add(self, array, where):
        if array.dtype.kind not in KINDS or array.dtype.hasobject or array.dtype.names:
            # A few strings describe Keras' objects: not weights, but plain.
            if array.dtype.kind not in "SU" or array.nbytes > 1024:
                self._refuse(where, f"is of the type {array.dtype}, expected numbers")
        properties = array.id.get_create_plist()
        beyond = properties.get_nfilters() or properties.get_external_count()
        plain = h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS
        if beyond or properties.get_layout() not in plain or array.is_virtual:
            self._refuse(where, "is not stored as it is (compressed, or in another file)")
        bytes_of_it = math.prod(array.shape) * array.dtype.itemsize
        if array.id.get_storage_size() != bytes_of_it:
            self._refuse(where, "is not in the file")
        self.bytes += bytes_of_it
        self.shapes[where[1:]] = list(array.shape)

    def _refuse(self, where, what):
        raise ValueError(f"{self.path}: {where} {what}: it is not a weights file of Keras.")
