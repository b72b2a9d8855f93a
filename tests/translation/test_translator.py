"""Text to text: the parts put together by hand give the same, and any content is taken."""

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import search
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import END
from keras_transformer.translation.sentences import LEAST_LOG_PROB
from tests.support import toy_translator as toy
from tests.support.sample_text import BYTES, TEXTS

SEARCHES = {
    "greedy": GREEDY,
    "beam": SearchConfig(beam_size=4, length_penalty=0.6),
    "sampling": SearchConfig(sample=True, temperature=1.5, top_k=20, top_p=0.95, seed=3),
}
BEAM, SAMPLING = SEARCHES["beam"], SEARCHES["sampling"]


@pytest.fixture(scope="module")
def translator():
    """Half trained; its graphs, of which each takes seconds to trace, are for all these tests."""
    return toy.trained_translator()


@pytest.fixture(scope="module")
def eager(translator):
    return toy.without_graphs(translator)


@pytest.fixture(scope="module")
def untrained():
    return toy.without_graphs(toy.random_translator(seed=3), max_output_length=6)


def serve(translator, texts):
    """The signature's answers as lists."""
    outputs = translator.serve(tf.constant(texts, tf.string, shape=[len(texts)]))
    assert set(outputs) == {"text", "log_prob"}
    assert (outputs["text"].dtype, outputs["log_prob"].dtype) == (tf.string, tf.float32)
    assert outputs["text"].shape == outputs["log_prob"].shape == (len(texts),)
    return [text.decode() for text in outputs["text"].numpy()], outputs["log_prob"].numpy().tolist()


def by_hand(translator, text, config=GREEDY, number=0):
    """Texts, log-probabilities and lengths of one sentence, by the sentencepiece package."""
    models = translator.source_tokenizer.model, translator.target_tokenizer.model
    source, target = (sentencepiece.SentencePieceProcessor(model_proto=x) for x in models)
    ids = source.encode(text)
    state = translator.model.initial_state(np.array([[*ids[: toy.MAX_LENGTH - 1], END]]))
    seeds = [(config.seed << 32) + number]
    found = search(translator.model.step, state, 1, toy.MAX_LENGTH, config, None, seeds)
    tokens, lengths, log_probs = (tensor[0].numpy() for tensor in found)
    texts = [target.decode(row[:n].tolist()) for row, n in zip(tokens, lengths, strict=True)]
    return texts, log_probs, lengths


@pytest.mark.parametrize("name", SEARCHES)
def test_n_best_by_hand(eager, name):
    config, sources = SEARCHES[name], toy.SOURCES[:4]
    found = eager.translate_n_best(sources, search=config)
    for i, (text, n_best) in enumerate(zip(sources, found, strict=True)):
        if not text:
            assert n_best == [("", 0.0, 0.0)] + [("", -1e9, -1e9)] * (config.beam_size - 1)
            continue
        texts, log_probs, lengths = by_hand(eager, text, config, i)
        assert [one.text for one in n_best] == texts
        assert [one.log_prob for one in n_best] == pytest.approx(log_probs.tolist(), abs=1e-4)
        scores = log_probs / ((5 + lengths) / 6) ** 0.6 if config.beam_size > 1 else log_probs
        assert [one.score for one in n_best] == pytest.approx(scores.tolist(), abs=1e-4)
        assert sorted(n_best, key=lambda one: -one.score) == n_best
    assert {len(n_best) for n_best in found} == {config.beam_size}
    # Small batches return the same, samples included; so does `translate`.
    assert eager.translate(sources, 8, config) == [row[0].text for row in found]


def test_weights_are_read_not_copied(translator):
    before = serve(translator, toy.SOURCES)
    for sign in (-1, 1):
        for weight in translator.model.trainable_variables:
            weight.assign(-weight)
        assert (serve(translator, toy.SOURCES) == before) is (sign == 1)
    tracked = {id(variable) for variable in translator.variables}
    assert {id(weight.value) for weight in translator.model.weights} <= tracked


def test_order_is_kept_and_rows_do_not_depend_on_their_batch(translator, eager, monkeypatch):
    outputs, log_probs = serve(translator, toy.SOURCES)
    assert len(set(outputs)) > 6 and len({len(output) for output in outputs}) > 3
    alone = [serve(translator, [text]) for text in toy.SOURCES]
    assert [one[0][0] for one in alone] == outputs
    assert [one[1][0] for one in alone] == pytest.approx(log_probs, abs=1e-4)
    order = np.random.default_rng(0).permutation(40) % len(toy.SOURCES)
    texts, expected = ([side[i] for i in order] for side in (toy.SOURCES, outputs))
    for batch_size in (1, 3, 64):
        assert translator.translate(texts, batch_size=batch_size) == expected
    assert translator.translate(text.encode() for text in texts) == expected
    # Parts of a batch that are searched at the same time; none; without a graph.
    assert serve(translator, texts + texts)[0] == expected + expected
    assert serve(translator, []) == ([], []) and translator.translate([]) == []
    monkeypatch.setattr(tf, "function", None)  # none is made
    assert eager.translate(toy.SOURCES) == outputs


