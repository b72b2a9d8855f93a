"""Masked accuracy and perplexity, by hand and by keras_nlp."""

import keras
import keras_nlp
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.kernels.tensorflow.fused_cross_entropy import TokenPredictions

IDS = np.array([[1, 2, 0, 0], [2, 1, 1, 0]])
BEST = np.array([[1, 1, 0, 2], [2, 1, 0, 0]])  # right: 1 of 2, and 2 of 3
LOGITS = np.eye(3, dtype="float32")[BEST]


def test_by_hand():
    metric = kt.MaskedAccuracy()
    assert float(metric(IDS, LOGITS)) == pytest.approx(3 / 5)
    metric.update_state(IDS[:1], LOGITS[:1])  # all tokens seen so far count alike
    assert float(metric.result()) == pytest.approx(4 / 7)
    metric.reset_state()
    metric.update_state(IDS[1:], LOGITS[1:])
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_batches_of_any_padding():
    """A token is a token, however long the longest sentence of its batch is."""
    metric = kt.MaskedAccuracy()
    metric.update_state(IDS[:1, :2], LOGITS[:1, :2])  # 1 of 2, without padding
    metric.update_state(IDS[1:], LOGITS[1:])
    assert float(metric.result()) == pytest.approx(3 / 5)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32"])
def test_labels_of_any_type(dtype):
    assert float(kt.MaskedAccuracy()(IDS.astype(dtype), LOGITS)) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (np.array([1.0, 3.0]), (1 + 3 * 2) / (2 + 3 * 3)),
        (np.array([[4.0, 1, 9, 9], [1, 1, 0, 9]]), (4 + 2) / (5 + 2)),
    ],
    ids=["per row", "per token"],
)
def test_sample_weight(weight, expected):
    assert float(kt.MaskedAccuracy()(IDS, LOGITS, weight)) == pytest.approx(expected)


METRICS = [kt.MaskedAccuracy, kt.Perplexity]


@pytest.mark.parametrize("metric", [*METRICS, kt.TargetTokens])
def test_negative_labels_are_ignored_as_padding_is(metric):
    negative = np.where(IDS == kt.PAD, -100, IDS)
    assert float(metric()(negative, LOGITS)) == pytest.approx(float(metric()(IDS, LOGITS)))


@pytest.mark.parametrize("metric", METRICS)
def test_wrong_labels(metric):
    """Refused where that is possible, else the metric is NaN."""
    wrong, metric = np.where(IDS == 2, 3, IDS), metric()
    with pytest.raises(ValueError, match="below 3, .*received the label 3"):
        metric(wrong, LOGITS)
    with pytest.raises(ValueError, match=r"shape \(2, 4\): received labels of shape \(2, 1\)"):
        metric(IDS[:, :1], LOGITS)
    update = tf.function(metric.update_state, jit_compile=True)
    update(tf.constant(wrong), tf.constant(LOGITS))
    assert np.isnan(metric.result())


def test_padding_only():
    assert float(kt.MaskedAccuracy()(np.zeros_like(IDS), LOGITS)) == 0


def test_configuration_round_trip():
    metric = kt.MaskedAccuracy(name="own")
    twin = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert isinstance(twin, kt.MaskedAccuracy)
    assert twin.get_config() == metric.get_config()
    assert twin.name == "own"
    assert float(twin(IDS, LOGITS)) == pytest.approx(3 / 5)


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
    assert float(kt.Perplexity()(IDS, logits)) == pytest.approx(float(theirs(IDS, logits)))


@pytest.mark.parametrize("metric", [kt.MaskedAccuracy, kt.Perplexity])
@pytest.mark.parametrize("weight", [None, np.array([1.0, 3.0])])
def test_predictions_stand_for_logits(metric, weight):
    logits = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    log_probs = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    of_label = np.take_along_axis(log_probs, IDS[..., None], axis=-1)[..., 0]
    predictions = TokenPredictions(of_label, logits.argmax(-1) == IDS, 3)
    expected = float(metric()(IDS, logits, weight))
    assert float(metric()(IDS, predictions, weight)) == pytest.approx(expected, rel=1e-5)
    negative = np.where(IDS == kt.PAD, -100, IDS)
    assert float(metric()(negative, predictions, weight)) == pytest.approx(expected, rel=1e-5)


def test_perplexity_round_trip():
    twin = keras.metrics.deserialize(keras.metrics.serialize(kt.Perplexity(name="own")))
    assert isinstance(twin, kt.Perplexity) and twin.name == "own"


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


@pytest.mark.parametrize("floatx", ["float16", "bfloat16", "float32", "float64"])
def test_sums_are_wide_whatever_floatx_is(floatx):
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
        model.build()
        for weight in model.weights:
            weight.assign(rng.normal(size=weight.shape))
        model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=metrics)
        found = model.evaluate((ids, ids), ids, batch_size=128, verbose=0, return_dict=True)
        assert {v.dtype for v in model.metrics_variables} <= {"float32", "float64"}
        logits = model.predict((ids, ids), batch_size=128, verbose=0).astype("float64")
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_probs, ids[..., np.newaxis], -1)[..., 0]
    smoothed = 0.9 * nll.mean() - 0.1 * log_probs.mean()
    assert found["target_tokens"] == ids.size > 65_504
    assert found["perplexity"] == pytest.approx(np.exp(nll.mean()), rel=1e-4)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == ids).mean(), rel=1e-5)
    assert found["loss"] == pytest.approx(smoothed, rel=1e-5)
