"""The backend that Keras runs on, and matrix products that are fast on it.

Shapes: N rows, K summed axis, M columns, D width of an input, D' of an output.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.utils import Tensor

# Other backends use Keras' own training step and matrix products.
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def values_of(tensor: Tensor) -> np.ndarray | None:
    """Returns the values of a tensor, or None if they are unknown, as in a graph."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, keras.KerasTensor) or (IS_TENSORFLOW and not hasattr(tensor, "numpy")):
        return None
    try:
        return ops.convert_to_numpy(tensor)
    except TypeError:
        return None  # traced by JAX


def nan_unless(valid: Tensor) -> Tensor:
    """Returns 0 where `valid` is True, else NaN, for graphs to add: they cannot raise everywhere.

    TensorFlow's `enable_check_numerics` rejects a constant NaN.
    """
    return ops.sqrt(ops.cast(valid, "float32") - 1.0)


def require_tensorflow(feature: str) -> None:
    """Checks that Keras uses the TensorFlow backend, which a feature needs."""
    if not IS_TENSORFLOW:
        raise ValueError(
            f"{feature} needs Keras' TensorFlow backend, this is {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow before importing Keras; it loads models saved on any backend."
        )


# Products.

Projection: TypeAlias = Callable[[Tensor], Tensor]

# XLA repacks the second factor of a product each time. Transposing the product is faster with at
# least MIN_ROWS_TRANSPOSED rows, or with a kernel whose width / height is at least
# MIN_ASPECT_TRANSPOSED, which lies by columns in memory already.
MIN_ROWS_TRANSPOSED = 16
MIN_ASPECT_TRANSPOSED = 8
MIN_FLOAT = -3.4e38  # about float32's and bfloat16's lowest number


def multiply(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """Multiplies two matrices, or two batches of matrices, `(..., N, K)` and `(..., K, M)`.

    Products in half precision are added up in float32 and rounded once; those in bfloat16 only on
    processors that have instructions for it, and on GPUs. Factors of equal dtype and rank may be
    given with their last two axes swapped.
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


def project(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes `x W + b` for x `(..., D)`, kernel `(D, D')` and bias `(D',)` of one dtype."""
    y = multiply(x, kernel)
    # Keras makes `ops.add` of a vector a bias, which TensorFlow fuses with the product.
    return y if bias is None else ops.add(y, bias)


# In a loop over few rows, a product takes about as long as reading W from memory, so the memory
# layout of W matters. It is changed once, before the loop. The following functions return
# `x ↦ x W + b` for such a loop; their arguments are those of `project`. With `by_columns`, the
# kernel is Wᵀ, `(D', D)`.

# Where each operation has one core, as is recommended, a large product for one sentence would leave
# the other cores idle: it is computed in parts.
MAX_PARTS = 4
PART_SIZE = 1 << 20  # numbers of a kernel, 4 MiB in float32


def graph_projection(
    kernel: Tensor, bias: Tensor | None = None, by_columns: bool = False
) -> Projection:
    """Returns a projection for a loop run by TensorFlow's executor."""
    parts = min(MAX_PARTS, math.prod(kernel.shape) // PART_SIZE)
    if parts < 2:
        return _project_part(kernel, bias, by_columns)
    width = kernel.shape[0 if by_columns else 1]
    projections = []
    for part in range(parts):
        chosen = slice(width * part // parts, width * (part + 1) // parts)
        columns = kernel[chosen] if by_columns else kernel[:, chosen]
        some = None if bias is None else bias[chosen]
        projections.append(_project_part(columns, some, by_columns))
    return lambda x: ops.concatenate([projection(x) for projection in projections], axis=-1)


def _project_part(kernel, bias, by_columns):
    if keras.backend.standardize_dtype(kernel.dtype) != "bfloat16":
        kernel = ops.transpose(kernel) if by_columns else kernel
        if bias is None:
            return lambda x: ops.matmul(x, kernel)
        # TensorFlow does not fuse a subtraction with the product. Fused, both take longer for few
        # rows.
        minus_bias = ops.negative(bias)
        return lambda x: ops.subtract(ops.matmul(x, kernel), minus_bias)
    # W is stored by columns, because bfloat16 units read pairs of neighbouring inputs. That takes
    # a fifth to a third less time for 32 rows. TensorFlow fuses product and transposition, and
    # caches the layout of frozen weights only with a bias.
    columns = kernel if by_columns else ops.transpose(kernel)
    bias = ops.zeros(columns.shape[:1], kernel.dtype) if bias is None else bias
    return lambda x: ops.add(ops.matmul(x, ops.transpose(columns)), bias)


def xla_projection(
    kernel: Tensor, bias: Tensor | None = None, by_columns: bool = False
) -> Projection:
    """Returns a projection of rows `(N, D)` for a loop compiled by XLA.

    It computes `(Wᵀ xᵀ)ᵀ`, which takes a third less time for 32 rows.
    """
    columns = ops.transpose(kernel)
    if by_columns:
        columns, kernel = kernel, columns
    height, width = kernel.shape

    def project_rows(x):
        if width < MIN_ASPECT_TRANSPOSED * height and (x.shape[0] or 0) < MIN_ROWS_TRANSPOSED:
            return project(x, kernel, bias)
        y = ops.matmul(columns, ops.transpose(x))
        # Without an operation between product and transposition, XLA would swap the factors back.
        y = ops.maximum(y, MIN_FLOAT) if bias is None else y + ops.expand_dims(bias, 1)
        return ops.transpose(y)

    return project_rows


class LoopOperations(NamedTuple):
    """The operations of a decoding loop."""

    multiply: Callable[..., Tensor] = multiply
    softmax: Callable[[Tensor], Tensor] = ops.softmax
    projection: Callable[..., Projection] = graph_projection


ANY_LOOP = LoopOperations()
XLA_LOOP = LoopOperations(projection=xla_projection)
