"""One update of a batch in parts, and gradients clipped together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import token_trainer


def batch(rows=7, seed=0):
    """Rows with very different numbers of target tokens."""
    random = np.random.default_rng(seed)
    source, target = (random.integers(4, 20, (rows, n)).astype("int32") for n in (6, 9))
    for row in range(rows):
        target[row, row + 1 :] = kt.PAD
        source[row, random.integers(2, 7) :] = kt.PAD
    target_in = np.concatenate([np.full((rows, 1), kt.START, "int32"), target[:, :-1]], axis=1)
    return (source, target_in), target


def fit(steps=3, precision="float32", weights=None, rows=7, steps_per_execution=1, **attributes):
    """Trains on `steps` equal batches; returns the weights, the logs and the starting weights."""
    keras.utils.set_random_seed(2)
    model = kt.Transformer(20, 20, 2, 16, 2, 32, dropout=0.0, dtype=precision)
    model.build()
    for name, value in attributes.items():
        setattr(model, name, value)
    model.compile(
        keras.optimizers.SGD(0.3, momentum=0.9),
        kt.SmoothedCrossEntropy(0.1),
        metrics=[kt.MaskedAccuracy(), kt.TargetTokens()],
        jit_compile=False,
        steps_per_execution=steps_per_execution,
    )
    before = model.get_weights()
    data = batch(rows) if weights is None else (*batch(rows), weights)
    dataset = tf.data.Dataset.from_tensors(data).repeat(steps)
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values[0] for name, values in history.items()}, before


def distance(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others, strict=True))


@pytest.fixture(scope="module", params=[None, (7,), (7, 9)], ids=["none", "rows", "tokens"])
def whole_batch(request):
    """Weights of the tokens, and what training on the whole batch comes to."""
    shape = request.param
    weights = None if shape is None else np.random.default_rng(1).random(shape, "float32")
    return weights, fit(weights=weights)


ONE_AFTER_THE_OTHER, AT_ONCE = "accumulation_steps", "parallel_parts"


@pytest.mark.parametrize(
    "how, parts",
    [
        *(((ONE_AFTER_THE_OTHER,), parts) for parts in (2, 3, 7, 9)),
        *(((AT_ONCE,), parts) for parts in (2, 9)),
        ((ONE_AFTER_THE_OTHER, AT_ONCE), 3),
    ],
)
def test_parts_equal_the_whole_batch(how, parts, whole_batch):
    """Also where rows do not divide, and where a part has no row at all."""
    weights, (whole, whole_logs, before) = whole_batch
    parted, parted_logs, _ = fit(weights=weights, **dict.fromkeys(how, parts))
    assert distance(whole, before) > 0.01
    assert distance(whole, parted) < 1e-5
    assert whole_logs.keys() == parted_logs.keys() == {"loss", "accuracy", "target_tokens"}
    for name, value in whole_logs.items():
        assert parted_logs[name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("attributes", [{}, {AT_ONCE: 2}])
def test_several_updates_in_one_call(attributes):
    """Keras' `steps_per_execution`, also where the last call has fewer of them."""
    single, single_logs, before = fit(**attributes)
    joined, joined_logs, _ = fit(steps_per_execution=2, **attributes)
    assert distance(single, before) > 0.01
    assert distance(single, joined) < 1e-6
    assert joined_logs == pytest.approx(single_logs, abs=1e-5)


def test_parts_with_dropout_in_a_graph():
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.5)
    model.accumulation_steps, model.parallel_parts = 3, 2
    model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False)
    loss = model.fit(*batch(), batch_size=7, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(loss).all()


def test_parts_at_once_leave_lookups_sparse():
    """Of a vocabulary, a batch has few rows: a gradient of all would be memory for nothing."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="none")
    model.compile("sgd", kt.SmoothedCrossEntropy())
    model.build()
    model.parallel_parts = 3
    seen = []
    model.optimizer.apply_gradients = lambda pairs: seen.extend(pairs)
    model.train_step(tf.nest.map_structure(tf.constant, batch()))
    found = {variable.path: gradient for gradient, variable in seen}
    source = found[model.source_embedding.embeddings.path]
    assert isinstance(source, tf.IndexedSlices)
    model.parallel_parts = 1
    del seen[:]
    model.train_step(tf.nest.map_structure(tf.constant, batch()))
    for whole, variable in seen:
        parted = tf.convert_to_tensor(found[variable.path])
        np.testing.assert_allclose(parted, tf.convert_to_tensor(whole), atol=1e-6)


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_rows_are_added_to_a_dense_gradient_once(sharing):
    """TensorFlow copies all of it each time: tens of MiB of a large vocabulary."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings=sharing)
    model.compile("sgd", kt.SmoothedCrossEntropy())
    model.build()
    model.parallel_parts = 3
    data = tf.nest.map_structure(tf.constant, batch())
    graph = tf.function(model.train_step, autograph=False).get_concrete_function(data).graph
    pruned = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), [op.name for op in graph.get_operations() if "Assign" in op.type]
    )
    kinds = [node.op for node in pruned.node]
    # A matrix that is no variable gets them from each part; the lookups of its own stay sparse.
    assert kinds.count("TensorScatterAdd") == {"all": 1, "none": 3}[sharing]
    assert kinds.count("TensorScatterSub") == 0


