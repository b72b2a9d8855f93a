"""Matrix products.

Shapes: N rows, K summed axis, M columns.
"""

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.utils import Tensor


def multiply(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """Multiplies two matrices, or two batches of matrices, of the same dtype and rank.

    Products in half precision are added up in float32 and rounded once; those in bfloat16 only on
    processors that have instructions for it, and on GPUs.

    Args:
        x: Float tensor `(..., N, K)`; with `transpose_x`, `(..., K, N)`.
        y: Tensor `(..., K, M)`; with `transpose_y`, `(..., M, K)`.
        transpose_x: Whether to swap the last two axes of `x`.
        transpose_y: Whether to swap those of `y`.

    Returns:
        Tensor `(..., N, M)` in their dtype.
    """
    # TensorFlow's einsum adds up in float16.
    float16 = IS_TENSORFLOW and keras.backend.standardize_dtype(x.dtype) == "float16"
    if float16 or (len(y.shape) == 2 and not transpose_x and not transpose_y):
        x = ops.swapaxes(x, -1, -2) if transpose_x else x
        return ops.matmul(x, ops.swapaxes(y, -1, -2) if transpose_y else y)
    # With a transposed factor, oneDNN's batched product takes up to a tenth less time than that of
    # matrices. It is written as an einsum, because a separate transposition may be carried out.
    if len(x.shape) == 2:
        x, y = ops.expand_dims(x, 0), ops.expand_dims(y, 0)
        return ops.squeeze(multiply(x, y, transpose_x, transpose_y), 0)
    batch = "abcdefg"[: len(x.shape) - 2]
    x_axes, y_axes = "kn" if transpose_x else "nk", "mk" if transpose_y else "km"
    return ops.einsum(f"{batch}{x_axes},{batch}{y_axes}->{batch}nm", x, y)
