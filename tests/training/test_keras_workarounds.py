"""Workarounds of Keras; canaries fail once it needs none. Replicas: `test_distribution.py`."""

import gc
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

import keras_transformer as kt
from keras_transformer.training.keras_workarounds import building_zeros
from tests.support.paths import ROOT
from tests.training.test_gradients import Small, batch

(_, X), Y = batch(6)
LOSS = kt.SmoothedCrossEntropy()


class Counted(Small):
    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


class Untraceable(Counted):
    def call(self, inputs, training=None):
        if not self.traces:
            raise TypeError("There is nothing to see yet.")
        return super().call(inputs, training=training)


class KerasOwn(Counted):
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def fitted(kind):
    keras.utils.set_random_seed(4)
    model = kind()
    model.compile("adam", LOSS, metrics=[kt.MaskedAccuracy()], jit_compile=False)
    options = dict(batch_size=3, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y))
    return model, model.fit(X, Y, **options).history


def test_a_step_is_traced_once_and_metrics_start_from_nothing():
    """A canary, too: once it fails, Keras builds ahead by itself."""
    ours, history = fitted(Counted)
    theirs, expected = fitted(KerasOwn)
    assert (ours.traces, theirs.traces) == (1, 2)
    assert history == expected and ours.optimizer.iterations == 4
    untraceable, _ = fitted(Untraceable)
    assert untraceable.traces > 1 and untraceable.optimizer.iterations == 4


def test_one_batch_by_hand():
    model = Counted()
    model.compile("adam", LOSS, jit_compile=False)
    first, second = (model.train_on_batch(X, Y, return_dict=True) for _ in range(2))
    assert model.traces == 1
    assert second["loss"] < first["loss"]


def test_functional_models_are_refused():
    inputs = keras.Input((None,), dtype="int32")
    outputs = keras.layers.Embedding(20, 8)(inputs)
    for kind in (kt.TokenTrainer, type("Mine", (kt.TokenTrainer, keras.Model), {})):
        for args, kwargs in (((inputs, outputs), {}), ((), dict(inputs=inputs, outputs=outputs))):
            with pytest.raises(ValueError, match="cannot be made of inputs and outputs"):
                kind(*args, **kwargs)
    kt.Transformer(20, 20, 1, 16, 2, 32)
    # Keras still changes the bases of other classes.
    base = type("Base", (keras.Model,), {})
    type("OfBase", (base,), {})(inputs, outputs)
    assert base.__bases__ != (keras.Model,)


def test_all_reduce_still_has_a_custom_gradient():
    """Which keeps its graph: or `sum_over_replicas` and `release_graphs` can go."""
    before = len(ops.gradient_registry.list())

    @tf.function
    def add(x):
        return tf.distribute.get_replica_context().all_reduce("sum", x)

    add(tf.ones(2))
    assert len(ops.gradient_registry.list()) > before


def test_private_modules_of_keras_are_not_imported():
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) keras\.src", path.read_text(), re.MULTILINE), path


def test_weights_that_are_loaded_begin_as_zeros():
    """Those of other threads at the same time do not."""
    with building_zeros():
        layer = keras.layers.Dense(3)
        layer.build((None, 2))
        other = keras.layers.Dense(3)
        thread = threading.Thread(target=other.build, args=((None, 2),))
        thread.start()
        thread.join()
    after = keras.layers.Dense(3)
    after.build((None, 2))
    assert [bool(np.any(np.array(x.kernel))) for x in (layer, other, after)] == [False, True, True]


def test_two_threads_that_load_restore_the_initializers():
    original, leave = keras.initializers.VarianceScaling.__call__, threading.Event()

    def load():
        with building_zeros():
            leave.wait()

    thread = threading.Thread(target=load)
    with building_zeros():
        thread.start()
        thread.join(timeout=0.1)  # it waits
    leave.set()
    thread.join()
    assert keras.initializers.VarianceScaling.__call__ is original


def fit():
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dtype="mixed_float16")
    model.compile("adam", LOSS, jit_compile=False, clip_norm=1.0, accumulation_steps=2)
    model.fit((X, X), Y, validation_data=((X, X), Y), verbose=0)


def predict():
    kt.Transformer(20, 20, 1, 16, 2, 32).predict((X, X), verbose=0)


def differentiate():
    layer = kt.EncoderLayer(16, 2, 32)

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, x)

    gradients(tf.random.normal((2, 5, 16)))


def living_graphs():
    keras.backend.clear_session()
    gc.collect()
    return sum(isinstance(x, FuncGraph) for x in gc.get_objects())


@pytest.mark.parametrize("use", [fit, predict, differentiate])
def test_no_graph_outlives_its_model(use):
    use()  # what is made once stays
    before = living_graphs()
    use()
    assert living_graphs() == before
