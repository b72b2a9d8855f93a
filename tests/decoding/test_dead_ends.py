"""Hypotheses for which nothing may follow: as in plain Python, in each way to run a search."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beam_search, greedy_search, sample
from keras_transformer.special_ids import END, PAD, START, UNK
from tests.support.toy_steps import Toy, exhaustive, hypotheses, reference_greedy, references, same

A, B, C, D = 4, 5, 6, 7
NAN, NEVER = float("nan"), float("-inf")
SEARCHES = {
    "greedy": greedy_search,
    "sampling": functools.partial(sample, top_k=1),  # XLA draws other numbers
    "one beam": functools.partial(beam_search, beam_size=1),
    "beam": functools.partial(beam_search, beam_size=2),
    "exact beam": functools.partial(beam_search, beam_size=3, beam_patience=math.inf),
}
every_mode = pytest.mark.parametrize("mode", ["eager", "graph", "XLA"])


def found_by(search, step, prefix, max_length, mode="eager", **options):
    """What a search finds, for each row: (log_prob, tokens), best first."""

    def decode():
        arguments = step, (), len(prefix), max_length
        return search(*arguments, prefix=prefix, fixed_shapes=mode == "XLA", **options)

    if mode != "eager":
        decode = tf.function(decode, jit_compile=mode == "XLA", autograph=False)
    tokens, lengths, log_prob = (x.numpy() for x in decode())
    if tokens.ndim == 2:
        tokens, lengths, log_prob = (x[:, np.newaxis] for x in (tokens, lengths, log_prob))
    assert (tokens[np.arange(tokens.shape[2]) >= lengths[..., np.newaxis]] == PAD).all()
    return [
        [(value, ids[:length].tolist()) for value, ids, length in zip(*row, strict=True)]
        for row in zip(log_prob.tolist(), tokens, lengths, strict=True)
    ]


def equal(log_prob):
    return pytest.approx(log_prob, abs=1e-5)


def odds(**probabilities):
    """Logits with the probabilities of tokens by their names, -inf for all others."""
    logits = np.full(8, NEVER)
    for name, probability in probabilities.items():
        logits[globals()[name]] = math.log(probability)
    return logits


def by_last_token(logits):
    """A step whose logits depend on the last token; where none are given, nothing may follow."""
    table = np.full((8, 8), NEVER, "float32")
    for token, row in logits.items():
        table[token] = row
    return lambda ids, position, state: (tf.gather(table, ids), state)


@every_mode
def test_a_dead_hypothesis_leaves_the_beam(mode):
    """The best beginning, A, leads nowhere."""
    step = by_last_token(
        {START: odds(A=0.5, B=0.3, C=0.2), B: odds(END=0.6, C=0.4), C: odds(END=1.0)}
    )
    options = {"beam_size": 2, "beam_patience": math.inf, "length_penalty": 0.0}
    first, second = found_by(beam_search, step, [[PAD], [C]], 9, mode, **options)
    assert first == [(equal(math.log(0.18)), [B, END]), (equal(math.log(0.12)), [B, C, END])]
    assert second == [(equal(math.log(0.2)), [C, END]), (NEVER, [])]


@every_mode
@pytest.mark.parametrize("name", SEARCHES)
def test_the_best_of_rows_with_dead_ends(name, mode):
    step = by_last_token(
        {
            START: odds(A=0.4, B=0.3, C=0.2, UNK=0.1),
            B: odds(END=1.0),
            C: odds(A=0.9, D=0.1),
            UNK: np.full(8, NAN),
        }
    )
    several = name in ("beam", "exact beam")
    rows = {
        "all": ([PAD, PAD], (math.log(0.3), [B, END]) if several else (NEVER, [])),
        "an end": ([B, PAD], (math.log(0.3), [B, END])),
        "a dead end": ([A, PAD], (NEVER, [])),
        "soon a dead end": ([C, PAD], (NEVER, [])),
        "a prefix of probability 0": ([D, PAD], (NEVER, [])),
        "one that goes on": ([B, D], (NEVER, [])),
        "NaN": ([UNK, PAD], (NAN, None)),  # not lost, and only in this row
    }
    found = found_by(SEARCHES[name], step, [prefix for prefix, _ in rows.values()], 6, mode)
    for (what, (_, expected)), ((log_prob, tokens), *_) in zip(rows.items(), found, strict=True):
        if what == "NaN":
            assert math.isnan(log_prob) and tokens[0] == UNK
        else:
            assert (log_prob, tokens) == (equal(expected[0]), expected[1]), what


def test_a_dead_end_at_the_last_step_is_not_reached():
    step = by_last_token({START: odds(A=0.9, B=0.1)})
    for name, search in SEARCHES.items():
        assert found_by(search, step, [[PAD]], 1)[0][0] == (equal(math.log(0.9)), [A]), name
        assert found_by(search, step, [[PAD]], 2)[0][0] == (NEVER, []), name


def test_nan_of_what_cannot_be_reached():
    """Such as 0/0 in a table of probabilities: the beam is wider than what may follow."""
    nothing = dict.fromkeys(range(8), np.full(8, NAN))
    step = by_last_token(nothing | {START: odds(B=1.0), B: odds(END=1.0)})
    (found,) = found_by(beam_search, step, [[PAD]], 5, beam_size=4, beam_patience=math.inf)
    assert found == [(0.0, [B, END]), *[(NEVER, [])] * 3]


@pytest.mark.parametrize("seed", range(6))
def test_as_in_plain_python(seed):
    """Many dead ends: as brute force finds, and each row as alone."""
    random = np.random.default_rng(seed)
    step = Toy(5, 8, seed, end=random.choice([0.0, 2.0]), blocked=random.choice([0.1, 0.3, 0.6]))
    how = 7, int(random.choice([2, 4])), random.choice([0.0, 1.0])
    options = {"length_norm": random.choice(["gnmt", "length"])}
    for beam_patience in (1.0, math.inf):
        options["beam_patience"] = beam_patience
        found = hypotheses(*beam_search(step, step.state, 5, *how, **options))
        same(found, references(step, *how, **options))
    alone = step.initial_state(tf.constant([3]))
    same(hypotheses(*beam_search(step, alone, 1, *how, **options)), found[3:4])
    greedy = [[reference_greedy(functools.partial(step.log_probs, row), 7)] for row in range(5)]
    for search in (greedy_search, SEARCHES["sampling"]):
        outputs = search(step, step.state, 5, 7)
        same(hypotheses(*(x[:, tf.newaxis] for x in outputs)), greedy)
    # Wide enough to find all there is: 8 unfinished ones after three steps.
    step = Toy(3, 8, seed, allowed=[END, A, B], blocked=0.3)
    found = hypotheses(*beam_search(step, step.state, 3, 4, 8, 0.0, beam_patience=math.inf))
    every = [exhaustive(functools.partial(step.log_probs, row), 4, 0.0) for row in range(3)]
    same(found, [(row + [(NEVER, [])] * 8)[:8] for row in every])
