"""Sentence pairs, and a corpus with training, validation and test set."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keras_transformer.utils import Pairs


class Pair(NamedTuple):
    """A source text and its target text.

    Args:
        source: The model's input.
        target: The desired output.
        group: Results are reported by group, such as the language of the source. Empty in a corpus
            without groups.
    """

    source: str
    target: str
    group: str = ""


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs for training, validation and test.

    Args:
        train: List of `Pair`, for the weights and the vocabularies.
        valid: List of `Pair`, evaluated during training.
        test: List of `Pair`, evaluated after training.
    """

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def read_sides(pairs: Iterable[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Returns the sources and the targets of pairs.

    Raises:
        ValueError: If an element is not a pair of texts.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for number, pair in enumerate(pairs):
        is_pair = isinstance(pair, tuple | list) and len(pair) >= 2
        if not is_pair or not all(isinstance(text, str | bytes) for text in pair[:2]):
            raise ValueError(
                f"pairs must be pairs (source, target) of texts, received element {number}: "
                f"{pair!r:.60}. For files, pass kt.read_pairs(source_path, target_path)."
            )
        for side, text in zip(sides, pair, strict=False):
            side.append(text)
    return sides


class Fingerprint:
    """Computes the number of pairs, and a hash of them in their order."""

    def __init__(self) -> None:
        self._pairs = 0
        self._digest = hashlib.sha256()

    def add(self, sources: Sequence[bytes], targets: Sequence[bytes]) -> None:
        """Adds some pairs, in UTF-8."""
        self._pairs += len(sources)
        rows = map(b"\t".join, zip(sources, targets, strict=True))
        self._digest.update(b"".join(row + b"\n" for row in rows))

    def value(self) -> dict[str, int | str]:
        """Returns `pairs`, a count, and `sha256`, of lines of source, tab and target."""
        return {"pairs": self._pairs, "sha256": self._digest.hexdigest()}


def fingerprint(pairs: Pairs) -> dict[str, int | str]:
    """Returns the fingerprint of a list of pairs; see `Fingerprint.value`."""
    sides = ([pair[side].encode(errors="replace") for pair in pairs] for side in (0, 1))
    result = Fingerprint()
    result.add(*sides)
    return result.value()
