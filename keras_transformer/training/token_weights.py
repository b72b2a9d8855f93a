"""Weights of the target tokens."""

from keras import ops

from keras_transformer.special_ids import PAD
from keras_transformer.typing import Tensor


def token_weights(
    ids: Tensor, sample_weight: Tensor | None = None, dtype: str = "float32"
) -> Tensor:
    """Weighs target tokens: padding counts nothing.

    Args:
        ids: int32 ids `(B, T)`.
        sample_weight: Weights of shape `(B,)` or `(B, T)`; None, 1 for each token.
        dtype: Of the result.

    Returns:
        Tensor `(B, T)`.
    """
    weights = ops.cast(ops.not_equal(ids, PAD), dtype)
    if sample_weight is None:
        return weights
    given = ops.cast(sample_weight, dtype)
    return weights * (given if len(given.shape) == 2 else ops.expand_dims(given, 1))
