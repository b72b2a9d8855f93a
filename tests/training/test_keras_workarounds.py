"""What works around Keras, and canaries: tests that fail once Keras no longer needs it.

Replicas: `test_distribution.py`; memory that graphs keep: `test_memory.py`.
"""

import re

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import keras_transformer as kt
from tests.support.paths import ROOT
from tests.training.test_gradients import Small, batch

(_, X), Y = batch(6)


class Counted(Small):
    def __init__(self):
        super().__init__()
        self.traces = {"train": 0, "test": 0}

    def train_step(self, data):
        self.traces["train"] += 1
        return super().train_step(data)

    def test_step(self, data):
        self.traces["test"] += 1
        return super().test_step(data)


class Untraceable(Counted):
    def call(self, inputs, training=None):
        if not any(self.traces.values()):
            raise TypeError("There is nothing to see yet.")
        return super().call(inputs, training=training)


class KerasOwn(Counted):
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        pass


def fitted(kind):
    """A model after two epochs of two updates, and its history."""
    keras.utils.set_random_seed(4)
    model = kind()
    model.compile(
        "adam", kt.SmoothedCrossEntropy(), metrics=[kt.MaskedAccuracy()], jit_compile=False
    )
    options = dict(batch_size=3, epochs=2, shuffle=False, verbose=0, validation_data=(X, Y))
    return model, model.fit(X, Y, **options).history


def test_a_step_is_traced_once_and_metrics_start_from_nothing():
    """A canary, too: once it fails, Keras builds ahead by itself."""
    ours, history = fitted(Counted)
    theirs, expected = fitted(KerasOwn)
    assert (ours.traces["train"], theirs.traces["train"]) == (1, 2)
    assert history == expected and ours.optimizer.iterations == 4
    untraceable, _ = fitted(Untraceable)
    assert untraceable.traces["train"] > 1 and untraceable.optimizer.iterations == 4


def test_one_batch_by_hand():
    model = Counted()
    model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False)
    first, second = (model.train_on_batch(X, Y, return_dict=True) for _ in range(2))
    assert model.traces["train"] == 1
    assert second["loss"] < first["loss"]


def inputs_and_outputs():
    ids, embedding = keras.Input((None,), dtype="int32"), kt.PositionalEmbedding(20, 8)
    return ids, embedding.logits(embedding(ids))


def test_functional_models_are_refused():
    inputs, outputs = inputs_and_outputs()
    for kind in (kt.TokenTrainer, type("Mine", (kt.TokenTrainer, keras.Model), {})):
        for args, kwargs in (((inputs, outputs), {}), ((), dict(inputs=inputs, outputs=outputs))):
            with pytest.raises(ValueError, match="cannot be made of inputs and outputs"):
                kind(*args, **kwargs)
    kt.Transformer(20, 20, 1, 16, 2, 32)


def test_keras_still_changes_the_bases_of_other_classes():
    base = type("Base", (keras.Model,), {})
    type("OfBase", (base,), {})(*inputs_and_outputs())
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
