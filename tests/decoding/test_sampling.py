"""Greedy search and sampling, and what every search is given."""

import functools
import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.decoding import beam_search, greedy_search, sample
from keras_transformer.special_ids import END, PAD, START
from tests.support.toy_steps import Markov, Toy, hypotheses, reference_greedy, same
from tests.support.toy_translator import random_translator

A, B = 4, 5


# float32 holds 1e4 + log 3 to about 1e-3.
PRECISIONS = [(0.0, "float32", 1e-5), (1e4, "float32", 6e-3), (0.0, "bfloat16", 3e-2)]


@pytest.mark.parametrize("offset, dtype, tolerance", PRECISIONS)
def test_by_hand(offset, dtype, tolerance):
    step = Markov({START: {A: 0.5, B: 0.3, END: 0.2}, A: {END: 0.6, B: 0.4}, B: {A: 0.7, B: 0.3}})
    step.logits = tf.cast(step.logits + offset, dtype)
    prefix = [[PAD, PAD], [B, PAD], [B, B], [A, B]]
    tokens, lengths, log_prob = greedy_search(step, {}, 4, 4, prefix)
    assert (tokens.dtype, lengths.dtype, log_prob.dtype) == (tf.int32, tf.int32, tf.float32)
    expected = [[A, END, PAD, PAD], [B, A, END, PAD], [B, B, A, END], [A, B, A, END]]
    assert tokens.numpy().tolist() == expected and lengths.numpy().tolist() == [2, 3, 4, 4]
    expected = [math.log(p) for p in (0.5 * 0.6, 0.3 * 0.7 * 0.6, 0.09 * 0.7 * 0.6, 0.2 * 0.42)]
    assert log_prob.numpy() == pytest.approx(expected, abs=tolerance)


@given(
    seed=st.integers(0, 999),
    end=st.sampled_from([0.0, 2.0]),
    blocked=st.sampled_from([0.0, 0.1, 0.6]),  # dead ends
    max_length=st.integers(1, 7),
    width=st.integers(0, 3),
)
def test_as_in_plain_python(max_length, width, **toy):
    step = Toy(4, 8, **toy)
    prefix = np.array([[6, 5, 7], [4, PAD, PAD], [PAD, PAD, PAD], [5, END, PAD]])
    prefix = prefix[:, : min(width, max_length)]
    rows = ((functools.partial(step.log_probs, i), row[row != PAD]) for i, row in enumerate(prefix))
    expected = [[reference_greedy(follow, max_length, forced)] for follow, forced in rows]
    for search in (greedy_search, functools.partial(sample, top_k=1)):
        same(hypotheses(*search(step, step.state, 4, max_length, prefix=prefix)), expected)


def test_rows_that_have_ended_are_left_behind_by_the_half():
    toy, fed = Toy(4, 8, 0), []
    lengths = [2, 4, 1, 6]  # then END is forced
    prefix = [[5] * (length - 1) + [END] + [PAD] * (6 - length) for length in lengths]

    def step(ids, position, state):
        fed.append((int(position), state["row"].numpy().tolist()))
        return toy(ids, position, state)

    assert greedy_search(step, toy.state, 4, 9, prefix)[1].numpy().tolist() == lengths
    assert fed == list(enumerate([[0, 1, 2, 3], [0, 1, 2, 3], [1, 3], [1, 3], [3], [3]]))
    assert toy.state["fed"].shape == (4, 0)  # the state that was passed is as it was


@pytest.mark.parametrize("compiled", [False, True])
def test_of_equals_the_lowest_id(compiled):
    """The best is there twice, alone and last, or everywhere; by two ways to find it."""
    logits = tf.constant([[0, 0, 0, 0, 9, 9], [0, 0, 0, 0, 0, 9], [7, 7, 7, 7, 7, 7]], tf.float32)

    def decode():
        return greedy_search(lambda *fed: (logits, ()), (), 3, 1, fixed_shapes=compiled)

    tokens, _, log_prob = tf.function(decode, jit_compile=compiled)()
    assert tokens.numpy().tolist() == [[4], [5], [0]]
    expected = [-math.log(2 + 4 * math.exp(-9)), -math.log(1 + 5 * math.exp(-9)), -math.log(6)]
    assert log_prob.numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["sampling", "beam"])
