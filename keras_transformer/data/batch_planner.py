"""Plans pass after pass over one corpus or a mix of several."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.batching import fill, sorting_keys
from keras_transformer.data.encoded_pairs import EncodedPairs

CHUNK = 1 << 20  # pairs whose keys are found at once: temporaries stay small

# What random numbers are for: the same seed gives other ones for each.
ORDER_OF_PAIRS, ORDER_OF_BATCHES, GROWTH, ORDER_IN_BLOCK = range(4)


class BatchPlanner:
    """Decides which pairs make up the batches of a pass, from the seed and the pass alone.

    Pairs are sorted by length, those of equal length in an order drawn anew for every pass, and
    cut where the budget is full; the order of the batches is drawn anew as well.

    Of several corpora, a pass takes as many pairs in all as they have together, and from each its
    share. It goes on there where the pass before has stopped, so that no pair comes again before
    all others of its corpus have come.

    Args:
        pairs: `EncodedPairs`, those of all corpora one after the other.
        kept: The numbers of the pairs to learn from, ascending, `(N,)`.
        counts: How many of them are of each corpus.
        weights: Of each corpus, its share in a pass, as a part of their sum.
        budget: Largest rows × padded length of the longer side.
        boundaries: Ascending lengths of the buckets.
        planned: Of each side, the length to plan a sentence with, by its number of ids.
        seed: Of the order of pairs and batches; None sorts pairs of equal length as they come,
            and leaves the batches sorted.
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
        self._shares = shares(len(kept), weights)
        source, target = (np.searchsorted(boundaries, lengths) for lengths in planned)
        # Of 16 bits where that will do: NumPy's stable sort of those takes linear time.
        self._keys = np.empty(len(kept), np.min_scalar_type(len(boundaries) ** 2 - 1))
        for start in range(0, len(kept), CHUNK):
            rows = kept[start : start + CHUNK]
            self._keys[start : start + CHUNK] = sorting_keys(
                source[pairs.source.lengths[rows]], target[pairs.target.lengths[rows]]
            )

    @property
    def is_steady(self) -> bool:
        """Tells whether all passes are as long: those over one corpus are over the same pairs."""
        return len(self._counts) == 1

    def plan(self, number: int) -> BatchPlan:
        """Plans a pass.

        Args:
            number: Of the pass, from 0.

        Returns:
            `BatchPlan`, whose `drawn` are places in `kept`.
        """
        drawn, stretches = self._draw(number)
        order, splits, lengths = fill(self._keys[drawn], self.boundaries, self.budget)
        order = order.astype(drawn.dtype)
        turns = np.arange(len(lengths))
        if self.seed is not None:
            np.random.default_rng([self.seed, ORDER_OF_BATCHES, number]).shuffle(turns)
        return BatchPlan(drawn, order, splits, lengths, turns, stretches)

    def _draw(self, number):
        """The places in `kept` that a pass takes, and from which corpus and cycle each stretch."""
        parts, stretches, total = [], [], 0
        for corpus, (count, share) in enumerate(zip(self._counts, self._shares, strict=True)):
            begin, end = number * share, (number + 1) * share
            while begin < end:
                cycle, start = divmod(begin, count)
                stop = min(count, start + end - begin)
                parts.append(self._cycle(corpus, cycle)[start:stop])
                stretches.append((total, corpus, cycle))
                total += stop - start
                begin += stop - start
        drawn = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return drawn, np.array(stretches, np.int64)

    def _cycle(self, corpus, cycle):
        """The places of a corpus in the order of one of the times that it is gone through."""
        first, last = self._first[corpus : corpus + 2]
        places = np.arange(first, last, dtype=np.int32 if last < 1 << 31 else np.int64)
        if self.seed is not None:
            np.random.default_rng([self.seed, ORDER_OF_PAIRS, cycle, corpus]).shuffle(places)
        return places


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Divides a number by weights, rounded so that the shares sum up to it.

    Args:
        total: What is divided.
        weights: Positive numbers.

    Returns:
        A share for each weight; the largest remainders are rounded up.
    """
    exact = np.asarray(weights, np.float64) / np.sum(weights) * total
    rounded = np.floor(exact).astype(np.int64)
    largest = np.argsort(rounded - exact, kind="stable")[: total - int(rounded.sum())]
    rounded[largest] += 1
    return rounded.tolist()
