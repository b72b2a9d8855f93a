"""The loss, against Keras' own on one-hot labels; the metrics, by hand and by keras_nlp."""

import re

import keras
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions
from tests.support.layer_harness import assert_close, normal

B, T, V = 3, 5, 11
LOGITS = 3 * normal(B, T, V)
IDS = np.random.default_rng(1).integers(1, V, size=(B, T))  # no padding
PADDED = np.where(np.arange(T) < np.array([[5], [2], [3]]), IDS, 0)
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])


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
    "half": (IDS + 0.5, "whole numbers below 11, .*received"),
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
    message = f"shape ({B}, {T}), received shape {shape}"
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


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5])
def test_smoothing_out_of_range(smoothing):
    with pytest.raises(ValueError, match=f"label_smoothing must be .*received {smoothing}"):
        kt.SmoothedCrossEntropy(smoothing)


# Metrics.

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


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (np.array([1.0, 3.0]), (1 + 3 * 2) / (2 + 3 * 3)),
        (np.array([[4.0, 1, 9, 9], [1, 1, 0, 9]]), (4 + 2) / (5 + 2)),
    ],
    ids=["per row", "per token"],
)
def test_sample_weight_of_metrics(weight, expected):
    assert float(kt.MaskedAccuracy()(FEW, ONE_HOT, weight)) == pytest.approx(expected)


METRICS = [kt.MaskedAccuracy, kt.Perplexity]


@pytest.mark.parametrize("metric", [*METRICS, kt.TargetTokens])
def test_metrics_ignore_negative_labels(metric):
    negative = np.where(FEW == kt.PAD, -100, FEW)
    assert float(metric()(negative, ONE_HOT)) == pytest.approx(float(metric()(FEW, ONE_HOT)))


@pytest.mark.parametrize("metric", METRICS)
def test_wrong_labels_of_metrics(metric):
    """Refused where that is possible, else the metric is NaN."""
    wrong, metric = np.where(FEW == 2, 3, FEW), metric()
    with pytest.raises(ValueError, match="below 3, .*received the label 3"):
        metric(wrong, ONE_HOT)
    with pytest.raises(ValueError, match=r"shape \(2, 4\), received shape \(2, 1\)"):
        metric(FEW[:, :1], ONE_HOT)
    update = tf.function(metric.update_state, jit_compile=True)
    update(tf.constant(wrong), tf.constant(ONE_HOT))
    assert np.isnan(metric.result())


@pytest.mark.parametrize("made", [kt.SmoothedCrossEntropy, *METRICS])
@pytest.mark.parametrize("compiled", [False, True])
def test_classes_are_no_tokens(made, compiled):
    """Of labels (B,) for logits (B, C), class 0 would be ignored as padding."""
    function, shapes = (
        made(),
        r"\(batch, length, vocabulary\), received shape \(2, 3\): for classes",
    )
    call = tf.function(lambda x: function(np.array([0, 1]), x)) if compiled else function
    with pytest.raises(ValueError, match=shapes):
        call(tf.zeros([2, 3])) if compiled else call(np.array([0, 1]), np.zeros([2, 3]))


def test_perplexity_by_hand():
    """Probabilities 1/4 and 1/2 of the labels: perplexity √8, padding aside."""
    logits = np.log([[[1.0, 1, 2], [2, 1, 1], [1, 1, 1]]])
    metric = kt.Perplexity()
    assert float(metric(np.array([[1, 0, 0]]), logits)) == pytest.approx(4)
    metric.update_state(np.array([[2, 0, 0]]), logits)
    assert float(metric.result()) == pytest.approx(8**0.5)


def test_perplexity_equals_that_of_keras_nlp():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 4, 3)).astype("float32")
    theirs = keras_nlp.metrics.Perplexity(from_logits=True, mask_token_id=kt.PAD)
    assert float(kt.Perplexity()(FEW, logits)) == pytest.approx(float(theirs(FEW, logits)))


