"""Plans the batches of a pass: pairs of similar lengths, as many as the token budget holds."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_transformer.data.encoded_pairs import EncodedPairs

CHUNK = 1 << 20  # pairs whose keys are computed at once: temporaries stay small

# Purposes of random numbers: each uses different numbers for the same seed.
PAIR_ORDER, BATCH_ORDER, GROWTH, BLOCK_ORDER = range(4)


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The batches of one pass over a corpus, in their order.

    Attributes:
        pairs: The shuffled pairs of the pass, numbers of kept pairs, `(N,)` integers.
        order: Places in `pairs`, sorted by length, `(N,)` integers.
        splits: Where in `order` each batch begins and the last one ends, `(n + 1,)`.
        lengths: The padded length of the longer side that each batch is planned with, `(n,)`.
        batch_order: The numbers of the batches in their order, `(n,)`.
        segments: For each segment of `pairs`: where it begins, its corpus, and how often that
            corpus had been completed before, `(k, 3)`.
    """

    pairs: np.ndarray
    order: np.ndarray
    splits: np.ndarray
    lengths: np.ndarray
    batch_order: np.ndarray
    segments: np.ndarray

    def __len__(self) -> int:
        return len(self.batch_order)

    def batch(self, index: int) -> tuple[np.ndarray, int]:
        """Returns a batch of the pass.

        Args:
            index: Its turn, from 0.

        Returns:
            Places in `pairs`, `(B,)`, and the planned padded length of the longer side.
        """
        number = self.batch_order[index]
        return self.order[self.splits[number] : self.splits[number + 1]], int(self.lengths[number])

    def cycles_of(self, places: np.ndarray) -> np.ndarray:
        """Returns the corpus of each place, and how often it had been completed, (B, 2)."""
        segments = np.searchsorted(self.segments[:, 0], places, side="right") - 1
        return self.segments[segments, 1:]


