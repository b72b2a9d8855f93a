"""The pieces of a SentencePiece model, and the words that they make up."""

from typing import Any

import numpy as np

SPACE = "▁"  # stands for a space in pieces


class ModelPieces:
    """The vocabulary of a SentencePiece model.

    Args:
        model: A serialized SentencePiece model.

    Attributes:
        model_type: `"bpe"`, `"unigram"`, `"char"` or `"word"`.
        pieces: The pieces, V strings.
        scores: Their scores, float32 `(V,)`.
        normal: Which of them can be segmented in other ways, bool `(V,)`: not special ids, bytes
            and pieces that users have defined.
        unused: Which of them are marked as unused, bool `(V,)`.
        cross_words: Whether a piece has a space elsewhere than at its beginning.
    """

    def __init__(self, model: bytes) -> None:
        from sentencepiece import sentencepiece_model_pb2

        model_proto: Any = vars(sentencepiece_model_pb2)["ModelProto"]  # created at import time
        proto = model_proto.FromString(model)
        spec, types = proto.trainer_spec, model_proto.SentencePiece
        self.model_type: str = spec.ModelType.Name(spec.model_type).lower()
        self.pieces: list[str] = [piece.piece for piece in proto.pieces]
        self.scores = np.array([piece.score for piece in proto.pieces], np.float32)
        kinds = np.array([piece.type for piece in proto.pieces])
        self.normal = kinds == types.NORMAL
        self.unused = kinds == types.UNUSED
        self.cross_words = any(
            SPACE in piece[1:]
            for piece, normal in zip(self.pieces, self.normal, strict=True)
            if normal
        )

    def __len__(self) -> int:
        return len(self.pieces)

    def ids(self) -> dict[str, int]:
        """Returns the id of each normal piece."""
        return {piece: id for id, piece in enumerate(self.pieces) if self.normal[id]}


class Spelling:
    """The length of each piece in characters, and whether it begins a word.

    Args:
        vocabulary: The pieces.
        whole: Which pieces are never segmented, bool `(V,)`: they count as one character, and
            separate the words before and after them.

    Attributes:
        sizes: Number of characters, `(V,)` int64.
        whole: The argument.
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
    """A batch of sentences divided into words, which are segmented independently.

    Args:
        spelling: `Spelling` of the vocabulary.
        ids: Pieces of the sentences, one after the other, `(I,)`.
        lengths: Number of pieces of each sentence, `(B,)`.

    Attributes:
        ids: The argument.
        sentence: The sentence of each piece, `(I,)`.
        sizes: Characters of each piece, `(I,)`.
        starts: Where each piece begins, in characters of the whole batch, `(I,)`.
        places: Where each piece begins in its sentence, `(I,)`.
        word: The word of each piece, `(I,)`.
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

    def replace(
        self, changed: np.ndarray, places: np.ndarray, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sentences with new pieces for some of the words.

        Args:
            changed: Which words have new pieces, bool `(W,)`.
            places: Where the new pieces begin, in characters of the whole batch, `(N,)`.
            ids: The new pieces, `(N,)`.

        Returns:
            Pieces of the sentences, one after the other, int32, and their lengths, int64 `(B,)`.
        """
        found = np.full(self._count, -1, np.int32)  # the piece that begins at each character
        kept = ~changed[self.word]
        found[self.starts[kept]] = self.ids[kept]
        found[places] = ids
        begins = found >= 0
        numbers = np.append(0, np.cumsum(begins))[self._sentence_ends]
        return found[begins], np.diff(numbers, prepend=0)


def concatenated_ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenates ranges: `counts[i]` numbers from `starts[i]` on, for each i."""
    ends = np.cumsum(counts)
    shifts = np.repeat(starts - (ends - counts), counts)
    return shifts + np.arange(len(shifts))
