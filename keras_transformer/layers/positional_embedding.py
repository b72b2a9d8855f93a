"""Token embedding and positional encoding.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

import math
import numbers
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.backend import nan_unless, project, values_of
from keras_transformer.kernels.layers import Dropout
from keras_transformer.layers.masks import padding_mask
from keras_transformer.presets.options import (
    ABSOLUTE,
    FREQUENCIES,
    check_positions,
    check_sizes,
    check_value,
)
from keras_transformer.utils import Config, Shape, Tensor

IDS_SCOPE = "checked_ids"  # name scope of lookups, which fail if a graph runs with invalid ids


def _check_ids(ids, vocabulary_size):
    """Checks the shape of ids `(B, T)`, and their values where they are known."""
    if hasattr(ids, "row_splits"):
        raise ValueError("Ids must be a dense tensor, received a ragged one: call its to_tensor().")
    if len(ids.shape) != 2:
        raise ValueError(f"Ids must have shape (batch, length), received {tuple(ids.shape)}.")
    values = values_of(ids)
    if values is None:
        return
    # Keras' inputs are floats by default: whole numbers may arrive as such.
    invalid = values[(values != np.floor(values)) | (values < 0) | (values >= vocabulary_size)]
    if invalid.size:
        raise ValueError(
            f"Ids must be integers in 0 … {vocabulary_size - 1}, received {invalid[0]}: tokenize "
            "with the vocabulary that the model was built for."
        )


def sinusoidal_encoding(
    length: int | Tensor,
    d_model: int,
    start: int | Tensor = 0,
    frequencies: str = FREQUENCIES[0],
) -> Tensor:
    """Encodes positions as sines and cosines ("Attention Is All You Need", §3.5).

    `PE(p, 2i) = sin(p / 10000^(2i/D))` and `PE(p, 2i+1) = cos(p / 10000^(2i/D))`, angles in
    radians. Computed on the fly in float32, in every precision of the model: there is no maximum
    length, and neighbouring positions remain distinct, which bfloat16 would round to one.

    Args:
        length: T, number of positions, an int or a scalar integer tensor.
        d_model: D, an even int.
        start: The first position: an int or a scalar integer tensor.
        frequencies: `"transformer"`, the paper's `10000^(-2i/D)`; or `"tensor2tensor"`,
            `10000^(-i/(D/2-1))`, whose last one is exactly 1/10000, as in Tensor2Tensor, Marian and
            OpenNMT-tf.

    Returns:
        float32 tensor of shape `(T, D)`.

    Raises:
        ValueError: If `d_model` is odd, or `frequencies` unknown.

    Example:

    >>> sinusoidal_encoding(1, 4, start=1)  # sin 1, cos 1, sin 0.01, cos 0.01
    array([[0.8415, 0.5403, 0.0100, 0.99995]])
    """
    if d_model % 2:
        raise ValueError(f"Sinusoidal positions need an even d_model, received {d_model}.")
    check_value("frequencies", frequencies, FREQUENCIES)
    steps = d_model / 2 if frequencies == "transformer" else max(d_model / 2 - 1, 1)
    # One turn is 2π. Whole turns are dropped before sin and cos; a plain float32 product would have
    # an error of 1e-4 at position 1,000. With turns in multiples of 1/4096, 4096 positions are
    # whole turns, and the product of the rest is exact.
    turns = 10000.0 ** (-np.arange(d_model // 2) / steps) / (2 * math.pi)
    coarse = np.round(turns * 4096) / 4096
    positions = ops.cast(start, "float32") + ops.arange(length, dtype="float32")
    positions = ops.expand_dims(positions, 1)  # (T, 1)
    phase = (positions - 4096 * ops.floor(positions / 4096)) * coarse.astype("float32")
    phase = phase - ops.floor(phase) + positions * (turns - coarse).astype("float32")
    angles = phase * np.float32(2 * math.pi)  # (T, D/2)
    encoding = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (T, D/2, 2)
    return ops.reshape(encoding, (-1, d_model))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Embeds token ids, scales them by √D and adds positional encodings.

    The embedding can also serve as the output projection (`logits`): "Attention Is All You Need",
    §3.4, shares one matrix between both embeddings and the softmax.

    Args:
        vocabulary_size: V, number of ids.
        d_model: D, width of the model.
        positions: `"sinusoidal"` (§3.5; any length) or `"learned"` (at most `max_length`); or any
            of `"none"`, `"relative"`, `"bucketed"`, `"rotary"` and `"disentangled"`, which add
            nothing here.
        max_length: Number of learned positions; not needed for others.
        dropout: Rate of dropout on the sum (§5.4).
        frequencies: Of sinusoidal positions, see `sinusoidal_encoding`.
        first_position: Number of the first sinusoidal position, from 0.
        output_bias: Whether `logits` adds a bias, which is learned.

    Call arguments:
        ids: Token ids, shape `(B, T)`, any integer dtype; 0 is padding.
        start: Position of the first id, an int or a scalar integer tensor.
        training: Whether to apply dropout.
        reverse: Whether to map `(..., D)` to logits `(..., V)` instead, as in
            `keras.layers.ReversibleEmbedding`; see `logits`.

    Returns:
        Tensor of shape `(B, T, D)` in the compute dtype. The padding mask is attached to it for the
        next layers; logits have none.

    Raises:
        ValueError: If an argument is out of range; if the ids have the wrong shape or, outside a
            compiled function, one is not an integer, not in the vocabulary or beyond the learned
            positions. Where a compiled function cannot raise (XLA, GPUs), that token is NaN.

    Example:

    >>> embedding = PositionalEmbedding(vocabulary_size=100, d_model=16)
    >>> x = embedding(np.array([[5, 6, 7, 0]]))  # (1, 4, 16)
    >>> embedding.logits(x).shape
    (1, 4, 100)
    """

    def __init__(
        self,
        vocabulary_size: int,
        d_model: int,
        positions: str = "sinusoidal",
        max_length: int | None = None,
        dropout: float = 0.0,
        frequencies: str = FREQUENCIES[0],
        first_position: int = 0,
        output_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        # No autocast: it would round float ids (Keras feeds some while building under a
        # distribution strategy) to half precision.
        super().__init__(autocast=False, **kwargs)
        sizes = {"vocabulary_size": vocabulary_size, "d_model": d_model}
        vocabulary_size, d_model = check_sizes(**sizes)
        check_positions(
            positions, d_model=d_model, frequencies=frequencies, first_position=first_position
        )
        if positions == "learned" and not max_length:
            raise ValueError("positions='learned' requires max_length, the number of positions.")
        self.supports_masking = True
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.positions = positions
        self.max_length = max_length
        self.dropout = dropout
        self.frequencies = frequencies
        self.first_position = first_position
        self.has_output_bias = output_bias
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, ids_shape: Shape | None = None) -> None:
        # With this deviation the scaled embedding has unit variance, like the positional encoding,
        # and the logits of a shared softmax start small.
        initializer = keras.initializers.RandomNormal(stddev=self.d_model**-0.5)
        # No autocast: Keras would cast or not, depending on whether a model calls the layer.
        self.embeddings = self.add_weight(
            (self.vocabulary_size, self.d_model), initializer, autocast=False, name="embeddings"
        )
        if self.positions == "learned":
            initializer = keras.initializers.RandomNormal(stddev=0.02)
            self.position_embeddings = self.add_weight(
                (self.max_length, self.d_model),
                initializer,
                autocast=False,
                name="position_embeddings",
            )
        self.output_bias = None
        if self.has_output_bias:
            self.output_bias = self.add_weight(
                (self.vocabulary_size,), "zeros", autocast=False, name="output_bias"
            )
        self.built = True

    def call(
        self,
        ids: Tensor,
        start: int | Tensor = 0,
        training: bool | None = None,
        reverse: bool = False,
    ) -> Tensor:
        if reverse:
            if len(ids.shape) == 2 or ids.shape[-1] != self.d_model:
                raise ValueError(
                    f"Logits need an input (batch, length, d_model={self.d_model}), received shape "
                    f"{tuple(ids.shape)}."
                )
            columns, bias = self.columns_and_bias()
            return project(ops.cast(ids, self.compute_dtype), ops.transpose(columns), bias)
        ids = ops.convert_to_tensor(ids)
        _check_ids(ids, self.vocabulary_size)
        rows = ops.cast(ids, "int32")
        invalid = ops.less(rows, 0)
        if keras.backend.standardize_dtype(ids.dtype) != "int32":
            invalid = ops.logical_or(invalid, ops.not_equal(rows, ids))
        # Keras would count negative ids from the end of the vocabulary.
        rows = ops.where(invalid, self.vocabulary_size, rows)
        with keras.name_scope(IDS_SCOPE):
            x = ops.take(ops.convert_to_tensor(self.embeddings), rows, axis=0)  # (B, T, D)
        # For an invalid id, XLA takes some other row, and a GPU zeros: make that NaN.
        scale = math.sqrt(self.d_model) + nan_unless(ops.less(rows, self.vocabulary_size))
        x = ops.cast(x, "float32") * ops.expand_dims(scale, -1)
        if self.positions in ABSOLUTE:
            x = x + self._encode_positions(rows, start)
        return self.dropout_layer(ops.cast(x, self.compute_dtype), training=training)

    def logits(self, x: Tensor) -> Tensor:
        """Projects `(..., D)` to logits `(..., V)` by the transposed embedding (§3.4).

        `output_bias` is added. This calls the layer, so it works in functional models, where
        embedding and logits share their weights in saved models too.
        """
        if len(x.shape) == 2:  # the rank of ids, for which Keras would compute a mask
            return ops.squeeze(self(ops.expand_dims(x, 1), reverse=True), 1)
        return self(x, reverse=True)

    def columns_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Returns the matrix `(V, D)` and the bias `(V,)` of `logits`, in the compute dtype."""
        columns = ops.cast(self.embeddings, self.compute_dtype)
        bias = self.output_bias
        return columns, bias if bias is None else ops.cast(bias, self.compute_dtype)

    def compute_mask(self, ids: Tensor, previous: Tensor | None = None) -> Tensor | None:
        return padding_mask(ids) if len(ids.shape) == 2 else None

    def compute_output_shape(self, ids_shape: Shape, reverse: bool = False) -> Shape:
        return (*ids_shape[:-1], self.vocabulary_size) if reverse else (*ids_shape, self.d_model)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> keras.KerasTensor:
        # Traces call, whose output depends on `reverse`.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> Config:
        names = ("vocabulary_size", "d_model", "positions", "max_length", "dropout", "frequencies")
        config = {name: getattr(self, name) for name in (*names, "first_position")}
        return super().get_config() | config | {"output_bias": self.has_output_bias}

    def _encode_positions(self, ids, start):
        """Returns the positional encodings, float32 `(T, D)`."""
        length = ops.shape(ids)[1]
        shape = getattr(start, "shape", ())
        if shape.rank if hasattr(shape, "rank") else len(shape):
            raise ValueError(f"start must be a scalar, received shape {tuple(shape)}.")
        if self.positions == "sinusoidal":
            start = self.first_position + start
            return sinusoidal_encoding(length, self.d_model, start, self.frequencies)
        first = start if isinstance(start, numbers.Integral) else values_of(start)
        known = first is not None and isinstance(length, int)
        if known and not 0 <= first <= self.max_length - length:
            raise ValueError(
                f"This layer has {self.max_length} learned positions, received ids at positions "
                f"{first} … {first + length - 1}."
            )
        first = ops.cast(start, "int32")
        table = ops.cast(self.position_embeddings, "float32")
        positions = first + ops.arange(length, dtype="int32")
        x = ops.take(table, positions, axis=0)
        if known:
            return x
        valid = ops.logical_and(positions >= 0, positions < self.max_length)
        return x + ops.expand_dims(nan_unless(valid), -1)
