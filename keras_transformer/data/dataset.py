"""Sentence pairs to padded batches of ids, for `model.fit`.

Batches are made of sentences of similar length, as many as the token budget holds, and padded to
the boundaries of length buckets. What belongs together is decided once, or with subword sampling
for every pass; the order of the batches is drawn anew for every pass.
"""

import itertools
import logging
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.batching import bucket_boundaries, encode_pairs, plan_batches
from keras_transformer.special_ids import PAD, START
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.typing import Pairs

AUTOTUNE = tf.data.AUTOTUNE
logger = logging.getLogger(__name__)


def make_dataset(
    pairs: Pairs,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    boundaries: Sequence[int] | np.ndarray | None = None,
    first_step: int | None = None,
    subword_sampling: float = 0.0,
) -> tf.data.Dataset:
    """Turns sentence pairs into batches for `model.fit`.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s, or others that are called alike
            (`Tokenizer`).
        tokens_per_batch: Budget: rows × padded length of the longer side, over all replicas.
        max_length: Pairs with a side longer than this, its END counted, are dropped, and so are
            pairs with an empty side; how many and why goes to the log. By default 512, or what
            the budget holds.
        shuffle: Whether to draw pairs of equal length and the order of the batches at random.
        seed: Of the shuffling.
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`.
        first_step: When given, the dataset repeats for ever and starts at this step, as if that
            many batches had been taken already: what a resumed training reads.
        subword_sampling: When positive, every pass cuts the texts into other pieces, by
            their `sample`; a few random batches of a pass may be left out or come twice.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, int32 of shapes (B, S), (B, T),
        (B, T): `source` ends with END, `target_in` is START and the target, `target_out` the
        target and END. `len(dataset)` is the number of batches where `first_step` is None.

    Raises:
        ValueError: If what should be a tokenizer is none, no pair is left, the budget is below
            `max_length`, or the boundaries do not ascend to a length between the two.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, shuffle=False)  # the dataset shuffles by itself
    """
    max_length, boundaries = _lengths(tokens_per_batch, max_length, boundaries)
    budget = tokens_per_batch, max_length, boundaries
    tokenizers = source_tokenizer, target_tokenizer
    corpus = _encode(pairs, tokenizers, max_length, bool(subword_sampling))
    if subword_sampling:
        if not shuffle:
            raise ValueError("subword_sampling is for training: it needs shuffle=True.")
        plan = _sampled_plan(pairs, tokenizers, subword_sampling, seed, *budget)
        return prefetch(_load_sampled(plan, boundaries, first_step))
    order = seed if shuffle else None
    batches = plan_batches(corpus, tokens_per_batch, boundaries, order)
    numbers = _numbers(len(batches), order, first_step)
    return prefetch(_load(corpus.source, corpus.target, _ragged(batches), boundaries, numbers))


def prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches ahead of their turn.

    TensorFlow's tuner of pipelines is left off. It looks at a pipeline after 10 ms, and then waits
    twice as long each time; a pipeline that ends waits for it to look once more, which may take as
    long again as all the batches did.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(AUTOTUNE).with_options(options)


def _encode(pairs, tokenizers, max_length, sampled):
    """The pairs as ids, `EncodedPairs`; what was left out goes to the log."""
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        check_tokenizer(side, tokenizer, ["__call__"] + ["sample"] * sampled)
    corpus = encode_pairs(pairs, *tokenizers, max_length)
    logger.log(logging.WARNING if corpus.dropped else logging.INFO, corpus.summary())
    if not len(corpus):
        raise ValueError(f"No sentence pair is left to learn from: {corpus.summary()}.")
    return corpus


def _lengths(tokens_per_batch, max_length, boundaries):
    """The longest sentence and the bucket boundaries, by default or checked."""
    if max_length is None:
        max_length = min(512, tokens_per_batch)
    if tokens_per_batch < max_length:
        raise ValueError(
            f"tokens_per_batch={tokens_per_batch} cannot hold a sentence of max_length="
            f"{max_length} tokens: raise the budget or lower max_length."
        )
    boundaries = np.asarray(bucket_boundaries(max_length) if boundaries is None else boundaries)
    _check_boundaries(boundaries, max_length, tokens_per_batch)
    return max_length, boundaries


