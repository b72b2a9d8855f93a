"""What a prepared corpus consists of, and whether it still does."""

import json
import os
import zlib
from typing import Any

from keras_transformer.atomic_files import replacing
from keras_transformer.inspection.files import read_json
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path

FORMAT = 1  # of prepared corpora
MANIFEST = "manifest.json"
VALID = ("valid.source", "valid.target")  # the text to validate by, line by line
BLOCK = 1 << 20  # bytes read at once


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads what a prepared corpus consists of.

    Returns:
        Dict of `format`, `version` (of this package), `options`, `fingerprints` (of `train` and
        `valid`), `served` (the lines that the served operation has tokenized, as `ServedIds` counts
        them), `shards` (a dict each, of `pairs` and the names of `ids` and `offsets`) and `files`:
        {name: {"bytes": size, "crc32": checksum}}.

    Raises:
        ValueError: If there is none, it is damaged, or of another format.
    """
    name = os.path.join(path, MANIFEST)
    if not os.path.isfile(name):
        raise ValueError(
            f"{path} is no prepared corpus: there is no {MANIFEST} in it; keras-transformer "
            "prepare makes one."
        )
    try:
        manifest = read_json(name)
    except ValueError:
        raise damaged(name) from None
    received = manifest.get("format")
    if received not in (FORMAT, None):
        raise ValueError(
            f"{path} was prepared by another version, in format {received}; this version reads "
            f"format {FORMAT}: prepare it anew."
        )
    if received is None or not _is_sound(manifest):
        raise damaged(name)
    return manifest


def _is_sound(manifest):
    """Whether a manifest has what is read of it, and names files of its own directory only."""
    kinds = {"options": dict, "fingerprints": dict, "files": dict, "shards": list}
    if any(not isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    files, shards = manifest["files"], manifest["shards"]
    train = manifest["fingerprints"].get("train")
    return (
        isinstance(train, dict)
        and type(train.get("pairs")) is int
        and all(name == os.path.basename(name) and name.strip(".") for name in files)
        and len(saved.names(files.__contains__)) == len(saved.SIDES)
        and len(files.keys() & set(VALID)) != 1
        and all(
            isinstance(shard, dict)
            and {str(shard.get(k)) for k in ("ids", "offsets")} <= files.keys()
            for shard in shards
        )
    )


def write_json(path: Path, name: str, content: dict[str, Any]) -> None:
    """Writes a file of a corpus, whole or not at all."""
    with replacing(os.path.join(path, name)) as temporary:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)


def describe_file(path: Path, name: str) -> dict[str, int]:
    """What a manifest says of a file: its size in bytes and its CRC-32."""
    size = checksum = 0
    with open(os.path.join(path, name), "rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


def check_file(path: Path, name: str, described: dict[str, int]) -> None:
    """Refuses a file that is not what its manifest says.

    Raises:
        ValueError: If it is not.
    """
    try:
        received = describe_file(path, name)
    except OSError as error:
        raise ValueError(
            f"{os.path.join(path, name)} cannot be read ({error.strerror}): prepare the corpus "
            "anew."
        ) from error
    if received != described:
        raise damaged(os.path.join(path, name))


def damaged(name: str) -> ValueError:
    """The error that names a file which has been damaged."""
    return ValueError(f"{name} has been changed or truncated since: prepare the corpus anew.")
