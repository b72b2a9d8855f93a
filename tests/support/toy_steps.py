"""Step functions to search with, and searches in plain Python to compare with."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START

STATES = 997


class Toy:
    """Logits at random of the row and of all that was fed: states that grow, change and stay."""

    def __init__(self, rows, vocabulary_size, seed, end=0.0, blocked=0.0):
        """`blocked` is the share of logits that are -inf; as often, all logits of a step are."""
        random = np.random.default_rng(seed)
        table = random.normal(0, 2, (rows, STATES, vocabulary_size))
        table[:, :, END] += end
        if blocked:
            table[random.random(table.shape) < blocked] = -np.inf
            table[random.random(table.shape[:2]) < blocked] = -np.inf
        self.table = table.astype("float32")
        self.calls = tf.Variable(0)
        self.state = self.initial_state(tf.range(rows))

    def initial_state(self, rows):
        nothing = tf.zeros([tf.size(rows), 0], tf.int32)
        return {"row": rows, "fed": nothing, "code": tf.zeros_like(rows)}

    def __call__(self, ids, position, state):
        self.calls.assign_add(1)
        fed = tf.concat([state["fed"], ids[:, tf.newaxis]], axis=1)
        code = (31 * state["code"] + ids) % STATES
        place = (code + tf.reduce_sum(fed * (tf.range(position + 1) + 1), axis=1)) % STATES
        logits = tf.gather_nd(self.table, tf.stack([state["row"], place], axis=1))
        return logits, state | {"fed": fed, "code": code}

    def log_probs(self, row, tokens):
        """Log-probabilities of what follows, float64 `(V,)`."""
        fed, code = [START, *tokens], 0
        for token in fed:
            code = (31 * code + token) % STATES
        place = (code + sum(token * (i + 1) for i, token in enumerate(fed))) % STATES
        return log_softmax(self.table[row, place])


class Markov:
    """What follows depends on the token before only: probabilities as a dict of dicts."""

    def __init__(self, table, vocabulary_size=6):
        self.probabilities = np.zeros((vocabulary_size, vocabulary_size))
        for before, after in table.items():
            for token, probability in after.items():
                self.probabilities[before, token] = probability
        with np.errstate(divide="ignore"):
            self.logits = tf.constant(np.log(self.probabilities), tf.float32)
        self.calls = tf.Variable(0)

    def __call__(self, ids, position, state):
        self.calls.assign_add(1)
        return tf.gather(self.logits, ids), state


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    if logits.max() == -np.inf:  # nothing may follow
        return logits
    return logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()


def score(log_prob, length, length_penalty, length_norm="gnmt"):
    return log_prob / (length if length_norm == "length" else (5 + length) / 6) ** length_penalty


def reference_beam(
    log_probs, max_length, beam_size, length_penalty, beam_patience, length_norm, prefix
):
    """Beam search of one row, to the last step or until patience ends: (log_prob, tokens)."""
    alive, ended, count = [(0.0, [])], [], 0

    def rank(hypothesis):
        return -score(hypothesis[0], len(hypothesis[1]), length_penalty, length_norm)

    for position in range(max_length):
        candidates = []
        for log_prob, tokens in alive:
            for token, gain in enumerate(log_probs(tokens)):
                if gain > -np.inf and (position >= len(prefix) or token == prefix[position]):
                    candidates.append((log_prob + gain, [*tokens, token]))
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam_size]  # a stable sort
        ended = sorted(ended + [c for c in candidates if c[1][-1] == END], key=rank)[:beam_size]
        alive = [c for c in candidates if c[1][-1] != END][:beam_size]
        count += sum(tokens[-1] == END for _, tokens in candidates[:beam_size])
        ahead = alive and (not ended or rank(alive[0]) < rank(ended[0]))
        if count >= beam_patience * beam_size and not ahead:
            return ended
    return sorted(ended + alive, key=rank)[:beam_size]


def reference_greedy(log_probs, max_length, prefix=()):
    total, tokens = 0.0, []
    while len(tokens) < max_length and END not in tokens:
        gains, t = log_probs(tokens), len(tokens)
        tokens = [*tokens, int(prefix[t] if t < len(prefix) else np.argmax(gains))]
        total += gains[tokens[-1]]
        if total == -np.inf:
            return total, []
    return total, tokens


def references(step, prefix, beam_size, **how):
    rows = []
    for row in range(len(step.table)):
        follow, forced = functools.partial(step.log_probs, row), prefix[row][prefix[row] != PAD]
        found = reference_beam(follow, beam_size=beam_size, prefix=forced, **how)
        rows.append(found + [(-np.inf, [])] * (beam_size - len(found)))
    return rows


def hypotheses(tokens, lengths, log_prob, may_be_nan=False):
    """What a search has found, as lists for each row: (log_prob, tokens)."""
    tokens, lengths, log_prob = (np.asarray(tensor) for tensor in (tokens, lengths, log_prob))
    assert (tokens.dtype, lengths.dtype, log_prob.dtype) == ("int32", "int32", "float32")
    assert may_be_nan or not np.isnan(log_prob).any()
    if tokens.ndim == 2:  # one for each row
        tokens, lengths, log_prob = (x[:, np.newaxis] for x in (tokens, lengths, log_prob))
    rows = []
    for row in range(len(tokens)):
        rows.append([])
        for found, length, value in zip(tokens[row], lengths[row], log_prob[row], strict=True):
            assert (found[length:] == PAD).all(), "padded after its end"
            assert END not in found[: max(0, length - 1)], "nothing follows END"
            assert (value == -np.inf) == (length == 0)
            rows[-1].append((float(value), found[:length].tolist()))
    return rows


def same(found, expected):
    """Asserts equal tokens, and equal log-probabilities up to rounding."""
    assert [[h[1] for h in row] for row in found] == [[h[1] for h in row] for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        assert [h[0] for h in row] == pytest.approx([h[0] for h in wanted], abs=1e-4)
