"""The ids of lines that the operation which is served may cut otherwise than the package."""

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.data.prepared.encoder import EncodedSide

if TYPE_CHECKING:
    from keras_transformer.tokenizers.subword import SubwordTokenizer

SHOWN = 3  # lines, of those that differ


class ServedIds:
    """Has uncertain lines tokenized by the served operation, and counts them.

    TensorFlow is loaded when the first such line comes.

    Args:
        models: Serialised SentencePiece models of the source and of the target.
        counts: What has been counted before, if this goes on from there.

    Attributes:
        counts: Dict of `uncertain`, the number of such lines; `differing`, how many of them the
            operation cuts otherwise; and `such_as`, the first few of these.
    """

    def __init__(self, models: tuple[bytes, bytes], counts: dict[str, Any] | None = None) -> None:
        self._models = models
        self._tokenizers: dict[int, SubwordTokenizer] = {}
        self.counts = counts or {"uncertain": 0, "differing": 0, "such_as": []}

    def correct(self, side: int, lines: list[bytes], encoded: EncodedSide) -> EncodedSide:
        """Replaces the ids of uncertain lines.

        Args:
            side: 0, the source, or 1, the target.
            lines: Its text.
            encoded: What the package makes of it.

        Returns:
            `EncodedSide`, none of it uncertain.
        """
        rows = encoded.uncertain.tolist()
        if not rows:
            return encoded
        served = self._tokenizer(side)([lines[row] for row in rows])
        sentences = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
        for row, ids in zip(rows, np.split(*_parts(served)), strict=True):
            if not np.array_equal(ids, sentences[row]):
                self.counts["differing"] += 1
                if len(self.counts["such_as"]) < SHOWN:
                    self.counts["such_as"].append(lines[row].decode())
            sentences[row] = ids.astype(encoded.ids.dtype)
        self.counts["uncertain"] += len(rows)
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        return EncodedSide(np.concatenate(sentences), lengths, encoded.uncertain[:0])

    def _tokenizer(self, side):
        if side not in self._tokenizers:
            from keras_transformer.tokenizers.subword import SubwordTokenizer

            self._tokenizers[side] = SubwordTokenizer(self._models[side])
        return self._tokenizers[side]


def _parts(ragged):
    """Ids one after the other, and where all but the first row begin."""
    return ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1]
