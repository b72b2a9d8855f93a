"""The vocabularies of both sides of a corpus, learned from it; needs no TensorFlow."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from keras_transformer.tokenizers.sentencepiece_training import VocabularyTooLarge, train_model

# (source, target) texts, read anew each time that it is called.
ReadPairs: TypeAlias = Callable[[], Iterable[Sequence[str | bytes]]]


def learn_vocabularies(
    read: ReadPairs,
    vocabulary_size: int | None,
    model_type: str,
    lowercase: bool,
    nfkc: bool,
    joint: bool,
) -> tuple[bytes, bytes]:
    """Learns the vocabularies of source and target.

    Where the text allows fewer ids than `vocabulary_size`, all that it allows are taken, and a
    sentence on stderr says so.

    Args:
        read: Function that gives the pairs to learn from.
        vocabulary_size, model_type, lowercase, nfkc: As `SubwordTokenizer.train` has them.
        joint: Whether both sides have one vocabulary, learned from both.

    Returns:
        Two serialised SentencePiece models, the same one twice if it is joint.

    Raises:
        ValueError: If a vocabulary cannot be learned.
    """

    def learn(*sides, size=vocabulary_size):
        lines = (pair[side] for pair in read() for side in sides)
        try:
            return train_model(lines, (), size, model_type, lowercase, nfkc)
        except VocabularyTooLarge as error:
            print(
                f"vocabulary: {error.limit} ids instead of {size}, all that the text allows",
                file=sys.stderr,
            )
            return learn(*sides, size=error.limit)

    if joint:
        return (learn(0, 1),) * 2
    return learn(0), learn(1)
