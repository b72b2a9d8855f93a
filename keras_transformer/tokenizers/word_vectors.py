"""Word vectors in files: GloVe, word2vec text and binary, fastText .vec; gzipped or not.

The format is detected from the content. The file is read once, and only the wanted rows are kept in
memory. Needs NumPy only.
"""

import contextlib
import dataclasses
import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from typing import TypeAlias, cast

import numpy as np

from keras_transformer.utils import Path, counted

GZIP = b"\x1f\x8b"
FASTTEXT = (793712314).to_bytes(4, "little")  # the first bytes of a fastText .bin
MAX_LINE_BYTES = 1 << 20  # bytes, more than any vector has
MAX_WORD_LENGTH = 1 << 12
BLOCK = 1 << 20  # bytes read at once
CONTROLS = bytes(code for code in range(32) if code not in b"\t\r\n")

# Words, and the vectors of the wanted ones.
Rows: TypeAlias = Iterator[tuple[bytes, np.ndarray | None]]


@dataclasses.dataclass
class WordVectors:
    """The wanted words of a file, and their vectors.

    Attributes:
        words: Those that were found, UTF-8.
        rows: Their vectors, float32 `(N, width)`.
        width: Numbers of each vector in the file.
    """

    words: list[bytes]
    rows: np.ndarray
    width: int


def read_vectors(path: Path, wanted: Collection[bytes], least_width: int = 1) -> WordVectors:
    """Reads the vectors of some words.

    Words in the file may have spaces, as some of GloVe's do, or be invalid UTF-8. The first vector
    of a repeated word counts.

    Args:
        path: Name of the file.
        wanted: The words, UTF-8, without spaces.
        least_width: Smallest valid width of a vector.

    Returns:
        `WordVectors`.

    Raises:
        ValueError: If the file cannot be read, is not one of word vectors, is truncated, or has
            vectors that are too narrow, of several widths, or not finite.
    """
    with _explained(path), open(path, "rb", BLOCK) as file:
        width, count, rows = _open(_unpacked(file), path, wanted, least_width)
        return _collect(rows, count, width, path)


def check_vectors(path: Path, least_width: int) -> None:
    """Checks from the beginning of a file that its vectors are wide enough; see `read_vectors`."""
    with _explained(path), open(path, "rb", BLOCK) as file:
        _open(_unpacked(file), path, (), least_width)


@contextlib.contextmanager
def _explained(path):
    """Turns errors in reading a file into a ValueError of one sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} cannot be unpacked ({error}): it is damaged or truncated; download it anew."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error


def _unpacked(file):
    """The content of a file, gzipped or not."""
    if not file.peek(2).startswith(GZIP):
        return file
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), BLOCK)


def _open(
    stream: io.BufferedReader, path: Path, wanted: Collection[bytes], least_width: int
) -> tuple[int, int, Rows]:
    """The width of the vectors, their number, 0 if it is unknown, and an iterator over them."""
    if stream.peek(4).startswith(FASTTEXT):
        raise ValueError(
            f"{path} is a fastText model (.bin), whose vectors are made from parts of words: give "
            "the .vec file that comes with it."
        )
    first = stream.readline(MAX_LINE_BYTES)
    header = first.split()
    if len(header) == 2 and all(number.isdigit() for number in header):
        count, width = map(int, header)
        _check_width(path, width, least_width)
        if _is_text(stream):
            return width, count, _of_text(stream, path, b"", 2, width, wanted)
        return width, count, _of_binary(stream, path, count, width, wanted)
    width = _width(first, path)
    _check_width(path, width, least_width)
    return width, 0, _of_text(stream, path, first, 1, width, wanted)


def _collect(rows: Rows, count: int, width: int, path: Path) -> WordVectors:
    """Reads the wanted vectors, and counts all."""
    found: dict[bytes, np.ndarray] = {}
    received = 0
    for word, values in rows:
        received += 1
        if values is not None and word not in found:
            if not np.isfinite(values).all():
                shown = word.decode(errors="replace")
                raise ValueError(f"{path}: the vector of {shown!r} is not finite.")
            found[word] = values
    if received < count:
        raise ValueError(
            f"{path} is truncated: its first line promises {count} vectors, and there are "
            f"{received}."
        )
    table = np.stack(list(found.values())) if found else np.zeros((0, width), np.float32)
    return WordVectors(list(found), table, width)


def _check_width(path, width, least):
    if width < least:
        raise ValueError(
            f"{path} has vectors of {counted(width, 'number')}, and the embedding is {least} wide: "
            f"take wider vectors, which are reduced, or d_model={width}."
        )


def _width(line, path):
    """The width of the vectors, from the first line of a file without a header."""
    fields = line.rstrip(b" \r\n").split(b" ")
    width = len(fields) - 1
    while width > 0 and not all(map(_is_number, fields[len(fields) - width :])):
        width -= 1  # the word has a space
    if width < 2 or not line.endswith(b"\n"):
        raise ValueError(
            f"{path} holds no word vectors: its first line is neither a word with its numbers nor "
            f"how many there are and how long, but {line[:40]!r}."
        )
    return width


def _is_text(stream):
    """Whether word2vec's text rather than its binary format follows the first line."""
    line = stream.peek(1).partition(b"\n")[0]  # as much of it as is in the buffer
    return line == line.translate(None, CONTROLS) and any(map(_is_number, line.split(b" ")[1:]))


