"""Matrix products; those in half precision are rounded once, to nearest, from float32.

Shapes: N rows, K summed axis, M columns.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.utils import Tensor

HALF = "bfloat16", "float16"
_forced: contextvars.ContextVar[Any] = contextvars.ContextVar("forced", default=None)


@contextlib.contextmanager
def use_product(method: str) -> Iterator[None]:
    """A context in which products of half precision are computed by a given method.

    Args:
        method: `"matmul"`, by the machine's own matrix products, or `"float32"`, in float32 and
            rounded.
    """
    token = _forced.set({"matmul": _multiply_by_matmul, "float32": IN_FLOAT32}[method])
    try:
        yield
    finally:
        _forced.reset(token)


def multiply(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """Multiplies two matrices, or two batches of matrices.

    Products in half precision are as exact on every machine as those of bfloat16 units: if the
    machine's own products are not (`rounds_to_nearest`), they are computed in float32 and rounded.
    The same holds for their gradients, which TensorFlow computes by the same kinds of products.

    Args:
        x: Float tensor `(..., N, K)`; with `transpose_x`, `(..., K, N)`.
        y: Tensor `(..., K, M)` of the same dtype and rank; with `transpose_y`, `(..., M, K)`.
        transpose_x: Whether to swap the last two axes of `x`.
        transpose_y: Whether to swap those of `y`.

    Returns:
        Tensor `(..., N, M)` in their dtype.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    method = _select_product(dtype)
    if method is IN_FLOAT32:
        x, y = ops.cast(x, "float32"), ops.cast(y, "float32")
        return ops.cast(_multiply_by_einsum(x, y, transpose_x, transpose_y), dtype)
    return method(x, y, transpose_x, transpose_y)


def is_exact(dtype: str) -> bool:
    """Returns whether products of this dtype are exact without float32."""
    return _select_product(dtype) is not IN_FLOAT32


def _multiply_by_einsum(x, y, transpose_x, transpose_y):
    if len(y.shape) == 2 and not transpose_x and not transpose_y:
        return ops.matmul(x, y)
    # With a transposed factor, oneDNN's batched product takes up to a tenth less time than that of
    # matrices. It is written as an einsum, because a separate transposition may be carried out.
    if len(x.shape) == 2:
        x, y = ops.expand_dims(x, 0), ops.expand_dims(y, 0)
        return ops.squeeze(_multiply_by_einsum(x, y, transpose_x, transpose_y), 0)
    batch = "abcdefg"[: len(x.shape) - 2]
    x_axes, y_axes = "kn" if transpose_x else "nk", "mk" if transpose_y else "km"
    return ops.einsum(f"{batch}{x_axes},{batch}{y_axes}->{batch}nm", x, y)


def _multiply_by_matmul(x, y, transpose_x, transpose_y):
    return ops.matmul(
        ops.swapaxes(x, -1, -2) if transpose_x else x,
        ops.swapaxes(y, -1, -2) if transpose_y else y,
    )


IN_FLOAT32 = "float32"  # in float32, then rounded


def _select_product(dtype):
    """Returns the fastest exact method: one of the functions above, or `IN_FLOAT32`."""
    if dtype not in HALF or not IS_TENSORFLOW:
        return _multiply_by_einsum
    return _forced.get() or _select_exact_product(dtype)


@functools.cache
def _select_exact_product(dtype):
    from keras_transformer.kernels.tensorflow.rounding import rounds_to_nearest

    if not rounds_to_nearest(dtype, _multiply_by_matmul):
        return IN_FLOAT32
    if rounds_to_nearest(dtype, _multiply_by_einsum):
        return _multiply_by_einsum
    return _multiply_by_matmul


class AttentionOperations(NamedTuple):
    """The operations of attention in a decoding loop; `kernels.tensorflow.products` has others."""

    multiply: Callable[..., Tensor] = multiply
    softmax: Callable[[Tensor], Tensor] = ops.softmax
