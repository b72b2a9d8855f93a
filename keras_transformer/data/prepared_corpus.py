"""Reads a prepared corpus: its manifest, and memory-mapped ids."""

import os
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.data.pairs import EncodedPairs, Pair, Sentences, Shard
from keras_transformer.inspection.files import read_json
from keras_transformer.inspection.probing import Probe
from keras_transformer.tokenizers import saved
from keras_transformer.utils import Path

if TYPE_CHECKING:
    from keras_transformer.tokenizers.saved import Saved

FORMAT = 1  # of prepared corpora
MANIFEST = "manifest.json"
VALID = ("valid.source", "valid.target")  # the validation text, line by line
BLOCK = 1 << 20  # bytes read at once


class PreparedCorpus:
    """A corpus written by `prepare`: ids that stay on disk, memory-mapped.

    Every file is first compared with its checksum, which takes a second per gigabyte.

    Args:
        path: Its directory.

    Attributes:
        options: Dict of the options of its preparation, see `PrepareConfig`.
        fingerprints: Dict of the fingerprints of `train` and `valid`, as in a run's `data.json`.
        lost: Targets that its vocabulary cannot write, in a sentence; empty if there are none.

    Raises:
        ValueError: If it is not a prepared corpus or has another format, or if a file of it is
            missing, truncated or was changed.

    Example:

    >>> corpus = keras_transformer.PreparedCorpus("corpora/ende")
    >>> dataset = keras_transformer.make_dataset(corpus=corpus, tokens_per_batch=8192)
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self._manifest = read_manifest(path)
        check_files(path, self._manifest)
        self.options: dict[str, Any] = self._manifest["options"]
        self.fingerprints: dict[str, Any] = self._manifest["fingerprints"]
        self.lost = "".join(filter(str.isprintable, str(self._manifest.get("lost", ""))))

    def __len__(self) -> int:
        return self.fingerprints["train"]["pairs"]

    @cached_property
    def pairs(self) -> EncodedPairs:
        """The training pairs, as ids."""
        return EncodedPairs(*(Sentences(shards) for shards in self.shards()))

    def shards(self) -> tuple[list[Shard], list[Shard]]:
        """Returns source and target as the shards of `Sentences`.

        Every id is checked, which takes less time than its checksum.
        """
        source, target = [], []
        for shard in self._manifest["shards"]:
            ids, offsets = (self._open_array(shard[kind]) for kind in ("ids", "offsets"))
            if not _offsets_match(ids, offsets):
                raise _corrupted_error(os.path.join(self.path, shard["offsets"]))
            middle = int(offsets[0, -1])
            source.append((ids[:middle], offsets[0]))
            target.append((ids[middle:], offsets[1]))
            for (side, _), tokenizer in zip((source[-1], target[-1]), self.tokenizers, strict=True):
                if side.min(initial=0) < 0 or side.max(initial=0) >= tokenizer.vocabulary_size:
                    raise ValueError(
                        f"{os.path.join(self.path, shard['ids'])} has ids outside its vocabulary "
                        f"of {tokenizer.vocabulary_size:,}: prepare the corpus again."
                    )
        return source, target

    @cached_property
    def tokenizers(self) -> "tuple[Saved, Saved]":
        """The tokenizers of source and target, one object if they are equal."""
        Probe(saved.require_paths(self.path)).answers()  # before native code reads them here
        return saved.load(self.path)

    @cached_property
    def valid(self) -> list[Pair]:
        """The validation pairs; empty if the corpus was prepared without."""
        if VALID[0] not in self._manifest["files"]:
            return []
        source, target = (self._read_lines(name) for name in VALID)
        if len(source) != len(target):
            raise _corrupted_error(os.path.join(self.path, VALID[1]))
        return [Pair(*texts) for texts in zip(source, target, strict=True)]

    def _read_lines(self, name):
        name = os.path.join(self.path, name)
        try:
            with open(name, "rb") as file:
                return file.read().decode().split("\n")[:-1]
        except UnicodeDecodeError:
            raise _corrupted_error(name) from None

    def _open_array(self, name):
        """Memory-maps an array, so that only accessed pages are read."""
        name = os.path.join(self.path, name)
        try:
            return np.lib.format.open_memmap(name, mode="r")
        except Exception:  # the header is a Python literal of any kind and size
            raise _corrupted_error(name) from None


def _offsets_match(ids, offsets):
    """Returns whether offsets `(2, N + 1)` split ids `(I,)` into sentences of both sides."""
    if ids.ndim != 1 or ids.dtype.kind not in "ui" or offsets.dtype.kind not in "ui":
        return False
    if offsets.ndim != 2 or len(offsets) != 2 or not offsets.shape[1]:
        return False
    ends = int(offsets[0, -1]), int(offsets[1, -1])
    return (
        not offsets[:, 0].any()
        and min(ends) >= 0
        and sum(ends) == len(ids)
        and bool(np.all(offsets[:, 1:] >= offsets[:, :-1]))
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a prepared corpus.

    Returns:
        Dict of `format`, `version` (of this package), `options`, `fingerprints` (of `train` and
        `valid`), `lost` (see `PreparedCorpus`), `shards` (a dict each, of `pairs` and the names of
        `ids` and `offsets`) and `files`: {name: {"bytes": size, "crc32": checksum}}.
    """
    name = os.path.join(path, MANIFEST)
    if not os.path.isfile(name):
        raise ValueError(
            f"{path} is not a prepared corpus ({MANIFEST} is missing): create one with "
            "keras-transformer prepare."
        )
    try:
        manifest = read_json(name)
    except ValueError:
        raise _corrupted_error(name) from None
    received = manifest.get("format")
    if received not in (FORMAT, None):
        raise ValueError(
            f"{path} was prepared by another version, in format {received}, but this version reads "
            f"format {FORMAT}: prepare it again."
        )
    if received is None or not _is_valid_manifest(manifest):
        raise _corrupted_error(name)
    return manifest


def _is_valid_manifest(manifest):
    """Returns whether a manifest is complete, and names only files in its directory."""
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


def describe_file(path: Path, name: str) -> dict[str, int]:
    """Returns the entry of a file in a manifest: its size in bytes and its CRC-32."""
    size = checksum = 0
    with open(os.path.join(path, name), "rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


def check_files(path: Path, manifest: dict[str, Any]) -> None:
    """Compares the files of a corpus with its manifest."""
    for name, described in manifest["files"].items():
        try:
            received = describe_file(path, name)
        except OSError as error:
            raise ValueError(
                f"{os.path.join(path, name)} cannot be read ({error.strerror}): prepare the corpus "
                "again."
            ) from error
        if received != described:
            raise _corrupted_error(os.path.join(path, name))


def _corrupted_error(name):
    return ValueError(f"{name} has been changed or truncated: prepare the corpus again.")
