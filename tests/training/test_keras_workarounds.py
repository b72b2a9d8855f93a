"""What works around Keras, and canaries: tests that fail once Keras no longer needs it.

Files with weights left over: `test_saved_models.py`; memory that graphs keep: `test_memory.py`.
"""

import ast
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import keras_transformer as kt
from tests.support.command_line import python
from tests.support.paths import ROOT, SUPPORT

# Building.

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
    """Builds as Keras does."""

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


# Functional models.


class Base(keras.Model):
    pass


class OfBase(Base):
    pass


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
    OfBase(*inputs_and_outputs())
    assert Base.__bases__ != (keras.Model,)


# Replicas.


def test_keras_still_needs_help_with_replicas():
    """Or `make_function` and `maybe_symbolic_build` can do without replicas."""
    printed = python(SUPPORT / "mirrored_training.py", "canary")
    odd, outside, averages = json.loads(printed.splitlines()[-1])
    assert "[1,2]" in odd
    assert outside == "Create and compile the model in the scope of the strategy."
    # Losses that are no mean over target tokens are averaged as Keras does.
    for step, difference in averages:
        assert step > 0.01 and difference < 1e-6


def test_all_reduce_still_has_a_custom_gradient():
    """Which keeps its graph: or `sum_over_replicas` and `release_graphs` can go."""
    before = len(ops.gradient_registry.list())

    @tf.function
    def add(x):
        return tf.distribute.get_replica_context().all_reduce("sum", x)

    add(tf.ones(2))
    assert len(ops.gradient_registry.list()) > before


# Private members.


def test_private_modules_of_keras_are_not_imported():
    users = {
        path.name
        for path in (ROOT / "keras_transformer").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import) and "keras.src" in ast.unparse(node)
    }
    assert not users
