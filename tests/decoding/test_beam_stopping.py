"""When a beam search stops: by hand, and against one in plain Python."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beam_search, greedy_search
from keras_transformer.special_ids import END, START
from tests.support.toy_steps import Markov, Toy, hypotheses, references

A, B, C, D = 4, 5, 6, 7


def found_by(step, *arguments, **options):
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
    found = found_by(step, 50, 2, length_penalty, beam_patience=math.inf)
    assert found == (expected, steps)


def test_patience_by_hand():
    # As the second step ends, two hypotheses have ended among the two best, with 0.5 and 0.3.
    step = Markov({START: {A: 0.5, END: 0.5}, A: {END: 0.6, B: 0.4}, B: {B: 0.25, END: 0.75}})
    expected = [(0.5, [END]), (0.3, [A, END])]
    assert found_by(step, 50, 2) == (expected, 2)
    # A third one ends with 0.15 a step later, and with α = 4 would be the best of all.
    assert found_by(step, 50, 2, 4.0) == (expected[::-1], 2)
    expected = [(0.15, [A, B, END]), (0.3, [A, END])]  # -0.600, -0.650, and of [END] -0.693
    assert found_by(step, 50, 2, 4.0, beam_patience=1.5) == (expected, 3)


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
    found = found_by(step, 50, 2, length_penalty, fixed_shapes=fixed_shapes)
    assert found == (expected, 4) and math.exp(log_prob[0]) == pytest.approx(0.4)


def test_what_ends_below_the_beam_is_not_counted():
    """END comes third, then third again: kept, but the search goes on and finds a better second."""
    after = {A: 0.45, B: 0.45, END: 0.1}
    rest = {B: {token: 1 / 27 for token in range(30) if token not in (END, A, B)}}
    step = Markov({START: {A: 0.38, B: 0.37, END: 0.25}, A: after} | rest, vocabulary_size=30)
    assert found_by(step, 2, 2) == ([(0.25, [END]), (0.171, [A, A])], 2)
    assert found_by(step, 3, 2, 0.0) == ([(0.25, [END]), (0.07695, [A, A, A])], 3)


CASES = [*itertools.product((0, 1), (2, 5), (0.0, 0.6, 2.0), (9,)), (2, 8, 1.0, 9), (2, 2, 1.0, 1)]


@pytest.mark.parametrize("seed, beam_size, length_penalty, max_length", CASES)
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
