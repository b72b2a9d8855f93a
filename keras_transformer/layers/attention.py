"""Multi-head attention.

Shapes: B batch, T number of queries, S number of keys, D width of an input, H heads, K width of a
query and key head, K' width of a value head.
"""

import inspect
import numbers
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.layers import EinsumDense
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.composite import CompositeLayer
from keras_transformer.layers.dot_product_attention import dot_product_attention
from keras_transformer.layers.masks import join_masks
from keras_transformer.layers.positions import PositionBias, Positions, make_positions
from keras_transformer.presets.options import SHARE, check_value
from keras_transformer.utils import (
    Config,
    Constraint,
    Initializer,
    Nested,
    Regularizer,
    Shape,
    Tensor,
)


class AttendingLayer(CompositeLayer):
    """Base of the layers that take masks and can return their attention weights."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        kinds = {parameter.kind for parameter in inspect.signature(self.call).parameters.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise ValueError(
                f"{type(self).__name__}.call takes *args or **kwargs, in which Keras cannot find "
                "the masks: name the arguments of the method that it overrides."
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        # Keras passes the masks attached to tensors by name, and would pass a mask twice if it was
        # given as None by position: so everything is passed by name.
        return super().__call__(**inspect.signature(self.call).bind(*args, **kwargs).arguments)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nested:
        # Traces call, whose outputs depend on return_attention_scores.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(AttendingLayer):
    """Attends with several heads at once ("Attention Is All You Need", §3.2.2).

    `Concat(head₁ … head_H) W^O` with `headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)`. A drop-in for
    `keras.layers.MultiHeadAttention` on inputs of rank 3: same call, same weights in the same order
    and shapes. It differs if a query may attend to nothing (zero weights, where Keras averages over
    all keys), and it respects an explicit `query_mask`.

    The projections are the sublayers `query_dense`, `key_dense`, `value_dense` and `output_dense`,
    as in Keras: LoRA and quantization of them apply to decoding too. A subclass with another kind
    of attention overrides `attend`, which training and step-by-step decoding share.

    Not supported: `attention_axes` other than 1 (inputs have rank 3), `sliding_window` (pass an
    `attention_mask` instead), `flash_attention=True`, `use_gate`, and an `output_shape` of several
    axes.

    Args:
        num_heads: H.
        key_dim: K, width of each query and key head.
        value_dim: K', width of each value head; defaults to `key_dim`.
        dropout: Rate of dropout on the attention weights.
        use_bias: Whether the projections have biases.
        output_shape: Width of the output; defaults to the query's width D.
        attention_axes, sliding_window, flash_attention, use_gate: Only Keras' defaults are allowed.
        kernel_initializer: Initializer of the kernels, each as one (inputs, outputs) matrix.
        bias_initializer: Initializer of the biases.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: Of the same.
        activity_regularizer: Regularizer of the output of each of the four projections.
        seed: Seed of the dropout.
        output_initializer: Initializer of the output kernel, if it differs from the others'.
        positions: Scheme of relative positions: `"relative"`, `"bucketed"`, `"rotary"` or
            `"disentangled"`; a `Positions`; or None.
        max_distance: Largest distance of a scheme that is given by name, if it has one.

    Call arguments:
        query: Tensor of shape `(B, T, D)`.
        value: Tensor of shape `(B, S, D')`.
        key: Tensor of shape `(B, S, D'')`; defaults to `value`.
        query_mask: Boolean `(B, T)`; False rows attend to nothing.
        value_mask, key_mask: Boolean `(B, S)`, True = may be attended to.
        attention_mask: Boolean `(B, T, S)`, or anything that broadcasts to `(B, H, T, S)`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.
        use_causal_mask: Whether query t may attend to keys 0 … t only.

    Returns:
        Tensor of shape `(B, T, output_shape)`; with `return_attention_scores` also the weights,
        shape `(B, H, T, S)`.

    Raises:
        ValueError: If a size is not a positive integer, an argument is not supported, or keys,
            values and masks do not fit together.

    Example:

    >>> attention = MultiHeadAttention(num_heads=8, key_dim=64)
    >>> x = np.random.normal(size=(2, 10, 512))
    >>> attention(x, x, use_causal_mask=True).shape
    (2, 10, 512)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | tuple[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        use_gate: bool = False,
        seed: int | None = None,
        output_initializer: Initializer | None = None,
        positions: str | Positions | None = None,
        max_distance: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_supported("attention_axes", attention_axes, (None, 1, (1,), [1]))
        _check_supported("sliding_window", sliding_window, (None,))
        _check_supported("flash_attention", flash_attention, (None, False))
        _check_supported("use_gate", use_gate, (False,))
        value_dim = key_dim if value_dim is None else value_dim
        sizes = check_sizes(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        check_value("dropout", dropout, SHARE)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.num_heads, self.key_dim, self.value_dim = sizes
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = _parse_output_shape(output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.output_initializer = keras.initializers.get(
            self.kernel_initializer if output_initializer is None else output_initializer
        )
        self.penalties = {
            "kernel_regularizer": keras.regularizers.get(kernel_regularizer),
            "bias_regularizer": keras.regularizers.get(bias_regularizer),
            "activity_regularizer": keras.regularizers.get(activity_regularizer),
            "kernel_constraint": keras.constraints.get(kernel_constraint),
            "bias_constraint": keras.constraints.get(bias_constraint),
        }
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None
        self.positions = make_positions(positions, max_distance, dtype=self.dtype_policy)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        _check_lengths(value_shape, key_shape)
        heads, value_dim = self.num_heads, self.value_dim
        self.query_dense = self._make_projection("query", query_shape, self.key_dim)
        self.key_dense = self._make_projection("key", key_shape, self.key_dim)
        self.value_dense = self._make_projection("value", value_shape, value_dim)
        self.output_dense = self._make_dense(
            "bthk,hkd->btd", (None, self.output_dim or query_shape[-1]), "d", "attention_output"
        )
        self.output_dense.build((*query_shape[:-1], heads, value_dim))
        if self.positions:
            sizes = heads, self.key_dim, value_dim, query_shape[-1]
            self.positions.prepare(*sizes, policy=self.dtype_policy)
        self.finish_build()

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        causal = (ops.shape(query)[1], ops.shape(value)[1]) if use_causal_mask else None
        mask = join_masks(query_mask, value_mask, key_mask, attention_mask, causal)
        query = self.query_dense(query)
        key = self.key_dense(value if key is None else key)
        value = self.value_dense(value)
        position_kwargs = {}  # an overridden `attend` without positions need not accept it
        if self.positions:
            lengths = ops.shape(query)[1], ops.shape(key)[1]
            bias = PositionBias(self.positions, *lengths)
            query, key = bias.rotate(query), bias.rotate(key)
            position_kwargs = {"position_bias": bias}
        output, weights = self.attend(
            query, key, value, mask=mask, training=training, **position_kwargs
        )
        output = self.output_dense(output)
        return (output, weights) if return_attention_scores else output

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        position_bias: PositionBias | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attends with projected heads, see `dot_product_attention`.

        `position_bias`, the scheme of relative positions, has already rotated queries and keys; it
        is passed only if the layer has `positions`.
        """
        dropout = self.dropout if training else 0.0
        return dot_product_attention(
            query, key, value, mask, dropout, self.seed_generator, position_bias
        )

    def compute_mask(
        self, query: Tensor, previous: Tensor | Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        return previous[0] if isinstance(previous, (list, tuple)) else previous

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        _check_lengths(value_shape, value_shape if key_shape is None else key_shape)
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self) -> Config:
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self.output_dim,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "seed": self.seed,
            "output_initializer": keras.initializers.serialize(self.output_initializer),
            **{k: keras.saving.serialize_keras_object(v) for k, v in self.penalties.items()},
            "positions": self.positions and keras.saving.serialize_keras_object(self.positions),
        }

    def _make_projection(self, name, input_shape, width):
        """Builds the layer from `(B, T, D)` to heads `(B, T, H, width)`."""
        dense = self._make_dense("btd,dhk->bthk", (None, self.num_heads, width), "hk", name)
        dense.build(input_shape)
        return dense

    def _make_dense(self, equation, output_shape, bias_axes, name):
        output = name == "attention_output"
        initializer = self.output_initializer if output else self.kernel_initializer
        return EinsumDense(
            equation,
            output_shape,
            bias_axes=bias_axes if self.use_bias else None,
            # An initializer object returns the same values each time: use fresh copies.
            kernel_initializer=initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            **self.penalties,
            dtype=self.dtype_policy,
            name=name,
        )


def _check_supported(name, value, supported):
    if value not in supported:
        raise ValueError(
            f"kt.MultiHeadAttention does not support {name}, received {value!r}: omit it, or use "
            "keras.layers.MultiHeadAttention."
        )


def _parse_output_shape(output_shape):
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


def _check_lengths(value_shape, key_shape):
    """Checks that values and keys have the same length, as far as it is known."""
    values, keys = tuple(value_shape[1:-1]), tuple(key_shape[1:-1])
    known = None not in (*values, *keys)
    if len(values) != len(keys) or (known and values != keys):
        raise ValueError(
            "the lengths of value and key must be equal, received shapes "
            f"{tuple(value_shape)} and {tuple(key_shape)}."
        )
