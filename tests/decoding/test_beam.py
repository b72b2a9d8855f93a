"""Beam search: by hand, against all hypotheses, and against searches in plain Python."""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beam, beam_search, greedy_search
from keras_transformer.special_ids import END, PAD, START
from tests.support.toy_steps import Markov, Toy, exhaustive, hypotheses, references, same

A, B, C, D = 4, 5, 6, 7


# To the end, which the plain searches beside it go to as well.
exact_search = functools.partial(beam_search, beam_patience=math.inf)


def found_by(step, max_length, beam_size, length_penalty=0.0, **options):
    """What is found from START, one row: (probability, tokens), best first."""
    rows = hypotheses(*exact_search(step, {}, 1, max_length, beam_size, length_penalty, **options))
    return [(pytest.approx(math.exp(log_prob), abs=1e-6), tokens) for log_prob, tokens in rows[0]]


# By hand.


def test_the_best_beginning_is_not_the_best_end():
    step = Markov({START: {A: 0.5, B: 0.4, END: 0.1}, A: {END: 0.4, A: 0.6}, B: {END: 0.9, A: 0.1}})
    assert greedy_search(step, {}, 1, 2)[0].numpy().tolist() == [[A, A]]
    assert found_by(step, 2, 2) == [(0.36, [B, END]), (0.3, [A, A])]
    # The last one was found at the first step already, and is still kept.
    assert found_by(step, 2, 4) == [(0.36, [B, END]), (0.3, [A, A]), (0.2, [A, END]), (0.1, [END])]


def test_length_penalty_by_hand():
    step = Markov({START: {END: 0.3, A: 0.7}, A: {B: 0.5, END: 0.5}, B: {END: 0.8, A: 0.2}})
    scores = {  # log(p) / ((5 + length) / 6)^α
        0.0: [(0.35, [A, END]), (0.3, [END])],
        1.0: [(0.35, [A, END]), (0.28, [A, B, END])],  # -0.900, -0.955, and of [END] -1.204
        2.0: [(0.28, [A, B, END]), (0.35, [A, END])],  # -0.716, -0.771
    }
    for length_penalty, expected in scores.items():
        assert found_by(step, 3, 2, length_penalty) == expected
    # log(p) / length^α: -0.424, -0.525, and of [END] -1.204
    assert found_by(step, 3, 2, 1.0, length_norm="length") == scores[2.0]


def test_ended_is_not_extended():
    # Certain to go on after END, if it could.
    step = Markov({START: {END: 0.4, A: 0.6}, A: {END: 1.0}, END: {A: 1.0}})
    assert found_by(step, 5, 2) == [(0.6, [A, END]), (0.4, [END])]
    assert found_by(step, 5, 3) == [(0.6, [A, END]), (0.4, [END]), (0.0, [])]


def test_ties():
    third = dict.fromkeys((END, A, B), 1 / 3)
    step = Markov({START: third, A: third, B: third})
    # The earlier beam, then the lower id; what has ended before what was cut.
    assert found_by(step, 2, 2) == [(1 / 3, [END]), (1 / 9, [A, END])]
    expected = [[END], [A, END], [B, END], [A, A]]
    assert [tokens for _, tokens in found_by(step, 2, 4)] == expected
    step = Markov({START: {A: 0.5, END: 0.5}, A: {END: 1.0}})
    assert found_by(step, 2, 2) == [(0.5, [END]), (0.5, [A, END])]


def test_cut_counts_as_ended():
    step = Markov({START: {A: 0.9, END: 0.1}, A: {A: 0.9, END: 0.1}})
    assert found_by(step, 3, 2) == [(0.729, [A, A, A]), (0.1, [END])]
    assert found_by(step, tf.constant(3), 2) == [(0.729, [A, A, A]), (0.1, [END])]


