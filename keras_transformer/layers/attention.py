"""Attention: the function, and the layer with several heads.

Shapes: B batch, T number of queries, S number of keys, D width of an input, H heads, K width of a
query and key head, K' width of a value head.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels import backend
from keras_transformer.kernels.layers import EinsumDense
from keras_transformer.layers.composite import CompositeLayer
from keras_transformer.layers.masks import as_boolean, join_masks
from keras_transformer.layers.positions import PositionBias, Positions, make_positions
from keras_transformer.presets.options import SHARE, check_sizes, check_value
from keras_transformer.utils import (
    Config,
    Initializer,
    Nested,
    Shape,
    Tensor,
)

# Far below any score, yet finite: a row without keys must not become NaN.
MASKED_SCORE = -1e9
# Arguments of all four projections, as in Keras' layer.
PENALTIES: tuple[str, ...] = ("kernel_regularizer", "bias_regularizer", "activity_regularizer")
PENALTIES += ("kernel_constraint", "bias_constraint")


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    position_bias: PositionBias | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `softmax(QKᵀ/√K) V` ("Attention Is All You Need", equation 1) for every head.

    Scores, mask and softmax are float32 in every precision. A query that may attend to nothing has
    all-zero weights and so a zero output.

    Args:
        query: Tensor of shape `(B, T, H, K)`.
        key: Tensor of shape `(B, S, H, K)`.
        value: Tensor of shape `(B, S, H, K')`.
        mask: Boolean, True = may attend, of a shape that broadcasts to `(B, H, T, S)`.
        dropout: Rate of dropout on the attention weights.
        seed: Int or `keras.random.SeedGenerator` for the dropout.
        position_bias: A scheme of relative positions, which changes scores and output.

    Returns:
        The output, shape `(B, T, H, K')`, and the weights before dropout, shape `(B, H, T, S)`,
        both in the inputs' dtype.

    Raises:
        ValueError: If the mask is not boolean or does not broadcast to `(B, H, T, S)`, or if batch
            sizes or the lengths of keys and values differ, as far as they are known.

    Example:

    >>> query = np.array([[[[1.0, 0.0]]]])  # B = T = H = 1, K = 2
    >>> key = value = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # S = 2
    >>> output, weights = dot_product_attention(query, key, value)
    >>> weights  # the softmax of 1/√2 and 0
    array([[[[0.6698, 0.3302]]]])
    """
    # Scaling the query, not the product, keeps float16 in its range.
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    output, weights = attend_heads(
        query, key, value, mask, dropout, seed, position_bias=position_bias
    )
    return ops.transpose(output, (0, 2, 1, 3)), weights


