"""What cannot be translated, scored, aligned or inspected is refused by a sentence."""

import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.toy_translator import SIZES, toy_tokenizer, trained_translator, without_graphs

# Characters of which 277 ids are made, and fewer.
TOYS, FEWER = toy_tokenizer(), kt.SubwordTokenizer.train(["ab"], None, "char")


def inspect(target, number=5):
    return lambda translator: kt.token_probabilities(translator, "a", target, number)


def made_of(source, target):
    return lambda _: kt.Translator(kt.Transformer(277, 277, **SIZES), source, target)


# A source has ▁, its letters and END.
MISTAKES = [
    (lambda t: t.translate(["ab", "c"], prefixes=["A", "A" * 12]), "Prefix 2 has 13 tokens, .* 12"),
    (lambda t: t("a", prefixes=["A", "B"]), "received 2 for 1"),
    (lambda t: t.translate_n_best(["a"], beam_size=4, n_best=5), "received 5"),
    (lambda t: t.translate_n_best(["a"], sample=True, n_best=0), "received 0"),
    (lambda t: t(["abc", 5]), "Expected sentences as strings, received 5 among them."),
    (lambda t: t(tf.constant([["a"]])), r"received string \(1, 1\)."),
    (lambda t: t(tf.constant(["a", "b"]), prefixes=["A"]), r"the shape \(2,\), received \(1,\)"),
    (lambda t: without_graphs(t, max_output_length=0), "at least 1, received 0"),
    (lambda t: t.score(["ab"], "AB"), "a list of sentences, received one string"),
    (lambda t: t.score(["a", "b"], ["A", "A" * 12]), "Target 2 has 14 tokens, .*length is 12"),
    (lambda t: t.align(["a"], ["A"], layers=[2]), "Unknown layer 2: choose from 1 to 1"),
    (lambda t: t.align(["a"], ["A"], heads=[]), "at least one head"),
    (inspect("A", 278), "number must be from 1 to 277, the vocabulary, received 278"),
    (inspect([5] * 13), "Expected 1 to 12 ids of a vocabulary of 277"),
    (inspect([277]), r"received \[277\]"),
    (inspect([0.5]), "a text or the ids of one"),
    (made_of(FEWER, TOYS), "The source tokenizer has 263 ids, .* built for 277"),
    (made_of("abc", TOYS), "source .* a str, lacks vocabulary_size, __call__, detokenize, pieces:"),
    (made_of(TOYS, kt.SubwordTokenizer), "target .* class SubwordTokenizer, lacks vocabulary_size"),
]


@pytest.mark.parametrize("mistake, message", MISTAKES)
def test_mistakes(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake(without_graphs(trained_translator()))
