"""Freezes parts of a model for fine-tuning."""

from collections.abc import Iterable
from typing import Any


def freeze(model: Any, names: Iterable[str]) -> None:
    """Freezes layers of a model; call it before `compile`.

    Args:
        model: A `Transformer`.
        names: Names from `presets.FREEZABLE`: `encoder`, `decoder` and `source-embeddings`.
    """
    for name in names:
        getattr(model, {"source-embeddings": "source_embedding"}.get(name, name)).trainable = False


def freeze_embeddings(model: Any, sides: Iterable[str]) -> None:
    """Freezes embedding matrices, such as word vectors; call it before `compile`.

    Learned positions, which are weights of the same layer, remain trainable. `presets` does not
    allow freezing a matrix that is also the output projection.

    Args:
        model: A `Transformer`, built.
        sides: `"source"`, `"target"` or both.
    """
    for side in sides:
        getattr(model, f"{side}_embedding").embeddings.trainable = False
