"""What attention is made of where TensorFlow's executor runs a loop over single positions.

TensorFlow hands products and softmaxes to oneDNN, which wakes its threads for each of them: 20 to
40 µs on two cores, for what takes 2 µs for one sentence. These operations it leaves to its own
kernels, which are as fast for 256 sentences.

Shapes: as in `layers/scaled_dot_product.py`.
"""

import tensorflow as tf


def multiply(x, y, transpose=False):
    """The product of `x` and `y`, `(B, H, T, …)` each; with `transpose`, of `x` and `yᵀ`."""
    if x.dtype != tf.float32:  # TensorFlow's own kernels have no bfloat16 units
        return tf.matmul(x, y, transpose_b=transpose)
    flags = {"adj_x": False, "adj_y": transpose, "grad_x": False, "grad_y": False}
    return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32, **flags)


def softmax(scores):
    """Softmax of float32 scores along their last axis."""
    return tf.exp(tf.nn.log_softmax(scores))
