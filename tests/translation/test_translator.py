"""Text to text: the parts put together by hand give the same, and any content is taken."""

import copy
import dataclasses
import math
import multiprocessing
import pickle

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import greedy_search, search
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import END, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from keras_transformer.transformer import Transformer
from keras_transformer.translation.sentences import LEAST_LOG_PROB
from keras_transformer.translation.translator import Translator
from tests.support.sample_text import BYTES, LINES, TEXTS
from tests.support.toy_translator import (
    MAX_LENGTH,
    SIZES,
    SOURCES,
    random_translator,
    toy_tokenizer,
    trained_translator,
)

WORDS = SubwordTokenizer.train(LINES, 30, "word")
PIECES = SubwordTokenizer.train(LINES, 350, "bpe")
WORDPIECE = WordPieceTokenizer.train(["anna und bob", "bob"] * 50, 19, lowercase=True)


@pytest.fixture(scope="module")
def translator():
    return trained_translator()


def serve(translator, texts):
    """The signature's answers as lists."""
    outputs = translator.serve(tf.constant(texts, tf.string, shape=[len(texts)]))
    assert set(outputs) == {"text", "log_prob"}
    assert (outputs["text"].dtype, outputs["log_prob"].dtype) == (tf.string, tf.float32)
    assert outputs["text"].shape == outputs["log_prob"].shape == (len(texts),)
    return [text.decode() for text in outputs["text"].numpy()], outputs["log_prob"].numpy().tolist()


def by_hand(translator, text):
    """Encodes, searches and decodes one sentence, with the sentencepiece package's text."""
    source, target = (
        sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
        for tokenizer in (translator.source_tokenizer, translator.target_tokenizer)
    )
    ids = source.encode(text)
    if not ids:
        return "", 0.0
    state = translator.model.initial_state(np.array([[*ids[: MAX_LENGTH - 1], END]]))
    tokens, lengths, log_prob = greedy_search(translator.model.step, state, 1, MAX_LENGTH)
    text = target.decode(tokens.numpy()[0, : lengths.numpy()[0]].tolist())
    return text, float(log_prob[0])


# One configuration after the other.


def check_by_hand(translator, texts):
    outputs, log_probs = serve(translator, texts)
    for text, output, log_prob in zip(texts, outputs, log_probs, strict=True):
        expected, expected_log_prob = by_hand(translator, text)
        assert output == expected
        assert log_prob == pytest.approx(expected_log_prob, abs=1e-4)
    return outputs


@pytest.mark.parametrize(
    "source_tokenizer, target_tokenizer, options",
    [
        (WORDS, PIECES, {"share_embeddings": "target"}),
        (PIECES, WORDS, {"norm": "pre", "positions": "learned", "num_layers": 2}),
    ],
    ids=["words to pieces", "pieces to words"],
)
def test_two_tokenizers(source_tokenizer, target_tokenizer, options):
    translator = random_translator(source_tokenizer, target_tokenizer, seed=3, **options)
    texts = ["the lazy fox", "unheard of fox", "große", "", "the", "東京 は 夜", "x y z"]
    assert UNK in WORDS("unheard of fox")
    assert len(set(check_by_hand(translator, texts))) > 3


def test_trained_model_by_hand(translator):
    outputs = check_by_hand(translator, SOURCES)
    assert len(set(outputs)) > 6 and len({len(output) for output in outputs}) > 3


def test_weights_are_read_not_copied():
    translator = random_translator()
    before = serve(translator, SOURCES)
    for weight in translator.model.trainable_variables:
        weight.assign(-weight)
    assert serve(translator, SOURCES) != before
    tracked = {id(variable) for variable in translator.variables}
    assert {id(weight.value) for weight in translator.model.weights} <= tracked


# Batches.


def test_order_is_kept(translator):
    alone = {text: translator.translate([text])[0] for text in SOURCES}
    texts = [SOURCES[i] for i in np.random.default_rng(0).permutation(40) % len(SOURCES)]
    expected = [alone[text] for text in texts]
    for batch_size in (1, 3, 64):
        assert translator.translate(texts, batch_size=batch_size) == expected
    assert translator.translate(text for text in texts) == expected
    assert translator.translate([text.encode() for text in texts]) == expected
    # Parts of a batch that are searched at the same time.
    assert serve(translator, texts + texts)[0] == expected + expected


