"""What is no longer used is given back: graphs, and with them models and their weights."""

import gc
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

import keras_transformer as kt
from tests.support.command_line import python

IDS = np.array([[2, 5, 6, 7], [2, 8, 9, 0], [2, 4, 3, 0]])


def make_model():
    sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
    return kt.Transformer(30, 30, share_embeddings="none", **sizes)


def fit(strategy=None, parallel=1, **options):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = make_model()
        model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False, **options)
    model.parallel_microbatches = parallel
    model.fit((IDS, IDS), IDS, validation_data=((IDS, IDS), IDS), verbose=0)


def fit_on_two_replicas():
    """In a new process only: the CPU is split before TensorFlow uses it."""
    fit(kt.make_strategy("mirrored", logical_devices=2), clip_norm=1.0)


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


def use_of(name):
    uses = {
        "fit": fit,
        "dense gradients": lambda: fit(clip_norm=1.0),
        "mixed_float16": lambda: in_half_precision(fit),
        "accumulation": lambda: fit(accumulation_steps=2, parallel=2),
        "logits": lambda: fit(fused_loss=False),
        "predict": predict,
        "function": differentiate,
    }
    return uses[name]


def in_half_precision(use):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        use()
    finally:
        keras.config.set_dtype_policy("float32")


def graphs():
    keras.backend.clear_session()
    gc.collect()
    return sum(isinstance(x, FuncGraph) for x in gc.get_objects())


@pytest.mark.parametrize(
    "name",
    ["fit", "dense gradients", "mixed_float16", "accumulation", "logits", "predict", "function"],
)
def test_no_graph_outlives_its_model(name):
    use = use_of(name)
    use()  # what is made once stays
    before = graphs()
    use()
    assert graphs() == before


ON_TWO_REPLICAS = """
from tests.training.test_memory import fit_on_two_replicas, graphs
fit_on_two_replicas()
before = graphs()
fit_on_two_replicas()
print(graphs() - before)
"""


@pytest.mark.slow
def test_no_graph_outlives_its_model_on_two_replicas():
    assert int(python("-c", ON_TWO_REPLICAS)) == 0


GROWTH = """
import gc
import keras
{setup}
def resident():
    keras.backend.clear_session(); gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) / 256
sizes = []
for round in range(16):
    use()
    sizes.append(resident())
print((max(sizes[-4:]) - max(sizes[:4])) / 12)
"""
TENSORFLOW = "from tests.training.test_memory import use_of; use = use_of({!r})"


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux")
def test_memory_does_not_grow():
    """Mebibytes of each of twelve models after the first four; sizes swing by 25."""
    setup = TENSORFLOW.format("dense gradients")
    assert float(python("-c", GROWTH.format(setup=setup))) < 0.5
