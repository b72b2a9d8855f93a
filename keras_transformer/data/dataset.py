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
from keras_transformer.data.mix import Corpora, Mix
from keras_transformer.data.piece_sampling import PieceSampling
from keras_transformer.data.stream_dataset import stream_dataset
from keras_transformer.tokenizers.tokenizer import Tokenizer


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
    subword_sampling: float = 0.0,
    corpus: Corpora | None = None,
    shard: tuple[int, int] = (0, 1),
) -> tf.data.Dataset:
    """Turns sentence pairs into batches for `model.fit`.

    Every iteration is the next pass over the pairs, from `dataset.stream.position` on: (pass, batch
    in it), which may be set. What comes there depends on it and the seed alone, in any process.

    Args:
        pairs: Any iterable of (source, target) strings, gone through once.
        source_tokenizer, target_tokenizer: `SubwordTokenizer`s, or others that are called alike.
        tokens_per_batch: Budget: rows × padded length of the longer side, over all replicas.
        max_length: Pairs with a longer side, its END counted, or an empty one are dropped; how many
            and why goes to the log. By default 512, or what the budget holds.
        shuffle: Whether to draw pairs of equal length and the order of the batches at random.
        seed: Non-negative int, of all that is drawn.
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`.
        repeat: Whether an iteration goes on for ever, pass after pass.
        subword_sampling: When positive, every pass cuts the texts into other pieces, by the
            tokenizers' `sampler`, but for the few pairs that grow beyond what their batches hold.
        corpus: Instead of pairs and tokenizers a `PreparedCorpus`, the path of one, or a list of
            (corpus, weight): a mix, of which each pass is as many pairs as there are in all.
        shard: (i, n): of each batch the rows i, i + n …; one row of PAD where that leaves none.

    Returns:
        `tf.data.Dataset` of `((source, target_in), target_out)`, int32 of shapes (B, S), (B, T),
        (B, T): `source` ends with END, `target_in` is START and the target, `target_out` the
        target and END. Has a length unless it repeats, and a `stream`, the `BatchStream` it reads.

    Raises:
        ValueError: If there are not either pairs with tokenizers or a corpus, no pair is left, the
            budget is below `max_length`, or the boundaries do not end between the two.

    Example:

    >>> dataset = make_dataset(pairs, tokenizer, tokenizer, tokens_per_batch=4096)
    >>> model.fit(dataset, epochs=10, shuffle=False)  # the dataset shuffles by itself
    """
    longest, padded = _lengths(tokens_per_batch, max_length, boundaries)
    mix = _mix(pairs, (source_tokenizer, target_tokenizer), corpus)
    sampling = _sampling(mix.tokenizers, subword_sampling, shuffle, seed)
    order = seed if shuffle else None
    stream = BatchStream(mix, tokens_per_batch, longest, padded, order, sampling, repeat, shard)
    return stream_dataset(stream)


def _mix(pairs, tokenizers, corpus):
    """What is read, from texts or prepared."""
    given = [x is not None for x in (pairs, *tokenizers)]
    if corpus is not None and any(given):
        raise ValueError("A corpus has pairs and tokenizers already: leave out either it or these.")
    if corpus is not None:
        return Mix.of_prepared(corpus)
    if pairs is None:
        raise ValueError("There is nothing to read: pass pairs and their tokenizers, or a corpus.")
    return Mix.of_texts(pairs, tokenizers)


def _sampling(tokenizers, strength, shuffle, seed):
    """How pieces are drawn, None if they are not."""
    if not strength:
        return None
    if not shuffle:
        raise ValueError("subword_sampling is for training: it needs shuffle=True.")
    return PieceSampling(tokenizers, strength, seed)


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
