"""The sampler of a SentencePiece model: texts in other pieces, from their ids. No TensorFlow."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from keras_transformer.tokenizers.bpe_dropout import BpeDropout
from keras_transformer.tokenizers.model_pieces import ModelPieces
from keras_transformer.tokenizers.unigram_sampling import UnigramSampling

# Ids of sentences one after the other (I,), lengths (B,) and keys (B,) to ids and lengths.
SubwordSampler: TypeAlias = Callable[
    [np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]
]


@functools.lru_cache(maxsize=4)  # made in a few tenths of a second; two sides may share one
def subword_sampler(model: bytes, strength: float) -> SubwordSampler:
    """Makes what cuts texts into other pieces.

    Args:
        model: A serialised SentencePiece model.
        strength: As `SubwordTokenizer.sample` has it.

    Returns:
        `BpeDropout` or `UnigramSampling`; of other types, whose texts have one segmentation, a
        function that returns what it is given.

    Raises:
        ValueError: If `strength` is out of range.
    """
    if not 0 < strength <= 1:
        raise ValueError(f"strength must be above 0 and at most 1, received {strength}.")
    vocabulary = ModelPieces(model)
    if vocabulary.model_type == "bpe":
        return BpeDropout(vocabulary, strength)
    if vocabulary.model_type == "unigram":
        return UnigramSampling(vocabulary, strength)
    return _unchanged


def _unchanged(ids, lengths, keys):
    return np.asarray(ids, np.int32), np.asarray(lengths, np.int64)
