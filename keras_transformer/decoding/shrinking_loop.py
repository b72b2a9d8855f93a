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
    found: Nested,
    state: State,
    max_length: int | Tensor,
    beam_size: int = 1,
    fixed_shapes: bool = False,
) -> tuple[Nested, Tensor]:
    """Repeats a step until no row can change any more, or `max_length` times.

    Whenever half of the rows or more have ended, the loop goes on without them: else the longest
    row of a batch would cost as much as if all were as long.

    Args:
        running: Function from what `found` has become to booleans `(A,)`: whether a row can change.
            At first every row can.
        advance: Function from position (scalar), rows (int32 `(A,)`, their places in the batch),
            found and state to the next found and state. Rows must not depend on each other.
        found: Nested structure of tensors `(B, …)`: what the search returns. An axis of size 0
            grows with every step; what a row is short of when it ends is 0.
        state: Nested structure of tensors `(B·N, …)`, not returned; axes of size 0 grow likewise.
        max_length: Largest number of steps.
        beam_size: N.
        fixed_shapes: Whether all rows stay and no axis grows, as XLA demands.

    Returns:
        What `found` has become, tensors `(B, …)`, and the number of steps taken.
    """
    place = tf.TensorShape([])
    of_found, of_state = tf.nest.map_structure(_invariant, (found, state))
    shapes = None if fixed_shapes else (place, of_found, of_state)
    repeat = functools.partial(_repeat, running, advance, max_length, shapes)

    def shrink(position, rows, whole, found, state):
        position, found, state = repeat(rows, position, found, state)
        whole = tf.nest.map_structure(lambda old, new: _put(old, rows, new), whole, found)
        left = tf.where(running(found))  # (A, 1)
        beams = tf.reshape(left * beam_size + tf.range(beam_size, dtype=left.dtype), [-1])
        left = tf.reshape(left, [-1])
        rows, found = tf.nest.map_structure(lambda tensor: tf.gather(tensor, left), (rows, found))
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, beams), state)
        return position, rows, whole, found, state

    rows = tf.range(tf.shape(tf.nest.flatten(found)[0])[0])
    if fixed_shapes:
        steps, found, _ = repeat(rows, tf.constant(0), found, state)
        return found, steps
    steps, _, found, _, _ = tf.while_loop(
        lambda position, rows, *_: (tf.size(rows) > 0) & (position < max_length),
        shrink,
        (tf.constant(0), rows, found, found, state),
        shape_invariants=(place, tf.TensorShape([None]), of_found, of_found, of_state),
        maximum_iterations=max_length,  # so that whoever reads the graph sees that it ends
    )
    return found, steps


def _repeat(running, advance, max_length, shapes, rows, position, found, state):
    """Takes steps while half of the rows can change; where shapes are fixed, while any can."""

    def go_on(position, found, state):
        left = tf.math.count_nonzero(running(found), dtype=tf.int32)
        enough = 2 * left > tf.size(rows) if shapes else left > 0
        return enough & (position < max_length)

    def body(position, found, state):
        return position + 1, *advance(position, rows, found, state)

    return tf.while_loop(go_on, body, (position, found, state), shape_invariants=shapes)


def _put(whole, rows, part):
    """`whole`, `(B, …)`, its axes grown to those of `part`, `(A, …)`, which some rows become."""
    growth = tf.shape(part)[1:] - tf.shape(whole)[1:]
    whole = tf.pad(whole, tf.pad(growth[:, tf.newaxis], [[1, 0], [1, 0]]))
    whole = tf.tensor_scatter_nd_update(whole, rows[:, tf.newaxis], part)
    return tf.ensure_shape(whole, [None, *part.shape[1:]])


def _invariant(tensor):
    """The shape that a tensor keeps through the loop."""
    return tf.TensorShape([None, *(None if size == 0 else size for size in tensor.shape[1:])])
