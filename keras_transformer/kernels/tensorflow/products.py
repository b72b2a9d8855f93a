"""TensorFlow's matrix products: how exact they are, and which are fast in a loop.

Shapes: B batch, T number of queries, H heads.
"""

import itertools
from collections.abc import Callable

import tensorflow as tf

from keras_transformer.kernels.products import AttentionOperations, is_exact, multiplying
from keras_transformer.typing import Nested, Tensor

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


def select_matmul_at_runtime(compute: Callable[[], Nested], dtype: str, tensor: Tensor) -> Nested:
    """Builds a graph that multiplies in one of two ways, selected where the graph runs.

    With bfloat16 units, products of bfloat16 are exact and fast. Without, TensorFlow truncates
    instead of rounding, and takes twice as long for few rows: there, products are computed in
    float32 and rounded, with weights converted before the loop.

    Args:
        compute: Function without arguments to a structure of tensors.
        dtype: Compute dtype of the products, `"float32"` or `"bfloat16"`.
        tensor: A tensor whose value is known only when the graph runs.

    Returns:
        The result of `compute`.
    """
    if dtype == "float32":
        return compute()

    def by(way):
        with multiplying(way):
            return compute()

    # 1 + 3/4 of the distance to the next number: 1 if truncated. It depends on a tensor, because
    # constants are multiplied by other kernels, when the graph is optimized.
    one = tf.cast(tf.shape(tensor)[0] >= 0, dtype)
    row = tf.ensure_shape(tf.fill([8, 1], one), [8, 1]) * tf.constant([1.0, 0.75 * 2.0**-7], dtype)
    exact = tf.reduce_all(tf.matmul(row, tf.ones([2, 8], dtype)) > 1)
    return tf.cond(exact, lambda: by("matrices"), lambda: by("single"))


def _multiply_heads(x: Tensor, y: Tensor, transpose_y: bool = False) -> Tensor:
    """Multiplies `x` and `y`, `(B, H, T, …)` each; with `transpose_y`, `x` and `yᵀ`."""
    # TensorFlow's own kernels do not use bfloat16 units.
    if x.dtype != tf.float32 and is_exact(x.dtype.name):
        return tf.matmul(x, y, transpose_b=transpose_y)
    flags = {"adj_x": False, "adj_y": transpose_y, "grad_x": False, "grad_y": False}
    x32, y32 = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    product = tf.raw_ops.BatchMatMulV3(x=x32, y=y32, Tout=tf.float32, **flags)
    return tf.cast(product, x.dtype)


def _softmax(scores: Tensor) -> Tensor:
    return tf.exp(tf.nn.log_softmax(scores))


# Attention in a loop over single positions, run by TensorFlow's executor. TensorFlow passes
# products and softmaxes to oneDNN, which wakes its threads for each of them: 20 to 40 µs on two
# cores, instead of 2 µs for one sentence. These operations are computed by TensorFlow's own
# kernels, which are as fast for 256 sentences.
STEP_OPERATIONS = AttentionOperations(_multiply_heads, _softmax)
