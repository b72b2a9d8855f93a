"""The three parts of a data set."""

import hashlib
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


def fingerprint(pairs: Pairs) -> dict[str, int | str]:
    """Fingerprint of a set of pairs: their number, and a hash of them in their order.

    Args:
        pairs: list of `Pair`.

    Returns:
        Dict of `pairs`, a count, and `sha256`, of UTF-8 lines of source, tab and target.
    """
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair[0]}\t{pair[1]}\n".encode(errors="replace"))
    return {"pairs": len(pairs), "sha256": digest.hexdigest()}
