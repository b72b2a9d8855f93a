"""Matrix products: those of half precision are rounded once, to nearest, from float32.

Shapes: N rows, K what is summed over, M columns.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.backend import IS_TENSORFLOW
from keras_transformer.typing import Tensor

HALF = "bfloat16", "float16"
_chosen: contextvars.ContextVar[Any] = contextvars.ContextVar("chosen", default=None)


@contextlib.contextmanager
def multiplying(way: str) -> Iterator[None]:
    """Context in which products of half precision are made in a given way, as for another machine.

    Args:
        way: `"matrices"`, by the machine's own products of matrices, or `"single"`, in float32 and
            rounded.
    """
    token = _chosen.set({"matrices": _by_matrices, "single": SINGLE}[way])
    try:
        yield
    finally:
        _chosen.reset(token)


def multiply(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    """The product of two matrices, or of two batches of them.

    In float32 and above as it comes. Of half precision as exact as bfloat16 units make it, on every
    machine: where this one's own products are not (`rounds_to_nearest`), in float32 and rounded. So
    are its gradients, which TensorFlow makes of products of the same kinds.

    Args:
        x: Float tensor `(..., N, K)`; with `transpose_x`, `(..., K, N)`.
        y: Tensor `(..., K, M)` of the same dtype and rank; with `transpose_y`, `(..., M, K)`.
        transpose_x: Whether the last two axes of `x` are to be swapped.
        transpose_y: Whether those of `y` are.

    Returns:
        Tensor `(..., N, M)` in their dtype.
    """
    dtype = keras.backend.standardize_dtype(x.dtype)
    way = _way(dtype)
    if way is SINGLE:
        x, y = ops.cast(x, "float32"), ops.cast(y, "float32")
        return ops.cast(_by_letters(x, y, transpose_x, transpose_y), dtype)
    return way(x, y, transpose_x, transpose_y)


def is_exact(dtype: str) -> bool:
    """Tells whether products of this type need no detour by float32."""
    return _way(dtype) is not SINGLE


def _by_letters(x, y, transpose_x, transpose_y):
    if len(y.shape) == 2 and not transpose_x and not transpose_y:
        return ops.matmul(x, y)
    # With a factor transposed, oneDNN's batched product takes up to a tenth less than that of
    # matrices. It has to be written as a sum over letters: a transposition beside a product may be
    # carried out.
    if len(x.shape) == 2:
        x, y = ops.expand_dims(x, 0), ops.expand_dims(y, 0)
        return ops.squeeze(_by_letters(x, y, transpose_x, transpose_y), 0)
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
    """The fastest way to multiply that is exact: one of the functions above, or `SINGLE`."""
    if dtype not in HALF or not IS_TENSORFLOW:
        return _by_letters
    return _chosen.get() or _exact_way(dtype)


@functools.cache
def _exact_way(dtype):
    from keras_transformer.kernels.tensorflow.rounding import rounds_to_nearest

    if not rounds_to_nearest(dtype, _by_matrices):
        return SINGLE
    return _by_letters if rounds_to_nearest(dtype, _by_letters) else _by_matrices
