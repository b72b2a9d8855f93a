"""The vocabularies of both sides of a corpus, taken or learned from it.

Needs no TensorFlow, but to learn a WordPiece vocabulary.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from keras_transformer.tokenizers import sentencepiece_training
from keras_transformer.tokenizers.vocabulary_checks import VocabularyTooLarge
from keras_transformer.tokenizers.wordpiece_vocabulary import read_pieces, to_model
from keras_transformer.typing import Path

# (source, target) texts, read anew each time that it is called.
ReadPairs: TypeAlias = Callable[[], Iterable[Sequence[str | bytes]]]


def learn_vocabularies(
    read: ReadPairs,
    vocabulary_size: int | None,
    model_type: str,
    lowercase: bool,
    nfkc: bool,
    joint: bool,
    source_vocabulary_size: int | None = None,
    target_vocabulary_size: int | None = None,
    source_vocabulary: Path | None = None,
    target_vocabulary: Path | None = None,
) -> tuple[bytes, bytes]:
    """Learns the vocabularies of source and target, or takes them.

    Where the text allows fewer ids than are asked for, all that it allows are taken, and a sentence
    on stderr says so.

    Args:
        read: Function that gives the pairs to learn from.
        vocabulary_size, model_type, lowercase, nfkc: As `SubwordTokenizer.train` has them; with the
            type wordpiece, as `WordPieceTokenizer.train`.
        joint: Whether both sides have one vocabulary, learned from both.
        source_vocabulary_size, target_vocabulary_size: Of one side, where it has another size.
        source_vocabulary, target_vocabulary: Files with WordPiece vocabularies, instead of text.

    Returns:
        Two serialised vocabularies, the same one twice if it is joint.

    Raises:
        ValueError: If a vocabulary cannot be learned or read.
    """

    def learn(*sides, size):
        lines = (pair[side] for pair in read() for side in sides)
        try:
            return _train(lines, size, model_type, lowercase, nfkc)
        except VocabularyTooLarge as error:
            print(
                f"vocabulary: {error.limit} ids instead of {size}, all that the text allows",
                file=sys.stderr,
            )
            return learn(*sides, size=error.limit)

    def make(*sides, size, path):
        if path is not None:
            return to_model(read_pieces(path), lowercase)
        return learn(*sides, size=vocabulary_size if size is None else size)

    if joint:
        return (make(0, 1, size=None, path=source_vocabulary),) * 2
    source = make(0, size=source_vocabulary_size, path=source_vocabulary)
    return source, make(1, size=target_vocabulary_size, path=target_vocabulary)


def _train(lines, size, model_type, lowercase, nfkc):
    """A serialised vocabulary of whichever kind."""
    if model_type == "wordpiece":
        from keras_transformer.tokenizers import wordpiece_training

        return wordpiece_training.train_model(lines, (), size, lowercase)
    return sentencepiece_training.train_model(lines, (), size, model_type, lowercase, nfkc)
