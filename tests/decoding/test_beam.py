"""Beam search: by hand, against all hypotheses, and against searches in plain Python; `search`."""

import dataclasses
import functools
import inspect
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding import beam, beam_search, greedy_search, sample, search
from keras_transformer.presets import GREEDY, ExportConfig, SearchConfig
from keras_transformer.special_ids import END, PAD, START, UNK
from tests.support.toy_steps import Markov, Toy, hypotheses, references, same
from tests.support.toy_translator import MAX_LENGTH, SOURCES, random_translator

A, B, C, D = 4, 5, 6, 7
NEVER = float("-inf")
TO_THE_END = {"beam_patience": math.inf}


def found_and_steps(step, *arguments, **options):
    """What is found from START, one row: (probability, tokens), best first; and steps taken."""
    before = int(step.calls)
    rows = hypotheses(*beam_search(step, {}, 1, *arguments, **options))
    found = [(pytest.approx(math.exp(log_prob), abs=1e-6), tokens) for log_prob, tokens in rows[0]]
    return found, int(step.calls) - before


def found_by(step, *arguments, **options):
    return found_and_steps(step, *arguments, **TO_THE_END, **options)[0]


def test_the_best_beginning_is_not_the_best_end():
    step = Markov({START: {A: 0.5, B: 0.4, END: 0.1}, A: {END: 0.4, A: 0.6}, B: {END: 0.9, A: 0.1}})
    assert greedy_search(step, {}, 1, 2)[0].numpy().tolist() == [[A, A]]
    assert found_by(step, 2, 2, 0.0) == [(0.36, [B, END]), (0.3, [A, A])]
    # The last one was found at the first step already, and is still kept.
    expected = [(0.36, [B, END]), (0.3, [A, A]), (0.2, [A, END]), (0.1, [END])]
    assert found_by(step, 2, 4, 0.0) == expected


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


def test_ties():
    third = dict.fromkeys((END, A, B), 1 / 3)
    step = Markov({START: third, A: third, B: third})
    # The earlier beam, then the lower id; what has ended before what was cut.
    assert found_by(step, 2, 2, 0.0) == [(1 / 3, [END]), (1 / 9, [A, END])]
    expected = [[END], [A, END], [B, END], [A, A]]
    assert [tokens for _, tokens in found_by(step, 2, 4, 0.0)] == expected
    step = Markov({START: {A: 0.5, END: 0.5}, A: {END: 1.0}})
    assert found_by(step, 2, 2, 0.0) == [(0.5, [END]), (0.5, [A, END])]


HOW = {
    "max_length": st.integers(1, 7),
    "beam_size": st.integers(2, 5),
    "length_penalty": st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    "beam_patience": st.sampled_from([1.0, 1.5, 3.0, math.inf]),
    "length_norm": st.sampled_from(["gnmt", "length"]),
}
TOYS = {  # `blocked`: dead ends
    "seed": st.integers(0, 999),
    "end": st.sampled_from([0.0, 2.0]),
    "blocked": st.sampled_from([0.0, 0.1, 0.6]),
}


@given(st.fixed_dictionaries(HOW), st.fixed_dictionaries(TOYS), st.integers(0, 3))
def test_as_in_plain_python_and_each_row_as_alone(how, toy, width):
    step = Toy(4, 8, **toy)
    prefix = np.array([[6, 5, 7], [4, PAD, PAD], [PAD, PAD, PAD], [5, END, PAD]])
    prefix = prefix[:, : min(width, how["max_length"])]
    found = hypotheses(*beam_search(step, step.state, 4, **how, prefix=prefix))
    same(found, references(step, prefix, **how))
    row = toy["seed"] % 4
    alone = step.initial_state(tf.constant([row])), 1
    same(hypotheses(*beam_search(step, *alone, **how, prefix=prefix[[row]])), [found[row]])


