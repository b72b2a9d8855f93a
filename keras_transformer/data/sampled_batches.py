"""Batches of sentences whose segmentation is sampled again in every pass."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.data.encoded_pairs import EncodedPairs, Sentences
from keras_transformer.data.planning import (
    BLOCK_ORDER,
    GROWTH,
    BatchPlan,
    BatchPlanner,
    fill_batches,
    sorting_keys,
)
from keras_transformer.tokenizers.subword_sampling import SubwordSampler, pair_keys

MEASURED = 1000  # pairs whose growth is measured
BLOCK = 1 << 19  # tokens sampled together: some megabytes, and about a second
MIN_BATCHES, MAX_BATCHES = 8, 64  # of a block


def planned_lengths(
    samplers: Sequence[SubwordSampler],
    seed: int,
    pairs: EncodedPairs,
    kept: np.ndarray,
    max_length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Estimates the lengths of sampled sentences: batches are planned before sampling.

    Args:
        samplers: The `SubwordSampler`s of source and target.
        seed: Seed of the training.
        pairs: `EncodedPairs`.
        kept: The numbers of the pairs to use, `(N,)`.
        max_length: Upper bound of the planned lengths.

    Returns:
        For each side, the length to plan a sentence with, including END, by its number of ids:
        `(max_length,)`.
    """
    random = np.random.default_rng([seed, GROWTH])
    rows = kept[random.integers(len(kept), size=MEASURED)] if len(kept) > MEASURED else kept
    plain = np.arange(1, max_length + 1)
    planned = []
    for side, sentences in enumerate((pairs.source, pairs.target)):
        ids, lengths = sentences.gather(rows)
        _, sampled = samplers[side](ids, lengths, pair_keys(seed, 0, side, rows))
        growth = max(1.0, (sampled + 1).sum() / (lengths + 1).sum())
        planned.append(np.minimum(np.ceil(growth * plain), max_length).astype(np.int64))
    source, target = planned
    return source, target


class SampledBatches:
    """Samples the pieces of a block of consecutive batches, and fills as many with the pairs.

    The length of a sentence is not known before its pieces are sampled, and sampling a whole pass
    in advance would take minutes for a large corpus. So passes are planned with the average length
    of the sampled sentences, and the pairs of each block of planned batches are sorted again by
    the sampled lengths: batches are as full as without sampling. The pairs that grow the most keep
    their plain pieces if a block would take more batches than planned, and so do those that become
    longer than `max_length`. When workers share batches, each samples all of them.

    Args:
        pairs: `EncodedPairs` of all corpora, one after the other.
        rows: The numbers of the pairs to use, `(N,)`.
        starts: The number of each corpus' first pair, ascending, and the number of all pairs.
        samplers: The `SubwordSampler`s of source and target.
        seed: Seed of the training: pieces depend only on (seed, pass, corpus, pair).
        planner: The `BatchPlanner` of the passes.
        max_length: Largest number of ids, including END.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        rows: np.ndarray,
        starts: np.ndarray,
        samplers: Sequence[SubwordSampler],
        seed: int,
        planner: BatchPlanner,
        max_length: int,
    ) -> None:
        self._pairs, self._rows, self._starts = pairs, rows, starts
        self._samplers, self._seed = samplers, seed
        self._planner, self._max_length = planner, max_length
        self._size = int(np.clip(BLOCK // planner.budget, MIN_BATCHES, MAX_BATCHES))
        self._block: tuple[tuple[int, int], EncodedPairs, list[np.ndarray]] | None = None

    def batch(self, number: int, plan: BatchPlan, index: int) -> tuple[EncodedPairs, np.ndarray]:
        """Returns a batch; its block is kept for the following ones.

        Args:
            number: Number of the pass.
            plan: Plan of the pass.
            index: Turn of the batch.

        Returns:
            The pairs of its block, and the numbers of those in the batch, `(B,)`.
        """
        first, last = _block_bounds(len(plan), index, self._size)
        block = self._block
        if block is None or block[0] != (number, first):
            block = self._block = (number, first), *self._sample_block(number, plan, first, last)
        return block[1], block[2][index - first]

    def _sample_block(self, number, plan, first, last):
        """Returns the pairs of a block, first plain, then sampled, and the numbers per batch."""
        planned = [plan.batch(index)[0] for index in range(first, last)]
        places = np.concatenate(planned)
        rows = self._rows[plan.pairs[places]]
        keys = self._make_keys(rows, plan.cycles_of(places))
        sides, lengths = [], []
        for side, sentences in enumerate((self._pairs.source, self._pairs.target)):
            plain = sentences.gather(rows)
            sampled = self._samplers[side](*plain, keys[side])
            shards = [(ids, np.cumsum([0, *counts])) for ids, counts in (plain, sampled)]
            sides.append(Sentences(shards))
            lengths.append([plain[1] + 1, sampled[1] + 1])
        batches = self._fill_batches(*np.swapaxes(lengths, 0, 1), last - first)
        if batches is None:  # the planned batches, unchanged
            batches = np.split(np.arange(len(rows)), np.cumsum([len(b) for b in planned])[:-1])
        order = np.random.default_rng([self._seed, BLOCK_ORDER, number, first])
        order.shuffle(batches)
        return EncodedPairs(*sides), batches

    def _fill_batches(self, plain, sampled, count):
        """Returns the numbers of pairs in `count` batches; those of sampled pairs come after plain.

        None if even plain pairs take more batches, which may happen if hardly any pair grows.
        """
        boundaries = self._planner.boundaries
        pairs = np.arange(plain.shape[1])
        use_sampled = (sampled <= self._max_length).all(axis=0)
        most_grown = np.argsort(plain.max(axis=0) - sampled.max(axis=0), kind="stable")
        given_up = 0
        while True:
            buckets = np.searchsorted(boundaries, np.where(use_sampled, sampled, plain))
            order, splits, _ = fill_batches(
                sorting_keys(*buckets), boundaries, self._planner.budget
            )
            if len(splits) - 1 <= count:
                rows = (pairs + use_sampled * len(pairs))[order]
                return _split_largest(np.split(rows, splits[1:-1]), count)
            if given_up >= len(pairs):
                return None
            given_up = 2 * given_up + 1
            use_sampled[most_grown[:given_up]] = False

    def _make_keys(self, rows, cycles):
        """Returns the keys of pairs for both sides, uint64 `(2, B)`."""
        keys = np.empty([2, len(rows)], np.uint64)
        for corpus, cycle in np.unique(cycles, axis=0).tolist():
            mine = (cycles == [corpus, cycle]).all(axis=1)
            numbers = rows[mine] - self._starts[corpus]
            for side in (0, 1):
                keys[side, mine] = pair_keys(self._seed, cycle, side, numbers, corpus)
        return keys


def _block_bounds(count, index, size):
    """Returns the range of batches in the block of a batch: all blocks are of similar size."""
    blocks = max(1, count // size)
    edges = [count * number // blocks for number in range(blocks + 1)]
    block = int(np.searchsorted(edges, index, side="right")) - 1
    return edges[block], edges[block + 1]


def _split_largest(batches, count):
    """Halves the batches with the most rows until there are `count`."""
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches
