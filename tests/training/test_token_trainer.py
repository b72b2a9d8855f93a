"""`fit` for sentences: what is refused, other losses, what files keep and what stays frozen."""

import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.layer_harness import randomize
from tests.training.test_gradients import Small, assert_same, batch, distance, logs_of, update

V = 20
INPUTS, Y = batch(5)
X = INPUTS[1]


def small_model(share="none", **options):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16, "dropout": 0.0}
    return kt.Transformer(V, V, share_embeddings=share, **sizes | options)


class Tagger(kt.TokenTrainer):
    def __init__(self, mask_zero=False):
        super().__init__()
        self.embedding = keras.layers.Embedding(V, 8, mask_zero=mask_zero)
        self.out = keras.layers.Dense(V)

    def call(self, ids):
        return self.out(self.embedding(ids))


def dataset(x, y):
    signature = (tf.TensorSpec((None, None), tf.int32),) * 2
    data = tf.data.Dataset.from_generator(lambda: iter([(x, y)]), output_signature=signature)
    return data.apply(tf.data.experimental.assert_cardinality(1))


@pytest.mark.parametrize("fused", [True, False])
def test_what_only_the_graph_of_a_step_can_see(fused):
    model = Small()
    model.compile("sgd", kt.SmoothedCrossEntropy(), fused_loss=fused, jit_compile=False)
    beyond = r"labels that are not below the size of the vocabulary, .* = 25 is not in \[0, 20\)"
    for use in (lambda data: model.fit(data, shuffle=False, verbose=0), model.evaluate):
        with pytest.raises(ValueError, match=beyond):
            use(dataset(X, np.where(Y > 0, 25, Y)))
        for y in (np.pad(Y, [(0, 0), (0, 1)]), Y[:, :1]):
            with pytest.raises(ValueError, match="or not one for each position of the outputs"):
                use(dataset(X, y))
        with pytest.raises(ValueError, match=r"ids outside the vocabulary .*29 is not in \[0, 20"):
            use(dataset(np.full_like(X, 29), Y))


KERAS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class WithTerm(Tagger):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) + 1.0


class TwoOutputs(Tagger):
    def call(self, ids):
        tags = super().call(ids)
        return tags, tags


class Classifier(kt.TokenTrainer):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = keras.layers.Embedding(V, 8), keras.layers.Dense(3)

    def call(self, ids):
        return self.out(keras.ops.mean(self.embedding(ids), axis=1))


def test_slices_and_rdrop_of_other_losses_are_refused():
    ours = kt.SmoothedCrossEntropy
    for model, loss, parallel, options in (
        (Tagger(), KERAS, 1, {"accumulation_steps": 2}),
        (Tagger(), keras.losses.dice, 1, {"rdrop": 2.0}),
        (Tagger(), [ours()], 2, {}),
        (Tagger(), ours(reduction="sum"), 1, {"accumulation_steps": 2}),
        (WithTerm(), ours(), 1, {"rdrop": 2.0}),
        (TwoOutputs(), ours(), 2, {}),
    ):
        model.parallel_microbatches = parallel
        model.compile("sgd", loss, **options)
        with pytest.raises(ValueError, match="accumulation_steps, .* and rdrop need one output"):
            model.train_step((X, (Y, Y) if isinstance(model, TwoOutputs) else Y))


@pytest.mark.parametrize("make", [Classifier, lambda: Tagger(True), lambda: WithTerm(True)])
def test_other_losses_are_those_of_keras(make):
    """Also where the outputs carry a mask, which the losses of Keras honour."""
    found, data = [], (tf.constant(X), tf.constant(Y[:, 0] % 3 if make is Classifier else Y))
    for own in (True, False):
        keras.utils.set_random_seed(2)
        model = make()
        metrics = [keras.metrics.SparseCategoricalAccuracy()]
        model.compile(keras.optimizers.SGD(0.5), KERAS, metrics=metrics, jit_compile=False)
        model(data[0])
        before = model.get_weights()
        step = model.train_step if own else functools.partial(keras.Model.train_step, model)
        found.append((logs_of(step, data), model.get_weights()))
    (logs, weights), (expected, others) = found
    assert logs == pytest.approx(expected, rel=1e-5)
    assert distance(weights, others) < 1e-6 < distance(weights, before)


