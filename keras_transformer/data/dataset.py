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
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.data.pairs import EncodedPairs, concatenated_ranges, encode_pairs
from keras_transformer.data.planning import BatchPlan, BatchPlanner, bucket_boundaries
from keras_transformer.data.prepared_corpus import PreparedCorpus
from keras_transformer.presets.options import COUNT, FROM_0, check_value
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tokenizers.tokenizer import Tokenizer, check_tokenizer
from keras_transformer.utils import Path

# A prepared corpus or its path; or several of them, each with its weight.
Corpora: TypeAlias = PreparedCorpus | Path | Sequence[tuple[PreparedCorpus | Path, float]]
# Source (B, S), target_in (B, T) and target_out (B, T), int32.
Batch: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
# Number of a pass and of a batch in it, from 0.
Position: TypeAlias = tuple[int, int]

SECONDS_TO_END = 0.3  # for TensorFlow's threads to leave Python


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
    fixed_shapes: bool = False,
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
        boundaries: Ascending lengths that batches are padded to; by default `bucket_boundaries`,
            and with `fixed_shapes` fewer.
        repeat: Whether an iteration never ends, but continues with the next pass.
        corpus: Instead of pairs and tokenizers, a `PreparedCorpus`, the path of one, or a list of
            (corpus, weight) to mix; a pass then has as many pairs as all corpora together.
        shard: (i, n): the rows i, i + n … of each batch; one row of PAD if there are none.
        source_end: Whether sources end with END. Lengths count it in any case.
        fixed_shapes: Whether batches have one shape for each boundary, for XLA, which compiles for
            each: both sides are padded to it, and rows of PAD fill the budget.

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
    max_length, padded = _check_lengths(tokens_per_batch, max_length, boundaries, not fixed_shapes)
    corpora, weights = _open_data(pairs, (source_tokenizer, target_tokenizer), corpus)
    options: dict[str, Any] = dict(max_length=max_length, boundaries=padded, source_end=source_end)
    options |= dict(tokens_per_batch=tokens_per_batch, repeat=repeat, shard=shard)
    options |= dict(fixed_shapes=fixed_shapes)
    order = seed if shuffle else None
    return stream_dataset(BatchStream(corpora, weights, seed=order, **options))


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
    """Opens prepared corpora; returns them and their weights."""
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


def _check_lengths(tokens_per_batch, max_length, boundaries, fine):
    """Checks the maximum length and the bucket boundaries, or returns their defaults."""
    check_value("tokens_per_batch", tokens_per_batch, COUNT)
    if max_length is None:
        max_length = min(512, tokens_per_batch)
    if tokens_per_batch < max_length:
        raise ValueError(
            f"tokens_per_batch={tokens_per_batch} cannot hold a sentence of max_length="
            f"{max_length} tokens: raise the budget or lower max_length."
        )
    if boundaries is None:
        boundaries = bucket_boundaries(max_length, fine)
    boundaries = np.asarray(boundaries)
    ascending = np.size(boundaries) and np.all(np.diff(boundaries, prepend=0) > 0)
    if not ascending or not max_length <= boundaries[-1] <= tokens_per_batch:
        raise ValueError(
            f"boundaries must ascend to a length from max_length={max_length} to "
            f"tokens_per_batch={tokens_per_batch}, received {boundaries.tolist()}."
        )
    return max_length, boundaries


