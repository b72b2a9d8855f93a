"""Matrix products; those in half precision are rounded once, to nearest, from float32.

Shapes: N rows, K what is summed over, M columns.
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
_chosen: contextvars.ContextVar[Any] = contextvars.ContextVar("chosen", default=None)


@contextlib.contextmanager
def multiplying(way: str) -> Iterator[None]:
    """A context in which products of half precision are computed in a given way.

    Args:
        way: `"matrices"`, by the machine's own matrix products, or `"single"`, in float32 and
            rounded.
    """
    token = _chosen.set({"matrices": _by_matrices, "single": SINGLE}[way])
    try:
        yield
    finally:
        _chosen.reset(token)


def multiply(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """Multiplies two matrices, or two batches of matrices.

    Products in half precision are as exact on every machine as those of bfloat16 units: if this
    machine's own are not (`rounds_to_nearest`), they are computed in float32 and rounded. So are
    their gradients, which TensorFlow computes by products of the same kinds.

    Args:
        x: Float tensor `(..., N, K)`; with `transpose_x`, `(..., K, N)`.
        y: Tensor `(..., K, M)` of the same dtype and rank; with `transpose_y`, `(..., M, K)`.
        transpose_x: Whether to swap the last two axes of `x`.
        transpose_y: Whether to swap those of `y`.

    Returns:
        Tensor `(..., N, M)` in their dtype.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    way = _way(dtype)
    if way is SINGLE:
        x, y = ops.cast(x, "float32"), ops.cast(y, "float32")
        return ops.cast(_by_einsum(x, y, transpose_x, transpose_y), dtype)
    return way(x, y, transpose_x, transpose_y)


def is_exact(dtype: str) -> bool:
    """Returns whether products of this dtype are exact without float32."""
    return _way(dtype) is not SINGLE


def _by_einsum(x, y, transpose_x, transpose_y):
    if len(y.shape) == 2 and not transpose_x and not transpose_y:
        return ops.matmul(x, y)
    # With a transposed factor, oneDNN's batched product takes up to a tenth less time than that of
    # matrices. It is written as an einsum, because a separate transposition may be carried out.
    if len(x.shape) == 2:
        x, y = ops.expand_dims(x, 0), ops.expand_dims(y, 0)
        return ops.squeeze(_by_einsum(x, y, transpose_x, transpose_y), 0)
    batch = "abcdefg"[: len(x.shape) - 2]
    of_x, of_y = "kn" if transpose_x else "nk", "mk" if transpose_y else "km"
    return ops.einsum(f"{batch}{of_x},{batch}{of_y}->{batch}nm", x, y)


def _by_matrices(x, y, transpose_x, transpose_y):
    return ops.matmul(
        ops.swapaxes(x, -1, -2) if transpose_x else x,
        ops.swapaxes(y, -1, -2) if transpose_y else y,
    )


SINGLE = "single"  # in float32, then rounded


def _way(dtype):
    """Returns the fastest exact way: one of the functions above, or `SINGLE`."""
    if dtype not in HALF or not IS_TENSORFLOW:
        return _by_einsum
    return _chosen.get() or _exact_way(dtype)


@functools.cache
def _exact_way(dtype):
    from keras_transformer.kernels.tensorflow.rounding import rounds_to_nearest

    if not rounds_to_nearest(dtype, _by_matrices):
        return SINGLE
    return _by_einsum if rounds_to_nearest(dtype, _by_einsum) else _by_matrices


class AttentionOperations(NamedTuple):
    """The operations of attention in a loop; `kernels.tensorflow.products` has faster ones."""

    multiply: Callable[..., Tensor] = multiply
    softmax: Callable[[Tensor], Tensor] = ops.softmax
