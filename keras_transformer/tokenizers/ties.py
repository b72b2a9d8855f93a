"""Finds the lines that two builds of SentencePiece may segment differently."""

import numpy as np
import sentencepiece

from keras_transformer.tokenizers.pieces import SPACE, ModelPieces

MAX_PIECES = 50  # pieces of a word; longer ones would take long to segment, and are rare
MAX_CACHED = 1 << 18  # words of several pieces that are cached, 50 MB or so


class Ties:
    """Finds the lines with several segmentations that are equally probable except for rounding.

    A model of type unigram returns the most probable segmentation: the one with the largest sum of
    scores, added up in float32. Between two that are equally probable, such as `0 000` and `000 0`,
    rounding decides, and that differs between tensorflow_text's build of SentencePiece, which is
    served, and the sentencepiece package. Nothing else has been found to differ; bpe, char and word
    add nothing up, so all their lines are certain.

    Pieces do not cross words, so a line is as certain as the least certain of its words; each word
    is segmented once. A word is uncertain if its second best segmentation is worse by less than the
    rounding error of the sums up to it.

    Args:
        processor: `SentencePieceProcessor`.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor) -> None:
        self._processor = processor
        model = ModelPieces(processor.serialized_model_proto())
        size, scores = len(model), model.scores.astype(np.float64)
        self._unigram = model.model_type == "unigram"
        self._begins = np.array([piece.startswith(SPACE) for piece in model.pieces])
        self._words = not any(SPACE in piece[1:] for piece in model.pieces)
        is_byte = np.array([processor.is_byte(number) for number in range(size)])
        # A character spelled in bytes has been added up as an unknown one.
        self._costs = np.where(is_byte, np.max(-scores) + 10, np.abs(scores))
        self._cost_list = self._costs.tolist()  # for a few pieces, faster than the array
        self._alone = np.full(size, np.nan)  # margins of words of one piece
        self._margins: dict[bytes, float] = {}  # margins of the others

    def find(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Finds the uncertain lines.

        Args:
            ids: Pieces of the lines, one line after the other, `(I,)` int32.
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
        margins = self._compute_margins(ids, starts, sizes)
        # A sum is rounded at each addition, by half of 2^-23 of its value so far; and so is that of
        # the other segmentation, of about as many pieces, in each of the two builds.
        sums = np.bincount(rows, self._costs[ids], len(lengths))
        rows = rows[starts]
        return np.unique(rows[margins <= 4 * (sizes + 2) * 2.0**-23 * sums[rows]])

    def _compute_margins(self, ids, starts, sizes):
        """Returns how much better the best segmentation of each word is than the second best."""
        firsts = ids[starts]
        alone = firsts[sizes == 1]
        new = np.unique(alone[np.isnan(self._alone[alone])])
        self._alone[new] = self._measure_words([[piece] for piece in new.tolist()])
        margins = self._alone[firsts]
        several = np.flatnonzero(sizes > 1)
        begin = 4 * starts[several]
        bounds = zip(begin.tolist(), (begin + 4 * sizes[several]).tolist(), strict=True)
        data = ids.tobytes()
        words = [data[start:end] for start, end in bounds]
        if len(self._margins) > MAX_CACHED:
            self._margins.clear()
        unknown = list(set(words).difference(self._margins))
        pieces = [np.frombuffer(word, np.int32).tolist() for word in unknown]
        self._margins.update(zip(unknown, self._measure_words(pieces), strict=True))
        margins[several] = list(map(self._margins.__getitem__, words))
        return margins

    def _measure_words(self, words):
        """Returns the margins of words; 0 if unknown."""
        if not words:
            return []
        texts = self._processor.decode(words)
        # Words that are too long are skipped: an empty text has no segmentation.
        texts = ["" if len(w) > MAX_PIECES else text for w, text in zip(words, texts, strict=True)]
        best_two = self._processor.nbest_encode(texts, nbest_size=2)
        return list(map(self._measure_word, words, best_two))

    def _measure_word(self, word, best):
        """Returns how much better a word's segmentation is than the other one of the best two."""
        if word not in best:
            return 0.0
        if len(best) == 1:
            return np.inf
        other = best[best[0] == word]
        return self._score(word) - self._score(other)

    def _score(self, word):
        return -sum(map(self._cost_list.__getitem__, word))
