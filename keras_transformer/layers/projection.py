"""The product of rows and a kernel, once or again and again.

Shapes: D width of the input, D' of the output.
"""

import keras
from keras import ops


def projection(kernel, bias=None, repeated=False):
    """Returns the function `x ↦ x W + b`.

    Args:
        kernel: W, shape `(D, D')`.
        bias: b, shape `(D',)`; or None.
        repeated: Whether the function is for a loop over few rows, where a product takes as long
            as bringing W to the processor. bfloat16 units read pairs of inputs side by side: W is
            laid out that way, once. It took a fifth to a third off the products of 32 rows.

    Returns:
        Function from a tensor of shape `(..., D)` in the kernel's dtype to one of `(..., D')`.
    """
    if repeated and keras.backend.standardize_dtype(kernel.dtype) == "bfloat16":
        columns = ops.transpose(kernel)

        def multiply(x):
            return ops.matmul(x, ops.transpose(columns))  # TensorFlow makes one product of it
    else:

        def multiply(x):
            return ops.matmul(x, kernel)

    # `ops.add` of a vector is a bias to Keras, which TensorFlow fuses with the product.
    return multiply if bias is None else lambda x: ops.add(multiply(x), bias)
