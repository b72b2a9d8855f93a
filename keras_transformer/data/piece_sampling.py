"""Sentences cut into other pieces in every pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.batch_planner import GROWTH
from keras_transformer.data.encoded_pairs import EncodedPairs
from keras_transformer.tokenizers.random_keys import pair_keys
from keras_transformer.tokenizers.tokenizer import check_tokenizer

MEASURED = 1000  # pairs that tell how much longer sentences get


class PieceSampling:
    """Draws the pieces of sentences anew, from (seed, pass, corpus, pair) alone.

    Batches are planned before anything is drawn, with lengths as `planned_lengths` says.

    Args:
        tokenizers: The source and the target `Tokenizer`, which have a `sampler`.
        strength: How much is drawn, as their `sampler` understands it.
        seed: Non-negative int.

    Raises:
        ValueError: If a tokenizer has no `sampler`.
    """

    def __init__(self, tokenizers: Sequence[Any], strength: float, seed: int) -> None:
        for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
            check_tokenizer(side, tokenizer, ["sampler"])
        self.seed = seed
        self._samplers = [tokenizer.sampler(strength) for tokenizer in tokenizers]

    def planned_lengths(
        self, pairs: EncodedPairs, kept: np.ndarray, max_length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds out how much longer sentences get.

        Args:
            pairs: `EncodedPairs`.
            kept: The numbers of those to learn from, `(N,)`.
            max_length: No plan is longer.

        Returns:
            For each side, the length to plan a sentence with, END counted, by its number of ids:
            `(max_length,)`.
        """
        random = np.random.default_rng([self.seed, GROWTH])
        rows = kept[random.integers(len(kept), size=MEASURED)] if len(kept) > MEASURED else kept
        plain = np.arange(1, max_length + 1)
        planned = []
        for side, sentences in enumerate((pairs.source, pairs.target)):
            ids, lengths = sentences.gather(rows)
            keys = pair_keys(self.seed, 0, side, rows)
            _, drawn = self._samplers[side](ids, lengths, keys)
            growth = max(1.0, (drawn + 1).sum() / (lengths + 1).sum())
            planned.append(np.minimum(np.ceil(growth * plain), max_length).astype(np.int64))
        source, target = planned
        return source, target

    def draw(
        self, side: int, ids: np.ndarray, lengths: np.ndarray, keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws the pieces of some sentences.

        Args:
            side: 0 of the source, 1 of the target.
            ids: The sentences' ids one after the other, int32.
            lengths: How many are whose, `(B,)`.
            keys: What each one's random numbers follow from, uint64 `(B,)`.

        Returns:
            Ids and lengths of what was drawn.
        """
        return self._samplers[side](ids, lengths, keys)
