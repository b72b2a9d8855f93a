"""Checksums of files that belong together, in a JSON file beside them which has one of its own.

They tell damage from what was written. They are no signature: whoever makes files makes these too.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from keras_transformer.inspection.bounded_files import LONGEST_JSON, parse_json, read_bytes
from keras_transformer.typing import Path

FILES, SEAL = "files", "sha256"  # {name: its size and checksum}; the checksum of the JSON itself
BLANK = f'"{SEAL}": ""'  # what stands in its place while it is computed
BLOCK = 1 << 20


def describe_files(directory: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describes files by their sizes and checksums.

    Args:
        directory: Where they are.
        names: Their names, below it.

    Returns:
        {name: {"bytes": size, "sha256": checksum}}.
    """
    described = {}
    for name in sorted(names):
        path = os.path.join(directory, name)
        described[name] = {"bytes": os.path.getsize(path), "sha256": _digest(path)}
    return described


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

    Raises:
        ValueError: If it is no JSON object, or not what was written.
    """
    content = read_bytes(path, LONGEST_JSON)
    fields = parse_json(path, content)
    seal = fields.pop(SEAL, None)
    if seal is None and FILES not in fields:
        return fields
    own = f'"{SEAL}": "{seal}"'.encode()
    if hashlib.sha256(content.replace(own, BLANK.encode(), 1)).hexdigest() != seal:
        raise ValueError(
            f"{path} is not what was written, by its own checksum: copy it anew from where it was "
            "written, or remove it if you have changed it yourself."
        )
    return fields


def check_files(
    directory: Path, fields: dict[str, Any], source: str, expected: Iterable[str]
) -> None:
    """Refuses files that are not what was written.

    Args:
        directory: Where they are.
        fields: What `read_sealed` has returned.
        source: Name of the file that it comes from.
        expected: Names of files that have to be among those described.

    Raises:
        ValueError: If one is missing, another, or not described.
    """
    if FILES not in fields:
        logging.getLogger(__name__).warning(
            f"{directory} was written without checksums: whether its files are damaged is not "
            "known."
        )
        return
    path, described = os.path.join(directory, source), fields[FILES]
    if not isinstance(described, dict) or not all(map(_is_described, described.items())):
        raise ValueError(f"{path}: {FILES} must say the size and checksum of each file.")
    for name in expected:
        if name not in described:
            raise ValueError(
                f"{os.path.join(directory, name)} is not among the files that {path} lists: remove "
                "it, or copy the directory anew from where it was written."
            )
    for name, size in ((name, one["bytes"]) for name, one in described.items()):
        path = os.path.join(directory, name)
        if not os.path.isfile(path):
            raise ValueError(f"{path} is missing: {source} lists it; copy it from where it was.")
        if os.path.getsize(path) != size or _digest(path) != described[name]["sha256"]:
            raise ValueError(
                f"{path} is damaged: it is not what was written, by the checksum in {source}. Copy "
                f"it anew from where it was written, or remove {source} if you have changed it "
                "yourself."
            )


def _is_described(item):
    """Whether a file's name stays in the directory, and there is a size and a checksum."""
    name, one = item
    parts = name.replace("\\", "/").split("/")
    return (
        all(part not in ("", ".", "..") for part in parts)
        and ":" not in name
        and isinstance(one, dict)
        and isinstance(one.get("bytes"), int)
        and isinstance(one.get("sha256"), str)
    )


def _digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
