"""The whole model: the formulas, the invariants, and three ways to logits, whatever its options."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.special_ids import PAD, START, SUPPRESSED, UNK
from tests.support import layer_harness, oracle
from tests.support.layer_harness import SOURCE, TARGET, TOLERANCES, assert_close, build, to_numpy
from tests.support.toy_translator import MAX_LENGTH, random_translator, toy_pairs

(B, S), T = SOURCE.shape, TARGET.shape[1]
# A model of Marian's, and one of OpenNMT-tf's.
MARIAN = {"epsilon": 1e-5, "output_bias": True, "share_embeddings": "target", "activation": "silu"}
MARIAN |= {"suppress_ids": True, "num_decoder_layers": 1}
OPENNMT = {"epsilon": 1e-3, "frequencies": "tensor2tensor", "first_position": 1, "norm": "pre"}
OPENNMT |= {"suppress_ids": True}
# Shorter than some that occur.
DISTANCES = {"relative": 2, "bucketed": 17, "disentangled": 2}


@functools.cache  # nothing in here changes their weights
def shared(norm="post", policy="float32"):
    return build("Transformer", norm, policy, share_embeddings="all", dropout=0.3)


def run(model, source=SOURCE, target=TARGET, **kwargs):
    return to_numpy(model((source, target), **kwargs))


def steps(model, source=SOURCE, target=TARGET, room=None):
    state, step, logits = model.initial_state(source, room), model.make_step(), []
    for position in range(target.shape[1]):
        found, state = step(target[:, position], position, state)
        assert found.dtype == "float32"
        logits.append(found)
    return np.stack(to_numpy(logits), axis=1)


FORMULAS = [("post", "none", "learned"), ("pre", "all", "sinusoidal")]


@pytest.mark.parametrize("norm, share, positions", [*FORMULAS, ("pre", "target", "disentangled")])
def test_equals_the_formula(norm, share, positions):
    distance = {"max_distance": DISTANCES.get(positions)}
    model = build("Transformer", norm, share_embeddings=share, positions=positions, **distance)
    assert_close(model((SOURCE, TARGET)), oracle.transformer(model, SOURCE, TARGET))
    assert all(weight.path.startswith(f"{model.name}/") for weight in model.weights)


@pytest.mark.parametrize("norm, policy", [("post", "float32"), ("pre", "mixed_bfloat16")])
def test_call_is_decode_of_encode(norm, policy):
    model = shared(norm, policy)
    memory = model.encode(SOURCE)
    assert memory.shape == (B, S, layer_harness.D)
    logits, scores = model((SOURCE, TARGET), return_attention_scores=True)
    assert logits.dtype == "float32"
    assert_close(logits, run(model), 1e-6)
    assert_close(model.decode(TARGET, memory, SOURCE), run(model), 1e-6)
    shapes = {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}
    assert set(scores) == set(shapes)
    for name, shape in shapes.items():
        assert [x.shape for x in scores[name]] == [(B, layer_harness.H, *shape)] * 2
    assert not np.triu(to_numpy(scores["decoder"][0]), k=1).any()


# Three ways to logits: a pass, steps, and the factors of the fused loss.
OPTIONS = {  # the first of each: the default
    "norm": ["post", "pre"],
    "share_embeddings": ["none", "target", "all"],
    "positions": ["sinusoidal", "learned", "none", "rotary", *DISTANCES],
    "dtype": list(TOLERANCES),
    "activation": ["relu", "silu"],
    "epsilon": [1e-6, 0.1],
    "output_bias": [False, True],
    "suppress_ids": [False, True],
    "num_decoder_layers": [None, 2],
    "frequencies": ["transformer", "tensor2tensor"],
    "first_position": [0, 1],
}
DEFAULTS = {name: values[0] for name, values in OPTIONS.items()}
any_options = st.fixed_dictionaries({name: st.sampled_from(x) for name, x in OPTIONS.items()})


def make_model(dtype, **options):
    options["output_bias"] &= options["share_embeddings"] != "none"
    options["max_distance"] = DISTANCES.get(options["positions"])
    if options["positions"] != "sinusoidal":
        options |= {"frequencies": "transformer", "first_position": 0}
    return layer_harness.suppress(build("Transformer", policy=dtype, num_layers=1, **options))


@settings(max_examples=settings().max_examples // 3)
@example(DEFAULTS | MARIAN, None)
@example(DEFAULTS | OPENNMT, T)
@given(any_options, st.sampled_from([None, T, T + 3]))
def test_steps_and_factors_are_the_logits(options, room):
    model = make_model(**options)
    expected, tolerance = model((SOURCE, TARGET)), 4 * TOLERANCES[options["dtype"]]
    assert_close(steps(model, room=room), model.suppress(expected), tolerance)
    x, matrix = model.softmax_inputs((SOURCE, TARGET))
    assert x.dtype == model.compute_dtype and matrix.dtype == "float32"
    assert_close(to_numpy(x) @ to_numpy(matrix).T, expected, tolerance)


def test_made_step_belongs_to_the_weights_it_was_made_of():
    """Its matrix of the softmax is a copy: a step after an update needs a new one."""
    model = build("Transformer")
    old, state = model.make_step(), model.initial_state(SOURCE)
    before = old(TARGET[:, 0], 0, state)[0]
    model.output_projection.kernel.assign(0 * model.output_projection.kernel)
    assert_close(old(TARGET[:, 0], 0, state)[0], before, 0)
    bias = np.array([model.output_projection.bias] * B)
    assert_close(model.step(TARGET[:, 0], 0, state)[0], bias)


def test_state_holds_the_memory_once():
    """A step returns the very same tensors, which a search then does not reorder."""
    model = build("Transformer", num_layers=1)
    state = model.initial_state(SOURCE)
    _, later = model.step(TARGET[:, 0], 0, state)
    pairs = zip(*(keras.tree.flatten(x["memory"]) for x in (state, later)), strict=True)
    assert all(before is after for before, after in pairs)


def test_compiled_by_xla():
    """It cannot raise: what an id outside the vocabulary would give is NaN, in its row alone."""
    model = build("Transformer", num_layers=1, positions="relative", max_distance=2)
    compiled = tf.function(lambda *inputs: model(inputs), jit_compile=True)
    assert_close(compiled(SOURCE, TARGET), run(model))
    for wrong in (0, 1):
        ids = [SOURCE.copy(), TARGET.copy()]
        ids[wrong][1, 0] = 60
        logits = compiled(*ids).numpy()
        assert np.isnan(logits[1]).all()
        assert_close(logits[[0, 2]], run(model)[[0, 2]])


@pytest.mark.parametrize("training", [False, True], ids=["at rest", "dropout"])
def test_no_logit_depends_on_a_later_token(training):
    model = shared()
    reseed = layer_harness.reseeding(model)

    def logits(target):
        reseed()
        return run(model, target=target, training=training)

    expected = logits(TARGET)
    assert np.any(expected != run(model)) == training
    reseed()  # the factors of the fused loss have the same masks
    x, matrix = model.softmax_inputs((SOURCE, TARGET), training)
    assert_close(to_numpy(x) @ to_numpy(matrix).T, expected)
    for first in range(1, T):
        changed = TARGET.copy()
        changed[:, first:] = (changed[:, first:] + 5) % 11
        actual = logits(changed)
        np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
        assert (np.abs(actual[:, first:] - expected[:, first:]).max(axis=(1, 2)) > 1e-3).all()


@pytest.mark.parametrize("norm, policy", [("post", "float32"), ("pre", "mixed_float16")])
def test_padding_and_other_rows_change_nothing(norm, policy):
    model, tolerance = shared(norm, policy), TOLERANCES[policy]
    expected = run(model)
    longer = run(model, np.pad(SOURCE, [(0, 0), (0, 5)]), np.pad(TARGET, [(0, 0), (0, 3)]))
    assert_close(longer[:, :T], expected, tolerance)
    rows = [run(model, SOURCE[i : i + 1], TARGET[i : i + 1]) for i in range(B)]
    assert_close(expected, np.concatenate(rows), tolerance)
    source, target = SOURCE.copy(), TARGET.copy()
    source[1], target[1] = 0, 0  # nothing but padding
    logits, scores = run(model, source, target, return_attention_scores=True)
    assert np.isfinite(logits).all()
    assert not any(weights[1].any() for weights in scores["encoder"] + scores["cross"])
    assert_close(logits[[0, 2]], expected[[0, 2]], tolerance)
    assert_close(steps(model, source, target), logits, 4 * tolerance)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_ids_of_any_integer_type(dtype):
    ids = tf.constant(SOURCE.astype(dtype)), TARGET.astype(dtype)
    np.testing.assert_array_equal(shared()(ids), run(shared()))


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_nothing_at_all(positions):
    """No sentence, none with a token, none with a target: known at once, or in the graph only."""
    model = build("Transformer", positions=positions, num_layers=1)
    ids = tf.TensorSpec([None, None], "int32")
    traced = tf.function(lambda source, target: model((source, target)), input_signature=[ids] * 2)
    for rows, source, target in ((0, 0, 0), (2, 0, 3), (2, 3, 0), (0, 2, 2), (2, 1, 1)):
        inputs = np.full((rows, source), 5, "int32"), np.full((rows, target), 5, "int32")
        expected = run(model, *inputs)
        assert expected.shape == (rows, target, 11) and np.isfinite(expected).all()
        assert_close(traced(*inputs), expected)
    assert_close(run(model, SOURCE[:, :0]), run(model, np.zeros_like(SOURCE)))


def test_suppressed_ids_are_never_produced():
    """Not by an infinite value either, which a prefix may overrule, as it may any low number."""
    translator = random_translator(seed=5, suppress_ids=True, share_embeddings="target")
    model = translator.model
    assert not model.suppressed.trainable
    texts = [source for source, _ in toy_pairs(10, seed=3)]
    source, found = translator.read_source(tf.constant(texts))[0], []

    def search(values, prefix=None, **options):
        model.suppressed.assign(values)
        arguments = model.make_step(), model.initial_state(source), len(texts), MAX_LENGTH
        return [x.numpy() for x in kt.search(*arguments, prefix=prefix, **options)]

    values = np.zeros((2, model.target_vocabulary_size))
    free = search(values[0], sample=True, temperature=2.0)[0]
    wrong = [int(np.bincount(free[:, 0, 0]).argmax()), UNK, START, PAD]
    values[0, wrong], values[1, wrong] = SUPPRESSED, -np.inf
    for options in ({}, {"beam_size": 4}):
        tokens, lengths, _ = search(values[0], **options)
        within = np.arange(tokens.shape[2]) < lengths[:, :, np.newaxis]
        assert not np.isin(tokens[within], wrong).any()
        found = [search(own, np.full((len(texts), 1), wrong[0]), **options) for own in values]
        assert (found[0][0][:, 0, 0] == wrong[0]).all() and np.isfinite(found[0][2]).all()
        layer_harness.assert_equal(*found)


@pytest.mark.parametrize("options", [MARIAN, OPENNMT], ids=["Marian", "OpenNMT-tf"])
def test_saved_and_loaded(options, tmp_path):
    model = layer_harness.suppress(build("Transformer", **options))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert {name: loaded.get_config()[name] for name in options} == options
    np.testing.assert_array_equal(loaded((SOURCE, TARGET)), model((SOURCE, TARGET)))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    assert "frozen" not in model.get_config()


def test_weights_of_other_positions_are_refused(tmp_path):
    """Also where both have the same weights, or none: nothing else would tell them apart."""
    names, path = "sinusoidal rotary relative learned none".split(), tmp_path / "of.weights.h5"
    made = [layer_harness.transformer(positions=name, num_layers=1) for name in names]
    for model, other in zip(made, made[1:] + made[:1], strict=True):
        model.save_weights(path)
        model.load_weights(path)
        with pytest.raises(ValueError, match=f"this model has positions={other.positions!r}"):
            other.load_weights(path)


def test_mistakes():
    memory = layer_harness.MEMORY
    for mistake, message in (
        (lambda m: m(SOURCE[:2]), "must be a pair .* received one tensor"),
        (lambda m: m((SOURCE[:1], TARGET)), "must be equal, received 3, 1, 1"),
        (lambda m: m.decode(TARGET, memory[:1], SOURCE), "must be equal, received 3, 1, 3"),
        (lambda m: m.decode(TARGET, memory, SOURCE[:, :1]), "must be equal, received 6, 1"),
        (lambda _: kt.Transformer(9, 10, share_embeddings="all"), "received 9 source and 10 tar"),
        (lambda _: kt.Transfromer, "no attribute 'Transfromer'"),
    ):
        with pytest.raises((ValueError, AttributeError), match=message):
            mistake(shared())
