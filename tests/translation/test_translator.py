"""Text to text: the parts put together by hand give the same, and any content is taken."""

import dataclasses
import math

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.decoding import greedy_search, search
from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import END, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.transformer import Transformer
from keras_transformer.translation.hypotheses import LEAST_LOG_PROB
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
    outputs, log_probs = serve(translator, texts)
    assert len(set(outputs)) > 3
    for text, output, log_prob in zip(texts, outputs, log_probs, strict=True):
        expected, expected_log_prob = by_hand(translator, text)
        assert output == expected
        assert log_prob == pytest.approx(expected_log_prob, abs=1e-4)


def test_trained_model_by_hand(translator):
    outputs, log_probs = serve(translator, SOURCES)
    for text, output, log_prob in zip(SOURCES, outputs, log_probs, strict=True):
        expected, expected_log_prob = by_hand(translator, text)
        assert output == expected
        assert log_prob == pytest.approx(expected_log_prob, abs=1e-4)
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
    assert translator.translate(tuple(texts)) == expected
    assert translator.translate(text for text in texts) == expected
    assert translator.translate([text.encode() for text in texts]) == expected


def test_rows_do_not_depend_on_their_batch(translator):
    outputs, log_probs = serve(translator, SOURCES)
    for i, text in enumerate(SOURCES):
        (output,), (log_prob,) = serve(translator, [text])
        assert output == outputs[i]
        assert log_prob == pytest.approx(log_probs[i], abs=1e-4)


def test_no_rows(translator):
    assert serve(translator, []) == ([], [])
    assert translator.translate([]) == []


# Other ways of searching.

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
    # As many together as fit, or few: the same, also of what is drawn.
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


def test_draws_differ(translator):
    config = SEARCHES["sampling"]
    first = translator.translate(["abcdefg"] * 8, search=config)
    assert len(set(first)) > 4  # each place in the list has draws of its own
    other = translator.translate(["abcdefg"] * 8, search=dataclasses.replace(config, seed=4))
    assert not set(enumerate(first)) & set(enumerate(other))


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


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"search": SearchConfig(beam_size=278)},
            "beam of 278 is wider than the vocabulary of 277",
        ),
        ({"prefixes": ["A", "A" * 12]}, "Prefix 2 has 13 tokens, but the model's max_length is 12"),
        ({"prefixes": ["A"]}, "a prefix for each source, received 1 for 2 sources"),
        ({"prefixes": "AB"}, "a list of sentences, received one string"),
    ],
)
def test_searches_that_cannot_be(translator, options, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(["ab", "c"], **options)


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


def test_what_is_no_text_counts_as_replaced(translator):
    for raw in BYTES:
        replaced = raw.decode("utf-8", errors="replace")
        assert serve(translator, [raw]) == serve(translator, [replaced])
    assert translator.translate(["ab\ud800c"]) == translator.translate(["ab?c"])


def test_output_is_utf8_whatever_the_model_spells():
    # Random models write bytes in disorder.
    translator = random_translator(seed=1)
    outputs = translator.serve(tf.constant(SOURCES))["text"].numpy()
    assert any("\ufffd" in output.decode("utf-8") for output in outputs)


def test_sources_are_cut_at_the_models_length(translator):
    # ▁ and ten characters, then END.
    kept = "abcdefgabc"
    outputs, log_probs = serve(translator, [kept, kept + "d", kept + "h" * 10_000, kept[:-1]])
    assert outputs[0] == outputs[1] == outputs[2]
    assert log_probs[1] == pytest.approx(log_probs[0], abs=1e-4)
    assert log_probs[2] == pytest.approx(log_probs[0], abs=1e-4)
    assert abs(log_probs[3] - log_probs[0]) > 1e-3
    assert max(map(len, outputs)) <= MAX_LENGTH


# Mistakes.


@pytest.mark.parametrize("side", ["source", "target"])
def test_tokenizer_of_another_size(side):
    tokenizer = toy_tokenizer()
    model = Transformer(tokenizer.vocabulary_size, tokenizer.vocabulary_size, **SIZES)
    tokenizers = (PIECES, tokenizer) if side == "source" else (tokenizer, PIECES)
    with pytest.raises(ValueError, match=f"The {side} tokenizer has 350 ids, .* built for 277"):
        Translator(model, *tokenizers)


@pytest.mark.parametrize("text", ["abc", b"abc", ""])
def test_one_string_is_no_list(translator, text):
    with pytest.raises(ValueError, match="a list of sentences, received one string"):
        translator.translate(text)


def test_model_is_built_and_kept():
    model = Transformer(277, 277, **SIZES)
    translator = Translator(model, toy_tokenizer(), toy_tokenizer())
    assert model.built and translator.model is model
    assert keras.utils.set_random_seed(3) is None  # which empties TensorFlow's caches
    assert len(translator.translate(["abc"])) == 1


def test_signature(translator):
    (argument,) = translator.serve.input_signature
    assert argument == tf.TensorSpec([None], tf.string, "text")
    outputs = translator.serve.get_concrete_function().structured_outputs
    assert {name: (spec.dtype, spec.shape.as_list()) for name, spec in outputs.items()} == {
        "text": (tf.string, [None]),
        "log_prob": (tf.float32, [None]),
    }
