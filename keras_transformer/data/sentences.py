"""Sentences as ids, one after the other: in memory, or memory-mapped in files."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from keras_transformer.tokenizers.words_of_pieces import spread

# Ids of sentences one after the other, (I,) of any integer type; and where each begins and the last
# one ends, (N + 1,) integers. Memory-mapped or not.
Shard: TypeAlias = tuple[np.ndarray, np.ndarray]


class Sentences:
    """The sentences of one side of a corpus, as ids without START and END.

    Holds their lengths in memory, and as much of the ids and offsets as the shards themselves do.

    Args:
        shards: Sequence of (ids, offsets): ids of sentences one after the other, `(I,)` of any
            integer type, and where each sentence begins and the last one ends, `(N + 1,)`.

    Attributes:
        lengths: Number of ids of each sentence, `(N,)` uint16 where they fit, else uint32.

    Example:

    >>> sentences = Sentences.of([[5, 6], [], [7]])
    >>> sentences.gather(np.array([2, 0]))
    (array([7, 5, 6], dtype=int32), array([1, 2]))
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        # Views as plain arrays: indexing a numpy.memmap takes several times as long.
        self._shards = [(np.asarray(ids), np.asarray(offsets)) for ids, offsets in shards]
        lengths = [_small(np.diff(offsets)) for _, offsets in self._shards]
        self.lengths = np.concatenate(lengths) if lengths else np.zeros(0, np.uint16)
        self._first = np.cumsum([0, *(len(offsets) - 1 for _, offsets in self._shards)])

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> "Sentences":
        """Makes them of lists of ids."""
        rows = list(rows)
        offsets = np.cumsum([0, *map(len, rows)])
        ids = np.fromiter((id for row in rows for id in row), np.int32, offsets[-1])
        return cls([(ids, offsets)])

    @classmethod
    def joined(cls, parts: Sequence["Sentences"]) -> "Sentences":
        """Makes them of the sentences of several, one after the other."""
        return cls([shard for part in parts for shard in part._shards])

    def __len__(self) -> int:
        return len(self.lengths)

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads some sentences.

        Args:
            rows: Their numbers, `(B,)`.

        Returns:
            Their ids one after the other, int32, and the lengths, `(B,)` int64.
        """
        lengths = self.lengths[rows].astype(np.int64)
        ends = np.cumsum(lengths)
        gathered = np.empty(ends[-1] if len(ends) else 0, np.int32)
        homes = np.searchsorted(self._first, rows, side="right") - 1
        for home in np.unique(homes):
            chosen = np.flatnonzero(homes == home)
            ids, offsets = self._shards[home]
            starts = offsets[rows[chosen] - self._first[home]].astype(np.int64)
            places = spread(ends[chosen] - lengths[chosen], lengths[chosen])
            gathered[places] = ids[spread(starts, lengths[chosen])]
        return gathered, lengths


def _small(lengths):
    """Lengths in the smallest type that holds those of most corpora."""
    return lengths.astype(np.uint16 if lengths.max(initial=0) < 1 << 16 else np.uint32)
