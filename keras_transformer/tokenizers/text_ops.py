"""TensorFlow Text, and the base class of tokenizers that use its operations.

TensorFlow Text subclasses layers of `tf.keras`, which this package does not use. If
TF_USE_LEGACY_KERAS=1 is set and tf_keras is not installed, its import would fail: so the variable
is removed during the import, and `tf.keras` is Keras 3.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import tensorflow as tf

from keras_transformer.inspection.files import read_bytes
from keras_transformer.inspection.vocabularies import MAX_BYTES
from keras_transformer.special_ids import END
from keras_transformer.tokenizers.tokenizer import to_bytes
from keras_transformer.utils import Path, Tensor

_LEGACY = "TF_USE_LEGACY_KERAS"
_hidden = None if importlib.util.find_spec("tf_keras") else os.environ.pop(_LEGACY, None)
try:
    import tensorflow_text
    from tensorflow_text.python.ops import sentencepiece_tokenizer
finally:
    if _hidden is not None:
        os.environ[_LEGACY] = _hidden

__all__ = ["GraphTokenizer", "append_end", "sentencepiece_tokenizer", "tensorflow_text"]

Text: TypeAlias = str | bytes | Sequence[str | bytes] | Tensor
Ids: TypeAlias = tf.Tensor | tf.RaggedTensor


class GraphTokenizer(tf.Module):
    """Base of `SubwordTokenizer` and `WordPieceTokenizer`: one file, one call.

    A subclass defines `_encode`, from a string tensor to int32 ids.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self.model = model

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)  # TensorFlow's tables cannot be pickled

    def __call__(self, text: Text, end: bool = False) -> Ids:
        ids = self._encode(_as_tensor(text))
        return append_end(ids) if end else ids

    def tokenize(self, text: Text, end: bool = False) -> Ids:
        """Calls the tokenizer, under the name used by other libraries."""
        return self(text, end)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file written by `save`."""
        model = read_bytes(path, MAX_BYTES)
        try:
            return cls(model)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: Path) -> None:
        """Writes the model to a file."""
        with open(path, "wb") as file:
            file.write(self.model)

    def _encode(self, text: Tensor) -> Ids:
        raise NotImplementedError


def append_end(ids: Ids) -> Ids:
    """Appends END to ids `(T,)`, or to each row of ragged ids `(B, None)`."""
    if ids.shape.rank == 1:
        return tf.concat([ids, [END]], axis=0)
    return tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)


def _as_tensor(text):
    """Converts strings to a string tensor; see `to_bytes`."""
    if isinstance(text, str):
        text = to_bytes(text)
    elif isinstance(text, (list, tuple)):
        text = [to_bytes(t) for t in text]
        return tf.constant(text, tf.string, shape=[len(text)])
    return tf.convert_to_tensor(text, tf.string)
