"""Sampling: frequencies against the distribution, and what a draw may depend on."""

import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from keras_transformer.decoding import greedy_search, sample
from keras_transformer.special_ids import END, PAD, START
from tests.support.toy_steps import Markov, Toy, hypotheses

PROBABILITIES = {END: 0.1, 4: 0.4, 5: 0.25, 6: 0.2, 7: 0.05}
# Ids by rank: 4, 5, 6, END, 7.
KEPT = {
    "all": ({}, [4, 5, 6, END, 7]),
    "top_k": ({"top_k": 3}, [4, 5, 6]),
    "top_k beyond the vocabulary": ({"top_k": 100}, [4, 5, 6, END, 7]),
    # The fewest with at least the share: 0.4 + 0.25 are enough for 0.65, but not for 0.66.
    "top_p": ({"top_p": 0.649}, [4, 5]),
    "top_p, one more": ({"top_p": 0.651}, [4, 5, 6]),
    "top_p, one at least": ({"top_p": 1e-6}, [4]),
    # Of what top_k leaves, 4 has 0.4 / 0.85 = 0.47 and both have 0.76.
    "both": ({"top_k": 3, "top_p": 0.76}, [4, 5]),
    "both, one more": ({"top_k": 3, "top_p": 0.77}, [4, 5, 6]),
    "hot": ({"temperature": 2.0}, [4, 5, 6, END, 7]),
    "cold": ({"temperature": 0.5, "top_k": 4}, [4, 5, 6, END]),
    # At half the temperature, squares: 0.16 / (0.16 + 0.0625 + …) = 0.58 of all.
    "top_p after temperature": ({"temperature": 0.5, "top_p": 0.57}, [4]),
}
ROWS = 4000


def draw(rows=ROWS, **options):
    """The first token of many rows, and their log_prob."""
    step = Markov({START: PROBABILITIES}, vocabulary_size=8)
    tokens, lengths, log_prob = sample(step, {}, rows, 1, **options)
    assert lengths.numpy().tolist() == [1] * rows
    return tokens[:, 0].numpy(), log_prob.numpy()


@pytest.mark.parametrize("per_row", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("name", KEPT)
def test_frequencies(name, per_row):
    options, kept = KEPT[name]
    weights = np.array([PROBABILITIES[token] for token in kept])
    weights = weights ** (1 / options.get("temperature", 1.0))
    if per_row:
        options = {name: np.full(ROWS, value) for name, value in options.items()}
    ids, log_prob = draw(seed=7, **options)
    counts = [np.sum(ids == token) for token in kept]
    assert sum(counts) == ROWS, "only what is kept is drawn"
    if len(kept) > 1:
        assert scipy.stats.chisquare(counts, ROWS * weights / weights.sum()).pvalue > 1e-3
    # The model's own probability, whatever was done to it.
    assert log_prob == pytest.approx(np.log([PROBABILITIES[i] for i in ids]), abs=1e-5)


def test_options_of_each_row():
    options = {"temperature": [0.01, 1.0, 1.0, 5.0] * 500, "top_k": [0, 2, 0, 5] * 500}
    options |= {"top_p": [1.0, 1.0, 0.5, 1.0] * 500}
    options = {name: tf.constant(values) for name, values in options.items()}
    ids, _ = draw(2000, **options)
    seen = [set(ids[i::4].tolist()) for i in range(4)]
    assert seen == [{4}, {4, 5}, {4, 5}, {END, 4, 5, 6, 7}]


def test_options_of_each_row_when_others_have_ended():
    step = Markov({START: PROBABILITIES, 5: PROBABILITIES}, vocabulary_size=8)
    prefix, top_k = [[END]] * 100 + [[5]] * 100, tf.constant([0] * 100 + [1] * 100)
    tokens, _, _ = sample(step, {}, 200, 2, top_k=top_k, prefix=prefix)
    assert tokens.numpy().tolist() == [[END, PAD]] * 100 + [[5, 4]] * 100


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-4}])
def test_certain_is_greedy(options):
    step = Toy(6, 8, 3, end=1.0)
    for result, expected in zip(
        sample(step, step.state, 6, 12, **options),
        greedy_search(step, step.state, 6, 12),
        strict=True,
    ):
        assert result.numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def test_seeds():
    ids = [draw(200, seed=seed)[0].tolist() for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]
    assert len(set(ids[0])) > 3, "rows draw independently"


def test_seed_of_each_row():
    """A row draws the same beside any others, and not what a row of another seed draws."""
    step = Toy(1, 8, 3)
    seeds = tf.constant([5, 2**40 + 5, 5, 6], tf.int64)

    def decode(seeds):
        state = step.initial_state(tf.zeros_like(seeds, tf.int32))
        return hypotheses(*(x[:, None] for x in sample(step, state, len(seeds), 10, seed=seeds)))

    together = decode(seeds)
    assert together[0] == together[2]
    assert together[0] != together[1] and together[0] != together[3]
    for i in range(4):
        assert decode(seeds[i : i + 1]) == [together[i]]


def test_steps_draw_independently():
    step = Markov({i: {4: 0.5, 5: 0.5} for i in (START, 4, 5)})
    tokens = sample(step, {}, 1000, 3, seed=3)[0].numpy()
    assert len(np.unique(tokens, axis=0)) == 8
    both = np.mean((tokens[:, 0] == 4) & (tokens[:, 1] == 4))
    assert both == pytest.approx(0.25, abs=0.05)


def test_log_prob_and_prefix():
    step = Toy(3, 8, 5, end=1.0)
    prefix = np.array([[6, 5, 7], [4, PAD, PAD], [5, END, PAD]])
    found = sample(step, step.state, 3, 8, 0.7, 3, 0.9, 11, prefix)
    tokens = []
    for row, ((log_prob, own),) in enumerate(hypotheses(*(x[:, None] for x in found))):
        forced = prefix[row][prefix[row] != PAD].tolist()
        assert own[: len(forced)] == forced
        expected = sum(step.log_probs(row, own[:t])[token] for t, token in enumerate(own))
        assert log_prob == pytest.approx(expected, abs=1e-4)
        tokens.append(own)
    assert tokens[2] == [5, END]


def test_in_a_graph_of_unknown_batch():
    step = Toy(5, 8, 0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def decode(rows):
        seeds = tf.cast(rows, tf.int64)
        return sample(step, step.initial_state(rows), tf.size(rows), tf.constant(9), seed=seeds)

    for rows in ([0, 1, 2, 3, 4], [3], []):
        tokens, lengths, log_prob = decode(tf.constant(rows, tf.int32))
        assert tokens.shape[0] == lengths.shape[0] == log_prob.shape[0] == len(rows)
    state = step.initial_state(tf.zeros([0], tf.int32))
    assert sample(step, state, 0, 9)[0].shape == (0, 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": math.nan}, "temperature must be .* received nan"),
        ({"top_k": -1}, "top_k must be .* received -1"),
        ({"top_p": 1.5}, "top_p must be .* received 1.5"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        draw(2, **options)
