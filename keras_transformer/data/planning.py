"""Plans the batches of a pass: pairs of similar lengths, as many as the token budget holds."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_transformer.data.pairs import EncodedPairs

CHUNK = 1 << 20  # pairs whose keys are computed at once: temporaries stay small

# Purposes of random numbers: each uses different numbers for the same seed.
PAIR_ORDER, BATCH_ORDER = range(2)


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The batches of one pass over a corpus, in their order."""

    pairs: np.ndarray  # numbers of kept pairs, sorted by length, (N,)
    splits: np.ndarray  # where in `pairs` each batch begins and the last one ends, (n + 1,)
    order: np.ndarray  # the numbers of the batches in their order, (n,)

    def batch(self, index: int) -> np.ndarray:
        """Returns the numbers of kept pairs in the batch whose turn is `index`, `(B,)`."""
        number = self.order[index]
        return self.pairs[self.splits[number] : self.splits[number + 1]]


class BatchPlanner:
    """Decides which pairs make up the batches of a pass, from the seed and the pass alone.

    Pairs are sorted by length, those of equal length in a new random order for every pass, and
    split where the budget is full; the order of the batches is random as well.

    With several corpora, a pass has as many pairs as they have together, and each corpus' share of
    them. It continues where the previous pass stopped, so that no pair is repeated before all
    others of its corpus have been used.

    `pairs` are those of all corpora, one after the other; `kept`, `(N,)`, are the numbers of those
    to use, ascending, of which each corpus has as many as `counts` says. Without a seed, pairs of
    equal length stay in their order, and the batches sorted.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        kept: np.ndarray,
        counts: Sequence[int],
        weights: Sequence[float],
        budget: int,
        boundaries: np.ndarray,
        seed: int | None,
    ) -> None:
        self.budget = budget
        self.boundaries = boundaries
        self.seed = seed
        self._counts = counts
        # A pass over one corpus has the same pairs each time.
        self.has_constant_length = len(counts) == 1
        self._first = np.cumsum([0, *counts])
        self._shares = divide_by_weights(len(kept), weights)
        if 0 in self._shares:
            raise ValueError(
                f"Corpus {self._shares.index(0) + 1} would never be used, its weight is so small: "
                "raise it."
            )
        # The bucket of a sentence by its number of ids; END is added to them.
        buckets = np.searchsorted(boundaries, np.arange(1, boundaries[-1] + 1))
        # 16 bits if possible: NumPy sorts those in linear time, and stably.
        self._keys = np.empty(len(kept), np.min_scalar_type(len(boundaries) ** 2 - 1))
        for start in range(0, len(kept), CHUNK):
            rows = kept[start : start + CHUNK]
            self._keys[start : start + CHUNK] = sorting_keys(
                buckets[pairs.source.lengths[rows]], buckets[pairs.target.lengths[rows]]
            )

    def plan(self, number: int) -> BatchPlan:
        """Plans the pass of a number, from 0 on."""
        pairs = self._select_pairs(number)
        keys = self._keys[pairs]
        sorted_places = np.argsort(keys, kind="stable")
        last_keys = np.arange(1, len(self.boundaries) + 1) ** 2 - 1  # of each bucket
        ends = np.searchsorted(keys[sorted_places], last_keys.astype(keys.dtype), side="right")
        splits = split_by_budget(ends, self.boundaries, self.budget)
        order = np.arange(len(splits) - 1)
        if self.seed is not None:
            np.random.default_rng([self.seed, BATCH_ORDER, number]).shuffle(order)
        return BatchPlan(pairs[sorted_places], splits, order)

    def _select_pairs(self, number):
        """Returns the places in `kept` that a pass uses."""
        parts = []
        for corpus, (count, share) in enumerate(zip(self._counts, self._shares, strict=True)):
            begin, end = number * share, (number + 1) * share
            while begin < end:
                cycle, start = divmod(begin, count)
                stop = min(count, start + end - begin)
                parts.append(self._order_cycle(corpus, cycle)[start:stop])
                begin += stop - start
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _order_cycle(self, corpus, cycle):
        """Returns the places of a corpus, in the order of one cycle."""
        first, last = self._first[corpus : corpus + 2]
        places = np.arange(first, last, dtype=np.int32 if last < 1 << 31 else np.int64)
        if self.seed is not None:
            np.random.default_rng([self.seed, PAIR_ORDER, cycle, corpus]).shuffle(places)
        return places


def divide_by_weights(total: int, weights: Sequence[float]) -> list[int]:
    """Divides a number by positive weights; the largest remainders are rounded up."""
    exact = np.asarray(weights, np.float64) / np.sum(weights) * total
    rounded = np.floor(exact).astype(np.int64)
    largest = np.argsort(rounded - exact, kind="stable")[: total - int(rounded.sum())]
    rounded[largest] += 1
    return rounded.tolist()


def bucket_boundaries(max_length: int, fine: bool = True) -> list[int]:
    """Returns the default lengths that batches are padded to: 1 to 16, 18, 20 … 32, 36, 40 ….

    They are eight per doubling, so that padding adds at most 1/8 of a length. If not `fine`, they
    are two per doubling, 16, 24, 32, 48, 64 ….
    """
    boundaries, per_doubling = (list(range(1, 17)), 8) if fine else ([16], 2)
    while boundaries[-1] < max_length:
        first, step = boundaries[-1], boundaries[-1] // per_doubling
        boundaries += range(first + step, 2 * first + 1, step)
    return [length for length in boundaries if length < max_length] + [max_length]


def sorting_keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns keys, `(N,)`, by which pairs are sorted so that neighbours are alike.

    First by the bucket of the longer side; within it, by how many buckets the source is longer than
    the target, ascending and descending in turn. If the longer side is in bucket b, there are
    2b + 1 differences: the keys are those from b² to (b + 1)², excluding the latter.
    """
    difference, longer = source - target, np.maximum(source, target)
    return longer * (longer + 1) + np.where(longer % 2, -difference, difference)


def split_by_budget(ends: np.ndarray, boundaries: np.ndarray, budget: int) -> np.ndarray:
    """Splits sorted pairs where the budget is full.

    `ends` has the number of pairs up to the end of each bucket, whose padded lengths, ascending,
    are the `boundaries`. Returns where each batch begins and the last one ends, `(n + 1,)` int64.
    """
    ends = ends.tolist()
    capacities = [budget // int(length) for length in boundaries]
    splits, bucket = [0], 0
    while splits[-1] < ends[-1]:
        start = end = splits[-1]
        while ends[bucket] <= start:
            bucket += 1
        for number in range(bucket, len(ends)):
            reached = min(ends[number], start + capacities[number])
            if reached <= end and ends[number] > end:
                break  # not one more fits at this length
            end = max(end, reached)
            if end < ends[number]:
                break
        splits.append(end)
    return np.array(splits, np.int64)
