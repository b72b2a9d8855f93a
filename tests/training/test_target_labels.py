"""What labels may be, in training and evaluation: which count, and what is refused."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt

V = 20
SOURCE = np.array([[5, 6, 3], [7, 3, 0], [9, 8, 3], [5, 3, 0], [6, 6, 3]])
IDS = np.array([[2, 7, 8, 3], [2, 9, 3, 0], [2, 3, 0, 0], [2, 5, 5, 3], [2, 8, 3, 0]])
X, Y = (SOURCE, IDS[:, :-1]), IDS[:, 1:]
BEYOND = np.where(Y == 9, 25, Y)


class OwnCall(kt.Transformer):
    """Goes through the logits."""

    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)


class Classifier(kt.TokenTrainer, keras.Model):
    """One label for each row."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = keras.layers.Embedding(V, 8), keras.layers.Dense(3)

    def call(self, ids):
        return self.out(keras.ops.mean(self.embedding(ids), axis=1))


class Tagger(kt.TokenTrainer, keras.Model):
    """Its outputs carry the mask of its inputs."""

    def __init__(self, mask_zero=False):
        super().__init__()
        self.embedding = keras.layers.Embedding(V, 8, mask_zero=mask_zero)
        self.out = keras.layers.Dense(V)

    def call(self, ids):
        return self.out(self.embedding(ids))


def transformer(kind=kt.Transformer, loss=None, **options):
    keras.utils.set_random_seed(2)
    model = kind(V, V, num_layers=1, d_model=8, num_heads=2, d_ff=16, dropout=0.0)
    options = {"jit_compile": False} | options
    metrics = [kt.MaskedAccuracy(), kt.Perplexity(), kt.TargetTokens()]
    loss = loss or kt.SmoothedCrossEntropy(0.1)
    model.compile(keras.optimizers.SGD(0.3), loss, metrics=metrics, **options)
    return model


def trained(model, x, y, sample_weight=None):
    """The logs of one update on a whole batch and what it changes."""
    model.predict_on_batch(x)
    before = model.get_weights()
    logs = model.fit(x, y, len(y), sample_weight=sample_weight, shuffle=False, verbose=0).history
    steps = [a - b for a, b in zip(model.get_weights(), before, strict=True)]
    assert max(np.abs(step).max() for step in steps) > 1e-3
    return {name: values[0] for name, values in logs.items()}, steps


def assert_same(some, others):
    assert some[0] == pytest.approx(others[0], rel=1e-5)
    for step, other in zip(some[1], others[1], strict=True):
        np.testing.assert_allclose(step, other, atol=1e-6)


