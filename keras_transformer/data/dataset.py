"""Sentence pairs to padded batches of ids, for `model.fit`.

Batches consist of sentences of similar length, as many as the token budget holds, padded to the
boundaries of length buckets. Which pairs of equal length are batched together, and the order of the
batches, is random for every pass.
"""

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.data.batch_stream import BatchStream
from keras_transformer.data.encoded_pairs import encode_pairs
from keras_transformer.data.planning import bucket_boundaries
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.presets.options import COUNT, FROM_0, check_value
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.utils import Path

# A prepared corpus or its path; or several of them, each with its weight.
Corpora: TypeAlias = PreparedCorpus | Path | Sequence[tuple[PreparedCorpus | Path, float]]

SECONDS_TO_END = 0.3  # for TensorFlow's threads, when the interpreter exits


def make_dataset(
    pairs: Iterable[Sequence[str]] | None = None,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    tokens_per_batch: int = 8192,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    boundaries: Sequence[int] | np.ndarray | None = None,
    repeat: bool = False,
    corpus: Corpora | None = None,
    shard: tuple[int, int] = (0, 1),
    source_end: bool = True,
) -> tf.data.Dataset:
    """Turns sentence pairs into batches for `model.fit`.

    Every iteration is the next pass over the pairs, from `dataset.stream.position` on, which is
    (pass, batch in it) and may be set. The batches depend only on it and the seed, in any process.

    Args:
        pairs: Any iterable of (source, target) strings, read once.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s, or others with the same call.
        tokens_per_batch: Budget: rows × padded length of the longer side, over all replicas.
        max_length: Pairs with a longer side, including END, or an empty one are dropped, which is
            logged. By default 512, or `tokens_per_batch` if that is less.
        shuffle: Whether the order of pairs of equal length and of the batches is random.
        seed: Non-negative int, the seed of everything random.
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`.
        repeat: Whether an iteration never ends, but continues with the next pass.
        corpus: Instead of pairs and tokenizers, a `PreparedCorpus`, the path of one, or a list of
            (corpus, weight) to mix; a pass then has as many pairs as all corpora together.
        shard: (i, n): the rows i, i + n … of each batch; one row of PAD if there are none.
        source_end: Whether sources end with END. Lengths count it in any case.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, int32 of shapes (B, S), (B, T),
        (B, T): `source` ends with END, `target_in` is START and the target, `target_out` the
        target and END. Has a length unless it repeats, and a `stream`, the `BatchStream` it reads.

    Raises:
        ValueError: Unless either pairs with tokenizers or a corpus are given; if all pairs are
            dropped, the budget is below `max_length`, or the last boundary is not between both.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, shuffle=False)  # the dataset shuffles already
    """
    check_value("seed", seed, FROM_0)
    _check_shard(shard)
    max_length, padded = _check_lengths(tokens_per_batch, max_length, boundaries)
    corpora, weights = _open_data(pairs, (source_tokenizer, target_tokenizer), corpus)
    stream = BatchStream(
        corpora,
        weights,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
        boundaries=padded,
        seed=seed if shuffle else None,
        repeat=repeat,
        shard=shard,
        source_end=source_end,
    )
    return stream_dataset(stream)


def _open_data(pairs, tokenizers, corpus):
    """Returns the corpora as ids, and their weights."""
    if corpus is None:
        if pairs is None:
            raise ValueError(
                "Data is missing: pass pairs, source_tokenizer and target_tokenizer, or corpus."
            )
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
            check_tokenizer(side, tokenizer, ["__call__"])
        return [encode_pairs(pairs, *tokenizers)], [1.0]
    if any(given is not None for given in (pairs, *tokenizers)):
        raise ValueError("Pass either corpus, or pairs and tokenizers, received both.")
    opened, weights = open_corpora(corpus)
    return [one.pairs for one in opened], weights