def test_rows_do_not_depend_on_their_batch(translator):
    outputs, log_probs = serve(translator, SOURCES)
    for i, text in enumerate(SOURCES):
        (output,), (log_prob,) = serve(translator, [text])
        assert output == outputs[i]
        assert log_prob == pytest.approx(log_probs[i], abs=1e-4)
    assert serve(translator, []) == ([], []) and translator.translate([]) == []


def test_a_few_sentences_are_translated_without_a_graph(translator, monkeypatch):
    expected = translator.translate_n_best(SOURCES[:2])
    monkeypatch.setattr(translator, "run_eagerly", True)
    monkeypatch.setattr(tf, "function", None)  # none is made
    assert translator.translate_n_best(SOURCES[:2]) == [
        [(text, *(pytest.approx(value, abs=1e-5) for value in numbers)) for text, *numbers in row]
        for row in expected
    ]


# Other searches.

SEARCHES = {
    "greedy": GREEDY,
    "beam": SearchConfig(beam_size=4, length_penalty=0.6),
    "sampling": SearchConfig(sample=True, temperature=1.5, top_k=20, top_p=0.95, seed=3),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_n_best_by_hand(translator, name):
    config = SEARCHES[name]
    found = translator.translate_n_best(SOURCES, search=config)
    assert translator.translate(SOURCES, search=config) == [n_best[0][0] for n_best in found]
    # Small batches return the same, samples included.
    alone = translator.translate_n_best(SOURCES, batch_size=3, search=config)
    for i, (text, n_best, others) in enumerate(zip(SOURCES, found, alone, strict=True)):
        assert [one.text for one in n_best] == [one.text for one in others]
        if not text:
            assert n_best == [("", 0.0, 0.0)] + [("", -1e9, -1e9)] * (config.beam_size - 1)
            continue
        ids = np.array([[*translator.source_tokenizer(text).numpy(), END]])
        state = translator.model.initial_state(ids)
        seeds = [(3 << 32) + i]
        tokens, lengths, log_prob = search(translator.model.step, state, 1, 12, config, None, seeds)
        output = translator.target_tokenizer.detokenize(tokens[0]).numpy()
        log_prob, lengths = log_prob[0].numpy(), lengths[0].numpy()
        assert [one.text for one in n_best] == [t.decode() for t in output]
        assert [one.log_prob for one in n_best] == pytest.approx(log_prob.tolist(), abs=1e-4)
        scores = log_prob / ((5 + lengths) / 6) ** 0.6 if config.beam_size > 1 else log_prob
        assert [one.score for one in n_best] == pytest.approx(scores.tolist(), abs=1e-4)
        assert sorted(n_best, key=lambda one: -one.score) == n_best
    assert {len(n_best) for n_best in found} == {config.beam_size}
    if config.beam_size > 1:
        two = translator.translate_n_best(SOURCES, search=config, n_best=2)
        assert [[one.text for one in row] for row in two] == [
            [one.text for one in row[:2]] for row in found
        ]


def test_samples_differ(translator):
    config = SEARCHES["sampling"]
    first = translator.translate(["abcdefg"] * 8, search=config)
    assert len(set(first)) > 4  # each index has samples of its own
    other = translator.translate(["abcdefg"] * 8, search=dataclasses.replace(config, seed=4))
    assert not set(enumerate(first)) & set(enumerate(other))


def test_several_samples_are_those_of_the_seeds_that_follow():
    translator = random_translator()
    translator.run_eagerly = True
    config = SearchConfig(sample=True, temperature=1.5, seed=2**31 - 1)
    prefixes = ["", "B"] * 5
    found = translator.translate_n_best(SOURCES, 4, config, prefixes, n_best=2)
    by_seed = [
        translator.translate(SOURCES, 256, dataclasses.replace(config, seed=seed), prefixes)
        for seed in (2**31 - 1, 0)
    ]
    assert [[one.text for one in samples] for samples in found] == [
        list(texts) for texts in zip(*by_seed, strict=True)
    ]
    assert sum(len({one.text for one in samples}) > 1 for samples in found) > 4
    assert all(one.score == one.log_prob for samples in found for one in samples)


@pytest.mark.parametrize("name", SEARCHES)
def test_prefixes(translator, name):
    prefixes = ["GGG", "", "B", "H", "東", "", "A", "AB", "HHHHHHHHHHH", "CA"]
    for batch_size in (64, 4):
        found = translator.translate_n_best(SOURCES, batch_size, SEARCHES[name], prefixes)
        for source, prefix, n_best in zip(SOURCES, prefixes, found, strict=True):
            there = [one for one in n_best if one.log_prob > LEAST_LOG_PROB]
            assert all(one.text.startswith(prefix) for one in there) or not source
    assert found[3][0] == ("", 0.0, 0.0)
    nothing = translator.translate(SOURCES, search=SEARCHES[name], prefixes=[""] * 10)
    assert nothing == translator.translate(SOURCES, search=SEARCHES[name])


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_maximum_output_length(search):
    model, tokenizer = random_translator(seed=1).model, toy_tokenizer()
    bounded = Translator(model, tokenizer, tokenizer, max_output_length=3)
    whole = Translator(model, tokenizer, tokenizer, max_output_length=10**6)
    usual = Translator(model, tokenizer, tokenizer)
    for translator in (bounded, whole, usual):
        translator.run_eagerly = True  # five graphs would take longer to make
    short, long = (x.translate(SOURCES, search=search) for x in (bounded, whole))
    assert all(len(text) <= 3 for text in short) and short != long  # a piece is a character
    assert long == usual.translate(SOURCES, search=search)
    asked, longer = (dataclasses.replace(search, max_output_length=n) for n in (3, 4))
    assert whole.translate(SOURCES, search=asked) == short
    assert bounded.translate(SOURCES, search=longer) == short
    with pytest.raises(ValueError, match="Prefix 1 has 5 tokens, but max_output_length is 3"):
        whole.translate(["abc"], search=asked, prefixes=["ABCD"])


# Content.


def test_empty_lines(translator):
    empty = ["", " ", "    ", "\u3000"]  # an ideographic space, of which NFKC makes a space
    outputs, log_probs = serve(translator, ["abc", *empty, "hgf"])
    assert outputs[1:5] == [""] * 4 and log_probs[1:5] == [0.0] * 4
    assert outputs[0] and outputs[5] and log_probs[0] < 0 and log_probs[5] < 0
    assert serve(translator, empty) == ([""] * 4, [0.0] * 4)


def test_any_content(translator):
    rows = [*TEXTS, "a", "é", "\ud800", "ab\udfffc", *BYTES]
    outputs = translator.translate(rows)
    assert len(outputs) == len(rows)
    for row, output in zip(rows, outputs, strict=True):
        assert isinstance(output, str)
        assert translator.translate([row]) == [output]
    rows = [row if isinstance(row, bytes) else row.encode(errors="replace") for row in rows]
    served, log_probs = serve(translator, rows)
    assert served == outputs
    assert all(math.isfinite(log_prob) and log_prob <= 0 for log_prob in log_probs)
    for raw in BYTES:
        replaced = raw.decode("utf-8", errors="replace")
        assert serve(translator, [raw]) == serve(translator, [replaced])
    assert translator.translate(["ab\ud800c"]) == translator.translate(["ab?c"])


def test_output_is_utf8_whatever_the_model_spells():
    # Random models write bytes in disorder.
    translator = random_translator(seed=1)
    outputs = translator.serve(tf.constant(SOURCES))["text"].numpy()
    assert any("\ufffd" in output.decode("utf-8") for output in outputs)


def test_sources_are_truncated_at_the_models_length(translator):
    # ▁ and ten characters, then END.
    kept = "abcdefgabc"
    outputs, log_probs = serve(translator, [kept, kept + "d", kept + "h" * 10_000, kept[:-1]])
    assert outputs[0] == outputs[1] == outputs[2]
    assert log_probs[1:3] == pytest.approx([log_probs[0]] * 2, abs=1e-4)
    assert abs(log_probs[3] - log_probs[0]) > 1e-3
    assert max(map(len, outputs)) <= MAX_LENGTH


# Calls: a string, strings or a string tensor, and a search by keywords.

CALLED = ["abc", "", "hgf", "bbbbbbb", "cafe"]
OPTIONS = {"beam_size": 3, "length_penalty": 0.0}
BEAM = SearchConfig(**OPTIONS)


@pytest.fixture(scope="module")
def untrained():
    return random_translator(seed=3)


@pytest.fixture(scope="module")
def expected(untrained):
    """The beam's answers, of which some are not the greedy ones."""
    found = untrained.translate(CALLED, search=BEAM)
    assert found != untrained.translate(CALLED) and len(set(found)) > 3
    return found


def decoded(tensor):
    """A string tensor as a string or a list of them."""
    assert tensor.dtype == tf.string
    found = tensor.numpy()
    return found.decode() if tensor.shape.rank == 0 else [text.decode() for text in found]


def test_strings(untrained, expected):
    assert untrained("abc") == untrained(b"abc") == untrained.translate(["abc"])[0]
    assert untrained("") == "" and untrained([]) == []
    assert untrained("abc", **OPTIONS) == expected[0]
    for texts in (CALLED, tuple(CALLED), np.array(CALLED)):
        assert untrained(texts, **OPTIONS) == expected
    assert untrained(CALLED, batch_size=2, search=BEAM) == expected
    assert untrained.translate(CALLED, **OPTIONS) == expected
    n_best = untrained.translate_n_best(CALLED, n_best=2, **OPTIONS)
    assert [hypotheses[0].text for hypotheses in n_best] == expected


def test_tensors(untrained, expected):
    for call in (untrained, tf.function(untrained, autograph=False)):
        assert decoded(call(tf.constant(CALLED), **OPTIONS)) == expected
        assert decoded(call(tf.constant("abc"), **OPTIONS)) == expected[0]
    assert untrained(tf.zeros([0], tf.string)).shape == (0,)
    dataset = tf.data.Dataset.from_tensor_slices(CALLED).batch(3)
    dataset = dataset.map(lambda text: untrained(text, search=BEAM))
    assert dataset.element_spec == tf.TensorSpec([None], tf.string)
    assert [text for batch in dataset for text in decoded(batch)] == expected


def test_samples_are_the_same_in_a_graph(untrained):
    options = {"sample": True, "seed": 7}
    found = untrained(CALLED, **options)
    for call in (untrained, tf.function(untrained, autograph=False)):
        assert decoded(call(tf.constant(CALLED), **options)) == found


def test_prefixes_of_a_call(untrained):
    prefixes = ["GG", "", "B", "H", ""]
    expected = untrained.translate(CALLED, prefixes=prefixes)
    assert untrained(CALLED, prefixes=prefixes) == expected
    assert untrained("abc", prefixes="GG") == untrained("abc", prefixes=["GG"]) == expected[0]
    call = tf.function(untrained, autograph=False)
    assert decoded(call(tf.constant(CALLED), prefixes=tf.constant(prefixes))) == expected
    assert decoded(untrained(tf.constant(CALLED), prefixes=prefixes)) == expected
    assert decoded(untrained(tf.constant("abc"), prefixes="GG")) == expected[0]
    texts = tf.TensorSpec([None], tf.string)
    call = tf.function(lambda x, p: untrained(x, prefixes=p), [texts, texts], autograph=False)
    for rows in [(2, 1), (1, 2)]:
        with pytest.raises(tf.errors.InvalidArgumentError, match="one prefix for each source"):
            call(*(tf.constant(["a"] * number) for number in rows))


# A script of one's own, a copy, another process.


def decode(source, length):
    """What a script does with ids `(B, S)`."""
    model = trained_translator().model
    state = model.initial_state(source)
    return kt.greedy_search(model.make_step(), state, len(source), length)


def test_a_script_decodes_as_the_translator_does(translator):
    texts = [text for text in SOURCES if text]
    tokenizer, longest = translator.source_tokenizer, translator.max_output_length
    source = tokenizer(texts, end=True).to_tensor()
    tokens, _, log_prob = decode(source, longest)
    same, _, also, _ = translator.translate_ids(*translator.read_source(tf.constant(texts)))
    assert tokens.numpy().tolist() == same[:, 0].numpy().tolist()
    np.testing.assert_allclose(log_prob, also[:, 0], rtol=1e-5)
    outputs = [text.decode() for text in tokenizer.detokenize(tokens).numpy()]
    assert outputs == translator.translate(texts)
    # One by one, from the ids of a single text.
    for text, row in zip(texts, tokens.numpy(), strict=True):
        alone, lengths, _ = decode(tokenizer(text, end=True)[tf.newaxis], longest)
        assert alone[0].numpy().tolist() == row[: lengths[0]].tolist()
    # END is needed.
    without = decode(tokenizer(texts).to_tensor(), longest)
    assert tokenizer.detokenize(without[0]).numpy().tolist() != [text.encode() for text in outputs]


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("tokenizer", [WORDS, WORDPIECE], ids=["subword", "wordpiece"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copied_tokenizer_is_the_same(tokenizer, copied):
    twin = copied(tokenizer)
    assert type(twin) is type(tokenizer) and twin.model == tokenizer.model
    texts = ["anna und bob", "", "unbekannt"]
    assert twin(texts).to_list() == tokenizer(texts).to_list()
    assert twin.detokenize(twin(texts[0])) == tokenizer.detokenize(tokenizer(texts[0]))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_translator_is_the_same(copied):
    made = random_translator()
    card = {"data": {"pairs": 3}}
    tokenizers = made.source_tokenizer, made.target_tokenizer
    translator = Translator(made.model, *tokenizers, 5, card=card)
    twin = copied(translator)
    for one in (translator, twin):
        one.run_eagerly = True
    assert twin.source_tokenizer is twin.target_tokenizer
    assert twin.max_output_length == 5 and twin.card == card
    assert twin.translate(SOURCES, search=BEAM) == translator.translate(SOURCES, search=BEAM)


def ids_and_translations(tokenizer, translator):
    return tokenizer(SOURCES).to_list(), translator.translate(SOURCES)


def test_another_process():
    sent = WORDPIECE, random_translator()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ids_and_translations, sent) == ids_and_translations(*sent)


# Mistakes.

MANY_SAMPLES = dict(search=SearchConfig(sample=True), n_best=0)
MISTAKES = {
    "one string": (lambda t: t.translate("abc"), "a list of sentences, received one string"),
    "wide beam": (lambda t: t("abc", beam_size=278), "beam of 278 is wider than the vocabulary of"),
    "long prefix": (
        lambda t: t.translate(["ab", "c"], prefixes=["A", "A" * 12]),
        "Prefix 2 has 13 tokens, but the model's max_length is 12",
    ),
    "one prefix": (lambda t: t(["a", "b"], prefixes=["A"]), "received 1 for 2"),
    "two prefixes": (lambda t: t("a", prefixes=["A", "B"]), "received 2 for 1"),
    "prefix string": (lambda t: t.translate(["a"], prefixes="A"), "received one string"),
    "n_best": (lambda t: t.translate_n_best(["a"], search=BEAM, n_best=5), "received 5"),
    "no samples": (lambda t: t.translate_n_best(["a"], **MANY_SAMPLES), "received 0"),
    "option": (lambda t: t("abc", beams=5), "option beams: choose from search, beam_size"),
    "both": (lambda t: t.translate(["a"], search=BEAM, beam_size=5), "not both"),
    "out of range": (lambda t: t("abc", beam_size=0), "beam_size must be at least 1, received 0"),
    "not sampled": (lambda t: t("abc", temperature=2.0), "temperature=2.0"),
    "no text": (lambda t: t(["abc", 5]), "Expected sentences as strings, received 5 among them."),
    "numbers": (lambda t: t(tf.zeros([2])), r"string tensor \(\) or \(B,\), received float32"),
    "table": (lambda t: t(tf.constant([["a"]])), r"received string \(1, 1\)."),
    "ragged": (lambda t: t(tf.ragged.constant([["a"], []])), "received string"),
    "prefix tensor": (
        lambda t: t(tf.constant(["a", "b"]), prefixes=["A"]),
        r"Expected prefixes of the shape \(2,\), received \(1,\)",
    ),
    "length": (
        lambda t: Translator(t.model, toy_tokenizer(), toy_tokenizer(), 0),
        "max_output_length must be at least 1, received 0",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(untrained, name):
    call, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        call(untrained)


@pytest.mark.parametrize("side", ["source", "target"])
def test_tokenizer_of_another_size(side):
    tokenizer = toy_tokenizer()
    model = Transformer(tokenizer.vocabulary_size, tokenizer.vocabulary_size, **SIZES)
    tokenizers = (PIECES, tokenizer) if side == "source" else (tokenizer, PIECES)
    with pytest.raises(ValueError, match=f"The {side} tokenizer has 350 ids, .* built for 277"):
        Translator(model, *tokenizers)


def test_model_is_built_and_kept():
    model = Transformer(277, 277, **SIZES)
    translator = Translator(model, toy_tokenizer(), toy_tokenizer())
    assert model.built and translator.model is model
    assert keras.utils.set_random_seed(3) is None  # which empties TensorFlow's caches
    assert len(translator.translate(["abc"])) == 1