def test_weights_and_reductions_of_the_loss():
    """Only the usual mean has a fused loss."""
    model, data = Small(), (tf.constant(X), tf.constant(Y))
    model.build()
    for how, times, weight in (({}, 3.0, 3.0), ({"reduction": "sum"}, np.count_nonzero(Y), None)):
        model.compile("sgd", kt.SmoothedCrossEntropy(0.1, **how), loss_weights=weight)
        for step in (model.test_step, model.train_step):
            expected = times * kt.SmoothedCrossEntropy(0.1)(Y, model(X)) + sum(model.losses)
            assert logs_of(step, data)["loss"] == pytest.approx(float(expected), rel=1e-5)
            model.reset_metrics()


def test_other_metrics_see_each_row_once():
    model, metric = Tagger(), keras.metrics.SparseCategoricalAccuracy
    model.compile("sgd", kt.SmoothedCrossEntropy(), metrics=[metric()])
    model.parallel_microbatches = 2
    found = logs_of(model.test_step, (tf.constant(X), tf.constant(Y)))
    assert found["sparse_categorical_accuracy"] == pytest.approx(float(metric()(Y, model(X))))


def test_a_mask_of_the_outputs_does_not_change_which_labels_count():
    found = []
    shifted = np.roll(X, 1, axis=1)  # where the mask hides other positions than the labels
    for mask_zero, steps in ((False, 1), (True, 1), (True, 2)):
        keras.utils.set_random_seed(2)
        found.append(update(Tagger(mask_zero), (shifted, Y), accumulation_steps=steps))
        assert_same(found[-1], found[0], 1e-6)


def test_compile_arguments_are_saved_with_the_model(tmp_path):
    model = small_model()
    options = dict(clip_norm=0.5, accumulation_steps=2, fused_loss=False, rdrop=0.5)
    update(model, (INPUTS, Y), optimizer=keras.optimizers.Adam(0.1), parallel=3, **options)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {name: loaded.get_compile_config()[name] for name in options} == options
    assert loaded.parallel_microbatches == 1
    assert int(loaded.optimizer.iterations) == 1 and type(loaded.loss) is kt.SmoothedCrossEntropy
    data = tf.nest.map_structure(tf.constant, (INPUTS, Y))
    for one in (model, loaded):
        one.reset_metrics()
    logs, other = (logs_of(one.train_step, data) for one in (model, loaded))
    assert logs["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert distance(model.get_weights(), loaded.get_weights()) < 1e-5


@pytest.mark.parametrize("of_file, of_model", [({"num_layers": 3}, {}), ({}, {"share": "target"})])
def test_weights_of_more_layers_are_refused(of_file, of_model, tmp_path):
    larger = randomize(small_model(**of_file))
    larger.save_weights(tmp_path / "larger.weights.h5")
    larger.save(tmp_path / "larger.keras")
    larger.save_weights(tmp_path / "larger.weights.json", max_shard_size=1e-4)
    for name in ("larger.weights.h5", "larger.keras", "larger.weights.json"):
        with pytest.raises(ValueError, match=r"\d+ layers, but this model has"):
            small_model(**of_model).load_weights(tmp_path / name)
    model = randomize(small_model(**of_model), seed=1)
    with pytest.warns(UserWarning, match="layers, but this model has"):
        model.load_weights(tmp_path / "larger.weights.h5", skip_mismatch=True)
    np.testing.assert_array_equal(model.decoder.get_weights()[0], larger.decoder.get_weights()[0])


def test_what_training_leaves_is_not_left_over(tmp_path):
    trained = small_model(dropout=0.1)
    update(trained, (INPUTS, Y), optimizer=keras.optimizers.Adam())
    trained.save_weights(tmp_path / "trained.weights.h5")
    plain = small_model()
    plain.load_weights(tmp_path / "trained.weights.h5")
    assert distance(plain.get_weights(), trained.get_weights()) == 0


def test_hdf5_is_refused(tmp_path):
    for name in ("m.h5", "m.hdf5", "m.weights.h5"):
        with pytest.raises(ValueError, match=r"must end in \.keras"):
            Small().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "share, positions, fused", [("target", "learned", True), ("none", "sinusoidal", False)]
)
def test_the_frozen_stay_and_the_rest_learns(share, positions, fused):
    """Though weights decay and have a running mean: a layer, a table without its positions."""
    model = randomize(small_model(share, positions=positions, max_length=16))
    model.encoder.trainable = model.source_embedding.embeddings.trainable = False
    frozen = [*model.encoder.weights, model.source_embedding.embeddings]
    before, all_before = [np.array(weight) for weight in frozen], model.get_weights()
    optimizer = kt.EMAAdam(0.1, use_ema=True, ema_momentum=0.9, weight_decay=0.1)
    update(model, (INPUTS, Y), optimizer=optimizer, fused_loss=fused)
    with kt.ema_weights(model):
        assert distance(map(np.array, frozen), before) == 0
    pairs = zip(all_before, model.get_weights(), strict=True)
    assert sum(not np.array_equal(*pair) for pair in pairs) == len(all_before) - len(frozen)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"accumulation_steps": 2}])
