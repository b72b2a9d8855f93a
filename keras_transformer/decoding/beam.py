"""Beam search, and one function for all kinds of search.

Shapes: B batch, N beams, P tokens of the prefix, T number of steps taken, V vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.logits_processors import (
    NEVER,
    LogitsProcessor,
    apply,
    make_processors,
)
from keras_transformer.decoding.prefix import begin
from keras_transformer.decoding.sampling import (
    append,
    greedy_search,
    logsumexp,
    read_arguments,
    read_logits,
    sample,
    shrinking_loop,
)
from keras_transformer.presets import SearchConfig, resolve_search
from keras_transformer.special_ids import END, PAD
from keras_transformer.utils import SearchOutputs, State, Step, Tensor

ALWAYS = float("inf")  # stands for NaN, so that it ranks first and is not lost
BLOCK_SIZE = 100  # logits of which only the maximum is compared at first


class Hypotheses(NamedTuple):
    """N hypotheses for each row of the batch."""

    tokens: tf.Tensor  # int32 (B, N, t)
    lengths: tf.Tensor  # int32 (B, N)
    log_prob: tf.Tensor  # float32 (B, N)
    score: tf.Tensor  # float32 (B, N), for ranking; -inf for empty ones

    def pick(self, index: Tensor) -> "Hypotheses":
        """Returns those at the indices `(B, M)`."""
        return Hypotheses(*(tf.gather(tensor, index, batch_dims=1) for tensor in self))


def beam_search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    beam_size: int,
    length_penalty: float = SearchConfig.length_penalty,
    prefix: Tensor | None = None,
    fixed_shapes: bool = False,
    beam_patience: float = SearchConfig.beam_patience,
    length_norm: str = SearchConfig.length_norm,
    logits_processors: Sequence[LogitsProcessor] = (),
) -> SearchOutputs:
    """Extends the N most probable prefixes of each row; returns the N best that have ended.

    A hypothesis of `length` tokens, END included, is ranked by log_prob / lp(length). Ties are
    broken by the rank of the beam before, the lower id, the earlier end. One beam is greedy search.

    A row stops when enough hypotheses have ended and no unfinished one ranks above the best of them
    at its current length; or when nothing can change. The latter is exact: log-probabilities only
    fall as tokens are added and lp only grows, so no beam of a row can rank above
    log_prob / lp(max_length) of its current best one. Hypotheses that are unfinished after the last
    step count as ended. With `logits_processors` that raise log-probabilities, neither holds.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: See `greedy_search`, but `step`
            is called with N beams for each row. State tensors that it returns unchanged (the very
            same object) must be unchanged in every step: they are assumed to be equal for all
            beams of a row, and are not reordered.
        beam_size: N, at most V.
        length_penalty: α ≥ 0; 0 ranks by probability alone, larger values prefer longer hypotheses.
        beam_patience: p ≥ 1: p · N ended hypotheses are enough, counting those that were among the
            N best (Kasai et al., 2022, "A Call for Clarity in Beam Search"). Infinity is an exact
            search, which is slow if α or `max_length` is large, as the bound is loose then.
        length_norm: lp: `"gnmt"`, ((5 + length) / 6)^α (Wu et al., 2016, "Google's Neural Machine
            Translation System", §7); or `"length"`, length^α, as in Marian and Hugging Face.
        logits_processors: See `greedy_search`, but they receive and return log-probabilities, as in
            Hugging Face: hypotheses are ranked by the sum of what they return.

    Returns:
        `tokens`, int32 `(B, N, T)`, best first: each up to and including its END, then PAD;
        `lengths`, int32 `(B, N)`, END included; and `log_prob`, float32 `(B, N)`, natural
        logarithm, not normalized by length. A hypothesis whose next logits are all -inf is dropped,
        one whose logits are NaN comes first, with log_prob NaN. If a row has fewer than N, the
        others are all PAD with length 0 and log_prob -inf.

    Raises:
        ValueError: If `beam_size`, α, p or `length_norm` is invalid; see also `greedy_search`.
    """
    config = SearchConfig(
        *(beam_size, length_penalty, beam_patience, length_norm),
        logits_processors=tuple(logits_processors),
    )
    return search(step, state, batch_size, max_length, config, prefix, fixed_shapes=fixed_shapes)


def search(
    step: Step,
    state: State,
    batch_size: int | Tensor,
    max_length: int | Tensor,
    config: SearchConfig | None = None,
    prefix: Tensor | None = None,
    seeds: Tensor | None = None,
    fixed_shapes: bool = False,
    **options: Any,
) -> SearchOutputs:
    """Searches with the options of a `SearchConfig`.

    Args:
        step, state, batch_size, max_length, prefix, fixed_shapes: See `beam_search`.
        config: `SearchConfig`; greedy search by default.
        seeds: Integers `(B,)`, one for each row, used for sampling instead of `config.seed`.
        **options: Fields of `SearchConfig`, such as `beam_size=5`, instead of `config`.

    Returns:
        `tokens`, int32 `(B, N, T)`, `lengths`, int32 `(B, N)`, and `log_prob`, float32 `(B, N)`,
        see `beam_search`, with N = `config.beam_size`.

    Raises:
        ValueError: If the beam is wider than the vocabulary, or `config.min_length` above
            `max_length`; see also `greedy_search`.

    Example:

    >>> source = tokenizer(["samedi 9 mai 1998"], end=True).to_tensor()
    >>> step, state = model.make_step(), model.initial_state(source)
    >>> tokens, lengths, log_prob = search(step, state, len(source), 64, beam_size=5)
    >>> tokenizer.detokenize(tokens[:, 0]).numpy().tolist()
    [b'1998-05-09']

    Compiled by XLA, once for each shape of `source`:

    >>> @tf.function(jit_compile=True)
    ... def translate(source):
    ...     state = model.initial_state(source, length=64)
    ...     step = model.make_step("xla")
    ...     return search(step, state, len(source), 64, beam_size=5, fixed_shapes=True)
    """
    config = resolve_search(config, options)
    if config.max_output_length is not None:
        raise ValueError("max_output_length is the argument max_length of search: pass that.")
    longest = tf.get_static_value(max_length)
    more = 0 if longest is None else config.min_length - longest
    if more > 0:  # a model of several languages counts its forced token in both
        raise ValueError(f"min_length is {more} above the maximum length: lower it.")
    if config.beam_size > 1:
        return _search_beams(step, state, batch_size, max_length, config, prefix, fixed_shapes)
    arguments = step, state, batch_size, max_length
    last = prefix, fixed_shapes, make_processors(config)
    if config.sample:
        seed = config.seed if seeds is None else seeds
        outputs = sample(*arguments, config.temperature, config.top_k, config.top_p, seed, *last)
    else:
        outputs = greedy_search(*arguments, *last)
    return tuple(tf.expand_dims(tensor, 1) for tensor in outputs)


def check_beam_size(beam_size: int, vocabulary_size: int) -> None:
    """Checks that a beam is not wider than the vocabulary."""
    if beam_size > vocabulary_size:
        raise ValueError(
            f"A beam of {beam_size} is wider than the vocabulary of {vocabulary_size} ids."
        )


def ranking_score(
    log_prob: Tensor,
    length: int | Tensor,
    length_penalty: float,
    length_norm: str = SearchConfig.length_norm,
) -> Tensor:
    """Returns the score for ranking, log_prob / lp(length), END counted; see `beam_search`."""
    length = tf.cast(length, tf.float32)
    norm = length if length_norm == "length" else (5.0 + length) / 6.0
    return log_prob / norm**length_penalty


def _search_beams(step, state, batch_size, max_length, config, prefix, fixed_shapes):
    """Does what `beam_search` does, for more than one beam."""
    batch_size, max_length, prefix = read_arguments(state, batch_size, max_length, prefix)
    penalty = {"length_penalty": config.length_penalty, "length_norm": config.length_norm}
    rank = functools.partial(ranking_score, **penalty)
    beam_size, enough = config.beam_size, config.beam_patience * config.beam_size
    arguments = step, state, batch_size, max_length, beam_size, rank, prefix
    alive, ended, steps = _search(*arguments, fixed_shapes, enough, make_processors(config))
    # If a row could still change, the last step was taken: unfinished hypotheses count as ended.
    # In other rows none of them ranks above the ended ones, which come first in ties.
    unfinished = alive._replace(score=rank(alive.score, steps))
    best = _select_best(beam_size, ended, unfinished)
    log_prob = tf.where(tf.equal(best.score, ALWAYS), float("nan"), best.log_prob)
    return best.tokens, best.lengths, log_prob


def _search(
    step, state, batch_size, max_length, beam_size, rank, prefix, fixed_shapes, enough, processors
):
    """Returns the N unfinished hypotheses, the N best that have ended, and the number of steps."""

    def running(outputs):
        _, alive, ended, _ = outputs
        bound = rank(alive.score[:, 0], max_length)  # the best score still possible
        return ended.score[:, -1] < bound

    def advance(position, rows, outputs, state):
        last, alive, ended, count = outputs
        logits, next_state = step(tf.reshape(last, [-1]), position, state)
        logits = read_logits(logits)
        check_beam_size(beam_size, logits.shape[-1])
        required = None
        if prefix:
            required = prefix.required(position, logits.shape[-1])
            required = tf.gather(required, tf.repeat(rows, beam_size))
        scores = None
        if processors:
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
            logits -= logsumexp(logits, best, fixed_shapes)[:, tf.newaxis]
            before = tf.reshape(alive.tokens, [tf.size(last), -1])
            scores = apply(processors, logits, before, position)
        log_prob, score, beam, token = _extend(logits, scores, alive, required, fixed_shapes)
        tokens = tf.gather(alive.tokens, beam, batch_dims=1)
        tokens = append(tokens, token, position if fixed_shapes else None)
        lengths = tf.fill(tf.shape(token), position + 1)
        ends = tf.equal(token, END)
        new = tf.where(ends, rank(score, position + 1), NEVER)
        # Hypotheses that end below the N best are kept, but not counted: they may be nonsense.
        count += tf.math.count_nonzero(new[:, :beam_size] > NEVER, axis=1, dtype=tf.int32)
        if not fixed_shapes:
            padding = tf.fill(tf.shape(ended.lengths), PAD)
            ended = ended._replace(tokens=append(ended.tokens, padding))
        ended = _select_best(beam_size, ended, Hypotheses(tokens, lengths, log_prob, new))
        still = tf.where(ends, NEVER, score)
        # If words are long, all ended hypotheses may be worse than that of greedy search.
        ahead = rank(tf.reduce_max(still, axis=1), position + 1) > ended.score[:, 0]
        over = (tf.cast(count, tf.float32) >= enough) & tf.logical_not(ahead)
        still = tf.where(over[:, tf.newaxis], NEVER, still)
        chosen = tf.math.top_k(still, beam_size).indices
        alive = Hypotheses(tokens, lengths, log_prob, still).pick(chosen)
        last, parents = (tf.gather(x, chosen, batch_dims=1) for x in (token, beam))
        parents += tf.range(tf.size(rows))[:, tf.newaxis] * beam_size
        state = _reorder_state(state, next_state, tf.reshape(parents, [-1]))
        return (last, alive, ended, count), state

    beginning = begin(step, state, batch_size, max_length, prefix, fixed_shapes)
    outputs, start = _first_beams(beginning, beam_size, max_length if fixed_shapes else None)
    row_of_beam = tf.repeat(tf.range(batch_size), beam_size)
    state = tf.nest.map_structure(lambda tensor: tf.gather(tensor, row_of_beam), beginning.state)
    (_, alive, ended, _), steps = shrinking_loop(
        running, advance, outputs, state, max_length, beam_size, fixed_shapes, start
    )
    return alive, ended, steps


def _first_beams(beginning, beam_size, length):
    """What a search starts with after its prefix, and the position; `length` is that of tokens."""
    last, tokens, log_prob, _ = beginning
    start = tf.shape(tokens)[1]
    if length is not None:
        tokens = tf.fill([tf.shape(last)[0], length], PAD)
    last, tokens, log_prob = (
        tf.repeat(x[:, tf.newaxis], beam_size, axis=1) for x in (last, tokens, log_prob)
    )
    # Only one of the N beams of a row is alive at first: N equal ones would remain equal.
    alone = tf.where(tf.range(beam_size) > 0, NEVER, log_prob)
    lengths, never = tf.fill(tf.shape(last), start), tf.fill(tf.shape(last), NEVER)
    alive = Hypotheses(tokens, lengths, log_prob, alone)
    nothing = Hypotheses(tf.zeros_like(tokens), tf.zeros_like(lengths), never, never)
    return (last, alive, nothing, tf.zeros_like(lengths[:, 0])), start


def _extend(logits, scores, alive, required, compiled):
    """Returns the 2N best extensions of a row's N beams by one token, best first.

    At most N of them can end, so at least N remain that do not. `scores` `(B·N, V)`, if they are
    given, rank tokens instead of the logits, which are log-probabilities then; `required` are ids
    `(B·N,)`. Returned are log-probabilities, their sums for ranking, beams and tokens, `(B, 2N)`.
    """
    num_beams, vocabulary_size = alive.score.shape[1], logits.shape[-1]
    ranked = logits if scores is None else scores
    if required is not None:
        required = required[:, tf.newaxis]
        forced = tf.where(tf.equal(required, tf.range(vocabulary_size)), logits, NEVER)
        ranked = tf.where(tf.equal(required, PAD), ranked, forced)
    width = min(2 * num_beams, vocabulary_size)
    gains, tokens = _top_k(ranked, width)
    if scores is None:
        best = tokens[:, 0]
        if required is not None:
            best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        gains -= logsumexp(logits, best, compiled)[:, tf.newaxis]

    def add(sums, gains):
        return tf.reshape(
            sums[:, :, tf.newaxis] + tf.reshape(gains, [-1, num_beams, width]),
            [-1, num_beams * width],
        )

    dropped = tf.repeat(tf.equal(alive.score, NEVER), width, axis=1)
    sums = tf.where(dropped, NEVER, add(alive.score, gains))
    sums = tf.where(tf.math.is_nan(sums), ALWAYS, sums)
    score, index = tf.math.top_k(sums, 2 * num_beams)
    log_prob = score
    if scores is not None:
        own = add(alive.log_prob, tf.gather(logits, tokens, batch_dims=1))
        log_prob = tf.gather(own, index, batch_dims=1)
    tokens = tf.reshape(tokens, [-1, num_beams * width])
    return log_prob, score, index // width, tf.gather(tokens, index, batch_dims=1)


def _top_k(logits, count):
    """Computes `tf.math.top_k` of `(B, V)`, with equal ties, in half the time if V is large.

    None of the best is in a part of the vocabulary whose maximum ranks below those of `count`
    others.
    """
    padded = tf.pad(logits, [[0, 0], [0, -logits.shape[1] % BLOCK_SIZE]], constant_values=NEVER)
    if padded.shape[1] <= count * BLOCK_SIZE:
        return tf.math.top_k(logits, count)
    blocks = tf.reshape(padded, [-1, padded.shape[1] // BLOCK_SIZE, BLOCK_SIZE])
    best = tf.sort(tf.math.top_k(tf.reduce_max(blocks, axis=2), count).indices, axis=1)
    candidates = tf.reshape(tf.gather(blocks, best, batch_dims=1), [-1, count * BLOCK_SIZE])
    logits, index = tf.math.top_k(candidates, count)
    block = tf.gather(best, index // BLOCK_SIZE, batch_dims=1)
    return logits, block * BLOCK_SIZE + index % BLOCK_SIZE


def _select_best(count, first, second):
    """Returns the best of both for each row; in ties, those of `first`.

    So the empty hypotheses that the search starts with stay unless there is a better one.
    """
    both = Hypotheses(*(tf.concat(pair, axis=1) for pair in zip(first, second, strict=True)))
    return both.pick(tf.math.top_k(both.score, count).indices)


def _reorder_state(before, after, rows):
    """Returns the state of the beams that were kept.

    Tensors that a step returns unchanged are not copied: the keys and values of the memory, by far
    the largest.
    """
    return tf.nest.map_structure(
        lambda old, new: new if new is old else tf.gather(new, rows), before, after
    )
