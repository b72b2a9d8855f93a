"""The loss, against Keras' own on one-hot labels."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import assert_close, normal

B, T, V = 3, 5, 11
LOGITS = 3 * normal(B, T, V)
IDS = np.random.default_rng(1).integers(1, V, size=(B, T))  # no padding
PADDED = np.where(np.arange(T) < np.array([[5], [2], [3]]), IDS, 0)
SMOOTHINGS = [0.0, 0.1, 0.3, 0.9]
smoothings = pytest.mark.parametrize("smoothing", SMOOTHINGS)


def losses_by_keras(ids, logits, smoothing):
    """Loss per position, from one-hot labels."""
    one_hot = keras.ops.one_hot(ids, logits.shape[-1])
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction=None
    )
    return loss(one_hot, logits)


@smoothings
def test_equals_the_one_hot_form(smoothing):
    expected = np.mean(losses_by_keras(IDS, LOGITS, smoothing))
    assert_close(kt.SmoothedCrossEntropy(smoothing)(IDS, LOGITS), expected)


@smoothings
def test_padding_does_not_count(smoothing):
    of_tokens = np.array(losses_by_keras(PADDED, LOGITS, smoothing))[PADDED != 0]
    assert len(of_tokens) == 10
    loss = kt.SmoothedCrossEntropy(smoothing)
    assert_close(loss(PADDED, LOGITS), of_tokens.mean())
    wild = np.where(PADDED[..., None] == 0, 1e4, LOGITS)
    assert_close(loss(PADDED, wild), of_tokens.mean())
    longer = np.pad(PADDED, [(0, 0), (0, 2)]), np.pad(LOGITS, [(0, 0), (0, 2), (0, 0)])
    assert_close(loss(*longer), of_tokens.mean())


def test_by_hand():
    """Two ids with logits 0 and log 3, hence probabilities 1/4 and 3/4."""
    logits = np.log([[[1.0, 3.0], [1.0, 3.0]]])
    loss = kt.SmoothedCrossEntropy(0.0)
    assert float(loss(np.array([[1, 0]]), logits)) == pytest.approx(np.log(4 / 3))
    smoothed = -(0.95 * np.log(3 / 4) + 0.05 * np.log(1 / 4))  # ε = 0.1, spread over both ids
    assert float(kt.SmoothedCrossEntropy(0.1)(np.array([[1, 0]]), logits)) == pytest.approx(
        smoothed
    )


@smoothings
@pytest.mark.parametrize("ids", [IDS, PADDED], ids=["full", "padded"])
def test_gradient_equals_that_of_the_one_hot_form(ids, smoothing):
    logits = tf.constant(LOGITS)
    tokens = tf.cast(ids != 0, "float32")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        actual = kt.SmoothedCrossEntropy(smoothing)(ids, logits)
        losses = losses_by_keras(ids, logits, smoothing) * tokens
        expected = tf.reduce_sum(losses) / tf.reduce_sum(tokens)
    gradient = tape.gradient(actual, logits)
    assert_close(gradient, np.array(tape.gradient(expected, logits)), 1e-6)
    assert not np.array(gradient)[ids == 0].any()


@pytest.mark.parametrize("shape", [(B,), (B, T)])
def test_sample_weight(shape):
    weight = np.random.default_rng(2).random(shape)
    losses = np.array(losses_by_keras(PADDED, LOGITS, 0.1))
    per_token = (weight[:, None] if len(shape) == 1 else weight) * (PADDED != 0)
    expected = (losses * per_token).sum() / per_token.sum()
    assert_close(kt.SmoothedCrossEntropy(0.1)(PADDED, LOGITS, weight), expected)


@smoothings
def test_batch_of_padding_only(smoothing):
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = kt.SmoothedCrossEntropy(smoothing)(np.zeros_like(PADDED), logits)
    assert float(loss) == 0
    assert not np.array(tape.gradient(loss, logits)).any()


def test_smallest_loss_is_the_entropy_of_the_smoothed_label():
    smoothing = 0.1
    target = np.full(V, smoothing / V)
    target[4] += 1 - smoothing
    floor = -(target * np.log(target)).sum()
    loss = kt.SmoothedCrossEntropy(smoothing)
    assert float(loss(np.array([[4]]), np.log(target)[None, None])) == pytest.approx(
        floor, abs=1e-6
    )
    assert float(loss(np.array([[4]]), 50 * np.eye(V)[None, [4]])) > floor + 0.1


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32"])
def test_labels_of_any_type(dtype):
    loss = kt.SmoothedCrossEntropy(0.1)
    assert_close(loss(PADDED.astype(dtype), LOGITS), float(loss(PADDED, LOGITS)), 1e-6)


@pytest.mark.parametrize("ignored", [-1, -100])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_negative_labels_are_ignored_as_padding_is(ignored, dtype):
    ids = np.where(PADDED == 0, ignored, PADDED).astype(dtype)
    loss, logits = kt.SmoothedCrossEntropy(0.1), tf.constant(LOGITS)
    results = []
    for labels in (PADDED, ids):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            results.append(loss(labels, logits))
        results.append(tape.gradient(results[-1], logits))
    assert_close(results[2], float(results[0]), 1e-6)
    assert_close(results[3], np.array(results[1]), 1e-6)


WRONG = {
    "V": (np.where(IDS == 1, V, IDS), "below 11, .*received the label 11"),
    "beyond int32": (np.full((B, T), 2**32 + 5), f"received the label {2**32 + 5}"),
    "uint8": (np.full((B, T), 255, "uint8"), "received the label 255"),
    "half": (IDS + 0.5, "whole numbers, received"),
}


@pytest.mark.parametrize("ids, message", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("weight", [None, np.ones(B)])
def test_wrong_labels(ids, message, weight):
    """Refused where that is possible; else the loss is NaN, and so are its gradients."""
    loss = kt.SmoothedCrossEntropy(0.1)
    with pytest.raises(ValueError, match=message):
        loss(ids, LOGITS, weight)

    @tf.function(jit_compile=True)
    def compiled(ids, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(ids, logits, weight)
        return value, tape.gradient(value, logits)

    value, gradient = compiled(tf.constant(ids), tf.constant(LOGITS))
    assert np.isnan(value) and np.isnan(gradient).any()


def test_small_integer_types_hold_smaller_ids_than_the_vocabulary():
    loss = kt.SmoothedCrossEntropy(0.0)
    assert float(loss(np.array([[200]], "uint8"), np.zeros((1, 1, 300)))) == pytest.approx(
        np.log(300)
    )


@pytest.mark.parametrize("shape", [(B, T + 1), (B, T - 1), (B,), (B, 1), (B, T, 1)])
def test_shapes_of_labels(shape):
    message = f"shape ({B}, {T}): received labels of shape {shape}"
    with pytest.raises(ValueError, match=re.escape(message)):
        kt.SmoothedCrossEntropy(0.1)(np.ones(shape, "int32"), LOGITS)


@pytest.mark.parametrize("shape", [(B, T + 1), (B + 1,), (B, T, 1)])
def test_shapes_of_sample_weights(shape):
    message = f"received {shape} for labels of shape ({B}, {T})"
    with pytest.raises(ValueError, match=re.escape(message)):
        kt.SmoothedCrossEntropy(0.1)(IDS, LOGITS, np.ones(shape))


def test_large_ids_stay_exact():
    """Ids beyond 256, which bfloat16 would merge, and 2048, float16's limit."""
    logits = normal(1, 3, 3001)
    ids = np.array([[257, 2049, 2999]])
    expected = np.mean(losses_by_keras(ids, logits, 0.1))
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        loss = kt.SmoothedCrossEntropy()
    finally:
        keras.config.set_dtype_policy("float32")
    assert float(loss(ids, logits)) == pytest.approx(expected, abs=1e-5)


def test_configuration_round_trip():
    loss = kt.SmoothedCrossEntropy(0.2, name="own")
    twin = keras.losses.deserialize(keras.losses.serialize(loss))
    assert isinstance(twin, kt.SmoothedCrossEntropy)
    assert twin.get_config() == loss.get_config()
    assert twin.label_smoothing == 0.2 and twin.name == "own"
    assert float(twin(PADDED, LOGITS)) == float(loss(PADDED, LOGITS))


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5])
def test_smoothing_out_of_range(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing must be .*received {smoothing}"):
        kt.SmoothedCrossEntropy(smoothing)
