"""Parallel text: one sentence per line, the translation on the same line of another file.

Files may be gzipped (`.gz`); a `.tsv` file holds source and target in two columns.
"""

import gzip
import itertools
import os
import zlib

from keras_transformer.corpora.pair import Pair
from keras_transformer.typing import Path


def read_lines(path: Path) -> list[str]:
    """Reads a text file.

    Args:
        path: Of a UTF-8 file, gzipped when the name ends in `.gz`.

    Returns:
        List of lines without their ends.

    Raises:
        ValueError: If the file is missing, empty or not UTF-8.
    """
    open_file = gzip.open if str(path).endswith(".gz") else open
    try:
        with open_file(path, "rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read ({reason}): check the path.") from error
    if not data:
        raise ValueError(f"{path} is empty: expected one sentence per line.")
    # Only a newline ends a line: the other separators that str.splitlines knows may stand inside
    # a sentence, and would put all that follow out of step.
    rows = data.removesuffix(b"\n").split(b"\n")
    return [_decode(row, path, number) for number, row in enumerate(rows, 1)]


def read_pairs(source_path: Path, target_path: Path | None = None) -> list[Pair]:
    """Reads sentence pairs.

    Args:
        source_path: Of the source sentences, or of a `.tsv` (`.tsv.gz`) file with both.
        target_path: Of the target sentences; None for a `.tsv` file.

    Returns:
        List of `Pair`.

    Raises:
        ValueError: If a file is missing, empty or not UTF-8, the files differ in length, or a row
            of a table does not have two columns.
    """
    if target_path is None:
        return _read_table(source_path)
    sources, targets = read_lines(source_path), read_lines(target_path)
    if len(sources) != len(targets):
        short, other = sorted([(len(sources), source_path), (len(targets), target_path)])
        raise ValueError(
            f"{source_path} has {len(sources)} lines but {target_path} has {len(targets)}: "
            f"{short[1]} ends where {other[1]} still has line {short[0] + 1}; parallel files need "
            "one line for each other's."
        )
    return list(itertools.starmap(Pair, zip(sources, targets, strict=True)))


def is_table(path: Path) -> bool:
    """Tells whether a file goes by the name of a table: `.tsv` or `.tsv.gz`."""
    return os.fspath(path).removesuffix(".gz").endswith(".tsv")


def _read_table(path):
    if not is_table(path):
        raise ValueError(
            f"{path} has no target file beside it: name one, or give a .tsv file with both."
        )
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"{path} line {number} has {len(columns)} columns, expected 2: source, a tab, "
                "target."
            )
        pairs.append(Pair(*columns))
    return pairs


def _decode(row, path, number):
    try:
        return row.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} line {number} is not valid UTF-8 at byte {error.start + 1}: convert the file "
            "to UTF-8."
        ) from None
