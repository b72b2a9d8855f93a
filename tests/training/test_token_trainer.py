"""One update of a batch in parts, and gradients clipped together."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt


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
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, dtype=precision)
    model.build()
    model.parallel_microbatches = attributes.pop("parallel_microbatches", 1)
    model.compile(
        keras.optimizers.SGD(0.3, momentum=0.9),
        kt.SmoothedCrossEntropy(0.1),
        metrics=[kt.MaskedAccuracy(), kt.TargetTokens()],
        jit_compile=False,
        steps_per_execution=steps_per_execution,
        **attributes,
    )
    before = model.get_weights()
    data = batch(rows) if weights is None else (*batch(rows), weights)
    dataset = tf.data.Dataset.from_tensors(data).repeat(steps)
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values[0] for name, values in history.items()}, before


def distance(some, others):
    return max(np.abs(a - b).max() for a, b in zip(some, others, strict=True))


@functools.cache
def whole_batch(shape):
    """Weights of this shape, and what training on the whole batch of three rows comes to."""
    weights = None if shape is None else np.random.default_rng(1).random(shape, "float32")
    return weights, fit(weights=weights, rows=3)


ONE_AFTER_THE_OTHER, AT_ONCE = "accumulation_steps", "parallel_microbatches"


@pytest.mark.parametrize(
    "how, parts, shape",
    [
        *(((ONE_AFTER_THE_OTHER,), parts, None) for parts in (2, 3, 4)),
        *(((AT_ONCE,), parts, None) for parts in (2, 4)),
        ((ONE_AFTER_THE_OTHER, AT_ONCE), 2, None),
        # Weights of rows, and of tokens.
        ((ONE_AFTER_THE_OTHER,), 2, (3,)),
        ((AT_ONCE,), 4, (3,)),
        ((ONE_AFTER_THE_OTHER, AT_ONCE), 2, (3, 9)),
    ],
)
def test_parts_equal_the_whole_batch(how, parts, shape):
    """Also where rows do not divide, and where a part has no row at all."""
    weights, (whole, whole_logs, before) = whole_batch(shape)
    parted, parted_logs, _ = fit(weights=weights, rows=3, **dict.fromkeys(how, parts))
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
    model.parallel_microbatches = 2
    model.compile("adam", kt.SmoothedCrossEntropy(), jit_compile=False, accumulation_steps=3)
    loss = model.fit(*batch(), batch_size=7, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(loss).all()


def test_gradients_of_lookups_are_summed():
    """Optimizers of Keras take the rows of a sparse gradient for separate gradients."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings="none")
    model.compile("sgd", kt.SmoothedCrossEntropy())
    model.build()
    model.parallel_microbatches = 3
    seen = []
    model.optimizer.apply_gradients = lambda pairs: seen.extend(pairs)
    model.train_step(tf.nest.map_structure(tf.constant, batch()))
    found = {variable.path: gradient for gradient, variable in seen}
    assert all(tf.is_tensor(gradient) for gradient in found.values())
    model.parallel_microbatches = 1
    del seen[:]
    model.train_step(tf.nest.map_structure(tf.constant, batch()))
    for whole, variable in seen:
        np.testing.assert_allclose(found[variable.path], whole, atol=1e-6)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, kt.EMAAdam])
@pytest.mark.parametrize("sharing", ["target", "none"])
def test_first_step_of_adam_is_the_learning_rate(optimizer, sharing):
    """However often an id occurs: of a gradient g, Adam's first step is g / |g|."""
    found = []
    for options in ({}, {"clip_norm": 1e9}, {"accumulation_steps": 2}, {"fused_loss": False}):
        keras.utils.set_random_seed(1)
        model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings=sharing)
        model.build()
        model.compile(optimizer(0.01), kt.SmoothedCrossEntropy(0.1), jit_compile=False, **options)
        before = model.source_embedding.get_weights()[0]
        model.fit(*batch(), batch_size=7, verbose=0)
        found.append(model.source_embedding.get_weights()[0] - before)
        assert np.abs(found[-1]).max() == pytest.approx(0.01, rel=1e-3)
    for moved in found[1:]:
        np.testing.assert_allclose(moved, found[0], atol=2e-4)


def test_weights_without_a_gradient_stay():
    class Unused(kt.Transformer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.unused = keras.layers.Dense(3)
            self.unused.build((None, 3))

    for options in ({"clip_norm": 1.0}, {"accumulation_steps": 2}):
        model = Unused(20, 20, 1, 16, 2, 32)
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
        model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), jit_compile=False, **options)
        before = model.unused.get_weights()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            assert np.isfinite(model.fit(*batch(), batch_size=7, verbose=0).history["loss"]).all()
        assert distance(model.unused.get_weights(), before) == 0


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"accumulation_steps": 2}])
def test_a_frozen_model_is_evaluated_with_a_warning(options):
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0)
    model.compile("adam", kt.SmoothedCrossEntropy(0.1), jit_compile=False, **options)
    model.trainable = False
    with pytest.warns(UserWarning, match="no trainable weights"):
        loss = model.fit(*batch(), batch_size=7, verbose=0).history["loss"]
    assert loss == pytest.approx([model.evaluate(*batch(), batch_size=7, verbose=0)])


