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

# Arguments of Keras' attention that this package's does not support, and the values to accept.
UNSUPPORTED = {
    "attention_axes": (None, 1, (1,), [1]),
    "sliding_window": (None,),
    "flash_attention": (None, False),
    "use_gate": (False,),
}


def check_sizes(**sizes: Any) -> list[int]:
    """Reads sizes, which may be NumPy integers."""
    for name, size in sizes.items():
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"{name} must be a positive integer, received {size!r}.")
    return [int(size) for size in sizes.values()]


# Ids.

IDS_SCOPE = "checked_ids"  # name scope of lookups, which fail if a graph runs with invalid ids


def as_ids(ids: Any) -> Tensor:
    """Converts ids `(B, T)` to a tensor."""
    if hasattr(ids, "to_tensor") and hasattr(ids, "row_lengths"):
        raise ValueError(
            "Ids must be padded to one length, received a RaggedTensor: pass ids.to_tensor(), "
            "which pads with PAD."
        )
    return ops.convert_to_tensor(ids)


def check_ids(ids: Tensor, vocabulary_size: int) -> None:
    """Checks the shape of ids `(B, T)`, and their values where they are known."""
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
        raise ValueError(wrong_id(f"{wrong:.0f}", vocabulary_size))


def wrong_id(received: str, vocabulary_size: int) -> str:
    """Returns the error about an id outside the vocabulary."""
    return (
        f"Ids must lie in 0 … {vocabulary_size - 1} (vocabulary_size={vocabulary_size}), received "
        f"{received}: tokenize with the vocabulary that the model was built for."
    )


def check_id_arrays(arrays: Any, vocabulary_sizes: Sequence[int]) -> None:
    """Applies `check_ids` to arrays before a compiled step, which could not raise a clear error.

    Args:
        arrays: As many ids `(B, T)` as there are vocabularies; anything else is ignored.
        vocabulary_sizes: V of each.
    """
    if isinstance(arrays, (tuple, list)) and len(arrays) == len(vocabulary_sizes):
        for ids, vocabulary_size in zip(arrays, vocabulary_sizes, strict=True):
            if isinstance(ids, np.ndarray) and ids.ndim == 2:
                check_ids(ids, vocabulary_size)


def nan_unless(valid: Tensor) -> Tensor:
    """Returns float32 numbers of the shape of `valid`: 0 where it is True, else NaN.

    Graphs add them, because they cannot raise on every device. They are not constants, since
    TensorFlow's `enable_check_numerics` rejects a constant NaN.
    """
    return ops.sqrt(ops.cast(valid, "float32") - 1.0)


def check_pair(inputs: Any, return_attention_scores: Any = False) -> Inputs:
    """Checks that the inputs are `(source, target)`, ids of equally many sentences.

    Args:
        inputs: The first argument of the call.
        return_attention_scores: The second argument, where a target may be passed by mistake.

    Returns:
        `inputs`.
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
            received = "one tensor" if _is_bool(return_attention_scores) else "two separate tensors"
        elif len(inputs) != 2:
            received += f" of {len(inputs)}"
        raise ValueError(
            f"The inputs must be a pair (source, target) of ids, received {received}: call "
            "model((source, target)), and model.fit((source, target_in), target_out)."
        )
    check_rows(source=inputs[0], target=inputs[1])
    return inputs


def check_rows(**tensors: Tensor) -> None:
    """Checks that tensors have the same number of rows, as far as it is known."""
    rows = {name: x.shape[0] for name, x in tensors.items() if getattr(x, "shape", ())}
    rows = {name: number for name, number in rows.items() if number is not None}
    if len(set(rows.values())) > 1:
        raise ValueError(
            f"{', '.join(rows)} must have the same number of rows, received "
            + ", ".join(map(str, rows.values()))
            + ": pass one target for each source."
        )


# Attention.


def check_named_arguments(layer: keras.layers.Layer) -> None:
    """Checks that the `call` of a layer names its arguments: Keras finds masks by name."""
    kinds = {parameter.kind for parameter in inspect.signature(layer.call).parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise ValueError(
            f"{type(layer).__name__}.call takes *args or **kwargs, in which Keras cannot find the "
            "masks: name the arguments of the method that it overrides."
        )


def check_supported(**given: object) -> None:
    """Checks the arguments in `UNSUPPORTED`."""
    for name, value in given.items():
        if value not in UNSUPPORTED[name]:
            raise ValueError(
                f"kt.MultiHeadAttention does not support {name}, received {value!r}: omit it, or "
                "use keras.layers.MultiHeadAttention."
            )


def parse_output_shape(output_shape: int | Sequence[int] | None) -> int | None:
    """Reads `output_shape` in Keras' notation: None, an int, or a tuple of one int."""
    if output_shape is None:
        return None
    if isinstance(output_shape, numbers.Integral):
        return int(output_shape)
    if isinstance(output_shape, tuple | list) and len(output_shape) == 1:
        return int(output_shape[0])
    raise ValueError(
        f"output_shape must be an int or a tuple of one int, received {output_shape!r}: to get "
        "more axes, reshape the output."
    )


