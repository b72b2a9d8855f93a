"""The corpus that a configuration names, and the part of it that is held out for validation.

What a seed draws from a corpus is the same in any process, wherever reading it begins.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_transformer.data.pairs import Corpus, Fingerprint, Pair
from keras_transformer.data.text_files import Block, ParallelText, read_pairs
from keras_transformer.presets import TrainConfig
from keras_transformer.tokenizers.subword_sampling import mix_bits
from keras_transformer.utils import Pairs

AT_ONCE = 1 << 20  # rows considered at once


def load_corpus(config: TrainConfig) -> Corpus:
    """Reads the sentence pairs that a configuration names.

    Args:
        config: `TrainConfig`.

    Returns:
        `Corpus`; for text files, without a test part.

    Raises:
        ValueError: If files are missing or invalid, or none or only some of them are named.
    """
    check_names(config)
    if config.train_source is None:
        from keras_transformer.data.dates import LANGUAGES, dates

        return dates(config.languages or LANGUAGES)
    pairs = read_pairs(config.train_source, config.train_target)
    if config.valid_fraction is not None:
        return Corpus(*cut_off(pairs, config.valid_fraction, config.seed), [])
    return Corpus(pairs, load_valid(config), [])


def load_valid(config: TrainConfig) -> list[Pair]:
    """Reads the validation pairs, and no others if it can.

    Raises:
        ValueError: If files are missing or invalid.
    """
    if config.valid_source is None:
        return load_corpus(config).valid
    return read_pairs(config.valid_source, config.valid_target)


def check_names(config: TrainConfig) -> None:
    """Checks that a configuration names all its data.

    Raises:
        ValueError: If it names no data, or only some of the files.
    """
    if config.corpus:
        return
    if config.train_source is None:
        if config.valid_source or config.train_target or config.valid_fraction:
            raise ValueError("--train-source is missing: name it along with the other files.")
        if not (config.dates or config.languages):
            raise ValueError(
                "There is nothing to train on: give text by --train-source and --train-target, a "
                "prepared corpus by --corpus, or --dates for the built-in dates."
            )
    elif config.valid_source is None and config.valid_fraction is None:
        raise ValueError(
            "--valid-source is missing: the best model is chosen by a second corpus; name one, or "
            "have it cut off the first by --valid-fraction 0.02."
        )


def cut_off(pairs: Pairs, fraction: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Splits a validation part off a corpus, so that no source is in both parts.

    Args:
        pairs: The corpus.
        fraction, seed: See `ValidationCut`.

    Returns:
        The training pairs and the validation pairs, in their order.

    Raises:
        ValueError: If there are fewer than two distinct sources.
    """
    sources = [pair[0].encode(errors="replace") for pair in pairs]
    cut = ValidationCut(fraction, seed, [sources] if sources else [])
    parts: tuple[list[Pair], list[Pair]] = ([], [])
    for pair, drawn in zip(pairs, cut.draws(sources).tolist(), strict=True):
        parts[drawn].append(Pair(*pair))
    return parts


