"""Sentence pairs to padded batches of ids, for `model.fit`.

Batches are made of sentences of similar length, as many as the token budget holds, and padded to
the boundaries of length buckets. Which pairs of equal length come together, and the order of the
batches, is drawn anew for every pass.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.batch_stream import BatchStream
from keras_transformer.data.batching import bucket_boundaries
from keras_transformer.data.encoded_pairs import encode_pairs
from keras_transformer.data.piece_sampling import PieceSampling
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer

AUTOTUNE = tf.data.AUTOTUNE


def make_dataset(
    pairs: Iterable[Sequence[str]],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    tokens_per_batch: int,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    boundaries: Sequence[int] | np.ndarray | None = None,
    repeat: bool = False,
    subword_sampling: float = 0.0,
    shard: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:
    """Turns sentence pairs into batches for `model.fit`.

    Each time that the dataset is gone through is the next pass over the pairs. Where the next one
    begins is `dataset.stream.position`, a pass and the number of a batch in it, which may be set:
    what follows depends on the position and the seed alone, in any process.

    Args:
        pairs: Any iterable of (source, target) strings, which is gone through once.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s, or others that are called alike
            (`Tokenizer`).
        tokens_per_batch: Budget: rows × padded length of the longer side, over all replicas.
        max_length: Pairs with a side longer than this, its END counted, are dropped, and so are
            pairs with an empty side; how many and why goes to the log. By default 512, or what
            the budget holds.
        shuffle: Whether to draw pairs of equal length and the order of the batches at random.
        seed: Non-negative int, of all that is drawn.
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`.
        repeat: Whether the dataset goes on for ever, pass after pass.
        subword_sampling: When positive, every pass cuts the texts into other pieces, by
            the tokenizers' `sampler`. A sentence whose pieces would not fit into its batch keeps
            those that it has without.
        shard: (index, count): only the rows `index`, `index` + count … of each batch; where that
            leaves none, one row of PAD.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, int32 of shapes (B, S), (B, T),
        (B, T): `source` ends with END, `target_in` is START and the target, `target_out` the
        target and END. `len(dataset)` is the number of batches unless it repeats; its attribute
        `stream` is the `BatchStream` that it reads.

    Raises:
        ValueError: If what should be a tokenizer is none, no pair is left, the budget is below
            `max_length`, or the boundaries do not ascend to a length between the two.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, shuffle=False)  # the dataset shuffles by itself
    """
    longest, lengths = _lengths(tokens_per_batch, max_length, boundaries)
    tokenizers = source_tokenizer, target_tokenizer
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        check_tokenizer(side, tokenizer, ["__call__"] + ["sampler"] * bool(subword_sampling))
    if subword_sampling and not shuffle:
        raise ValueError("subword_sampling is for training: it needs shuffle=True.")
    stream = BatchStream(
        [encode_pairs(pairs, *tokenizers)],
        [1.0],
        tokens_per_batch,
        longest,
        lengths,
        seed if shuffle else None,
        PieceSampling(tokenizers, subword_sampling, seed) if subword_sampling else None,
        repeat,
        shard,
    )
    return _dataset(stream)


def _dataset(stream):
    """The dataset that reads a stream, which is its attribute `stream`."""
    ids, number = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int64)
    batches = tf.data.Dataset.from_generator(
        stream.started, output_signature=(((ids, ids), ids), number)
    )

    def end(number):
        stream.end(int(number))
        return number

    def hand_out(batch, number):
        # Not when a batch is prepared, ahead of its turn: it may never be taken.
        ended = tf.cond(
            number < 0, lambda: number, lambda: tf.numpy_function(end, [number], tf.int64)
        )
        with tf.control_dependencies([ended]):
            return tf.nest.map_structure(tf.identity, batch)

    dataset = prefetch(batches).map(hand_out)
    if not stream.repeat:
        cardinality = tf.data.experimental.assert_cardinality(stream.batches_per_pass)
        dataset = dataset.apply(cardinality)
    dataset.stream = stream
    return dataset


def prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches ahead of their turn.

    TensorFlow's tuner of pipelines is left off. It looks at a pipeline after 10 ms, and then waits
    twice as long each time; a pipeline that ends waits for it to look once more, which may take as
    long again as all the batches did.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(AUTOTUNE).with_options(options)


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
