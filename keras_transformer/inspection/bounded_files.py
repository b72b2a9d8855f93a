"""Files read as what they should be: regular, no larger than they can sensibly be, whole."""

import json
import os
import stat
from typing import Any

from keras_transformer.typing import Path

MEBIBYTE = 1 << 20
LONGEST_JSON = 16 * MEBIBYTE  # of a card, of a training's state; what is written has kilobytes


def read_bytes(path: Path, most: int) -> bytes:
    """Reads a file.

    Args:
        path: Its name.
        most: Number of bytes that it may have.

    Raises:
        ValueError: If there is none that can be read, it is a device or a pipe, or larger.
    """
    try:
        # Opening a pipe would wait for ever, and a device never ends.
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise ValueError(f"{path} cannot be read (it is a pipe or a device): name a file.")
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None
    if len(content) > most:
        raise ValueError(
            f"{path} is larger than {most:,} bytes, the most that such a file may have: it is none "
            "of this package's."
        )
    return content


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """Reads the content of a JSON file that holds an object.

    Args:
        path: Its name, for errors.
        content: What is in it.

    Raises:
        ValueError: If it is no JSON, or no object.
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path} is damaged: it is no JSON. Copy it anew from where it was written."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object, received a {type(value).__name__}.")
    return value


def read_json(path: Path, most: int = LONGEST_JSON) -> dict[str, Any]:
    """Reads a JSON file that holds an object.

    Raises:
        ValueError: If it cannot be read, is larger than `most` bytes, no JSON, or no object.
    """
    return parse_json(path, read_bytes(path, most))


def check_types(path: Path, value: dict[str, Any], kinds: dict[str, type]) -> None:
    """Refuses an object whose values are of other types than they should be.

    Args:
        path: Name of the file, for errors.
        value: The object.
        kinds: {name of a value: its type}, of those that may be there.

    Raises:
        ValueError: If one is.
    """
    for name, kind in kinds.items():
        if name in value and not isinstance(value[name], kind):
            raise ValueError(
                f"{path}: {name} must be of the type {kind.__name__}, received a "
                f"{type(value[name]).__name__}."
            )
