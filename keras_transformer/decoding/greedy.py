"""Greedy search.

Shapes: B batch, T number of steps taken, V vocabulary.
"""

import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START


def greedy_search(step, state, batch_size, max_length):
    """Takes the most probable token, again and again, until every row has ended.

    Args:
        step: Function from ids `(B,)`, position (scalar) and state to logits `(B, V)` and the next
            state. It is fed START at position 0.
        state: The state at position 0. A tensor that grows starts with size 0 along that axis.
        batch_size: B, an int or a scalar integer tensor; 0 is fine.
        max_length: Largest number of steps, at least 1.

    Returns:
        `tokens`, int32 `(B, T)` with T ≤ `max_length`: each row up to and including its END, then
        PAD; `lengths`, int32 `(B,)`, END included; and `log_prob`, float32 `(B,)`: the sum of the
        tokens' natural-log probabilities, END included, not normalised by length.

    Raises:
        ValueError: If `max_length` is not positive.
    """
    if not tf.is_tensor(max_length) and max_length < 1:
        raise ValueError(f"max_length must be at least 1, received {max_length}.")

    def unfinished(position, ids, ended, lengths, log_prob, tokens, state):
        return tf.logical_not(tf.reduce_all(ended))

    def advance(position, ids, ended, lengths, log_prob, tokens, state):
        logits, state = step(ids, position, state)
        logits = tf.cast(logits, tf.float32)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (B,)
        gain = tf.reduce_max(logits, axis=-1) - tf.reduce_logsumexp(logits, axis=-1)
        ids = tf.where(ended, PAD, best)
        log_prob += tf.where(ended, 0.0, gain)
        lengths += tf.cast(tf.logical_not(ended), tf.int32)
        ended |= tf.equal(ids, END)
        tokens = tf.concat([tokens, ids[:, tf.newaxis]], axis=1)
        return position + 1, ids, ended, lengths, log_prob, tokens, state

    start = (
        tf.constant(0),
        tf.fill([batch_size], START),
        tf.fill([batch_size], False),
        tf.zeros([batch_size], tf.int32),
        tf.zeros([batch_size], tf.float32),
        tf.zeros([batch_size, 0], tf.int32),
        state,
    )
    _, _, _, lengths, log_prob, tokens, _ = tf.while_loop(
        unfinished,
        advance,
        start,
        shape_invariants=tf.nest.map_structure(loop_invariant, start),
        maximum_iterations=max_length,
    )
    return tokens, lengths, log_prob


def loop_invariant(tensor):
    """The shape that a tensor keeps through the loop: an axis of size 0 is one that grows."""
    return tf.TensorShape([None if size == 0 else size for size in tensor.shape])
