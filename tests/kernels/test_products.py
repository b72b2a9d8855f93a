"""Products of half precision: added up in float32 and rounded once, forwards and backwards."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.kernels.backend import (
    XLA_LOOP,
    graph_projection,
    multiply,
    project,
    xla_projection,
)
from keras_transformer.kernels.tensorflow.fused_cross_entropy import fused_cross_entropy
from keras_transformer.kernels.tensorflow.machine import GRAPH_LOOP
from keras_transformer.layers.attention import attend_heads
from tests.support.layer_harness import truncates

# The distance of 1 to the next number.
ULP = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


pytestmark = pytest.mark.skipif(truncates(), reason="needs instructions for bfloat16")


def heads(x):
    return x[tf.newaxis, tf.newaxis]


# Every product that we use, as a function of a row (1, N) and a column (N, 1).
PRODUCTS = {
    "multiply": multiply,
    "transposed": lambda x, y: multiply(x, tf.transpose(y), transpose_y=True),
    "transposed first": lambda x, y: multiply(tf.transpose(x), y, transpose_x=True),
    "heads": lambda x, y: multiply(heads(x), heads(y))[0, 0],
    "heads transposed": lambda x, y: multiply(heads(x), heads(tf.transpose(y)), transpose_y=True)[
        0, 0
    ],
    "projection": lambda x, y: project(x, y),
    "projection of three axes": lambda x, y: project(x[tf.newaxis], y)[0],
    "projection, graph's loop": lambda x, y: graph_projection(y)(x),
    "projection, XLA's loop": lambda x, y: xla_projection(y)(x),
    "a position's heads": lambda x, y: GRAPH_LOOP.multiply(heads(x), heads(y))[0, 0],
    "a position's heads transposed": lambda x, y: GRAPH_LOOP.multiply(
        heads(x), heads(tf.transpose(y)), transpose_y=True
    )[0, 0],
}
# Those for TensorFlow's executor have no gradient and no kernel of XLA's.
WITHOUT_GRADIENT = [name for name in PRODUCTS if "position" in name]
WAYS = [
    (name, how)
    for name in PRODUCTS
    for how in ("eager", "graph", "XLA")
    if how != "XLA" or name not in WITHOUT_GRADIENT
]


def cases(dtype):
    """(terms of a sum, the number of the type that is nearest to it)."""
    yield [1.0, 0.75 * ULP[dtype]], 1 + ULP[dtype]
    yield [1.0, 0.25 * ULP[dtype]], 1.0
    yield [1.0] * 4096, 4096.0


@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("name,how", WAYS)
def test_sums_are_rounded_once(name, how, dtype):
    product = PRODUCTS[name]
    if how != "eager":
        product = tf.function(product, autograph=False, jit_compile=how == "XLA")
    for terms, expected in cases(dtype):
        row = tf.constant([terms], dtype)
        found = product(row, tf.ones([len(terms), 1], dtype))
        assert found.dtype == dtype
        assert float(found[0, 0]) == expected


@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in WITHOUT_GRADIENT])
def test_gradients_are_rounded_once(name, dtype):
    """Of the row a sum over columns, of the matrix a sum over rows."""
    for terms, expected in cases(dtype):
        upstream, ones = tf.constant([terms], dtype), tf.ones([1, len(terms)], dtype)
        for x, y, of_row in [
            (tf.ones([1, 1], dtype), ones, True),
            (tf.ones([len(terms), 1], dtype), tf.ones([1, 1], dtype), False),
        ]:
            with tf.GradientTape() as tape:
                tape.watch([x, y])
                out = PRODUCTS[name](x, y)
            given = upstream if of_row else tf.transpose(upstream)
            of_x, of_y = tape.gradient(out, [x, y], given)
            found = of_x if of_row else of_y
            assert found.dtype == dtype and float(found[0, 0]) == expected


def test_logits_of_a_shared_embedding():
    for terms, expected in cases("bfloat16"):
        layer = kt.PositionalEmbedding(1, len(terms), dtype="mixed_bfloat16")
        layer.build()
        layer.embeddings.assign(np.ones((1, len(terms))))
        assert float(layer.logits(tf.constant([terms]))[0, 0]) == expected


@pytest.mark.parametrize("operations", [XLA_LOOP, GRAPH_LOOP])
def test_scores_of_attention(operations):
    """Two keys whose scores are the same number once they are rounded have equal weights."""
    ulp = ULP["bfloat16"]
    query = tf.constant([1.0, 1.0], "bfloat16")[tf.newaxis, tf.newaxis, tf.newaxis]
    key = heads(tf.constant([[1.0, 0.75 * ulp], [1 + ulp, 0.0]], "bfloat16"))
    _, weights = attend_heads(
        query, key, key, multiply=operations.multiply, softmax=operations.softmax
    )
    assert float(weights[0, 0, 0, 0]) == float(weights[0, 0, 0, 1]) == 0.5


def test_fused_loss():
    """Its three products: logits, and both gradients."""
    ulp, ones = ULP["bfloat16"], tf.ones([1])

    def run(states, matrix, labels, weights=ones):
        states, matrix = tf.constant(states, "bfloat16"), tf.constant(matrix, "float32")
        return fused_cross_entropy(states[tf.newaxis], matrix, tf.constant(labels), weights, 0.0)

    for states, one, other in (
        ([1.0, 0.75 * ulp], [1.0, 1.0], [1 + ulp, 0.0]),  # the same number, once rounded
        ([1.0] * 4096, [1.0] * 4096, [4096.0] + [0.0] * 4095),
    ):
        _, _, predictions = run([states], [one, other], [0])
        np.testing.assert_allclose(predictions.log_probs, np.log(0.5), rtol=1e-6)
    # A uniform softmax over rows of ones: their mean is 1, so a step towards one changes nothing.
    _, (of_states, _, _), _ = run([[0.0]], np.ones((4096, 1)), [0])
    assert float(of_states[0, 0, 0]) == 0.0
    # A vocabulary of one id: the gradient is a sum over positions.
    _, (_, of_matrix, _), _ = run(np.ones((1000, 1)), [[1.0]], [0] * 1000, tf.ones([1000]))
    assert float(of_matrix[0, 0]) == 1000.0


def test_other_precisions_are_left_alone():
    x = np.random.default_rng(1).normal(size=(3, 4)).astype("float32")
    np.testing.assert_array_equal(multiply(tf.constant(x), tf.constant(x.T)), tf.matmul(x, x.T))
    assert keras.backend.standardize_dtype(multiply(x, x.T).dtype) == "float32"
    # What float32 would lose.
    row, column = tf.constant([[1.0, 2.0**-40]], tf.float64), tf.ones([2, 1], tf.float64)
    for product in PRODUCTS.values():
        assert float(product(row, column)[0, 0]) == 1 + 2.0**-40
