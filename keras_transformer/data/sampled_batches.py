"""Batches of sentences that are cut into other pieces in every pass."""

from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.data.batch_plan import BatchPlan
from keras_transformer.data.batch_planner import ORDER_IN_BLOCK, BatchPlanner
from keras_transformer.data.batching import fill, sorting_keys
from keras_transformer.data.encoded_pairs import EncodedPairs
from keras_transformer.data.sentences import Sentences
from keras_transformer.tokenizers.random_keys import pair_keys

if TYPE_CHECKING:
    from keras_transformer.data.piece_sampling import PieceSampling

# Of the batches that are drawn at once: about how many tokens, for some megabytes and a second,
# and how many batches at least and at most.
BLOCK, FEWEST, MOST = 1 << 19, 8, 64


class SampledBatches:
    """Draws the pieces of some batches that follow each other, and fills as many with the pairs.

    How long a sentence gets is not known before its pieces are drawn, and to draw a whole pass
    ahead would take minutes for a large corpus. So passes are planned with the length that
    sentences have on average, and the pairs of each block of planned batches are sorted again by
    what was drawn: batches come out as full as without sampling. Pairs that grow the most keep
    their plain pieces where a block would take more batches than planned, and so do those that get
    longer than `max_length`. Where batches are shared, every worker draws all of them.

    Args:
        pairs: `EncodedPairs`, those of all corpora one after the other.
        rows: The numbers of those to learn from, `(N,)`.
        starts: The number of each corpus' first pair, ascending, and that of all pairs.
        sampling: `PieceSampling`.
        planner: The `BatchPlanner` of the passes.
        max_length: Largest number of ids, END counted.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        rows: np.ndarray,
        starts: np.ndarray,
        sampling: "PieceSampling",
        planner: BatchPlanner,
        max_length: int,
    ) -> None:
        self._pairs, self._rows, self._starts = pairs, rows, starts
        self._sampling, self._planner, self._max_length = sampling, planner, max_length
        self._size = int(np.clip(BLOCK // planner.budget, FEWEST, MOST))
        self._block: tuple[tuple[int, int], EncodedPairs, list[np.ndarray]] | None = None

    def batch(self, number: int, plan: BatchPlan, index: int) -> tuple[EncodedPairs, np.ndarray]:
        """Looks up a batch; the block that it is of is kept for the next ones.

        Args:
            number: Of the pass.
            plan: Of the pass.
            index: Number of the batch's turn.

        Returns:
            The pairs of its block, and the numbers of those that the batch is of, `(B,)`.
        """
        first, last = _bounds(len(plan), index, self._size)
        block = self._block
        if block is None or block[0] != (number, first):
            block = self._block = (number, first), *self._draw(number, plan, first, last)
        return block[1], block[2][index - first]

    def _draw(self, number, plan, first, last):
        """The pairs of a block, plain ones and then the same as drawn; and those of each batch."""
        planned = [plan.batch(index)[0] for index in range(first, last)]
        places = np.concatenate(planned)
        rows = self._rows[plan.drawn[places]]
        keys = self._keys(rows, plan.cycles_of(places))
        sides, lengths = [], []
        for side, sentences in enumerate((self._pairs.source, self._pairs.target)):
            plain = sentences.gather(rows)
            drawn = self._sampling.draw(side, *plain, keys[side])
            both = [(ids, np.cumsum([0, *counts])) for ids, counts in (plain, drawn)]
            sides.append(Sentences(both))
            lengths.append([plain[1] + 1, drawn[1] + 1])
        batches = self._fill(*np.swapaxes(lengths, 0, 1), last - first)
        if batches is None:  # what was planned, as it is
            batches = np.split(np.arange(len(rows)), np.cumsum([len(b) for b in planned])[:-1])
        order = np.random.default_rng([self._sampling.seed, ORDER_IN_BLOCK, number, first])
        order.shuffle(batches)
        return EncodedPairs(*sides), batches

    def _fill(self, plain, drawn, count):
        """Numbers of pairs in so many batches, those of drawn ones from the number of pairs on.

        None where even plain ones take more batches, as may happen where hardly anything grows.
        """
        boundaries = self._planner.boundaries
        pairs = np.arange(plain.shape[1])
        as_drawn = (drawn <= self._max_length).all(axis=0)
        most_grown = np.argsort(plain.max(axis=0) - drawn.max(axis=0), kind="stable")
        given_up = 0
        while True:
            buckets = np.searchsorted(boundaries, np.where(as_drawn, drawn, plain))
            order, splits, _ = fill(sorting_keys(*buckets), boundaries, self._planner.budget)
            if len(splits) - 1 <= count:
                rows = (pairs + as_drawn * len(pairs))[order]
                return _split(np.split(rows, splits[1:-1]), count)
            if given_up >= len(pairs):
                return None
            given_up = 2 * given_up + 1
            as_drawn[most_grown[:given_up]] = False

    def _keys(self, rows, cycles):
        """What the random numbers of some pairs follow from, on either side, uint64 `(2, B)`."""
        keys = np.empty([2, len(rows)], np.uint64)
        for corpus, cycle in np.unique(cycles, axis=0).tolist():
            mine = (cycles == [corpus, cycle]).all(axis=1)
            numbers = rows[mine] - self._starts[corpus]
            for side in (0, 1):
                keys[side, mine] = pair_keys(self._sampling.seed, cycle, side, numbers, corpus)
        return keys


def _bounds(count, index, size):
    """The turns that the block of a batch begins and ends with: all blocks are of similar size."""
    blocks = max(1, count // size)
    edges = [count * number // blocks for number in range(blocks + 1)]
    block = int(np.searchsorted(edges, index, side="right")) - 1
    return edges[block], edges[block + 1]


def _split(batches, count):
    """Divides those of most rows until there are so many."""
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda number: len(batches[number]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches
