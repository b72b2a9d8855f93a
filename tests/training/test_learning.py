"""What a working Transformer must learn within a stated number of steps."""

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from tests.training.test_gradients import batch


def test_one_batch_is_learned_by_heart():
    """The loss falls to its floor, which label smoothing sets: the smoothed labels' entropy."""
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, 1, 64, 4, 128, dropout=0.0)
    schedule = kt.WarmupInverseSqrt(peak=3e-3, warmup_steps=50)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    model.fit(tf.data.Dataset.from_tensors(batch(9)).repeat(200), shuffle=False, verbose=0)
    loss = model.evaluate(*batch(9), verbose=0)
    right, wrong = 0.9 + 0.1 / 20, 0.1 / 20
    floor = -right * np.log(right) - 19 * wrong * np.log(wrong)
    assert floor <= loss < floor + 0.02
