"""Weights of the target tokens, and the dtype that they are summed in."""

import contextlib
from collections.abc import Iterator

import keras
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


def sum_dtype() -> str:
    """The dtype of sums over tokens: float32, or Keras' floatx where that is wider.

    float16 ends at 65,504, and beyond 2,048 does not count by ones; bfloat16 beyond 256.
    """
    return "float64" if keras.config.floatx() == "float64" else "float32"


@contextlib.contextmanager
def wide_sums() -> Iterator[None]:
    """What Keras makes in here without a dtype, such as the mean of the loss, has `sum_dtype`."""
    floatx = keras.config.floatx()
    keras.config.set_floatx(sum_dtype())
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)
