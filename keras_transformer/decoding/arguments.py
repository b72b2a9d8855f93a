"""Checks of the arguments of every search, as far as their values are known.

They always are in eager mode; while a graph is traced, shapes, ints and constants are. Nothing is
checked in a running graph: on a server, an error would be of no use.
"""

import math

import numpy as np
import tensorflow as tf

from keras_transformer.presets import SearchConfig
from keras_transformer.utils import State, Tensor


def read_arguments(
    state: State, batch_size: int | Tensor, max_length: int | Tensor, prefix: Tensor | None
) -> tuple[int | Tensor, int | Tensor, Tensor | None]:
    """Checks arguments of `greedy_search`; returns the sizes, tensors as int32, and the prefix."""
    rows, steps = tf.get_static_value(batch_size), tf.get_static_value(max_length)
    if _exceeds(1, steps):
        raise ValueError(f"max_length must be at least 1, received {steps}.")
    for tensor in tf.nest.flatten(state):
        shape = tf.TensorShape(np.shape(tensor))
        if not shape[:1].is_compatible_with([rows]):
            received = tensor if tensor is None else f"shape {shape}"
            raise ValueError(
                f"The state must hold tensors of shape (batch_size={rows}, …), received {received}:"
                " create it for as many rows, or pass () if the step needs no state."
            )
    if isinstance(state, dict) and "past_positions" in state:
        room = state["past_positions"].shape[1]
        if _exceeds(steps, room):
            raise ValueError(
                f"The state has length={room}, but max_length is {steps}: create the state with "
                f"length={steps}, or search for at most {room} steps."
            )
    if prefix is not None:
        ragged = isinstance(prefix, tf.RaggedTensor)
        prefix = prefix.to_tensor() if ragged else tf.convert_to_tensor(prefix)
        shape, is_integer = prefix.shape, prefix.dtype.is_integer
        valid = shape.is_compatible_with([rows, None]) and not _exceeds(shape[1], steps)
        if not valid or not (is_integer or shape.num_elements() == 0):
            raise ValueError(
                f"The prefix must be integer ids of shape (batch_size={rows}, at most max_length="
                f"{steps}), received {prefix.dtype.name} of shape {shape}."
            )
    batch_size, max_length = (
        tf.cast(x, tf.int32) if tf.is_tensor(x) else x for x in (batch_size, max_length)
    )
    return batch_size, max_length, prefix


def check_ids(prefix: Tensor, vocabulary_size: int | None) -> None:
    """Checks that the ids of a prefix are in the vocabulary."""
    ids, size = tf.get_static_value(prefix), vocabulary_size or math.inf
    if ids is not None and ids.size and not 0 <= ids.min() <= ids.max() < size:
        raise ValueError(
            f"The prefix holds ids from {ids.min()} to {ids.max()}, but the vocabulary has ids "
            f"from 0 to {size - 1}: use the target's tokenizer."
        )


def check_options(batch_size: int | Tensor, seed: int | Tensor, **options: float | Tensor) -> None:
    """Checks the options of `sample`, each a number or one for each row."""
    rows = tf.get_static_value(batch_size)
    for name, value in {"seed": seed, **options}.items():
        shape, known = tf.TensorShape(np.shape(value)), tf.get_static_value(value)
        if shape.rank != 0 and not shape[:1].is_compatible_with([rows]):
            raise ValueError(
                f"{name} must be a number or of shape (batch_size={rows},), received shape {shape}."
            )
        for number in [] if known is None or name == "seed" else np.unique(known).tolist():
            SearchConfig(sample=True, **{name: number})  # raises if it is out of range


def _exceeds(size, limit):
    """Returns whether a size is known to exceed another."""
    return None not in (size, limit) and size > limit