def test_samples_differ_and_several_are_those_of_the_seeds_that_follow(untrained):
    config = SearchConfig(sample=True, temperature=1.5, seed=2**31 - 1)
    sources, prefixes = ["abcdefg"] * 8, ["", "B"] * 4
    found = untrained.translate_n_best(sources, 8, config, prefixes, n_best=2)
    configs = config, dataclasses.replace(config, seed=0)
    by_seed = [untrained.translate(sources, 256, one, prefixes) for one in configs]
    assert [tuple(one.text for one in row) for row in found] == list(zip(*by_seed, strict=True))
    assert len(set(by_seed[0])) > 4 and len(set(by_seed[1])) > 4  # each index has its own
    assert sum(one == other for one, other in zip(*by_seed, strict=True)) < 4
    assert all(one.score == one.log_prob for samples in found for one in samples)


@pytest.mark.parametrize(
    "prefix, options", [("AB", {}), (None, {"beam_size": 3}), ("AB", {"sample": True})], ids=str
)
def test_xla_finds_what_tensorflows_executor_finds(prefix, options):
    # Shapes are powers of two, but there are positions for so many columns only.
    how = dict(num_layers=2, positions="learned", max_length=20)
    translator, texts = toy.random_translator(**how), [*toy.SOURCES, "a" * 30]
    prefixes = prefix and [prefix] * len(texts)
    found = []
    for translator.jit_compile in (False, True):
        found.append(translator.translate_n_best(texts, prefixes=prefixes, **options))
        assert translator.translate([], **options) == []
    for expected, rows in zip(*found, strict=True):
        assert [x.text for x in rows] == [x.text for x in expected]
        for scores in zip(rows, expected, strict=True):
            np.testing.assert_allclose(*(x[1:] for x in scores), rtol=1e-4, atol=1e-4)


def test_prefixes(eager):
    prefixes = ["GGG", "", "B", "H", "東", "", "A", "AB", "HHHHHHHHHHH", "CA"]
    found = eager.translate_n_best(toy.SOURCES, 64, BEAM, prefixes)
    for source, prefix, n_best in zip(toy.SOURCES, prefixes, found, strict=True):
        there = [one for one in n_best if one.log_prob > LEAST_LOG_PROB]
        assert all(one.text.startswith(prefix) for one in there) or not source
    assert found[3][0] == ("", 0.0, 0.0)
    nothing = eager.translate(toy.SOURCES, search=BEAM, prefixes=[""] * 10)
    assert nothing == eager.translate(toy.SOURCES, search=BEAM)


def test_maximum_output_length(untrained):
    bounded = toy.without_graphs(untrained, max_output_length=3)
    whole = toy.without_graphs(untrained, max_output_length=10**6)
    short, long = (x.translate(toy.SOURCES, search=BEAM) for x in (bounded, whole))
    assert all(len(text) <= 3 for text in short) and short != long  # a piece is a character
    assert long == toy.without_graphs(untrained).translate(toy.SOURCES, search=BEAM)
    asked, longer = (dataclasses.replace(BEAM, max_output_length=n) for n in (3, 4))
    assert whole.translate(toy.SOURCES, search=asked) == short
    assert bounded.translate(toy.SOURCES, search=longer) == short


def test_changes_after_the_first_translation():
    translator = toy.random_translator(seed=5)
    model, tokenizers = translator.model, [translator.source_tokenizer] * 2
    found = [translator.translate(toy.SOURCES)]
    dense = model.decoder.layers[0].feed_forward.inner
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(np.random.default_rng(1).normal(size=dense.lora_kernel_b.shape))
    found.append(translator.translate(toy.SOURCES))
    assert found[1] == kt.Translator(model, *tokenizers).translate(toy.SOURCES)
    translator.max_output_length = 2
    found.append(translator.translate(toy.SOURCES))
    assert found[2] == kt.Translator(model, *tokenizers, 2).translate(toy.SOURCES)
    assert found[0] != found[1] != found[2]


def test_empty_lines(translator):
    empty = ["", " ", "    ", "\u3000"]  # an ideographic space, of which NFKC makes a space
    outputs, log_probs = serve(translator, ["abc", *empty, "hgf"])
    assert outputs[1:5] == [""] * 4 and log_probs[1:5] == [0.0] * 4
    assert outputs[0] and outputs[5] and log_probs[0] < 0 and log_probs[5] < 0
    assert serve(translator, empty) == ([""] * 4, [0.0] * 4)


