"""What models of other systems need: each option is what it says, in every way of computing."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.presets import ExportConfig, ModelConfig
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import export
from keras_transformer.serving.served_translator import functions_of, run_signature
from keras_transformer.serving.signatures import make_inputs
from keras_transformer.serving.versions import read_card
from keras_transformer.special_ids import PAD, START, UNK
from keras_transformer.tools.ctranslate2 import export_ctranslate2
from tests.support import layer_harness
from tests.support.ctranslate2_oracle import translate_with_ctranslate2
from tests.support.layer_harness import SOURCE, TARGET, TOLERANCES
from tests.support.toy_translator import MAX_LENGTH, random_translator, toy_pairs

SOURCES = [source for source, _ in toy_pairs(40, seed=3)]
SUPPRESSED = -1000.0
OPTIONS = {
    "epsilon": {"epsilon": 0.1},
    "epsilon, pre-norm": {"epsilon": 0.1, "norm": "pre"},
    "output_bias": {"output_bias": True, "share_embeddings": "target"},
    "output_bias, all shared": {"output_bias": True, "share_embeddings": "all"},
    "2 + 1 layers": {"num_decoder_layers": 1},
    "1 + 3 layers": {"num_encoder_layers": 1, "num_decoder_layers": 3},
    "frequencies": {"frequencies": "tensor2tensor"},
    "first_position": {"first_position": 1},
    "suppress_ids": {"suppress_ids": True},
    "suppress_ids, shared": {"suppress_ids": True, "share_embeddings": "target"},
    # A Marian model, and one of OpenNMT-tf.
    "Marian": {
        "epsilon": 1e-5,
        "output_bias": True,
        "share_embeddings": "target",
        "suppress_ids": True,
        "num_decoder_layers": 1,
        "activation": "silu",
    },
    "OpenNMT-tf": {
        "epsilon": 1e-3,
        "frequencies": "tensor2tensor",
        "first_position": 1,
        "norm": "pre",
        "suppress_ids": True,
    },
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
several = pytest.mark.parametrize("name", ["Marian", "OpenNMT-tf"])


def suppress(model):
    """Makes PAD, UNK and START of a model impossible, if it can."""
    if model.suppressed is not None:
        values = np.zeros(model.target_vocabulary_size, "float32")
        values[[PAD, UNK, START]] = SUPPRESSED
        model.suppressed.assign(values)
    return model


def make_model(options, **others):
    return suppress(layer_harness.build("Transformer", **options, **others))


def make_translator(options, **others):
    # For answers of many kinds.
    how = {"deviation": 0.3, "seed": 5} if "share_embeddings" in options else {"deviation": 0.2}
    translator = random_translator(**({"num_layers": 2} | how | options | others))
    suppress(translator.model)
    return translator


def steps(model, source=SOURCE, target=TARGET):
    state = model.initial_state(source, length=target.shape[1])
    logits = []
    for position in range(target.shape[1]):
        one, state = model.step(target[:, position], position, state)
        logits.append(one)
    return tf.stack(logits, axis=1)


def assert_equal_logits(actual, expected, policy="float32"):
    """Compares with logits, of which those of suppressed ids may be far from 0."""
    tolerance = TOLERANCES[policy] * 4
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# Each option by its formula.


@pytest.mark.parametrize("d_model", [2, 10, 512])
@pytest.mark.parametrize("start", [0, 1, 9_990])
def test_frequencies_of_tensor2tensor(d_model, start):
    """The i-th of D/2 sines and cosines has the frequency 10000^(-i / (D/2 - 1))."""
    positions = np.arange(start, start + 11)[:, np.newaxis]
    half = d_model // 2
    angles = positions * np.power(1e-4, np.arange(half) / max(half - 1, 1))
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(11, d_model)
    encoding = kt.sinusoidal_encoding(11, d_model, start, frequencies="tensor2tensor")
    layer_harness.assert_close(encoding, expected)
    ours = kt.sinusoidal_encoding(11, d_model, start)
    assert d_model == 2 or np.abs(np.array(ours) - expected).max() > 0.01


@pytest.mark.parametrize("frequencies", ["transformer", "tensor2tensor"])
def test_first_position(frequencies):
    options = {"frequencies": frequencies}
    zero, one = (kt.PositionalEmbedding(9, 6, first_position=n, **options) for n in (0, 1))
    for layer in (zero, one):
        layer.build()
    one.set_weights(zero.get_weights())
    ids = np.array([[5, 6, 7, 8]])
    np.testing.assert_array_equal(one(ids), zero(ids, start=1))
    np.testing.assert_array_equal(one(ids, start=tf.constant(7)), zero(ids, start=8))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_epsilon_in_every_layer_normalization(norm):
    model = make_model({"epsilon": 0.1, "norm": norm})
    flattened = [layer for layer in model._flatten_layers() if "normalization" in layer.name]
    assert len(flattened) == 2 * 2 + 2 * 3 + (2 if norm == "pre" else 0)
    assert {layer.epsilon for layer in flattened} == {0.1}
    x = layer_harness.normal(3, 8)
    layer = flattened[0]
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    expected = expected * np.array(layer.gamma) + np.array(layer.beta)
    layer_harness.assert_close(layer(x), expected)


def test_output_bias_is_added_to_the_logits():
    plain = make_model({"share_embeddings": "target"})
    model = make_model({"share_embeddings": "target", "output_bias": True})
    bias = model.target_embedding.output_bias
    others = [weight for weight in model.weights if weight is not bias]
    for weight, value in zip(others, plain.weights, strict=True):
        weight.assign(value)
    assert bias.path.endswith("output_bias") and bias.trainable and np.ptp(bias) > 0
    expected = plain((SOURCE, TARGET)) + np.array(bias)
    assert_equal_logits(model((SOURCE, TARGET)), expected)


def test_depths():
    model = make_model({"num_encoder_layers": 6, "num_decoder_layers": 1})
    assert (len(model.encoder.layers), len(model.decoder.layers), model.num_layers) == (6, 1, 2)
    _, scores = model((SOURCE, TARGET), return_attention_scores=True)
    assert {kind: len(some) for kind, some in scores.items()} == {
        "encoder": 6,
        "decoder": 1,
        "cross": 1,
    }
    # The initial outputs of sublayers depend on the depth of their own stack.
    assert model.encoder.layers[0].depth == 6 and model.decoder.layers[0].depth == 1


def test_suppressed_ids_are_never_produced():
    translator = make_translator({"suppress_ids": True, "share_embeddings": "target"})
    model = translator.model
    source = translator.read_source(tf.constant(SOURCES))[0]

    def search(**options):
        state = model.initial_state(source)
        found = kt.search(model.make_step(), state, len(SOURCES), MAX_LENGTH, **options)
        return found[0][:, :, 0], found

    searches = [{}, {"beam_size": 4}, {"sample": True, "temperature": 2.0}]
    for options in searches:
        model.suppressed.assign(np.zeros(model.target_vocabulary_size))
        free = np.array(search(**options)[1][0])
        chosen = int(np.bincount(free[:, 0, 0]).argmax())  # what most translations begin with
        values = np.zeros(model.target_vocabulary_size)
        values[[chosen, UNK, START, PAD]] = SUPPRESSED
        model.suppressed.assign(values)
        _, (tokens, lengths, _) = search(**options)
        within = np.arange(tokens.shape[2]) < np.array(lengths)[:, :, np.newaxis]
        assert not np.isin(np.array(tokens)[within], [chosen, UNK, START, PAD]).any()


def test_minus_infinity_suppresses_like_any_low_number():
    """Also an id that a prefix requires. If all are suppressed, what is served is still finite."""
    translator = make_translator({"suppress_ids": True, "share_embeddings": "target"})
    model, texts = translator.model, SOURCES[:4]
    source, results = translator.read_source(tf.constant(texts))[0], []
    for value in (SUPPRESSED, -np.inf):
        values = np.zeros(model.target_vocabulary_size)
        values[[PAD, UNK, START, 6]] = value
        model.suppressed.assign(values)
        results.append([model.suppress(model((SOURCE, TARGET)))])
        for options in ({}, {"beam_size": 4}, {"sample": True}):
            state, prefix = model.initial_state(source), np.full((len(texts), 1), 6)
            arguments = model.make_step(), state, len(texts), MAX_LENGTH
            results[-1] += kt.search(*arguments, prefix=prefix, **options)
            assert (results[-1][-3][:, 0, 0] == 6).numpy().all()
            assert np.isfinite(results[-1][-1]).all()
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    model.suppressed.assign(np.full(model.target_vocabulary_size, -np.inf))
    _, functions = functions_of(translator, ExportConfig(signatures=("beam", "score")))
    for name in functions:
        outputs = run_signature(functions, name, make_inputs(name, texts))
        assert np.isfinite(outputs["log_prob"]).all(), name


@pytest.mark.parametrize("fused", [True, False])
def test_suppressed_ids_do_not_enter_loss_or_gradients(fused):
    """Losses of training and of validation, and the weights after a step."""
    labels = np.array([[4, 5, 6, 3], [7, 10, 3, 0], [8, 3, 0, 0]], "int32")
    results = []
    for values in (0.0, SUPPRESSED):
        model = make_model({"suppress_ids": True, "share_embeddings": "target"})
        model.suppressed.assign(np.full(model.target_vocabulary_size, values))
        model.compile("sgd", kt.SmoothedCrossEntropy(0.1), fused_loss=fused, jit_compile=False)
        before = model.evaluate((SOURCE, TARGET), labels, verbose=0)
        history = model.fit((SOURCE, TARGET), labels, verbose=0).history
        weights = [np.array(weight) for weight in model.trainable_variables]
        assert (np.array(model.suppressed) == values).all()
        results.append([before, history["loss"][0], *weights])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert results[0][0] == pytest.approx(results[0][1], rel=1e-5) and results[0][0] < 10


def test_suppressed_is_neither_averaged_nor_decayed():
    model = make_model({"suppress_ids": True})
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5, use_ema=True, ema_momentum=0.5)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    model.fit((SOURCE, TARGET), TARGET, verbose=0, epochs=2)
    optimizer.finalize_variable_values(model.trainable_variables)
    assert np.unique(model.suppressed).tolist() == [SUPPRESSED, 0.0]


@pytest.mark.parametrize("share", ["target", "all"])
def test_fused_loss_with_output_bias(share):
    """The bias is learned, by the same gradients with and without logits."""
    labels = np.array([[4, 5, 6, 3], [7, 10, 3, 0], [8, 3, 0, 0]], "int32")
    results = []
    for fused in (True, False):
        model = make_model({"output_bias": True, "share_embeddings": share})
        model.compile(
            keras.optimizers.SGD(0.5),
            kt.SmoothedCrossEntropy(0.1),
            fused_loss=fused,
            jit_compile=False,
        )
        before = np.array(model.target_embedding.output_bias)
        model.fit((SOURCE, TARGET), labels, verbose=0)
        assert np.ptp(np.array(model.target_embedding.output_bias) - before) > 0.01
        results.append([np.array(weight) for weight in model.trainable_variables])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# All options in every way of computing.


@every_option
def test_steps_equal_a_full_pass(options):
    model = make_model(options)
    assert_equal_logits(steps(model), model.suppress(model((SOURCE, TARGET))))


@several
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision(name, policy):
    model, exact = make_model(OPTIONS[name], policy=policy), make_model(OPTIONS[name])
    expected = exact((SOURCE, TARGET))
    assert_equal_logits(model((SOURCE, TARGET)), expected, policy)
    assert_equal_logits(steps(model), exact.suppress(expected), policy)


@several
def test_compiled_by_xla(name):
    model = make_model(OPTIONS[name])
    compiled = tf.function(lambda: (model((SOURCE, TARGET)), steps(model)), jit_compile=True)
    logits, of_steps = compiled()
    expected = model((SOURCE, TARGET))
    assert_equal_logits(logits, expected)
    assert_equal_logits(of_steps, model.suppress(expected))


@every_option
def test_saved_and_loaded(options, tmp_path):
    model = make_model(options)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert {name: loaded.get_config()[name] for name in options} == options
    np.testing.assert_array_equal(loaded((SOURCE, TARGET)), model((SOURCE, TARGET)))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    assert "frozen" not in model.get_config()


def test_every_option_has_an_effect():
    plain = make_model({"suppress_ids": False})
    for options in ({"epsilon": 0.1}, {"frequencies": "tensor2tensor"}, {"first_position": 1}):
        model = make_model(options)
        model.set_weights(plain.get_weights())
        difference = np.abs(model((SOURCE, TARGET)) - plain((SOURCE, TARGET))).max()
        assert difference > 1e-3


def test_files_without_the_options_load():
    config = make_model({}).get_config()
    added = [field.name for field in dataclasses.fields(ModelConfig)][-7:]
    old = {name: value for name, value in config.items() if name not in added}
    assert added[0] == "epsilon" and len(old) == len(config) - 7
    assert kt.Transformer.from_config(old).get_config() == config


def test_an_export_answers_as_in_memory(tmp_path):
    translator = make_translator(OPTIONS["Marian"])
    options = {"beam_size": 3, "length_penalty": 0.7, "length_norm": "length"}
    path = export(translator, tmp_path / "model", config=kt.ExportConfig(("beam",), **options))
    exported, search = ExportedTranslator(path), kt.SearchConfig(**options)
    assert exported.translate(SOURCES) == translator.translate(SOURCES)
    with pytest.raises(ValueError, match="fixes length_norm of its signature beam at length"):
        exported.translate(SOURCES, search=dataclasses.replace(search, length_norm="gnmt"))
    found, expected = (
        [some[0] for some in one.translate_n_best(SOURCES, search=search)]
        for one in (exported, translator)
    )
    assert [one.text for one in found] == [one.text for one in expected]
    assert not any("⁇" in one.text for one in found)
    for field in ("log_prob", "score"):
        values = [[getattr(one, field) for one in some] for some in (found, expected)]
        np.testing.assert_allclose(*values, atol=1e-4)
    assert read_card(path)["signatures"]["beam"]["length_norm"] == "length"


def test_an_int8_export_scores_about_as_in_memory(tmp_path):
    """The weights of the options are vectors, which stay as they are."""
    translator, targets = make_translator(OPTIONS["Marian"]), ["ABC", "HGF"] * 20
    config = kt.ExportConfig(("score",), precision="int8")
    exported = ExportedTranslator(export(translator, tmp_path / "model", config=config))
    found, exact = (np.array(x.score(SOURCES, targets)) for x in (exported, translator))
    np.testing.assert_allclose(found[:, 0], exact[:, 0], rtol=0.1)
    assert not any("⁇" in text for text in exported.translate(SOURCES))


@pytest.mark.parametrize(
    "name, beam_size",
    [
        *[("epsilon", 1), ("1 + 3 layers", 1), ("suppress_ids", 1)],
        *[("Marian", 1), ("Marian", 4), ("OpenNMT-tf", 1)],
    ],
)
def test_ctranslate2_agrees(name, beam_size, tmp_path):
    translator = make_translator(OPTIONS[name])
    path = export_ctranslate2(translator, tmp_path / "model")
    theirs = translate_with_ctranslate2(path, SOURCES, beam_size, MAX_LENGTH)
    search = kt.SearchConfig(beam_size=beam_size, length_penalty=0.0)
    ours = [best[0] for best in translator.translate_n_best(SOURCES, search=search)]
    assert len({best.text for best in ours}) > 10
    same = [
        best.log_prob == pytest.approx(log_prob, rel=1e-3, abs=1e-3)
        for best, (text, log_prob) in zip(ours, theirs, strict=True)
        if best.text == text
    ]
    assert all(same) and len(same) >= (39 if beam_size == 1 else 36)


# Bad input.


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_encoder_layers": 0}, "num_encoder_layers must be at least 1, received 0"),
        ({"num_decoder_layers": 0}, "num_decoder_layers must be at least 1, received 0"),
        ({"epsilon": 0.0}, "epsilon must be a number above 0, received 0.0"),
        ({"epsilon": -1e-6}, "epsilon must be a number above 0, received -1e-06"),
        ({"epsilon": "small"}, "epsilon must be a number above 0, received 'small'"),
        (
            {"output_bias": True, "share_embeddings": "none"},
            'output_bias is for share_embeddings="target" or "all", received "none"',
        ),
        (
            {"frequencies": "fourier"},
            "frequencies must be one of transformer, tensor2tensor, received 'fourier'",
        ),
        ({"first_position": 2}, "first_position must be 0 or 1, received 2"),
        (
            {"first_position": 1, "positions": "learned"},
            "first_position need positions='sinusoidal', received positions='learned': leave them",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        layer_harness.transformer(**options)
    with pytest.raises(ValueError, match=message):
        ModelConfig(**options)
