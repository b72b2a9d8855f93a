"""The three parts of a data set."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from keras_transformer.corpora.pair import Pair
from keras_transformer.typing import Pairs


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs to train on, to choose a model by, and to report results on.

    Args:
        train: list of `Pair`, what the weights and the tokenizers are learned from.
        valid: list of `Pair`, looked at while training.
        test: list of `Pair`, looked at once, when training is over.
    """

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


class Fingerprint:
    """Fingerprint of a set of pairs, as they are read: their number, and a hash in their order."""

    def __init__(self) -> None:
        self._pairs = 0
        self._digest = hashlib.sha256()

    def add(self, sources: Sequence[bytes], targets: Sequence[bytes]) -> None:
        """Takes some pairs more, UTF-8."""
        self._pairs += len(sources)
        rows = map(b"\t".join, zip(sources, targets, strict=True))
        self._digest.update(b"".join(row + b"\n" for row in rows))

    def value(self) -> dict[str, int | str]:
        """Dict of `pairs`, a count, and `sha256`, of lines of source, tab and target."""
        return {"pairs": self._pairs, "sha256": self._digest.hexdigest()}


def fingerprint(pairs: Pairs) -> dict[str, int | str]:
    """Fingerprint of a list of pairs, as `Fingerprint.value` gives it."""
    sides = ([pair[side].encode(errors="replace") for pair in pairs] for side in (0, 1))
    made = Fingerprint()
    made.add(*sides)
    return made.value()
