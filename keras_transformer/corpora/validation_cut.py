"""Which pairs of a corpus are held back to validate by."""

from collections.abc import Iterable, Sequence

import numpy as np

from keras_transformer.corpora.drawing import hash_texts


class ValidationCut:
    """A validation part, drawn so that no source is on both sides.

    Each distinct source is drawn or not by a number that follows from the seed and its text alone:
    in whatever order a corpus is read, and however much of it, the same sources are drawn. Their
    share comes close to `fraction`. Where that leaves one of the sides empty, in small corpora, one
    source is moved there.

    Args:
        fraction: Share of the distinct sources, above 0 and below 1.
        seed: Of the drawing.
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
        """Tells which pairs are held back, `(N,)` bool, by their sources."""
        drawn = hash_texts(sources, self.seed) < np.uint64(self.bound)
        if self._moved is not None:
            drawn ^= np.fromiter((source == self._moved for source in sources), bool, len(sources))
        return drawn


def _with(draws, sources, draw):
    """The first and the last, by their texts, of those sources that have the same number."""
    texts = [sources[row] for row in np.flatnonzero(draws == draw)]
    return (int(draw), min(texts)), (int(draw), max(texts))
