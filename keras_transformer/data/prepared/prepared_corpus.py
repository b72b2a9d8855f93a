"""A prepared corpus, opened."""

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.corpora.pair import Pair
from keras_transformer.data.prepared.manifest import (
    VALID,
    check_file,
    damaged,
    read_manifest,
)
from keras_transformer.inspection.probing import Probe
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path

if TYPE_CHECKING:
    from keras_transformer.data.encoded_pairs import EncodedPairs
    from keras_transformer.data.sentences import Shard


class PreparedCorpus:
    """A corpus that `prepare` has written: ids that stay on disk, memory-mapped.

    Every file is compared with its checksum first, which takes a second for a gigabyte.

    Args:
        path: Its directory.

    Attributes:
        options: Dict of what it was prepared with, by the names of `PrepareConfig`.
        fingerprints: Dict of those of `train` and `valid`, as a run's `data.json` has them.

    Raises:
        ValueError: If it is no prepared corpus, one of another format, or a file of it is missing
            or has been changed or truncated since.

    Example:

    >>> corpus = keras_transformer.PreparedCorpus("corpora/ende")
    >>> dataset = keras_transformer.make_dataset(corpus=corpus, tokens_per_batch=8192)
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self._manifest = read_manifest(path)
        for name, described in self._manifest["files"].items():
            check_file(path, name, described)
        self.options: dict[str, Any] = self._manifest["options"]
        self.fingerprints: dict[str, Any] = self._manifest["fingerprints"]

    def __len__(self) -> int:
        return self.fingerprints["train"]["pairs"]

    @cached_property
    def pairs(self) -> "EncodedPairs":
        """The pairs to train on, as ids."""
        from keras_transformer.data.encoded_pairs import EncodedPairs
        from keras_transformer.data.sentences import Sentences

        return EncodedPairs(*(Sentences(shards) for shards in self.shards()))

    def shards(self) -> "tuple[list[Shard], list[Shard]]":
        """Source and target as `Sentences` takes them.

        Every id is looked at, which takes less than its checksum has.

        Raises:
            ValueError: If a shard is none, or holds an id that the vocabulary does not have.
        """
        source, target = [], []
        for shard in self._manifest["shards"]:
            ids, offsets = (self._map(shard[kind]) for kind in ("ids", "offsets"))
            if not _fit(ids, offsets):
                raise damaged(os.path.join(self.path, shard["offsets"]))
            middle = int(offsets[0, -1])
            source.append((ids[:middle], offsets[0]))
            target.append((ids[middle:], offsets[1]))
            for (side, _), tokenizer in zip((source[-1], target[-1]), self.tokenizers, strict=True):
                if not _known(side, tokenizer.vocabulary_size):
                    raise ValueError(
                        f"{os.path.join(self.path, shard['ids'])} holds ids that its vocabulary of "
                        f"{tokenizer.vocabulary_size:,} does not have: prepare the corpus anew."
                    )
        return source, target

    @cached_property
    def tokenizers(self) -> "tuple[saved.Saved, saved.Saved]":
        """Those of source and target, one object if they are the same."""
        Probe(saved.both(self.path)).answers()  # before native code reads them here
        return saved.load(self.path)

    @cached_property
    def valid(self) -> list[Pair]:
        """The pairs to validate by; none where it was prepared without."""
        if VALID[0] not in self._manifest["files"]:
            return []
        source, target = (self._lines(name) for name in VALID)
        if len(source) != len(target):
            raise damaged(os.path.join(self.path, VALID[1]))
        return [Pair(*texts) for texts in zip(source, target, strict=True)]

    def _lines(self, name):
        name = os.path.join(self.path, name)
        try:
            with open(name, "rb") as file:
                return file.read().decode().split("\n")[:-1]
        except UnicodeDecodeError:
            raise damaged(name) from None

    def _map(self, name):
        """An array of a file, of which only what is looked at is read."""
        name = os.path.join(self.path, name)
        try:
            return np.lib.format.open_memmap(name, mode="r")
        except OSError as error:
            raise ValueError(f"{name} cannot be opened ({error.strerror}).") from error
        except Exception:  # its header is parsed as Python is, and says how much to map
            raise damaged(name) from None


def _fit(ids, offsets):
    """Whether offsets `(2, N + 1)` cut ids `(I,)` into sentences of both sides."""
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


def _known(ids, vocabulary_size):
    """Whether all ids `(I,)` are of a vocabulary."""
    return ids.max(initial=0) < vocabulary_size and ids.min(initial=0) >= 0