class ValidationCut:
    """Decides which pairs are held out for validation, so that no source is in both parts.

    Each distinct source is drawn or not by a number that depends on the seed and its text alone: in
    whatever order a corpus is read, and however much of it, the same sources are drawn. Their share
    is close to `fraction`. If that leaves one part empty, in a small corpus, one source is moved
    there.

    Args:
        fraction: Share of the distinct sources, above 0 and below 1.
        seed: Non-negative int.
        blocks: The corpus, read once: iterable of lists of sources, UTF-8.

    Raises:
        ValueError: If there are fewer than two distinct sources.
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
                _with(draws, sources, draws[at]) for at in (draws.argmin(), draws.argmax())
            )
            least = min(least or low[0], low[0])
            most = max(most or high[1], high[1])
        if least is None or most is None or least == most:
            raise ValueError(
                "The corpus has only one distinct source sentence, so no validation part can be "
                "cut off: give one by --valid-source."
            )
        if least[0] >= self.bound:  # none would be drawn
            self._moved = least[1]
        elif most[0] < self.bound:  # all would be
            self._moved = most[1]

    def draws(self, sources: Sequence[bytes]) -> np.ndarray:
        """Returns which pairs are held out, `(N,)` bool, by their sources."""
        drawn = hash_texts(sources, self.seed) < np.uint64(self.bound)
        if self._moved is not None:
            drawn ^= np.fromiter((source == self._moved for source in sources), bool, len(sources))
        return drawn


def _with(draws, sources, draw):
    """The first and the last, by their texts, of those sources that have the same number."""
    texts = [sources[row] for row in np.flatnonzero(draws == draw)]
    return (int(draw), min(texts)), (int(draw), max(texts))


class TrainingText:
    """Parallel text without its validation part, never read as a whole.

    The constructor reads the text once, for its fingerprint.

    Args:
        text: `ParallelText`.
        valid_fraction: Share of its distinct sources to hold out, see `ValidationCut`; None for
            none.
        seed: Non-negative int.

    Attributes:
        fingerprint: Of the training pairs; see `data.pairs.fingerprint`.
        valid: List of `Pair` held out.

    Raises:
        ValueError: If files are missing or invalid, or no part can be held out.
    """

    def __init__(self, text: ParallelText, valid_fraction: float | None, seed: int) -> None:
        self._text = text
        self._cut = None
        if valid_fraction is not None:
            self._cut = ValidationCut(valid_fraction, seed, (block[0] for block in text.blocks()))
        self.valid: list[Pair] = []
        fingerprint = Fingerprint()
        for (sources, targets), held_out in self._parts():
            fingerprint.add(sources, targets)
            self.valid += [Pair(a.decode(), b.decode()) for a, b in zip(*held_out, strict=True)]
        self.fingerprint = fingerprint.value()

    def __len__(self) -> int:
        return int(self.fingerprint["pairs"])

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[Block]:
        """Reads the training pairs, some thousands at a time.

        Args:
            rows: Only the pairs with these numbers, ascending; by default all.
        """
        start = 0
        for (sources, targets), _ in self._parts():
            if rows is None:
                yield sources, targets
                continue
            end = start + len(sources)
            first, last = np.searchsorted(rows, [start, end])
            chosen = (rows[first:last] - start).tolist()
            yield [sources[row] for row in chosen], [targets[row] for row in chosen]
            start = end

    def _parts(self) -> Iterator[tuple[Block, Block]]:
        """Blocks of training pairs, each with the pairs held out."""
        for sources, targets in self._text.blocks():
            if self._cut is None:
                yield (sources, targets), ([], [])
                continue
            held_out: Block = ([], [])
            kept: Block = ([], [])
            drawn = self._cut.draws(sources).tolist()
            for source, target, away in zip(sources, targets, drawn, strict=True):
                part = held_out if away else kept
                part[0].append(source)
                part[1].append(target)
            yield kept, held_out


def hash_texts(texts: Sequence[bytes], seed: int) -> np.ndarray:
    """Returns a pseudorandom number for each text, `(N,)` uint64; equal for equal texts."""
    return _hash(np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts)), seed)


def draw_rows(count: int, size: int, seed: int) -> np.ndarray:
    """Draws some of the numbers from 0 to `count` without replacement.

    Args:
        count: Non-negative int.
        size: How many to draw; if there are no more than that, all are returned.
        seed: Non-negative int.

    Returns:
        Ascending int64, `(min(count, size),)`.
    """
    rows, draws = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for start in range(0, count, AT_ONCE):
        more = np.arange(start, min(start + AT_ONCE, count))
        rows = np.concatenate([rows, more])
        draws = np.concatenate([draws, _hash(more.astype(np.uint64), seed)])
        if len(rows) > size:
            kept = np.argpartition(draws, size - 1)[:size]
            rows, draws = rows[kept], draws[kept]
    return np.sort(rows)


def _hash(values, seed):
    """Pseudorandom numbers for values `(N,)` uint64, others for each seed."""
    return mix_bits(values + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64)))
