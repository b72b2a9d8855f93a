import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.kernels.backend import graph_projection, project, xla_projection

RANDOM = np.random.default_rng(0)


# Few and many rows, and a kernel that is much wider than high; in XLA's loops, x has two axes.
SHAPES = [((5,), 4), ((20,), 4), ((3,), 60)]
WAYS = {
    "at once": lambda kernel, bias=None: lambda x: project(x, kernel, bias),
    "graph": graph_projection,
    "xla": xla_projection,
}
CASES = [(way, *shape) for way in WAYS for shape in SHAPES]
CASES += [("at once", (2, 5), 4), ("graph", (2, 5), 4)]


@pytest.mark.parametrize("way, leading, width", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_is_the_product_and_the_bias(way, leading, width, dtype):
    x, kernel, bias = (RANDOM.normal(size=size) for size in ((*leading, 6), (6, width), (width,)))
    if dtype == "bfloat16":  # what the rounded numbers give, before their product is rounded
        x, kernel, bias = (
            array.astype(ml_dtypes.bfloat16).astype("float64") for array in (x, kernel, bias)
        )
    tensors = [ops.convert_to_tensor(array, dtype=dtype) for array in (x, kernel, bias)]

    @tf.function(jit_compile=way == "xla")
    def run(x, *weights):
        return WAYS[way](*weights)(x)

    found, without_bias = run(*tensors), run(*tensors[:2])
    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == "float32" else dict(rtol=1e-2, atol=3e-2)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(found, "float32")), x @ kernel + bias, **tolerance
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(without_bias, "float32")), x @ kernel, **tolerance
    )


@pytest.mark.parametrize("leading", [(20,), (2, 5)])
@pytest.mark.parametrize("width", [4, 9])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients(leading, width, jit_compile):
    """`dx = dy Wᵀ`, `dW = xᵀ dy`, `db = Σ dy`, of kernels wider than high and higher than wide."""
    sizes = ((*leading, 6), (6, width), (width,), (*leading, width))
    x, kernel, bias, upstream = (RANDOM.normal(size=size).astype("float32") for size in sizes)

    @tf.function(jit_compile=jit_compile)
    def gradients(*given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = project(*given)
        return tape.gradient(y, given, upstream)

    found = gradients(*(tf.constant(array) for array in (x, kernel, bias)))
    rows, upstreams = x.reshape(-1, 6), upstream.reshape(-1, width)
    expected = (upstream @ kernel.T, rows.T @ upstreams, upstreams.sum(axis=0))
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_gradient_of_a_gradient():
    """For penalties on gradients."""
    x, kernel = (tf.constant(RANDOM.normal(size=size), "float32") for size in ((5, 6), (6, 4)))
    with tf.GradientTape() as outer:
        outer.watch(kernel)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_sum(project(x, kernel) ** 2)
        penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    square = kernel @ tf.transpose(kernel)
    expected = 8 * tf.transpose(x) @ x @ square @ kernel + 8 * square @ tf.transpose(x) @ x @ kernel
    np.testing.assert_allclose(outer.gradient(penalty, kernel), expected, rtol=1e-3)
