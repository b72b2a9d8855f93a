"""Embeddings that are initialized with word vectors from a file."""

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

BEGINS = "▁"  # starts a piece of SentencePiece that starts a word


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The share of a vocabulary, and of a text, that has a vector.

    Attributes:
        types: Number of pieces in the vocabulary without special ones.
        types_covered: How many of them have a vector.
        tokens: Number of pieces in the text; None without a text.
        tokens_covered: How many of those have a vector.
        width: Numbers of each vector in the file.
        kept_variance: Share of the variance that was kept if vectors were reduced; else None.

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
        text = f"{_share(self.types_covered, self.types)} of the vocabulary"
        if self.tokens is not None:
            text += f" and {_share(self.tokens_covered, self.tokens)} of the running tokens"
        text += f" have a vector of {counted(self.width, 'number')}"
        if self.kept_variance is not None:
            text += f", reduced by PCA, which keeps {self.kept_variance:.0%} of the variance"
        return text


def initialize_embeddings(
    embedding: "PositionalEmbedding",
    tokenizer: Tokenizer,
    path: Path,
    counts: np.ndarray | None = None,
) -> Coverage:
    """Initializes an embedding with word vectors; pieces without one keep their initial values.

    A piece has a vector if it is a whole word of the file: in SentencePiece, what follows `▁`; in
    WordPiece, what does not start with `##`. Other parts of words, and bytes, have none.

    All vectors are multiplied by one factor, so that the root of their mean square is D^-0.5, the
    scale of the embedding's own initial values. It multiplies by √D: GloVe's numbers, of a standard
    deviation near 0.3, would be five times as large as the added positions, and with a shared
    softmax put all probability on a word or two. One factor keeps angles and ratios of lengths.

    Vectors wider than D, such as the usual 300 numbers in the presets up to `small`, are reduced by
    PCA of the used ones, less their mean. Narrower ones, such as in `base`, are refused.

    Args:
        embedding: `PositionalEmbedding`.
        tokenizer: The `Tokenizer` whose ids it embeds.
        path: File of GloVe, word2vec (text or binary) or fastText (.vec), gzipped or not.
        counts: Number of times that each id occurs in a text, `(V,)` integers, for its coverage.

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
    words = _words(tokenizer)
    found = read_vectors(path, words, least_width=embedding.d_model)
    if not found.words:
        raise ValueError(
            f"{path} has a vector for none of the {tokenizer.vocabulary_size:,} pieces of the "
            "vocabulary: is it of this language and case, and are there whole words among these?"
        )
    rows, kept = _fitted(found.rows.astype(np.float64), embedding.d_model, path)
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


def _fitted(rows, d_model, path):
    """Vectors of the width and scale of an embedding; the share of variance kept, or None."""
    kept = None
    if rows.shape[1] > d_model:
        rows, kept = _reduced(rows, d_model)
    deviation = np.sqrt(np.mean(np.square(rows)))
    if not deviation > 0:
        raise ValueError(f"{path} has vectors of zeros only.")
    return rows * (d_model**-0.5 / deviation), kept


def _words(tokenizer: Tokenizer) -> dict[bytes, int]:
    """The ids of the pieces that are whole words, by the word."""
    pieces: Any = tokenizer.pieces(np.arange(tokenizer.vocabulary_size, dtype=np.int32))
    names = [piece.decode() for piece in pieces.numpy().tolist()]
    begins = any(name.startswith(BEGINS) for name in names)
    words = {}
    for id, name in enumerate(names[END + 1 :], start=END + 1):
        if begins:
            is_word, name = name.startswith(BEGINS), name.removeprefix(BEGINS)
        else:
            is_word = not name.startswith(INSIDE)
        if is_word and name and BEGINS not in name:
            words[name.encode()] = id
    return words


def _reduced(rows, width):
    """Rows by their principal components, and the share of the variance in those."""
    centered = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(centered.T @ centered)
    variances, axes = np.maximum(variances[::-1], 0), axes[:, ::-1]
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])]
    axes = axes * np.sign(largest)  # the sign of an axis depends on the library
    total = variances.sum()
    kept = float(variances[:width].sum() / total) if total > 0 else 1.0
    return centered @ axes[:, :width], kept


def _share(part, whole):
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"
