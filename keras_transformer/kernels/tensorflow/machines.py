"""Graphs that multiply on each machine in the way that is right there."""

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.kernels.products import multiplying
from keras_transformer.typing import Nested, Tensor


def on_any_machine(compute: Callable[[], Nested], dtype: str, tensor: Tensor) -> Nested:
    """Computes in one of two ways, decided upon where the graph runs.

    With bfloat16 units, products of bfloat16 are exact and fast. Without, TensorFlow cuts off
    instead of rounding, and takes twice as long with few rows: there, they are computed in float32
    and rounded, with weights made ready before the loop.

    Args:
        compute: Function without arguments to a structure of tensors.
        dtype: What products are computed in, `"float32"` or `"bfloat16"`.
        tensor: One that is known only when the graph runs.

    Returns:
        What `compute` returns.
    """
    if dtype == "float32":
        return compute()

    def by(way):
        with multiplying(way):
            return compute()

    # 1 + 3/4 of the distance to the next number: 1 if cut off. Made from what is not known before,
    # for constants are multiplied when the graph is optimized, by other kernels than later.
    one = tf.cast(tf.shape(tensor)[0] >= 0, dtype)
    row = tf.ensure_shape(tf.fill([8, 1], one), [8, 1]) * tf.constant([1.0, 0.75 * 2.0**-7], dtype)
    exact = tf.reduce_all(tf.matmul(row, tf.ones([2, 8], dtype)) > 1)
    return tf.cond(exact, lambda: by("matrices"), lambda: by("single"))
