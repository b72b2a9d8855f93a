"""Text to ids without TensorFlow: what the processes that prepare a corpus do."""

import dataclasses
import itertools

import numpy as np
import sentencepiece

from keras_transformer.corpora.parallel_text import Block
from keras_transformer.tokenizers.ties import Ties


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

    Args:
        models: Two serialised SentencePiece models, of the source and of the target.

    Attributes:
        dtype: The smallest type that holds the ids of both.
    """

    def __init__(self, models: tuple[bytes, bytes]) -> None:
        load = sentencepiece.SentencePieceProcessor
        self._processors = [load(model_proto=model) for model in models]
        self._ties = [Ties(processor) for processor in self._processors]
        largest = max(processor.vocab_size() for processor in self._processors)
        self.dtype = np.min_scalar_type(largest - 1)

    def __call__(self, block: Block) -> tuple[EncodedSide, EncodedSide]:
        source, target = (self._encode(side, lines) for side, lines in enumerate(block))
        return source, target

    def _encode(self, side, lines):
        rows = self._processors[side].encode(lines, num_threads=1)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        uncertain = self._ties[side].find(ids, lengths)
        return EncodedSide(ids.astype(self.dtype), lengths, uncertain)
