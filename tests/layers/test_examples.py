"""The examples in the docstrings run, and give what they say."""

import ast
import doctest

import numpy as np
import pytest

import keras_transformer as kt

NAMES = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "MaskedAccuracy",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "SmoothedCrossEntropy",
    "Transformer",
    "WarmupInverseSqrt",
    "sinusoidal_encoding",
]


@pytest.mark.parametrize("name", NAMES)
def test_example(name):
    examples = doctest.DocTestParser().get_examples(getattr(kt, name).__doc__)
    known = {"np": np} | {public: getattr(kt, public) for public in NAMES}
    checked = 0
    for example in examples:
        if not example.want:
            exec(example.source, known)
            continue
        wanted = ast.literal_eval(example.want.replace("array(", "("))
        value = eval(example.source, known)
        if isinstance(wanted, tuple):
            assert tuple(value) == wanted
        else:
            np.testing.assert_allclose(np.array(value), wanted, atol=1e-4, rtol=1e-3)
        checked += 1
    assert checked
