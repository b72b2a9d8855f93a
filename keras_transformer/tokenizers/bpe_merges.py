"""Byte-pair encoding of many words at once."""

from collections.abc import Callable

import numpy as np

from keras_transformer.tokenizers.model_pieces import ModelPieces

NOTHING = -1  # where no piece begins
_NEVER = np.iinfo(np.int64).max  # the turn of what cannot be merged
_PLACES = 32  # bits of a turn that hold a place in the word


class BpeMerges:
    """Merges characters to pieces as sentencepiece does: the best score first, then the leftmost.

    All words make their next merge together, so that a batch takes as many rounds as its longest
    word has merges.

    Args:
        vocabulary: `ModelPieces` of the type bpe.
    """

    def __init__(self, vocabulary: ModelPieces) -> None:
        normal = vocabulary.normal
        known = {piece: id for id, piece in enumerate(vocabulary.pieces) if normal[id]}
        self._stride = len(vocabulary) + 1  # one more, for NOTHING
        merges = [
            (known[piece[:i]] * self._stride + known[piece[i:]], id)
            for piece, id in known.items()
            for i in range(1, len(piece))
            if piece[:i] in known and piece[i:] in known
        ]
        table = np.array(sorted(merges), np.int64).reshape(-1, 2)
        self._pairs = np.append(table[:, 0], _NEVER)
        self._merged = np.append(table[:, 1], NOTHING)
        _, ranks = np.unique(-vocabulary.scores, return_inverse=True)
        self._turns = ranks.astype(np.int64)[self._merged] << _PLACES

    def __call__(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        dropped: Callable[..., np.ndarray] | None = None,
        made: Callable[..., None] | None = None,
    ) -> np.ndarray:
        """Merges.

        Args:
            ids: Of the words' characters one after the other, `(N,)`; pieces that are longer are
                merged further.
            lengths: How many each word has, `(W,)`.
            dropped: Function of possible merges: the number of the word, and the places in it, in
                `ids`, where the left part begins, where the right one does and where that ends,
                each `(C,)`. Returns which are left out, bool `(C,)`. None: none is.
            made: Is told of the merges that are made, as `dropped` is of possible ones.

        Returns:
            Ids of the merged pieces where they begin, elsewhere NOTHING, `(N,)`.
        """
        merged = np.array(ids, np.int64)
        starts = np.cumsum(lengths) - lengths
        longest = 2
        while (chosen := np.flatnonzero(lengths >= longest)).size:
            # Words of similar length together: all take the room of the longest.
            chosen = chosen[lengths[chosen] < 4 * longest]
            if chosen.size:
                self._merge(merged, starts[chosen], lengths[chosen], chosen, dropped, made)
            longest *= 4
        return merged

    def _merge(self, merged, starts, lengths, numbers, dropped, made):
        """Merges some of the words, in place."""
        # One column a word, a row a place: row 0 and those after a word's end hold NOTHING.
        width, height = len(starts), int(lengths.max()) + 2
        column = np.repeat(np.arange(width), lengths)
        row = np.arange(len(column)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        source, slots = starts[column] + row, (row + 1) * width + column
        symbols = np.full(height * width, NOTHING, np.int64)
        symbols[slots] = merged[source]
        rows = np.repeat(np.arange(height), width)
        after, before = rows + 1, rows - 1
        results = np.full(height * width, NOTHING, np.int64)
        turns = np.full((height, width), _NEVER)

        def look_up(left, middle, end, columns):
            """When the symbols of some pairs are merged, and to what; rows and columns (C,)."""
            slot = left * width + columns
            pairs = symbols[slot] * self._stride + symbols[middle * width + columns]
            found = np.searchsorted(self._pairs, pairs)
            there = np.flatnonzero(self._pairs[found] == pairs)
            if dropped is not None:
                places = (x[there] - 1 for x in (left, middle, end))
                there = there[~dropped(numbers[columns[there]], *places)]
            found = found[there]
            results[slot[there]] = self._merged[found]
            turn = np.full(len(left), _NEVER)
            turn[there] = self._turns[found] | left[there]
            return turn

        turns[row + 1, column] = look_up(row + 1, row + 2, row + 3, column)
        columns = np.arange(width)
        while True:
            best = turns.min(axis=0)
            alive = best < _NEVER
            if not alive.all():
                turns, columns, best = turns[:, alive], columns[alive], best[alive]
            if not len(best):
                break
            left = best & ((1 << _PLACES) - 1)
            slot = left * width + columns
            right = after[slot]
            right_slot = right * width + columns
            end = after[right_slot]
            if made is not None:
                made(numbers[columns], left - 1, right - 1, end - 1)
            symbols[slot], symbols[right_slot] = results[slot], NOTHING
            after[slot], before[end * width + columns] = end, left
            previous, following = before[slot], after[end * width + columns]
            both = np.append(columns, columns)
            turn = look_up(
                np.append(previous, left), np.append(left, end), np.append(end, following), both
            )
            among = np.arange(len(columns))
            turns[right, among] = _NEVER
            turns[previous, among], turns[left, among] = np.split(turn, 2)
        merged[source] = symbols[slots]
