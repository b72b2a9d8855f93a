"""Sentences of pieces as words, which are cut without regard to one another."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.tokenizers.model_pieces import SPACE, ModelPieces


class Spelling:
    """How many characters the pieces of a vocabulary have, and where they begin words.

    Args:
        vocabulary: `ModelPieces`.
        whole: Which pieces are taken as they are, bool `(V,)`: they count as one character, and
            what stands before one has nothing to do with what comes after it.

    Attributes:
        sizes: Number of characters, `(V,)` int64.
        whole: As given.
        begins: Whether a word begins with the piece, bool `(V,)`.
    """

    def __init__(self, vocabulary: ModelPieces, whole: np.ndarray) -> None:
        sizes = np.array([len(piece) for piece in vocabulary.pieces])
        self.sizes = np.where(whole, 1, sizes)
        self.whole = whole
        self.begins = whole.copy()
        if not vocabulary.cross_words:
            self.begins |= [piece[:1] == SPACE for piece in vocabulary.pieces]


class Words:
    """The words of a batch of sentences.

    Args:
        spelling: `Spelling`.
        ids: Of the sentences' pieces one after the other, `(I,)`.
        lengths: Number of pieces of each, `(B,)`.

    Attributes:
        ids: As given.
        sentence: Which sentence each piece is of, `(I,)`.
        sizes: Its characters, `(I,)`.
        starts: Where it begins, in characters of the whole batch, `(I,)`.
        places: Where it begins in its sentence, `(I,)`.
        word: Which word it is of, `(I,)`.
        firsts: The first piece of each word, `(W,)`.
        word_sizes: Characters of each word, `(W,)`.
    """

    def __init__(self, spelling: Spelling, ids: np.ndarray, lengths: np.ndarray) -> None:
        self._lengths = lengths
        self.ids = ids
        self.sentence = np.repeat(np.arange(len(lengths)), lengths)
        self.sizes = spelling.sizes[ids]
        ends = np.cumsum(self.sizes)
        self._count = int(ends[-1]) if len(ends) else 0
        self.starts = ends - self.sizes
        self._sentence_ends = np.append(0, ends)[np.cumsum(lengths)]
        sentence_starts = np.append(0, self._sentence_ends)[:-1]
        self.places = self.starts - sentence_starts[self.sentence]
        begins = spelling.begins[ids]
        begins[1:] |= spelling.whole[ids[:-1]]
        begins |= self.places == 0
        self.word = np.cumsum(begins) - 1
        self.firsts = np.flatnonzero(begins)
        self.word_sizes = np.diff(self.starts[self.firsts], append=self._count)

    def respelled(
        self, changed: np.ndarray, places: np.ndarray, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sentences with some words in other pieces.

        Args:
            changed: Which words are, bool `(W,)`.
            places: Where the new pieces begin, in characters of the whole batch, `(N,)`.
            ids: The new pieces, `(N,)`.

        Returns:
            Ids of the pieces one after the other, int32, and lengths, int64 `(B,)`.
        """
        found = np.full(self._count, -1, np.int32)  # the piece that begins at each character
        kept = ~changed[self.word]
        found[self.starts[kept]] = self.ids[kept]
        found[places] = ids
        begins = found >= 0
        numbers = np.append(0, np.cumsum(begins))[self._sentence_ends]
        return found[begins], np.diff(numbers, prepend=0)


def spread(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers from each start on, as many as its count says, one after the other."""
    ends = np.cumsum(counts)
    shifts = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(len(shifts))


def flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of integers one after the other, and where each begins."""
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    values = np.fromiter((value for row in rows for value in row), np.int64, counts.sum())
    return values, np.cumsum(counts) - counts