def test_a_frozen_model_is_evaluated_with_a_warning(options):
    model = Small()
    model.build()
    model.trainable = False
    with pytest.warns(UserWarning, match="no trainable weights"):
        evaluated, logs, changes = update(model, (X, Y), **options)
    assert logs == pytest.approx(evaluated) and distance(changes, [0 * x for x in changes]) == 0


schedule = kt.WarmupInverseSqrt
LOGITS = "The model returns logits, .*: compile with SmoothedCrossEntropy"


def compiled(loss=None, model=Small, **options):
    model = model()
    model.compile("sgd", loss or kt.SmoothedCrossEntropy(), **options)
    return model


def test_mistakes():
    for mistake, message in (
        (lambda: schedule(), "Name d_model or peak, received d_model=None and peak=None"),
        (lambda: schedule(d_model=8, warmup_steps=0), "warmup_steps must be at least 1, rec"),
        (lambda: schedule(d_model=1e-3), "d_model must be at least 1, received 0.001"),
        (lambda: schedule(peak=math.nan), "peak must be a number above 0, received nan"),
        (lambda: schedule(peak=1, cooldown_steps=2, total_steps=1), "total_steps=1, received 2"),
        (lambda: schedule(peak=1, cooldown_steps=-1, total_steps=1), "received -1"),
        (lambda: kt.EMAAdam(use_ema=True, ema_momentum=2.0), "ema_momentum"),
        (lambda: kt.SmoothedCrossEntropy(1), "label_smoothing must be .*received 1"),
        (lambda: compiled(clip_norm=0.0), "clip_norm must be above 0"),
        (lambda: compiled(accumulation_steps=2.0), "accumulation_steps must be a positive integer"),
        (lambda: compiled(rdrop=math.nan), "rdrop must be a number of at least 0, received nan"),
        (lambda: compiled(fused_loss="yes"), 'fused_loss must be "auto", True or False'),
        # Keras would weigh each sentence by the position of its largest id.
        (lambda: compiled().fit(X, Y, class_weight={1: 2.0}), "class_weight .*: pass sample_w"),
        (lambda: compiled().train_on_batch(X, Y, class_weight={1: 2.0}), "pass sample_weight"),
        (lambda: compiled("sparse_categorical_crossentropy", small_model), LOGITS),
        (lambda: compiled(keras.losses.sparse_categorical_crossentropy, small_model), LOGITS),
        (lambda: compiled(keras.losses.SparseCategoricalCrossentropy(), small_model), LOGITS),
        (lambda: compiled(model=small_model, metrics=["crossentropy"]), LOGITS),
    ):
        with pytest.raises(ValueError, match=message):
            mistake()
    # Those of logits are accepted.
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    compiled(logits, small_model, metrics=["sparse_categorical_accuracy"])
