"""The product of rows and a kernel, once or again and again.

Shapes: N rows, D width of the input, D' of the output.
"""

import keras
from keras import ops

# XLA packs the second factor of a product anew each time. It is faster to make that the rows:
FEWEST_ROWS = 16  # from so many rows on,
VOCABULARY = 8  # or where the kernel is so many times as wide as high, by columns in memory already
LOWEST = -3.4e38  # about float32's and bfloat16's lowest number


def projection(kernel, bias=None, loop=None):
    """Returns the function `x ↦ x W + b`.

    In a loop over few rows, a product takes about as long as bringing W to the processor, and how
    W is laid out matters: that is done once, before the loop.

    - `"graph"`: bfloat16 units read pairs of inputs side by side. W lies by columns: a fifth to a
      third less for 32 rows.
    - `"xla"`: the product is `(Wᵀ xᵀ)ᵀ`: a third less for 32 rows.

    Args:
        kernel: W, shape `(D, D')`.
        bias: b, shape `(D',)`; or None.
        loop: What runs the loop that the function is for: `"graph"` (TensorFlow's executor),
            `"xla"`, or None where there is no loop.

    Returns:
        Function from a tensor of shape `(..., D)`, in `"xla"` `(N, D)`, in the kernel's dtype to
        one of `(..., D')`.

    Raises:
        ValueError: If `loop` is something else.
    """
    if loop not in (None, "graph", "xla"):
        raise ValueError(f'loop must be None, "graph" or "xla", received {loop!r}.')
    if loop == "xla":
        return _by_columns(kernel, bias)
    if loop == "graph" and keras.backend.standardize_dtype(kernel.dtype) == "bfloat16":
        columns = ops.transpose(kernel)
        if bias is None:  # only beside a bias does TensorFlow keep how it lays out frozen weights
            bias = ops.zeros((kernel.shape[1],), kernel.dtype)

        def multiply(x):
            return ops.matmul(x, ops.transpose(columns))  # TensorFlow makes one product of it
    else:
        product = ops.matmul if loop else _product

        def multiply(x):
            return product(x, kernel)

        if loop == "graph" and bias is not None:
            minus_bias = ops.negative(bias)
            # TensorFlow fuses a sum with the product, which for few rows takes longer than both.
            return lambda x: ops.subtract(multiply(x), minus_bias)

    # `ops.add` of a vector is a bias to Keras, which TensorFlow fuses with the product.
    return multiply if bias is None else lambda x: ops.add(multiply(x), bias)


def _product(x, kernel):
    """`x W`, of whose gradients some are batches of one product.

    With a factor transposed that is larger than the other, oneDNN's batched product of float32
    takes up to a tenth less than that of matrices. Elsewhere, XLA among them, both are the same,
    as long as it is written as a sum over letters: a transposition beside it may be carried out.
    """
    if len(x.shape) != 2:
        return ops.matmul(x, kernel)

    @ops.custom_gradient
    def product(x, kernel):
        def gradients(*arguments, upstream=None):
            (upstream,) = arguments if upstream is None else (upstream,)
            rows, kernels, upstreams = (ops.expand_dims(y, 0) for y in (x, kernel, upstream))
            of_x = ops.squeeze(ops.einsum("bnw,bdw->bnd", upstreams, kernels), 0)
            if kernel.shape[0] <= kernel.shape[1]:
                return of_x, ops.matmul(ops.transpose(x), upstream)
            return of_x, ops.squeeze(ops.einsum("bnd,bnw->bdw", rows, upstreams), 0)

        return ops.matmul(x, kernel), gradients

    return product(x, kernel)


def _by_columns(kernel, bias):
    """The projection for XLA's loops, where that is the faster way."""
    height, width = kernel.shape
    columns, by_rows = ops.transpose(kernel), projection(kernel, bias)

    def project(x):
        if width < VOCABULARY * height and (x.shape[0] or 0) < FEWEST_ROWS:
            return by_rows(x)
        y = ops.matmul(columns, ops.transpose(x))
        # Something between product and transposition, or XLA swaps the factors back.
        y = ops.maximum(y, LOWEST) if bias is None else y + ops.expand_dims(bias, 1)
        return ops.transpose(y)

    return project
