"""Slices, the fused loss and R-Drop: a step is that of the whole batch by its logits."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.training import gradients
from tests.support import oracle

MASKS = [[2.0, 2.0, 0.0, 0.0] * 4, [0.0, 2.0, 0.0, 2.0] * 4]  # of R-Drop's two passes


def batch(rows=7, seed=0):
    random = np.random.default_rng(seed)
    source, target = (random.integers(4, 20, (rows, n)).astype("int32") for n in (6, 9))
    for row in range(rows):
        target[row, row + 1 :] = kt.PAD
        source[row, random.integers(2, 7) :] = kt.PAD
    target_in = np.concatenate([np.full((rows, 1), kt.START, "int32"), target[:, :-1]], axis=1)
    return (source, target_in), target


(_, X), Y = batch()


def distance(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others, strict=True))


class Small(kt.TokenTrainer):
    """An embedding and a softmax, of the same matrix, its own, or one computed of a weight."""

    fused_loss = True

    def __init__(self, matrix="shared"):
        super().__init__()
        self.inner = kt.PositionalEmbedding(20, 16)
        self.matrix = matrix
        self.own = self.add_weight(shape=(20, 16), name="own", regularizer=keras.regularizers.L2(1))

    def build(self, shape=None):
        self.inner.build()
        self.built = True

    def softmax_inputs(self, x, training=None):
        states = self.inner(x)
        if training and self.rdrop:
            masks = tf.repeat(np.array(MASKS)[:, None], tf.shape(x)[0] // 2, axis=0)
            states *= tf.cast(masks, states.dtype)
        kinds = {"shared": self.inner.embeddings, "own": self.own, "computed": self.own * 2.0}
        return states, tf.cast(tf.convert_to_tensor(kinds[self.matrix]), states.dtype)

    def call(self, x, training=None):
        states, matrix = self.softmax_inputs(x, training)
        return tf.matmul(states, matrix, transpose_b=True)


class OwnCall(Small):
    def call(self, x, training=None):
        return super().call(x, training)


def compiled(model, optimizer=None, parallel=1, metrics=None, **options):
    if metrics is None:
        metrics = [kt.MaskedAccuracy(), kt.Perplexity(), kt.TargetTokens()]
    optimizer = optimizer or keras.optimizers.SGD(0.3)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), metrics=metrics, **options)
    model.parallel_microbatches = parallel
    return model


def logs_of(step, data):
    return {name: float(value) for name, value in step(data).items()}


def update(model, data=None, **options):
    """One update without a graph: the logs before, those of the update, and what it changes."""
    data = tf.nest.map_structure(tf.constant, data or batch())
    compiled(model, **options)
    before_logs = logs_of(model.test_step, data)  # builds the metrics
    model.reset_metrics()
    before = model.get_weights()
    logs = logs_of(model.train_step, data)
    return before_logs, logs, [a - b for a, b in zip(model.get_weights(), before, strict=True)]


def small_update(data, kind=Small, matrix="shared", **options):
    keras.utils.set_random_seed(2)
    return update(kind(matrix), data, **options)


def assert_same(some, others, tolerance=1e-5):
    for one, other in zip(some[:2], others[:2], strict=True):
        assert one == pytest.approx(other, rel=10 * tolerance)
    assert distance(some[2], others[2]) < tolerance


@settings(max_examples=settings().max_examples // 2)
@given(
    rows=st.sampled_from([1, 4, 6]),
    steps=st.sampled_from([1, 2, 3]),
    parallel=st.sampled_from([1, 2]),
    matrix=st.sampled_from(["shared", "own", "computed"]),
    weights=st.sampled_from([None, (6,), (6, 9)]),
    dtype=st.sampled_from(["int64", "float32"]),
    rdrop=st.sampled_from([0.0, 2.0]),
    clip_norm=st.sampled_from([None, 0.1]),
)
def test_fused_slices_are_the_whole_batch(rows, steps, parallel, matrix, weights, dtype, **common):
    (_, x), y = batch(rows)
    more = () if weights is None else (np.random.default_rng(1).random(weights)[:rows],)
    whole = small_update((x, y, *more), OwnCall, matrix, **common)
    assert whole[1].keys() == {"loss", "accuracy", "perplexity", "target_tokens"}
    assert whole[1]["target_tokens"] == rows * (rows + 1) / 2
    labels = np.where(y == kt.PAD, np.arange(9) - 100, y).astype(dtype)
    how = common | {"accumulation_steps": steps, "parallel": parallel}
    assert_same(small_update((x, labels, *more), Small, matrix, **how), whole)
    assert max(np.abs(step).max() for step in whole[2]) > 1e-3


@pytest.mark.parametrize(
    "precision, sharing", [("float32", "none"), ("float32", "target"), ("mixed_float16", "all")]
)
def test_fused_loss_of_a_transformer_with_a_penalty(precision, sharing):
    found = []
    for fused in (True, False):
        keras.utils.set_random_seed(2)
        options = dict(dropout=0.0, share_embeddings=sharing, dtype=precision)
        model = kt.Transformer(20, 20, 1, 16, 2, 32, **options)
        model.target_embedding.embeddings.regularizer = keras.regularizers.L2(0.05)
        found.append(update(model, fused_loss=fused))
    assert_same(*found, tolerance=1e-5 if precision == "float32" else 2e-3)
    assert max(np.abs(step).max() for step in found[1][2]) > 0.05


def test_slices_in_graphs():
    found = []
    for options in ({}, {"steps_per_execution": 2}, {"jit_compile": True}):
        keras.utils.set_random_seed(2)
        model = compiled(Small(), accumulation_steps=3, **{"jit_compile": False} | options)
        history = model.fit(X, Y, batch_size=3, shuffle=False, verbose=0).history  # 3, 3, 1
        found.append(({k: v[0] for k, v in history.items()}, {}, model.get_weights()))
        assert_same(found[-1], found[0])


def test_fewer_rows_than_slices():
    """No slice is empty: a mean over no rows is NaN."""

    class Penalized(Small):
        def call(self, x, training=None):
            self.add_loss(0.01 * keras.ops.mean(keras.ops.cast(x, "float32")))
            return super().call(x, training)

    (_, x), y = batch(1)
    for option in ({"accumulation_steps": 4}, {"parallel": 4}):
        _, logs, changes = update(Penalized(), (x, y), **option)
        assert logs["target_tokens"] == 1 and np.isfinite(logs["loss"])
        assert all(np.isfinite(change).all() for change in changes)


class DoublesLoss(Small):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


WHO = [
    (Small, None, True),
    (type("Declares", (OwnCall,), {"fused_loss": True}), None, True),
    (OwnCall, [], False),
    (DoublesLoss, [], False),
    (type("Undeclared", (Small,), {"fused_loss": False}), [], False),
    (Small, ["sparse_top_k_categorical_accuracy"], False),
]


@pytest.mark.parametrize("kind, metrics, is_fused", WHO)
def test_who_computes_the_loss(kind, metrics, is_fused, monkeypatch):
    observed = mock.Mock(wraps=gradients.fused_cross_entropy)
    monkeypatch.setattr(gradients, "fused_cross_entropy", observed)
    logs = small_update((X, Y), kind, metrics=metrics)[1]
    assert observed.called is is_fused
    factor = 2 if kind is DoublesLoss else 1
    assert logs["loss"] == pytest.approx(factor * small_update((X, Y))[1]["loss"], rel=1e-5)
    if not is_fused:
        with pytest.raises(ValueError, match="fused_loss=True needs a class that declares it"):
            small_update((X, Y), kind, metrics=metrics, fused_loss=True)


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_training_follows_an_overridden_encode_or_decode(method):
    def negative(self, *args, **kwargs):
        return -getattr(kt.Transformer, method)(self, *args, **kwargs)

    kind, found = type("Own", (kt.Transformer,), {method: negative}), []
    for fused in ("auto", False):
        keras.utils.set_random_seed(1)
        model = kind(20, 20, 1, 16, 2, 32, dropout=0.0)
        found.append(update(model, fused_loss=fused))
    assert_same(*found)
    source, target = batch()[0]
    decoded = model.decode(target, model.encode(source), source)
    np.testing.assert_allclose(model((source, target)), decoded, atol=1e-6)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, kt.EMAAdam])
def test_first_step_of_adam_is_the_learning_rate(optimizer):
    """However often an id occurs, whose rows Keras' optimizers take for separate gradients."""
    found, matrix = [], "own" if optimizer is kt.EMAAdam else "shared"
    for options in ({}, {"clip_norm": 1e9}, {"accumulation_steps": 2}, {"fused_loss": False}):
        _, _, changes = small_update((X, Y), matrix=matrix, optimizer=optimizer(0.01), **options)
        found.append(changes[1])
        assert np.abs(found[-1]).max() == pytest.approx(0.01, rel=1e-3)
    for moved in found[1:]:
        np.testing.assert_allclose(moved, found[0], atol=2e-4)


