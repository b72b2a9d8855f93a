"""Texts and ids as the tensors that tokenizers work on."""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.special_ids import END
from keras_transformer.tokenizers.byte_strings import to_bytes
from keras_transformer.typing import Tensor


def as_tensor(text: str | bytes | Sequence[str | bytes] | Tensor) -> Tensor:
    """Strings to a tensor; a lone surrogate, which UTF-8 cannot hold, becomes a question mark."""
    if isinstance(text, str):
        text = to_bytes(text)
    elif isinstance(text, (list, tuple)):
        text = [to_bytes(t) for t in text]
        return tf.constant(text, tf.string, shape=[len(text)])
    return tf.convert_to_tensor(text, tf.string)


def close(ids: Tensor | tf.RaggedTensor) -> Tensor | tf.RaggedTensor:
    """Ids `(T,)` or ragged `(B, None)` with END after them."""
    if ids.shape.rank == 1:
        return tf.concat([ids, [END]], axis=0)
    return tf.concat([ids, tf.fill([ids.nrows(), 1], END)], axis=1)
