"""What the attention of one pair of texts is written down as.

Shapes: S source length, T target length, N layers, H heads.
"""

from typing import NamedTuple

import numpy as np

KINDS = ("cross", "encoder", "decoder")


class AttentionMaps(NamedTuple):
    """The attention of one pair, and the tokens on its sides.

    Attributes:
        source_tokens: S strings, END included: what the encoder reads.
        target_tokens: T strings, END included: what is written. The decoder reads START and all
            but the last of them.
        scores: {"encoder": float32 `(N, H, S, S)`, "decoder": `(N, H, T, T)`, "cross":
            `(N, H, T, S)`}: rows are queries, and each sums to 1. Of an export {"cross": `(1, 1, T,
            S)`}, the mean of a layer's heads.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    scores: dict[str, np.ndarray]

    def labels(self, kind: str) -> tuple[list[str], list[str]]:
        """What is written beside the maps of a kind.

        Args:
            kind: "encoder", "decoder" or "cross".

        Returns:
            Keys and queries. Those of the decoder's attention to itself are what it reads; in its
            attention to the source, a query has the name of the token that it is to write.
        """
        if kind == "encoder":
            return self.source_tokens, self.source_tokens
        if kind == "cross":
            return self.source_tokens, self.target_tokens
        read = ["<s>", *self.target_tokens[:-1]]
        return read, read
