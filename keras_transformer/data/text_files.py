"""Sentence pairs in text files: read in blocks, split into training and validation, sampled.

Files may be gzipped, whatever their names. Only a newline ends a line: the other separators of
str.splitlines may occur inside a sentence, and would misalign all following lines. A byte order
mark and carriage returns before newlines are removed.

All random samples depend only on seed and text: they are the same in any process.
"""

import codecs
import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator

import numpy as np

from keras_transformer.data.pairs import Block, Corpus, Pair, fingerprint_blocks
from keras_transformer.presets import TrainConfig
from keras_transformer.utils import Path, counted

BLOCK = 1 << 20  # bytes read at once
CHUNK = 1 << 20  # rows considered at once
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
            a table does not have two columns, a table is given with a target, or the numbers in
            the names of two files differ that patterns put together.

    Example:

    >>> pairs = read_pairs("a.en", "a.de")
    >>> pairs[0].source, pairs[0].target
    ('two dogs', 'zwei Hunde')
    """
    return list(ParallelText(source_path, target_path, option))


class ParallelText:
    """Parallel text: one sentence per line, the translation on the same line of another file.

    Each iteration reads the files again, a megabyte at a time, and yields `Pair`s. The arguments
    are those of `read_pairs`. `files` is a list of (source file, target file), the latter None for
    a table.
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
                f"{len(targets)}: each source file must have a target file."
            )
        self.files = list(zip(sources, targets, strict=True))
        for pair in zip(sources, targets, strict=True) if len(sources) > 1 else ():
            first, second = (re.findall(r"\d+", os.path.basename(path)) for path in pair)
            if first != second:
                raise ValueError(
                    f"{pair[0]} would go with {pair[1]}: give both the same numbers in their names."
                )

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
                    f"{path} line {number} has {counted(len(row), 'column')}, expected 2."
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


def iterate_lines(path: Path) -> Iterator[list[bytes]]:
    """Yields the lines of a UTF-8 file without their ends, in lists of about a megabyte."""
    count = 0
    try:
        with open(path, "rb") as file:
            is_packed = file.peek(2)[:2] == GZIPPED or os.fspath(path).endswith(".gz")
            for text in _read_whole_lines(gzip.open(file) if is_packed else file):
                lines = text.split(b"\n")
                try:
                    text.decode()
                except UnicodeDecodeError as error:
                    number = count + 1 + text.count(b"\n", 0, error.start)
                    byte = error.start - text.rfind(b"\n", 0, error.start)
                    raise ValueError(
                        f"{path} line {number} is not valid UTF-8 at byte {byte}: convert the file."
                    ) from None
                if b"\r" in text:
                    lines = [line.removesuffix(b"\r") for line in lines]
                count += len(lines)
                yield lines
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({str(error).rstrip('.')}): it is truncated or corrupted."
        ) from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    if not count:
        raise ValueError(f"{path} is empty: expected one sentence per line.")


def _find_files(pattern):
    """Returns the files that match a name or a pattern such as `part-*.en.gz`, sorted by name."""
    pattern = os.fspath(pattern)
    names = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
    if not names:
        raise ValueError(f"No file matches {pattern}: check the path.")
    return names


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


# Training and validation.


class TrainingText:
    """Parallel text without its validation set, read in blocks.

    No source is in both sets. Whether it is held out depends on a hash of the seed and its text
    alone, not on the order or size of the corpus.

    The constructor reads the text for the fingerprint of the training pairs. `valid` is a list of
    the pairs held out: a share of the distinct sources.
    """

    def __init__(self, text: ParallelText, valid_fraction: float | None, seed: int) -> None:
        self._text = text
        self._seed = seed
        self._bound = None if valid_fraction is None else int(valid_fraction * 2.0**64)
        self.valid: list[Pair] = []

        def training_blocks():
            for block, held_out in self._split_blocks():
                self.valid += decode(held_out)
                yield block

        self.fingerprint = fingerprint_blocks(training_blocks())
        pairs = self.fingerprint["pairs"]
        if self._bound is not None and not (pairs and self.valid):
            empty = "validation" if pairs else "training"
            raise ValueError(
                f"valid_fraction={valid_fraction} leaves no pairs for {empty}: change it, or pass "
                "a validation set by --valid-source."
            )

    def __len__(self) -> int:
        return int(self.fingerprint["pairs"])

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[Block]:
        """Reads the training pairs in blocks; only those with the given numbers, ascending."""
        start = 0
        for (sources, targets), _ in self._split_blocks():
            if rows is None:
                yield sources, targets
                continue
            end = start + len(sources)
            first, last = np.searchsorted(rows, [start, end])
            chosen = (rows[first:last] - start).tolist()
            yield [sources[row] for row in chosen], [targets[row] for row in chosen]
            start = end

    def _split_blocks(self) -> Iterator[tuple[Block, Block]]:
        """Yields blocks of training pairs, each with the pairs held out."""
        for sources, targets in self._text.blocks():
            if self._bound is None:
                yield (sources, targets), ([], [])
                continue
            kept: Block = ([], [])
            held_out: Block = ([], [])
            checksums = np.fromiter(map(zlib.crc32, sources), np.uint64, len(sources))
            drawn = (hash_numbers(checksums, self._seed) < np.uint64(self._bound)).tolist()
            for source, target, is_drawn in zip(sources, targets, drawn, strict=True):
                part = held_out if is_drawn else kept
                part[0].append(source)
                part[1].append(target)
            yield kept, held_out


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """Samples different numbers below `count`: ascending int64, `(min(count, size),)`."""
    rows, draws = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for start in range(0, count, CHUNK):
        more = np.arange(start, min(start + CHUNK, count))
        rows = np.concatenate([rows, more])
        draws = np.concatenate([draws, hash_numbers(more.astype(np.uint64), seed)])
        if len(rows) > size:
            kept = np.argpartition(draws, size - 1)[:size]
            rows, draws = rows[kept], draws[kept]
    return np.sort(rows)


def hash_numbers(values: np.ndarray, seed: int) -> np.ndarray:
    """Returns pseudorandom numbers for values `(N,)` uint64 that depend on the seed.

    The last step of splitmix64 (Steele et al., 2014).
    """
    numbers = values + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


# The text of a configuration.


def load_corpus(config: TrainConfig) -> Corpus:
    """Reads the sentence pairs of a configuration: text files have no test set."""
    if config.train_source is None:
        from keras_transformer.data.dates import LANGUAGES, dates

        return dates(config.languages or LANGUAGES)
    if config.valid_fraction is None:
        pairs = read_pairs(config.train_source, config.train_target)
        return Corpus(pairs, load_valid(config), [])
    parallel = ParallelText(config.train_source, config.train_target)
    text = TrainingText(parallel, config.valid_fraction, config.seed)
    return Corpus([pair for block in text.blocks() for pair in decode(block)], text.valid, [])


def load_valid(config: TrainConfig) -> list[Pair]:
    """Reads the validation pairs; the training pairs too only if necessary."""
    if config.valid_source is None:
        return load_corpus(config).valid
    return read_pairs(config.valid_source, config.valid_target)
