"""The whole model as people who know Keras use it: built, saved, exported and fitted their ways."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import SOURCE, TARGET, assert_close

X, Y = (SOURCE, TARGET), np.roll(TARGET, -1, axis=1)


@keras.saving.register_keras_serializable("tests")
class TwoHeads(kt.Transformer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kind = keras.layers.Dense(3)  # set after the base has set up its own

    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        return {"token": logits, "kind": self.kind(logits)}


def make(kind=kt.Transformer):
    return kind(13, 11, num_layers=1, d_model=8, num_heads=2, d_ff=16, dropout=0.0)


def test_added_layers_are_trained_saved_loaded_and_exported(tmp_path):
    """The update of a batch, of two losses, is that of Keras' own training step."""

    class Plain(TwoHeads):
        def train_step(self, data):
            return keras.Model.train_step(self, data)

    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses = {"token": kt.SmoothedCrossEntropy(), "kind": sparse}
    model, plain = make(TwoHeads), make(Plain)
    for one in (model, plain):
        one(X)
    plain.set_weights(before := model.get_weights())
    for one in (model, plain):
        one.compile("sgd", losses, metrics={"token": [kt.MaskedAccuracy()]}, run_eagerly=True)
        one.fit(X, {"token": Y, "kind": Y % 3}, verbose=0)
    assert_close(model.get_weights(), plain.get_weights())
    assert_close(model.predict(X, verbose=0), model(X))
    assert len(before) == len(make().weights) + 2
    assert all(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=True))
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(X), model(X), 1e-6)
    # By Keras' own method: ids of any lengths to what the call returns.
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for rows in (slice(1), slice(3)):
        source, target = SOURCE[rows, : 5 + rows.stop // 3], TARGET[rows]
        assert_close(loaded.serve((source, target)), model((source, target)))


def test_public_classes_are_found_by_keras():
    kinds = keras.Layer, keras.Loss, keras.Metric, keras.Optimizer
    kinds += (keras.optimizers.schedules.LearningRateSchedule,)
    classes = [getattr(kt, name) for name in kt.__all__]
    classes = {x for x in classes if isinstance(x, type) and issubclass(x, kinds)}
    for kind in classes - {kt.Positions, kt.TokenTrainer}:
        assert keras.saving.get_registered_object(f"keras_transformer>{kind.__name__}") is kind


def test_mistakes_of_which_a_compiled_step_would_say_nothing_that_helps():
    model = kt.Transformer(13, 11, 1, 8, 2, 16, positions="learned", max_length=8)
    model.compile("sgd", kt.SmoothedCrossEntropy())
    for use in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="Labels are missing"):
            use(X)
    with pytest.raises(ValueError, match="8 learned positions, received ids at positions 0 … 8"):
        model.predict((np.ones((3, 9), int), TARGET))


def test_gradients_in_a_scope_of_rematerialization():
    """Keras computes those of positional arguments only."""

    def gradient(scope):
        keras.utils.set_random_seed(1)
        with scope, tf.GradientTape() as tape:  # layers remember the scope that they are made in
            embedding, attention = kt.PositionalEmbedding(13, 8), kt.MultiHeadAttention(2, 4)
            x = embedding(SOURCE)
            loss = tf.reduce_sum(attention(x, x, use_causal_mask=True) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, embedding.embeddings.value)).numpy()

    expected = gradient(contextlib.nullcontext())
    assert np.abs(expected).max() > 0.1
    assert_close(gradient(keras.RematScope(mode="full")), expected)
