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
    """The requested words of a file, and their vectors.

    Attributes:
        words: The words that were found, UTF-8.
        rows: Their vectors, float32 `(N, width)`.
        width: Width of each vector.
    """

    words: list[bytes]
    rows: np.ndarray
    width: int


def read_vectors(path: Path, wanted: Collection[bytes], min_width: int = 1) -> WordVectors:
    """Reads the vectors of given words.

    Words in the file may have spaces, like some of GloVe's, or be invalid UTF-8. If a word is
    repeated, its first vector is used.

    Args:
        path: Name of the file.
        wanted: The words, UTF-8, without spaces.
        min_width: Smallest valid width of a vector.

    Returns:
        `WordVectors`.

    Raises:
        ValueError: If the file cannot be read, is not one of word vectors, is truncated, or has
            vectors that are too narrow, of several widths, or not finite.
    """
    with _wrap_errors(path), open(path, "rb", BLOCK) as file:
        width, count, rows = _read_header(_decompress(file), path, wanted, min_width)
        return _collect_rows(rows, count, width, path)


def check_vectors(path: Path, min_width: int) -> None:
    """Checks, reading only the first lines, that vectors are wide enough; see `read_vectors`."""
    with _wrap_errors(path), open(path, "rb", BLOCK) as file:
        _read_header(_decompress(file), path, (), min_width)


@contextlib.contextmanager
def _wrap_errors(path):
    """Replaces errors in reading a file by a ValueError of one sentence."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} cannot be decompressed ({error}): it is corrupted or truncated; download it "
            "again."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error


def _decompress(file):
    """Returns the content of a file, gzipped or not, as a stream."""
    if not file.peek(2).startswith(GZIP):
        return file
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), BLOCK)


def _read_header(
    stream: io.BufferedReader, path: Path, wanted: Collection[bytes], min_width: int
) -> tuple[int, int, Rows]:
    """Returns the width of the vectors, their number (0 if unknown), and an iterator over them."""
    if stream.peek(4).startswith(FASTTEXT):
        raise ValueError(
            f"{path} is a fastText model (.bin), which is not supported: pass the .vec file that "
            "comes with it."
        )
    first = stream.readline(MAX_LINE_BYTES)
    header = first.split()
    if len(header) == 2 and all(number.isdigit() for number in header):
        count, width = map(int, header)
        _check_width(path, width, min_width)
        if _is_text(stream):
            return width, count, _read_text(stream, path, b"", 2, width, wanted)
        return width, count, _read_binary(stream, path, count, width, wanted)
    width = _infer_width(first, path)
    _check_width(path, width, min_width)
    return width, 0, _read_text(stream, path, first, 1, width, wanted)


def _collect_rows(rows: Rows, count: int, width: int, path: Path) -> WordVectors:
    """Collects the requested vectors, and checks that the file has all of its vectors."""
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
            f"{path} is truncated: expected {count} vectors according to its first line, received "
            f"{received}."
        )
    table = np.stack(list(found.values())) if found else np.zeros((0, width), np.float32)
    return WordVectors(list(found), table, width)


def _check_width(path, width, minimum):
    if width < minimum:
        raise ValueError(
            f"{path} has vectors of {counted(width, 'number')}, but the embedding is {minimum} "
            f"wide: use wider vectors, which are reduced, or d_model={width}."
        )


def _infer_width(line, path):
    """Returns the width of the vectors, from the first line of a file without a header."""
    fields = line.rstrip(b" \r\n").split(b" ")
    width = len(fields) - 1
    while width > 0 and not all(map(_is_number, fields[len(fields) - width :])):
        width -= 1  # the word has a space
    if width < 2 or not line.endswith(b"\n"):
        raise ValueError(
            f"{path} is not a file of word vectors: its first line must be a word and its vector, "
            f"or the number of vectors and their width, received {line[:40]!r}."
        )
    return width


def _is_text(stream):
    """Returns whether word2vec's text rather than its binary format follows the first line."""
    line = stream.peek(1).partition(b"\n")[0]  # as much of it as is in the buffer
    return line == line.translate(None, CONTROLS) and any(map(_is_number, line.split(b" ")[1:]))


def _read_text(stream, path, first, number, width, wanted):
    """Yields the word of each line, from line `number` on, and its vector if it is wanted."""
    blank = 0
    line = first or stream.readline(MAX_LINE_BYTES)
    while line:
        line = line.rstrip(b" \r\n")
        spaces = line.count(b" ")
        if line and (blank or spaces < width):
            found = counted(0 if blank else spaces, "number")
            raise ValueError(
                f"{path}: line {blank or number} has {found}, expected {width}; the file is "
                "corrupted or truncated."
            )
        if line:
            word = line[: line.index(b" ")]
            if spaces > width:
                _check_word(path, number, line.split(b" "), width)
            is_wanted = spaces == width and word in wanted
            values = _parse_numbers(line[len(word) + 1 :], path, number) if is_wanted else None
            yield word, values
        else:
            blank = blank or number  # allowed at the end
        line, number = stream.readline(MAX_LINE_BYTES), number + 1


def _check_word(path, number, fields, width):
    """Raises for a line with too many numbers, as opposed to a word with spaces."""
    if all(b"." in field and _is_number(field) for field in fields[1:-width]):
        raise ValueError(f"{path}: line {number} has {len(fields) - 1} numbers, expected {width}.")


def _parse_numbers(text, path, number):
    try:
        with np.errstate(over="ignore"):  # too large numbers are refused as infinite
            return np.array([float(field) for field in text.split(b" ")]).astype(np.float32)
    except ValueError:
        raise ValueError(f"{path}: line {number} has values that are not numbers.") from None


def _read_binary(stream, path, count, width, wanted):
    """Yields the words of word2vec's binary format, and the vectors of the wanted ones."""
    size, buffer, position = 4 * width, b"", 0
    for number in range(1, count + 1):
        while True:
            space = buffer.find(b" ", position, position + MAX_WORD_LENGTH)
            if 0 <= space < len(buffer) - size:
                break
            if space < 0 and len(buffer) - position >= MAX_WORD_LENGTH:
                raise ValueError(f"{path}: expected a word before vector {number}, received none.")
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