# Against searches in plain Python.


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_wide_enough_it_finds_what_there_is(seed, length_penalty):
    # 27 ways to go on for three steps without an end, and a beam of 30; most ids cannot come.
    step = Toy(3, 32, seed, allowed=[END, 7, 19, 31])
    found = hypotheses(*exact_search(step, step.state, 3, 4, 30, length_penalty))
    for row in range(3):
        every = exhaustive(functools.partial(step.log_probs, row), 4, length_penalty)
        assert len(every) == 1 + 3 + 9 + 27 * 4
        same([found[row]], [every[:30]])


CASES = [*itertools.product((0, 1), (2, 5), (0.0, 0.6, 2.0), (9,)), (2, 8, 1.0, 9), (2, 2, 1.0, 1)]


@pytest.mark.parametrize("seed, beam_size, length_penalty, max_length", CASES)
def test_stopping_early_changes_nothing(seed, beam_size, length_penalty, max_length):
    """Rows that are done wait for the others: their own search, alone and to the end, agrees."""
    step = Toy(5, 8, seed, end=2.0)
    found = exact_search(step, step.state, 5, max_length, beam_size, length_penalty)
    same(hypotheses(*found), references(step, max_length, beam_size, length_penalty))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 5.0])
def test_one_beam_is_greedy_search(length_penalty):
    step = Toy(6, 8, 3, end=1.0)
    expected = greedy_search(step, step.state, 6, 12)
    found = beam_search(step, step.state, 6, 12, 1, length_penalty)
    for tensor, other in zip(found, expected, strict=True):
        assert tensor.shape[1] == 1
        assert (tensor[:, 0].numpy() == other.numpy()).all()


# When it stops.


def found_and_steps(step, *arguments, **options):
    """What is found from START, one row: (probability, tokens), best first; and steps taken."""
    before = int(step.calls)
    rows = hypotheses(*beam_search(step, {}, 1, *arguments, **options))
    found = [(pytest.approx(math.exp(log_prob), abs=1e-6), tokens) for log_prob, tokens in rows[0]]
    return found, int(step.calls) - before


@pytest.mark.parametrize("length_penalty, steps", [(0.0, 2), (1.0, 8)])
def test_exact_search_stops_as_soon_as_nothing_can_change(length_penalty, steps):
    # After two steps: ended with 0.5 and 0.3, alive with 0.2, of which each step leaves a quarter.
    step = Markov({START: {A: 0.5, END: 0.5}, A: {END: 0.6, B: 0.4}, B: {B: 0.25, END: 0.75}})
    expected = [(0.5, [END]), (0.3, [A, END])]
    # log 0.3 / lp(2) = -1.03, and log(0.2 / 4^k) / lp(50) is less from k = 6 on.
    found = found_and_steps(step, 50, 2, length_penalty, beam_patience=math.inf)
    assert found == (expected, steps)


def test_patience_by_hand():
    # As the second step ends, two hypotheses have ended among the two best, with 0.5 and 0.3.
    step = Markov({START: {A: 0.5, END: 0.5}, A: {END: 0.6, B: 0.4}, B: {B: 0.25, END: 0.75}})
    expected = [(0.5, [END]), (0.3, [A, END])]
    assert found_and_steps(step, 50, 2) == (expected, 2)
    # A third one ends with 0.15 a step later, and with α = 4 would be the best of all.
    assert found_and_steps(step, 50, 2, 4.0) == (expected[::-1], 2)
    expected = [(0.15, [A, B, END]), (0.3, [A, END])]  # -0.600, -0.650, and of [END] -0.693
    assert found_and_steps(step, 50, 2, 4.0, beam_patience=1.5) == (expected, 3)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_no_worse_than_greedy_where_words_are_long(length_penalty, fixed_shapes):
    """Two have ended after two steps, with 0.3 and 0.2; the word that begins with A, at 0.5, takes
    four, and is waited for. What is alive then ranks below it and is not."""
    start = {A: 0.5, END: 0.3, B: 0.2}
    word = {A: {C: 1.0}, C: {D: 1.0}, D: {END: 0.8, A: 0.2}, B: {END: 1.0}}
    step = Markov({START: start} | word, vocabulary_size=8)
    tokens, _, log_prob = greedy_search(step, {}, 1, 50)
    assert tokens.numpy().tolist() == [[A, C, D, END]]
    expected = [(0.4, [A, C, D, END]), (0.3, [END])]
    found = found_and_steps(step, 50, 2, length_penalty, fixed_shapes=fixed_shapes)
    assert found == (expected, 4) and math.exp(log_prob[0]) == pytest.approx(0.4)


