"""Products: what they are, and in half precision, added up in float32 and rounded once."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.kernels import backend
from keras_transformer.kernels.backend import graph_projection, multiply, project, xla_projection
from keras_transformer.kernels.tensorflow.machine import GRAPH_LOOP
from tests.support.layer_harness import truncates

RANDOM = np.random.default_rng(0)


# Projections. Few and many rows, and a kernel that is much wider than high.
PROJECTIONS = {
    "at once": lambda kernel, bias=None: lambda x: project(x, kernel, bias),
    "graph": graph_projection,
    "xla": xla_projection,  # x has two axes
}
CASES = [("at once", (2, 5), 4), ("graph", (5,), 4)]
CASES += [("xla", (5,), 4), ("xla", (20,), 4), ("xla", (3,), 60)]


@pytest.mark.parametrize("way, leading, width", CASES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_is_the_product_and_the_bias(way, leading, width, dtype):
    arrays = [RANDOM.normal(size=size) for size in ((*leading, 6), (6, width), (width,))]
    if dtype == "bfloat16":  # what the rounded numbers give, before their product is rounded
        arrays = [array.astype(ml_dtypes.bfloat16).astype("float64") for array in arrays]
    tensors = [ops.convert_to_tensor(array, dtype=dtype) for array in arrays]
    x, kernel, bias = arrays

    @tf.function(jit_compile=way == "xla")
    def run(x, *weights):
        return PROJECTIONS[way](*weights)(x), PROJECTIONS[way](weights[0])(x)

    tolerance = dict(rtol=1e-5, atol=1e-5) if dtype == "float32" else dict(rtol=1e-2, atol=3e-2)
    for found, expected in zip(run(*tensors), (x @ kernel + bias, x @ kernel), strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == dtype
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        np.testing.assert_allclose(found, expected, **tolerance)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size, parts", [(1 << 20, 1), (20, 3), (1, 4)])
def test_parts_of_a_product(size, parts, dtype, by_columns, monkeypatch):
    """Of a width that they do not divide; all are the product itself."""
    monkeypatch.setattr(backend, "PART_SIZE", size)
    x, kernel, bias = (RANDOM.integers(-3, 4, shape) for shape in ((2, 6), (6, 11), (11,)))
    given = [ops.convert_to_tensor(array, dtype=dtype) for array in (x, kernel, bias)]
    given[1] = ops.transpose(given[1]) if by_columns else given[1]
    for more, expected in ((given[2:], x @ kernel + bias), ([], x @ kernel)):
        run = tf.function(graph_projection(given[1], *more, by_columns=by_columns))
        found = ops.convert_to_numpy(ops.cast(run(given[0]), "float32"))
        np.testing.assert_array_equal(found, expected)  # small integers are exact
        operations = [x.type for x in run.get_concrete_function(given[0]).graph.get_operations()]
        assert operations.count("MatMul") == parts
    expected = ops.convert_to_numpy(ops.cast(run(given[0]), "float32"))
    kernel = given[1]
    run = tf.function(backend.xla_projection(kernel, by_columns=by_columns), jit_compile=True)
    found = ops.convert_to_numpy(ops.cast(run(given[0]), "float32"))
    np.testing.assert_array_equal(found, expected)


# The distance of 1 to the next number.
ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def of_heads(multiply, transpose_y):
    def product(x, y):
        heads = (z[tf.newaxis, tf.newaxis] for z in (x, tf.transpose(y) if transpose_y else y))
        return multiply(*heads, transpose_y=transpose_y)[0, 0]

    return product


# Every product that we use, as a function of a row (1, N) and a column (N, 1).
PRODUCTS = {
    "multiply": multiply,
    "transposed": lambda x, y: multiply(x, tf.transpose(y), transpose_y=True),
    "transposed first": lambda x, y: multiply(tf.transpose(x), y, transpose_x=True),
    "heads": of_heads(multiply, False),
    "heads transposed": of_heads(multiply, True),
    "projection": lambda x, y: project(x, y),
    "projection, graph's loop": lambda x, y: graph_projection(y)(x),
    "projection, XLA's loop": lambda x, y: xla_projection(y)(x),
    "a position's heads": of_heads(GRAPH_LOOP.multiply, False),
    "a position's heads transposed": of_heads(GRAPH_LOOP.multiply, True),
}
WAYS = [(name, "eager") for name in PRODUCTS]
WAYS += [(name, "graph") for name in ("projection, graph's loop", "a position's heads transposed")]
WAYS += [(name, "XLA") for name in ("heads transposed", "projection", "projection, XLA's loop")]


@pytest.mark.skipif(truncates(), reason="needs instructions for bfloat16")
@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("name, how", WAYS)
def test_sums_are_rounded_once(name, how, dtype):
    product, ulp = PRODUCTS[name], ULP[dtype]
    if how != "eager":
        product = tf.function(product, autograph=False, jit_compile=how == "XLA")
    sums = ([1.0, 0.75 * ulp], 1 + ulp), ([1.0, 0.25 * ulp], 1.0), ([1.0] * 4096, 4096.0)
    for terms, expected in sums:
        found = product(tf.constant([terms], dtype), tf.ones([len(terms), 1], dtype))
        assert found.dtype == dtype and float(found[0, 0]) == expected


def test_other_precisions_are_left_alone():
    x = RANDOM.normal(size=(3, 4)).astype("float32")
    np.testing.assert_array_equal(multiply(tf.constant(x), tf.constant(x.T)), tf.matmul(x, x.T))
    # What float32 would lose.
    row, column = tf.constant([[1.0, 2.0**-40]], tf.float64), tf.ones([2, 1], tf.float64)
    for product in PRODUCTS.values():
        assert float(product(row, column)[0, 0]) == 1 + 2.0**-40