class BatchPlanner:
    """Decides which pairs make up the batches of a pass, from the seed and the pass alone.

    Pairs are sorted by length, those of equal length in a new random order for every pass, and
    split where the budget is full; the order of the batches is random as well.

    With several corpora, a pass has as many pairs as they have together, and each corpus' share of
    them. It continues where the previous pass stopped, so that no pair is repeated before all
    others of its corpus have been used.

    Args:
        pairs: `EncodedPairs` of all corpora, one after the other.
        kept: The numbers of the pairs to use, ascending, `(N,)`.
        counts: How many of them belong to each corpus.
        weights: The relative share of each corpus in a pass.
        budget: Largest rows × padded length of the longer side.
        boundaries: Ascending lengths of the buckets.
        planned: For each side, the length to plan a sentence with, by its number of ids.
        seed: For the order of pairs and batches; None keeps pairs of equal length in their order,
            and the batches sorted.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        kept: np.ndarray,
        counts: Sequence[int],
        weights: Sequence[float],
        budget: int,
        boundaries: np.ndarray,
        planned: tuple[np.ndarray, np.ndarray],
        seed: int | None,
    ) -> None:
        self.budget = budget
        self.boundaries = boundaries
        self.seed = seed
        self._counts = counts
        self._first = np.cumsum([0, *counts])
        self._shares = divide_by_weights(len(kept), weights)
        source, target = (np.searchsorted(boundaries, lengths) for lengths in planned)
        # 16 bits if possible: NumPy sorts those in linear time, and stably.
        self._keys = np.empty(len(kept), np.min_scalar_type(len(boundaries) ** 2 - 1))
        for start in range(0, len(kept), CHUNK):
            rows = kept[start : start + CHUNK]
            self._keys[start : start + CHUNK] = sorting_keys(
                source[pairs.source.lengths[rows]], target[pairs.target.lengths[rows]]
            )

    @property
    def has_constant_length(self) -> bool:
        """Whether all passes have the same length: those over one corpus have the same pairs."""
        return len(self._counts) == 1

    def plan(self, number: int) -> BatchPlan:
        """Plans a pass.

        Args:
            number: Number of the pass, from 0.

        Returns:
            `BatchPlan`, whose `pairs` are places in `kept`.
        """
        pairs, segments = self._select_pairs(number)
        order, splits, lengths = fill_batches(self._keys[pairs], self.boundaries, self.budget)
        order = order.astype(pairs.dtype)
        batch_order = np.arange(len(lengths))
        if self.seed is not None:
            np.random.default_rng([self.seed, BATCH_ORDER, number]).shuffle(batch_order)
        return BatchPlan(pairs, order, splits, lengths, batch_order, segments)

    def _select_pairs(self, number):
        """Returns the places in `kept` that a pass uses, and the corpus and cycle of segments."""
        parts, segments, total = [], [], 0
        for corpus, (count, share) in enumerate(zip(self._counts, self._shares, strict=True)):
            begin, end = number * share, (number + 1) * share
            while begin < end:
                cycle, start = divmod(begin, count)
                stop = min(count, start + end - begin)
                parts.append(self._order_cycle(corpus, cycle)[start:stop])
                segments.append((total, corpus, cycle))
                total += stop - start
                begin += stop - start
        pairs = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return pairs, np.array(segments, np.int64)

    def _order_cycle(self, corpus, cycle):
        """Returns the places of a corpus, in the order of one cycle."""
        first, last = self._first[corpus : corpus + 2]
        places = np.arange(first, last, dtype=np.int32 if last < 1 << 31 else np.int64)
        if self.seed is not None:
            np.random.default_rng([self.seed, PAIR_ORDER, cycle, corpus]).shuffle(places)
        return places


def divide_by_weights(total: int, weights: Sequence[float]) -> list[int]:
    """Divides a number by weights, rounded so that the shares add up to it.

    Args:
        total: The number.
        weights: Positive numbers.

    Returns:
        A share for each weight; the largest remainders are rounded up.
    """
    exact = np.asarray(weights, np.float64) / np.sum(weights) * total
    rounded = np.floor(exact).astype(np.int64)
    largest = np.argsort(rounded - exact, kind="stable")[: total - int(rounded.sum())]
    rounded[largest] += 1
    return rounded.tolist()


def bucket_boundaries(max_length: int) -> list[int]:
    """Returns the default lengths that batches are padded to: 1 to 16, 18, 20 … 32, 36, 40 ….

    Args:
        max_length: The last boundary.

    Returns:
        Ascending list of ints, eight per doubling: padding adds at most 1/8 of a length.
    """
    boundaries, step = list(range(1, 17)), 2
    while boundaries[-1] < max_length:
        boundaries += range(boundaries[-1] + step, 16 * step + 1, step)
        step *= 2
    return [length for length in boundaries if length < max_length] + [max_length]


def sorting_keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns keys by which pairs are sorted so that neighbours are alike.

    First by the bucket of the longer side; within it, by how many buckets the source is longer than
    the target, ascending and descending in turn. If the longer side is in bucket b, there are
    2b + 1 differences: the keys are those from b² to (b + 1)², excluding the latter.

    Args:
        source, target: Numbers of the sides' buckets, `(N,)` integers.

    Returns:
        `(N,)` int64.
    """
    difference, longer = source - target, np.maximum(source, target)
    return longer * (longer + 1) + np.where(longer % 2, -difference, difference)


def fill_batches(
    keys: np.ndarray, boundaries: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorts pairs and splits them where the budget is full.

    Args:
        keys: `sorting_keys` of pairs, `(N,)`.
        boundaries, budget: See `split_by_budget`.

    Returns:
        Places in `keys`, stably sorted, `(N,)` int64, and the results of `split_by_budget`.
    """
    order = np.argsort(keys, kind="stable")
    last_keys = np.arange(1, len(boundaries) + 1) ** 2 - 1  # of each bucket
    ends = np.searchsorted(keys[order], last_keys.astype(keys.dtype), side="right")
    return order, *split_by_budget(ends, boundaries, budget)


def split_by_budget(
    ends: np.ndarray, boundaries: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits sorted pairs where the budget is full.

    Args:
        ends: Number of pairs up to the end of each bucket.
        boundaries: The padded length of each bucket, ascending.
        budget: Largest rows × padded length of the longer side.

    Returns:
        Where each batch begins and the last one ends, `(n + 1,)` int64, and the padded length of
        the longer side that each is planned with, `(n,)` int64.
    """
    ends = ends.tolist()
    capacities = [budget // int(length) for length in boundaries]
    splits, lengths, bucket = [0], [], 0
    while splits[-1] < ends[-1]:
        start = end = splits[-1]
        while ends[bucket] <= start:
            bucket += 1
        longest = bucket
        for number in range(bucket, len(ends)):
            reached = min(ends[number], start + capacities[number])
            if reached <= end and ends[number] > end:
                break  # not one more fits at this length
            if reached > end:
                end, longest = reached, number
            if end < ends[number]:
                break
        splits.append(end)
        lengths.append(int(boundaries[longest]))
    return np.array(splits, np.int64), np.array(lengths, np.int64)
