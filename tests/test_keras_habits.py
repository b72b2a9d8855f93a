"""The whole model as people who know Keras use it: built, saved, exported and fitted their ways."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import SOURCE, TARGET, assert_close, transformer

X, Y = (SOURCE, TARGET), np.roll(TARGET, -1, axis=1)


def compiled(model, **kwargs):
    model.compile("sgd", kt.SmoothedCrossEntropy(), **kwargs)
    return model


@keras.saving.register_keras_serializable("tests")
class TwoHeads(kt.Transformer):
    """Says of each target token what follows, and of what kind that is."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kind = keras.layers.Dense(3)  # set after the base has set up its own

    def call(self, inputs, training=None):
        logits = super().call(inputs, training=training)
        return {"token": logits, "kind": self.kind(logits)}


@keras.saving.register_keras_serializable("tests")
class Tagger(keras.Model):
    """Uses a whole transformer, and its encoder once more, as a functional model may not."""

    def __init__(self, transformer=None, **kwargs):
        super().__init__(**kwargs)
        self.transformer = transformer or make()
        self.tag = keras.layers.Dense(3)

    def call(self, inputs):
        return self.transformer(inputs), self.tag(self.transformer.encode(inputs[0]))

    def get_config(self):
        config = keras.saving.serialize_keras_object(self.transformer)
        return super().get_config() | {"transformer": config}

    @classmethod
    def from_config(cls, config):
        transformer = keras.saving.deserialize_keras_object(config.pop("transformer"))
        return cls(transformer, **config)


def make(kind=kt.Transformer):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
    return kind(13, 11, **sizes)


def test_the_constructor_builds():
    """Weights by their number, whatever is done first."""
    model = make()
    attention, norm, feed_forward = 4 * (8 * 8 + 8), 2 * 8, 2 * 8 * 16 + 16 + 8
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert model.count_params() == encoder + decoder + 8 * (13 + 11) + 8 * 11 + 11
    assert model.built and all(w.path.startswith(f"{model.name}/") for w in model.weights)


class OneSided(kt.TokenTrainer, keras.Model):
    """A model of users' own that builds nothing before it is called."""

    def __init__(self):
        super().__init__()
        self.embedding = kt.PositionalEmbedding(13, 8)
        self.project = keras.layers.Dense(13)

    def build(self, shape):
        self.embedding.build(shape)
        self.project.build((*shape, 8))
        self.built = True

    def call(self, ids):
        return self.project(self.embedding(ids))


def test_an_eager_accumulation_builds_first():
    model = OneSided()
    model.compile(
        "sgd", kt.SmoothedCrossEntropy(), run_eagerly=True, accumulation_steps=2, metrics=[]
    )
    model.fit(SOURCE, SOURCE, verbose=0)
    assert model.optimizer.iterations == 1


def test_backup_and_restore(tmp_path):
    """A training that was cut off goes on with its weights."""
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
    first = compiled(make(), run_eagerly=True)
    first.fit(X, Y, epochs=2, verbose=0, callbacks=[backup])
    second = compiled(make(), run_eagerly=True)
    history = second.fit(X, Y, epochs=2, verbose=0, callbacks=[backup])
    assert not history.epoch
    assert_close(second.get_weights(), first.get_weights(), 0)


@pytest.mark.parametrize("kind", [kt.Transformer, TwoHeads])
def test_export(kind, tmp_path):
    """By Keras' own method, after a training: ids of any lengths to what the call returns."""
    model = make(kind)
    if kind is kt.Transformer:
        compiled(model).fit(X, Y, verbose=0)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for rows in (slice(1), slice(3)):
        source, target = SOURCE[rows, : 5 + rows.stop // 3], TARGET[rows]
        assert_close(loaded.serve((source, target)), model((source, target)))


def test_added_layers_are_trained_saved_and_loaded(tmp_path):
    model = make(TwoHeads)
    losses = {
        "token": kt.SmoothedCrossEntropy(),
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    model.compile("sgd", losses, metrics={"token": [kt.MaskedAccuracy()]})
    before = model.get_weights()
    model.fit(X, {"token": Y, "kind": Y % 3}, verbose=0)
    assert len(before) == len(make().weights) and len(model.weights) == len(before) + 2
    assert all(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=False))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(X), model(X), 1e-6)
    loaded.evaluate(X, {"token": Y, "kind": Y % 3}, verbose=0)


def test_two_losses_weigh_as_keras_weighs_them():
    """Several outputs: the update of a batch is that of Keras' own training step."""
    losses = [kt.SmoothedCrossEntropy(), keras.losses.MeanSquaredError()]
    weights = transformer(num_layers=1).get_weights()

    class Twice(kt.Transformer):
        def call(self, inputs, training=None):
            logits = super().call(inputs, training=training)
            return logits, logits[:, 0]

    class Plain(Twice):
        def train_step(self, data):
            return keras.Model.train_step(self, data)

    after = []
    for kind in (Twice, Plain):
        model = transformer(num_layers=1)
        model = kind.from_config(model.get_config())
        model.compile(keras.optimizers.SGD(0.1), losses)
        model.set_weights(weights)
        model.fit(X, (Y, np.ones((3, 11))), verbose=0)
        after.append(model.get_weights())
    assert_close(*after)


def test_a_model_around_a_transformer(tmp_path):
    model = Tagger()
    model(X)
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(X), model(X), 1e-6)


def test_a_functional_model_around_a_transformer(tmp_path):
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    logits = make()((source, target))
    model = keras.Model((source, target), keras.layers.Dense(3)(logits))
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(X), model(X), 1e-6)


class Block(keras.layers.Layer):
    """In plain Keras: a layer with another one in it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(4)

    def build(self, shape):
        self.inner.build(shape)
        self.built = True

    def call(self, x):
        return self.inner(x)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_keras_does_not_load_a_functional_model_of_a_layer_and_its_part(tmp_path):
    """Which is why `transformer.encoder` beside `transformer` takes a subclass, as `Tagger` is.

    When this fails, Keras can do it: say so in the docstring of Transformer.
    """
    block, x = Block(), keras.Input((4,))
    keras.Model(x, [block(x), block.inner(x)]).save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="could not be loaded"):
        keras.saving.load_model(tmp_path / "model.keras", {"Block": Block})


# Mistakes at `fit` and `predict`, of which a compiled step would say nothing that helps.

MISTAKES = {
    "no labels": (lambda m: m.fit(X), "Labels are missing"),
    "no labels to evaluate by": (lambda m: m.evaluate(X), "Labels are missing"),
    "rows that differ": (lambda m: m.fit((SOURCE[:2], TARGET), Y), "same number of samples"),
    "beyond the learned": (
        lambda m: learned().predict((np.ones((3, 9), int), TARGET)),
        "8 learned positions, received ids at positions 0 … 8",
    ),
}


def learned():
    return kt.Transformer(13, 11, 1, 8, 2, 16, positions="learned", max_length=8)


@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake(compiled(make()))
