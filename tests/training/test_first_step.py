"""How often a step is traced until the first update: tracing a large model takes its time."""

import keras
import numpy as np
import pytest

import keras_transformer as kt

IDS = np.random.default_rng(0).integers(4, 20, (6, 5)).astype("int32")
BATCH = (IDS, IDS), IDS


class Counted(kt.Transformer):
    """Counts the traces of its steps."""

    def __init__(self, **kwargs):
        super().__init__(20, 20, 1, 16, 2, 32, **kwargs)
        self.traces = {"train": 0, "test": 0}

    def train_step(self, data):
        self.traces["train"] += 1
        return super().train_step(data)

    def test_step(self, data):
        self.traces["test"] += 1
        return super().test_step(data)


class Untraceable(Counted):
    """Cannot be called outside of its steps."""

    def call(self, inputs, training=None):
        if not any(self.traces.values()):
            raise TypeError("There is nothing to see yet.")
        return super().call(inputs, training=training)


class KerasOwn(Counted):
    """Without what `FirstStep` does."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def compiled(kind, **options):
    model = kind()
    model.compile("adam", kt.SmoothedCrossEntropy(), metrics=[kt.MaskedAccuracy()], **options)
    return model


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_step_is_traced_once(jit_compile):
    model = compiled(Counted, jit_compile=jit_compile)
    model.evaluate(*BATCH, batch_size=3, verbose=0)
    model.fit(*BATCH, batch_size=3, epochs=2, verbose=0, validation_data=BATCH)
    assert model.traces["train"] == 1
    assert model.optimizer.iterations == 4


def test_keras_still_traces_twice():
    """A canary: once this fails, Keras builds ahead by itself."""
    model = compiled(KerasOwn, jit_compile=False)
    model.fit(*BATCH, batch_size=3, verbose=0)
    assert model.traces["train"] == 2


def test_what_cannot_be_built_ahead_is_built_by_the_first_trace():
    model = compiled(Untraceable, jit_compile=False)
    model.fit(*BATCH, batch_size=3, verbose=0)
    assert model.traces["train"] == 2
    assert model.optimizer.iterations == 2


def test_metrics_start_from_nothing():
    """What was built with shapes alone leaves no trace in what is reported."""
    logs = []
    for kind in (Counted, KerasOwn):
        keras.utils.set_random_seed(4)
        model = compiled(kind, jit_compile=False)
        logs.append(model.fit(*BATCH, batch_size=3, epochs=2, shuffle=False, verbose=0).history)
    assert logs[0] == logs[1]


def test_one_batch_by_hand():
    model = compiled(Counted, jit_compile=False)
    first, second = (model.train_on_batch(*BATCH, return_dict=True) for _ in range(2))
    assert model.traces["train"] == 1
    assert second["loss"] < first["loss"]
