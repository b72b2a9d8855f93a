"""The sentence pairs of a batch: encoded, filtered, sorted by length and cut to budget."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.typing import Pairs

# A `Tokenizer`, or a function alike: from lines, and whether END closes them, to ids.
Tokenize: TypeAlias = Callable[[list[str], bool], tf.RaggedTensor]


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
    dropped: dict[str, int]
    total: int

    def __len__(self) -> int:
        return self.total - sum(self.dropped.values())

    def summary(self) -> str:
        """One line: how many pairs were kept, and how many dropped why."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        return f"kept {len(self)} of {self.total} pairs" + (f"; dropped {reasons}" * bool(reasons))


def encode_pairs(
    pairs: Pairs, source_tokenizer: Tokenize, target_tokenizer: Tokenize, max_length: int
) -> EncodedPairs:
    """Tokenizes sentence pairs and drops those that are empty or too long.

    Args:
        pairs: Sequence of (source, target) strings.
        source_tokenizer, target_tokenizer: `Tokenizer`s, or functions alike.
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


def bucket_boundaries(max_length: int) -> list[int]:
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


def plan_batches(
    corpus: EncodedPairs,
    tokens_per_batch: int,
    boundaries: Sequence[int] | np.ndarray,
    seed: int | Sequence[int] | None,
) -> list[np.ndarray]:
    """Decides which pairs make up a batch.

    Sorts by bucket of the longer side and, within it, by how much longer the source is than the
    target, upwards and downwards in turn so that neighbours are always alike, and cuts where the
    budget is full.

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
    longer, difference = np.maximum(source, target), source - target
    order = np.lexsort((ties, np.where(longer % 2, -difference, difference), longer))
    padded = np.asarray(boundaries)[longer]
    batches, start, longest = [], 0, 0
    for end, row in enumerate(order):
        longest = max(longest, padded[row])
        if (end + 1 - start) * longest > tokens_per_batch:
            batches.append(order[start:end])
            start, longest = end, padded[row]
    return [*batches, order[start:]]


def _encode(lines, tokenizer):
    """Ragged int32 ids (N, None), END included."""
    if not lines:
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), tf.zeros([0], tf.int64))
    chunks = [tokenizer(lines[i : i + 8192], True) for i in range(0, len(lines), 8192)]
    return tf.cast(tf.concat(chunks, axis=0), tf.int32)
