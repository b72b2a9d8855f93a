"""Attention's operations where TensorFlow's executor runs a loop over single positions.

TensorFlow hands products and softmaxes to oneDNN, which wakes its threads for each of them: 20 to
40 µs on two cores, for what takes 2 µs for one sentence. These operations it leaves to its own
kernels, which are as fast for 256 sentences.

Shapes: as in `layers/dot_product_attention.py`.
"""

import tensorflow as tf

from keras_transformer.kernels.products import is_exact
from keras_transformer.typing import Tensor


def multiply(x: Tensor, y: Tensor, transpose_y: bool = False) -> Tensor:
    """The product of `x` and `y`, `(B, H, T, …)` each; with `transpose_y`, of `x` and `yᵀ`."""
    # TensorFlow's own kernels have no bfloat16 units.
    if x.dtype != tf.float32 and is_exact(x.dtype.name):
        return tf.matmul(x, y, transpose_b=transpose_y)
    flags = {"adj_x": False, "adj_y": transpose_y, "grad_x": False, "grad_y": False}
    x32, y32 = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    product = tf.raw_ops.BatchMatMulV3(x=x32, y=y32, Tout=tf.float32, **flags)
    return tf.cast(product, x.dtype)


def softmax(scores: Tensor) -> Tensor:
    """Softmax of float32 scores along their last axis."""
    return tf.exp(tf.nn.log_softmax(scores))
