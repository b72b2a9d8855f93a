"""Greedy search: by hand on scripted probabilities, and against a loop without a cache."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import greedy_search
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.transformer import Transformer

A, B = 4, 5  # two ordinary tokens; the vocabulary has six

# At each position, the odds of one token against 1 for each of the other five: its probability is
# odds / (odds + 5). What a script says after its END must not matter.
SCRIPTS = [
    [(A, 3), (END, 5), (B, 7), (B, 7), (B, 7), (B, 7)],
    [(B, 3), (A, 5), (B, 3), (END, 7), (A, 9), (A, 9)],
    [(END, 15), (END, 5), (A, 3), (B, 3), (END, 3), (A, 3)],
    [(A, 3), (A, 3), (A, 5), (B, 5), (A, 7), (B, 7)],  # never ends
]
TOKENS = [[A, END], [B, A, B, END], [END], [A, A, A, B, A, B]]
PROBABILITIES = [
    [3 / 8, 5 / 10],
    [3 / 8, 5 / 10, 3 / 8, 7 / 12],
    [15 / 20],
    [3 / 8, 3 / 8, 5 / 10, 5 / 10, 7 / 12, 7 / 12],
]


class Scripted:
    """A step function that plays scripts, whatever it is fed; it remembers what that was."""

    def __init__(self, scripts, offset=0.0, dtype="float32"):
        logits = np.full((len(scripts), 6, 6), offset)
        for row, script in enumerate(scripts):
            for position, (token, odds) in enumerate(script):
                logits[row, position, token] += math.log(odds)
        self.logits = tf.constant(logits, dtype)
        self.calls = tf.Variable(0)
        # Grows by what was fed and where; "row" is carried along.
        self.state = {
            "fed": tf.zeros([len(scripts), 0], tf.int32),
            "deep": [tf.zeros([len(scripts), 3, 0, 2])],
            "row": tf.range(len(scripts)),
        }
        self.last_state = None
        self.rows = []  # of the steps, if they are taken eagerly

    def __call__(self, ids, position, state):
        self.calls.assign_add(1)
        if tf.executing_eagerly():
            self.rows.append(state["row"].numpy().tolist())
        # One past the last script is an error: no step may be taken there.
        logits = tf.gather(tf.gather(self.logits, state["row"]), position, axis=1)
        deep = tf.cast(tf.fill([tf.size(ids), 3, 1, 2], position), tf.float32)
        self.last_state = {
            "fed": tf.concat([state["fed"], ids[:, tf.newaxis]], axis=1),
            "deep": [tf.concat([state["deep"][0], deep], axis=2)],
            "row": state["row"],
        }
        return logits, self.last_state


def search(step, max_length=6):
    rows = step.state["row"].shape[0]
    tokens, lengths, log_prob = greedy_search(step, step.state, rows, max_length)
    assert (tokens.dtype, lengths.dtype, log_prob.dtype) == (tf.int32, tf.int32, tf.float32)
    return tokens.numpy().tolist(), lengths.numpy().tolist(), log_prob.numpy().tolist()


def padded(rows, length):
    return [row + [PAD] * (length - len(row)) for row in rows]


def logs(rows):
    return pytest.approx([sum(map(math.log, row)) for row in rows], abs=1e-5)


@pytest.mark.parametrize(
    ("offset", "dtype", "tolerance"),
    [
        (0.0, "float32", 1e-5),
        (1e4, "float32", 6e-3),  # float32 holds 1e4 + log 3 to about 1e-3; six steps
        (-300.0, "float32", 1e-4),
        *[(0.0, dtype, 3e-2) for dtype in ("float16", "bfloat16", "float64")],
    ],
)
def test_by_hand(offset, dtype, tolerance):
    tokens, lengths, log_prob = search(Scripted(SCRIPTS, offset, dtype))
    assert tokens == padded(TOKENS, 6)
    assert lengths == [2, 4, 1, 6]
    expected = [sum(map(math.log, row)) for row in PROBABILITIES]
    assert log_prob == pytest.approx(expected, abs=tolerance)


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


@pytest.mark.parametrize("rows, steps", [([0], 2), ([2], 1), ([0, 2], 2), ([2, 1, 0], 4), ([3], 6)])
def test_stops_when_every_row_has_ended(rows, steps):
    step = Scripted([SCRIPTS[row] for row in rows])
    tokens, lengths, log_prob = search(step)
    assert step.calls.numpy() == steps
    assert tokens == padded([TOKENS[row] for row in rows], steps)
    assert lengths == [len(TOKENS[row]) for row in rows]
    assert log_prob == logs([PROBABILITIES[row] for row in rows])


@pytest.mark.parametrize("max_length", [1, 2, 3, 5])
def test_cut_at_max_length(max_length):
    step = Scripted(SCRIPTS)
    tokens, lengths, log_prob = search(step, max_length)
    assert step.calls.numpy() == max_length
    assert tokens == padded([row[:max_length] for row in TOKENS], max_length)
    assert lengths == [min(len(row), max_length) for row in TOKENS]
    assert log_prob == logs([row[:max_length] for row in PROBABILITIES])
    again = greedy_search(step, step.state, tf.constant(4), tf.constant(max_length))
    assert again[0].numpy().tolist() == tokens


def test_what_is_fed():
    step = Scripted(SCRIPTS)
    search(step)
    # As soon as no more than half of the rows are running, the others are left behind.
    assert step.rows == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 3], [1, 3], [3], [3]]
    assert step.last_state["fed"].numpy().tolist() == [[START, *TOKENS[3][:5]]]
    deep = step.last_state["deep"][0].numpy()
    assert deep.shape == (1, 3, 6, 2)
    assert deep[0, 2, :, 1].tolist() == [0, 1, 2, 3, 4, 5]  # the positions, from 0
    assert step.state["fed"].shape == (4, 0)  # the state that was passed is as it was


def test_a_prefix_longer_than_other_rows():
    step = Scripted(SCRIPTS)
    prefix = [[PAD] * 5, [PAD] * 5, [PAD] * 5, [B, A, B, B, B]]
    tokens, _, _ = greedy_search(step, step.state, 4, 6, prefix)
    assert step.rows[2:] == [[1, 3], [1, 3], [3], [3]]
    assert tokens.numpy().tolist() == padded([*TOKENS[:3], [B, A, B, B, B, B]], 6)


def test_no_rows():
    step = Scripted(SCRIPTS[:0])
    assert search(step) == ([], [], [])
    tokens, lengths, log_prob = greedy_search(step, step.state, tf.constant(0), 6)
    assert (tokens.shape, lengths.shape, log_prob.shape) == ((0, 0), (0,), (0,))
    assert step.calls.numpy() == 0


def test_in_a_graph_of_unknown_batch():
    step, traces = Scripted(SCRIPTS), []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def decode(rows):
        traces.append(rows)
        state = {
            "fed": tf.zeros([tf.size(rows), 0], tf.int32),
            "deep": [tf.zeros([tf.size(rows), 3, 0, 2])],
            "row": rows,
        }
        return greedy_search(step, state, tf.size(rows), 6)

    for rows in ([0, 1, 2, 3], [2], [0, 2], [], [1] * 7):
        step.calls.assign(0)
        tokens, lengths, log_prob = decode(tf.constant(rows, tf.int32))
        steps = max((len(TOKENS[row]) for row in rows), default=0)
        assert step.calls.numpy() == steps
        assert tokens.shape == (len(rows), steps)
        assert tokens.numpy().tolist() == padded([TOKENS[row] for row in rows], steps)
        assert lengths.numpy().tolist() == [len(TOKENS[row]) for row in rows]
        assert log_prob.numpy().tolist() == logs([PROBABILITIES[row] for row in rows])
    assert len(traces) == 1


# With a model: the cache changes nothing.

SOURCE = np.array(
    [
        [5, 6, 7, 8, 9, END],
        [9, 4, END, PAD, PAD, PAD],
        [7, 7, 7, END, PAD, PAD],
        [END, PAD, PAD, PAD, PAD, PAD],
        [4, 5, 4, 5, 4, END],
        [10, END, PAD, PAD, PAD, PAD],
    ]
)


@pytest.fixture(scope="module", params=[("post", 25, 0.1), ("pre", 5, 0.5)], ids=["post", "pre"])
def model(request):
    """A model with weights at random, of which the seeds give sentences of several lengths."""
    norm, seed, scale_of_embeddings = request.param
    positions = "sinusoidal" if norm == "post" else "learned"
    sizes = dict(num_layers=2, d_model=16, num_heads=2, d_ff=32, max_length=9)
    model = Transformer(11, 10, norm=norm, positions=positions, **sizes)
    model.build()
    generator = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        if weight.name not in ("gamma", "beta"):
            scale = scale_of_embeddings if "embeddings" in weight.name else 0.5
            weight.assign(generator.normal(0, scale, weight.shape))
    return model


def argmax_loop(model, source, max_length):
    """Decodes one sentence: the whole prefix, anew for every token."""
    memory, target, log_prob = model.encode(source), [START], 0.0
    while len(target) <= max_length and target[-1] != END:
        logits = keras.ops.convert_to_numpy(model.decode(np.array([target]), memory, source))
        scores = logits[0, -1].astype("float64")
        target.append(int(scores.argmax()))
        log_prob += scores.max() - np.log(np.sum(np.exp(scores)))
    return target[1:], log_prob


def test_model_step_by_step_is_model_at_once(model):
    tokens, lengths, log_prob = greedy_search(model.step, model.initial_state(SOURCE), 6, 9)
    assert len(set(lengths.numpy().tolist())) >= 3, "rows should end at different steps"
    for i, row in enumerate(SOURCE):
        for source in (row[np.newaxis], row[np.newaxis, row != PAD]):  # padding changes nothing
            expected, expected_log_prob = argmax_loop(model, source, 9)
            assert tokens[i].numpy().tolist() == padded([expected], tokens.shape[1])[0]
            assert int(lengths[i]) == len(expected)
            assert float(log_prob[i]) == pytest.approx(expected_log_prob, abs=1e-4)
