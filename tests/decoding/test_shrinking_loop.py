"""The loop of every search, on numbers that count down."""

import pytest
import tensorflow as tf

from keras_transformer.decoding.sampling import shrinking_loop


def count_down(starts, max_length=10, beam_size=1, fixed_shapes=False):
    """Counts each row down to 0 and writes down what is left; the state knows the row and beam.

    Returns left, written and steps, and of steps taken eagerly their rows and positions.
    """
    seen, positions = [], []

    def advance(position, rows, found, state):
        left, written = found
        if tf.executing_eagerly():
            seen.append(rows.numpy().tolist())
            positions.append(int(position))
        # The state has come along with its rows, all beams of them.
        expected = rows[:, tf.newaxis] * beam_size + tf.range(beam_size)
        tf.debugging.assert_equal(state["beam"], tf.reshape(expected, [-1]))
        left -= tf.cast(left > 0, tf.int32)
        if fixed_shapes:
            return (left, written + 1), state
        state = {"beam": state["beam"], "seen": tf.pad(state["seen"], [[0, 0], [0, 1], [0, 0]])}
        return (left, tf.concat([written, left[:, tf.newaxis]], axis=1)), state

    starts = tf.convert_to_tensor(starts, tf.int32)
    beams = tf.size(starts) * beam_size
    state = {"beam": tf.range(beams)}
    if not fixed_shapes:
        state["seen"] = tf.zeros([beams, 0, 3])
    written = tf.zeros([tf.size(starts), 1 if fixed_shapes else 0], tf.int32)
    (left, written), steps = shrinking_loop(
        lambda found: found[0] > 0,
        advance,
        (starts, written),
        state,
        max_length,
        beam_size,
        fixed_shapes,
    )
    return left, written, steps, seen, positions


@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_that_have_ended_are_left_behind_by_the_half(beam_size):
    left, written, steps, rows, positions = count_down([1, 4, 2, 1, 6, 2], 5, beam_size)
    assert rows == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [1, 4], [1, 4], [4]]
    assert positions == [0, 1, 2, 3, 4] and steps == 5
    assert left.numpy().tolist() == [0, 0, 0, 0, 1, 0]
    assert written.numpy().tolist() == [
        [0, 0, 0, 0, 0],
        [3, 2, 1, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [5, 4, 3, 2, 1],
        [1, 0, 0, 0, 0],
    ]


def test_in_a_graph_of_unknown_size():
    graph = tf.function(
        lambda starts: count_down(starts)[:3],
        input_signature=[tf.TensorSpec([None], tf.int32)],
    )
    for starts in ([3, 1, 7, 1], [5], []):
        for found, expected in zip(graph(starts), count_down(starts), strict=False):
            assert found.numpy().tolist() == expected.numpy().tolist()
    assert [x.shape.as_list() for x in graph.get_concrete_function().outputs] == [
        [None],
        [None, None],
        [],
    ]


def test_fixed_shapes_keep_all_rows():
    left, written, steps, rows, _ = count_down([1, 4, 2], fixed_shapes=True)
    assert rows == [[0, 1, 2]] * 4 and steps == 4
    assert left.numpy().tolist() == [0, 0, 0] and written.numpy().tolist() == [[4]] * 3
