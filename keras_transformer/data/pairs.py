"""Sentence pairs: as text, and as ids in memory or in memory-mapped files."""

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_transformer.utils import Pairs, counted

# Sources and as many targets, UTF-8.
Block: TypeAlias = tuple[list[bytes], list[bytes]]
# Ids of sentences one after the other, (I,) of any integer type; and where each begins and the last
# one ends, (N + 1,) integers. Memory-mapped or not.
Shard: TypeAlias = tuple[np.ndarray, np.ndarray]
# A `Tokenizer`, or a function like it: from lines, and whether to append END, to ragged ids.
Tokenize: TypeAlias = Callable[[list[str], bool], Any]

CHUNK = 8192  # lines tokenized at once

logger = logging.getLogger(__name__)


class Pair(NamedTuple):
    """A source text and its target text; results are reported by `group`, such as a language."""

    source: str
    target: str
    group: str = ""


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs for training; for validation, during it; and for a test after it."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_sides(pairs: Iterable[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Returns the sources and the targets of pairs."""
    sides: tuple[list[str], list[str]] = ([], [])
    for number, pair in enumerate(pairs):
        is_pair = isinstance(pair, tuple | list) and len(pair) >= 2
        if not is_pair or not all(isinstance(text, str | bytes) for text in pair[:2]):
            raise ValueError(
                f"pairs must be pairs (source, target) of texts, received element {number}: "
                f"{pair!r:.60}. For files, pass kt.read_pairs(source_path, target_path)."
            )
        for side, text in zip(sides, pair, strict=False):
            side.append(text)
    return sides


def fingerprint(pairs: Pairs) -> dict[str, int | str]:
    """Returns the fingerprint of a list of pairs; see `fingerprint_blocks`."""
    source, target = ([pair[side].encode(errors="replace") for pair in pairs] for side in (0, 1))
    return fingerprint_blocks([(source, target)])


def fingerprint_blocks(blocks: Iterable[Block]) -> dict[str, int | str]:
    """Returns `pairs`, a count, and `sha256`, of lines of source, tab and target."""
    count, digest = 0, hashlib.sha256()
    for sources, targets in blocks:
        count += len(sources)
        rows = map(b"\t".join, zip(sources, targets, strict=True))
        digest.update(b"".join(row + b"\n" for row in rows))
    return {"pairs": count, "sha256": digest.hexdigest()}


class Sentences:
    """The sentences of one side of a corpus, as ids without START and END.

    Ids and offsets are wherever the shards are. `lengths`, the number of ids of each sentence,
    `(N,)` uint16 if they fit, else uint32, are in memory.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        # Views as plain arrays: indexing a numpy.memmap takes several times as long.
        self.shards = [(np.asarray(ids), np.asarray(offsets)) for ids, offsets in shards]
        lengths = []
        for _, offsets in self.shards:
            part = np.diff(offsets)
            lengths.append(part.astype(np.uint16 if part.max(initial=0) < 1 << 16 else np.uint32))
        self.lengths = np.concatenate(lengths) if lengths else np.zeros(0, np.uint16)
        self._first = np.cumsum([0, *(len(offsets) - 1 for _, offsets in self.shards)])

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads the sentences of given numbers, `(B,)`.

        Returns their ids one after the other, int32, and their lengths, `(B,)` int64.
        """
        lengths = self.lengths[rows].astype(np.int64)
        ends = np.cumsum(lengths)
        gathered = np.empty(ends[-1] if len(ends) else 0, np.int32)
        homes = np.searchsorted(self._first, rows, side="right") - 1
        for home in np.unique(homes):
            chosen = np.flatnonzero(homes == home)
            ids, offsets = self.shards[home]
            starts = offsets[rows[chosen] - self._first[home]].astype(np.int64)
            places = concatenated_ranges(ends[chosen] - lengths[chosen], lengths[chosen])
            gathered[places] = ids[concatenated_ranges(starts, lengths[chosen])]
        return gathered, lengths


def concatenated_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenates ranges: `counts[i]` numbers from `starts[i]` on, for each i."""
    ends = np.cumsum(counts)
    shifts = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(len(shifts))


@dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as ids, without START and END.

    All pairs of a corpus: `filter_by_length` selects those that are not too long for a model.
    """

    source: Sentences
    target: Sentences

    @classmethod
    def concatenate(cls, corpora: Sequence["EncodedPairs"]) -> "EncodedPairs":
        """Concatenates the pairs of several corpora; returns a single one itself."""
        if len(corpora) == 1:
            return corpora[0]
        return cls(
            Sentences([shard for corpus in corpora for shard in corpus.source.shards]),
            Sentences([shard for corpus in corpora for shard in corpus.target.shards]),
        )

    def __len__(self) -> int:
        return len(self.source.lengths)

    def filter_by_length(self, max_length: int, purpose: str) -> np.ndarray:
        """Finds the pairs that are neither empty nor longer than `max_length` ids, including END.

        Logs how many are dropped, and why. Returns their numbers, ascending, `(N,)` int32 if they
        fit. `purpose` is part of an error.
        """
        source, target = self.source.lengths, self.target.lengths
        kept = np.ones(len(self), bool)
        dropped = []
        for reason, wrong in {
            "with an empty source": source == 0,
            "with an empty target": target == 0,
            f"with a source of more than {max_length} tokens": source >= max_length,
            f"with a target of more than {max_length} tokens": target >= max_length,
        }.items():
            if count := int(np.count_nonzero(wrong & kept)):
                dropped.append(f"{count} {reason}")
            kept &= ~wrong
        numbers = np.arange(len(self), dtype=np.int32 if len(self) < 1 << 31 else np.int64)
        numbers = numbers[kept] if dropped else numbers
        summary = f"kept {len(numbers):,} of {counted(len(self), 'pair')}"
        if dropped:
            summary += f"; dropped {', '.join(dropped)}"
        logger.log(logging.WARNING if dropped else logging.INFO, summary)
        if not len(numbers):
            raise ValueError(f"No sentence pairs remain to {purpose}: {summary}.")
        return numbers


def encode_pairs(
    pairs: Iterable[Sequence[str]], source_tokenizer: Tokenize, target_tokenizer: Tokenize
) -> EncodedPairs:
    """Tokenizes sentence pairs."""
    tokenizers, rest = (source_tokenizer, target_tokenizer), iter(pairs)
    sides: tuple[list[Shard], list[Shard]] = ([], [])
    while chunk := list(itertools.islice(rest, CHUNK)):
        for shards, lines, tokenizer in zip(sides, read_sides(chunk), tokenizers, strict=True):
            ragged = tokenizer(lines, False)
            ids = ragged.flat_values.numpy()
            small = np.min_scalar_type(ids.max(initial=0)) if ids.min(initial=0) >= 0 else ids.dtype
            shards.append((ids.astype(small), ragged.row_splits.numpy()))
    if not sides[0]:
        return EncodedPairs(Sentences([]), Sentences([]))
    return EncodedPairs(*(Sentences([_join(shards)]) for shards in sides))


def _join(shards):
    """Concatenates shards into one, in which sentences are faster to find."""
    lengths = np.concatenate([np.diff(offsets) for _, offsets in shards])
    offsets = np.zeros(len(lengths) + 1, np.uint32 if lengths.sum() < 1 << 32 else np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.concatenate([ids for ids, _ in shards]), offsets