def test_what_ends_below_the_beam_is_not_counted():
    """END comes third, then third again: kept, but the search goes on and finds a better second."""
    after = {A: 0.45, B: 0.45, END: 0.1}
    rest = {B: {token: 1 / 27 for token in range(30) if token not in (END, A, B)}}
    step = Markov({START: {A: 0.38, B: 0.37, END: 0.25}, A: after} | rest, vocabulary_size=30)
    assert found_and_steps(step, 2, 2) == ([(0.25, [END]), (0.171, [A, A])], 2)
    assert found_and_steps(step, 3, 2, 0.0) == ([(0.25, [END]), (0.07695, [A, A, A])], 3)


@pytest.mark.parametrize("seed, beam_size, length_penalty, max_length", CASES[6:])
@pytest.mark.parametrize("beam_patience", [1.0, 1.5, 3.0])
def test_patience(seed, beam_size, length_penalty, max_length, beam_patience):
    """A row that has given up finds nothing more while it waits for the others."""
    step = Toy(5, 8, seed, end=2.0)
    how = max_length, beam_size, length_penalty
    found = hypotheses(*beam_search(step, step.state, 5, *how, beam_patience=beam_patience))
    expected = references(step, *how, beam_patience=beam_patience)
    for row, wanted in zip(found, expected, strict=True):
        assert [tokens for _, tokens in row] == [tokens for _, tokens in wanted]
        log_probs = [log_prob for log_prob, _ in wanted]
        assert [log_prob for log_prob, _ in row] == pytest.approx(log_probs, abs=1e-4)


@pytest.mark.parametrize("seed, beam_size, length_penalty, max_length", CASES)
@pytest.mark.parametrize("beam_patience", [1.0, math.inf])
def test_ranking_by_length(seed, beam_size, length_penalty, max_length, beam_patience):
    step = Toy(5, 8, seed, end=2.0)
    how = max_length, beam_size, length_penalty
    options = {"beam_patience": beam_patience, "length_norm": "length"}
    found = hypotheses(*beam_search(step, step.state, 5, *how, **options))
    for row, wanted in zip(found, references(step, *how, **options), strict=True):
        assert [tokens for _, tokens in row] == [tokens for _, tokens in wanted]


def test_rows_stop_at_their_own_time():
    step = Toy(5, 8, 0, end=2.0)
    calls = []
    for rows in ([0], [1], [2], [3], [4], range(5)):
        step.calls.assign(0)
        beam_search(step, step.initial_state(tf.constant(list(rows))), len(rows), 30, 3)
        calls.append(int(step.calls))
    assert len(set(calls)) > 2 and max(calls) == calls[-1] < 30


def test_by_probability_alone_the_best_is_that_of_an_exact_search():
    """What is behind now never comes to be ahead."""
    step = Toy(40, 8, 3, end=1.5)
    how = step.state, 40, 15, 3, 0.0
    soon, late = (beam_search(step, *how, beam_patience=p)[2][:, 0] for p in (1.0, math.inf))
    np.testing.assert_array_equal(soon, late)


# Prefixes.


def test_prefix():
    step = Toy(4, 8, 5, end=1.0)
    prefix = np.array([[6, 5, 7], [4, PAD, PAD], [PAD, PAD, PAD], [5, END, PAD]])
    for beam_size, length_penalty in [(2, 0.0), (3, 1.0)]:
        found = exact_search(step, step.state, 4, 6, beam_size, length_penalty, prefix)
        found = hypotheses(*found)
        same(found, references(step, 6, beam_size, length_penalty, prefix))
        assert [tokens for _, tokens in found[3]] == [[5, END], *[[]] * (beam_size - 1)]


