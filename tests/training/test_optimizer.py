"""The optimizer: its moving average and its step; the learning rate, by equation 3 of the paper."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.training.optimizer import EMAAdam


def means_of(momentum, values):
    """What the optimizer keeps as the mean of a weight that takes these values."""
    weight = keras.Variable([0.0])
    optimizer = EMAAdam(1e-3, use_ema=True, ema_momentum=momentum)
    optimizer.build([weight])
    means = []
    for value in values:
        weight.assign([value])
        # Adam leaves a weight without a gradient alone, and the mean follows what it is.
        optimizer.apply([np.zeros(1, "float32")], [weight])
        assert weight.numpy()[0] == value
        means.append(float(optimizer._model_variables_moving_average[0].numpy()[0]))
    return means


def test_momentum_grows_from_nothing():
    # After the update number t from 0: Keras starts with the weight itself, and from then on the
    # momentum is (1 + t) / (10 + t): 2/11 and 3/12.
    first = 5.0
    second = 2 / 11 * first + 9 / 11 * 7.0
    third = 3 / 12 * second + 9 / 12 * 4.0
    assert means_of(0.99, [5.0, 7.0, 4.0]) == pytest.approx([first, second, third], rel=1e-6)


def test_momentum_grows_to_what_was_asked_for():
    assert means_of(0.1, [5.0, 7.0, 4.0]) == pytest.approx([5.0, 6.8, 4.28], rel=1e-6)


def test_configuration_of_the_optimizer():
    config = EMAAdam(1e-3, use_ema=True, ema_momentum=0.998).get_config()
    assert config["ema_momentum"] == 0.998
    assert EMAAdam.from_config(config).get_config() == config
    optimizer = keras.optimizers.deserialize(
        keras.optimizers.serialize(EMAAdam(use_ema=True, ema_momentum=0.5))
    )
    assert isinstance(optimizer, EMAAdam) and optimizer.get_config()["ema_momentum"] == 0.5


def test_momentum_out_of_range():
    with pytest.raises(ValueError, match="ema_momentum"):
        EMAAdam(use_ema=True, ema_momentum=2.0)


# The update.


def updates(kind, gradients, start, **options):
    """The weight after each update."""
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
    found = updates(EMAAdam, gradients.astype("float32"), start.astype("float32"))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"clipnorm": 0.5}, {"amsgrad": True}]
)
def test_updates_are_those_of_keras(options):
    random = np.random.default_rng(1)
    start = random.normal(size=(6, 4)).astype("float32")
    rows = tf.IndexedSlices(tf.constant(random.normal(size=(2, 4)), tf.float32), [1, 4], (6, 4))
    gradients = [*random.normal(size=(3, 6, 4)).astype("float32"), rows]
    ours, theirs = (
        updates(k, gradients, start, **options) for k in (EMAAdam, keras.optimizers.Adam)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_operation_for_each_variable():
    weights = [keras.Variable(np.ones((2, 3), "float32")) for _ in range(3)]
    optimizer = EMAAdam(1e-3)
    optimizer.build(weights)
    step = tf.function(lambda gradients: optimizer.apply(gradients, weights))
    graph = step.get_concrete_function([tf.ones((2, 3))] * 3).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == 3
    assert kinds.count("Pow") == 2  # what all weights share is computed once
    assert "Sqrt" not in kinds


# The learning rate.


@pytest.mark.parametrize("d_model", [128, 512])
@pytest.mark.parametrize("step", [1, 2, 1000, 3999, 4000, 4001, 16000, 100_000])
def test_equation_3(step, d_model):
    """D^-0.5 · min(step^-0.5, step · warmup^-1.5); Keras counts its steps from 0."""
    expected = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
    schedule = kt.WarmupInverseSqrt(d_model=d_model, warmup_steps=4000)
    assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-5)


def test_peak():
    schedule = kt.WarmupInverseSqrt(peak=0.02, warmup_steps=10)
    rates = [float(schedule(step)) for step in range(41)]
    assert rates[:10] == pytest.approx([0.002 * (i + 1) for i in range(10)])
    assert rates[39] == pytest.approx(0.01)
    assert max(rates) == rates[9] == pytest.approx(0.02)


def test_cooldown():
    """The last four of ten steps are at 4/4, 3/4, 2/4 and 1/4 of the height; then nothing moves."""
    plain = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2)
    schedule = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2, cooldown_steps=4, total_steps=10)
    shares = [float(schedule(step) / plain(step)) for step in range(12)]
    assert shares == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    whole = kt.WarmupInverseSqrt(peak=0.1, warmup_steps=2, cooldown_steps=4, total_steps=4)
    assert float(whole(1)) == pytest.approx(0.1 * 0.75)  # may begin in the warm-up


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_in_a_graph(dtype):
    schedule = kt.WarmupInverseSqrt(d_model=512)
    traced = tf.function(schedule)(tf.constant(3999, dtype))
    assert traced.dtype == "float32"
    assert float(traced) == pytest.approx(6.98771e-4, rel=1e-5)


def test_optimizer_follows_it():
    """A gradient of 1 under plain descent moves a weight by the learning rate."""
    weight = keras.Variable(np.zeros(1), name="weight")
    optimizer = keras.optimizers.SGD(kt.WarmupInverseSqrt(peak=1.0, warmup_steps=2))
    optimizer.build([weight])
    positions = []
    for _ in range(3):
        optimizer.apply([np.ones(1, "float32")])
        positions.append(float(weight[0]))
    assert positions == pytest.approx([-0.5, -1.5, -1.5 - 1.5**-0.5])


@pytest.mark.parametrize(
    "arguments",
    [
        {"d_model": 64},
        {"peak": 0.1, "warmup_steps": 7},
        {"peak": 0.1, "cooldown_steps": 5, "total_steps": 6},
    ],
)
def test_configuration_round_trip(arguments):
    schedule = kt.WarmupInverseSqrt(**arguments)
    described = keras.optimizers.schedules.serialize(schedule)
    twin = keras.optimizers.schedules.deserialize(described)
    assert isinstance(twin, kt.WarmupInverseSqrt)
    assert twin.get_config() == schedule.get_config()
    assert float(twin(3)) == float(schedule(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Name d_model or peak, received d_model=None and peak=None"),
        ({"d_model": 8, "peak": 0.1}, "Name d_model or peak"),
        ({"d_model": 8, "warmup_steps": 0}, "warmup_steps must be at least 1, received 0"),
        ({"peak": 1, "warmup_steps": 0.5}, "warmup_steps must be at least 1, received 0.5"),
        ({"peak": 1, "warmup_steps": None}, "warmup_steps must be at least 1, received None"),
        ({"d_model": 1e-3}, "d_model must be at least 1, received 0.001"),
        ({"peak": "1e-3"}, "peak must be a number above 0, received '1e-3'"),
        ({"peak": float("nan")}, "peak must be a number above 0, received nan"),
        ({"peak": 1, "cooldown_steps": 2}, "must be in 0 … total_steps=None, received 2"),
        ({"peak": 1, "cooldown_steps": 2, "total_steps": 1}, "in 0 … total_steps=1, received 2"),
        ({"peak": 1, "cooldown_steps": -1, "total_steps": 1}, "received -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        kt.WarmupInverseSqrt(**arguments)


@pytest.mark.parametrize("positional", [(1e-3, 4000), (512, 4000)])
def test_arguments_without_names(positional):
    """As other schedules take them; the second one is `peak` here."""
    with pytest.raises(ValueError, match="Name d_model or peak, .*peak=4000"):
        kt.WarmupInverseSqrt(*positional)


def test_rows_that_occur_several_times_make_one_gradient():
    rows = tf.IndexedSlices(tf.ones((3, 4)), [1, 1, 4], (6, 4))
    dense = tf.convert_to_tensor(rows)
    sparse_step, dense_step = (
        updates(EMAAdam, [x], np.zeros((6, 4), "float32")) for x in (rows, dense)
    )
    np.testing.assert_array_equal(sparse_step, dense_step)
