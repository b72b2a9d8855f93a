"""The running mean of the weights: how it grows, worked by hand, and that it can be saved."""

import keras
import numpy as np
import pytest

from keras_transformer.optimizer import MeanAdam


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