def test_in_a_graph_of_unknown_batch(name):
    step = Toy(5, 8, 0, end=2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def decode(rows):
        seeds = {"seed": tf.cast(rows, tf.int64)} if name == "sampling" else {}
        steps = tf.constant(9)
        return SEARCHES[name](step, step.initial_state(rows), tf.size(rows), steps, **seeds)

    for rows in ([0, 1, 2, 3, 4], [3], []):
        rows = tf.constant(rows, tf.int32)
        for found, expected in zip(decode(rows), decode.python_function(rows), strict=True):
            assert found.shape[0] == len(rows)
            np.testing.assert_allclose(found, expected, atol=1e-5)


FIRST = {END: 0.1, 4: 0.4, 5: 0.25, 6: 0.2, 7: 0.05}
# Ids by rank: 4, 5, 6, END, 7.
KEPT = [
    ({}, [4, 5, 6, END, 7]),
    ({"top_k": 3}, [4, 5, 6]),
    ({"top_k": 100}, [4, 5, 6, END, 7]),
    # The fewest with at least the share: 0.4 + 0.25 are enough for 0.65, but not for 0.66.
    ({"top_p": 0.649}, [4, 5]),
    ({"top_p": 0.651}, [4, 5, 6]),
    ({"top_p": 1e-6}, [4]),
    # Of what top_k leaves, 4 has 0.4 / 0.85 = 0.47 and both have 0.76.
    ({"top_k": 3, "top_p": 0.76}, [4, 5]),
    ({"top_k": 3, "top_p": 0.77}, [4, 5, 6]),
    ({"temperature": 2.0}, [4, 5, 6, END, 7]),
    # At half the temperature, squares: 0.16 / (0.16 + 0.0625 + …) = 0.58 of all.
    ({"temperature": 0.5, "top_p": 0.57}, [4]),
]
ROWS = 4000


def draw(rows=ROWS, **options):
    step = Markov({START: FIRST}, vocabulary_size=8)
    tokens, lengths, log_prob = sample(step, {}, rows, 1, **options)
    assert lengths.numpy().tolist() == [1] * rows
    return tokens[:, 0].numpy(), log_prob.numpy()


@pytest.mark.parametrize("per_row", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("options, kept", KEPT, ids=str)
def test_frequencies(options, kept, per_row):
    weights = np.array([FIRST[token] for token in kept])
    weights = weights ** (1 / options.get("temperature", 1.0))
    if per_row:
        options = {name: np.full(ROWS, value) for name, value in options.items()}
    ids, log_prob = draw(seed=7, **options)
    counts = [np.sum(ids == token) for token in kept]
    assert sum(counts) == ROWS, "only what is kept is drawn"
    if len(kept) > 1:
        assert scipy.stats.chisquare(counts, ROWS * weights / weights.sum()).pvalue > 1e-3
    # The model's own probability, whatever was done to it.
    assert log_prob == pytest.approx(np.log([FIRST[i] for i in ids]), abs=1e-5)


def test_options_of_each_row():
    options = {"temperature": [0.01, 1.0, 1.0, 5.0] * 500, "top_k": [0, 2, 0, 5] * 500}
    options |= {"top_p": [1.0, 1.0, 0.5, 1.0] * 500}
    ids, _ = draw(2000, **{name: tf.constant(values) for name, values in options.items()})
    seen = [set(ids[i::4].tolist()) for i in range(4)]
    assert seen == [{4}, {4, 5}, {4, 5}, {END, 4, 5, 6, 7}]
    # Also when others have ended.
    step = Markov({START: FIRST, 5: FIRST}, vocabulary_size=8)
    prefix, top_k = [[END]] * 100 + [[5]] * 100, tf.constant([0] * 100 + [1] * 100)
    tokens, _, _ = sample(step, {}, 200, 2, top_k=top_k, prefix=prefix)
    assert tokens.numpy().tolist() == [[END, PAD]] * 100 + [[5, 4]] * 100


def test_seed_of_each_row():
    step = Toy(1, 8, 3)
    seeds = tf.constant([5, 2**40 + 5, 5, 6], tf.int64)

    def decode(seeds):
        state = step.initial_state(tf.zeros_like(seeds, tf.int32))
        return hypotheses(*sample(step, state, len(seeds), 10, seed=seeds))

    together = decode(seeds)
    assert together[0] == together[2]
    assert together[0] != together[1] and together[0] != together[3]
    for i in range(4):
        assert decode(seeds[i : i + 1]) == [together[i]]
    one, again, other = (draw(200, seed=seed)[0].tolist() for seed in (0, 0, 1))
    assert one == again != other and len(set(one)) > 3, "rows of one seed draw independently"


def test_steps_draw_independently():
    step = Markov({i: {4: 0.5, 5: 0.5} for i in (START, 4, 5)})
    tokens = sample(step, {}, 1000, 3, seed=3)[0].numpy()
    assert len(np.unique(tokens, axis=0)) == 8
    assert np.mean((tokens[:, 0] == 4) & (tokens[:, 1] == 4)) == pytest.approx(0.25, abs=0.05)


SEARCHES = {"greedy": greedy_search, "sampling": sample}
SEARCHES["beam"] = functools.partial(beam_search, beam_size=2)
STEP = Toy(2, 8, 0)
OF_ANOTHER_RANK = {"step": lambda ids, *_: (tf.zeros([tf.size(ids), 1, 8]), ())}
SAMPLING, BEAM, EVERY = ["sampling"], ["beam"], list(SEARCHES)
MISTAKES = [
    (EVERY, {"max_length": tf.constant(0)}, "max_length must be at least 1, received 0"),
    (EVERY, {"batch_size": 3}, r"batch_size=3, …\), received shape \(2,\): create it for as"),
    (EVERY, {"prefix": [[5], [6], [7]]}, r"=2, .* received int32 of shape \(3, 1"),
    (EVERY, {"prefix": [[5.7], [6.0]]}, r"received float32 of shape \(2, 1\)."),
    (EVERY, {"prefix": tf.ragged.constant([[5], [6] * 6])}, "received int32 of shape .2, 6"),
    (EVERY, {"prefix": [[5], [-1]]}, "The prefix holds ids from -1 to 5, but the vocabulary"),
    (EVERY, {"prefix": [[8], [0]]}, "ids from 0 to 8, but the vocabulary has ids from 0 to 7"),
    (EVERY, OF_ANOTHER_RANK, r"\(B, V\), received shape \(\d, 1, 8\)"),
    (BEAM, {"beam_size": 9}, "A beam of 9 is wider than the vocabulary of 8 ids"),
    (SAMPLING, {"temperature": tf.constant([0.0, 1.0])}, "temperature must be .* received 0.0"),
    (SAMPLING, {"temperature": np.array([np.nan, 1.0])}, "temperature must be .* received nan"),
    (SAMPLING, {"top_k": tf.constant([5, -2])}, "top_k must be at least 0, received -2"),
    (SAMPLING, {"top_p": [[0.5], [0.0]]}, "top_p must be above 0 and at most 1, received 0.0"),
    (SAMPLING, {"top_p": [0.5] * 3}, r"top_p must be a number or .* received shape \(3,\)"),
    (SAMPLING, {"seed": [1, 2, 3]}, r"seed must be a number or of shape \(batch_size=2,\), rec"),
]


@pytest.mark.parametrize("names, wrong, message", MISTAKES)
def test_mistakes(names, wrong, message):
    loop = {"step": STEP, "state": STEP.state, "batch_size": 2, "max_length": 5} | wrong
    for name in names:
        search = functools.partial(SEARCHES[name], **loop)
        with pytest.raises(ValueError, match=message):
            search()
        if names is SAMPLING:  # constants are known in a graph
            with pytest.raises(ValueError, match=message):
                tf.function(lambda search: search(), autograph=False)(search)


@pytest.mark.parametrize("how", SEARCHES)
def test_arguments_of_other_types(how):
    step = Toy(2, 8, 0)

    def decode(rows, steps, prefix=((5, 0), (6, 7)), **state):
        found = SEARCHES[how](step, step.state | state, rows, steps, prefix=prefix)
        return [x.numpy().tolist() for x in found]

    expected = decode(2, 5)
    wide = functools.partial(tf.constant, dtype="int64")
    for sizes in ((wide(2), wide(5)), (tf.constant(2), wide(5)), (np.int64(2), np.int64(5))):
        assert decode(*sizes) == expected
    assert decode(2, 5, tf.ragged.constant([[5], [6, 7]]), positions=tf.zeros([2, 3])) == expected
    free = decode(2, 5, None)
    assert decode(2, 5, np.zeros((2, 0), int)) == decode(2, 5, np.zeros((2, 3), int)) == free


def test_a_state_with_too_little_room():
    model = random_translator().model
    state, step = model.initial_state(np.array([[5, 6, 7], [8, 9, 0]]), length=3), model.make_step()
    for search in SEARCHES.values():
        with pytest.raises(ValueError, match="has length=3, but max_length is 4"):
            search(step, state, 2, 4, fixed_shapes=True)
    assert greedy_search(step, state, 2, 3, fixed_shapes=True)[0].shape == (2, 3)
