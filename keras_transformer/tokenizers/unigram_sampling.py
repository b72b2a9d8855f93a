"""Subword regularisation: the segmentations of a unigram model, drawn by their probabilities."""

import itertools
import math
import threading

import numpy as np

from keras_transformer.tokenizers.model_pieces import ModelPieces
from keras_transformer.tokenizers.random_keys import drawn, mixed
from keras_transformer.tokenizers.words_of_pieces import Spelling, Words

_CACHED = 1 << 20  # words that are remembered, and pieces at places of them, 24 bytes each
_BITS = 32  # of a random number


class UnigramSampling:
    """Cuts sentences into other pieces, drawn by their probabilities (Kudo, 2018, equation 8).

    Each segmentation of a sentence is drawn with its probability to the power `smoothing`, as
    sentencepiece does where it takes all of them and not only the n best: from the end of each
    word, the piece before is drawn by the probabilities of all that there is in front of it. Words
    are drawn apart, for no piece crosses their bounds.

    Ids of bytes, of UNK and of what users have defined stay.

    Args:
        vocabulary: `ModelPieces` of the type unigram.
        smoothing: Above 0; the smaller, the more alike are the probabilities.

    Call arguments:
        ids: int `(I,)`, those of the sentences one after the other, without START and END, as the
            tokenizer gives them.
        lengths: Number of ids of each sentence, `(B,)`.
        keys: uint64 `(B,)`: equal ones give equal pieces.

    Returns:
        ids, int32, and lengths, int64 `(B,)`.
    """

    def __init__(self, vocabulary: ModelPieces, smoothing: float) -> None:
        self._pieces = vocabulary.pieces
        self._spelling = Spelling(vocabulary, ~vocabulary.normal)
        scores = smoothing * vocabulary.scores.astype(np.float64)
        # Also what pieces begin with, where a longer one may be found.
        self._found: dict[str, tuple[int, float] | None] = {}
        for id in np.flatnonzero(vocabulary.normal).tolist():
            piece = vocabulary.pieces[id]
            self._found[piece] = id, float(scores[id])
            for i in range(1, len(piece)):
                self._found.setdefault(piece[:i])
        self._lock = threading.Lock()
        self._forget()

    def _forget(self):
        """Begins with no words: what is remembered is bounded, and makes no difference."""
        self._words = {}  # the number of each word's first place, by a hash
        self._places = 0  # of all words
        # The ways into each place: its number, and in the lower bits the sum of the probabilities
        # up to this way; the piece's id; where in the word it begins.
        self._ways_in = np.zeros((3, 0), np.int64)

    def __call__(
        self, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        words = Words(self._spelling, ids, lengths)
        with self._lock:  # two datasets may read at once
            home = self._look_up(words)
            sums, into, lefts = self._ways_in
        changed = home >= 0
        first = words.starts[words.firsts]
        place_in_sentence = words.places[words.firsts]
        word = np.flatnonzero(changed)
        end = words.word_sizes[word]
        keys = keys[words.sentence[words.firsts]]
        places, pieces = [], []
        while len(word):
            random = drawn(keys[word], place_in_sentence[word], end) >> np.uint64(64 - _BITS)
            place = (home[word] + end) << _BITS
            way = np.searchsorted(sums, place + random.astype(np.int64), side="right")
            end = lefts[way]
            places.append(first[word] + end)
            pieces.append(into[way])
            word, end = word[end > 0], end[end > 0]
        nothing = np.zeros(0, np.int64)
        return words.respelled(
            changed, np.concatenate([nothing, *places]), np.concatenate([nothing, *pieces])
        )

    def _look_up(self, words):
        """The number of each word's first place, or less than 0 where it has one segmentation."""
        if not len(words.firsts):
            return np.zeros(0, np.int64)
        turn = (np.arange(len(words.ids)) - words.firsts[words.word]).astype(np.uint64)
        hashes = mixed(mixed(words.ids.astype(np.uint64)) + turn)
        hashes = np.add.reduceat(hashes, words.firsts)
        distinct, examples, number = np.unique(hashes, return_index=True, return_inverse=True)
        if max(len(self._words), self._ways_in.shape[1]) > _CACHED:
            self._forget()
        keys = distinct.tolist()
        missing = [i for i, key in enumerate(keys) if key not in self._words]
        if missing:
            ends = np.append(words.firsts, len(words.ids))
            self._learn(
                (keys[i], words.ids[ends[examples[i]] : ends[examples[i] + 1]].tolist())
                for i in missing
            )
        return np.array([self._words[key] for key in keys])[number]

    def _learn(self, words):
        """Remembers the ways through some words, given as their hashes and ids."""
        new = []
        for key, pieces in words:
            whole = self._spelling.whole[pieces[0]]
            ways = None if whole else self._ways("".join(self._pieces[id] for id in pieces))
            self._words[key] = -1 if ways is None else self._places
            for end, into in enumerate(ways or ()):
                base = (self._places + end) << _BITS
                new += [(base + sum, id, left) for sum, id, left in into]
            self._places += len(ways or ())
        new = np.array(new, np.int64).reshape(-1, 3).T
        self._ways_in = np.concatenate([self._ways_in, new], axis=1)

    def _ways(self, text):
        """The pieces that end at each place of a word, from 0 on.

        Returns:
            For each place a list of (sum of the probabilities up to this piece, in units of 2^-32,
            id, where it begins); None if there is one segmentation, or none.
        """
        ways = [[] for _ in range(len(text) + 1)]
        total = 0.0  # logarithm of the sum over all segmentations up to here
        for start in range(len(text)):
            if start:
                if not ways[start]:
                    continue
                total, ways[start] = _summed(ways[start])
            for end in range(start + 1, len(text) + 1):
                found = self._found.get(text[start:end], ())
                if found == ():
                    break
                if found:
                    id, score = found
                    ways[end].append((total + score, id, start))
        if not ways[-1] or all(len(into) <= 1 for into in ways):
            return None
        ways[-1] = _summed(ways[-1])[1]
        return ways


def _summed(ways):
    """The logarithm of the sum of some ways' weights, and the ways with sums of their shares."""
    largest = max(weight for weight, _, _ in ways)
    sums = list(itertools.accumulate(math.exp(weight - largest) for weight, _, _ in ways))
    unit = (1 << _BITS) / sums[-1]  # math, not NumPy, whose exp is not the same on all processors
    shares = [(round(x * unit), *way[1:]) for x, way in zip(sums, ways, strict=True)]
    return largest + math.log(sums[-1]), shares
