"""The loss without logits, against the loss of logits."""

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.kernels.tensorflow import fused_cross_entropy as fused
from tests.support import oracle
from tests.support.layer_harness import assert_close, normal, to_numpy, truncates

N, D, V = 12, 6, 17
STATES, MATRIX = normal(N, D), normal(V, D)
LABELS = np.random.default_rng(1).integers(1, V, N).astype("int32")
LABELS[[3, 10]] = kt.PAD
WEIGHTS = (LABELS != kt.PAD).astype("float32")


def of_logits(states, matrix, smoothing):
    """Loss and gradients through the logits; the loss is a mean over the tokens."""
    states, matrix = tf.convert_to_tensor(states), tf.convert_to_tensor(matrix)
    with tf.GradientTape() as tape:
        tape.watch([states, matrix])
        logits = tf.matmul(states, matrix, transpose_b=True)
        loss = kt.SmoothedCrossEntropy(smoothing)(LABELS[None], logits[None]) * WEIGHTS.sum()
    return loss, *tape.gradient(loss, [states, matrix])


def of_states(states, matrix, smoothing, labels=LABELS, weights=WEIGHTS):
    given = tf.convert_to_tensor(states)[None], tf.convert_to_tensor(matrix), labels, weights
    loss, gradients, predictions = fused.fused_cross_entropy(*given, smoothing)
    of_x, of_matrix, of_rows = gradients
    assert of_rows.dtype == of_matrix.dtype
    of_matrix = tf.tensor_scatter_nd_add(of_matrix, tf.reshape(labels, [-1, 1]), of_rows)
    return (loss, of_x[0], of_matrix), predictions


@pytest.fixture(params=[4, 1000])
def part(request, monkeypatch):
    """Parts of which the last is not full, and a single one."""
    monkeypatch.setattr(fused, "SLICE_SIZE", request.param)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_loss_of_logits(part, smoothing):
    actual, _ = of_states(STATES, MATRIX, smoothing)
    assert_close(actual, to_numpy(of_logits(STATES, MATRIX, smoothing)))


def test_predictions(part):
    logits = STATES.astype("float64") @ MATRIX.T.astype("float64")
    hits = np.arange(N) % 3 == 0
    labels = np.where(hits, logits.argmax(axis=1), logits.argsort(axis=1)[:, -2]).astype("int32")
    _, predictions = of_states(STATES, MATRIX, 0.1, labels)
    expected = logits[np.arange(N), labels] - np.log(np.exp(logits).sum(axis=1))
    assert_close(predictions.log_probs, expected, 1e-5)
    assert np.array_equal(predictions.correct, hits)


def test_far_apart_logits_stay_finite():
    size = 1e5
    values, predictions = of_states((size * STATES).astype("float32"), MATRIX, 0.1)
    assert all(np.isfinite(np.array(value)).all() for value in values)
    logits = (size * STATES).astype("float32").astype("float64") @ MATRIX.T
    expected = logits[np.arange(N), LABELS] - np.logaddexp.reduce(logits, axis=1)
    assert np.abs(predictions.log_probs - expected).max() < 1e-6 * np.abs(expected).max()


def test_no_position_at_all():
    empty = np.zeros(0, "int32"), np.zeros(0, "float32")
    (loss, of_x, of_matrix), predictions = of_states(STATES[:0], MATRIX, 0.1, *empty)
    assert float(loss) == 0 and of_x.shape == (0, D)
    assert not np.array(of_matrix).any()
    assert predictions.correct.shape == predictions.log_probs.shape == (0,)


@pytest.mark.parametrize(
    "dtype, matrix_dtype, tolerance", [("bfloat16", "bfloat16", 0.1), ("float16", "float32", 0.01)]
)
def test_half_precision(dtype, matrix_dtype, tolerance):
    states, matrix = tf.cast(STATES, dtype), tf.cast(tf.cast(MATRIX, dtype), matrix_dtype)
    (loss, *gradients), _ = of_states(states, matrix, 0.1)
    expected, *wanted = of_logits(tf.cast(states, "float32"), tf.cast(matrix, "float32"), 0.1)
    assert loss.dtype == tf.float32 and float(loss) == pytest.approx(float(expected), rel=1e-2)
    assert [gradient.dtype for gradient in gradients] == [states.dtype, matrix.dtype]
    for mine, other in zip(to_numpy(gradients), wanted, strict=True):
        assert np.abs(mine - other).max() < tolerance


def test_compiled_by_xla():
    compiled = tf.function(of_states, jit_compile=True)
    values, _ = compiled(tf.constant(STATES), tf.constant(MATRIX), 0.1)
    assert_close(values, to_numpy(of_logits(STATES, MATRIX, 0.1)))
    wrong = np.where(np.arange(N)[:, None] == 1, np.nan, STATES)  # of an unknown id
    assert np.isnan(compiled(tf.constant(wrong), tf.constant(MATRIX), 0.1)[0][0])


def slopes(function, x, step=1e-6):
    result = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[index] = step
        result[index] = (function(x + moved) - function(x - moved)) / (2 * step)
    return result


def test_rdrop_against_float64(part):
    alpha = 0.5
    states, weights = normal(2, N, D), WEIGHTS * np.random.default_rng(3).random(N)
    given = tf.constant(states), tf.constant(MATRIX), LABELS, weights.astype("float32"), 0.1, alpha
    loss, (of_x, of_matrix, of_rows), predictions = fused.fused_cross_entropy(*given)
    of_matrix = tf.tensor_scatter_nd_add(of_matrix, LABELS[:, None], of_rows)
    x, matrix = states.astype("float64"), MATRIX.astype("float64")
    how = LABELS, weights, 0.1, alpha
    assert float(loss) == pytest.approx(oracle.rdrop_loss(x, matrix, *how), rel=1e-5)
    assert_close(of_x, slopes(lambda x: oracle.rdrop_loss(x, matrix, *how), x), 2e-5)
    assert_close(of_matrix, slopes(lambda matrix: oracle.rdrop_loss(x, matrix, *how), matrix), 2e-5)
    alone = of_states(states[0], MATRIX, 0.1)[1]
    assert_close(predictions.log_probs, np.array(alone.log_probs), 1e-6)


@pytest.mark.skipif(truncates(), reason="needs instructions for bfloat16")
def test_half_precision_is_rounded_once():
    ulp, ones = 2.0**-7, tf.ones([1])

    def run(states, matrix, labels, weights=ones):
        states, matrix = tf.constant(states, "bfloat16"), tf.constant(matrix, "float32")
        return fused.fused_cross_entropy(states[None], matrix, tf.constant(labels), weights, 0.0)

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