@pytest.mark.parametrize("beam_size", [1, 2])
def test_prefix_of_next_to_no_probability(beam_size):
    """As a float32, e^-200 is 0; its logarithm is not lost."""
    logits = tf.constant([[0.0, 0.0, 0.0, 0.0, 0.0, 200.0]])

    def step(ids, position, state):
        return tf.repeat(logits, tf.size(ids), axis=0), state

    found = hypotheses(*beam_search(step, {}, 1, 1, beam_size, prefix=[[A]]))
    assert found[0][0] == (pytest.approx(-200.0), [A])


def test_prefix_of_no_or_unknown_width():
    step = Toy(2, 8, 5)
    free = hypotheses(*beam_search(step, step.state, 2, 4, 2))
    for nothing in (np.zeros((2, 0), int), np.zeros((2, 3), int)):
        assert hypotheses(*beam_search(step, step.state, 2, 4, 2, prefix=nothing)) == free


# In graphs.


def test_in_a_graph_of_unknown_batch():
    step, traces = Toy(5, 8, 0, end=2.0), []

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)]
    )
    def decode(rows, prefix):
        traces.append(rows)
        state = step.initial_state(rows)
        return beam_search(step, state, tf.size(rows), 9, 3, 0.6, prefix)

    for rows in ([0, 1, 2, 3, 4], [3], [4, 4], []):
        found = decode(rows, np.full((len(rows), 2), [6, PAD]))
        expected = beam_search(
            step,
            step.initial_state(tf.constant(rows, tf.int32)),
            len(rows),
            9,
            3,
            0.6,
            np.full((len(rows), 2), [6, PAD]),
        )
        same(hypotheses(*found), hypotheses(*expected))
    assert len(traces) == 1
    assert [tensor.shape.as_list() for tensor in found] == [[0, 3, 0], [0, 3], [0, 3]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_logits_of_any_float(dtype):
    step = Markov({START: {A: 0.5, B: 0.4, END: 0.1}, A: {END: 0.4, A: 0.6}, B: {END: 0.9, A: 0.1}})
    step.logits = tf.cast(step.logits, dtype)
    (found,) = hypotheses(*beam_search(step, {}, 1, 2, 2, 0.0))
    assert [tokens for _, tokens in found] == [[B, END], [A, A]]
    assert [h[0] for h in found] == pytest.approx([math.log(0.36), math.log(0.3)], abs=3e-2)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("vocabulary_size", [7, 400, 801, 1099, 8000])
@pytest.mark.parametrize("levels", [3, 1000])
def test_best_logits_of_a_large_vocabulary(vocabulary_size, levels, compiled):
    """As `tf.math.top_k` has them: also of equals, and where next to nothing is allowed."""
    random = np.random.default_rng(vocabulary_size)
    logits = random.integers(0, levels, (12, vocabulary_size)).astype("float32")
    logits[3:6, : vocabulary_size // 2] = float("-inf")
    logits[6] = float("-inf")
    logits[7:9] = float("-inf")
    logits[7:9, random.integers(vocabulary_size)] = 1.0
    best = tf.function(beam._top_k, jit_compile=compiled)
    found, expected = best(tf.constant(logits), 7), tf.math.top_k(logits, 7)
    np.testing.assert_array_equal(found[0], expected.values)
    np.testing.assert_array_equal(found[1], expected.indices)


def test_only_what_a_step_changes_is_reordered():
    """The memory's keys and values are equal for all beams of a row, and large."""
    toy, given, returned = Toy(3, 8, 0), [], []

    def step(ids, position, state):
        logits, after = toy(ids, position, state)
        given.append(state)
        returned.append(after)
        return logits, after

    beam_search(step, toy.state, 3, 5, 2)
    assert len(given) == 5
    assert all(state["row"] is given[0]["row"] for state in given)
    pairs = list(zip(given[1:], returned[:-1], strict=True))
    assert not any(state["fed"] is after["fed"] for state, after in pairs)
