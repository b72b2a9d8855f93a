"""The optimizer, its learning rate by equation 3 of the paper, and the end of what diverges."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

COOLDOWN = {"cooldown_steps": 4, "total_steps": 10}


def test_momentum_grows_from_nothing_to_what_was_asked_for():
    # After the update number t from 0: Keras starts with the weight itself, and from then on the
    # momentum is (1 + t) / (10 + t): 2/11 and 3/12.
    second = 2 / 11 * 5.0 + 9 / 11 * 7.0
    third = 3 / 12 * second + 9 / 12 * 4.0
    for momentum, expected in ((0.99, [5.0, second, third]), (0.1, [5.0, 6.8, 4.28])):
        weight, means = keras.Variable([0.0]), []
        optimizer = kt.EMAAdam(1e-3, use_ema=True, ema_momentum=momentum)
        optimizer.build([weight])
        for value in (5.0, 7.0, 4.0):
            weight.assign([value])
            # Adam leaves a weight without a gradient alone, and the mean follows what it is.
            optimizer.apply([np.zeros(1, "float32")], [weight])
            assert weight.numpy()[0] == value
            means.append(float(optimizer._model_variables_moving_average[0].numpy()[0]))
        assert means == pytest.approx(expected, rel=1e-6)


def test_configuration_round_trip():
    for kind, arguments in (
        (kt.EMAAdam, {"use_ema": True, "ema_momentum": 0.5}),
        (kt.WarmupInverseSqrt, {"d_model": 64}),
        (kt.WarmupInverseSqrt, {"peak": 0.1, "warmup_steps": 7, **COOLDOWN}),
        (kt.SmoothedCrossEntropy, {"label_smoothing": 0.2, "name": "own"}),
        (kt.MaskedAccuracy, {"name": "own"}),
        (kt.Perplexity, {"name": "own"}),
    ):
        made = kind(**arguments)
        twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
        assert type(twin) is kind and twin.get_config() == made.get_config()
        assert twin.get_config().items() >= arguments.items()


def updates(kind, gradients, start, **options):
    weight = keras.Variable(start)
    optimizer = kind(0.1, beta_2=0.98, epsilon=1e-9, **options)
    found = []
    for gradient in gradients:
        optimizer.apply([gradient], [weight])
        found.append(np.array(weight))
    return found


def test_update_by_hand():
    """Kingma and Ba (2015), algorithm 1, in float64."""
    random = np.random.default_rng(0)
    start, gradients = random.normal(size=(3, 4)), random.normal(size=(5, 3, 4))
    weight, m, v, expected = start, 0.0, 0.0, []
    for t, gradient in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * gradient
        v = 0.98 * v + 0.02 * gradient**2
        weight = weight - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
        expected.append(weight)
    found = updates(kt.EMAAdam, gradients.astype("float32"), start.astype("float32"))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"clipnorm": 1}, {"amsgrad": True}])
def test_updates_are_those_of_keras(options):
    random = np.random.default_rng(1)
    start = random.normal(size=(6, 4)).astype("float32")
    rows = tf.IndexedSlices(tf.constant(random.normal(size=(2, 4)), tf.float32), [1, 4], (6, 4))
    gradients = [*random.normal(size=(3, 6, 4)).astype("float32"), rows]
    kinds = kt.EMAAdam, keras.optimizers.Adam
    ours, theirs = (updates(kind, gradients, start, **options) for kind in kinds)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_operation_for_each_variable():
    weights = [keras.Variable(np.ones((2, 3), "float32")) for _ in range(3)]
    optimizer = kt.EMAAdam(1e-3)
    optimizer.build(weights)
    step = tf.function(lambda gradients: optimizer.apply(gradients, weights))
    graph = step.get_concrete_function([tf.ones((2, 3))] * 3).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == 3
    assert kinds.count("Pow") == 2  # what all weights share is computed once
    assert "Sqrt" not in kinds


def test_equation_3():
    """D^-0.5 · min(step^-0.5, step · warmup^-1.5); Keras counts its steps from 0."""
    for step, d_model in ((1, 128), (3999, 512), (4000, 512), (4001, 512), (16000, 128)):
        expected = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
        schedule = kt.WarmupInverseSqrt(d_model=d_model, warmup_steps=4000)
        assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-5)
        traced = tf.function(schedule)(tf.constant(step - 1, "int64"))
        assert traced.dtype == "float32" and float(traced) == pytest.approx(expected, rel=1e-5)


def test_peak_and_cooldown():
    schedule = kt.WarmupInverseSqrt(peak=0.02, warmup_steps=10)
    rates = [float(schedule(step)) for step in range(41)]
    assert rates[:10] == pytest.approx([0.002 * (i + 1) for i in range(10)])
    assert rates[39] == pytest.approx(0.01)
    assert max(rates) == rates[9] == pytest.approx(0.02)
    # The last four of ten steps are at 4/4, 3/4, 2/4 and 1/4 of the height; then nothing moves.
    plain = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2)
    schedule = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2, **COOLDOWN)
    shares = [float(schedule(step) / plain(step)) for step in range(12)]
    assert shares == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    whole = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2, cooldown_steps=4, total_steps=4)
    assert float(whole(1)) == pytest.approx(0.1 * 0.75)  # may begin in the warm-up


# A training stops at the first step whose loss or gradient norm is not finite.
IDS = np.array([[4, 5, 6, 7], [7, 8, 3, 0], [9, 4, 3, 0]], "int32")


class Tagger(kt.TokenTrainer):
    """Adds √w to all logits: at w = 0 the loss is finite, its gradient is not."""

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding = kt.PositionalEmbedding(12, 8)
        self.w = self.add_weight(shape=(), initializer="ones", name="w")

    def call(self, ids):
        logits = self.embedding.logits(self.embedding(ids))
        return logits + keras.ops.sqrt(keras.ops.cast(self.w, logits.dtype))


def compiled(optimizer=None, model=None, parallel=1, **options):
    keras.utils.set_random_seed(1)
    model = model or Tagger()
    model.parallel_microbatches = parallel
    options = dict(jit_compile=False, metrics=[kt.TargetTokens()]) | options
    model.compile(optimizer or keras.optimizers.SGD(0.1), kt.SmoothedCrossEntropy(), **options)
    return model


def fit(model, values, steps=4):
    """Two epochs, in which w is set before some updates, counted from 1; the history."""
    updates = itertools.count(1)

    def set_w(batch, logs):
        if (number := next(updates)) in values:
            model.w.assign(values[number])

    setting = keras.callbacks.LambdaCallback(on_train_batch_begin=set_w)
    dataset = tf.data.Dataset.from_tensors((IDS, IDS)).repeat(2 * steps)
    options = dict(epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0)
    return model.fit(dataset, callbacks=[setting, kt.StopOnDivergence()], **options).history


SLICES = {"accumulation_steps": 2, "parallel": 2, "clip_norm": 1.0}


@pytest.mark.parametrize(
    "value, options", [(np.nan, {"jit_compile": True}), (0.0, {"run_eagerly": True}), (0.0, SLICES)]
)
def test_the_step_is_named(value, options):
    model = compiled(**options)
    with pytest.raises(FloatingPointError) as caught:
        fit(model, {7: value})
    for said in ("step 3 of epoch 2 is not finite", "learning rate of 0.1", "a smaller learning"):
        assert said in str(caught.value)


def test_a_validation_loss():
    model, spoil = compiled(run_eagerly=True), keras.callbacks.Callback()
    spoil.on_train_batch_end = lambda batch, logs: model.w.assign(np.nan)
    options = dict(validation_data=(IDS, IDS), callbacks=[spoil, kt.StopOnDivergence()], verbose=0)
    with pytest.raises(FloatingPointError, match="the validation loss of epoch 1 is not finite"):
        model.fit(IDS, IDS, **options)


def scaled(scale):
    keras.utils.set_random_seed(1)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=scale)
    return compiled(optimizer, Tagger(dtype="mixed_float16"), run_eagerly=True)


def test_a_loss_scale_falls_to_its_floor_first():
    """Steps 2 and 3 are skipped, at scales 4 and 2; at 1, the training has diverged."""
    model = scaled(4.0)
    with pytest.raises(FloatingPointError, match="step 4 of epoch 1"):
        fit(model, {2: 0.0})
    assert all(np.isfinite(w).all() for w in model.get_weights())


@pytest.mark.parametrize("value", [0.0, np.nan], ids=["gradient", "loss"])
def test_a_step_that_is_skipped(value):
    """Its loss counts where that is finite: it then is the next step's, of the same weights."""

    def losses(values, steps):
        model = scaled(16.0)
        return model, fit(model, values, steps=steps)["loss"][0]

    (_, first), (_, two) = losses({}, 1), losses({}, 2)
    second = 2 * two - first
    assert abs(first - second) > 0.01
    model, loss = losses({2: value, 3: 1.0}, 3)
    assert float(model.optimizer.dynamic_scale) == 8.0
    assert int(model.optimizer.iterations) == 5
    counted = [first, second] if np.isnan(value) else [first, second, second]
    assert loss == pytest.approx(np.mean(counted), abs=1e-3)