@pytest.mark.parametrize("parts", [2, 9])
def test_evaluation_in_parts_equals_the_whole_batch(parts):
    keras.utils.set_random_seed(2)
    model = kt.Transformer(20, 20, 1, 16, 2, 32)
    metrics = [kt.MaskedAccuracy(), kt.Perplexity(), kt.TargetTokens()]
    model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=metrics)
    dataset = tf.data.Dataset.from_tensors(batch())
    whole = model.evaluate(dataset, verbose=0, return_dict=True)
    model.parallel_parts = parts
    model.make_test_function(force=True)
    parted = model.evaluate(dataset, verbose=0, return_dict=True)
    assert parted == pytest.approx(whole, rel=1e-5)


def test_target_tokens_are_counted():
    _, logs, _ = fit(steps=3)
    assert logs["target_tokens"] == 3 * (1 + 2 + 3 + 4 + 5 + 6 + 7)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_are_clipped_together(precision, parts):
    """One SGD step moves all weights together by learning rate × clip_norm, not further."""
    after, _, before = fit(steps=1, precision=precision, clip_norm=0.01, accumulation_steps=parts)
    step = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(after, before, strict=True)))
    assert step == pytest.approx(0.3 * 0.01, rel=1e-2)


def test_small_gradients_are_left_alone():
    assert distance(fit(steps=1)[0], fit(steps=1, clip_norm=1e6)[0]) < 1e-7


# The loss without the logits of the whole batch.


class OwnCall(kt.Transformer):
    """Does not change what is computed, but Keras and we cannot know."""

    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)


class DoublesLoss(kt.Transformer):
    def compute_loss(self, *args, **kwargs):
        return 2 * super().compute_loss(*args, **kwargs)


class Bigrams(token_trainer.TokenTrainer, keras.Model):
    """A model that cannot say what its logits are the product of."""

    def __init__(self, *_, **options):
        super().__init__()
        self.table = keras.layers.Embedding(20, 20)

    def call(self, inputs, training=None):
        return self.table(inputs[1])

    def build(self, input_shape=None):
        self.table.build((None, None))
        self.built = True


def fit_once(model_class=kt.Transformer, metrics=None, **options):
    """One update; returns the weights and the logs."""
    keras.utils.set_random_seed(2)
    model = model_class(20, 20, 2, 16, 2, 32, dropout=0.0, **options)
    metrics = [kt.MaskedAccuracy(), kt.Perplexity()] if metrics is None else metrics
    model.compile(
        keras.optimizers.SGD(0.3), kt.SmoothedCrossEntropy(0.1), metrics=metrics, jit_compile=False
    )
    dataset = tf.data.Dataset.from_tensors(batch())
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values[0] for name, values in history.items()}


@pytest.mark.parametrize("sharing", ["none", "target", "all"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_fused_loss_equals_that_of_logits(sharing, norm):
    """A `call` that is not ours goes through the logits; loss, metrics and update are the same."""
    fused, fused_logs = fit_once(share_embeddings=sharing, norm=norm)
    plain, plain_logs = fit_once(OwnCall, share_embeddings=sharing, norm=norm)
    assert distance(fused, plain) < 1e-6
    assert fused_logs.keys() == plain_logs.keys() == {"loss", "accuracy", "perplexity"}
    for name, value in plain_logs.items():
        assert fused_logs[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_fused_loss_with_a_penalty_and_a_scaled_loss(precision):
    """Gradients that take two ways, a penalty's share and float16's scale all arrive."""

    def update(model_class):
        keras.utils.set_random_seed(2)
        model = model_class(
            20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="all", dtype=precision
        )
        model.build()
        before = model.get_weights()
        model.target_embedding.embeddings.regularizer = keras.regularizers.L2(0.05)
        model.compile(keras.optimizers.SGD(0.3), kt.SmoothedCrossEntropy(0.1), jit_compile=False)
        x, y = batch()
        loss = model.fit(x, y, batch_size=len(y), verbose=0).history["loss"][0]
        return [a - b for a, b in zip(model.get_weights(), before, strict=True)], loss

    (fused, fused_loss), (plain, plain_loss) = update(kt.Transformer), update(OwnCall)
    assert fused_loss == pytest.approx(plain_loss, rel=1e-3)
    assert distance(fused, plain) < (1e-6 if precision == "float32" else 2e-3)
    assert max(np.abs(step).max() for step in plain) > 0.05


def test_who_computes_the_loss():
    """What looks at the logits gets them; what does not spares them."""
    calls = []
    original = token_trainer.fused_cross_entropy

    def counting(*args):
        calls.append(args)
        return original(*args)

    foreign = keras.metrics.SparseTopKCategoricalAccuracy(k=3, name="top")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_trainer, "fused_cross_entropy", counting)
        fit_once()
        fused = len(calls)
        assert fused
        fit_once(OwnCall)
        fit_once(DoublesLoss)
        assert fit_once(Bigrams)[1]["loss"] > 0
        assert fit_once(metrics=[foreign])[1]["top"] > 0
        assert len(calls) == fused
    assert fit_once(DoublesLoss)[1]["loss"] == pytest.approx(2 * fit_once()[1]["loss"], rel=1e-5)
