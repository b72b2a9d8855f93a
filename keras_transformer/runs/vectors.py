"""Word vectors in a training: whether they go together with it, and what they bring."""

import dataclasses
import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.presets import TrainConfig
from keras_transformer.runs.files import VECTORS
from keras_transformer.tokenizers.saved import SIDES
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.tokenizers.word_vectors import check_vectors

if TYPE_CHECKING:
    from keras_transformer.data.encoded_pairs import EncodedPairs
    from keras_transformer.transformer import Transformer


def check_files(config: TrainConfig) -> None:
    """Refuses files without vectors, or with too narrow ones, by their beginnings.

    Raises:
        ValueError: If there is one.
    """
    for side in sides_of(config):
        check_vectors(getattr(config, f"{side}_vectors"), config.model.d_model)


def sides_of(config: TrainConfig) -> list[str]:
    """The sides whose embeddings begin as vectors."""
    return [side for side, name in zip(SIDES, VECTORS, strict=True) if getattr(config, name)]


def begin_with_vectors(
    config: TrainConfig,
    model: "Transformer",
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: "EncodedPairs",
) -> dict[str, Any]:
    """Puts word vectors into a fresh model, and says on stderr how much they cover.

    Args:
        config: `TrainConfig`.
        model: The model, built.
        tokenizers: Those of source and target.
        pairs: What is trained on, for the coverage of running tokens.

    Returns:
        Dict of `vectors`, for `data.json`: of each side that has some, its `Coverage` as a dict and
        the hash of the embeddings. An empty one where no side has.

    Raises:
        ValueError: As `initialize_embeddings` does.
    """
    from keras_transformer.training.embedding_initialization import initialize_embeddings

    covered = {}
    for side in sides_of(config):
        number = SIDES.index(side)
        counts = (pairs.source, pairs.target)[number].count(tokenizers[number].vocabulary_size)
        embedding, path = getattr(model, f"{side}_embedding"), getattr(config, f"{side}_vectors")
        coverage = initialize_embeddings(embedding, tokenizers[number], path, counts)
        print(f"{side} vectors: {coverage}", file=sys.stderr)
        digest = hashlib.sha256(np.array(embedding.embeddings).tobytes()).hexdigest()
        covered[side] = dataclasses.asdict(coverage) | {"sha256": digest}
    return {"vectors": covered} if covered else {}
