"""Reads lines and sentence pairs from text files, in blocks.

Files may be gzipped, whatever their names. Only a newline ends a line: the other separators of
str.splitlines may occur inside a sentence, and would misalign all following lines. A byte order
mark and carriage returns before newlines are removed.
"""

import codecs
import contextlib
import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from typing import IO, TypeAlias, cast

from keras_transformer.data.pairs import Pair
from keras_transformer.utils import Path, counted

# Sources and as many targets, UTF-8.
Block: TypeAlias = tuple[list[bytes], list[bytes]]

BLOCK = 1 << 20  # bytes read at once
GZIPPED = b"\x1f\x8b"  # the first bytes of a gzipped file, which are not valid UTF-8


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a UTF-8 file, gzipped or not, without their ends."""
    return [line.decode() for lines in iterate_lines(path) for line in lines]


def read_pairs(
    source_path: Path, target_path: Path | None = None, option: str = "the target file"
) -> list[Pair]:
    """Reads sentence pairs.

    Args:
        source_path: A file of source sentences, or a `.tsv` (`.tsv.gz`) file with both sides; or a
            pattern such as `part-*.en.gz`, for all files that match it, in the order of their
            names.
        target_path: The target sentences, in as many files; None for a `.tsv` file.
        option: The command line's option for the target, for errors.

    Returns:
        List of `Pair`.

    Raises:
        ValueError: If a file is missing, empty or not UTF-8, the files differ in length, a row of
            a table does not have two columns, or a table is given with a target.

    Example:

    >>> pairs = read_pairs("a.en", "a.de")
    >>> pairs[0].source, pairs[0].target
    ('two dogs', 'zwei Hunde')
    """
    return list(ParallelText(source_path, target_path, option))


class ParallelText:
    """Parallel text: one sentence per line, the translation on the same line of another file.

    Each iteration reads the files again, a megabyte at a time, and yields `Pair`s.

    Args:
        source, target, option: See `read_pairs`.

    Attributes:
        files: List of (source file, target file), the latter None for a table.
    """

    def __init__(
        self, source: Path, target: Path | None = None, option: str = "the target file"
    ) -> None:
        sources = _find_files(source)
        if target is None:
            for path in sources:
                if not is_table(path):
                    raise ValueError(
                        f"{option[0].upper()}{option[1:]} is missing: pass the translations of "
                        f"{path}, or one .tsv file with both columns."
                    )
            self.files: list[tuple[str, str | None]] = [(path, None) for path in sources]
            return
        targets = _find_files(target)
        for path in filter(is_table, (*sources, *targets)):
            advice = f"omit {option}"
            if path not in sources:
                advice += ", and pass this file as the source"
            raise ValueError(f"{path} has both source and target: {advice}.")
        if len(sources) != len(targets):
            raise ValueError(
                f"{source} matches {counted(len(sources), 'file')}, but {target} matches "
                f"{len(targets)}: each source file must have a target file; files are paired in "
                "the order of their names."
            )
        self.files = list(zip(sources, targets, strict=True))

    def __iter__(self) -> Iterator[Pair]:
        for block in self.blocks():
            yield from decode(block)

    def blocks(self) -> Iterator[Block]:
        """Reads the pairs in blocks of some thousands."""
        for source, target in self.files:
            yield from _read_table(source) if target is None else _read_parallel(source, target)


def decode(block: Block) -> list[Pair]:
    """Returns a block as pairs of strings."""
    return [Pair(source.decode(), target.decode()) for source, target in zip(*block, strict=True)]


def _read_table(path):
    """Yields the two columns of a table."""
    count = 0
    for lines in iterate_lines(path):
        rows = [line.split(b"\t") for line in lines]
        for number, row in enumerate(rows, count + 1):
            if len(row) != 2:
                raise ValueError(
                    f"{path} line {number} has {counted(len(row), 'column')}, expected 2: source, "
                    "a tab, target."
                )
        count += len(rows)
        sources, targets = map(list, zip(*rows, strict=True))
        yield sources, targets


def _read_parallel(source_path, target_path):
    """Yields the lines of two files, equally many of each."""
    readers = iterate_lines(source_path), iterate_lines(target_path)
    count, waiting = 0, ([], [])
    while True:
        waiting = [
            lines or next(reader, []) for lines, reader in zip(waiting, readers, strict=True)
        ]
        size = min(map(len, waiting))
        if not size:
            break
        count += size
        yield waiting[0][:size], waiting[1][:size]
        waiting = [lines[size:] for lines in waiting]
    counts = [
        count + len(lines) + sum(map(len, reader))
        for lines, reader in zip(waiting, readers, strict=True)
    ]
    if counts[0] != counts[1]:
        short, other = sorted(zip(counts, (source_path, target_path), strict=True))
        raise ValueError(
            "Parallel files must have the same number of lines, but "
            f"{source_path} has {counted(counts[0], 'line')} and {target_path} has {counts[1]:,}: "
            f"{short[1]} ends before line {short[0] + 1} of {other[1]}."
        )


def is_table(path: Path) -> bool:
    """Returns whether a file is a table, by its name: `.tsv` or `.tsv.gz`."""
    return os.fspath(path).lower().removesuffix(".gz").endswith(".tsv")


def text_size(path: Path) -> int:
    """Estimates the size of the text in a file, in bytes: four times that of a gzipped file."""
    with open(path, "rb") as file:
        return os.path.getsize(path) * (4 if _is_gzipped(file, path) else 1)


def iterate_lines(path: Path) -> Iterator[list[bytes]]:
    """Yields the lines of a UTF-8 file without their ends, in lists of about a megabyte."""
    count = 0
    with _open_text(path) as file:
        for text in _read_whole_lines(file):
            lines = text.split(b"\n")
            _check_utf8(text, lines, path, count)
            if b"\r" in text:
                lines = [line.removesuffix(b"\r") for line in lines]
            count += len(lines)
            yield lines
    if not count:
        raise ValueError(f"{path} is empty: expected one sentence per line.")


def _find_files(pattern):
    """Returns the files that match a name or a pattern such as `part-*.en.gz`, sorted by name."""
    pattern = os.fspath(pattern)
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [pattern]
    names = sorted(glob.glob(pattern))
    if not names:
        raise ValueError(f"No file matches {pattern}: check the pattern.")
    return names


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file; replaces its errors by a ValueError of one sentence."""
    try:
        with open(path, "rb") as file:
            yield cast(IO[bytes], gzip.open(file)) if _is_gzipped(file, path) else file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({str(error).rstrip('.')}): it is truncated or corrupted; copy "
            "it again."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from error


def _is_gzipped(file, path):
    """Returns whether a file or pipe is gzipped, by its first bytes or its name."""
    return file.peek(2)[:2] == GZIPPED or os.fspath(path).endswith(".gz")


def _read_whole_lines(file):
    """Yields blocks of whole lines of a file, without the last newline."""
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
    """Raises a ValueError that names the first invalid line; `count` lines precede these."""
    try:
        text.decode()
        return
    except UnicodeDecodeError:
        pass  # find the line
    for number, line in enumerate(lines, count + 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} line {number} is not valid UTF-8 at byte {error.start + 1}: convert the "
                "file to UTF-8."
            ) from None
