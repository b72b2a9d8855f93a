"""Sampling, at a temperature and from the head of the distribution (top-k, top-p).

Shapes: B batch, A rows of it that are still searched for, P tokens of the prefix, T number of steps
taken, V vocabulary, K kept by top-k.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding.token_loop import decode_tokens
from keras_transformer.presets import SearchConfig
from keras_transformer.typing import SearchOutputs, State, Step, Tensor


def sample(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    temperature: float | Tensor = SearchConfig.temperature,
    top_k: int | Tensor = SearchConfig.top_k,
    top_p: float | Tensor = SearchConfig.top_p,
    seed: int | Tensor = SearchConfig.seed,
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
) -> SearchOutputs:
    """Draws every token from what the model predicts.

    Top-p, "nucleus sampling", is Holtzman et al. (ICLR 2020), §3.1. `temperature`, `top_k`,
    `top_p` and `seed` are numbers, or tensors `(B,)` with one for each row.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: As `greedy_search` has them.
        temperature: Divides the logits. Towards 0 the most probable token always wins.
        top_k: Draw from the so many most probable tokens only; 0 for all. 1 is greedy search.
        top_p: Draw from the fewest most probable tokens that have at least this share, in (0, 1],
            of the probability that temperature and `top_k` leave.
        seed: With one number, rows draw independently of each other. With one for each row, what
            a row draws depends on its own seed only, not on the rows beside it. XLA makes other
            numbers of the same seed.

    Returns:
        `tokens`, int32 `(B, T)`; `lengths`, int32 `(B,)`; and `log_prob`, float32 `(B,)`, as
        `greedy_search` has them: by the model's own distribution, at temperature 1 and whole.

    Raises:
        ValueError: If a number is out of its range, or as `greedy_search` does.

    Example:

    >>> step, state = model.make_step(), model.initial_state(source)
    >>> tokens, lengths, log_prob = sample(step, state, len(source), 64, top_p=0.9)
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    numbers: dict[str, Any] = {k: v for k, v in given.items() if isinstance(v, (int, float))}
    SearchConfig(sample=True, **numbers)  # says what is out of range
    draws = _uniform(seed, batch_size, max_length)  # (B, max_length)

    def choose(logits, position, rows):
        scores, order = tf.math.top_k(logits, _width(top_k, logits.shape[-1]))  # (A, K)
        weights = tf.exp((scores - scores[:, :1]) / _column(temperature, tf.float32, rows))
        rank = tf.range(tf.shape(scores)[1])
        limit = _column(top_k, tf.int32, rows)
        kept = tf.cumsum(tf.where((rank < limit) | tf.equal(limit, 0), weights, 0.0), axis=-1)
        # The first rank up to which the share is reached, and the first beyond the draw.
        last = _count(kept < _column(top_p, tf.float32, rows) * kept[:, -1:])
        last = tf.minimum(last, tf.shape(scores)[1] - 1)
        total = tf.gather(kept, last, batch_dims=1)
        draw = tf.gather(draws[:, position], rows)
        drawn = _count(kept <= (draw * total)[:, tf.newaxis])
        drawn = tf.minimum(drawn, last)  # where rounding left the draw beyond all
        return tf.gather(order, drawn, batch_dims=1), order[:, 0]

    return decode_tokens(step, state, batch_size, max_length, choose, prefix, fixed_shapes)


def _uniform(seed, batch_size, max_length):
    """Numbers in [0, 1), `(B, max_length)`: all that is random, drawn before the first step."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape.rank == 0:
        return tf.random.stateless_uniform([batch_size, max_length], tf.stack([seed, 0]))
    # One seed more than there are rows: of an empty list, map_fn could not tell the shape.
    return tf.map_fn(
        lambda own: tf.random.stateless_uniform([max_length], tf.stack([own, 0])),
        tf.pad(seed, [[0, 1]]),
        fn_output_signature=tf.float32,
    )[:-1]


def _width(top_k, vocabulary_size):
    """Counts the sorted logits that can be drawn at all."""
    if not isinstance(top_k, int):  # a tensor: known only when it runs
        return vocabulary_size
    return min(top_k or vocabulary_size, vocabulary_size)


def _column(value, dtype, rows):
    """A number `(1, 1)`, or those of some rows `(A, 1)`."""
    value = tf.reshape(tf.cast(value, dtype), [-1, 1])
    return value if value.shape[0] == 1 else tf.gather(value, rows)


def _count(condition):
    return tf.reduce_sum(tf.cast(condition, tf.int32), axis=-1)