def test_any_content(translator, untrained):
    rows = [*TEXTS, "a", "é", "ab\ud800c", "ab\udfffc", *BYTES]
    outputs = translator.translate(rows)
    assert all(isinstance(output, str) for output in outputs)
    replaced = [x.decode(errors="replace") if isinstance(x, bytes) else x for x in rows]
    replaced = [text.encode(errors="replace") for text in replaced]
    assert b"ab?c" in replaced
    raw = [x if isinstance(x, bytes) else x.encode(errors="replace") for x in rows]
    for texts in (raw, replaced):
        served, log_probs = serve(translator, texts)
        assert served == outputs
        assert all(math.isfinite(log_prob) and log_prob <= 0 for log_prob in log_probs)
    # Random models write bytes in disorder: the output is UTF-8 all the same.
    assert any("\ufffd" in output for output in untrained.translate(toy.SOURCES))


def test_sources_are_truncated_at_the_models_length(translator, caplog):
    kept = "abcdefgabc"  # with ▁ and END
    texts = [kept, kept + "d", kept + "h" * 10_000, kept[:-1]]
    outputs, log_probs = serve(translator, texts)
    assert outputs[0] == outputs[1] == outputs[2]
    assert log_probs[1:3] == pytest.approx([log_probs[0]] * 2, abs=1e-4)
    assert abs(log_probs[3] - log_probs[0]) > 1e-3
    assert translator.translate(texts) == outputs
    nfkc = toy.random_translator(toy.toy_tokenizer(nfkc=True))  # makes 18 characters of U+FDFA
    toy.without_graphs(nfkc).translate(["\ufdfa"])
    said = "Source {} has {} tokens, of which the model reads 11: split it into sentences."
    assert caplog.messages == [said.format(*x) for x in ((2, 12), (3, 10011), (1, 34))]


CALLED = ["abc", "", "hgf", "bbbbbbb", "cafe"]


def decoded(tensor):
    assert tensor.dtype == tf.string
    return np.char.decode(np.array(tensor.numpy(), bytes)).tolist()


def test_strings_and_tensors(untrained):
    options = {"beam_size": 4, "length_penalty": 0.6}
    expected = untrained.translate(CALLED, search=BEAM)
    assert expected != untrained.translate(CALLED) and len(set(expected)) > 3
    assert untrained(b"abc") == untrained.translate(["abc"])[0]
    assert untrained("") == "" and untrained([]) == []
    assert untrained("abc", **options) == expected[0]
    assert untrained(np.array(CALLED), **options) == expected
    assert untrained(CALLED, batch_size=2, search=BEAM) == expected
    n_best = untrained.translate_n_best(CALLED, n_best=2, **options)
    assert [hypotheses[0].text for hypotheses in n_best] == expected
    assert decoded(untrained(tf.constant(CALLED), **options)) == expected
    assert decoded(untrained(tf.constant("abc"), **options)) == expected[0]
    assert untrained(tf.zeros([0], tf.string)).shape == (0,)


def test_prefixes_of_a_call_and_samples_in_a_graph(untrained):
    prefixes = ["GG", "", "B", "H", ""]
    expected = untrained.translate(CALLED, search=SAMPLING, prefixes=prefixes)
    call = {"search": SAMPLING}
    assert untrained("abc", prefixes="GG", **call) == expected[0]
    assert untrained("abc", prefixes=["GG"], **call) == expected[0]
    assert decoded(untrained(tf.constant("abc"), prefixes="GG", **call)) == expected[0]
    text = tf.TensorSpec([None], tf.string)
    graph = tf.function(lambda x, p: untrained(x, prefixes=p, **call), [text] * 2, autograph=False)
    assert decoded(graph(tf.constant(CALLED), tf.constant(prefixes))) == expected
    with pytest.raises(tf.errors.InvalidArgumentError, match="one prefix for each source"):
        graph(tf.constant(["a"]), tf.constant(["a", "a"]))


def test_a_copied_translator_is_the_same(untrained):
    card = {"data": {"pairs": 3}}
    translator = toy.without_graphs(untrained, max_output_length=5, card=card)
    translator.default_search, translator.jit_compile = BEAM, False
    expected = translator.translate(toy.SOURCES)
    for twin in (copy.deepcopy(translator), pickle.loads(pickle.dumps(translator))):
        twin.run_eagerly = True
        assert twin.source_tokenizer is twin.target_tokenizer
        assert twin.max_output_length == 5 and twin.card == card and twin.jit_compile is False
        assert twin.translate(toy.SOURCES) == expected
