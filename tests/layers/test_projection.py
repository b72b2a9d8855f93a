import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.layers.projection import projection

RANDOM = np.random.default_rng(0)


# Few and many rows, and a kernel that is much wider than high; in XLA's loops, x has two axes.
SHAPES = [((5,), 4), ((20,), 4), ((3,), 60)]
CASES = [(loop, *shape) for loop in (None, "graph", "xla") for shape in SHAPES]
CASES += [(None, (2, 5), 4), ("graph", (2, 5), 4)]


@pytest.mark.parametrize("loop, leading, width", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_is_the_product_and_the_bias(loop, leading, width, dtype):
    x, kernel, bias = (RANDOM.normal(size=size) for size in ((*leading, 6), (6, width), (width,)))
    if dtype == "bfloat16":  # what the rounded numbers give, before their product is rounded
        x, kernel, bias = (
            array.astype(ml_dtypes.bfloat16).astype("float64") for array in (x, kernel, bias)
        )
    tensors = [ops.convert_to_tensor(array, dtype=dtype) for array in (x, kernel, bias)]

    @tf.function(jit_compile=loop == "xla")
    def project(x, *weights):
        return projection(*weights, loop=loop)(x)

    found, without_bias = project(*tensors), project(*tensors[:2])
    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == "float32" else dict(rtol=1e-2, atol=3e-2)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(found, "float32")), x @ kernel + bias, **tolerance
    )
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.cast(without_bias, "float32")), x @ kernel, **tolerance
    )


def test_unknown_loop():
    with pytest.raises(ValueError, match='loop must be None, "graph" or "xla", received \'gpu\''):
        projection(np.ones([2, 2]), loop="gpu")
