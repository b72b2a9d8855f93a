"""After `import keras_transformer`, Keras finds the classes of saved models; so does tf.keras.

With JAX: `tests/layers/test_jax.py`.
"""

import keras
import numpy as np

import keras_transformer as kt
from tests.support.command_line import python
from tests.support.layer_harness import assert_close, normal

LOAD = """
import sys
import keras_transformer
import numpy as np
import tensorflow as tf

model = tf.keras.models.load_model(sys.argv[1])
assert type(model.optimizer).__name__ == "EMAAdam"
np.save(sys.argv[2], np.array(model(np.load(sys.argv[3]))))
"""


def test_saved_model_is_found(tmp_path):
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, kt.MultiHeadAttention(2, 4)(inputs, inputs))
    model.compile(kt.EMAAdam(kt.WarmupInverseSqrt(peak=0.1, warmup_steps=4)), "mse")
    model.save(tmp_path / "model.keras")
    x = normal(2, 3, 8)
    np.save(tmp_path / "inputs.npy", x)
    files = [tmp_path / name for name in ("model.keras", "outputs.npy", "inputs.npy")]
    python("-c", LOAD, *files)
    assert_close(np.load(tmp_path / "outputs.npy"), np.array(model(x)))
