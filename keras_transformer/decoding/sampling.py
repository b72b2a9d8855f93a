"""Greedy search and sampling: one hypothesis for each row, a token at a time.

Shapes: B batch, A rows of it that have not ended, P tokens of the prefix, T number of steps taken,
V vocabulary, K kept by top-k.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.token_loop import decode_tokens, read_arguments
from keras_transformer.presets import SearchConfig
from keras_transformer.utils import SearchOutputs, State, Step, Tensor


def greedy_search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
) -> SearchOutputs:
    """Chooses the most probable token at each position until every row has ended.

    Args:
        step: Function from ids `(B,)`, position (scalar) and state to logits `(B, V)` and the next
            state. It receives START at position 0, and fewer rows as more of them have ended.
        state: The state at position 0, tensors `(B, …)`. An axis that grows has size 0 at first.
        batch_size: B, an int or a scalar integer tensor; 0 is valid.
        max_length: Maximum number of steps, at least 1.
        prefix: int ids `(B, P)` that rows start with, padded with PAD or ragged; P ≤ `max_length`.
        fixed_shapes: Whether T is `max_length` in every step, however soon rows end, as XLA
            requires; the state must not grow then.

    Returns:
        `tokens`, int32 `(B, T)` with T ≤ `max_length`: each row up to and including its END, then
        PAD; `lengths`, int32 `(B,)`, END included; and `log_prob`, float32 `(B,)`: the sum of the
        tokens' natural-log probabilities, prefix and END included, not normalized by length. A row
        whose next token would have probability 0 (all logits of a step are -inf, or that of the
        prefix's token) has no hypothesis: all PAD, length 0, log_prob -inf. NaN logits make
        log_prob NaN.

    Raises:
        ValueError: If `max_length` is not positive, less than P, or more than the state has room
            for; if the state or the prefix does not have B rows; if an id of the prefix is invalid;
            or if `step` returns logits of another rank.

    Example:

    >>> source = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    >>> state = model.initial_state(source)
    >>> tokens, lengths, log_prob = greedy_search(model.make_step(), state, len(source), 64)
    >>> tokenizer.detokenize(tokens).numpy().tolist()
    [b'1998-05-09']
    """
    batch_size, max_length, prefix = read_arguments(state, batch_size, max_length, prefix)

    def choose(logits, position, rows):
        if not fixed_shapes:
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return best, best
        # XLA's argmax is not vectorized; maximum and minimum are.
        last = logits.shape[-1] - 1
        largest = tf.equal(logits, tf.reduce_max(logits, axis=-1, keepdims=True))
        best = tf.reduce_min(tf.where(largest, tf.range(last + 1), last), axis=-1)
        return best, best

    return decode_tokens(step, state, batch_size, max_length, choose, prefix, fixed_shapes)


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
    """Samples every token from the predicted distribution.

    Top-p, "nucleus sampling", is Holtzman et al. (ICLR 2020), §3.1. `temperature`, `top_k`,
    `top_p` and `seed` are numbers, or tensors `(B,)` with one for each row.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: See `greedy_search`.
        temperature: Divides the logits. Near 0, the most probable token is always chosen.
        top_k: Number of most probable tokens to sample from; 0 for all. 1 is greedy search.
        top_p: Sample from the fewest most probable tokens that have at least this share, in (0, 1],
            of the probability that remains after temperature and `top_k`.
        seed: With one number, rows are sampled independently of each other. With one for each row,
            the sample of a row depends on its own seed only, not on the other rows. Under XLA the
            same seed gives other numbers.

    Returns:
        `tokens`, int32 `(B, T)`; `lengths`, int32 `(B,)`; and `log_prob`, float32 `(B,)`, see
        `greedy_search`: by the model's full distribution at temperature 1.

    Raises:
        ValueError: If a number is out of range, or not one for each row; see also `greedy_search`.

    Example:

    >>> step, state = model.make_step(), model.initial_state(source)
    >>> tokens, lengths, log_prob = sample(step, state, len(source), 64, top_p=0.9)
    """
    batch_size, max_length, prefix = read_arguments(state, batch_size, max_length, prefix)
    for name, value in dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed).items():
        _check_option(name, value, batch_size)
    uniform = _random_uniform(seed, batch_size, max_length)  # (B, max_length)

    def choose(logits, position, rows):
        scores, order = tf.math.top_k(logits, _num_candidates(top_k, logits.shape[-1]))  # (A, K)
        weights = tf.exp((scores - scores[:, :1]) / _as_column(temperature, tf.float32, rows))
        rank = tf.range(tf.shape(scores)[1])
        limit = _as_column(top_k, tf.int32, rows)
        kept = tf.cumsum(tf.where((rank < limit) | tf.equal(limit, 0), weights, 0.0), axis=-1)
        # The first rank at which the share is reached, and the first beyond the draw.
        last = _count_true(kept < _as_column(top_p, tf.float32, rows) * kept[:, -1:])
        last = tf.minimum(last, tf.shape(scores)[1] - 1)
        total = tf.gather(kept, last, batch_dims=1)
        draw = tf.gather(uniform[:, position], rows)
        rank_index = _count_true(kept <= (draw * total)[:, tf.newaxis])
        rank_index = tf.minimum(rank_index, last)  # if rounding left the draw beyond all
        return tf.gather(order, rank_index, batch_dims=1), order[:, 0]

    return decode_tokens(step, state, batch_size, max_length, choose, prefix, fixed_shapes)


def _check_option(name, value, batch_size):
    """Checks a number, or one for each row, as far as it is known."""
    rows, shape = tf.get_static_value(batch_size), tf.TensorShape(np.shape(value))
    if shape.rank != 0 and not shape[:1].is_compatible_with([rows]):
        raise ValueError(
            f"{name} must be a number or of shape (batch_size={rows},), received shape {shape}."
        )
    known = tf.get_static_value(value)
    for number in [] if known is None or name == "seed" else np.unique(known).tolist():
        SearchConfig(sample=True, **{name: number})  # raises if it is out of range


def _random_uniform(seed, batch_size, max_length):
    """Draws all random numbers before the first step: `(B, max_length)` in [0, 1)."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape.rank == 0:
        return tf.random.stateless_uniform([batch_size, max_length], tf.stack([seed, 0]))
    # One more seed than rows: for an empty list, map_fn could not infer the shape.
    return tf.map_fn(
        lambda own: tf.random.stateless_uniform([max_length], tf.stack([own, 0])),
        tf.pad(seed, [[0, 1]]),
        fn_output_signature=tf.float32,
    )[:-1]


def _num_candidates(top_k, vocabulary_size):
    """Returns the number of sorted logits that can be sampled."""
    if not isinstance(top_k, int):  # a tensor, known only when the graph runs
        return vocabulary_size
    return min(top_k or vocabulary_size, vocabulary_size)


def _as_column(value, dtype, rows):
    """Returns a number as `(1, 1)`, or those of some rows as `(A, 1)`."""
    value = tf.reshape(tf.cast(value, dtype), [-1, 1])
    return value if value.shape[0] == 1 else tf.gather(value, rows)


def _count_true(condition):
    return tf.reduce_sum(tf.cast(condition, tf.int32), axis=-1)