@pytest.mark.parametrize("metric", [kt.MaskedAccuracy, kt.Perplexity])
@pytest.mark.parametrize("weight", [None, np.array([1.0, 3.0])])
def test_predictions_stand_for_logits(metric, weight):
    logits = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    log_probs = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    of_label = np.take_along_axis(log_probs, FEW[..., None], axis=-1)[..., 0]
    predictions = TokenPredictions(of_label, logits.argmax(-1) == FEW, 3)
    expected = float(metric()(FEW, logits, weight))
    assert float(metric()(FEW, predictions, weight)) == pytest.approx(expected, rel=1e-5)
    negative = np.where(FEW == kt.PAD, -100, FEW)
    assert float(metric()(negative, predictions, weight)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("monitor", ["val_accuracy", "perplexity"])
def test_callbacks_know_what_is_better(monitor, tmp_path):
    """Of four epochs the second is the best; training stops after two worse ones."""
    x = np.array([[1, 2, 3, 0]])
    model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(4, 4)])
    model.compile(
        keras.optimizers.SGD(0.0),
        kt.SmoothedCrossEntropy(),
        metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
    )

    def set_table(epoch, logs):
        model.set_weights([np.eye(4) * (0, 3, -3, -4, -5)[epoch]])

    best = tmp_path / "best.keras"
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_begin=set_table),
        keras.callbacks.EarlyStopping(monitor, patience=2, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, monitor, save_best_only=True),
    ]
    history = model.fit(
        x, x, epochs=5, validation_data=(x, x), callbacks=callbacks, verbose=0
    ).history
    assert len(history[monitor]) == 4
    for kept in (model, keras.saving.load_model(best)):
        assert kept.get_weights()[0][1, 1] == 3


@pytest.mark.parametrize("floatx", ["float16", "float64"])
def test_sums_of_metrics_are_wide_whatever_floatx_is(floatx):
    """float16 counts to 2,048 and ends at 65,504: an epoch has more target tokens than that."""
    rng = np.random.default_rng(3)
    ids = rng.integers(1, 30, (512, 160))
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(f"mixed_{floatx}" if floatx.endswith("16") else floatx)
    try:
        metrics = [kt.MaskedAccuracy(), kt.Perplexity(), kt.TargetTokens()]
        model = kt.Transformer(
            *(30, 30), num_layers=1, d_model=4, num_heads=1, d_ff=4, dropout=0.0, dtype="float32"
        )
        for weight in model.weights:
            weight.assign(rng.normal(size=weight.shape))
        model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=metrics)
        found = model.evaluate((ids, ids), ids, batch_size=128, verbose=0, return_dict=True)
        assert {v.dtype for m in metrics for v in m.variables} <= {"float32", "float64"}
        logits = model.predict((ids, ids), batch_size=128, verbose=0).astype("float64")
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_probs, ids[..., np.newaxis], -1)[..., 0]
    assert found["target_tokens"] == ids.size > 65_504
    assert found["perplexity"] == pytest.approx(np.exp(nll.mean()), rel=1e-4)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == ids).mean(), rel=1e-5)


# Names and files.


@pytest.mark.parametrize(
    "made", [kt.SmoothedCrossEntropy(0.2, "own"), kt.MaskedAccuracy("own"), kt.Perplexity("own")]
)
def test_configuration_round_trip(made):
    module = keras.losses if isinstance(made, keras.losses.Loss) else keras.metrics
    twin = module.deserialize(module.serialize(made))
    assert type(twin) is type(made) and twin.name == "own"
    assert twin.get_config() == made.get_config()
    assert float(twin(PADDED, LOGITS)) == float(made(PADDED, LOGITS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_perplexity_of_half_precision_logits(dtype):
    """Of 70,000 equal logits: beyond float16, and no sum in bfloat16."""
    logits = keras.ops.zeros((1, 2, 70_000), dtype)
    assert float(kt.Perplexity()(np.array([[5, 6]]), logits)) == pytest.approx(70_000, rel=1e-5)
