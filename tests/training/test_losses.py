"""The loss, against Keras' own on one-hot labels; the metrics, by hand; which labels count."""

import re

import keras
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import keras_transformer as kt
from tests.support.layer_harness import assert_close, normal

B, T, V = 3, 5, 11
LOGITS = 3 * normal(B, T, V)
IDS = np.random.default_rng(1).integers(1, V, size=(B, T))  # no padding
PADDED = np.where(np.arange(T) < np.array([[5], [2], [3]]), IDS, 0)


@pytest.fixture
def restored():
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


def losses_by_keras(ids, logits, smoothing):
    options = dict(from_logits=True, label_smoothing=smoothing, reduction=None)
    loss = keras.losses.CategoricalCrossentropy(**options)
    return loss(keras.ops.one_hot(ids, logits.shape[-1]), logits)


def loss_and_gradient(loss, labels, logits=LOGITS, weight=None):
    logits = tf.convert_to_tensor(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = loss(labels, logits, weight)
    return value, tape.gradient(value, logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("ids", [IDS, PADDED], ids=["full", "padded"])
def test_equals_the_one_hot_form_without_the_padding(ids, smoothing):
    logits = tf.constant(LOGITS)
    tokens = tf.cast(ids != 0, "float32")
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = losses_by_keras(ids, logits, smoothing) * tokens
        expected = tf.reduce_sum(losses) / tf.reduce_sum(tokens)
    loss = kt.SmoothedCrossEntropy(smoothing)
    actual, gradient = loss_and_gradient(loss, ids)
    assert_close(actual, float(expected))
    assert_close(gradient, np.array(tape.gradient(expected, logits)), 1e-6)
    assert not np.array(gradient)[ids == 0].any()
    wild = np.where(ids[..., None] == 0, 1e4, LOGITS)
    longer = np.pad(ids, [(0, 0), (0, 2)]), np.pad(wild, [(0, 0), (0, 2), (0, 0)])
    assert_close(loss(*longer), float(expected))


def test_by_hand():
    """Two ids with logits 0 and log 3, hence probabilities 1/4 and 3/4."""
    logits = np.log([[[1.0, 3.0], [1.0, 3.0]]])
    found = [float(kt.SmoothedCrossEntropy(x)(np.array([[1, 0]]), logits)) for x in (0.0, 0.1)]
    smoothed = -(0.95 * np.log(3 / 4) + 0.05 * np.log(1 / 4))  # ε = 0.1, spread over both ids
    assert found == pytest.approx([np.log(4 / 3), smoothed])
    loss, gradient = loss_and_gradient(kt.SmoothedCrossEntropy(0.1), np.zeros_like(PADDED))
    assert float(loss) == 0 and not np.array(gradient).any(), "of padding only"


@pytest.mark.parametrize("shape", [(B,), (B, T)])
def test_sample_weight(shape):
    weight = np.random.default_rng(2).random(shape)
    per_token = (weight[:, None] if len(shape) == 1 else weight) * (PADDED != 0)
    losses = np.array(losses_by_keras(PADDED, LOGITS, 0.1)), LOGITS.argmax(-1) == PADDED
    expected = [(loss * per_token).sum() / per_token.sum() for loss in losses]
    calls = kt.SmoothedCrossEntropy(0.1), kt.MaskedAccuracy()
    assert_close([call(PADDED, LOGITS, weight) for call in calls], expected)


def test_large_ids_stay_exact(restored):
    """Ids beyond 256, which bfloat16 would merge, and 2048, float16's limit."""
    logits = normal(1, 3, 3001)
    ids = np.array([[257, 2049, 2999]])
    expected = np.mean(losses_by_keras(ids, logits, 0.1))
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert float(kt.SmoothedCrossEntropy()(ids, logits)) == pytest.approx(expected, abs=1e-5)


@given(st.integers(-128, -1), st.sampled_from(["int8", "int64", "float16", "float32"]))
def test_negative_labels_are_ignored_as_padding_is(ignored, dtype):
    labels = np.where(PADDED == 0, ignored, PADDED).astype(dtype)
    loss = kt.SmoothedCrossEntropy(0.1)
    for one, other in zip(*(loss_and_gradient(loss, x) for x in (labels, PADDED)), strict=True):
        assert_close(one, np.array(other), 1e-6)
    for metric in (kt.MaskedAccuracy, kt.Perplexity, kt.TargetTokens):
        assert float(metric()(labels, LOGITS)) == float(metric()(PADDED, LOGITS))


@pytest.mark.parametrize(
    "one, dtype", [(11, "int32"), (2**32 + 5, "int64"), (255, "uint8"), (0.5, "float32")]
)
def test_wrong_labels(one, dtype):
    """Refused where that is possible; else the loss is NaN, so are its gradients and metrics."""
    loss, metrics = kt.SmoothedCrossEntropy(0.1), [kt.MaskedAccuracy(), kt.Perplexity()]
    ids = np.where(IDS == 1, one, IDS).astype(dtype)
    for call in (loss, *metrics):
        with pytest.raises(ValueError, match=f"whole numbers below 11, .*received the label {one}"):
            call(ids, LOGITS)

    @tf.function(jit_compile=True)
    def compiled(ids, logits):
        for metric in metrics:
            metric.update_state(ids, logits)
        return loss_and_gradient(loss, ids, logits, np.ones(B))

    value, gradient = compiled(tf.constant(ids), tf.constant(LOGITS))
    assert np.isnan([value, *(metric.result() for metric in metrics)]).all()
    assert np.isnan(gradient).any()


@given(st.lists(st.integers(1, 6), max_size=3).map(tuple).filter(lambda shape: shape != (B, T)))
def test_labels_and_weights_of_another_shape(shape):
    message = f"shape ({B}, {T}), received shape {shape}"
    for call in (kt.SmoothedCrossEntropy(), kt.Perplexity()):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(np.ones(shape, "int32"), LOGITS)
    if shape not in ((), (B,), (1,), (1, 1), (B, 1), (1, T)):
        with pytest.raises(ValueError, match=re.escape(f"{shape} for labels of shape ({B}, {T})")):
            kt.SmoothedCrossEntropy(0.1)(IDS, LOGITS, np.ones(shape))


def test_classes_are_no_tokens():
    """Of labels (B,) for logits (B, C), class 0 would be ignored as padding."""
    for call in (kt.SmoothedCrossEntropy(), kt.MaskedAccuracy()):
        with pytest.raises(ValueError, match=r"\(batch, length, vocabulary\), .*shape \(2, 3\)"):
            tf.function(call)(np.array([0, 1]), tf.zeros([2, 3]))


FEW = np.array([[1, 2, 0, 0], [2, 1, 1, 0]])
BEST = np.array([[1, 1, 0, 2], [2, 1, 0, 0]])  # right: 1 of 2, and 2 of 3
ONE_HOT = np.eye(3, dtype="float32")[BEST]


def test_accuracy_by_hand():
    metric = kt.MaskedAccuracy()
    assert float(metric(np.zeros_like(FEW), ONE_HOT)) == 0
    assert float(metric(FEW, ONE_HOT)) == pytest.approx(3 / 5)
    metric.update_state(FEW[:1], ONE_HOT[:1])  # all tokens seen so far count alike
    assert float(metric.result()) == pytest.approx(4 / 7)
    metric.reset_state()
    metric.update_state(FEW[1:], ONE_HOT[1:])
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_perplexity_by_hand():
    """Probabilities 1/4 and 1/2 of the labels: perplexity √8, padding aside."""
    logits = np.log([[[1.0, 1, 2], [2, 1, 1], [1, 1, 1]]])
    metric = kt.Perplexity()
    assert float(metric(np.array([[1, 0, 0]]), logits)) == pytest.approx(4)
    metric.update_state(np.array([[2, 0, 0]]), logits)
    assert float(metric.result()) == pytest.approx(8**0.5)
    # An implementation by other hands.
    logits = normal(2, 4, 3)
    theirs = keras_nlp.metrics.Perplexity(from_logits=True, mask_token_id=kt.PAD)
    assert float(kt.Perplexity()(FEW, logits)) == pytest.approx(float(theirs(FEW, logits)))


@pytest.mark.parametrize("monitor", ["accuracy", "perplexity"])
def test_callbacks_know_what_is_better(monitor):
    """Of four epochs the second is the best; training stops after two worse ones."""
    x = np.array([[1, 2, 3, 0]])
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(4, 4)])
    metrics = [kt.MaskedAccuracy(), kt.Perplexity()]
    model.compile(keras.optimizers.SGD(0.0), kt.SmoothedCrossEntropy(), metrics=metrics)

    def set_table(epoch, logs):
        model.set_weights([np.eye(4) * (0, 3, -3, -4, -5)[epoch]])

    stopping = keras.callbacks.EarlyStopping(monitor, patience=2, restore_best_weights=True)
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=set_table), stopping]
    history = model.fit(x, x, epochs=5, callbacks=callbacks, verbose=0).history
    assert len(history[monitor]) == 4 and model.get_weights()[0][1, 1] == 3