def _check_boundaries(boundaries, max_length, tokens_per_batch):
    """Refuses boundaries with no place for a long sentence, or more than the budget allows."""
    ascending = np.size(boundaries) and np.all(np.diff(boundaries, prepend=0) > 0)
    if not ascending or not max_length <= boundaries[-1] <= tokens_per_batch:
        raise ValueError(
            f"boundaries must ascend to a length from max_length={max_length} to "
            f"tokens_per_batch={tokens_per_batch}, received {boundaries.tolist()}."
        )


def _ragged(batches):
    """A list of arrays as one ragged int64 tensor."""
    lengths = [len(batch) for batch in batches]
    return tf.RaggedTensor.from_row_lengths(np.concatenate(batches), lengths, validate=False)


def _load(source, target, rows, boundaries, numbers):
    """The dataset that gathers and pads the rows of each numbered batch."""
    boundaries = tf.constant(boundaries, tf.int64)

    def pad(ids):
        bucket = tf.searchsorted(boundaries, ids.bounding_shape()[1:])[0]
        return ids.to_tensor(PAD, shape=tf.stack([ids.nrows(), boundaries[bucket]]))

    def gather(batch):
        target_out = tf.gather(target, rows[batch])
        target_in = tf.concat([tf.fill([target_out.nrows(), 1], START), target_out[:, :-1]], axis=1)
        return (pad(tf.gather(source, rows[batch])), pad(target_in)), pad(target_out)

    return numbers.map(gather, num_parallel_calls=AUTOTUNE)


def _sampled_plan(pairs, tokenizers, strength, seed, tokens_per_batch, max_length, boundaries):
    """A function from the number of a pass to its (source, target, batches)."""

    def plan(number):
        random = np.random.default_rng([seed, number])

        def sampler(tokenizer):
            def sample(lines, end):
                return tokenizer.sample(lines, strength, int(random.integers(1 << 31)), end)

            return sample

        corpus = encode_pairs(pairs, *map(sampler, tokenizers), max_length)
        batches = plan_batches(corpus, tokens_per_batch, boundaries, [seed, number])
        random.shuffle(batches)
        return corpus.source, corpus.target, batches

    return plan


def _load_sampled(plan, boundaries, first_step):
    """Pass after pass, each planned when its turn comes; only one without `first_step`."""
    count = len(plan(0)[2])
    turns = itertools.count()

    def planned(number):
        *sides, batches = plan(int(number) if first_step is not None else next(turns))
        rows = _ragged([batches[i % len(batches)] for i in range(count)])
        return [part for x in (*sides, rows) for part in (x.flat_values, x.row_splits)]

    def one_pass(number):
        types = [tf.int32, tf.int64, tf.int32, tf.int64, tf.int64, tf.int64]
        parts = [tf.ensure_shape(x, [None]) for x in tf.py_function(planned, [number], types)]
        ragged = [
            tf.RaggedTensor.from_row_splits(*parts[i : i + 2], validate=False) for i in (0, 2, 4)
        ]
        return _load(*ragged, boundaries, tf.data.Dataset.range(count))

    if first_step is None:
        once = tf.data.Dataset.range(1).flat_map(one_pass)
        return once.apply(tf.data.experimental.assert_cardinality(count))
    passes = tf.data.Dataset.counter(first_step // count).flat_map(one_pass)
    return passes.skip(first_step % count)


def _numbers(count, seed, first_step):
    """The numbers of the batches in the order of their turns."""
    if first_step is not None:
        return _endless(count, seed, first_step)
    numbers = tf.data.Dataset.range(count)
    if seed is None:
        return numbers
    return numbers.shuffle(count, seed=seed, reshuffle_each_iteration=True)


def _endless(count, seed, first_step):
    """The numbers below `count`, pass after pass, from a given step on.

    The order of a pass depends on its number alone, and so not on where the first one started.
    """

    def one_pass(number):
        order = tf.range(count, dtype=tf.int64)
        if seed is not None:
            order = tf.random.experimental.stateless_shuffle(order, seed=[seed, number])
        return tf.data.Dataset.from_tensor_slices(order)

    passes = tf.data.Dataset.counter(first_step // count)
    return passes.flat_map(one_pass).skip(first_step % count)
