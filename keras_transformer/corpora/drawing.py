"""What a seed draws from a corpus, the same in any process, wherever reading it begins."""

import zlib
from collections.abc import Sequence

import numpy as np

AT_ONCE = 1 << 20  # numbers of lines looked at at once


def mix(values: np.ndarray, seed: int) -> np.ndarray:
    """Numbers as if drawn at random, one for each value (splitmix64's finaliser).

    Args:
        values: `(N,)` integers.
        seed: Non-negative int; others give other numbers.

    Returns:
        `(N,)` uint64, evenly spread.
    """
    x = values.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_texts(texts: Sequence[bytes], seed: int) -> np.ndarray:
    """A number as if drawn at random for each text, `(N,)` uint64; equal texts have equal ones."""
    return mix(np.fromiter(map(zlib.crc32, texts), np.uint64, len(texts)), seed)


def draw_rows(count: int, size: int, seed: int) -> np.ndarray:
    """Draws some of the numbers from 0 to `count`, none twice.

    Args:
        count: Non-negative int.
        size: How many to draw; where there are no more than that, all are taken.
        seed: Of the drawing.

    Returns:
        Ascending int64, `(min(count, size),)`.
    """
    rows, draws = np.zeros(0, np.int64), np.zeros(0, np.uint64)
    for start in range(0, count, AT_ONCE):
        more = np.arange(start, min(start + AT_ONCE, count))
        rows, draws = np.concatenate([rows, more]), np.concatenate([draws, mix(more, seed)])
        if len(rows) > size:
            kept = np.argpartition(draws, size - 1)[:size]
            rows, draws = rows[kept], draws[kept]
    return np.sort(rows)
