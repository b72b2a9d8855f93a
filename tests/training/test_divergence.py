"""A training stops at the first step whose loss or gradient norm is not finite."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

IDS = np.array([[4, 5, 6, 7], [7, 8, 3, 0], [9, 4, 3, 0]], "int32")


class Tagger(kt.TokenTrainer, keras.Model):
    """Adds √w to all logits: at w = 0 the loss is finite, its gradient is not."""

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = kt.PositionalEmbedding(12, 8)
        self.w = self.add_weight(shape=(), initializer="ones", name="w")

    def call(self, ids):
        logits = self.embedding.logits(self.embedding(ids))
        return logits + keras.ops.sqrt(keras.ops.cast(self.w, logits.dtype))


class Setting(keras.callbacks.Callback):
    """Sets a weight before some of the updates, counted from 1 over all epochs."""

    def __init__(self, variable, values):
        super().__init__()
        self.variable, self.values, self.update = variable, values, 0

    def on_train_batch_begin(self, batch, logs=None):
        self.update += 1
        if self.update in self.values:
            self.variable.assign(np.broadcast_to(self.values[self.update], self.variable.shape))


def compiled(optimizer=None, model=None, **options):
    keras.utils.set_random_seed(1)
    model = model or Tagger()
    model.parallel_microbatches = options.pop("parallel_microbatches", 1)
    options = dict(jit_compile=False, metrics=[kt.TargetTokens()]) | options
    model.compile(optimizer or keras.optimizers.SGD(0.1), kt.SmoothedCrossEntropy(), **options)
    return model


def fit(model, variable, values, valid=None, steps=4, x=IDS):
    """Two epochs, in which a weight is set; the history."""
    dataset = tf.data.Dataset.from_tensors((x, IDS)).repeat(2 * steps)
    callbacks = [Setting(variable, values), kt.StopOnDivergence()]
    options = dict(epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0)
    return model.fit(dataset, validation_data=valid, callbacks=callbacks, **options).history


@pytest.mark.parametrize(
    "value, options",
    [
        (np.nan, {}),
        (0.0, {}),
        (0.0, {"accumulation_steps": 2}),
        (0.0, {"parallel_microbatches": 2}),
        (0.0, {"accumulation_steps": 2, "parallel_microbatches": 2, "clip_norm": 1.0}),
        (np.nan, {"jit_compile": True}),
        (0.0, {"run_eagerly": True}),
    ],
)
def test_the_step_is_named(value, options):
    """Also where the gradient alone is not finite: the loss is the same for any w."""
    model = compiled(**options)
    with pytest.raises(FloatingPointError) as caught:
        fit(model, model.w, {7: value})
    said = "the loss or the gradient norm of step 3 of epoch 2 is not finite, at a learning rate of"
    assert f"{said} 0.1. Train again with a smaller learning rate" in str(caught.value)


def test_several_steps_in_one_call():
    model = compiled(steps_per_execution=2)
    with pytest.raises(FloatingPointError, match="step 4 of epoch 1"):
        fit(model, model.w, {2: 0.0})  # before the second call


@pytest.mark.parametrize("fused", [True, False])
def test_a_transformer(fused):
    """With the fused loss or without; what is not finite is one row of the embeddings."""
    model = compiled(model=kt.Transformer(12, 12, 1, 8, 2, 16), fused_loss=fused)
    model.build()
    row = np.zeros([12, 8], "float32")
    row[9] = np.inf
    with pytest.raises(FloatingPointError, match="step 2 of epoch 1"):
        fit(model, model.source_embedding.embeddings, {2: row}, x=(IDS, IDS))


def test_a_validation_loss():
    """Of weights that no step of training has met."""
    model = compiled()
    spoil = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: model.w.assign(np.nan)
    )
    with pytest.raises(FloatingPointError, match="the validation loss of epoch 1 is not finite"):
        callbacks = [spoil, kt.StopOnDivergence()]
        model.fit(IDS, IDS, validation_data=(IDS, IDS), callbacks=callbacks, verbose=0)


def test_finite_training_is_left_alone():
    model = compiled(accumulation_steps=2)
    assert np.isfinite(fit(model, model.w, {2: 4.0})["loss"]).all()


# With a loss scale.


def scaled(scale):
    keras.utils.set_random_seed(1)
    model = Tagger(dtype="mixed_float16")
    inner = keras.optimizers.SGD(0.1)
    return compiled(keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale), model)


def test_a_loss_scale_falls_to_its_floor_first():
    """Steps 2 and 3 are skipped, at scales 4 and 2; at 1, the training has diverged."""
    model = scaled(4.0)
    with pytest.raises(FloatingPointError, match="step 4 of epoch 1"):
        fit(model, model.w, {2: 0.0})
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("value", [0.0, np.nan], ids=["gradient", "loss"])
def test_a_step_that_is_skipped(value):
    """Its loss counts where that is finite: it then is the next step's, of the same weights."""

    def losses(values, steps):
        model = scaled(16.0)
        return model, fit(model, model.w, values, steps=steps)["loss"][0]

    (_, first), (_, two) = losses({}, 1), losses({}, 2)
    second = 2 * two - first
    assert abs(first - second) > 0.01
    model, loss = losses({2: value, 3: 1.0}, 3)
    assert float(model.optimizer.dynamic_scale) == 8.0
    assert int(model.optimizer.iterations) == 5
    counted = [first, second] if np.isnan(value) else [first, second, second]
    assert loss == pytest.approx(np.mean(counted), abs=1e-3)
