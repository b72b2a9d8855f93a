"""HDF5 files of weights: plain arrays in groups, all of whose bytes are in the file itself."""

import math
import os
from typing import IO, Any

import h5py

from keras_transformer.inspection.keras_archive import damaged
from keras_transformer.typing import Path

DEEPEST, MOST_OBJECTS = 32, 100_000  # groups within each other; groups and arrays
KINDS = "fiub"  # what weights consist of: NumPy's letters
BEYOND = (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS)


def describe_weights(path: Path, file: IO[bytes] | None = None) -> dict[str, list[int]]:
    """Describes the arrays of a file without reading them.

    Args:
        path: Its name.
        file: Where to read instead.

    Returns:
        {name: shape}.

    Raises:
        ValueError: If it cannot be read, or holds links, what is no array of numbers, or arrays
            that are not in it as they are: compressed, elsewhere, or all in one place.
    """
    try:
        if file is None and not os.path.isfile(path):
            raise ValueError(f"{path} is no file: check the path.")
        size = os.path.getsize(path)
        with h5py.File(file or path, "r") as root:
            walk = _Walk(path)
            walk.group(root, "", 0)
    except ValueError:
        raise
    # Damage shows in any of these, by the place where it is.
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(damaged(path, error)) from None
    if walk.bytes > size:
        raise ValueError(
            f"{path} says that it holds {walk.bytes:,} bytes of weights, but has {size:,}: they "
            "are not all there."
        )
    return walk.shapes


class _Walk:
    """Through the groups of a file."""

    def __init__(self, path):
        self.path = path
        self.shapes: dict[str, list[int]] = {}
        self.bytes = self.objects = 0

    def group(self, group: Any, where: str, depth: int) -> None:
        """Looks at what a group holds."""
        if depth > DEEPEST:
            self._refuse(where, f"lies more than {DEEPEST} groups deep")
        for name in group:
            inner = f"{where}/{name}"
            self.objects += 1
            if self.objects > MOST_OBJECTS:
                self._refuse(inner, f"comes after {MOST_OBJECTS:,} others")
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                self._refuse(inner, f"is a link ({type(link).__name__}), expected an array")
            item = group[name]
            if isinstance(item, h5py.Group):
                self.group(item, inner, depth + 1)
            elif isinstance(item, h5py.Dataset):
                self._array(item, inner)
            else:
                self._refuse(inner, f"is a {type(item).__name__}, expected an array")

    def _array(self, array, where):
        if array.dtype.kind not in KINDS or array.dtype.hasobject or array.dtype.names:
            # A few strings say what Keras was: no weights, but plain.
            if array.dtype.kind not in "SU" or array.nbytes > 1024:
                self._refuse(where, f"is of the type {array.dtype}, expected numbers")
        properties = array.id.get_create_plist()
        beyond = properties.get_nfilters() or properties.get_external_count()
        if beyond or properties.get_layout() not in BEYOND or array.is_virtual:
            self._refuse(where, "is not stored as it is (compressed, or in another file)")
        bytes_of_it = math.prod(array.shape) * array.dtype.itemsize
        if array.id.get_storage_size() != bytes_of_it:
            self._refuse(where, "is not in the file")
        self.bytes += bytes_of_it
        self.shapes[where[1:]] = list(array.shape)

    def _refuse(self, where, what):
        raise ValueError(f"{self.path}: {where} {what}: it is no file of weights from Keras.")