def dataset(y, x=X):
    """One batch of unknown sizes."""
    ids = tf.TensorSpec((None, None), tf.int32)
    signature = ((ids, ids), tf.TensorSpec((None,) * np.ndim(y), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(1))


# Negative labels are ignored as PAD is, floats are what they say.


@pytest.fixture(scope="module")
def expected():
    return trained(transformer(), X, Y)


@pytest.mark.parametrize(
    "kind, options, ignored, dtype",
    [
        (kt.Transformer, {}, -100, "int64"),
        (OwnCall, {"run_eagerly": True}, -1, "float32"),
        (kt.Transformer, {"accumulation_steps": 2}, -1, "float32"),
        (OwnCall, {"jit_compile": True, "accumulation_steps": 3}, -100, "float32"),
    ],
    ids=["fused", "eager", "accumulated", "XLA"],
)
def test_negative_labels_are_ignored(kind, options, ignored, dtype, expected):
    y = np.where(Y == kt.PAD, ignored, Y).astype(dtype)
    assert_same(trained(transformer(kind, **options), X, y), expected)


def test_negative_labels_in_evaluation():
    y, model = np.where(Y == kt.PAD, -100, Y), transformer()
    whole = model.evaluate(X, Y, verbose=0)
    assert model.evaluate(X, y, verbose=0) == pytest.approx(whole)
    assert model.test_on_batch(X, y) == pytest.approx(whole)
    history = model.fit(X, Y, validation_data=(X, y), verbose=0).history
    assert history["val_loss"][0] == pytest.approx(model.evaluate(X, Y, verbose=0)[0])
    weights = np.random.default_rng(0).random(Y.shape)
    weighted = model.test_on_batch(X, Y, weights)
    assert model.train_on_batch(X, y, weights) == pytest.approx(weighted, rel=1e-5)


# Labels beyond the vocabulary.


@pytest.mark.parametrize("kind", [kt.Transformer, OwnCall])
def test_datasets_of_labels_beyond_the_vocabulary(kind):
    message = r"labels that are not below the size of the vocabulary, .* = 25 is not in \[0, 20\)"
    with pytest.raises(ValueError, match=message):
        transformer(kind).fit(dataset(BEYOND), shuffle=False, verbose=0)
    with pytest.raises(ValueError, match=message):
        transformer(kind).evaluate(dataset(BEYOND), verbose=0)


@pytest.mark.parametrize("kind", [kt.Transformer, OwnCall])
def test_labels_beyond_the_vocabulary_where_a_graph_cannot_raise(kind):
    model = transformer(kind, jit_compile=True)
    logs = model.evaluate(dataset(BEYOND), verbose=0, return_dict=True)
    assert np.isnan([logs[name] for name in ("loss", "accuracy", "perplexity")]).all()
    logs = model.fit(dataset(BEYOND), shuffle=False, verbose=0).history
    assert np.isnan([logs[name][0] for name in ("loss", "accuracy", "perplexity")]).all()


# Shapes.

SHAPES = {
    "T + 1": IDS,
    "(B,)": IDS[:, 1],
    "(B, 1)": IDS[:, 1:2],
    "(B, T, 1)": Y[:, :, None],
}


@pytest.mark.parametrize("y", SHAPES.values(), ids=SHAPES)
def test_shapes_of_arrays(y):
    received = str((None, *y.shape[1:])).replace("(", r"\(").replace(")", r"\)")
    model = transformer()
    for use in ("fit", "test_on_batch"):
        quiet = {} if use.endswith("batch") else {"verbose": 0}
        with pytest.raises(ValueError, match="Labels must hold one id for each position") as error:
            getattr(model, use)(X, y, **quiet)
        shapes = r"shape \(\w+, 3\), received shape " + received.replace("None", r"\w+")
        error.match(shapes)


@pytest.mark.parametrize("y", [IDS, IDS[:, 1:2]], ids=["T + 1", "(B, 1)"])
@pytest.mark.parametrize("kind, xla", [(kt.Transformer, False), (OwnCall, True)])
def test_shapes_of_datasets(kind, xla, y):
    """Known only when the first batch is read."""
    model = transformer(kind, jit_compile=xla)
    for use in (lambda data: model.fit(data, shuffle=False, verbose=0), model.evaluate):
        with pytest.raises(ValueError, match="or not one for each position of the outputs"):
            use(dataset(y))


# Losses that are no mean over target tokens.


def compiled(model, loss, **options):
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    options = {"jit_compile": False} | options
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=[accuracy], **options)
    return model


class WithTerm(Tagger):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) + 1.0


class TwoOutputs(Tagger):
    def call(self, ids):
        tags = super().call(ids)
        return tags, tags


KERAS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
SUM = kt.SmoothedCrossEntropy(reduction="sum")
OTHERS = [
    (Tagger, KERAS),
    (Tagger, keras.losses.dice),
    (Tagger, [kt.SmoothedCrossEntropy()]),
    (Tagger, SUM),
    (WithTerm, kt.SmoothedCrossEntropy()),
    (TwoOutputs, kt.SmoothedCrossEntropy()),
]


@pytest.mark.parametrize("kind, loss", OTHERS)
def test_slices_and_rdrop_of_other_losses_are_refused(kind, loss):
    y = (Y, Y) if kind is TwoOutputs else Y
    message = "accumulation_steps, parallel_microbatches and rdrop need one output, the loss"
    for option in ({"accumulation_steps": 2}, {"rdrop": 2.0}, {"parallel_microbatches": 2}):
        model = kind()
        model.parallel_microbatches = option.pop("parallel_microbatches", 1)
        with pytest.raises(ValueError, match=message):
            model.compile("sgd", loss, jit_compile=False, **option)
            model.fit(X[1], y, verbose=0)  # where the outputs are known


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("make", [Classifier, lambda: Tagger(True), lambda: WithTerm(True)])
def test_other_losses_are_those_of_keras(make, xla):
    """Also where the outputs carry a mask, which the losses of Keras honour."""
    ids = np.where(IDS % 3 == 0, 0, IDS)
    y = IDS[:, 0] if make is Classifier else IDS
    results = []
    for own_step in (True, False):
        keras.utils.set_random_seed(2)
        model = compiled(make(), KERAS, jit_compile=xla)
        if not own_step:
            model.train_step = functools.partial(keras.Model.train_step, model)
        results.append(trained(model, ids, y))
    assert_same(*results)


