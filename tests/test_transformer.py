"""The whole model: the formulas, the invariants, and three ways to logits, whatever its options."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.presets import ModelConfig
from keras_transformer.special_ids import PAD, START, SUPPRESSED, UNK
from keras_transformer.tools.ctranslate2 import export_ctranslate2
from tests.support import layer_harness, oracle
from tests.support.ctranslate2_oracle import translate_with_ctranslate2
from tests.support.layer_harness import (
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
from tests.support.toy_translator import MAX_LENGTH, random_translator, toy_pairs

# A model of Marian's, and one of OpenNMT-tf's.
MARIAN = {"epsilon": 1e-5, "output_bias": True, "share_embeddings": "target", "activation": "silu"}
MARIAN |= {"suppress_ids": True, "num_decoder_layers": 1}
OPENNMT = {"epsilon": 1e-3, "frequencies": "tensor2tensor", "first_position": 1, "norm": "pre"}
OPENNMT |= {"suppress_ids": True}
# Shorter than some that occur.
DISTANCES = {"relative": 2, "bucketed": 17, "disentangled": 2}
several = pytest.mark.parametrize("options", [MARIAN, OPENNMT], ids=["Marian", "OpenNMT-tf"])


def suppress(model):
    """Makes PAD, UNK and START of a model impossible, if it can."""
    if model.suppressed is not None:
        values = np.zeros(model.target_vocabulary_size, "float32")
        values[[PAD, UNK, START]] = SUPPRESSED
        model.suppressed.assign(values)
    return model


@functools.cache  # nothing in here changes their weights
def shared(norm="post", policy="float32"):
    return build("Transformer", norm, policy, share_embeddings="all", dropout=0.3)


models = pytest.mark.parametrize(
    "norm, policy", [("post", "float32"), ("pre", "mixed_bfloat16"), ("post", "mixed_float16")]
)


def run(model, source=SOURCE, target=TARGET, **kwargs):
    return to_numpy(model((source, target), **kwargs))


def steps(model, source=SOURCE, target=TARGET, room=None):
    """Logits of one token after the other."""
    state, step, logits = model.initial_state(source, room), model.make_step(), []
    for position in range(target.shape[1]):
        found, state = step(target[:, position], position, state)
        assert found.dtype == "float32"
        logits.append(found)
    return np.stack(to_numpy(logits), axis=1)


# The formula.


@pytest.mark.parametrize(
    "norm, share, positions",
    [
        ("post", "none", "learned"),
        ("pre", "none", "sinusoidal"),
        ("pre", "target", "learned"),
        ("post", "all", "sinusoidal"),
        ("post", "target", "none"),
        ("post", "target", "rotary"),
        *[("pre", "target", positions) for positions in DISTANCES],
    ],
)
def test_equals_the_formula(norm, share, positions):
    """And shared matrices are stored once."""
    distance = {"max_distance": DISTANCES.get(positions)}
    model = build("Transformer", norm, share_embeddings=share, positions=positions, **distance)
    assert_close(model((SOURCE, TARGET)), oracle.transformer(model, SOURCE, TARGET))
    d_model, source = layer_harness.D, model.source_vocabulary_size
    target = model.target_vocabulary_size
    vectors = source if share == "all" else source + target
    vectors += 2 * model.max_length if positions == "learned" else 0
    projection = target * (d_model + 1) if share == "none" else 0
    stacks = model.encoder.count_params() + model.decoder.count_params()
    assert model.count_params() == stacks + d_model * vectors + projection
    assert all(weight.path.startswith(f"{model.name}/") for weight in model.weights)


@models
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
        keys = np.ones((B, T), bool) if name == "decoder" else SOURCE != 0
        for weights in to_numpy(scores[name]):
            np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-2)
            assert not np.moveaxis(weights, -1, 1)[~keys].any()
            assert name != "decoder" or not np.triu(weights, k=1).any()


def test_depths():
    model = build("Transformer", num_encoder_layers=3, num_decoder_layers=1)
    assert (len(model.encoder.layers), len(model.decoder.layers), model.num_layers) == (3, 1, 2)
    # The initial outputs of sublayers depend on the depth of their own stack.
    assert model.encoder.layers[0].depth == 3 and model.decoder.layers[0].depth == 1


def test_options_have_an_effect():
    plain = build("Transformer", num_layers=1)
    for option in ({"epsilon": 0.1}, {"frequencies": "tensor2tensor"}, {"first_position": 1}):
        model = build("Transformer", num_layers=1, **option)
        model.set_weights(plain.get_weights())
        assert np.abs(run(model) - run(plain)).max() > 1e-3, option


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
    """A model with these options, as far as they fit together."""
    options["output_bias"] &= options["share_embeddings"] != "none"
    options["max_distance"] = DISTANCES.get(options["positions"])
    if options["positions"] != "sinusoidal":
        options |= {"frequencies": "transformer", "first_position": 0}
    return suppress(build("Transformer", policy=dtype, num_layers=1, **options))


@settings(max_examples=settings().max_examples // 2)
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
    model = build("Transformer", share_embeddings="target")
    old, state = model.make_step(), model.initial_state(SOURCE)
    before = old(TARGET[:, 0], 0, state)[0]
    assert_close(model.step(TARGET[:, 0], 0, state)[0], before, 0)
    weights = model.target_embedding.embeddings
    start = keras.ops.arange(weights.shape[0]) == kt.START
    weights.assign(keras.ops.where(start[:, None], weights, -weights))  # what is embedded stays
    assert_close(old(np.full([B], kt.START), 0, state)[0], before, 0)
    assert_close(model.make_step()(np.full([B], kt.START), 0, state)[0][:, 3:], -before[:, 3:])


def test_state_is_batch_first_and_holds_the_memory_once():
    """What a search reorders: every tensor of the state has the rows on its first axis."""
    model = shared()
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


def test_compiled_by_xla():
    """A pass, and greedy search with room for all positions, in one compiled loop."""
    options = MARIAN | {"positions": "relative", "max_distance": 2}
    model = suppress(build("Transformer", **options))

    @tf.function(jit_compile=True)
    def compiled(source, target):
        state = model.initial_state(source, 9)
        found = kt.greedy_search(model.make_step("xla"), state, B, 9, fixed_shapes=True)
        return model((source, target)), *found

    logits, tokens, lengths, log_prob = compiled(SOURCE, TARGET)
    assert_close(logits, run(model))
    expected = kt.greedy_search(model.make_step(), model.initial_state(SOURCE), B, 9)
    np.testing.assert_array_equal(tokens[:, : expected[0].shape[1]], expected[0])
    np.testing.assert_array_equal(lengths, expected[1])
    assert_close(log_prob, expected[2], 1e-4)


# Invariants.


@pytest.mark.parametrize("training", [False, True], ids=["at rest", "dropout"])
def test_no_logit_depends_on_a_later_token(training):
    model = shared()
    seeds = [(variable, variable.numpy()) for variable in layer_harness.seed_states(model)]

    def logits(target):
        for variable, seed in seeds:
            variable.assign(seed)
        return run(model, target=target, training=training)

    expected = logits(TARGET)
    for first in range(1, T):
        changed = TARGET.copy()
        changed[:, first:] = (changed[:, first:] + 5) % 11
        actual = logits(changed)
        np.testing.assert_array_equal(actual[:, :first], expected[:, :first])
        assert (np.abs(actual[:, first:] - expected[:, first:]).max(axis=(1, 2)) > 1e-3).all()


@models
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


@pytest.mark.parametrize("kind", [np.asarray, tf.constant])
def test_ids_of_any_integer_type(kind):
    expected = run(shared())
    for dtype in ("int8", "uint16", "int64"):
        ids = [kind(x.astype(dtype)) for x in (SOURCE, TARGET)]
        np.testing.assert_array_equal(shared()(ids), expected)


@pytest.mark.parametrize("positions", ["sinusoidal", "relative", "disentangled"])
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


# Suppressed ids.


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
    for options in ({}, {"beam_size": 4}, {"sample": True, "temperature": 2.0}):
        tokens, lengths, _ = search(values[0], **options)
        within = np.arange(tokens.shape[2]) < lengths[:, :, np.newaxis]
        assert not np.isin(tokens[within], wrong).any()
        prefix = np.full((len(texts), 1), wrong[0])
        found = [search(own, prefix, **options) for own in values]
        assert (found[0][0][:, 0, 0] == wrong[0]).all() and np.isfinite(found[0][2]).all()
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("options, beam_size", [(MARIAN, 4), (OPENNMT, 1)])
def test_ctranslate2_agrees(options, beam_size, tmp_path):
    translator = random_translator(**{"num_layers": 2, "deviation": 0.3, "seed": 5} | options)
    suppress(translator.model)
    translator.run_eagerly = True  # a graph would take longer to make
    sources = [source for source, _ in toy_pairs(40, seed=3)]
    path = export_ctranslate2(translator, tmp_path / "model")
    theirs = translate_with_ctranslate2(path, sources, beam_size, MAX_LENGTH)
    search = kt.SearchConfig(beam_size=beam_size, length_penalty=0.0)
    ours = [best[0] for best in translator.translate_n_best(sources, search=search)]
    assert len({best.text for best in ours}) > 10
    same = [
        best.log_prob == pytest.approx(log_prob, rel=1e-3, abs=1e-3)
        for best, (text, log_prob) in zip(ours, theirs, strict=True)
        if best.text == text
    ]
    assert all(same) and len(same) >= 36


# Saving.


@several
def test_saved_and_loaded(options, tmp_path):
    model = suppress(build("Transformer", **options))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert {name: loaded.get_config()[name] for name in options} == options
    np.testing.assert_array_equal(loaded((SOURCE, TARGET)), model((SOURCE, TARGET)))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    assert "frozen" not in model.get_config()


def test_files_without_later_options_load():
    config = build("Transformer").get_config()
    added = [field.name for field in dataclasses.fields(ModelConfig)][-7:]
    old = {name: value for name, value in config.items() if name not in added}
    assert added[0] == "epsilon" and len(old) == len(config) - 7
    assert kt.Transformer.from_config(old).get_config() == config


def test_weights_of_other_positions_are_refused(tmp_path):
    """Also where both have the same weights, or none: nothing else would tell them apart."""
    names = ["sinusoidal", "rotary", "relative", "learned", "none"]
    made = [layer_harness.transformer(positions=name, num_layers=1) for name in names]
    for model, other in zip(made, made[1:] + made[:1], strict=True):
        model.save_weights(tmp_path / "of.weights.h5")
        model.load_weights(tmp_path / "of.weights.h5")
        with pytest.raises(ValueError, match=f"this model has positions={other.positions!r}"):
            other.load_weights(tmp_path / "of.weights.h5")


# Training.


def test_fit_predict_and_evaluate():
    """model.fit as a script calls it: the loss falls, and every weight has been moved."""
    model = build("Transformer", share_embeddings="none", num_layers=1, dropout=0.1)
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
    one, other = run(model, training=True), run(model, training=True)
    assert np.abs(one - other).max() > 0.1


# What does not fit.

MEMORY = layer_harness.MEMORY
MISTAKES = {
    "two rows": (lambda m: m(SOURCE[:2]), "must be a pair .* received one tensor"),
    "three tensors": (lambda m: m((SOURCE, TARGET, TARGET)), "must be a pair .* received 3 of"),
    "one source": (lambda m: m((SOURCE[:1], TARGET)), "must be equal, received 3, 1, 1"),
    "memory": (lambda m: m.decode(TARGET, MEMORY[:1], SOURCE), "must be equal, received 3, 1, 3"),
    "source": (lambda m: m.decode(TARGET, MEMORY, SOURCE[:1]), "must be equal, received 3, 3, 1"),
    "length": (
        lambda m: m.decode(TARGET, MEMORY, SOURCE[:, :1]),
        "lengths of memory and source must be equal, received 6, 1",
    ),
    "vocabularies": (
        lambda _: kt.Transformer(9, 10, share_embeddings="all"),
        "received 9 source and 10 target ids",
    ),
    "no name": (lambda _: kt.Transfromer, "no attribute 'Transfromer'"),
}


@pytest.mark.parametrize("mistake, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises((ValueError, AttributeError), match=message):
        mistake(shared())
