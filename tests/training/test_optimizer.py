"""The running mean of the weights: how it grows, worked by hand, and that it can be saved."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training.optimizer import MeanAdam


def means_of(momentum, values):
    """What the optimizer keeps as the mean of a weight that takes these values."""
    weight = keras.Variable([0.0])
    optimizer = MeanAdam(1e-3, use_ema=True, ema_momentum=momentum)
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


def test_configuration():
    config = MeanAdam(1e-3, use_ema=True, ema_momentum=0.998).get_config()
    assert config["ema_momentum"] == 0.998
    assert MeanAdam.from_config(config).get_config() == config
    optimizer = keras.optimizers.deserialize(
        keras.optimizers.serialize(MeanAdam(use_ema=True, ema_momentum=0.5))
    )
    assert isinstance(optimizer, MeanAdam) and optimizer.get_config()["ema_momentum"] == 0.5


def test_momentum_out_of_range():
    with pytest.raises(ValueError, match="ema_momentum"):
        MeanAdam(use_ema=True, ema_momentum=2.0)


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
    found = updates(MeanAdam, gradients.astype("float32"), start.astype("float32"))
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
        updates(k, gradients, start, **options) for k in (MeanAdam, keras.optimizers.Adam)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_operation_for_each_variable():
    weights = [keras.Variable(np.ones((2, 3), "float32")) for _ in range(3)]
    optimizer = MeanAdam(1e-3)
    optimizer.build(weights)
    step = tf.function(lambda gradients: optimizer.apply(gradients, weights))
    graph = step.get_concrete_function([tf.ones((2, 3))] * 3).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("ResourceApplyAdam") == 3
    assert kinds.count("Pow") == 2  # what all weights share is computed once
    assert "Sqrt" not in kinds
