"""The batches of a training, pass after pass, as NumPy arrays."""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from keras_transformer.data.encoded_pairs import EncodedPairs, concatenated_ranges
from keras_transformer.data.planning import BatchPlan, BatchPlanner
from keras_transformer.special_ids import END, PAD, START

# ((source (B, S), target_in (B, T)), target_out (B, T)), int32.
Batch: TypeAlias = tuple[tuple[np.ndarray, np.ndarray], np.ndarray]
# Number of a pass and of a batch in it, from 0.
Position: TypeAlias = tuple[int, int]

logger = logging.getLogger(__name__)


class BatchStream:
    """The batches of one corpus or a mix of several, from any position on.

    A pass depends on the seed and its number alone, in any process: an iterator that starts at a
    position returns the same batches as any other does from there on.

    Args:
        corpora: `EncodedPairs`, one or several.
        weights: Positive numbers, the relative share of each corpus in a pass.
        tokens_per_batch: Budget: rows × padded length of the longer side.
        max_length: Pairs with a side longer than this, including END, or with an empty side are
            dropped, which is logged.
        boundaries: Ascending lengths that batches are padded to.
        seed: Non-negative int; None for pairs and batches in the order of their lengths.
        repeat: Whether an iterator never ends, instead of after `batches_per_pass` batches.
        shard: (index, count): of each batch, rows `index`, `index + count` …. If that leaves none,
            one row of PAD.
        source_end: Whether END is appended to sources.

    Attributes:
        position: (pass, index): where the next iterator starts. An iterator that returns its last
            batch moves it behind that batch; one that is discarded before does not. (A strategy
            takes a few batches in advance: `fit` would start the second pass that much too late,
            unless a callback sets the position in `on_train_begin`.)
    """

    def __init__(
        self,
        corpora: Sequence[EncodedPairs],
        weights: Sequence[float],
        *,
        tokens_per_batch: int,
        max_length: int,
        boundaries: np.ndarray,
        seed: int | None = 0,
        repeat: bool = False,
        shard: tuple[int, int] = (0, 1),
        source_end: bool = True,
    ) -> None:
        self.boundaries = boundaries
        self.max_length = max_length
        self.repeat = repeat
        self.shard = shard
        self.source_end = source_end
        self.pairs = pairs = EncodedPairs.concatenate(corpora)
        purpose = "validate by" if seed is None else "learn from"  # only training is shuffled
        kept = [_filter_pairs(corpus, max_length, purpose) for corpus in corpora]
        starts = np.cumsum([0, *map(len, corpora)])
        self._rows = rows = _concatenate_rows(kept, starts)
        counts = [len(numbers) for numbers in kept]
        self._planner = BatchPlanner(
            pairs, rows, counts, weights, tokens_per_batch, boundaries, seed
        )
        self._position: Position = (0, 0)
        self._newest = 0  # number of the newest iterator: no other one moves the position
        self._end: Position = (0, 0)  # where that one ends
        self._planned: tuple[int, BatchPlan] | None = None
        self.batches_per_pass = len(self._plan(0))

    @property
    def position(self) -> Position:
        """Where the next iterator starts."""
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        number, index = map(int, position)
        count = self.batches_in(number) if number >= 0 else 0
        if not (number >= 0 and 0 <= index <= count):
            raise ValueError(
                f"position must be (pass, batch) with pass at least 0 and batch in 0 … {count}, "
                f"received {tuple(position)}."
            )
        self._newest += 1
        self._position = (number, index)

    def batches_in(self, number: int) -> int:
        """Returns the number of batches of a pass; over one corpus it is always the same."""
        return (
            self.batches_per_pass if self._planner.has_constant_length else len(self._plan(number))
        )

    def after(self, position: Position, count: int) -> Position:
        """Returns the position that is `count` batches after another."""
        number, index = position
        if self._planner.has_constant_length:
            passes, index = divmod(index + count, self.batches_per_pass)
            return number + passes, index
        index += count
        while index >= (size := self.batches_in(number)):
            number, index = number + 1, index - size
        return number, index

    def __iter__(self) -> Iterator[Batch]:
        for batch, ended in self.iterate():
            self.finish(ended)
            yield batch

    def iterate(self) -> Iterator[tuple[Batch, int]]:
        """Iterates from `position` on, without moving it.

        The position is read when the first batch is requested.

        Returns:
            Iterator of batches, each with -1, the last one with the argument of `finish`, which the
            caller calls when it hands out that batch.
        """
        self._newest += 1
        current, (number, index) = self._newest, self._position
        total = None if self.repeat else self.batches_per_pass
        for done in itertools.count(1) if total is None else range(1, total + 1):
            plan = self._plan(number)
            if index == len(plan):
                number, index = number + 1, 0
                plan = self._plan(number)
            batch = self._make_batch(plan, index)
            number, index = (number, index + 1) if index + 1 < len(plan) else (number + 1, 0)
            del plan  # two at once would take twice the memory
            if done == total and current == self._newest:
                self._end = number, index
            yield batch, current if done == total else -1

    def finish(self, iterator: int) -> None:
        """Moves `position` to the end of an iterator, if it is the newest.

        Args:
            iterator: The number that came with a batch.
        """
        if iterator == self._newest:
            self._position = self._end

    def _plan(self, number):
        """Returns the plan of a pass; the latest one is cached."""
        planned = self._planned
        if planned is None or planned[0] != number:
            self._planned = planned = None
            planned = self._planned = number, self._planner.plan(number)
        return planned[1]

    def _make_batch(self, plan, index):
        """Returns one batch of a pass, padded."""
        rows = self._rows[plan.batch(index)][self.shard[0] :: self.shard[1]]
        if not len(rows):
            padding = np.full([1, self.boundaries[0]], PAD, np.int32)
            return (padding, padding), padding
        source, target = (side.gather(rows) for side in (self.pairs.source, self.pairs.target))
        inputs = self._pad(*source, end=self.source_end), self._pad(*target, start=True)
        return inputs, self._pad(*target, end=True)

    def _pad(self, ids, lengths, start=False, end=False):
        """Pads sentences to rows, (B, length), with START before or END after them."""
        length = self.boundaries[np.searchsorted(self.boundaries, lengths.max() + 1)]
        padded = np.full([len(lengths), length], PAD, np.int32)
        first = np.arange(len(lengths)) * length
        if start:
            padded[:, 0] = START
        padded.reshape(-1)[concatenated_ranges(first + start, lengths)] = ids
        if end:
            padded.reshape(-1)[first + lengths] = END
        return padded


def _filter_pairs(corpus, max_length, purpose):
    """Returns the numbers of the pairs to use; logs how many are dropped."""
    kept, summary = corpus.filter_by_length(max_length)
    logger.log(logging.WARNING if len(kept) < len(corpus) else logging.INFO, summary)
    if not len(kept):
        raise ValueError(f"No sentence pairs remain to {purpose}: {summary}.")
    return kept


def _concatenate_rows(kept, starts):
    """Returns the numbers of pairs in the concatenation of all corpora."""
    if len(kept) == 1:
        return kept[0]
    small = np.int32 if starts[-1] < 1 << 31 else np.int64
    return np.concatenate([np.add(x, y, dtype=small) for x, y in zip(kept, starts, strict=False)])
