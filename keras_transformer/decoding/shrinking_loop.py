"""The loop of every search: what has ended is left behind.

Shapes: B rows of the batch, A of them still in the loop, N beams of a row.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from keras_transformer.typing import Nested, State, Tensor


def shrinking_loop(
    running: Callable[[Nested], Tensor],
    advance: Callable[[Tensor, Tensor, Nested, State], tuple[Nested, State]],
    outputs: Nested,
    state: State,
    max_length: int | Tensor,
    beam_size: int = 1,
    fixed_shapes: bool = False,
) -> tuple[Nested, Tensor]:
    """Repeats a step until no row can change any more, or `max_length` times.

    Whenever half of the rows or more have ended, the loop goes on without them: else the longest
    row of a batch would cost as much as if all were as long.

    Args:
        running: Function from what `outputs` has become to booleans `(A,)`: whether a row can
            change. At first every row can.
        advance: Function from position (scalar), rows (int32 `(A,)`, their places in the batch),
            outputs and state to the next outputs and state. Rows must not depend on each other.
        outputs: Nested structure of tensors `(B, …)`: what the search returns. An axis of size 0
            grows with every step; what a row is short of when it ends is 0.
        state: Nested structure of tensors `(B·N, …)`, not returned; axes of size 0 grow likewise.
        max_length: Largest number of steps.
        beam_size: N.
        fixed_shapes: Whether all rows stay and no axis grows, as XLA demands.

    Returns:
        What `outputs` has become, tensors `(B, …)`, and the number of steps taken.
    """
    place = tf.TensorShape([])
    of_outputs, of_state = tf.nest.map_structure(_invariant, (outputs, state))
    shapes = None if fixed_shapes else (place, of_outputs, of_state)
    repeat = functools.partial(_repeat, running, advance, max_length, shapes)

    def shrink(position, rows, whole, outputs, state):
        position, outputs, state = repeat(rows, position, outputs, state)
        whole = tf.nest.map_structure(lambda old, new: _put(old, rows, new), whole, outputs)
        left = tf.where(running(outputs))  # (A, 1)
        beams = tf.reshape(left * beam_size + tf.range(beam_size, dtype=left.dtype), [-1])
        left = tf.reshape(left, [-1])
        rows, outputs = tf.nest.map_structure(
            lambda tensor: tf.gather(tensor, left), (rows, outputs)
        )
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, beams), state)
        return position, rows, whole, outputs, state

    rows = tf.range(tf.shape(tf.nest.flatten(outputs)[0])[0])
    if fixed_shapes:
        steps, outputs, _ = repeat(rows, tf.constant(0), outputs, state)
        return outputs, steps
    steps, _, outputs, _, _ = tf.while_loop(
        lambda position, rows, *_: (tf.size(rows) > 0) & (position < max_length),
        shrink,
        (tf.constant(0), rows, outputs, outputs, state),
        shape_invariants=(place, tf.TensorShape([None]), of_outputs, of_outputs, of_state),
        maximum_iterations=max_length,  # so that whoever reads the graph sees that it ends
    )
    return outputs, steps


def _repeat(running, advance, max_length, shapes, rows, position, outputs, state):
    """Takes steps while half of the rows can change; where shapes are fixed, while any can."""

    def go_on(position, outputs, state):
        left = tf.math.count_nonzero(running(outputs), dtype=tf.int32)
        enough = 2 * left > tf.size(rows) if shapes else left > 0
        return enough & (position < max_length)

    def body(position, outputs, state):
        return position + 1, *advance(position, rows, outputs, state)

    return tf.while_loop(go_on, body, (position, outputs, state), shape_invariants=shapes)


def _put(whole, rows, part):
    """`whole`, `(B, …)`, its axes grown to those of `part`, `(A, …)`, which some rows become."""
    growth = tf.shape(part)[1:] - tf.shape(whole)[1:]
    whole = tf.pad(whole, tf.pad(growth[:, tf.newaxis], [[1, 0], [1, 0]]))
    whole = tf.tensor_scatter_nd_update(whole, rows[:, tf.newaxis], part)
    return tf.ensure_shape(whole, [None, *part.shape[1:]])


def _invariant(tensor):
    """The shape that a tensor keeps through the loop."""
    return tf.TensorShape([None, *(None if size == 0 else size for size in tensor.shape[1:])])
