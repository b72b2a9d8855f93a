"""Named arrays in one file, with a checksum.

The format is that of safetensors: the length of the header, the header (JSON: name, type, shape and
place of each array), and their bytes one after the other. Nothing in it can be code, as in a
pickle; and it is written by Python alone, which a full disk gives an error and not, as it does
HDF5, a crash.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.atomic_files import reason, replacing
from keras_transformer.typing import Path

TYPES = {
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{"bool": "BOOL", "bfloat16": "BF16"},
}


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays, whole or not at all.

    Args:
        path: Name of the file.
        arrays: {name: array}, of numbers or booleans.

    Returns:
        The SHA-256 of the file.

    Raises:
        ValueError: If the file cannot be written.
    """
    header, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the arrays then lie at whole words
    checksum = hashlib.sha256()
    with replacing(path) as name, open(name, "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *map(_bytes, arrays.values())):
            checksum.update(part)
            file.write(part)
    return checksum.hexdigest()


def read_arrays(path: Path, checksum: str) -> dict[str, np.ndarray]:
    """Reads what `write_arrays` has written.

    Args:
        path: Name of the file.
        checksum: What `write_arrays` returned.

    Returns:
        {name: array}, those of bfloat16 as uint16 of the same bytes.

    Raises:
        ValueError: If it cannot be read, or is not the file that was written.
    """
    try:
        with open(path, "rb") as file:
            whole = file.read()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error
    if hashlib.sha256(whole).hexdigest() != checksum:
        raise ValueError(f"{path} is damaged (its checksum is another than when it was written)")
    size = 8 + int.from_bytes(whole[:8], "little")
    names = {code: name for name, code in TYPES.items()} | {"BF16": "uint16"}
    arrays = {}
    for name, entry in json.loads(whole[8:size]).items():
        begin, end = entry["data_offsets"]
        data = memoryview(whole)[size + begin : size + end]
        arrays[name] = np.frombuffer(data, names[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def _bytes(array: np.ndarray) -> Any:
    """An array's bytes as they lie in memory; NumPy itself shows none of bfloat16 or scalars."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        with open(os.fspath(path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error
