"""Control of a search: as in transformers, in every search, and only of what may follow anyway."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding import beam_search, greedy_search, sample, search
from keras_transformer.decoding.logits_processors import make_processors
from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import END, START
from tests.support import parity
from tests.support.toy_steps import Markov, Toy, hypotheses, reference_beam, same

A, B = 4, 5
KEPT = parity.read("processors")
EVERY = {"greedy": {}, "beam": {"beam_size": 3}, "sampling": {"sample": True}}


@pytest.mark.parametrize("more", [0, 3])  # columns of a search with fixed shapes
@pytest.mark.parametrize(
    "name, value", [("repetition_penalty", 1.5), ("no_repeat_ngram_size", 2), ("min_length", 10)]
)
def test_as_in_transformers(name, value, more):
    (process,) = make_processors(SearchConfig(**{name: value}))
    tokens = tf.constant(np.pad(KEPT["tokens"], [[0, 0], [0, more]]), tf.int32)
    found = process(tf.constant(KEPT["logits"], tf.float32), tokens, 9)
    np.testing.assert_allclose(found, KEPT[name], atol=1e-6)


def allowed_only(log_probs, size, shortest, tokens):
    """Log-probabilities of what follows, -inf for what repeats n-grams or ends too soon."""
    gains, text = log_probs(tokens).copy(), [*tokens]
    known = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
    for token in range(len(gains)):
        too_short = token == END and len(text) < shortest
        if too_short or tuple([*text, token][len(text) + 1 - size :]) in known:
            gains[token] = -math.inf
    return gains


@given(st.integers(1, 3), st.integers(0, 4), st.integers(0, 999), st.sampled_from([0.0, 0.6]))
def test_as_in_plain_python(size, shortest, seed, penalty):
    step = Toy(3, 9, seed, end=2.0)
    how = {"beam_size": 3, "length_penalty": penalty}
    options = {"no_repeat_ngram_size": size, "min_length": shortest}
    found = hypotheses(*search(step, step.state, 3, 6, **how, **options))
    how |= {"beam_patience": 1.0, "length_norm": "gnmt", "prefix": []}
    expected = []
    for row in range(3):
        follow = functools.partial(step.log_probs, row)
        best = reference_beam(functools.partial(allowed_only, follow, size, shortest), 6, **how)
        expected.append(best + [(-math.inf, [])] * (3 - len(best)))
    same(found, expected)


@pytest.mark.parametrize("how", EVERY.values(), ids=EVERY)
def test_each_row_as_alone(how):
    step = Toy(4, 12, 5)
    options = {"no_repeat_ngram_size": 1, "min_length": 3, "repetition_penalty": 1.2, **how}
    seeds = tf.range(4)
    found = hypotheses(*search(step, step.state, 4, 8, seeds=seeds, **options))
    for row in range(4):
        state = step.initial_state(tf.constant([row]))
        alone = search(step, state, 1, 8, seeds=seeds[row : row + 1], **options)
        same(hypotheses(*alone), [found[row]])
    assert all(len({*tokens}) == len(tokens) > 3 for row in found for _, tokens in row)


@pytest.mark.parametrize("how", EVERY.values(), ids=EVERY)
def test_with_fixed_shapes(how):
    step = Markov({START: {A: 0.9, B: 0.1}, A: {A: 0.5, B: 0.4, END: 0.1}, B: {A: 0.9, END: 0.1}})
    options = {"no_repeat_ngram_size": 2, "min_length": 5, "repetition_penalty": 1.1, **how}
    found = [search(step, {}, 1, 7, fixed_shapes=fixed, **options) for fixed in (False, True)]
    same(*(hypotheses(*one) for one in found))


def test_a_penalty_by_hand():
    """The logits are log 0.6 = -0.51 and log 0.4 = -0.92: twice the first is less."""
    step = Markov(dict.fromkeys((START, A, B), {A: 0.6, B: 0.4}))
    (processor,) = make_processors(SearchConfig(repetition_penalty=2.0))
    found = hypotheses(*greedy_search(step, {}, 1, 2, logits_processors=[processor]))
    assert found == [[(pytest.approx(math.log(0.6 * 0.4)), [A, B])]]
    # In their order: AB -1.43, BA -0.92 - 0.51, AA -0.51 - 1.02. Ties are of the better beam.
    found = hypotheses(*beam_search(step, {}, 1, 2, 3, 0.0, logits_processors=[processor]))
    expected = [(0.24, [A, B]), (0.24, [B, A]), (0.36, [A, A])]
    assert found == [[(pytest.approx(math.log(p)), tokens) for p, tokens in expected]]


def test_a_function_of_a_user():
    step, seen = Markov({START: {A: 1.0}, A: {A: 0.5, END: 0.5}}), []

    def without_end(logits, tokens, position):
        seen.append((tokens.numpy().tolist(), int(position)))
        ids = tf.range(logits.shape[-1])
        return tf.where(ids == END, -math.inf, tf.where(ids == B, 9.0, logits))

    found = hypotheses(*sample(step, {}, 1, 3, logits_processors=[without_end]))
    # What the model excludes, such as B, remains so; log_prob is the model's.
    assert found == [[(pytest.approx(math.log(0.25)), [A, A, A])]]
    assert seen == [([[]], 0), ([[A]], 1), ([[A, A]], 2)]

    def nothing(logits, _tokens, _position):
        return tf.fill(tf.shape(logits), -math.inf)

    for how in EVERY.values():
        found = hypotheses(*search(step, {}, 1, 3, logits_processors=(nothing,), **how))
        assert found[0][0] == (-math.inf, [])
        prefix = np.array([[A, A, END]])
        found = search(step, {}, 1, 3, prefix=prefix, logits_processors=(nothing,), **how)
        assert hypotheses(*found)[0][0][1] == [A, A, END], "a prefix is not chosen"
    step = Markov(dict.fromkeys(range(6), dict.fromkeys(range(6), 1 / 6)))
    undefined = {"logits_processors": [lambda x, *_: x * math.nan]}
    assert np.isnan(greedy_search(step, {}, 1, 1, **undefined)[2]).all()
    only = {"logits_processors": [lambda x, *_: tf.where(tf.range(6) == A, x, -math.inf)]}
    found = hypotheses(*beam_search(step, {}, 1, 3, 2, prefix=[[B]], **only))
    assert [tokens for _, tokens in found[0]] == [[B, A, A], []], "PAD follows, too"


def test_bad_values():
    step = Markov({START: {A: 1.0}, A: {A: 1.0}})
    for processor in (lambda x, *_: x[:, :2], lambda x, *_: tf.cast(x, tf.float64)):
        with pytest.raises(ValueError, match=r"must return float32 logits of shape \(1, 6\), rec"):
            greedy_search(step, {}, 1, 2, logits_processors=[processor])
    with pytest.raises(ValueError, match="min_length is 1 above the maximum length: lower it"):
        search(step, {}, 1, 2, min_length=3)
    with pytest.raises(ValueError, match="is the argument max_length of search: pass that"):
        search(step, {}, 1, 2, SearchConfig(max_output_length=1))
    for options in (dict(min_length=-1), dict(no_repeat_ngram_size=-1), dict(repetition_penalty=0)):
        with pytest.raises(ValueError, match=f"{[*options][0]} must be .*at least"):
            SearchConfig(**options)
