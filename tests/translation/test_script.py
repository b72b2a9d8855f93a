"""From text to text in a script of one's own: the same tokens as the translator's."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.toy_translator import SOURCES, trained_translator

TEXTS = [text for text in SOURCES if text]


def decode(source, length):
    """What a script does with ids `(B, S)`."""
    model = trained_translator().model
    state = model.initial_state(source)
    return kt.greedy_search(model.make_step(), state, len(source), length)


def test_a_script_decodes_as_the_translator_does():
    translator = trained_translator()
    tokenizer = translator.source_tokenizer
    source = tokenizer(TEXTS, end=True).to_tensor()
    tokens, _, log_prob = decode(source, translator.longest_output)
    same, answer = translator.translate_ids(*translator.read_source(tf.constant(TEXTS)))
    assert tokens.numpy().tolist() == same.numpy().tolist()
    np.testing.assert_allclose(log_prob, answer["log_prob"], rtol=1e-5)
    texts = [text.decode() for text in tokenizer.detokenize(tokens).numpy()]
    assert texts == translator.translate(TEXTS)
    assert len(set(texts)) == len(texts)  # it depends on the source
    # One by one, from the ids of a single text.
    for text, row in zip(TEXTS, tokens.numpy(), strict=True):
        alone, lengths, _ = decode(tokenizer(text, end=True)[tf.newaxis], translator.longest_output)
        assert alone[0].numpy().tolist() == row[: lengths[0]].tolist()
    # END is what it takes.
    without = decode(tokenizer(TEXTS).to_tensor(), translator.longest_output)
    assert tokenizer.detokenize(without[0]).numpy().tolist() != [text.encode() for text in texts]


@pytest.mark.parametrize("name", ["greedy_search", "search"])
def test_examples_run(name):
    translator = trained_translator()
    known = vars(kt) | {"tf": tf, "model": translator.model, name: getattr(kt, name)}
    known |= {"tokenizer": translator.source_tokenizer, "SearchConfig": kt.SearchConfig}
    shown = 0
    for example in doctest.DocTestParser().get_examples(getattr(kt, name).__doc__):
        if not example.want:
            exec(example.source, known)
            continue
        (text,) = eval(example.source, known)  # of another model, of course
        shown += isinstance(text, bytes) and len(text) > 0
    assert shown
