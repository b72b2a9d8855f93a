"""What the model says about given pairs: how probable they are, what a token attends to."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.special_ids import END, START
from keras_transformer.translation.translator import Translator
from tests.support.toy_steps import log_softmax
from tests.support.toy_translator import (
    SOURCES,
    random_translator,
    toy_tokenizer,
    trained_translator,
)

TARGETS = ["ABC", "HGFA", "", "x", "BBBB", "東", "H", "HB", "GFEDCBA", ""]


@pytest.fixture(scope="module")
def deep():
    """Three layers with weights at random."""
    return random_translator(num_layers=3, seed=5)


def ids(tokenizer, text):
    return [*tokenizer(text).numpy().tolist(), END]


@functools.cache
def compiled(model):
    ids = tf.TensorSpec([None, None], tf.int32)
    return tf.function(
        lambda source, target: model((source, target), return_attention_scores=True),
        input_signature=[ids, ids],
    )


def run(translator, source, target):
    """Logits and attention scores, as NumPy arrays, of one pair without padding."""
    source = np.array([ids(translator.source_tokenizer, source)])
    target = np.array([[START, *ids(translator.target_tokenizer, target)[:-1]]])
    logits, scores = compiled(translator.model)(source, target)
    return logits.numpy()[0], np.stack([layer.numpy()[0] for layer in scores["cross"]])


def test_score_is_the_sum_of_log_softmax():
    translator = trained_translator()
    for batch_size in (64, 3):
        found = translator.score(SOURCES, TARGETS, batch_size)
        for source, target, (log_prob, tokens) in zip(SOURCES, TARGETS, found, strict=True):
            expected = ids(translator.target_tokenizer, target)
            rows = zip(run(translator, source, target)[0], expected, strict=True)
            assert tokens == len(expected)
            assert log_prob == pytest.approx(sum(log_softmax(r)[t] for r, t in rows), abs=1e-4)


def test_score_is_what_the_search_says():
    """A translation that is forced and then ends has the score of that pair."""
    translator, beam = trained_translator(), SearchConfig(beam_size=5, length_penalty=0.0)
    scores = translator.score(SOURCES, TARGETS)
    found = translator.translate_n_best(SOURCES, search=beam, prefixes=TARGETS)
    equal = 0
    for source, target, (score, _), n_best in zip(SOURCES, TARGETS, scores, found, strict=True):
        # An empty target forces nothing, and a lone word mark makes an empty text too.
        forced = source and target
        log_probs = [log_prob for text, log_prob, _ in n_best if text == target and forced]
        equal += bool(log_probs)
        assert not log_probs or score in [pytest.approx(value, abs=1e-4) for value in log_probs]
    assert equal > 3


def test_empty_to_empty():
    translator = trained_translator()
    assert translator.score(["", " ", "ab"], ["", "", ""])[:2] == [(0.0, 0), (0.0, 0)]
    assert translator.score([], []) == [] == translator.align([], [])


def test_align_is_where_attention_is_greatest(deep):
    sources, targets = ["abc", "", "bbbbbbb", "hb"], ["ABCD", "AB", "", "東"]
    pairs = list(zip(sources, targets, strict=True))
    crosses = [run(deep, *pair)[1] for pair in pairs]  # (N, H, T, S) each
    on_end = 0
    for layers, heads in [(None, None), ([0], [1]), ([2, 0], None), (range(3), [0]), ([1], [0, 1])]:
        found = deep.align(sources, targets, layers, heads, batch_size=3)
        for pair, cross, (pieces, target_pieces, positions) in zip(
            pairs, crosses, found, strict=True
        ):
            assert "".join(pieces) == (f"▁{pair[0]}" if pair[0] else "")
            assert len(target_pieces) == len(ids(deep.target_tokenizer, pair[1])) - 1
            chosen = cross[[1] if layers is None else list(layers)]
            mean = chosen[:, [0, 1] if heads is None else heads].mean(axis=(0, 1))
            # Without END on either side, even where it is what is attended to most.
            assert positions == (mean[:-1, :-1].argmax(axis=-1).tolist() if pair[0] else [])
            on_end += np.sum(mean.argmax(axis=-1) == len(pieces)) if pair[0] else 0
    assert on_end > 0


def test_align_of_one_layer():
    translator = random_translator()
    assert translator.align(["ab"], ["AB"]) == translator.align(["ab"], ["AB"], layers=[0])


def test_sources_are_cut_as_in_translation():
    translator = trained_translator()
    long, cut = "abcdefgabc" + "h" * 50, "abcdefgabc"  # ▁, ten characters and END
    (a, _), (b, _) = translator.score([long, cut], ["AB", "AB"])
    assert a == pytest.approx(b, abs=1e-4)
    first, second = translator.align([long, cut], ["AB", "AB"])
    assert first == second


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: t.score("ab", ["AB"]), "a list of sentences, received one string"),
        (lambda t: t.score(["ab"], "AB"), "a list of sentences, received one string"),
        (lambda t: t.score(["ab", "c"], ["AB"]), "a target for each source, received 1 for 2"),
        (lambda t: t.align(["ab"], []), "a target for each source, received 0 for 1"),
        # ▁, twelve letters, END
        (lambda t: t.score(["a", "b"], ["A", "A" * 12]), "Target 2 has 14 tokens, .*length is 12"),
        (lambda t: t.align(["a"], ["A" * 11]), "Target 1 has 13 tokens"),
        (lambda t: t.align(["a"], ["A"], layers=[1]), "no layer 1: the model has 1, numbered from"),
        (lambda t: t.align(["a"], ["A"], layers=[-1]), "no layer -1"),
        (lambda t: t.align(["a"], ["A"], heads=[0, 2]), "no head 2: the model has 2"),
        (lambda t: t.align(["a"], ["A"], heads=[]), "name one head or several"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call(trained_translator())


@pytest.mark.parametrize(
    "search", [GREEDY, SearchConfig(beam_size=3), SearchConfig(sample=True)], ids=str
)
def test_translations_have_a_longest_length(search):
    model, tokenizer = random_translator(seed=1).model, toy_tokenizer()
    bounded = Translator(model, tokenizer, tokenizer, longest_output=3)
    whole = Translator(model, tokenizer, tokenizer, longest_output=10**6)
    short = bounded.translate(SOURCES, search=search)
    long = whole.translate(SOURCES, search=search)
    assert all(len(text) <= 3 for text in short) and short != long  # a piece is a character
    assert long == random_translator(seed=1).translate(SOURCES, search=search)
    asked = dataclasses.replace(search, longest_output=3)
    assert whole.translate(SOURCES, search=asked) == short
    assert bounded.translate(SOURCES, search=dataclasses.replace(search, longest_output=4)) == short
    with pytest.raises(ValueError, match="Prefix 1 has 5 tokens, but longest_output is 3: shorten"):
        whole.translate(["abc"], search=asked, prefixes=["ABCD"])
    with pytest.raises(ValueError, match="longest_output must be at least 1, received 0"):
        Translator(model, tokenizer, tokenizer, longest_output=0)
