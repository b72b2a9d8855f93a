"""Sentence pairs to padded batches of ids, for `model.fit`.

Batches are made of sentences of similar length, as many as the token budget holds, and padded to
the boundaries of length buckets. What belongs together is decided once; the order of the batches
is drawn anew for every pass.
"""

import dataclasses
import logging

import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START

logger = logging.getLogger(__name__)


def make_dataset(
    pairs,
    source_tokenizer,
    target_tokenizer,
    tokens_per_batch,
    max_length=None,
    shuffle=True,
    seed=0,
    boundaries=None,
    first_step=None,
):
    """Turns sentence pairs into batches for `model.fit`.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s.
        tokens_per_batch: Budget: rows × padded length of the longer side, over all replicas.
        max_length: Pairs with a side longer than this, its END counted, are dropped, and so are
            pairs with an empty side; how many and why goes to the log. By default 512, or what
            the budget holds.
        shuffle: Whether to draw pairs of equal length and the order of the batches at random.
        seed: Of the shuffling.
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`.
        first_step: When given, the dataset repeats for ever and starts at this step, as if that
            many batches had been taken already: what a resumed training reads.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, int32 of shapes (B, S), (B, T),
        (B, T): `source` ends with END, `target_in` is START and the target, `target_out` the
        target and END. `len(dataset)` is the number of batches where `first_step` is None.

    Raises:
        ValueError: If no pair is left, the budget is below `max_length`, or the boundaries do not
            ascend to a length between the two.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, shuffle=False)  # the dataset shuffles by itself
    """
    if max_length is None:
        max_length = min(512, tokens_per_batch)
    if tokens_per_batch < max_length:
        raise ValueError(
            f"tokens_per_batch={tokens_per_batch} cannot hold a sentence of max_length="
            f"{max_length} tokens: raise the budget or lower max_length."
        )
    boundaries = np.asarray(bucket_boundaries(max_length) if boundaries is None else boundaries)
    _check_boundaries(boundaries, max_length, tokens_per_batch)
    corpus = encode_pairs(pairs, source_tokenizer, target_tokenizer, max_length)
    logger.log(logging.WARNING if corpus.dropped else logging.INFO, corpus.summary())
    if not len(corpus):
        raise ValueError(f"No sentence pair is left to learn from: {corpus.summary()}.")
    batches = plan_batches(corpus, tokens_per_batch, boundaries, seed if shuffle else None)
    return _load(corpus, batches, boundaries, seed if shuffle else None, first_step)


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """Sentence pairs as ids, END included, and what was left out.

    Attributes:
        source, target: Ragged int32 `(N, None)`.
        dropped: Number of pairs left out, by reason.
        total: Number of pairs before.
    """

    source: tf.RaggedTensor
    target: tf.RaggedTensor
    dropped: dict
    total: int

    def __len__(self):
        return self.total - sum(self.dropped.values())

    def summary(self):
        """One line: how many pairs were kept, and how many dropped why."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return f"kept {len(self)} of {self.total} pairs" + (f"; dropped {reasons}" * bool(reasons))


def encode_pairs(pairs, source_tokenizer, target_tokenizer, max_length):
    """Tokenizes sentence pairs and drops those that are empty or too long.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s.
        max_length: Largest number of ids on either side, END included.

    Returns:
        `EncodedPairs`.
    """
    source = _encode([pair[0] for pair in pairs], source_tokenizer)
    target = _encode([pair[1] for pair in pairs], target_tokenizer)
    source_length, target_length = source.row_lengths().numpy(), target.row_lengths().numpy()
    kept = np.ones(len(pairs), bool)
    dropped = {}
    for reason, wrong in {
        "with an empty source": source_length < 2,
        "with an empty target": target_length < 2,
        f"with a source of more than {max_length} tokens": source_length > max_length,
        f"with a target of more than {max_length} tokens": target_length > max_length,
    }.items():
        if count := int(np.sum(wrong & kept)):
            dropped[reason] = count
        kept &= ~wrong
    rows = np.flatnonzero(kept)
    return EncodedPairs(tf.gather(source, rows), tf.gather(target, rows), dropped, len(pairs))


def bucket_boundaries(max_length):
    """The default lengths that batches are padded to: eight to a doubling, as 16, 18, 20 … 32.

    Args:
        max_length: The last boundary is the first that is not below it.

    Returns:
        Ascending list of ints. Rounding up to the next one costs at most 1/8 of padding.
    """
    boundaries, step = list(range(1, 17)), 2
    while boundaries[-1] < max_length:
        boundaries += range(boundaries[-1] + step, 16 * step + 1, step)
        step *= 2
    return [length for length in boundaries if length < max_length] + [max_length]


def plan_batches(corpus, tokens_per_batch, boundaries, seed):
    """Decides which pairs make up a batch.

    Sorts by bucket of the source and, within it, of the target, upwards and downwards in turn so
    that neighbours are always alike, and cuts where the budget is full.

    Args:
        corpus: `EncodedPairs`.
        tokens_per_batch: Largest rows × padded length of the longer side.
        boundaries: Ascending lengths of the buckets.
        seed: Of the order among pairs of equal length; None keeps theirs.

    Returns:
        List of arrays of row numbers.
    """
    lengths = [x.row_lengths().numpy() for x in (corpus.source, corpus.target)]
    source, target = (np.searchsorted(boundaries, x) for x in lengths)  # bucket numbers
    ties = np.arange(len(corpus))
    if seed is not None:
        np.random.default_rng(seed).shuffle(ties)
    order = np.lexsort((ties, np.where(source % 2, -target, target), source))
    padded = np.asarray(boundaries)[np.maximum(source, target)]
    batches, start, longest = [], 0, 0
    for end, row in enumerate(order):
        longest = max(longest, padded[row])
        if (end + 1 - start) * longest > tokens_per_batch:
            batches.append(order[start:end])
            start, longest = end, padded[row]
    return [*batches, order[start:]]


def _check_boundaries(boundaries, max_length, tokens_per_batch):
    """Refuses boundaries with no place for a long sentence, or more than the budget allows."""
    ascending = np.size(boundaries) and np.all(np.diff(boundaries, prepend=0) > 0)
    if not ascending or not max_length <= boundaries[-1] <= tokens_per_batch:
        raise ValueError(
            f"boundaries must ascend to a length from max_length={max_length} to "
            f"tokens_per_batch={tokens_per_batch}, received {boundaries.tolist()}."
        )


def _encode(lines, tokenizer):
    """Ragged ids (N, None), END included."""
    chunks = [tokenizer(lines[i : i + 8192]) for i in range(0, len(lines), 8192)]
    ids = tf.concat(chunks, axis=0) if chunks else tokenizer([])
    return tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)


def _load(corpus, batches, boundaries, seed, first_step):
    """The dataset that gathers and pads the rows of each batch."""
    source, target = corpus.source, corpus.target
    boundaries = tf.constant(boundaries, tf.int64)
    rows = tf.ragged.constant(batches, dtype=tf.int64)

    def pad(ids):
        bucket = tf.searchsorted(boundaries, ids.bounding_shape()[1:])[0]
        return ids.to_tensor(PAD, shape=tf.stack([ids.nrows(), boundaries[bucket]]))

    def gather(batch):
        target_out = tf.gather(target, rows[batch])
        target_in = tf.concat([tf.fill([target_out.nrows(), 1], START), target_out[:, :-1]], axis=1)
        return (pad(tf.gather(source, rows[batch])), pad(target_in)), pad(target_out)

    if first_step is None:
        numbers = tf.data.Dataset.range(len(batches))
        if seed is not None:
            numbers = numbers.shuffle(len(batches), seed=seed, reshuffle_each_iteration=True)
    else:
        numbers = _endless(len(batches), seed, first_step)
    return numbers.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


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