def open_corpora(corpora: Corpora) -> tuple[list[PreparedCorpus], list[float]]:
    """Opens prepared corpora.

    Returns:
        The corpora and their weights.
    """
    if isinstance(corpora, PreparedCorpus | str | os.PathLike):
        corpora = [(corpora, 1.0)]
    weights = [weight for _, weight in corpora]
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(
            "A mix must have at least one corpus, and weights above 0, received weights "
            f"{', '.join(f'{weight:g}' for weight in weights) or '(none)'}."
        )
    opened = [
        corpus if isinstance(corpus, PreparedCorpus) else PreparedCorpus(corpus)
        for corpus, _ in corpora
    ]
    first = opened[0]
    for other in opened[1:]:
        if [x.model for x in other.tokenizers] != [x.model for x in first.tokenizers]:
            raise ValueError(
                f"{other.path} was prepared with other vocabularies than {first.path}: only "
                "corpora with the same ones can be mixed, see prepare's --vocabularies."
            )
    return opened, weights


def _check_shard(shard):
    if not 0 <= shard[0] < shard[1]:
        raise ValueError(
            f"shard must be (i, n) with i from 0 to n - 1, received {shard}: of n workers, the "
            "first has shard=(0, n)."
        )


def _check_lengths(tokens_per_batch, max_length, boundaries):
    """Checks the maximum length and the bucket boundaries, or returns their defaults."""
    check_value("tokens_per_batch", tokens_per_batch, COUNT)
    if max_length is None:
        max_length = min(512, tokens_per_batch)
    if tokens_per_batch < max_length:
        raise ValueError(
            f"tokens_per_batch={tokens_per_batch} cannot hold a sentence of max_length="
            f"{max_length} tokens: raise the budget or lower max_length."
        )
    boundaries = np.asarray(bucket_boundaries(max_length) if boundaries is None else boundaries)
    ascending = np.size(boundaries) and np.all(np.diff(boundaries, prepend=0) > 0)
    if not ascending or not max_length <= boundaries[-1] <= tokens_per_batch:
        raise ValueError(
            f"boundaries must ascend to a length from max_length={max_length} to "
            f"tokens_per_batch={tokens_per_batch}, received {boundaries.tolist()}."
        )
    return max_length, boundaries


def stream_dataset(stream: BatchStream) -> tf.data.Dataset:
    """Creates the dataset that reads a stream.

    Args:
        stream: `BatchStream`.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, with the stream as its attribute
        `stream`. Unless that repeats, it has a length, the stream's `batches_per_pass`.
    """
    ids, number = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int64)
    batches = tf.data.Dataset.from_generator(
        lambda: _Reader(stream.iterate()), output_signature=(((ids, ids), ids), number)
    )

    def end(iterator):
        stream.finish(int(iterator))
        return iterator

    def hand_out(batch, iterator):
        # After prefetching: a prefetched batch may never be consumed.
        ended = tf.cond(
            iterator < 0, lambda: iterator, lambda: tf.numpy_function(end, [iterator], tf.int64)
        )
        with tf.control_dependencies([ended]):
            return tf.nest.map_structure(tf.identity, batch)

    dataset = prefetch(batches).map(hand_out)
    if not stream.repeat:
        length = tf.data.experimental.assert_cardinality(stream.batches_per_pass)
        dataset = dataset.apply(length)
    options = tf.data.Options()
    # The workers of a strategy read shards of each batch (`shard`), rather than some batches each.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.with_options(options)
    dataset.stream = stream
    return dataset


class _Reader:
    """An iterator that ends when the interpreter exits.

    TensorFlow's prefetching thread calls it. At exit Python gives that thread nothing more to run,
    while TensorFlow, when it frees the iterator, waits for the thread: the process would never end.
    """

    exiting = threading.Event()
    running: ClassVar[weakref.WeakSet["_Reader"]] = weakref.WeakSet()

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self.running.add(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            if not self.exiting.is_set():
                try:
                    return next(self._batches)
                except BaseException:
                    self.running.discard(self)
                    raise
        self.running.discard(self)
        raise StopIteration

    @classmethod
    def end_all(cls) -> None:
        """Ends all iterators, after the batches that are being made."""
        cls.exiting.set()
        for reader in list(cls.running):
            with reader._lock:
                pass
        if cls.running:
            time.sleep(SECONDS_TO_END)  # for their threads to hand over a batch, or to end


atexit.register(_Reader.end_all)


def prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Prepares batches in advance.

    TensorFlow's autotuning is disabled. It looks at a pipeline after 10 ms, and then waits twice as
    long each time; a pipeline that ends waits for it to look once more, which may take as long
    again as all the batches did.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)
