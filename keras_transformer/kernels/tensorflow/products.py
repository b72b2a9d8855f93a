"""TensorFlow's matrix products: selected where a graph runs, and fast in a loop.

Shapes: B batch, T number of queries, H heads.
"""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.kernels.products import AttentionOperations, is_exact, use_product
from keras_transformer.utils import Nested, Tensor


def select_matmul_at_runtime(compute: Callable[[], Nested], dtype: str, tensor: Tensor) -> Nested:
    """Builds a graph that selects its method of multiplication on the machine where it runs.

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

    def compute_by(method):
        with use_product(method):
            return compute()

    # 1 + 3/4 of the distance to the next number: 1 if truncated. It depends on a tensor, because
    # constants are multiplied by other kernels, when the graph is optimized.
    one = tf.cast(tf.shape(tensor)[0] >= 0, dtype)
    row = tf.ensure_shape(tf.fill([8, 1], one), [8, 1]) * tf.constant([1.0, 0.75 * 2.0**-7], dtype)
    exact = tf.reduce_all(tf.matmul(row, tf.ones([2, 8], dtype)) > 1)
    return tf.cond(exact, lambda: compute_by("matmul"), lambda: compute_by("float32"))


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
