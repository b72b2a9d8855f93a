"""Initializes embeddings with pretrained word vectors."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.special_ids import END, UNK
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.tokenizers.vocabularies import INSIDE
from keras_transformer.tokenizers.word_vectors import read_vectors
from keras_transformer.utils import Path, counted

if TYPE_CHECKING:
    from keras_transformer.layers.positional_embedding import PositionalEmbedding

WORD_START = "▁"  # starts a piece of SentencePiece that starts a word


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The share of a vocabulary, and of a text, that has a vector.

    Attributes:
        types: Number of pieces in the vocabulary without special ones.
        types_covered: How many of them have a vector.
        tokens: Number of pieces in the text; None without a text.
        tokens_covered: How many of them have a vector.
        width: Width of the vectors in the file.
        kept_variance: Share of the variance that was kept, if PCA reduced the vectors; else None.

    Example:

    >>> str(Coverage(8, 6, None, None, 300, None))
    '6 of 8 (75.0%) of the vocabulary have a vector of 300 numbers'
    """

    types: int
    types_covered: int
    tokens: int | None
    tokens_covered: int | None
    width: int
    kept_variance: float | None

    def __str__(self) -> str:
        text = f"{_format_share(self.types_covered, self.types)} of the vocabulary"
        if self.tokens is not None:
            text += f" and {_format_share(self.tokens_covered, self.tokens)} of the running tokens"
        text += f" have a vector of {counted(self.width, 'number')}"
        if self.kept_variance is not None:
            text += f", reduced by PCA, which retains {self.kept_variance:.0%} of the variance"
        return text


def initialize_embeddings(
    embedding: "PositionalEmbedding",
    tokenizer: Tokenizer,
    path: Path,
    counts: np.ndarray | None = None,
) -> Coverage:
    """Initializes an embedding with word vectors; pieces without one keep their initial values.

    Only whole words get vectors: in SentencePiece, pieces that start with `▁` (looked up without
    it); in WordPiece, pieces that do not start with `##`.

    All vectors are multiplied by one factor, which preserves angles and ratios of lengths, so that
    their root mean square is D^-0.5, like the embedding's own initial values. GloVe's numbers,
    unscaled, would be five times as large as the positional encodings, and with a shared output
    projection all probability would be on a word or two.

    Vectors wider than D are centered and reduced by PCA of the used ones; narrower ones raise an
    error.

    Args:
        embedding: `PositionalEmbedding`.
        tokenizer: The `Tokenizer` whose ids it embeds.
        path: File of GloVe, word2vec (text or binary) or fastText (.vec), gzipped or not.
        counts: Frequency of each id in a text, `(V,)` integers, to compute its coverage.

    Returns:
        `Coverage`.

    Raises:
        ValueError: If the file has no vectors, none for the vocabulary, or too narrow ones.

    Example:

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> embedding = PositionalEmbedding(tokenizer.vocabulary_size, 300)
    >>> str(initialize_embeddings(embedding, tokenizer, "glove.6B.300d.txt"))
    '3,210 of 7,996 (40.1%) of the vocabulary have a vector of 300 numbers'
    """
    words = _find_words(tokenizer)
    found = read_vectors(path, words, min_width=embedding.d_model)
    if not found.words:
        raise ValueError(
            f"{path} has no vector for any of the {tokenizer.vocabulary_size:,} pieces of the "
            "vocabulary: check language and case, and that the vocabulary has whole words."
        )
    rows, kept = _resize_and_scale(found.rows.astype(np.float64), embedding.d_model, path)
    ids = np.array([words[word] for word in found.words])
    if not embedding.built:
        embedding.build()
    table = np.array(embedding.embeddings)
    table[ids] = rows
    embedding.embeddings.assign(table)
    return Coverage(
        types=tokenizer.vocabulary_size - (END + 1),
        types_covered=len(ids),
        tokens=None if counts is None else int(counts[END + 1 :].sum() + counts[UNK]),
        tokens_covered=None if counts is None else int(counts[ids].sum()),
        width=found.width,
        kept_variance=kept,
    )


def _resize_and_scale(rows, d_model, path):
    """Returns vectors with the width and scale of an embedding, and the variance kept, or None."""
    kept = None
    if rows.shape[1] > d_model:
        rows, kept = _reduce_by_pca(rows, d_model)
    deviation = np.sqrt(np.mean(np.square(rows)))
    if not deviation > 0:
        raise ValueError(f"{path} has only zero vectors.")
    return rows * (d_model**-0.5 / deviation), kept


def _find_words(tokenizer: Tokenizer) -> dict[bytes, int]:
    """Returns the ids of the pieces that are whole words, by the word."""
    pieces: Any = tokenizer.pieces(np.arange(tokenizer.vocabulary_size, dtype=np.int32))
    names = [piece.decode() for piece in pieces.numpy().tolist()]
    begins = any(name.startswith(WORD_START) for name in names)
    words = {}
    for id, name in enumerate(names[END + 1 :], start=END + 1):
        if begins:
            is_word, name = name.startswith(WORD_START), name.removeprefix(WORD_START)
        else:
            is_word = not name.startswith(INSIDE)
        if is_word and name and WORD_START not in name:
            words[name.encode()] = id
    return words


def _reduce_by_pca(rows, width):
    """Projects rows to their principal components; returns also the share of variance kept."""
    centered = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centered.T @ centered)
    variances, axes = np.maximum(variances[::-1], 0), axes[:, ::-1]
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])]
    axes = axes * np.sign(largest)  # the sign of an axis depends on the library
    total = variances.sum()
    kept = float(variances[:width].sum() / total) if total > 0 else 1.0
    return centered @ axes[:, :width], kept


def _format_share(part, whole):
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"