class Around(kt.TokenTrainer):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        return x


@pytest.mark.parametrize("layer", [keras.layers.BatchNormalization, Penalty])
def test_fewer_rows_than_slices(layer):
    """No slice is empty: a mean over no rows is NaN."""
    for option in ("accumulation_steps", "parallel_microbatches"):
        inputs = keras.Input((None, 8))
        model = Around(keras.Model(inputs, keras.layers.Dense(V)(layer()(inputs))))
        steps = 4 if option == "accumulation_steps" else 1
        model.compile(
            "sgd", kt.SmoothedCrossEntropy(), metrics=[kt.TargetTokens()], accumulation_steps=steps
        )
        model.parallel_microbatches = 4 if option == "parallel_microbatches" else 1
        x = np.random.default_rng(0).normal(size=(5, 3, 8)).astype("float32")
        history = model.fit(x, Y, batch_size=4, verbose=0).history  # 4 rows and 1
        assert np.isfinite(history["loss"]).all()
        assert history["target_tokens"] == [np.count_nonzero(Y > 0)]
        assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize("count", [1, 2, 7])
def test_other_metrics_see_each_row_once(count):
    keras.utils.set_random_seed(2)
    model = compiled(Tagger(), kt.SmoothedCrossEntropy())
    model(X[1])
    expected = keras.metrics.SparseCategoricalAccuracy()(Y, model(X[1]))
    model.parallel_microbatches = count
    assert model.evaluate(X[1], Y, verbose=0)[1] == pytest.approx(float(expected))


def test_a_mask_of_the_outputs_does_not_change_which_labels_count():
    results = []
    for mask_zero, steps in ((False, 1), (True, 1), (True, 2)):
        keras.utils.set_random_seed(2)
        model = Tagger(mask_zero)
        model.compile(
            keras.optimizers.SGD(0.5), kt.SmoothedCrossEntropy(), accumulation_steps=steps
        )
        shifted = np.roll(X[1], 1, axis=1)  # where the mask hides other positions than the labels
        results.append(trained(model, np.where(shifted == 2, 0, shifted), Y))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


# Losses that take logits for probabilities.


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        "categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.sparse_categorical_crossentropy,
        ["crossentropy"],
    ],
)
def test_losses_of_probabilities_are_refused(loss):
    message = "The model returns logits, .*expects probabilities: compile with SmoothedCrossEntropy"
    model = kt.Transformer(V, V, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    with pytest.raises(ValueError, match=message):
        model.compile("adam", loss)
    with pytest.raises(ValueError, match=message):
        model.compile("adam", kt.SmoothedCrossEntropy(), metrics=loss)
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", logits, metrics=["sparse_categorical_accuracy"])
    Tagger().compile("adam", loss)  # whose outputs may be anything


# Inputs: the same rule.


@pytest.mark.parametrize("wrong", ["ids", "positions"])
def test_inputs_beyond_the_tables_where_a_graph_cannot_raise(wrong):
    """XLA would look up the last row instead."""
    embedding = kt.PositionalEmbedding(V, 8, positions="learned", max_length=4)
    ids = np.full((2, 3), 5) if wrong == "ids" else np.full((2, 6), 5)
    ids[0, 1] = 60 if wrong == "ids" else 5
    embedding.build()
    look_up = tf.function(embedding, jit_compile=True, input_signature=[tf.TensorSpec((2, None))])
    outputs = np.isnan(look_up(tf.constant(ids, "float32"))).all(axis=-1)
    position = np.arange(ids.shape[1])
    np.testing.assert_array_equal(outputs, (ids == 60) | (position >= 4))


def test_unknown_ids_in_a_dataset():
    model = kt.Transformer(10, 10, 1, 16, 2, 32)
    model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False)
    x = np.full((2, 3), 29), np.full((2, 3), 5)
    data = tf.data.Dataset.from_tensors((x, np.full((2, 3), 5)))
    with pytest.raises(ValueError, match=r"ids outside the vocabulary .*29 is not in \[0, 10\)"):
        model.fit(data, shuffle=False, verbose=0)
