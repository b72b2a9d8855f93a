"""Checks of the arguments that layers are created and called with."""

import inspect
import numbers
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.backend import values_of
from keras_transformer.utils import Inputs, Shape, Tensor, counted

# Arguments of Keras' attention that this package's lacks, and the values that change nothing.
UNSUPPORTED = {
    "attention_axes": (None, 1, (1,), [1]),
    "sliding_window": (None,),
    "flash_attention": (None, False),
    "use_gate": (False,),
}


def check_sizes(**sizes: Any) -> list[int]:
    """Reads sizes, which may be NumPy integers.

    Raises:
        ValueError: If one is not a positive integer.
    """
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a positive integer, received {size!r}.")
    return [int(size) for size in sizes.values()]


# Ids.


def as_ids(ids: Any) -> Tensor:
    """Converts ids `(B, T)` to a tensor.

    Raises:
        ValueError: If the rows are ragged.
    """
    if hasattr(ids, "to_tensor") and hasattr(ids, "row_lengths"):
        raise ValueError(
            "Ids must be padded to one length, received a RaggedTensor: pass ids.to_tensor(), "
            "which pads with PAD."
        )
    return ops.convert_to_tensor(ids)


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Checks the shape of ids `(B, T)`, and their values where they are known.

    Raises:
        ValueError: If the shape does not have two axes, or an id is not an integer or not in the
            vocabulary.
    """
    if len(ids.shape) != 2:
        raise ValueError(
            f"Ids must have shape (batch, length), received {tuple(ids.shape)}: put a single "
            "sentence into a batch of one."
        )
    values = values_of(ids)
    if values is None or not values.size:
        return
    # Keras' inputs are floats by default: whole numbers may arrive as such.
    if not np.issubdtype(values.dtype, np.integer) and (values != np.floor(values)).any():
        wrong = values[values != np.floor(values)][0]
        raise ValueError(f"Ids must be integers, received {wrong}: tokenize the text first.")
    if values.min() < 0 or values.max() >= vocabulary_size:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(
            f"Ids must lie in 0 … {vocabulary_size - 1} (vocabulary_size={vocabulary_size}), "
            f"received {wrong:.0f}: tokenize with the vocabulary that the model was built for."
        )


def check_id_arrays(arrays: Any, vocabulary_sizes: Sequence[int]) -> None:
    """Applies `check_ids` to arrays, for which a compiled step would report less or nothing.

    Args:
        arrays: As many ids `(B, T)` as there are vocabularies; anything else is ignored.
        vocabulary_sizes: V of each.

    Raises:
        ValueError: See `check_ids`.
    """
    if isinstance(arrays, (tuple, list)) and len(arrays) == len(vocabulary_sizes):
        for ids, vocabulary_size in zip(arrays, vocabulary_sizes, strict=True):
            if isinstance(ids, np.ndarray) and ids.ndim == 2:
                check_ids(ids, vocabulary_size)


def nan_unless(valid: Tensor) -> Tensor:
    """Returns float32 numbers to add, of the shape of `valid`: 0, or NaN where it is False.

    For graphs, which cannot raise everywhere. It is not a constant, at which TensorFlow's
    `enable_check_numerics` would stop.
    """
    return ops.sqrt(ops.cast(valid, "float32") - 1.0)


def check_pair(inputs: Any, return_attention_scores: Any = False) -> Inputs:
    """Checks that the inputs are `(source, target)`, ids of equally many sentences.

    Args:
        inputs: The first argument of the call.
        return_attention_scores: The second argument, where a target may be passed by mistake.

    Returns:
        `inputs`.

    Raises:
        ValueError: If they are anything else.
    """
    if (
        not isinstance(inputs, (tuple, list))
        or len(inputs) != 2
        or not _is_bool(return_attention_scores)
    ):
        received = f"a {type(inputs).__name__}"
        if isinstance(inputs, dict):
            received += f" of {', '.join(map(repr, inputs))}"
        elif not isinstance(inputs, (tuple, list)):
            received = "one tensor" + (
                "" if _is_bool(return_attention_scores) else " after another"
            )
        elif len(inputs) != 2:
            received += f" of {len(inputs)}"
        raise ValueError(
            f"The inputs must be a pair (source, target) of ids, received {received}: call "
            "model((source, target)), and model.fit((source, target_in), target_out)."
        )
    check_rows(source=inputs[0], target=inputs[1])
    return inputs


def check_rows(**tensors: Tensor) -> None:
    """Checks that tensors have equally many rows, as far as these are known.

    Raises:
        ValueError: If they differ.
    """
    rows = {name: x.shape[0] for name, x in tensors.items() if getattr(x, "shape", ())}
    rows = {name: number for name, number in rows.items() if number is not None}
    if len(set(rows.values())) > 1:
        raise ValueError(
            "Each row belongs to one sentence, received "
            + " and ".join(f"{counted(number, 'row')} of {name}" for name, number in rows.items())
            + ": pass one target for each source."
        )


# Attention.


def check_named_arguments(layer: keras.layers.Layer) -> None:
    """Checks that the `call` of a layer names its arguments, so that Keras can see the masks.

    Raises:
        ValueError: If it takes `*args` or `**kwargs`.
    """
    kinds = {parameter.kind for parameter in inspect.signature(layer.call).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ValueError(
            f"{type(layer).__name__}.call takes *args or **kwargs, among which Keras cannot find "
            "the masks: write out the arguments of the method that it overrides."
        )


def check_supported(**given: object) -> None:
    """Checks the arguments in `UNSUPPORTED`, which Keras' attention has and ours does not.

    Raises:
        ValueError: If one would change something.
    """
    for name, value in given.items():
        if value not in UNSUPPORTED[name]:
            raise ValueError(
                f"kt.MultiHeadAttention has no {name}, received {value!r}: leave it out, or use "
                "keras.layers.MultiHeadAttention."
            )


def last_dim(output_shape: int | Sequence[int] | None) -> int | None:
    """Reads `output_shape` in Keras' notation: None, an int, or a tuple of one int.

    Raises:
        ValueError: If it is anything else.
    """
    if output_shape is None:
        return None
    if isinstance(output_shape, numbers.Integral):
        return int(output_shape)
    if isinstance(output_shape, tuple | list) and len(output_shape) == 1:
        return int(output_shape[0])
    raise ValueError(
        f"output_shape must be an int or a tuple of one int, received {output_shape!r}: reshape "
        "the output for more axes."
    )


def check_lengths(value_shape: Shape, key_shape: Shape) -> None:
    """Checks that values and keys have the same length, as far as it is known.

    Raises:
        ValueError: If the lengths differ.
    """
    values, keys = tuple(value_shape[1:-1]), tuple(key_shape[1:-1])
    known = None not in (*values, *keys)
    if len(values) != len(keys) or (known and values != keys):
        raise ValueError(
            "The axes of value and key between the first and the last must be equal, received "
            f"shapes {tuple(value_shape)} and {tuple(key_shape)}: every value needs a key."
        )


def check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Checks that heads `(B, H, T, K)` belong together, as far as their shapes are known.

    Raises:
        ValueError: If the batch sizes, or the lengths of keys and values, differ.
    """
    if None not in (key.shape[2], value.shape[2]) and key.shape[2] != value.shape[2]:
        raise ValueError(
            f"Received {counted(key.shape[2], 'key')} but {counted(value.shape[2], 'value')}: "
            "every key needs a value."
        )
    sizes = {x.shape[0] for x in (query, key, value)} - {None}
    if len(sizes) > 1:
        raise ValueError(
            f"Queries, keys and values come in batches of {query.shape[0]}, {key.shape[0]} and "
            f"{value.shape[0]}: pass each query the keys and values of its own row."
        )


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Checks that a mask broadcasts to scores `(B, H, T, S)`, as far as shapes are known.

    Raises:
        ValueError: If it does not.
    """
    expected = tuple(scores.shape)
    given = tuple(mask.shape)
    pairs = zip(reversed(given), reversed(expected), strict=False)
    fits = all(None in pair or pair[0] in (1, pair[1]) for pair in pairs)
    if len(given) > 4 or not fits:
        raise ValueError(
            f"The attention mask has shape {given}, which does not broadcast to {expected} = "
            "(batch, heads, queries, keys): pass (batch, queries, keys) to the layer, with size 1 "
            "for a shared axis."
        )


def check_padding_mask(mask: Tensor | None) -> None:
    """Checks that a padding mask has the shape `(B, S)`.

    Raises:
        ValueError: If it does not have two axes.
    """
    if mask is not None and len(mask.shape) != 2:
        raise ValueError(
            f"A padding mask must have shape (batch, length), received {tuple(mask.shape)}: pass "
            "padding_mask(ids)."
        )


# Encoder and decoder.


def check_encoder_mask(mask: Tensor, x: Tensor) -> None:
    """Checks that a mask is one of rank 2 for inputs `(B, S, D)`, as far as shapes are known.

    Raises:
        ValueError: If it has another shape than `(B, S)`.
    """
    pairs = zip(mask.shape, x.shape[:2], strict=False)
    if len(mask.shape) != 2 or any(None not in (m, n) and m not in (1, n) for m, n in pairs):
        raise ValueError(
            f"An encoder's mask must have shape (batch, length), received {tuple(mask.shape)} for "
            f"inputs {tuple(x.shape)}: a mask of single queries and keys has shape (batch, "
            "queries, keys)."
        )


def check_memory(
    layer: keras.layers.Layer,
    cross_attention: object,
    memory: Tensor | None,
    x_mask: Tensor | None = None,
) -> None:
    """Checks that a decoder receives the encoder's output if, and only if, it attends to it.

    Raises:
        ValueError: If it is missing, or passed without need.
    """
    if cross_attention and memory is None:
        raise ValueError(
            f"{layer.name!r} attends to a memory and received none: call it with (x, memory), or "
            "create it with cross_attention=False."
        )
    if not cross_attention and (memory is not None or len(getattr(x_mask, "shape", ())) == 3):
        raise ValueError(
            f"{layer.name!r} has no cross-attention and received a memory: call it with (x, x_mask)"
            " alone."
        )


def check_inherits_call(layer: keras.layers.Layer, base: type[keras.layers.Layer]) -> None:
    """Checks that a layer's full pass is the one that decoding step by step follows.

    Args:
        layer: A part of the decoder.
        base: The class that defines the `call` expected of it.

    Raises:
        ValueError: If the layer is of another class, or overrides `call`.
    """
    if not isinstance(layer, base) or type(layer).call is not base.call:
        method = "attend" if hasattr(base, "attend") else "make_attention"
        raise ValueError(
            f"{type(layer).__name__} ({layer.name!r}) has a call of its own, which decoding "
            f"step by step would not follow: override {method} of {base.__name__} instead, or "
            "decode with the whole prefix."
        )


def _is_bool(value):
    return isinstance(value, (bool, int, np.bool_))
