"""The whole model: the formulas, the invariants, and decoding step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import (
    NORMS,
    POLICIES,
    SOURCE,
    TARGET,
    TOLERANCES,
    B,
    S,
    T,
    assert_close,
    build,
    to_numpy,
)

VARIANTS = [
    {"norm": "post", "share_embeddings": "none", "positions": "learned"},
    {"norm": "pre", "share_embeddings": "none"},
    {"norm": "post", "share_embeddings": "target"},
    {"norm": "pre", "share_embeddings": "target", "positions": "learned"},
    {"norm": "post", "share_embeddings": "all"},
    {"norm": "pre", "share_embeddings": "all"},
]
variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(v.values()))


@pytest.fixture(scope="module", params=[(n, p) for n in NORMS for p in POLICIES], ids="-".join)
def model(request):
    """A small model, for each norm and precision."""
    norm, policy = request.param
    return build("Transformer", norm, policy, share_embeddings="all", dropout=0.3)


@pytest.fixture(scope="module")
def plain_model():
    return build("Transformer")


def tolerance_of(model):
    return TOLERANCES[model.dtype_policy.name]


def run(model, source=SOURCE, target=TARGET, **kwargs):
    return to_numpy(model((source, target), **kwargs))


# The formula.


@variants
def test_equals_the_formula(variant):
    model = build("Transformer", **variant)
    assert_close(model((SOURCE, TARGET)), oracle.transformer(model, SOURCE, TARGET))


@variants
def test_shared_matrices_are_stored_once(variant):
    model = build("Transformer", **variant)
    stacks = model.encoder.count_params() + model.decoder.count_params()
    d_model, share = layer_harness.D, variant["share_embeddings"]
    source, target = model.source_vocabulary_size, model.target_vocabulary_size
    vectors = {"none": source + target, "target": source + target, "all": source}[share]
    if "positions" in variant:
        vectors += 2 * model.max_length
    projection = target * (d_model + 1) if share == "none" else 0
    assert model.count_params() == stacks + d_model * vectors + projection


def test_call_is_decode_of_encode(model):
    memory = model.encode(SOURCE)
    assert memory.shape == (B, S, layer_harness.D)
    logits = model.decode(TARGET, memory, SOURCE)
    assert_close(logits, run(model), 1e-6)
    assert logits.dtype == "float32"


def test_attention_scores(model):
    logits, scores = model((SOURCE, TARGET), return_attention_scores=True)
    assert_close(logits, run(model), 1e-6)
    shapes = {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}
    assert set(scores) == set(shapes)
    for name, shape in shapes.items():
        assert [x.shape for x in scores[name]] == [(B, layer_harness.H, *shape)] * 2
        keys = np.ones((B, T), bool) if name == "decoder" else SOURCE != 0
        for weights in to_numpy(scores[name]):
            np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-2)
            assert not np.moveaxis(weights, -1, 1)[~keys].any()
            assert name != "decoder" or not np.triu(weights, k=1).any()


# Invariants.


@pytest.mark.parametrize("training", [False, True], ids=["at rest", "dropout"])
def test_no_logit_depends_on_a_later_token(model, training):
    seeds = [(variable, variable.numpy()) for variable in layer_harness.seed_states(model)]

    def logits(target, with_scores):
        for variable, seed in seeds:
            variable.assign(seed)
        kwargs = {"training": training, "return_attention_scores": with_scores}
        outputs = run(model, target=target, **kwargs)
        return outputs[0] if with_scores else outputs

    expected = logits(TARGET, False)
    for first in range(1, T):
        changed = TARGET.copy()
        changed[:, first:] = (changed[:, first:] + 5) % 11
        for with_scores in (False, True):
            actual = logits(changed, with_scores)
            np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
            assert (np.abs(actual[:, first:] - expected[:, first:]).max(axis=(1, 2)) > 1e-3).all()


def test_more_padding_changes_nothing(model):
    source = np.pad(SOURCE, [(0, 0), (0, 5)])
    target = np.pad(TARGET, [(0, 0), (0, 3)])
    logits = run(model, source, target)
    assert_close(logits[:, :T], run(model), tolerance_of(model))


def test_row_of_padding_only(model):
    source, target = SOURCE.copy(), TARGET.copy()
    source[1], target[1] = 0, 0
    logits, scores = run(model, source, target, return_attention_scores=True)
    assert np.isfinite(logits).all()
    assert not any(weights[1].any() for weights in scores["encoder"] + scores["cross"])
    assert_close(logits[[0, 2]], run(model)[[0, 2]], tolerance_of(model))


def test_a_batch_equals_its_rows_one_by_one(model):
    rows = [run(model, SOURCE[i : i + 1], TARGET[i : i + 1]) for i in range(B)]
    assert_close(run(model), np.concatenate(rows), tolerance_of(model))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint16", "int32"])
@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_ids_of_any_integer_type(plain_model, dtype, kind):
    model = plain_model
    source, target = kind(SOURCE.astype(dtype)), kind(TARGET.astype(dtype))
    expected = run(model)
    np.testing.assert_array_equal(run(model, source, target), expected)
    np.testing.assert_array_equal(model([source, target]), expected)
    assert_close(model.encode(source), to_numpy(model.encode(SOURCE)), 0)


def test_empty_batches_and_lengths(plain_model):
    model = plain_model
    none = np.zeros((0, 3), "int32")
    assert run(model, none, none).shape == (0, 3, 11)
    assert run(model, target=TARGET[:, :0]).shape == (B, 0, 11)
    nothing_to_read = run(model, source=SOURCE[:, :0])
    assert np.isfinite(nothing_to_read).all()
    assert_close(nothing_to_read, run(model, source=np.zeros_like(SOURCE)))


# Step by step.


def steps(model, source, target, position=int):
    """Logits of one token after the other."""
    state, logits = model.initial_state(source), []
    for i in range(target.shape[1]):
        step_logits, state = model.step(target[:, i], position(i), state)
        assert step_logits.dtype == "float32"
        logits.append(to_numpy(step_logits))
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("position", [int, tf.constant])
def test_steps_equal_the_whole(model, position):
    """Also where the target holds padding, and past the end of another row."""
    assert_close(steps(model, SOURCE, TARGET, position), run(model), tolerance_of(model))


@variants
def test_steps_equal_the_whole_in_every_variant(variant):
    model = build("Transformer", **variant)
    target = np.random.default_rng(1).integers(1, 11, size=(B, 12))
    assert_close(steps(model, SOURCE, target), run(model, target=target))


@pytest.mark.parametrize("sharing", ["none", "target", "all"])
@pytest.mark.parametrize("policy", POLICIES)
def test_made_step_does_what_step_does(policy, sharing):
    model = build("Transformer", "post", policy, share_embeddings=sharing)
    state = model.initial_state(SOURCE)
    expected = model.step(TARGET[:, 0], 0, state)
    found = model.make_step()(TARGET[:, 0], 0, state)
    assert found[0].dtype == "float32"
    assert_close(found, expected, 0)


def test_made_step_belongs_to_the_weights_it_was_made_of():
    """Its matrix of the softmax is a copy: a step after an update needs a new one."""
    model = build("Transformer", share_embeddings="target")
    old, state = model.make_step(), model.initial_state(SOURCE)
    before = old(TARGET[:, 0], 0, state)[0]
    weights = model.target_embedding.embeddings
    start = keras.ops.arange(weights.shape[0]) == kt.START
    weights.assign(keras.ops.where(start[:, None], weights, -weights))  # what is embedded stays
    assert_close(old(np.full([B], kt.START), 0, state)[0], before, 0)
    assert_close(model.make_step()(np.full([B], kt.START), 0, state)[0][:, 3:], -before[:, 3:])


def test_steps_of_rows_without_source(plain_model):
    source = SOURCE.copy()
    source[1] = 0
    assert_close(steps(plain_model, source, TARGET), run(plain_model, source))


def test_state_is_batch_first_and_holds_the_memory_once(plain_model):
    """What a search reorders: every tensor of the state has the rows on its first axis."""
    model = plain_model
    state = model.initial_state(SOURCE)
    _, later = model.step(TARGET[:, 0], 0, state)
    assert all(x.shape[0] == B for x in keras.tree.flatten(later))
    reordered = keras.tree.map_structure(lambda x: tf.gather(x, [2, 0]), later)
    logits, _ = model.step(TARGET[[2, 0], 1], 1, reordered)
    assert_close(logits, run(model)[[2, 0], 1])
    for before, after in zip(
        keras.tree.flatten(state["memory"]), keras.tree.flatten(later["memory"]), strict=True
    ):
        assert before is after


# Training.


def test_fit_predict_and_evaluate():
    """model.fit as a script calls it: the loss falls, and every weight has been moved."""
    model = build("Transformer", share_embeddings="none", num_layers=1)
    model.compile(keras.optimizers.SGD(1.0), kt.SmoothedCrossEntropy(), metrics=["accuracy"])
    labels = np.concatenate([TARGET[:, 1:], np.zeros((B, 1), "int32")], axis=1)
    before = model.get_weights()
    history = model.fit((SOURCE, TARGET), labels, batch_size=B, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    for variable, old, new in zip(model.weights, before, model.get_weights(), strict=True):
        # A key's bias adds the same to all scores of a query, which softmax does not see.
        assert variable.path.endswith("key/bias") or np.abs(new - old).max() > 1e-5, variable.path
    assert_close(model.predict((SOURCE, TARGET), verbose=0), run(model))
    loss = model.evaluate((SOURCE, TARGET), labels, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(float(kt.SmoothedCrossEntropy()(labels, run(model))), abs=1e-5)


def test_dropout_in_training_only(plain_model):
    model = build("Transformer", dropout=0.3)
    assert_close(run(model), run(plain_model), 1e-6)
    one, other = run(model, training=True), run(model, training=True)
    assert np.abs(one - other).max() > 0.1
