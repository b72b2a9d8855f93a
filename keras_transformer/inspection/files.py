"""Reads files safely: regular files only, of limited size, complete, with the right checksum.

Checksums of files that belong together stand in a JSON file beside them, which has one of its own.
They detect damage. They are not signatures: an attacker can write matching ones.
"""

import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterable
from typing import Any

from keras_transformer.utils import Path

MAX_JSON_BYTES = 16 << 20  # of a card, of a training's state; what is written has kilobytes
FILES, SEAL = "files", "sha256"  # {name: its size and checksum}; the checksum of the JSON itself
BLANK = f'"{SEAL}": ""'  # stands in its place while it is computed


def read_bytes(path: Path, most: int) -> bytes:
    """Reads a file of limited size."""
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
            f"{path} has more than {most:,} bytes, the limit for such files: it was not written by "
            "keras_transformer."
        )
    return content


def parse_json(path: Path, content: bytes) -> dict[str, Any]:
    """Parses the content of a JSON file that holds an object; errors name it by its path."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path} is corrupted: it is not JSON. Copy it again from its origin."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object, received a {type(value).__name__}.")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file of limited size."""
    return parse_json(path, read_bytes(path, MAX_JSON_BYTES))


def check_types(path: Path, value: dict[str, Any], kinds: dict[str, type]) -> None:
    """Checks the types of an object's values.

    Args:
        path: Name of the file, for errors.
        value: The object.
        kinds: {name of a value: its type}, of those that may be there.
    """
    for name, kind in kinds.items():
        if name in value and not isinstance(value[name], kind):
            raise ValueError(
                f"{path}: {name} must be of the type {kind.__name__}, received a "
                f"{type(value[name]).__name__}."
            )


def describe_corruption(path: Path | None, error: object) -> str:
    """The message for a file that cannot be read, and why."""
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return f"{path} is corrupted ({reason}): copy or download it again."


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(directory: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describes files in a directory: {name: {"bytes": size, "sha256": checksum}}."""
    paths = {name: os.path.join(directory, name) for name in sorted(names)}
    return {
        name: {"bytes": os.path.getsize(path), "sha256": digest(path)}
        for name, path in paths.items()
    }


def write_sealed(path: Path, fields: dict[str, Any]) -> None:
    """Writes a JSON object with a checksum of itself, which comes first.

    Args:
        path: Name of the file.
        fields: The object; `files` as `describe_files` returns it.
    """
    text = json.dumps({SEAL: "", **fields}, ensure_ascii=False, indent=1)
    seal = hashlib.sha256(text.encode()).hexdigest()
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text.replace(BLANK, f'"{SEAL}": "{seal}"', 1))


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads what `write_sealed` has written, or an earlier version without checksums.

    Returns:
        The object, without its own checksum.
    """
    content = read_bytes(path, MAX_JSON_BYTES)
    fields = parse_json(path, content)
    seal = fields.pop(SEAL, None)
    if seal is None and FILES not in fields:
        return fields
    own = f'"{SEAL}": "{seal}"'.encode()
    if hashlib.sha256(content.replace(own, BLANK.encode(), 1)).hexdigest() != seal:
        raise ValueError(
            f"{path} was changed or is corrupted (its checksum does not match): copy or download "
            "it again, or remove it if you have changed it yourself."
        )
    return fields


def check_files(
    directory: Path, fields: dict[str, Any], source: str, expected: Iterable[str]
) -> None:
    """Compares files with their checksums; logs a warning where there are none.

    Args:
        directory: Where the files are.
        fields: What `read_sealed` has returned.
        source: Name of the file that it comes from.
        expected: Names of files that must be among those described.
    """
    if FILES not in fields:
        logging.getLogger(__name__).warning(
            f"{directory} was written without checksums: corrupted files cannot be detected."
        )
        return
    path, described = os.path.join(directory, source), fields[FILES]
    if not isinstance(described, dict) or not all(map(_is_described, described.items())):
        raise ValueError(f"{path}: {FILES} must say the size and checksum of each file.")
    for name in expected:
        if name not in described:
            raise ValueError(
                f"{os.path.join(directory, name)} is not among the files that {path} lists: remove "
                "it, or copy the directory again from its origin."
            )
    for name, one in described.items():
        path = os.path.join(directory, name)
        if not os.path.isfile(path):
            raise ValueError(f"{path} is missing: {source} lists it; copy it from where it was.")
        if os.path.getsize(path) != one["bytes"] or digest(path) != one["sha256"]:
            raise ValueError(
                f"{path} is corrupted: it is not what was written (see the checksum in "
                f"{source}). Copy it again from its origin, or remove {source} if you have changed "
                "the file yourself."
            )


def _is_described(item):
    """Whether a file's name stays in the directory, and its size and checksum are there."""
    name, one = item
    parts = name.replace("\\", "/").split("/")
    return (
        all(part not in ("", ".", "..") for part in parts)
        and ":" not in name
        and isinstance(one, dict)
        and isinstance(one.get("bytes"), int)
        and isinstance(one.get("sha256"), str)
    )
