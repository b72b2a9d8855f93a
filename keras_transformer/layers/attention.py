"""Multi-head attention.

Shapes: B batch, T number of queries, S number of keys, D width of an input, H heads, K width of a
query and key head, K' width of a value head.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.dense import EinsumDense
from keras_transformer.layers import attention_arguments as arguments
from keras_transformer.layers.arguments import check_sizes
from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.dot_product_attention import dot_product_attention
from keras_transformer.layers.masks import join_masks
from keras_transformer.layers.positions import Positions, make_positions
from keras_transformer.layers.relation import NO_RELATION, Relation
from keras_transformer.typing import Config, Constraint, Initializer, Regularizer, Shape, Tensor

__all__ = ["MultiHeadAttention", "dot_product_attention"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(AttendingLayer):
    """Attends with several heads at once ("Attention Is All You Need", §3.2.2).

    `Concat(head₁ … head_H) W^O` with `headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)`. A drop-in for
    `keras.layers.MultiHeadAttention` on inputs of rank 3: called alike, with the same weights in
    the same order and shapes. It differs where a query may attend to nothing (zero weights, where
    Keras averages over all keys) and honours an explicit `query_mask`.

    The projections are the sublayers `query_dense`, `key_dense`, `value_dense` and `output_dense`,
    as in Keras: LoRA and quantization of them hold in decoding too, and are saved. A subclass
    with another kind of attention overrides `attend`, which training and step-by-step decoding
    share.

    What Keras' layer has and this one has not, each refused by its name:

    - `attention_axes` other than 1, and so inputs of another rank than 3;
    - `sliding_window`: pass such an `attention_mask`;
    - `flash_attention=True`: the weights are computed in full;
    - `use_gate`;
    - an `output_shape` of several axes.

    Args:
        num_heads: H.
        key_dim: K, width of each query and key head.
        value_dim: K', width of each value head; `key_dim` when left out.
        dropout: Share of the attention weights that is dropped in training.
        use_bias: Whether the projections have biases.
        output_shape: Width of the output; the query's width D when left out.
        attention_axes, sliding_window, flash_attention, use_gate: As Keras has them by default.
        kernel_initializer: Of the kernels, each seen as one (inputs, outputs) matrix.
        bias_initializer: Of the biases.
        kernel_regularizer, bias_regularizer: Of the same.
        activity_regularizer: Of the outputs of each of the four projections.
        kernel_constraint, bias_constraint: Of the same as the initializers.
        seed: Of the dropout.
        output_initializer: Of the output's kernel, if it is to be another one.
        positions: What the heads are told of where queries and keys are: one of `"relative"`,
            `"bucketed"`, `"rotary"`, `"disentangled"` and, for causal attention, `"alibi"`; a
            `Positions`, which several attentions may share; or None.
        max_distance: Of a scheme that is named, where it has one.

    Call arguments:
        query: Tensor of shape `(B, T, D)`.
        value: Tensor of shape `(B, S, D')`.
        key: Tensor of shape `(B, S, D'')`; `value` when left out.
        query_mask: Boolean `(B, T)`; False rows attend to nothing.
        value_mask: Boolean `(B, S)`, True = may be attended to.
        key_mask: Boolean `(B, S)`, likewise.
        attention_mask: Boolean `(B, T, S)`, or anything that broadcasts to `(B, H, T, S)`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.
        use_causal_mask: Whether query t may attend to keys 0 … t only.

    Returns:
        Tensor of shape `(B, T, output_shape)`; with `return_attention_scores` also the weights,
        shape `(B, H, T, S)`.

    Raises:
        ValueError: If a size is not a positive integer, something is asked for that this layer does
            not have, or keys, values and masks do not fit together.

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
        arguments.refuse_others(
            attention_axes=attention_axes,
            sliding_window=sliding_window,
            flash_attention=flash_attention,
            use_gate=use_gate,
        )
        value_dim = key_dim if value_dim is None else value_dim
        sizes = check_sizes(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, received {dropout}.")
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.num_heads, self.key_dim, self.value_dim = sizes
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = arguments.last_dim(output_shape)
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
        arguments.check_lengths(value_shape, key_shape)
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
            self.positions.prepare(*sizes, self.dtype_policy)
        self.built = True

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
        arguments.check_lengths(value.shape, value.shape if key is None else key.shape)
        causal = (ops.shape(query)[1], ops.shape(value)[1]) if use_causal_mask else None
        mask = join_masks(query_mask, value_mask, key_mask, attention_mask, causal)
        query = self.query_dense(query)
        key = self.key_dense(value if key is None else key)
        value = self.value_dense(value)
        told = {}  # where there is nothing to tell, an `attend` of users' own need not know of it
        if self.positions:
            lengths = ops.shape(query)[1], ops.shape(key)[1]
            relation = self.positions.lay_out()(*lengths, 0)
            query, key = relation.rotate(query), relation.rotate(key)
            told = {"relation": relation}
        output, weights = self.attend(query, key, value, mask=mask, training=training, **told)
        output = self.output_dense(output)
        return (output, weights) if return_attention_scores else output

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        relation: Relation = NO_RELATION,
    ) -> tuple[Tensor, Tensor]:
        """Attends with projected heads.

        Args:
            query: Tensor of shape `(B, T, H, K)`.
            key: Tensor of shape `(B, S, H, K)`.
            value: Tensor of shape `(B, S, H, K')`.
            mask: Boolean, of a shape that broadcasts to `(B, H, T, S)`.
            training: Whether to drop.
            relation: Where queries and keys are, for what is yet to be told after rotation; given
                only where the layer has `positions`.

        Returns:
            Tensor of shape `(B, T, H, K')`; and the attention weights, shape `(B, H, T, S)`.
        """
        dropout = self.dropout if training else 0.0
        how = mask, dropout, self.seed_generator
        return dot_product_attention(query, key, value, *how, relation=relation)

    def compute_mask(
        self, query: Tensor, previous: Tensor | Sequence[Tensor | None] | None = None
    ) -> Tensor | None:
        return previous[0] if isinstance(previous, (list, tuple)) else previous

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        arguments.check_lengths(value_shape, value_shape if key_shape is None else key_shape)
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
            "positions": self.positions and self.positions.serialize_for(self),
        }

    def load_own_variables(self, store: Any) -> None:
        if len(store.keys()):
            raise ValueError(
                f"The file holds weights of {self.name!r} as a version before 0.1.0 wrote them, "
                "which this one does not read: train or convert with the version that wrote it."
            )
        super().load_own_variables(store)

    def _make_projection(self, name, input_shape, width):
        """The layer from `(B, T, D)` to heads `(B, T, H, width)`."""
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
            # One initializer object gives equal values each time it is called: take fresh copies.
            kernel_initializer=initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            **self.penalties,
            dtype=self.dtype_policy,
            name=name,
        )
