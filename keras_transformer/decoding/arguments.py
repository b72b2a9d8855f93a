"""Checks of the arguments of every search, as far as their values are known.

They always are in eager mode; while a graph is traced, shapes, ints and constants are. Nothing is
checked in a running graph: on a server, an error would be of no use.

Shapes: B batch, P tokens of the prefix, t positions that a state has room for, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_transformer.utils import State, Tensor, counted


def check_arguments(
    state: State, batch_size: int | Tensor, max_length: int | Tensor, prefix: Tensor | None = None
) -> None:
    """Checks that the arguments of a search fit together.

    Args:
        state, batch_size, max_length, prefix: See `greedy_search`.
    """
    steps, rows = _static_value(max_length), _static_value(batch_size)
    if steps is not None and steps < 1:
        raise ValueError(f"max_length must be at least 1, received {steps}.")
    for tensor in tf.nest.flatten(state):
        found = _static_size(tensor, 0)
        if found is not None and rows is not None and found != rows:
            raise ValueError(
                f"The state has {counted(found, 'row')}, but batch_size is {rows}: pass the number "
                "of rows that the state was created for."
            )
    if isinstance(state, Mapping) and "positions" in state:
        room = _static_size(state["positions"], 1)
        if room is not None and steps is not None and steps > room:
            raise ValueError(
                f"The state has room for {counted(room, 'position')}, but max_length is {steps}: "
                f"create the state with length={steps}, or search for at most "
                f"{counted(room, 'step')}."
            )
    if prefix is not None:
        _check_prefix(prefix, rows, steps)


def check_ids(prefix: Tensor, vocabulary_size: int | None) -> None:
    """Checks that the ids of a prefix are in the vocabulary."""
    ids = _static_value(tf.convert_to_tensor(prefix))
    if ids is None or not ids.size or vocabulary_size is None:
        return
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError(
            f"The prefix holds ids from {ids.min()} to {ids.max()}, but the vocabulary has ids "
            f"from 0 to {vocabulary_size - 1}: use the target's tokenizer."
        )


def _check_prefix(prefix, rows, steps):
    if isinstance(prefix, tf.RaggedTensor):
        raise ValueError("The prefix is ragged: pad it, as prefix.to_tensor(0) does.")
    prefix = tf.convert_to_tensor(prefix)
    height, width = _static_size(prefix, 0), _static_size(prefix, 1)
    if prefix.shape.rank not in (None, 2) or not (prefix.dtype.is_integer or width == 0):
        raise ValueError(
            "The prefix must be integer ids of shape (B, P), received "
            f"{prefix.dtype.name} of shape {prefix.shape}."
        )
    if height is not None and rows is not None and height != rows:
        raise ValueError(
            f"The prefix has {counted(height, 'row')}, but batch_size is {rows}: pass one "
            "for each row of the batch, all 0 if any token may follow."
        )
    if width is not None and steps is not None and width > steps:
        raise ValueError(
            f"The prefix is {width} tokens wide, but max_length is {steps}: shorten the prefix or "
            "allow more steps."
        )


def _static_value(value: Any) -> Any:
    """Returns a number or array if its value is known, else None."""
    return tf.get_static_value(value) if tf.is_tensor(value) else value


def _static_size(tensor, axis):
    """Returns the static size of an axis, or None if it is unknown."""
    shape = tf.TensorShape(tensor.shape)
    return shape[axis] if shape.rank is not None and shape.rank > axis else None
