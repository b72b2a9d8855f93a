"""Which lines two builds of SentencePiece may cut into different pieces."""

from typing import Any

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

LONGEST = 50  # pieces of a word; longer ones would take long to look at, and are rare
MOST = 1 << 18  # words of several pieces that are remembered, 50 MB or so
SPACE = "\u2581"


class Ties:
    """Finds the lines in which segmentations are as probable as each other, but for rounding.

    A model of type unigram takes the most probable segmentation: the one with the largest sum of
    scores, which are added up in float32. Of two that are equally probable, such as `0 000` and
    `000 0`, rounding decides, and that differs between tensorflow_text's build of SentencePiece,
    which is served, and the sentencepiece package. Nothing else has been found to differ; bpe, char
    and word add nothing up, so no line of theirs is ever found here.

    Pieces do not reach from one word into the next, so a line is as certain as the least certain of
    its words; those are looked at once each. A word is uncertain where its second best segmentation
    is worse by less than what rounding may add to the sums up to it.

    Args:
        processor: `SentencePieceProcessor`.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        model: Any = sentencepiece_model_pb2  # made when it is imported: checkers see nothing in it
        model = model.ModelProto.FromString(processor.serialized_model_proto())
        self._unigram = model.trainer_spec.model_type == model.trainer_spec.UNIGRAM
        size = processor.vocab_size()
        pieces = [processor.id_to_piece(number) for number in range(size)]
        self._begins = np.array([piece.startswith(SPACE) for piece in pieces])
        self._words = not any(SPACE in piece[1:] for piece in pieces)
        scores = np.array([processor.get_score(number) for number in range(size)])
        is_byte = np.array([processor.is_byte(number) for number in range(size)])
        # What is spelled in bytes has been added up as an unknown character.
        self._costs = np.where(is_byte, np.max(-scores) + 10, np.abs(scores))
        self._cost_list = self._costs.tolist()  # of a few pieces, faster than the array
        self._alone = np.full(size, np.nan)  # margins of words of one piece
        self._margins: dict[bytes, float] = {}  # of others

    def find(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Finds the lines that are not certain.

        Args:
            ids: Those of the lines, one line after the other, `(I,)` int32.
            lengths: Number of ids of each line, `(B,)`.

        Returns:
            Their numbers, ascending.
        """
        if not self._unigram or not len(ids):
            return np.zeros(0, np.int64)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        if not self._words:
            return np.unique(rows)
        begins = self._begins[ids]
        begins[np.cumsum(lengths[:-1])[lengths[1:] > 0]] = True
        begins[0] = True
        starts = np.flatnonzero(begins)
        sizes = np.diff(starts, append=len(ids))
        margins = self._margins_of(ids, starts, sizes)
        # A sum is rounded at each addition, by half of the 2^-23 of what it has come to; and so is
        # that of the other segmentation, of as many pieces or so, in each of the two builds.
        sums = np.bincount(rows, self._costs[ids], len(lengths))
        rows = rows[starts]
        return np.unique(rows[margins <= 4 * (sizes + 2) * 2.0**-23 * sums[rows]])

    def _margins_of(self, ids, starts, sizes):
        """By how much the best segmentation of each word is better than the second best."""
        firsts = ids[starts]
        alone = firsts[sizes == 1]
        new = np.unique(alone[np.isnan(self._alone[alone])])
        self._alone[new] = self._look_at([[piece] for piece in new.tolist()])
        margins = self._alone[firsts]
        several = np.flatnonzero(sizes > 1)
        begin = 4 * starts[several]
        bounds = zip(begin.tolist(), (begin + 4 * sizes[several]).tolist(), strict=True)
        data = ids.tobytes()
        words = [data[start:end] for start, end in bounds]
        if len(self._margins) > MOST:
            self._margins.clear()
        unknown = list(set(words).difference(self._margins))
        pieces = [np.frombuffer(word, np.int32).tolist() for word in unknown]
        self._margins.update(zip(unknown, self._look_at(pieces), strict=True))
        margins[several] = list(map(self._margins.__getitem__, words))
        return margins

    def _look_at(self, words):
        """The margins of some words; 0 where one cannot be told."""
        if not words:
            return []
        texts = self._processor.decode(words)
        # What is too long is not looked at: an empty text has no segmentation.
        texts = ["" if len(w) > LONGEST else text for w, text in zip(words, texts, strict=True)]
        both = self._processor.nbest_encode(texts, nbest_size=2)
        return list(map(self._margin, words, both))

    def _margin(self, word, best):
        """By how much a word's segmentation is better than the others of the two best."""
        if word not in best:
            return 0.0
        if len(best) == 1:
            return np.inf
        other = best[best[0] == word]
        return self._score(word) - self._score(other)

    def _score(self, word):
        return -sum(map(self._cost_list.__getitem__, word))
