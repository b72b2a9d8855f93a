"""The lines of text files, a block at a time, whatever the size of the files.

Files may be gzipped, whatever their names. Only a newline ends a line: the other separators that
str.splitlines knows may stand inside a sentence, and would put all that follow out of step. A byte
order mark and carriage returns before newlines are no text, and are taken off.
"""

import codecs
import contextlib
import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import IO, cast

from keras_transformer.typing import Path

BLOCK = 1 << 20  # bytes read at once
GZIPPED = b"\x1f\x8b"  # what a gzipped file begins with, and no UTF-8 text


def find_files(pattern: Path) -> list[str]:
    """Finds the files that a name or a pattern such as `part-*.en.gz` stands for, sorted by name.

    Raises:
        ValueError: If it is a pattern that matches nothing.
    """
    pattern = os.fspath(pattern)
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [pattern]
    names = sorted(glob.glob(pattern))
    if not names:
        raise ValueError(f"{pattern} matches no file: check the pattern.")
    return names


def iterate_lines(path: Path) -> Iterator[list[bytes]]:
    """Reads a text file.

    Args:
        path: Of a UTF-8 file, gzipped or not.

    Yields:
        Lists of lines without their ends, valid UTF-8, of a megabyte or so together.

    Raises:
        ValueError: If the file is missing, empty, damaged or not UTF-8.
    """
    count = 0
    with _reading(path) as file:
        for text in _whole_lines(file):
            lines = text.split(b"\n")
            _check_utf8(text, lines, path, count)
            if b"\r" in text:
                lines = [line.removesuffix(b"\r") for line in lines]
            count += len(lines)
            yield lines
    if not count:
        raise ValueError(f"{path} is empty: expected one sentence per line.")


def text_size(path: Path) -> int:
    """Bytes of the text in a file, about: a gzipped one has four times its size."""
    with open(path, "rb") as file:
        return os.path.getsize(path) * (4 if _is_gzipped(file, path) else 1)


def is_table(path: Path) -> bool:
    """Tells whether a file goes by the name of a table: `.tsv` or `.tsv.gz`."""
    return os.fspath(path).lower().removesuffix(".gz").endswith(".tsv")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[IO[bytes]]:
    """The open file; what goes wrong with it in one sentence."""
    try:
        with open(path, "rb") as file:
            yield cast(IO[bytes], gzip.open(file)) if _is_gzipped(file, path) else file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({str(error).rstrip('.')}): it is truncated or corrupted, copy "
            "it again."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from error


def _is_gzipped(file, path):
    """Tells by the first bytes, which may be those of a pipe, and by the name."""
    return file.peek(2)[:2] == GZIPPED or os.fspath(path).endswith(".gz")


def _whole_lines(file):
    """Blocks of a file that end where lines do, without the last newline."""
    parts, first = [], True
    while block := file.read(BLOCK):
        if first:
            block, first = block.removeprefix(codecs.BOM_UTF8), False
        head, newline, tail = block.rpartition(b"\n")
        if newline:
            yield b"".join([*parts, head])
            parts = []
        parts.append(tail)
    if rest := b"".join(parts):
        yield rest


def _check_utf8(text, lines, path, count):
    """Refuses bytes that are no UTF-8, naming the line; `count` lines are before these."""
    try:
        text.decode()
        return
    except UnicodeDecodeError:
        pass  # which line it is in, a second look tells
    for number, line in enumerate(lines, count + 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} line {number} is not valid UTF-8 at byte {error.start + 1}: convert the "
                "file to UTF-8."
            ) from None