@pytest.mark.parametrize("length_penalty, blocked", [(0.0, 0.3), (2.0, 0.0)])
def test_wide_enough_it_finds_what_there_is(length_penalty, blocked):
    # Without dead ends, 27 ways to go on for three steps, and a beam of 30; most ids cannot come.
    step = Toy(2, 32, 1, blocked=blocked)
    step.table[:, :, np.setdiff1d(np.arange(32), [END, 7, 19, 31])] = NEVER
    found = hypotheses(*beam_search(step, step.state, 2, 4, 30, length_penalty, **TO_THE_END))
    how = dict(length_penalty=length_penalty, length_norm="gnmt", **TO_THE_END)
    every = references(step, np.zeros((2, 0)), 1000, max_length=4, **how)  # none is dropped
    assert blocked or sum(log_prob > NEVER for log_prob, _ in every[0]) == 1 + 3 + 9 + 27 * 4
    same(found, [row[:30] for row in every])


# After two steps: ended with 0.5 and 0.3, alive with 0.2, of which each step leaves a quarter.
LOOP = Markov({START: {A: 0.5, END: 0.5}, A: {END: 0.6, B: 0.4}, B: {B: 0.25, END: 0.75}})


@pytest.mark.parametrize("length_penalty, steps", [(0.0, 2), (1.0, 8)])
def test_exact_search_stops_as_soon_as_nothing_can_change(length_penalty, steps):
    expected = [(0.5, [END]), (0.3, [A, END])]
    # log 0.3 / lp(2) = -1.03, and log(0.2 / 4^k) / lp(50) is less from k = 6 on.
    assert found_and_steps(LOOP, 50, 2, length_penalty, **TO_THE_END) == (expected, steps)


def test_patience_by_hand():
    # As the second step ends, two hypotheses have ended among the two best, with 0.5 and 0.3.
    expected = [(0.5, [END]), (0.3, [A, END])]
    assert found_and_steps(LOOP, 50, 2) == (expected, 2)
    # A third one ends with 0.15 a step later, and with α = 4 would be the best of all.
    assert found_and_steps(LOOP, 50, 2, 4.0) == (expected[::-1], 2)
    expected = [(0.15, [A, B, END]), (0.3, [A, END])]  # -0.600, -0.650, and of [END] -0.693
    assert found_and_steps(LOOP, 50, 2, 4.0, beam_patience=1.5) == (expected, 3)


@pytest.mark.parametrize("length_penalty, fixed_shapes", [(0.0, True), (1.0, False)])
def test_no_worse_than_greedy_where_words_are_long(length_penalty, fixed_shapes):
    """Two have ended after two steps, with 0.3 and 0.2; the word of A, at 0.5, is waited for."""
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


