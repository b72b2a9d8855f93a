"""Loads the corpus of a configuration, and splits off a validation set.

All random samples depend only on seed and corpus: they are the same in any process.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_transformer.data.pairs import Corpus, Fingerprint, Pair
from keras_transformer.data.text_files import Block, ParallelText, decode, read_pairs
from keras_transformer.presets import TrainConfig

CHUNK = 1 << 20  # rows considered at once


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


def check_data_options(config: TrainConfig) -> None:
    """Checks that the data options of a configuration are complete."""
    if config.corpus:
        return
    if config.train_source is None:
        if config.valid_source or config.train_target or config.valid_fraction:
            raise ValueError("--train-source is missing: it is required with the other files.")
        if not (config.dates or config.languages):
            raise ValueError(
                "Training data is missing: pass text files by --train-source and --train-target, a "
                "prepared corpus by --corpus, or --dates for the built-in dates."
            )
    elif config.valid_source is None and config.valid_fraction is None:
        raise ValueError(
            "--valid-source is missing: pass a validation set for selecting the best checkpoint, "
            "or hold out part of the training data with --valid-fraction 0.02."
        )


class ValidationSplit:
    """Decides which pairs are held out for validation, so that no source is in both sets.

    Whether a source is held out depends on a hash of the seed and its text alone, not on the order
    or size of the corpus. The share of held-out sources is close to `fraction`. If one set would be
    empty, in a small corpus, one source is moved there.

    Args:
        fraction: Share of the distinct sources, above 0 and below 1.
        blocks: The corpus, read once: iterable of lists of sources, UTF-8.
    """

    def __init__(self, fraction: float, seed: int, blocks: Iterable[Sequence[bytes]]) -> None:
        self.seed = seed
        self.bound = int(fraction * 2.0**64)
        self._moved: bytes | None = None
        least: tuple[int, bytes] | None = None
        most: tuple[int, bytes] | None = None
        for sources in blocks:
            draws = hash_texts(sources, seed)
            low, high = (
                _find_extremes(draws, sources, draws[at]) for at in (draws.argmin(), draws.argmax())
            )
            least = min(least or low[0], low[0])
            most = max(most or high[1], high[1])
        if least is None or most is None or least == most:
            raise ValueError(
                "The corpus has only one distinct source sentence, so no validation set can be "
                "split off: pass one by --valid-source."
            )
        if least[0] >= self.bound:  # none would be held out
            self._moved = least[1]
        elif most[0] < self.bound:  # all would be
            self._moved = most[1]

    def is_held_out(self, sources: Sequence[bytes]) -> np.ndarray:
        """Returns which pairs are held out, `(N,)` bool, by their sources."""
        drawn = hash_texts(sources, self.seed) < np.uint64(self.bound)
        if self._moved is not None:
            drawn ^= np.fromiter((source == self._moved for source in sources), bool, len(sources))
        return drawn


def _find_extremes(draws, sources, draw):
    """Returns the first and the last text of the sources with the same hash."""
    texts = [sources[row] for row in np.flatnonzero(draws == draw)]
    return (int(draw), min(texts)), (int(draw), max(texts))


class TrainingText:
    """Parallel text without its validation set, read in blocks.

    The constructor reads the text once, for its fingerprint.

    Attributes:
        fingerprint: Of the training pairs; see `data.pairs.fingerprint`.
        valid: List of `Pair` held out, a share of the distinct sources: see `ValidationSplit`.
    """

    def __init__(self, text: ParallelText, valid_fraction: float | None, seed: int) -> None:
        self._text = text
        self._split = None
        if valid_fraction is not None:
            self._split = ValidationSplit(
                valid_fraction, seed, (block[0] for block in text.blocks())
            )
        self.valid: list[Pair] = []
        fingerprint = Fingerprint()
        for (sources, targets), held_out in self._split_blocks():
            fingerprint.add(sources, targets)
            self.valid += decode(held_out)
        self.fingerprint = fingerprint.value()

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
            if self._split is None:
                yield (sources, targets), ([], [])
                continue
            held_out: Block = ([], [])
            kept: Block = ([], [])
            drawn = self._split.is_held_out(sources).tolist()
            for source, target, away in zip(sources, targets, drawn, strict=True):
                part = held_out if away else kept
                part[0].append(source)
                part[1].append(target)
            yield kept, held_out


def hash_texts(texts: Sequence[bytes], seed: int) -> np.ndarray:
    """Returns a pseudorandom number for each text, `(N,)` uint64; equal for equal texts."""
    return _hash(np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts)), seed)


def sample_rows(count: int, size: int, seed: int) -> np.ndarray:
    """Samples different numbers below `count`: ascending int64, `(min(count, size),)`."""
    rows, draws = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for start in range(0, count, CHUNK):
        more = np.arange(start, min(start + CHUNK, count))
        rows = np.concatenate([rows, more])
        draws = np.concatenate([draws, _hash(more.astype(np.uint64), seed)])
        if len(rows) > size:
            kept = np.argpartition(draws, size - 1)[:size]
            rows, draws = rows[kept], draws[kept]
    return np.sort(rows)


def _hash(values, seed):
    """Returns pseudorandom numbers for values `(N,)` uint64 that depend on the seed."""
    return _mix_bits(values + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64)))


def _mix_bits(numbers):
    """Maps uint64 to others that look random: the last step of splitmix64 (Steele et al., 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