class BatchStream:
    """The batches of one corpus or a mix of several, pass after pass, in random access.

    A pass depends on the seed and its number alone, in any process. The arguments are those of
    `make_dataset`; without a seed, pairs and batches stay in the order of their lengths.

    Attributes:
        position: (pass, index): where the next iteration over a dataset starts. One that returns
            its last batch moves it behind that batch; one that is discarded before does not. (A
            strategy takes a few batches in advance: `fit` would start the second pass that much too
            late, unless a callback sets the position in `on_train_begin`.)
        batches_per_pass: Number of batches of the first pass.
        fingerprint: A checksum of the order of batches in the first pass, and of its first batch.
    """

    def __init__(
        self,
        corpora: Sequence[EncodedPairs],
        weights: Sequence[float],
        *,
        tokens_per_batch: int,
        max_length: int,
        boundaries: np.ndarray,
        seed: int | None = 0,
        repeat: bool = False,
        shard: tuple[int, int] = (0, 1),
        source_end: bool = True,
        fixed_shapes: bool = False,
    ) -> None:
        if not 0 <= shard[0] < shard[1]:
            raise ValueError(
                f"shard must be (i, n) with i from 0 to n - 1, received {shard}: of n workers, the "
                "first has shard=(0, n)."
            )
        self.boundaries = boundaries
        self.repeat = repeat
        self.shard = shard
        self.source_end = source_end
        self._fixed_budget = tokens_per_batch if fixed_shapes else None
        self.pairs = EncodedPairs.concatenate(corpora)
        purpose = "validate by" if seed is None else "learn from"  # only training is shuffled
        kept = [corpus.filter_by_length(max_length, purpose) for corpus in corpora]
        small = np.int32 if len(self.pairs) < 1 << 31 else np.int64
        starts = np.cumsum([0, *map(len, corpora)])[:-1]
        rows = [np.add(x, y, dtype=small) for x, y in zip(kept, starts, strict=True)]
        self._rows = np.concatenate(rows)  # numbers in `pairs`
        counts = [len(numbers) for numbers in kept]
        self._planner = BatchPlanner(
            self.pairs, self._rows, counts, weights, tokens_per_batch, boundaries, seed
        )
        self._position: Position = (0, 0)
        self._planned: tuple[int, BatchPlan] | None = None
        plan = self._plan(0)
        self.batches_per_pass = len(plan.order)
        rows = self._rows[plan.batch(0)]
        sides = (side.gather(rows)[0] for side in (self.pairs.source, self.pairs.target))
        self.fingerprint = zlib.crc32(b"".join(x.tobytes() for x in (plan.order, rows, *sides)))

    @property
    def position(self) -> Position:
        """Where the next iteration starts."""
        return self._position

    @position.setter
    def position(self, position: Position) -> None:
        number, index = map(int, position)
        count = self.batches_in(number) if number >= 0 else 0
        if not (number >= 0 and 0 <= index <= count):
            raise ValueError(
                f"position must be (pass, batch) with pass at least 0 and batch in 0 … {count}, "
                f"received {tuple(position)}."
            )
        self._position = (number, index)

    def batches_in(self, number: int) -> int:
        """Returns the number of batches of a pass; over one corpus it is always the same."""
        if self._planner.has_constant_length:
            return self.batches_per_pass
        return len(self._plan(number).order)

    def after(self, position: Position, count: int) -> Position:
        """Returns the position that is `count` batches after another."""
        number, index = position
        if self._planner.has_constant_length:
            passes, index = divmod(index + count, self.batches_per_pass)
            return number + passes, index
        index += count
        while index >= (size := self.batches_in(number)):
            number, index = number + 1, index - size
        return number, index

    def batch(self, number: int, index: int) -> Batch:
        """Returns the batch at a position, padded."""
        rows = self._rows[self._plan(number).batch(index)][self.shard[0] :: self.shard[1]]
        if not len(rows) and not self._fixed_budget:
            padding = np.full([1, self.boundaries[0]], PAD, np.int32)
            return padding, padding, padding
        source, target = (side.gather(rows) for side in (self.pairs.source, self.pairs.target))
        shapes = [self._shape(lengths) for _, lengths in (source, target)]
        if self._fixed_budget:
            length = max(length for _, length in shapes)
            count = -(-(self._fixed_budget // length) // self.shard[1])
            shapes = [(count, length)] * 2
        source_ids = _pad(*source, shapes[0], end=self.source_end)
        target_in = _pad(*target, shapes[1], start=True)
        return source_ids, target_in, _pad(*target, shapes[1], end=True)

    def _plan(self, number):
        """Returns the plan of a pass; the latest one is cached."""
        planned = self._planned
        if planned is None or planned[0] != number:
            self._planned = None  # two at once would take twice the memory
            planned = self._planned = number, self._planner.plan(number)
        return planned[1]

    def _shape(self, lengths):
        """Returns the shape, (B, length), of sentences with START or END."""
        bucket = np.searchsorted(self.boundaries, lengths.max(initial=0) + 1)
        return len(lengths), self.boundaries[bucket]


def _pad(ids, lengths, shape, start=False, end=False):
    """Pads sentences to rows of `shape`, with START before or END after them."""
    padded, length = np.full(shape, PAD, np.int32), shape[1]
    first = np.arange(len(lengths)) * length
    if start:
        padded[: len(lengths), 0] = START
    padded.reshape(-1)[concatenated_ranges(first + start, lengths)] = ids
    if end:
        padded.reshape(-1)[first + lengths] = END
    return padded


def stream_dataset(stream: BatchStream) -> tf.data.Dataset:
    """Creates the dataset of a stream's batches, which is its attribute `stream`."""
    count = tf.data.INFINITE_CARDINALITY if stream.repeat else stream.batches_per_pass

    def list_positions(_):
        start = _call_python(lambda: np.array(stream.position), [], tf.int64, [2])

        def list_batches(number):
            first = tf.where(number == start[0], start[1], 0)
            end = _call_python(stream.batches_in, [number], tf.int64)
            return tf.data.Dataset.range(first, end).map(lambda index: (start, number, index))

        return tf.data.Dataset.range(start[0], tf.int64.max).flat_map(list_batches)

    def read(step, place):
        batch = _call_python(stream.batch, place[1:], [tf.int32] * 3, [None, None])
        return step, place, tuple(batch)

    def move(start, number, index):
        if stream.position == tuple(start.tolist()):  # it has not been set since
            stream.position = stream.after((int(number), int(index)), 1)

    def hand_out(step, place, batch):
        if step == count - 1:  # only here: a prefetched batch may never be consumed
            _call_python(move, place, [])
        source, target_in, target_out = batch
        return (source, target_in), target_out

    positions = tf.data.Dataset.from_tensors(0).flat_map(list_positions)
    dataset = positions.take(count).enumerate().map(read).prefetch(tf.data.AUTOTUNE).map(hand_out)
    if not stream.repeat:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    options = tf.data.Options()
    # Autotuning looks at a pipeline after 10 ms, and then waits twice as long each time. A pipeline
    # that ends waits for it to look once more, which may take as long as all the batches did.
    options.autotune.enabled = False
    # The workers of a strategy read shards of each batch (`shard`), rather than some batches each.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.with_options(options)
    dataset.stream = stream
    return dataset


class _PythonCalls:
    """Calls functions in the threads of datasets, until the interpreter exits.

    Python then gives these threads nothing more to run, while TensorFlow, when it frees an
    iterator, waits for its prefetching thread: the process would never end.
    """

    _lock = threading.Lock()
    _exiting = False
    _latest = -math.inf  # time of the latest call, in seconds

    def __call__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        dtypes: Any,
        shape: Sequence[int | None] = (),
    ) -> Any:
        def call(*arguments):
            with self._lock:
                if self._exiting:
                    raise StopIteration
                try:
                    return function(*arguments)
                finally:
                    self._latest = time.monotonic()

        results = tf.numpy_function(call, arguments, dtypes)
        for result in tf.nest.flatten(results) if dtypes else ():
            result.set_shape(shape)
        return results

    def end(self) -> None:
        """Lets the threads of datasets run no more Python."""
        with self._lock:
            self._exiting = True
        if time.monotonic() - self._latest < SECONDS_TO_END:
            time.sleep(SECONDS_TO_END)  # for a thread to hand over its batch


_call_python = _PythonCalls()
atexit.register(_call_python.end)