SEARCHES = {  # and whether XLA compiles it, which draws other numbers
    "greedy": (greedy_search, True),
    "sampling": (functools.partial(sample, top_k=1), False),
    "beam": (functools.partial(beam_search, beam_size=2), True),
    "exact beam": (functools.partial(beam_search, beam_size=3, **TO_THE_END), False),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_best_of_rows_with_dead_ends(name):
    table = {START: {A: 0.4, B: 0.3, C: 0.2, UNK: 0.1}, B: {END: 1.0}, C: {A: 0.9, D: 0.1}}
    step = Markov(table | {UNK: dict.fromkeys(range(8), math.nan)}, 8)
    rows = [
        ([PAD, PAD], (math.log(0.3), [B, END]) if "beam" in name else (NEVER, [])),
        ([B, PAD], (math.log(0.3), [B, END])),
        ([A, PAD], (NEVER, [])),
        ([C, PAD], (NEVER, [])),
        ([D, PAD], (NEVER, [])),  # a prefix of probability 0
        ([B, D], (NEVER, [])),  # one that goes on
        ([UNK, PAD], None),  # NaN: not lost, and only in this row
    ]
    prefix, (*expected, _) = zip(*rows, strict=True)
    method, by_xla = SEARCHES[name]
    decode = functools.partial(method, step, (), len(rows), 6, prefix=prefix)
    decode = tf.function(decode, jit_compile=by_xla, autograph=False)
    found = hypotheses(*decode(fixed_shapes=by_xla), may_be_nan=True)
    *best, (log_prob, tokens) = (row[0] for row in found)
    same([best], [expected])
    assert math.isnan(log_prob) and tokens[0] == UNK


def test_nan_of_what_cannot_be_reached():
    """Such as 0/0 in a table of probabilities: the beam is wider than what may follow."""
    nothing = dict.fromkeys(range(8), dict.fromkeys(range(8), math.nan))
    step = Markov(nothing | {START: {B: 1.0}, B: {END: 1.0}}, 8)
    found = hypotheses(*beam_search(step, {}, 1, 5, 4, **TO_THE_END))
    same(found, [[(0.0, [B, END]), *[(NEVER, [])] * 3]])


@pytest.mark.parametrize("beam_size", [1, 2])
def test_prefix_of_next_to_no_probability(beam_size):
    """As a float32, e^-200 is 0; its logarithm is not lost."""
    step = Markov({})
    step.logits = tf.constant([[0.0, 0.0, 0.0, 0.0, 0.0, 200.0]] * 6)
    found = hypotheses(*beam_search(step, {}, 1, 1, beam_size, prefix=[[A]]))
    assert found[0][0] == (pytest.approx(-200.0), [A])


@pytest.mark.parametrize("vocabulary_size", [400, 1099])
def test_best_logits_of_a_large_vocabulary(vocabulary_size):
    """As `tf.math.top_k` has them: also of equals, and where next to nothing is allowed."""
    random = np.random.default_rng(vocabulary_size)
    for levels in (3, 1000):
        logits = random.integers(0, levels, (12, vocabulary_size)).astype("float32")
        logits[3:6, : vocabulary_size // 2] = NEVER
        logits[6:9] = NEVER
        logits[7:9, random.integers(vocabulary_size)] = 1.0
        found, expected = beam._top_k(tf.constant(logits), 3), tf.math.top_k(logits, 3)
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


BEAM = SearchConfig(beam_size=4, length_penalty=0.0)


def test_each_method_is_reached():
    step = Toy(4, 8, 1, end=1.0)
    arguments = step, step.state, 4, 9
    prefix = np.array([[5, 6], [6, PAD], [PAD, PAD], [5, END]])
    sampling = SearchConfig(sample=True, temperature=0.8, top_k=5, top_p=0.9)
    options = dict(beam_size=3, **TO_THE_END)
    for config, expected in (
        (GREEDY, greedy_search(*arguments, prefix)),
        (BEAM, beam_search(*arguments, 4, 0.0, prefix)),
        (SearchConfig(**options), beam_search(*arguments, prefix=prefix, **options)),
        (sampling, sample(*arguments, 0.8, 5, 0.9, 1, prefix)),
    ):
        assert hypotheses(*search(*arguments, config, prefix)) == hypotheses(*expected)
    seeds = tf.constant([9, 8, 7, 6])
    found = search(*arguments, sampling, seeds=seeds)
    assert hypotheses(*found) == hypotheses(*sample(*arguments, 0.8, 5, 0.9, seeds))


def test_with_a_model_under_xla():
    options = {"suppress_ids": True, "share_embeddings": "target", "output_bias": True}
    translator = random_translator(seed=5, positions="relative", max_distance=2, **options)
    model, (sources, _) = translator.model, translator.read_source(tf.constant(SOURCES))
    prefix = np.full((len(SOURCES), 2), PAD)
    prefix[::2, 0] = sources[::2, 0]

    def decode(source, prefix, fixed_shapes):
        state = model.initial_state(source, MAX_LENGTH if fixed_shapes else None)
        arguments = len(source), MAX_LENGTH, BEAM, prefix
        step = model.make_step("xla" if fixed_shapes else "graph")
        return search(step, state, *arguments, fixed_shapes=fixed_shapes)

    compiled = tf.function(decode, jit_compile=True)(sources, prefix, True)
    assert compiled[0].shape[-1] == MAX_LENGTH
    found = hypotheses(*compiled)
    assert len({str(row[0][1]) for row in found}) > 2
    same(found, hypotheses(*decode(sources, prefix, False)))
    same(found[1:2], hypotheses(*decode(sources[1][sources[1] != PAD][None], prefix[1:2], False)))


def test_one_set_of_defaults():
    config = SearchConfig()
    assert (config.length_penalty, config.beam_patience) == (1.0, 1.0)
    for function in (beam_search, sample):
        for parameter in inspect.signature(function).parameters.values():
            if hasattr(config, parameter.name) and parameter.name != "beam_size":
                assert parameter.default == getattr(config, parameter.name)
    assert ExportConfig().search == dataclasses.replace(config, beam_size=5)