@pytest.mark.parametrize("floatx", ["float16", "float64"])
def test_sums_of_metrics_are_wide_whatever_floatx_is(floatx, restored):
    """float16 counts to 2,048 and ends at 65,504: an epoch has more target tokens than that."""
    random = np.random.default_rng(3)
    ids, logits = random.integers(1, 30, (512, 160)), random.normal(size=(512, 160, 30))
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(f"mixed_{floatx}" if floatx.endswith("16") else floatx)
    accuracy, perplexity, tokens = kt.MaskedAccuracy(), kt.Perplexity(), kt.TargetTokens()
    for metric in (accuracy, perplexity, tokens):
        for part in (slice(128), slice(128, None)):
            metric.update_state(ids[part], logits[part])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_probs, ids[..., np.newaxis], -1)[..., 0]
    assert float(tokens.result()) == ids.size > 65_504
    assert float(perplexity.result()) == pytest.approx(np.exp(nll.mean()), rel=1e-4)
    assert float(accuracy.result()) == pytest.approx((logits.argmax(-1) == ids).mean(), rel=1e-5)
    for dtype in ("float16", "bfloat16"):  # 70,000 is beyond one, and no sum in the other
        logits = keras.ops.zeros((1, 2, 70_000), dtype)
        assert float(kt.Perplexity()(np.array([[5, 6]]), logits)) == pytest.approx(70_000, rel=1e-5)


def test_training_in_float64(restored):
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    ids, losses = np.array([[3, 4, 0]]), []
    for fused in (True, False):
        keras.utils.set_random_seed(1)
        model = kt.Transformer(9, 9, 1, 8, 2, 8, dropout=0.0)
        how = dict(fused_loss=fused, rdrop=1.0, jit_compile=False)
        model.compile("sgd", kt.SmoothedCrossEntropy(), **how)
        losses += model.fit((ids, ids), ids, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses[:2] == pytest.approx(losses[2:]) and losses[1] < losses[0]
