"""Prefixes: passed at once, they lead to the same as step by step."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import prefix as prefixes
from keras_transformer.decoding import search
from keras_transformer.special_ids import END, PAD
from tests.support.toy_steps import Markov, hypotheses, same
from tests.support.toy_translator import random_translator

# Rows that have two tokens, and END, in common; ends of rows; no token in common, no tokens.
PREFIXES = [
    [[4, 5, 6, 7], [9, 8, 7, PAD], [4, 4, PAD, PAD]],
    [[4, 5, END, PAD], [9, END, PAD, PAD], [4, 4, 5, 6]],
    [[4, 5], [PAD, PAD], [8, PAD]],
    [[], [], []],
]
HOW = {"greedy": {}, "beam": {"beam_size": 3}, "sampling": {"sample": True}}


@pytest.fixture(scope="module")
def model():
    return random_translator(positions="rotary", num_layers=2).model


@pytest.mark.parametrize("how, traced", [*((x, False) for x in HOW.values()), (HOW["beam"], True)])
def test_at_once_is_step_by_step(model, how, traced, monkeypatch):
    monkeypatch.setattr(prefixes, "MAX_POSITIONS", 4)  # one position of all rows
    step, positions = model.make_step(), []
    state = model.initial_state(np.array([[5, 6, 7, 3], [9, 3, 0, 0], [8, 8, 3, 0]]))

    def several(ids, position, state):
        positions.append(ids.shape.rank)
        return step(ids, position, state)

    several.takes_several = True
    one_by_one = functools.partial(step)  # which does not say so
    for prefix in PREFIXES[:2] if traced else PREFIXES:
        prefix = np.array(prefix, "int32")
        run = tf.function(search, autograph=False) if traced else search
        found = hypotheses(*run(several, state, 3, 9, prefix=tf.constant(prefix), **how))
        same(found, hypotheses(*search(one_by_one, state, 3, 9, prefix=prefix, **how)))
    assert 2 in positions


def test_longer_than_the_maximum(model):
    """In a graph the length may be unknown, and the prefix is truncated."""
    state, prefix = model.initial_state(np.array([[5, 6, 3]])), np.array([[4, 5, 6, 7]])

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def run(prefix):
        return search(model.make_step(), state, 1, 3, prefix=prefix)

    assert run(tf.constant(prefix))[0].numpy().tolist() == [[[4, 5, 6]]]


def test_impossible_prefix():
    step = Markov({4: {4: 0.5, 5: 0.5}, 5: {5: 1.0}, 2: {4: 1.0}})
    step.takes_several = True
    prefix = np.array([[4, 5, 4], [4, 5, 5]])
    for how in HOW.values():
        found = hypotheses(*search(step, {}, 2, 4, prefix=prefix, **how))
        expected = [(-math.inf, []), (pytest.approx(math.log(0.5)), [4, 5, 5, 5])]
        assert [row[0] for row in found] == expected
    with pytest.raises(ValueError, match="ids from 4 to 6, but the vocabulary has ids from 0 to 5"):
        search(step, {}, 1, 4, prefix=np.array([[4, 6]]))
