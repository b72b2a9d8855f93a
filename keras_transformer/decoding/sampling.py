"""Greedy search and sampling, and what all searches share: their arguments and loops.

Shapes: B batch, A rows of it that have not ended, N beams of a row, P tokens of the prefix,
T number of steps taken, V vocabulary, K kept by top-k.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.logits_processors import NEVER, LogitsProcessor, apply
from keras_transformer.decoding.prefix import Prefix, begin, growing_shapes
from keras_transformer.presets import SearchConfig
from keras_transformer.special_ids import END, PAD
from keras_transformer.utils import Nested, SearchOutputs, State, Step, Tensor


def greedy_search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
    logits_processors: Sequence[LogitsProcessor] = (),
) -> SearchOutputs:
    """Chooses the most probable token at each position until every row has ended.

    Args:
        step: Function from ids `(B,)`, position (scalar) and state to logits `(B, V)` and the next
            state. It receives START at position 0, and fewer rows as more of them have ended. With
            the attribute `takes_several`, it also maps ids `(B, P)`, of a prefix, to `(B, P, V)`.
        state: The state at position 0, tensors `(B, …)`. An axis that grows has size 0 at first.
        batch_size: B, an int or a scalar integer tensor; 0 is valid.
        max_length: Maximum number of steps, at least 1.
        prefix: int ids `(B, P)` that rows start with, padded with PAD or ragged; P ≤ `max_length`.
        fixed_shapes: Whether T is `max_length` in every step, however soon rows end, as XLA
            requires; the state must not grow then.
        logits_processors: Functions from logits, float32 `(B, V)`, the tokens so far, int32
            `(B, t)`, and position, a scalar, to logits from which a token is chosen: -inf for what
            may not follow. The ids of a prefix are not chosen.

    Returns:
        `tokens`, int32 `(B, T)` with T ≤ `max_length`: each row up to and including its END, then
        PAD; `lengths`, int32 `(B,)`, END included; and `log_prob`, float32 `(B,)`: the sum of the
        tokens' natural-log probabilities, prefix and END included, not normalized by length, and
        without what `logits_processors` change. A row whose next token would have probability 0
        (all logits of a step are -inf, or that of the prefix's token) has no hypothesis: all PAD,
        length 0, log_prob -inf. NaN logits make log_prob NaN.

    Raises:
        ValueError: If `max_length` is not positive, less than P, or more than the state has room
            for; if the state or the prefix does not have B rows; if an id of the prefix is invalid;
            or if `step` or a processor returns logits of another shape.

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

    how = prefix, fixed_shapes, logits_processors
    return _decode_tokens(step, state, batch_size, max_length, choose, *how)


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
    logits_processors: Sequence[LogitsProcessor] = (),
) -> SearchOutputs:
    """Samples every token from the predicted distribution.

    Top-p, "nucleus sampling", is Holtzman et al. (ICLR 2020), §3.1. The following arguments are
    numbers, or tensors `(B,)` with one for each row; for the others, see `greedy_search`.

    Args:
        temperature: Divides the logits. Near 0, the most probable token is always chosen.
        top_k: Number of most probable tokens to sample from; 0 for all. 1 is greedy search.
        top_p: Sample from the fewest most probable tokens that have at least this share, in (0, 1],
            of the probability that remains after temperature and `top_k`.
        seed: With one number, rows are sampled independently of each other. With one for each row,
            a sample depends on its own seed only. Under XLA the same seed gives other numbers.

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

    how = prefix, fixed_shapes, logits_processors
    return _decode_tokens(step, state, batch_size, max_length, choose, *how)


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


class Tokens(NamedTuple):
    """The tokens decoded so far."""

    last: tf.Tensor  # int32 (B,), the latest token
    ended: tf.Tensor  # bool (B,)
    tokens: tf.Tensor  # int32 (B, t)
    lengths: tf.Tensor  # int32 (B,)
    log_prob: tf.Tensor  # float32 (B,)


def _decode_tokens(step, state, batch_size, max_length, choose, prefix, fixed_shapes, processors):
    """Appends tokens to every row until all have ended: returns what `greedy_search` does.

    `choose` is a function from logits, float32 `(A, V)`, position (scalar) and the indices of their
    rows, int32 `(A,)`, to the ids of the next tokens and of the most probable ones, int32 `(A,)`
    each. The other arguments are those that `read_arguments` returns.
    """

    def advance(position, rows, outputs, state):
        logits, state = step(outputs.last, position, state)
        logits = read_logits(logits)
        scores = apply(processors, logits, outputs.tokens, position) if processors else logits
        chosen, best = choose(scores, position, rows)
        chosen_logits = tf.gather(logits, chosen, batch_dims=1)
        if processors:
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            score = tf.gather(scores, chosen, batch_dims=1)
            chosen_logits = tf.where(score > NEVER, chosen_logits, score)  # it may be NaN
        if prefix:
            required = tf.gather(prefix.required(position, logits.shape[-1]), rows)
            is_free = tf.equal(required, PAD)
            chosen = tf.where(is_free, chosen, required)
            required_logits = tf.gather(logits, chosen, batch_dims=1)
            chosen_logits = tf.where(is_free, chosen_logits, required_logits)
        gain = chosen_logits - logsumexp(logits, best, fixed_shapes)
        last = tf.where(outputs.ended, PAD, chosen)
        outputs = Tokens(
            last,
            outputs.ended | tf.equal(last, END) | tf.equal(gain, NEVER),
            append(outputs.tokens, last, position if fixed_shapes else None),
            outputs.lengths + tf.cast(~outputs.ended, tf.int32),
            outputs.log_prob + tf.where(outputs.ended, 0.0, gain),
        )
        return outputs, state

    arguments = step, state, batch_size, max_length, prefix, fixed_shapes
    last, tokens, log_prob, state = begin(*arguments)
    start = tf.shape(tokens)[1]
    if fixed_shapes:
        tokens = tf.fill([batch_size, max_length], PAD)
    ended = tf.equal(log_prob, NEVER)
    outputs = Tokens(last, ended, tokens, tf.fill([batch_size], start), log_prob)
    how = {"start": start, "fixed_shapes": fixed_shapes}
    outputs, _ = shrinking_loop(
        lambda outputs: ~outputs.ended, advance, outputs, state, max_length, **how
    )
    # Such a row has no hypothesis.
    never = tf.equal(outputs.log_prob, NEVER)
    tokens = tf.where(never[:, tf.newaxis], PAD, outputs.tokens)
    return tokens, tf.where(never, 0, outputs.lengths), outputs.log_prob


def read_logits(logits: Tensor) -> Tensor:
    """Returns the logits of a step as float32 `(B, V)`."""
    logits = tf.cast(logits, tf.float32)
    if logits.shape.rank != 2:
        raise ValueError(f"A step must return logits (B, V), received shape {logits.shape}.")
    return logits


def logsumexp(logits: Tensor, best: Tensor, compiled: bool) -> Tensor:
    """Computes `log Σ exp` of logits `(B, V)` in as few passes as TensorFlow or XLA need.

    `best`, int32 `(B,)`, are the ids of the largest logits. If all are -inf, the result is 0, so
    that nothing may follow: each logit minus 0 is -inf, and not NaN.
    """
    largest = tf.gather(logits, best, batch_dims=1)
    if compiled:
        total = tf.reduce_logsumexp(logits, axis=-1)
    else:
        # The largest probability is never 0, so its logarithm is finite.
        total = largest - tf.math.log(tf.gather(tf.nn.softmax(logits), best, batch_dims=1))
    return tf.where(tf.equal(largest, NEVER), 0.0, total)


def append(tokens: Tensor, ids: Tensor, place: int | Tensor | None = None) -> Tensor:
    """Adds `ids` `(...)` to `tokens` `(..., T)`: at the end, or at an existing place."""
    ids = ids[..., tf.newaxis]
    if place is None:
        return tf.concat([tokens, ids], axis=-1)
    return tf.where(tf.equal(tf.range(tf.shape(tokens)[-1]), place), ids, tokens)


def read_arguments(
    state: State, batch_size: int | Tensor, max_length: int | Tensor, prefix: Tensor | None
) -> tuple[int | Tensor, int | Tensor, Prefix | None]:
    """Checks arguments of `greedy_search`; returns the sizes, tensors as int32, and the prefix.

    Eagerly, their values are known; while a graph is traced, shapes, ints and constants are.
    Nothing is checked in a running graph: on a server, an error would be of no use.
    """
    rows, steps = tf.get_static_value(batch_size), tf.get_static_value(max_length)
    if steps is not None and steps < 1:
        raise ValueError(f"max_length must be at least 1, received {steps}.")
    for tensor in tf.nest.flatten(state):
        shape = tf.TensorShape(np.shape(tensor))
        if not shape[:1].is_compatible_with([rows]):
            raise ValueError(
                f"The state must hold tensors of shape (batch_size={rows}, …), received shape "
                f"{shape}: create it for as many rows, or pass () if the step needs no state."
            )
    if isinstance(state, dict) and "past_positions" in state:
        room = state["past_positions"].shape[1]
        if None not in (room, steps) and room < steps:
            raise ValueError(f"The state has length={room}, but max_length is {steps}.")
    if prefix is not None:
        ragged = isinstance(prefix, tf.RaggedTensor)
        prefix = prefix.to_tensor() if ragged else tf.convert_to_tensor(prefix)
        shape, is_integer = prefix.shape, prefix.dtype.is_integer or prefix.shape[-1:] == [0]
        fits = shape.is_compatible_with([rows, None]) and (shape[1] or 0) <= (steps or math.inf)
        if not fits or not is_integer:
            raise ValueError(
                f"The prefix must be integer ids of shape (batch_size={rows}, at most max_length="
                f"{steps}), received {prefix.dtype.name} of shape {shape}."
            )
        prefix = Prefix(prefix)
    batch_size, max_length = (
        tf.cast(x, tf.int32) if tf.is_tensor(x) else x for x in (batch_size, max_length)
    )
    return batch_size, max_length, prefix


def shrinking_loop(
    running: Callable[[Nested], Tensor],
    advance: Callable[[Tensor, Tensor, Nested, State], tuple[Nested, State]],
    outputs: Nested,
    state: State,
    max_length: int | Tensor,
    beam_size: int = 1,
    fixed_shapes: bool = False,
    start: int | Tensor = 0,
) -> tuple[Nested, Tensor]:
    """Repeats a step until no row can change any more, or `max_length` times.

    Whenever half of the rows or more have ended, the loop continues without them: otherwise a batch
    would cost as much as if all rows were as long as the longest.

    Args:
        running: Function from the current outputs to booleans `(A,)`: whether a row can change.
            At first every row can.
        advance: Function from position (scalar), rows (int32 `(A,)`, their indices in the batch),
            outputs and state to the next outputs and state. Rows must not depend on each other.
        outputs: Initial outputs, a nested structure of tensors `(B, …)`. An axis of size 0 grows
            with every step; a row that has ended is padded with 0.
        state: Nested structure of tensors `(B·N, …)`, not returned; axes of size 0 grow likewise.
        fixed_shapes: Whether all rows stay and no axis grows, as XLA requires.
        start: Position of the first step.

    Returns:
        The final outputs, tensors `(B, …)`, and the position after the last step.
    """
    scalar, vector = tf.TensorShape([]), tf.TensorShape([None])
    output_shapes, state_shapes = growing_shapes((outputs, state))
    shapes = None if fixed_shapes else (scalar, output_shapes, state_shapes)
    repeat = functools.partial(_repeat, running, advance, max_length, shapes)

    def shrink(position, rows, whole, outputs, state):
        position, outputs, state = repeat(rows, position, outputs, state)
        whole = tf.nest.map_structure(
            lambda old, new: _scatter_rows(old, rows, new), whole, outputs
        )
        remaining = tf.where(running(outputs))  # (A, 1)
        beams = tf.reshape(remaining * beam_size + tf.range(beam_size, dtype=remaining.dtype), [-1])
        remaining = tf.reshape(remaining, [-1])
        rows, outputs = tf.nest.map_structure(
            lambda tensor: tf.gather(tensor, remaining), (rows, outputs)
        )
        state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, beams), state)
        return position, rows, whole, outputs, state

    rows = tf.range(tf.shape(tf.nest.flatten(outputs)[0])[0])
    if fixed_shapes:
        steps, outputs, _ = repeat(rows, tf.convert_to_tensor(start), outputs, state)
        return outputs, steps
    steps, _, outputs, _, _ = tf.while_loop(
        lambda position, rows, *_: (tf.size(rows) > 0) & (position < max_length),
        shrink,
        (tf.convert_to_tensor(start), rows, outputs, outputs, state),
        shape_invariants=(scalar, vector, output_shapes, output_shapes, state_shapes),
    )
    return outputs, steps


def _repeat(running, advance, max_length, shapes, rows, position, outputs, state):
    """Takes steps while half of the rows can change; with fixed shapes, while any can."""
    too_few = tf.size(rows) // 2 if shapes else 0
    return tf.while_loop(
        lambda position, outputs, _: (
            (position < max_length)
            & (tf.math.count_nonzero(running(outputs), dtype=tf.int32) > too_few)
        ),
        lambda position, outputs, state: (position + 1, *advance(position, rows, outputs, state)),
        (position, outputs, state),
        shape_invariants=shapes,
    )


def _scatter_rows(whole, rows, part):
    """Grows the axes of `whole`, `(B, …)`, to those of `part`, `(A, …)`, and assigns its rows."""
    if part.shape[1:] != whole.shape[1:] or not part.shape[1:].is_fully_defined():
        growth = tf.expand_dims(tf.shape(part)[1:] - tf.shape(whole)[1:], 1)
        whole = tf.pad(whole, tf.pad(growth, [[1, 0], [1, 0]]))
    whole = tf.tensor_scatter_nd_update(whole, tf.expand_dims(rows, 1), part)
    return tf.ensure_shape(whole, [None, *part.shape[1:]])
