"""The pairs of text files that are trained on, and those that are held back."""

from collections.abc import Iterator

import numpy as np

from keras_transformer.corpora.corpus import Fingerprint
from keras_transformer.corpora.pair import Pair
from keras_transformer.corpora.parallel_text import Block, ParallelText
from keras_transformer.corpora.validation_cut import ValidationCut


class TrainingText:
    """Parallel text without its validation part, never read as a whole.

    Making one reads the text once, to know it by its fingerprint.

    Args:
        text: `ParallelText`.
        valid_fraction: Share of its distinct sources to hold back, as `ValidationCut` does; None
            for none.
        seed: Of the drawing.

    Attributes:
        fingerprint: Of the pairs to train on, as `corpora.corpus.fingerprint` gives it.
        valid: List of `Pair` that are held back.

    Raises:
        ValueError: If files are missing or unfit, or no part can be held back.
    """

    def __init__(self, text: ParallelText, valid_fraction: float | None, seed: int) -> None:
        self._text = text
        self._cut = None
        if valid_fraction is not None:
            self._cut = ValidationCut(valid_fraction, seed, (block[0] for block in text.blocks()))
        self.valid: list[Pair] = []
        fingerprint = Fingerprint()
        for (sources, targets), held_back in self._parts():
            fingerprint.add(sources, targets)
            self.valid += [Pair(a.decode(), b.decode()) for a, b in zip(*held_back, strict=True)]
        self.fingerprint = fingerprint.value()

    def __len__(self) -> int:
        return int(self.fingerprint["pairs"])

    def blocks(self, rows: np.ndarray | None = None) -> Iterator[Block]:
        """Reads the pairs to train on, some thousands of them at a time.

        Args:
            rows: Only those with these numbers, ascending; all by default.
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
        """Blocks in two: what is trained on, what is held back."""
        for sources, targets in self._text.blocks():
            if self._cut is None:
                yield (sources, targets), ([], [])
                continue
            held_back: Block = ([], [])
            kept: Block = ([], [])
            drawn = self._cut.draws(sources).tolist()
            for source, target, away in zip(sources, targets, drawn, strict=True):
                part = held_back if away else kept
                part[0].append(source)
                part[1].append(target)
            yield kept, held_back
