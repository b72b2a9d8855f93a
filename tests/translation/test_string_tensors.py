"""A translator that is called: a string, strings or a string tensor, and a search by keywords."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.presets import SearchConfig
from tests.support.toy_translator import random_translator

TEXTS = ["abc", "", "hgf", "bbbbbbb", "cafe"]
OPTIONS = {"beam_size": 3, "length_penalty": 0.0}
BEAM = SearchConfig(**OPTIONS)


@pytest.fixture(scope="module")
def translator():
    return random_translator(seed=3)


@pytest.fixture(scope="module")
def expected(translator):
    """The beam's answers, of which some are not the greedy ones."""
    found = translator.translate(TEXTS, search=BEAM)
    assert found != translator.translate(TEXTS) and len(set(found)) > 3
    return found


def test_strings(translator, expected):
    assert translator("abc") == translator(b"abc") == translator.translate(["abc"])[0]
    assert translator("") == "" and translator([]) == []
    assert translator("abc", **OPTIONS) == expected[0]
    for texts in (TEXTS, tuple(TEXTS), iter(TEXTS), np.array(TEXTS)):
        assert translator(texts, **OPTIONS) == expected
    assert translator(TEXTS, batch_size=2, search=BEAM) == expected
    wider = translator.translate(TEXTS, search=SearchConfig(beam_size=5, length_penalty=0.0))
    assert translator(TEXTS, search=BEAM, beam_size=5) == wider


def decoded(tensor):
    """A string tensor as a string or a list of them."""
    assert tensor.dtype == tf.string
    found = tensor.numpy()
    return found.decode() if tensor.shape.rank == 0 else [text.decode() for text in found]


def test_tensors(translator, expected):
    for call in (translator, tf.function(translator, autograph=False)):
        assert decoded(call(tf.constant(TEXTS), **OPTIONS)) == expected
        assert decoded(call(tf.constant("abc"), **OPTIONS)) == expected[0]
    assert translator(tf.zeros([0], tf.string)).shape == (0,)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3)
    dataset = dataset.map(lambda text: translator(text, search=BEAM))
    assert dataset.element_spec == tf.TensorSpec([None], tf.string)
    assert [text for batch in dataset for text in decoded(batch)] == expected


def test_draws_are_the_same_in_a_graph(translator):
    options = {"sample": True, "seed": 7}
    drawn = translator(TEXTS, **options)
    for call in (translator, tf.function(translator, autograph=False)):
        assert decoded(call(tf.constant(TEXTS), **options)) == drawn


def test_prefixes(translator):
    prefixes = ["GG", "", "B", "H", ""]
    expected = translator.translate(TEXTS, prefixes=prefixes)
    assert translator(TEXTS, prefixes=prefixes) == expected
    assert translator("abc", prefixes="GG") == translator("abc", prefixes=["GG"]) == expected[0]
    call = tf.function(translator, autograph=False)
    assert decoded(call(tf.constant(TEXTS), prefixes=tf.constant(prefixes))) == expected
    assert decoded(translator(tf.constant(TEXTS), prefixes=prefixes)) == expected
    assert decoded(translator(tf.constant("abc"), prefixes="GG")) == expected[0]


@pytest.mark.parametrize("rows", [(2, 1), (1, 2)])
def test_a_prefix_for_each_source_in_a_graph(translator, rows):
    texts = tf.TensorSpec([None], tf.string)
    call = tf.function(lambda x, p: translator(x, prefixes=p), [texts, texts], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one prefix for each source"):
        call(*(tf.constant(["a"] * number) for number in rows))


MISTAKES = {
    "no such option": (
        ("abc", {"beams": 5}),
        r"no option beams: choose from batch_size, search, prefixes, beam_size, .*longest_output\.",
    ),
    "out of range": (("abc", {"beam_size": 0}), "beam_size must be at least 1, received 0"),
    "not sampled": (("abc", {"temperature": 2.0}), "temperature is 2.0, but nothing is sampled"),
    "wide": (("abc", {"beam_size": 278}), "beam of 278 is wider than the vocabulary of 277"),
    "prefixes": (("abc", {"prefixes": ["A", "B"]}), "received 2 for 1 source"),
    "no text": ((["abc", 5], {}), "Expected sentences as strings, received 5 among them."),
    "numbers": ((tf.zeros([2]), {}), r"string tensor of shape \(\) or \(B,\), received float32"),
    "table": ((tf.constant([["a"]]), {}), r"received string of shape \(1, 1\)."),
    "ragged": ((tf.ragged.constant([["a"], []]), {}), "received string of shape"),
    "prefix tensor": (
        (tf.constant(["a", "b"]), {"prefixes": ["A"]}),
        r"a prefix for each source, received prefixes of shape \(1,\) for sources of shape \(2,\)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(translator, name):
    (texts, options), message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        translator(texts, **options)
