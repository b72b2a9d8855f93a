"""R-Drop: two passes of each batch. Its loss is compared with float64 in tests/kernels."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.two_masks import MASKS, TwoMasks
from tests.training.test_token_trainer import batch, distance

X, Y = batch()


def fit(model_class=TwoMasks, rdrop=2.0, dropout=0.0, sample_weight=None, **options):
    """One step of SGD; returns the weights and the logs."""
    keras.utils.set_random_seed(2)
    model = model_class(20, 20, 1, 16, 2, 32, dropout=dropout, share_embeddings="target")
    model.parallel_microbatches = options.pop("parallel_microbatches", 1)
    metrics = [kt.TargetTokens(), kt.MaskedAccuracy()]
    model.compile(
        keras.optimizers.SGD(0.3),
        kt.SmoothedCrossEntropy(0.1),
        metrics=metrics,
        jit_compile=False,
        rdrop=rdrop,
        **options,
    )
    weights = () if sample_weight is None else (sample_weight,)
    dataset = tf.data.Dataset.from_tensors((X, Y, *weights))
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values[0] for name, values in history.items()}


def float64_loss(weights, alpha):
    """The loss before the step, from the two passes."""
    keras.utils.set_random_seed(2)
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="target")
    states, matrix = (np.array(x, "float64") for x in model.softmax_inputs(X))
    logits = np.stack([states * mask for mask in MASKS]) @ matrix.T
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    label = np.take_along_axis(log_p, np.stack([Y, Y])[..., None].astype(int), -1)[..., 0]
    losses = (-0.9 * label - 0.1 * log_p.mean(axis=-1)).mean(axis=0)
    p, log_ratio = np.exp(log_p), log_p[0] - log_p[1]
    losses += alpha / 4 * ((p[0] - p[1]) * log_ratio).sum(axis=-1)
    return (weights * losses).sum() / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_loss(weighted):
    """Sample weights need logits; without them the loss is fused."""
    given = np.random.default_rng(1).random(Y.shape, "float32") if weighted else None
    weights = (Y != kt.PAD) * (given if weighted else 1.0)
    _, logs = fit(sample_weight=given)
    assert logs["loss"] == pytest.approx(float64_loss(weights, 2.0), rel=1e-5)
    assert logs["loss"] > 1.05 * float64_loss(weights, 0.0)


def test_tokens_count_once():
    assert fit()[1]["target_tokens"] == (Y != kt.PAD).sum()


def test_fused_loss_equals_that_of_logits_under_dropout():
    """Both draw the same masks."""
    fused, plain = (fit(kt.Transformer, dropout=0.3, fused_loss=fused) for fused in (True, False))
    assert distance(fused[0], plain[0]) < 1e-5
    for name, value in plain[1].items():
        assert fused[1][name] == pytest.approx(value, rel=1e-5), name
    other = fit(kt.Transformer, dropout=0.3, rdrop=4.0)
    assert other[1]["loss"] > fused[1]["loss"] and distance(other[0], fused[0]) > 1e-3


@pytest.mark.parametrize(
    "slices",
    [{"accumulation_steps": 3}, {"parallel_microbatches": 2}, {"accumulation_steps": 9}],
)
def test_slices_equal_the_whole_batch(slices):
    whole, sliced = fit(), fit(**slices)
    assert distance(whole[0], sliced[0]) < 1e-5
    for name, value in whole[1].items():
        assert sliced[1][name] == pytest.approx(value, rel=1e-5), name


def test_zero_is_training_without_it():
    without, zero = fit(kt.Transformer, 0.0, 0.3), fit(kt.Transformer, 0, 0.3)
    assert without[1] == zero[1] and distance(without[0], zero[0]) == 0


def test_without_dropout_nothing_diverges():
    without, with_it = (fit(kt.Transformer, alpha) for alpha in (0.0, 5.0))
    assert with_it[1]["loss"] == pytest.approx(without[1]["loss"], rel=1e-5)
    assert distance(without[0], with_it[0]) < 1e-5


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_finite(precision):
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.3, dtype=precision)
    model.compile("adam", kt.SmoothedCrossEntropy(), rdrop=5.0)
    assert np.isfinite(model.fit(X, Y, batch_size=7, epochs=3, verbose=0).history["loss"]).all()


@pytest.mark.parametrize(
    "loss, rdrop, message",
    [
        (kt.SmoothedCrossEntropy(), -1.0, "rdrop must be a number of at least 0, received -1"),
        (kt.SmoothedCrossEntropy(), float("nan"), "rdrop must be a number of at least 0"),
    ],
)
def test_invalid_rdrop(loss, rdrop, message):
    with pytest.raises(ValueError, match=message):
        kt.Transformer(20, 20, 1, 16, 2, 32).compile("sgd", loss, rdrop=rdrop)
