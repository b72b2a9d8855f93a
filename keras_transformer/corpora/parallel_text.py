"""Sentence pairs in text files, read as often as they are wanted and never as a whole."""

from collections.abc import Iterator
from typing import TypeAlias

from keras_transformer.corpora.lines import find_files, is_table, iterate_lines
from keras_transformer.corpora.pair import Pair
from keras_transformer.typing import Path
from keras_transformer.wording import counted

# Sources and as many targets, UTF-8.
Block: TypeAlias = tuple[list[bytes], list[bytes]]


class ParallelText:
    """Parallel text: one sentence per line, the translation on the same line of another file.

    Iterating over it reads the files anew, a megabyte at a time, and gives `Pair`s.

    Args:
        source: Name of the file of source sentences, or of a `.tsv` file with both; or a pattern
            such as `part-*.en.gz`, for the files that match it, in the order of their names.
        target: Of the target sentences, in as many files; None for tables.
        option: The option of the command line that names the target, for errors.

    Attributes:
        files: List of pairs of names, of a source file and of its target file, None for a table.

    Raises:
        ValueError: If a pattern matches nothing, there are not as many files of targets, what has
            no target file is no table, or what has one is a table. While it is read, if a file is
            missing, empty or not UTF-8, two files that belong together differ in length, or a row
            of a table does not have two columns.
    """

    def __init__(
        self, source: Path, target: Path | None = None, option: str = "the target file"
    ) -> None:
        sources = find_files(source)
        if target is None:
            for path in sources:
                if not is_table(path):
                    raise ValueError(
                        f"{path} has no target file beside it: name one, or give a .tsv file with "
                        "both."
                    )
            self.files: list[tuple[str, str | None]] = [(path, None) for path in sources]
            return
        targets = find_files(target)
        for path in filter(is_table, (*sources, *targets)):
            advice = f"leave out {option}"
            if path not in sources:
                advice += ", and give it as the source"
            raise ValueError(f"{path} holds both columns: {advice}.")
        if len(sources) != len(targets):
            raise ValueError(
                f"{source} stands for {counted(len(sources), 'file')} but {target} for "
                f"{len(targets)}: every file of sources needs one of targets, in the order of "
                "their names."
            )
        self.files = list(zip(sources, targets, strict=True))

    def __iter__(self) -> Iterator[Pair]:
        for sources, targets in self.blocks():
            for source, target in zip(sources, targets, strict=True):
                yield Pair(source.decode(), target.decode())

    def blocks(self) -> Iterator[Block]:
        """Reads the pairs, some thousands of them at a time."""
        for source, target in self.files:
            yield from _columns(source) if target is None else _side_by_side(source, target)


def _columns(path):
    """The two columns of a table."""
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


def _side_by_side(source_path, target_path):
    """The lines of two files, as many of each at a time."""
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
            f"{source_path} has {counted(counts[0], 'line')} but {target_path} has {counts[1]:,}: "
            f"{short[1]} ends where {other[1]} still has line {short[0] + 1}; parallel files need "
            "one line for each other's."
        )
