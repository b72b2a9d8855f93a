"""Text to ids without TensorFlow: what the processes that prepare a corpus do."""

import dataclasses
import itertools

import numpy as np
import sentencepiece

from keras_transformer.corpora.parallel_text import Block
from keras_transformer.inspection.vocabularies import count_ids
from keras_transformer.tokenizers.saved import SUBWORD, ending
from keras_transformer.tokenizers.ties import Ties
from keras_transformer.tokenizers.wordpiece_vocabulary import from_model


@dataclasses.dataclass
class EncodedSide:
    """One side of some pairs as ids.

    Attributes:
        ids: One sentence after the other, `(I,)` of the type that the corpus is written in.
        lengths: Number of ids of each sentence, `(N,)` int64.
        uncertain: Numbers of the sentences that the served operation may cut otherwise, ascending.
    """

    ids: np.ndarray
    lengths: np.ndarray
    uncertain: np.ndarray


class Encoder:
    """Turns blocks of pairs into ids, as the sentencepiece package does.

    Of a side with a WordPiece vocabulary, which no package cuts as the served operation does, every
    line is uncertain, and without ids.

    Args:
        models: Two serialised vocabularies, of the source and of the target.

    Attributes:
        dtype: The smallest type that holds the ids of both.
    """

    def __init__(self, models: tuple[bytes, bytes]) -> None:
        self._processors = [_processor(model) for model in models]
        self._ties = [processor and Ties(processor) for processor in self._processors]
        self.dtype = np.min_scalar_type(max(map(_size, models)) - 1)

    def __call__(self, block: Block) -> tuple[EncodedSide, EncodedSide]:
        source, target = (self._encode(side, lines) for side, lines in enumerate(block))
        return source, target

    def _encode(self, side, lines):
        if self._processors[side] is None:
            none = np.zeros(len(lines), np.int64)
            return EncodedSide(np.zeros(0, self.dtype), none, np.arange(len(lines)))
        rows = self._processors[side].encode(lines, num_threads=1)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        uncertain = self._ties[side].find(ids, lengths)
        return EncodedSide(ids.astype(self.dtype), lengths, uncertain)


def _processor(model):
    """What cuts text by a SentencePiece model; None for a vocabulary of another kind."""
    if ending(model) != SUBWORD:
        return None
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def _size(model):
    """Number of ids of a serialised vocabulary."""
    processor = _processor(model)
    return processor.vocab_size() if processor else count_ids(from_model(model)[0])