def attend_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
    multiply: Callable[..., Tensor] = backend.multiply,
    softmax: Callable[[Tensor], Tensor] = ops.softmax,
    position_bias: PositionBias | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `dot_product_attention` with the heads in front: query `(B, H, T, K)` and so on.

    The query is already multiplied by `1/√K`.
    """
    _check_heads(query, key, value, mask)
    scores = ops.cast(multiply(query, key, transpose_y=True), "float32")
    if position_bias:
        scores = position_bias.scheme.add_scores(scores, query, key, position_bias)
    if mask is not None:
        mask = as_boolean(mask)
        scores = ops.where(mask, scores, MASKED_SCORE)
    # With a single key its weight is 1, and Keras warns of a softmax over one entry.
    weights = ops.ones_like(scores) if scores.shape[-1] == 1 else softmax(scores)
    if mask is not None:
        weights = ops.where(mask, weights, 0.0)  # a row without keys attends to nothing
    weights = ops.cast(weights, value.dtype)
    kept = keras.random.dropout(weights, dropout, seed=seed) if dropout else weights
    output = multiply(kept, value)
    if position_bias:
        output = position_bias.scheme.add_values(output, kept, position_bias)
    return output, weights


def _check_heads(query, key, value, mask):
    """Checks that heads `(B, H, T, K)` and their mask match, as far as shapes are known."""
    check_equal_sizes("numbers of rows", *(x.shape[0] for x in (query, key, value)))
    check_equal_sizes("lengths of key and value", key.shape[2], value.shape[2])
    if mask is None:
        return
    given, expected = tuple(mask.shape), (*query.shape[:3], key.shape[2])
    pairs = zip(reversed(given), reversed(expected), strict=False)
    fits = all(None in pair or pair[0] in (1, pair[1]) for pair in pairs)
    if len(given) > 4 or not fits:
        raise ValueError(
            f"The attention mask has shape {given}, which does not broadcast to {expected} = "
            "(batch, heads, queries, keys): pass (batch, queries, keys) to the layer, with size 1 "
            "for a shared axis."
        )


def check_equal_sizes(what: str, *sizes: int | None) -> None:
    """Checks that sizes are equal, as far as they are known: size 1 would broadcast."""
    if len({*sizes} - {None}) > 1:
        raise ValueError(f"The {what} must be equal, received {', '.join(map(str, sizes))}.")


class AttendingLayer(CompositeLayer):
    """Base of the layers that take masks and can return their attention weights."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nested:
        # Keras passes the masks attached to tensors by name, and would pass a mask twice if it was
        # given as None by position: so these and what follows are passed by name. What precedes
        # them is not: `keras.RematScope` computes gradients of positional arguments only.
        signature = inspect.signature(self.call)
        arguments = signature.bind(*args, **kwargs).arguments
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name, {})
        inputs = []
        for name, given in zip(signature.parameters, list(arguments), strict=False):
            if name != given or name.endswith("mask"):
                break
            inputs.append(arguments.pop(name))
        return super().__call__(*inputs, **arguments)

    def compute_mask(self, x: Tensor, previous: Tensor | None = None) -> Tensor | None:
        # Keras would pass on what was given as `mask`, which may be a mask of pairs.
        is_of_pairs = len(getattr(previous, "shape", ())) == 3
        return getattr(x, "_keras_mask", None) if is_of_pairs else previous

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

    Not supported: `attention_axes` (inputs have rank 3), `sliding_window` (pass an `attention_mask`
    instead), `flash_attention`, `use_gate`, and an `output_shape` of several axes.

    Args:
        num_heads: H.
        key_dim: K, width of each query and key head.
        value_dim: K', width of each value head; defaults to `key_dim`.
        dropout: Rate of dropout on the attention weights.
        use_bias: Whether the projections have biases.
        output_shape: Width of the output; defaults to the query's width D.
        kernel_initializer: Initializer of the kernels, each as one (inputs, outputs) matrix.
        bias_initializer: Initializer of the biases.
        seed: Seed of the dropout.
        output_initializer: Initializer of the output kernel, if it differs from the others'.
        positions: Scheme of relative positions: `"relative"`, `"bucketed"`, `"rotary"` or
            `"disentangled"`; a `Positions`; or None.
        max_distance: Largest distance of a scheme that is given by name, if it has one.
        **kwargs: `kernel_regularizer`, `bias_regularizer`, `activity_regularizer`,
            `kernel_constraint` and `bias_constraint` of the projections; those of every layer.

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
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        output_initializer: Initializer | None = None,
        positions: str | Positions | None = None,
        max_distance: int | None = None,
        **kwargs: Any,
    ) -> None:
        penalties = {name: kwargs.pop(name, None) for name in PENALTIES}
        super().__init__(**kwargs)
        self.penalties = penalties
        value_dim = key_dim if value_dim is None else value_dim
        heads = check_sizes(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        check_value("dropout", dropout, SHARE)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.num_heads, self.key_dim, self.value_dim = heads
        self.dropout = dropout
        self.use_bias = use_bias
        sizes: Any = output_shape if isinstance(output_shape, tuple | list) else (output_shape,)
        (self.output_dim,) = sizes
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.output_initializer = keras.initializers.get(
            self.kernel_initializer if output_initializer is None else output_initializer
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None
        self.positions = make_positions(positions, max_distance, dtype=self.dtype_policy)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        heads, key_dim, value_dim = self.num_heads, self.key_dim, self.value_dim
        key_shape = value_shape if key_shape is None else key_shape
        to_heads = "btd,dhk->bthk", "hk"
        self.query_dense = self._project("query", query_shape, (heads, key_dim), *to_heads)
        self.key_dense = self._project("key", key_shape, (heads, key_dim), *to_heads)
        self.value_dense = self._project("value", value_shape, (heads, value_dim), *to_heads)
        heads_shape = *query_shape[:-1], heads, value_dim
        width = self.output_dim or query_shape[-1]
        self.output_dense = self._project(
            "attention_output", heads_shape, (width,), "bthk,hkd->btd", "d"
        )
        if self.positions:
            sizes = heads, key_dim, value_dim, query_shape[-1]
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
        mask = join_masks(query_mask, (value_mask, key_mask), attention_mask, causal)
        query = self.query_dense(query)
        key = self.key_dense(value if key is None else key)
        value = self.value_dense(value)
        position_kwargs = {}  # an overridden `attend` without positions need not accept it
        if self.positions:
            lengths = ops.shape(query)[1], ops.shape(key)[1]
            bias = PositionBias(self.positions, *lengths)
            query, key = (self.positions.rotate(heads, bias) for heads in (query, key))
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

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self) -> Config:
        names = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "seed", "positions")
        initializers = ("kernel_initializer", "bias_initializer", "output_initializer")
        values = {name: getattr(self, name) for name in (*names, *initializers)} | self.penalties
        config = {name: keras.saving.serialize_keras_object(x) for name, x in values.items()}
        return super().get_config() | config | {"output_shape": self.output_dim}

    def _project(self, name, input_shape, output_sizes, equation, bias_axes):
        """Builds one of the four projections."""
        output = name == "attention_output"
        initializer = self.output_initializer if output else self.kernel_initializer
        dense = EinsumDense(
            equation,
            (None, *output_sizes),
            bias_axes=bias_axes if self.use_bias else None,
            # An initializer object returns the same values each time: use fresh copies.
            kernel_initializer=initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            **self.penalties,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.supports_masking = True  # or Keras would warn of each mask that a tensor carries
        dense.build(input_shape)
        return dense
