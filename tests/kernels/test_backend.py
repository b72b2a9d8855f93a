"""Products: what they are, and in half precision, added up in float32 and rounded once."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer.kernels import backend
from keras_transformer.kernels.backend import graph_projection, multiply, project, xla_projection
from keras_transformer.kernels.tensorflow.machine import GRAPH_LOOP
from tests.support.layer_harness import truncates

RANDOM = np.random.default_rng(0)


# Parts of the product, of a width that they do not divide; and for XLA few rows, many, and a kernel
# that is much wider than high.
@pytest.mark.parametrize(
    "size, parts, rows, width", [(99, 1, 2, 11), (20, 3, 20, 11), (1, 4, 3, 61)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_projections(by_columns, dtype, size, parts, rows, width, monkeypatch):
    monkeypatch.setattr(backend, "PART_SIZE", size)
    x, kernel, bias = (RANDOM.integers(-3, 4, shape) for shape in ((rows, 6), (6, width), (width,)))
    product = x @ kernel
    x, *weights = (ops.convert_to_tensor(array, dtype=dtype) for array in (x, kernel, bias))
    assert_equal(project(x, *weights), product + bias)
    weights[0] = ops.transpose(weights[0]) if by_columns else weights[0]
    for given, expected in ((weights, product + bias), (weights[:1], product)):
        in_graph = tf.function(graph_projection(*given, by_columns=by_columns))
        assert_equal(in_graph(x), expected)
        operations = in_graph.get_concrete_function(x).graph.get_operations()
        assert [one.type for one in operations].count("MatMul") == parts
        by_xla = tf.function(xla_projection(*given, by_columns=by_columns), jit_compile=True)
        assert_equal(by_xla(x), expected)


def assert_equal(found, expected):
    """Small integers are exact."""
    np.testing.assert_array_equal(ops.convert_to_numpy(ops.cast(found, "float32")), expected)


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
