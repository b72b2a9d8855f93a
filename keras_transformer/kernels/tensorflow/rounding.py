"""How exact TensorFlow's products in half precision are on this machine."""

import itertools
from collections.abc import Callable

import tensorflow as tf

from keras_transformer.utils import Tensor

TERMS = 4096  # of the sum: counting up in bfloat16 stops at 256
SIZES = 1, 8  # numbers of rows and columns: single ones have kernels of their own


def rounds_to_nearest(dtype: str, multiply: Callable[[Tensor, Tensor, bool, bool], Tensor]) -> bool:
    """Tests whether products add up in float32 and are rounded once, to nearest.

    Without bfloat16 units, TensorFlow's `MatMul` of bfloat16 truncates the lower half of a float32
    result, and `Einsum` may add up in bfloat16.

    Args:
        dtype: `"bfloat16"` or `"float16"`.
        multiply: Function of two tensors of rank 2 or 4, and whether the last axes of each are
            swapped, see `kernels.products`.

    Returns:
        bool. True if there is a GPU, whose products are exact.
    """
    if tf.config.list_physical_devices("GPU"):
        return True
    above = 2.0 ** (-7 if dtype == "bfloat16" else -10)  # the number after 1 is 1 + above
    with tf.init_scope(), tf.device("CPU:0"):  # at once, also while a graph is traced
        for terms, expected in (([1.0, 0.75 * above], 1 + above), ([1.0] * TERMS, TERMS)):
            kinds = itertools.product(SIZES, SIZES, (2, 4), (False, True), (False, True))
            for rows, columns, *kind in kinds:
                x, y = tf.constant([terms] * rows, dtype), tf.ones([len(terms), columns], dtype)
                if not tf.reduce_all(_multiply(multiply, x, y, *kind) == expected):
                    return False
    return True


def _multiply(multiply, x, y, rank, swap_x, swap_y):
    """Multiplies two matrices, in batches of one for rank 4; returns float32."""
    x, y = (tf.transpose(z) if swap else z for z, swap in ((x, swap_x), (y, swap_y)))
    x, y = (tf.reshape(z, [*[1] * (rank - 2), *z.shape]) for z in (x, y))
    return tf.cast(multiply(x, y, swap_x, swap_y), tf.float32)
