"""The three parts of a data set."""

from dataclasses import dataclass

from keras_transformer.corpora.pair import Pair


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