@pytest.mark.parametrize("options", [{"loss_weights": 3.0}, {"reduction": "sum"}])
def test_weights_and_reductions_of_the_loss(options):
    """Only the usual mean has a fused loss."""
    loss = kt.SmoothedCrossEntropy(
        0.1, reduction=options.pop("reduction", "mean_with_sample_weight")
    )
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=False, **options)
    value = model.evaluate(*batch(), batch_size=7, verbose=0)
    assert model.fit(*batch(), batch_size=7, verbose=0).history["loss"] == pytest.approx([value])
    mean = kt.SmoothedCrossEntropy(0.1)(batch()[1], model(batch()[0]))
    times = 3.0 if options else np.count_nonzero(batch()[1])
    assert value == pytest.approx(times * float(mean), rel=1e-5)


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_rows_are_added_to_a_dense_gradient_once(sharing):
    """TensorFlow copies all of it each time: tens of MiB of a large vocabulary."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0, share_embeddings=sharing)
    model.compile("sgd", kt.SmoothedCrossEntropy())
    model.build()
    model.parallel_microbatches = 3
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
    model.parallel_microbatches = parts
    model.make_test_function(force=True)
    parted = model.evaluate(dataset, verbose=0, return_dict=True)
    assert parted == pytest.approx(whole, rel=1e-5)


def test_target_tokens_are_counted():
    _, logs, _ = fit(steps=3)
    assert logs["target_tokens"] == 3 * (1 + 2 + 3 + 4 + 5 + 6 + 7)


@pytest.mark.parametrize("precision, parts", [("float32", 2), ("mixed_float16", 1)])
def test_gradients_are_clipped_together(precision, parts):
    """One SGD step moves all weights together by learning rate × clip_norm, not further."""
    after, _, before = fit(steps=1, precision=precision, clip_norm=0.01, accumulation_steps=parts)
    step = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(after, before, strict=True)))
    assert step == pytest.approx(0.3 * 0.01, rel=1e-2)


def test_small_gradients_are_left_alone():
    assert distance(fit(steps=1)[0], fit(steps=1, clip_norm=1e6)[0]) < 1e-7


def test_compile_arguments_are_saved_with_the_model(tmp_path):
    """But not what belongs to the machine."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32, dropout=0.0)
    options = dict(clip_norm=0.5, accumulation_steps=2, fused_loss=False, rdrop=0.5)
    metrics, names = [kt.MaskedAccuracy(), kt.Perplexity()], ["accuracy", "perplexity"]
    model.compile("adam", kt.SmoothedCrossEntropy(), metrics=metrics, **options)
    model.parallel_microbatches = 3
    callbacks = [keras.callbacks.EarlyStopping(name) for name in names]
    model.fit(*batch(), batch_size=7, verbose=0, callbacks=callbacks)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {name: loaded.get_compile_config()[name] for name in options} == options
    assert loaded.parallel_microbatches == 1
    assert int(loaded.optimizer.iterations) == 1 and type(loaded.loss) is kt.SmoothedCrossEntropy
    one, other = (m.fit(*batch(), batch_size=7, verbose=0).history for m in (model, loaded))
    assert one.keys() == {"loss", *names}
    for name in names:
        assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_class_weight_is_refused():
    """Keras would weigh each sentence by the position of its largest id."""
    model = kt.Transformer(20, 20, 1, 16, 2, 32)
    model.compile("sgd", kt.SmoothedCrossEntropy())
    x, y = batch()
    model.build()
    before, weights = model.get_weights(), dict.fromkeys(range(20), 2.0)
    for learn in (
        lambda: model.fit(x, y, class_weight=weights, verbose=0),
        lambda: model.train_on_batch(x, y, class_weight=weights),
    ):
        with pytest.raises(ValueError, match="class_weight is not supported: pass sample_weight"):
            learn()
    assert distance(model.get_weights(), before) == 0
    model.train_on_batch(x, y, np.ones(y.shape, "float32"))
    assert distance(model.get_weights(), before) > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"clip_norm": 0.0}, "clip_norm must be above 0"),
        ({"clip_norm": "1"}, "clip_norm must be above 0, received '1'"),
        ({"accumulation_steps": 2.0}, "accumulation_steps must be a positive integer"),
        ({"rdrop": "1"}, "rdrop must be a number of at least 0, received '1'"),
        ({"accumulation_steps": 0}, "accumulation_steps must be a positive integer"),
        ({"fused_loss": "yes"}, 'fused_loss must be "auto", True or False'),
    ],
)
def test_compile_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        kt.Transformer(20, 20, 1, 16, 2, 32).compile("sgd", kt.SmoothedCrossEntropy(), **options)
