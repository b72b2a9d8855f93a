"""Initializes embeddings with pretrained word vectors, from text files as of GloVe or fastText."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.data.text_files import iterate_lines
from keras_transformer.special_ids import END, UNK
from keras_transformer.tokenizers.tokenizer import INSIDE, SPACE
from keras_transformer.utils import Path

if TYPE_CHECKING:
    from keras_transformer.layers.positional_embedding import PositionalEmbedding
    from keras_transformer.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The share of a vocabulary, and of a text, that has a vector.

    Attributes:
        types: Number of pieces in the vocabulary without special ones.
        types_covered: How many of them have a vector.
        tokens: Number of pieces in the text; None without a text.
        tokens_covered: How many of them have a vector.

    Example:

    >>> str(Coverage(8, 6, None, None))
    '6 of 8 (75.0%) of the vocabulary have a vector'
    """

    types: int
    types_covered: int
    tokens: int | None
    tokens_covered: int | None

    def __str__(self) -> str:
        text = f"{_format_share(self.types_covered, self.types)} of the vocabulary"
        if self.tokens is not None:
            text += f" and {_format_share(self.tokens_covered, self.tokens)} of the running tokens"
        return f"{text} have a vector"


def initialize_embeddings(
    embedding: "PositionalEmbedding",
    tokenizer: "Tokenizer",
    path: Path,
    counts: np.ndarray | None = None,
) -> Coverage:
    """Initializes an embedding with word vectors; pieces without one keep their initial values.

    Only whole words get vectors: in SentencePiece, pieces that start with `▁` (looked up without
    it); in WordPiece, pieces that do not start with `##`.

    All vectors are multiplied by one factor, so that their root mean square is D^-0.5, like the
    embedding's own initial values. GloVe's numbers, unscaled, would be five times as large as the
    positional encodings.

    Args:
        embedding: `PositionalEmbedding`.
        tokenizer: The `Tokenizer` whose ids it embeds.
        path: Text file of GloVe, word2vec or fastText (`.vec`), gzipped or not: a word and D
            numbers in each line. A first line with the number of vectors and D may precede them.
        counts: Frequency of each id in a text, `(V,)` integers, to compute its coverage.

    Returns:
        `Coverage`.

    Raises:
        ValueError: If the file cannot be read, is truncated, has vectors of another width or values
            that are not finite, or has no vector for the vocabulary.

    Example:

    >>> tokenizer = SubwordTokenizer.train(lines, vocabulary_size=8000)
    >>> embedding = PositionalEmbedding(tokenizer.vocabulary_size, 300)
    >>> str(initialize_embeddings(embedding, tokenizer, "glove.6B.300d.txt"))
    '3,210 of 7,996 (40.1%) of the vocabulary have a vector'
    """
    words = _find_words(tokenizer)
    vectors = read_vectors(path, words, embedding.d_model)
    if not vectors:
        raise ValueError(
            f"{path} has no vector for any of the {tokenizer.vocabulary_size:,} pieces of the "
            "vocabulary: check language and case, and that the vocabulary has whole words."
        )
    with np.errstate(over="ignore"):
        rows = np.stack([*vectors.values()]).astype(np.float32)
    deviation = np.sqrt(np.mean(np.square(rows, dtype=np.float64)))
    if not deviation or not np.isfinite(deviation):
        raise ValueError(f"{path} has only zero vectors, or values that are not finite.")
    ids = np.array([words[word] for word in vectors])
    if not embedding.built:
        embedding.build()
    table = np.array(embedding.embeddings)
    table[ids] = rows * (embedding.d_model**-0.5 / deviation)
    embedding.embeddings.assign(table)
    return Coverage(
        types=tokenizer.vocabulary_size - (END + 1),
        types_covered=len(ids),
        tokens=None if counts is None else int(counts[END + 1 :].sum() + counts[UNK]),
        tokens_covered=None if counts is None else int(counts[ids].sum()),
    )


def _find_words(tokenizer: "Tokenizer") -> dict[bytes, int]:
    """Returns the ids of the pieces that are whole words, by the word."""
    pieces: Any = tokenizer.pieces(np.arange(tokenizer.vocabulary_size, dtype=np.int32))
    names = [piece.decode() for piece in pieces.numpy().tolist()]
    begins = any(name.startswith(SPACE) for name in names)
    words = {}
    for id, name in enumerate(names[END + 1 :], start=END + 1):
        if begins:
            is_word, name = name.startswith(SPACE), name.removeprefix(SPACE)
        else:
            is_word = not name.startswith(INSIDE)
        if is_word and name and SPACE not in name:
            words[name.encode()] = id
    return words


def read_vectors(path: Path, words: Collection[bytes], width: int) -> dict[bytes, np.ndarray]:
    """Reads the vectors of given words, float64; of a word that is repeated, the first."""
    found: dict[bytes, np.ndarray] = {}
    lines: Iterator[bytes] = itertools.chain.from_iterable(iterate_lines(path))
    lines = filter(bytes.strip, lines)
    first, number = next(lines, b""), 0
    expected = _read_first_line(first, path, width)
    lines = lines if expected else itertools.chain([first], lines)
    for number, line in enumerate(lines, start=1):
        # A word may have spaces, as some of GloVe's.
        word, *numbers = line.rstrip(b" ").rsplit(b" ", width)
        try:
            if len(numbers) != width:
                raise ValueError
            if word in words and word not in found:
                found[word] = np.array(numbers, np.float64)
        except ValueError:
            raise ValueError(
                f"{path}: vector {number} does not have {width} numbers: the file is corrupted, "
                "truncated or not a text."
            ) from None
    if expected and number < expected:
        raise ValueError(
            f"{path} is truncated: expected {expected} vectors according to its first line, "
            f"received {number}."
        )
    return found


def check_vectors(path: Path, width: int) -> None:
    """Checks the width of vectors by the first line of their file."""
    _read_first_line(next(iterate_lines(path))[0], path, width)


def _read_first_line(line, path, width):
    """Returns the number of vectors if the first line has it, else None; checks the width."""
    fields, count = line.rstrip(b" ").split(b" "), None
    found = len(fields) - 1
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        count, found = map(int, fields)
    if found != width:
        raise ValueError(
            f"{path} must have lines of a word and {width} numbers, the width of the embedding, "
            f"received {line[:40]!r}: use other vectors, or change d_model."
        )
    return count


def _format_share(part, whole):
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"
