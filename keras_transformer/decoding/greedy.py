"""Greedy search.

Shapes: B batch, P tokens of the prefix, T number of steps taken, V vocabulary.
"""

import tensorflow as tf

from keras_transformer.decoding.token_loop import decode_tokens
from keras_transformer.typing import SearchOutputs, State, Step, Tensor


def greedy_search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
) -> SearchOutputs:
    """Takes the most probable token, again and again, until every row has ended.

    Args:
        step: Function from ids `(B,)`, position (scalar) and state to logits `(B, V)` and the next
            state. It is fed START at position 0, and fewer rows as more and more have ended.
        state: The state at position 0, tensors `(B, …)`. One that grows starts with size 0 along
            that axis.
        batch_size: B, an int or a scalar integer tensor; 0 is fine.
        max_length: Largest number of steps, at least 1.
        prefix: int ids `(B, P)` that the rows begin with, padded with PAD; P ≤ `max_length`.
        fixed_shapes: Whether T is `max_length` however soon rows end, and the same in every step,
            as XLA demands; no state may grow then.

    Returns:
        `tokens`, int32 `(B, T)` with T ≤ `max_length`: each row up to and including its END, then
        PAD; `lengths`, int32 `(B,)`, END included; and `log_prob`, float32 `(B,)`: the sum of the
        tokens' natural-log probabilities, prefix and END included, not normalised by length.

    Raises:
        ValueError: If `max_length` is not positive, less than P, or more than the state has room
            for; if the state or the prefix has not B rows; or if the prefix holds what is no id.

    Example:

    >>> source = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    >>> state = model.initial_state(source)
    >>> tokens, lengths, log_prob = greedy_search(model.make_step(), state, len(source), 64)
    >>> tokenizer.detokenize(tokens).numpy().tolist()
    [b'1998-05-09']
    """

    def choose(logits, position, rows):
        if not fixed_shapes:
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return best, best
        # XLA's argmax goes from number to number; maximum and minimum take many at once.
        last = logits.shape[-1] - 1
        largest = tf.equal(logits, tf.reduce_max(logits, axis=-1, keepdims=True))
        best = tf.reduce_min(tf.where(largest, tf.range(last + 1), last), axis=-1)
        return best, best

    return decode_tokens(step, state, batch_size, max_length, choose, prefix, fixed_shapes)