def test_rows_are_added_to_a_dense_gradient_once():
    """TensorFlow copies all of it each time: tens of MiB of a large vocabulary."""
    model = compiled(Small(), metrics=[], parallel=3)
    model.build()
    data = tf.nest.map_structure(tf.constant, (X, Y))
    graph = tf.function(model.train_step, autograph=False).get_concrete_function(data).graph
    assigned = [op.name for op in graph.get_operations() if "Assign" in op.type]
    pruned = tf.compat.v1.graph_util.extract_sub_graph(graph.as_graph_def(), assigned)
    kinds = [node.op for node in pruned.node]
    assert (kinds.count("TensorScatterAdd"), kinds.count("TensorScatterSub")) == (1, 0)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"accumulation_steps": 2}])
def test_weights_without_a_gradient_stay(options):
    model = Small("own")
    model.unused = keras.layers.Dense(3)
    model.unused.build((None, 3))
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
    _, logs, changes = update(model, (X, Y), optimizer=optimizer, **options)
    assert np.isfinite(logs["loss"])
    assert [bool(np.any(change)) for change in changes] == [True, True, False, False]


@pytest.mark.parametrize("precision, parts", [("float32", 2), ("mixed_float16", 1)])
def test_gradients_are_clipped_together(precision, parts):
    """One SGD step moves all weights together by learning rate × clip_norm, not further."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, dtype=precision)
    _, _, changes = update(model, clip_norm=0.01, accumulation_steps=parts)
    step = np.sqrt(sum(np.sum(change**2) for change in changes))
    assert step == pytest.approx(0.3 * 0.01, rel=1e-2)


def test_loss_of_two_passes():
    """By logits, for the sample weights; the fused one: `tests/kernels`."""
    given = np.random.default_rng(1).random(Y.shape, "float32")
    model = Small("own")
    model.build()
    weights = (Y != kt.PAD) * given
    states, matrix = (np.array(x, "float64") for x in model.softmax_inputs(X))
    passes = np.stack([states * mask for mask in MASKS]).reshape(2, Y.size, -1)
    expected, without = (
        oracle.rdrop_loss(passes, matrix, Y.ravel(), weights.ravel(), 0.1, alpha) / weights.sum()
        + (matrix**2).sum()
        for alpha in (2.0, 0.0)
    )
    _, logs, _ = update(model, (X, Y, given), rdrop=2.0)
    assert logs["loss"] == pytest.approx(expected, rel=1e-5) and abs(expected - without) > 1e-2
    assert logs["target_tokens"] == (Y != kt.PAD).sum(), "tokens count once"
