"""TensorFlow's operations for a loop over single positions, run by its executor.

Shapes: B batch, T number of queries, H heads.
"""

import tensorflow as tf

from keras_transformer.kernels.products import LoopOperations
from keras_transformer.utils import Tensor


def _multiply_heads(x: Tensor, y: Tensor, transpose_y: bool = False) -> Tensor:
    """Multiplies `x` and `y`, `(B, H, T, …)` each; with `transpose_y`, `x` and `yᵀ`."""
    if x.dtype != tf.float32:  # TensorFlow's own kernels do not use bfloat16 units
        return tf.matmul(x, y, transpose_b=transpose_y)
    flags = {"adj_x": False, "adj_y": transpose_y, "grad_x": False, "grad_y": False}
    return tf.raw_ops.BatchMatMulV3(x=x, y=y, Tout=tf.float32, **flags)


def _softmax(scores: Tensor) -> Tensor:
    return tf.exp(tf.nn.log_softmax(scores))


# TensorFlow passes products and softmaxes to oneDNN, which wakes its threads for each of them: 20
# to 40 µs on two cores, instead of 2 µs for one sentence. These operations are computed by
# TensorFlow's own kernels, which are as fast for 256 sentences.
GRAPH_LOOP = LoopOperations(_multiply_heads, _softmax)
