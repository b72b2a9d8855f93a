"""Parallel text of made-up words, as much of it as is wanted."""

import numpy as np


def write_text(folder, pairs, seed=1, shards=1, words=2000, length=9):
    """Writes numbered files of words as frequent as in a language; returns both sides' patterns."""
    random = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyzäöüß"))
    lexicon = ["".join(random.choice(letters, size)) for size in random.integers(1, 10, words)]
    ranks = 1 / np.arange(1, words + 1)
    for number, rows in enumerate(np.array_split(np.arange(pairs), shards)):
        for side in ("source", "target"):
            lengths = random.integers(1, 2 * length, len(rows))
            drawn = iter(random.choice(words, lengths.sum(), p=ranks / ranks.sum()).tolist())
            lines = (" ".join(lexicon[next(drawn)] for _ in range(n)) for n in lengths.tolist())
            path = folder / f"part-{number:02}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(folder / f"part-*.{side}") for side in ("source", "target")]
