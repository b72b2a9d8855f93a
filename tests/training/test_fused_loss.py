"""The loss without the logits of the whole batch: the same numbers, and who may have it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.training import gradients
from keras_transformer.training.token_trainer import TokenTrainer
from tests.training.test_token_trainer import batch, distance


class OwnCall(kt.Transformer):
    """Does not change what is computed, but Keras and we cannot know."""

    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)


class DoublesLoss(kt.Transformer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class Bigrams(TokenTrainer, keras.Model):
    """A model that cannot say what its logits are the product of."""

    def __init__(self, *_, **options):
        super().__init__()
        self.table = keras.layers.Embedding(20, 20)

    def call(self, inputs, training=None):
        return self.table(inputs[1])

    def build(self, input_shape=None):
        self.table.build((None, None))
        self.built = True


def fit_once(model_class=kt.Transformer, metrics=None, **options):
    """One update; returns the weights and the logs."""
    keras.utils.set_random_seed(2)
    model = model_class(20, 20, 1, 16, 2, 32, dropout=0.0, **options)
    metrics = [kt.MaskedAccuracy(), kt.Perplexity()] if metrics is None else metrics
    model.compile(
        keras.optimizers.SGD(0.3), kt.SmoothedCrossEntropy(0.1), metrics=metrics, jit_compile=False
    )
    dataset = tf.data.Dataset.from_tensors(batch())
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values[0] for name, values in history.items()}


@pytest.mark.parametrize(
    "sharing, norm", [("none", "pre"), ("target", "post"), ("all", "post"), ("all", "pre")]
)
def test_fused_loss_equals_that_of_logits(sharing, norm):
    """A `call` that is not ours goes through the logits; loss, metrics and update are the same."""
    fused, fused_logs = fit_once(share_embeddings=sharing, norm=norm)
    plain, plain_logs = fit_once(OwnCall, share_embeddings=sharing, norm=norm)
    assert distance(fused, plain) < 1e-6
    assert fused_logs.keys() == plain_logs.keys() == {"loss", "accuracy", "perplexity"}
    for name, value in plain_logs.items():
        assert fused_logs[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_fused_loss_with_a_penalty_and_a_scaled_loss(precision):
    """Gradients that take two ways, penalties' shares and float16's scale all arrive."""
    penalty = keras.regularizers.L2(0.05)

    class Penalized(kt.EncoderLayer):
        def make_attention(self):
            return kt.MultiHeadAttention(2, 8, kernel_regularizer=penalty, dtype=precision)

    stack = type("Stack", (kt.Encoder,), {"layer_class": Penalized})

    def update(model_class):
        model_class = type("Model", (model_class,), {"encoder_class": stack})
        keras.utils.set_random_seed(2)
        model = model_class(
            20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="all", dtype=precision
        )
        before = model.get_weights()
        model.target_embedding.embeddings.regularizer = penalty
        model.compile(keras.optimizers.SGD(0.3), kt.SmoothedCrossEntropy(0.1), jit_compile=False)
        x, y = batch()
        loss = model.fit(x, y, batch_size=len(y), verbose=0).history["loss"][0]
        assert len(model.losses) == 1 + 4
        return [a - b for a, b in zip(model.get_weights(), before, strict=True)], loss

    (fused, fused_loss), (plain, plain_loss) = update(kt.Transformer), update(OwnCall)
    assert fused_loss == pytest.approx(plain_loss, rel=1e-3)
    assert distance(fused, plain) < (1e-6 if precision == "float32" else 2e-3)
    assert max(np.abs(step).max() for step in plain) > 0.05


def test_who_computes_the_loss():
    """What looks at the logits gets them; what does not spares them."""
    calls = []
    original = gradients.fused_cross_entropy

    def counting(*args):
        calls.append(args)
        return original(*args)

    foreign = keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "fused_cross_entropy", counting)
        fit_once()
        fused = len(calls)
        assert fused
        fit_once(OwnCall)
        fit_once(DoublesLoss)
        assert fit_once(Bigrams)[1]["loss"] > 0
        assert fit_once(metrics=[foreign])[1]["top"] > 0
        assert len(calls) == fused
    assert fit_once(DoublesLoss)[1]["loss"] == pytest.approx(2 * fit_once()[1]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    "model_class, metrics",
    [(OwnCall, []), (DoublesLoss, []), (kt.Transformer, ["sparse_categorical_accuracy"])],
)
def test_a_fused_loss_that_is_asked_for_in_vain(model_class, metrics):
    model = model_class(20, 20, 1, 16, 2, 32)
    model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=metrics, fused_loss=True)
    with pytest.raises(ValueError, match="fused_loss=True needs a class that declares it"):
        model.fit(*batch(), batch_size=7, verbose=0)


def test_a_subclass_declares_the_fused_loss_of_its_call():
    class Declares(OwnCall):
        fused_loss = True

    model = Declares(20, 20, 1, 16, 2, 32)
    model.compile("sgd", kt.SmoothedCrossEntropy(), fused_loss=True)
    assert np.isfinite(model.fit(*batch(), batch_size=7, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_training_follows_an_overridden_encode_or_decode(method):
    def negative(self, *args, **kwargs):
        return -getattr(kt.Transformer, method)(self, *args, **kwargs)

    Own = type("Own", (kt.Transformer,), {method: negative})
    found = []
    for fused in ("auto", False):
        keras.utils.set_random_seed(1)
        model = Own(20, 20, 1, 16, 2, 32, dropout=0.0)
        model.compile("sgd", kt.SmoothedCrossEntropy(), fused_loss=fused, jit_compile=False)
        model.fit(*batch(), batch_size=7, verbose=0)
        found.append(model.get_weights())
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    source, target = batch()[0]
    decoded = model.decode(target, model.encode(source), source)
    np.testing.assert_allclose(model((source, target)), decoded, atol=1e-6)
