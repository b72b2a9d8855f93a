"""What is no longer used is given back: graphs, and with them models and their weights."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import keras_transformer as kt

IDS = np.array([[2, 5, 6, 7], [2, 8, 9, 0], [2, 4, 3, 0]])


def make_model():
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
    return kt.Transformer(30, 30, share_embeddings="none", **sizes)


def fit(**options):
    model = make_model()
    model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False, **options)
    model.fit((IDS, IDS), IDS, validation_data=((IDS, IDS), IDS), verbose=0)


def predict():
    make_model().predict((IDS, IDS), verbose=0)


def differentiate():
    """One layer of ours in somebody's function, which stays for as long as its model does."""
    layers = kt.FeedForward(16, 32), kt.MultiHeadAttention(2, 8), kt.EncoderLayer(16, 2, 32)
    x = tf.random.normal((2, 5, 16))

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers[2](layers[1](layers[0](x), x))
        return tape.gradient(y, x)

    gradients(x)


def fit_in_half_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        fit(clip_norm=1.0, accumulation_steps=2)
    finally:
        keras.config.set_dtype_policy("float32")


def graphs():
    keras.backend.clear_session()
    gc.collect()
    return sum(isinstance(x, FuncGraph) for x in gc.get_objects())


@pytest.mark.parametrize(
    "use", [fit_in_half_precision, predict, differentiate], ids=["fit", "predict", "function"]
)
def test_no_graph_outlives_its_model(use):
    """On replicas: `test_distribution.py`."""
    use()  # what is made once stays
    before = graphs()
    use()
    assert graphs() == before
