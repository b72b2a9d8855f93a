"""Initializes embeddings with pretrained word vectors, from text files as of GloVe or fastText."""

import contextlib
import dataclasses
import gzip
import io
import itertools
import zlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_transformer.special_ids import END, UNK
from keras_transformer.tokenizers.tokenizer import INSIDE, SPACE
from keras_transformer.utils import Path, counted

if TYPE_CHECKING:
    from keras_transformer.layers.positional_embedding import PositionalEmbedding
    from keras_transformer.tokenizers.tokenizer import Tokenizer

GZIP = b"\x1f\x8b"
MAX_LINE_BYTES = 1 << 20  # more than any vector has


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

    All vectors are multiplied by one factor, which preserves angles and ratios of lengths, so that
    their root mean square is D^-0.5, like the embedding's own initial values. GloVe's numbers,
    unscaled, would be five times as large as the positional encodings, and with a shared output
    projection all probability would be on a word or two.

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
    rows = np.stack([*vectors.values()])
    deviation = np.sqrt(np.mean(np.square(rows, dtype=np.float64)))
    if not deviation:
        raise ValueError(f"{path} has only zero vectors.")
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
    """Reads the vectors of given words, float32; of a word that is repeated, the first."""
    found: dict[bytes, np.ndarray] = {}
    with _open(path) as file:
        first = file.readline(MAX_LINE_BYTES)
        expected = _check_first_line(first, path, width)
        lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
        lines = lines if expected else itertools.chain([first], lines)
        number = 0
        for number, line in enumerate(filter(bytes.strip, lines), start=1):
            # A word may have spaces, as some of GloVe's.
            word, *numbers = line.rstrip(b" \r\n").rsplit(b" ", width)
            if len(numbers) != width:
                raise ValueError(
                    f"{path}: vector {number} has {counted(len(numbers), 'number')}, expected "
                    f"{width}; the file is corrupted, truncated or not a text."
                )
            if word in words and word not in found:
                found[word] = _parse(numbers, path, number)
        if expected and number < expected:
            raise ValueError(
                f"{path} is truncated: expected {expected} vectors according to its first line, "
                f"received {number}."
            )
    return found


def check_vectors(path: Path, width: int) -> None:
    """Checks the width of vectors by the first line of their file."""
    with _open(path) as file:
        _check_first_line(file.readline(MAX_LINE_BYTES), path, width)


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedIOBase]:
    """Opens a file, gzipped or not; errors become a ValueError of one sentence."""
    try:
        with open(path, "rb") as file:
            packed = file.peek(2).startswith(GZIP)
            yield cast(io.BufferedIOBase, gzip.GzipFile(fileobj=file)) if packed else file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} cannot be decompressed ({error}): it is corrupted or truncated; download it "
            "again."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error


def _check_first_line(line, path, width):
    """Returns the number of vectors if the first line has it, else None; checks the width."""
    fields, count = line.rstrip(b" \r\n").split(b" "), None
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        count, found = map(int, fields)
    else:
        numbers = itertools.takewhile(_is_number, reversed(fields[1:]))  # the word may have spaces
        found = sum(1 for _ in numbers)
    if not found or not line.endswith(b"\n"):
        raise ValueError(
            f"{path} is not a text file of word vectors: its first line must be a word and its "
            f"vector, or the number of vectors and their width, received {line[:40]!r}."
        )
    if found != width:
        raise ValueError(
            f"{path} has vectors of {counted(found, 'number')}, but the embedding is {width} wide: "
            f"use vectors of that width, or d_model={found}."
        )
    return count


def _parse(numbers, path, number):
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(field) for field in numbers]).astype(np.float32)
    except ValueError:
        vector = np.array([np.nan])
    if not np.isfinite(vector).all():
        raise ValueError(f"{path}: vector {number} has values that are not finite numbers.")
    return vector


def _is_number(field):
    try:
        float(field)
    except ValueError:
        return False
    return True


def _format_share(part, whole):
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"