def _of_text(stream, path, first, number, width, wanted):
    """Yields the word of each line, from line `number` on, and its vector if it is wanted."""
    blank = 0
    line = first or stream.readline(MAX_LINE_BYTES)
    while line:
        line = line.rstrip(b" \r\n")
        spaces = line.count(b" ")
        if line and (blank or spaces < width):
            found = counted(0 if blank else spaces, "number")
            raise ValueError(
                f"{path}: line {blank or number} has {found}, expected {width}; it is damaged or "
                "truncated."
            )
        if line:
            word = line[: line.index(b" ")]
            if spaces > width:
                _check_word(path, number, line.split(b" "), width)
            is_wanted = spaces == width and word in wanted
            values = _numbers(line[len(word) + 1 :], path, number) if is_wanted else None
            yield word, values
        else:
            blank = blank or number  # allowed at the end
        line, number = stream.readline(MAX_LINE_BYTES), number + 1


def _check_word(path, number, fields, width):
    """Refuses a line with too many numbers, rather than a word with spaces."""
    if all(b"." in field and _is_number(field) for field in fields[1:-width]):
        raise ValueError(f"{path}: line {number} has {len(fields) - 1} numbers, expected {width}.")


def _numbers(text, path, number):
    try:
        with np.errstate(over="ignore"):  # too large numbers are refused as infinite
            return np.array([float(field) for field in text.split(b" ")]).astype(np.float32)
    except ValueError:
        raise ValueError(f"{path}: line {number} holds something else than numbers.") from None


def _of_binary(stream, path, count, width, wanted):
    """Yields the words of word2vec's binary format, and the vectors of the wanted ones."""
    size, buffer, position = 4 * width, b"", 0
    for number in range(1, count + 1):
        while True:
            space = buffer.find(b" ", position, position + MAX_WORD_LENGTH)
            if 0 <= space < len(buffer) - size:
                break
            if space < 0 and len(buffer) - position >= MAX_WORD_LENGTH:
                raise ValueError(f"{path}: no word begins where vector {number} should be.")
            more = stream.read(BLOCK)
            if not more:
                return
            buffer, position = buffer[position:] + more, 0
        word = buffer[position:space].lstrip(b"\n")
        values = None
        if word in wanted:
            values = np.frombuffer(buffer, "<f4", width, space + 1).astype(np.float32)
        position = space + 1 + size
        yield word, values


def _is_number(field):
    try:
        float(field)
    except ValueError:
        return False
    return True
