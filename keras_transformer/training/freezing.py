"""Freezes parts of a model; what is saved and loaded keeps that (`layers.changes`)."""

from collections.abc import Iterable

import keras

from keras_transformer.options import check_frozen_vectors


def freeze(model: keras.Model, names: Iterable[str]) -> None:
    """Has parts of a `Transformer` keep their weights; to be called before `compile`.

    Args:
        model: A `Transformer`.
        names: Some of `presets.FREEZABLE`: the stacks of layers `encoder` and `decoder`, and
            `source-embeddings`.
    """
    for name in names:
        getattr(model, {"source-embeddings": "source_embedding"}.get(name, name)).trainable = False


def freeze_vectors(model: keras.Model, sides: Iterable[str]) -> None:
    """Has embeddings keep what they are, such as word vectors; to be called before `compile`.

    Learned positions, which are weights of the same layer, go on learning.

    Args:
        model: A `Transformer`, built.
        sides: `"source"`, `"target"` or both.

    Raises:
        ValueError: If that would freeze the softmax.
    """
    for side in sides:
        check_frozen_vectors(side, model.share_embeddings)
        getattr(model, f"{side}_embedding").embeddings.trainable = False
