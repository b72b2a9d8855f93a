"""Sentence pairs as ids, from any iterable of texts."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.data.sentences import Sentences, Shard
from keras_transformer.wording import counted

CHUNK = 8192  # lines that are tokenized at once

# A `Tokenizer`, or a function alike: from lines, and whether END closes them, to ids.
Tokenize: TypeAlias = Callable[[list[str], bool], tf.RaggedTensor]


class EncodedPairs:
    """Sentence pairs as ids, START and END left out.

    All pairs are here: which of them are too long for a model is seen when batches are planned.

    Args:
        source, target: `Sentences`, as many of both.

    Raises:
        ValueError: If there are more of one than of the other.
    """

    def __init__(self, source: Sentences, target: Sentences) -> None:
        if len(source) != len(target):
            raise ValueError(
                f"Expected a target for each source, received {counted(len(source), 'source')} "
                f"and {counted(len(target), 'target')}."
            )
        self.source = source
        self.target = target

    @classmethod
    def joined(cls, corpora: Sequence["EncodedPairs"]) -> "EncodedPairs":
        """The pairs of several corpora one after the other; of one, itself."""
        if len(corpora) == 1:
            return corpora[0]
        sides = ([corpus.source for corpus in corpora], [corpus.target for corpus in corpora])
        return cls(*map(Sentences.joined, sides))

    def __len__(self) -> int:
        return len(self.source)

    def kept(self, max_length: int) -> tuple[np.ndarray, dict[str, int]]:
        """Finds the pairs that a model can learn from.

        Args:
            max_length: Largest number of ids on either side, END counted.

        Returns:
            Their numbers, ascending, `(N,)` int32 where that holds them; and how many pairs are
            left out, by reason.
        """
        source, target = self.source.lengths, self.target.lengths
        kept = np.ones(len(self), bool)
        dropped = {}
        for reason, wrong in {
            "with an empty source": source == 0,
            "with an empty target": target == 0,
            f"with a source of more than {max_length} tokens": source >= max_length,
            f"with a target of more than {max_length} tokens": target >= max_length,
        }.items():
            if count := int(np.count_nonzero(wrong & kept)):
                dropped[reason] = count
            kept &= ~wrong
        numbers = np.arange(len(self), dtype=np.int32 if len(self) < 1 << 31 else np.int64)
        return (numbers[kept] if dropped else numbers), dropped

    def summary(self, dropped: dict[str, int]) -> str:
        """One line: how many pairs are kept, and how many dropped why."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        left = len(self) - sum(dropped.values())
        total = counted(len(self), "pair")
        return f"kept {left:,} of {total}" + (f"; dropped {reasons}" * bool(reasons))


def encode_pairs(
    pairs: Iterable[Sequence[str]], source_tokenizer: Tokenize, target_tokenizer: Tokenize
) -> EncodedPairs:
    """Tokenizes sentence pairs.

    Args:
        pairs: Any iterable of (source, target) strings, which are read once and not kept.
        source_tokenizer, target_tokenizer: `Tokenizer`s, or functions alike.

    Returns:
        `EncodedPairs`, ids in the smallest integer type.
    """
    tokenizers, rest = (source_tokenizer, target_tokenizer), iter(pairs)
    sides: tuple[list[Shard], list[Shard]] = ([], [])
    while chunk := list(itertools.islice(rest, CHUNK)):
        for number, tokenizer in enumerate(tokenizers):
            sides[number].append(_encode([pair[number] for pair in chunk], tokenizer))
    return EncodedPairs(*(_joined(shards) for shards in sides))


def _encode(lines, tokenizer):
    """Some lines as a shard."""
    ragged = tokenizer(lines, False)
    ids = ragged.flat_values.numpy()
    small = np.min_scalar_type(ids.max(initial=0)) if ids.min(initial=0) >= 0 else ids.dtype
    return ids.astype(small), ragged.row_splits.numpy()


def _joined(shards):
    """One array out of many: sentences are then found in one look."""
    if not shards:
        return Sentences([])
    total = sum(int(offsets[-1]) for _, offsets in shards)
    smallest = np.uint32 if total < 1 << 32 else np.int64
    lengths = np.concatenate([np.diff(offsets) for _, offsets in shards])
    offsets = np.zeros(len(lengths) + 1, smallest)
    np.cumsum(lengths, out=offsets[1:])
    return Sentences([(np.concatenate([ids for ids, _ in shards]), offsets)])