def check_lengths(value_shape: Shape, key_shape: Shape) -> None:
    """Checks that values and keys have the same length, as far as it is known."""
    values, keys = tuple(value_shape[1:-1]), tuple(key_shape[1:-1])
    known = None not in (*values, *keys)
    if len(values) != len(keys) or (known and values != keys):
        raise ValueError(
            "the lengths of value and key must be equal, received shapes "
            f"{tuple(value_shape)} and {tuple(key_shape)}."
        )


def check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Checks that the shapes of heads `(B, H, T, K)` match, as far as they are known."""
    if None not in (key.shape[2], value.shape[2]) and key.shape[2] != value.shape[2]:
        raise ValueError(
            "There must be one value for each key, received "
            f"{counted(key.shape[2], 'key')} and {counted(value.shape[2], 'value')}."
        )
    sizes = {x.shape[0] for x in (query, key, value)} - {None}
    if len(sizes) > 1:
        raise ValueError(
            "query, key and value must have the same batch size, received "
            f"{query.shape[0]}, {key.shape[0]} and {value.shape[0]}."
        )


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Checks that a mask broadcasts to scores `(B, H, T, S)`, as far as shapes are known."""
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
    """Checks that a padding mask has the shape `(B, S)`."""
    if mask is not None and len(mask.shape) != 2:
        raise ValueError(
            f"A padding mask must have shape (batch, length), received {tuple(mask.shape)}: pass "
            "padding_mask(ids)."
        )


# Encoder and decoder.


def check_encoder_mask(mask: Tensor, x: Tensor) -> None:
    """Checks that a mask has the shape `(B, S)` of inputs `(B, S, D)`, as far as it is known."""
    pairs = zip(mask.shape, x.shape[:2], strict=False)
    if len(mask.shape) != 2 or any(None not in (m, n) and m not in (1, n) for m, n in pairs):
        raise ValueError(
            f"An encoder's mask must have shape (batch, length), or (batch, queries, keys) to mask "
            f"each pair, received {tuple(mask.shape)} for inputs {tuple(x.shape)}."
        )


def check_memory(
    layer: keras.layers.Layer,
    cross_attention: object,
    memory: Tensor | None,
    x_mask: Tensor | None = None,
) -> None:
    """Checks that a decoder receives the encoder's output if and only if it has cross-attention."""
    if cross_attention and memory is None:
        raise ValueError(
            f"{layer.name!r} has cross-attention but received no memory: call it with (x, memory), "
            "or create it with cross_attention=False."
        )
    if not cross_attention and (memory is not None or len(getattr(x_mask, "shape", ())) == 3):
        raise ValueError(
            f"{layer.name!r} has no cross-attention but received a memory: call it with "
            "(x, x_mask)."
        )


def check_inherits_call(layer: keras.layers.Layer, base: type[keras.layers.Layer]) -> None:
    """Checks that step-by-step decoding computes the same as a layer's `call`.

    Args:
        layer: The decoder or one of its sublayers.
        base: The class whose `call` decoding reproduces.
    """
    if not isinstance(layer, base) or type(layer).call is not base.call:
        method = "attend" if hasattr(base, "attend") else "make_attention"
        raise ValueError(
            f"{type(layer).__name__} ({layer.name!r}) does not use {base.__name__}.call, so it "
            f"cannot be decoded step by step: override {method} of {base.__name__} instead, or "
            "decode the whole prefix each time."
        )


def _is_bool(value):
    return isinstance(value, (bool, int, np.bool_))
