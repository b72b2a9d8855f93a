"""Multi-head attention.

Shapes: B batch, T number of queries, S number of keys, D width of an input, H heads, K width of a
query and key head, K' width of a value head.
"""

import math

import keras
from keras import ops

from keras_transformer.layers.attending_layer import AttendingLayer
from keras_transformer.layers.masks import join_masks
from keras_transformer.layers.projection import projection
from keras_transformer.layers.scaled_dot_product import (
    attend_heads,
    dot_product_attention,
    query_scale,
)

__all__ = ["MultiHeadAttention", "dot_product_attention"]


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(AttendingLayer):
    """Attends with several heads at once ("Attention Is All You Need", §3.2.2).

    `Concat(head₁ … head_H) W^O` with `headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)`. A drop-in for
    `keras.layers.MultiHeadAttention` on inputs of rank 3: called alike, with the same weights in
    the same order and shapes. It differs where a query may attend to nothing (zero weights, where
    Keras averages over all keys) and honours an explicit `query_mask`.

    Args:
        num_heads: H.
        key_dim: K, width of each query and key head.
        value_dim: K', width of each value head; `key_dim` when left out.
        dropout: Share of the attention weights that is dropped in training.
        use_bias: Whether the projections have biases.
        output_shape: Width of the output; the query's width D when left out.
        kernel_initializer: Of the kernels, each seen as one (inputs, outputs) matrix.
        bias_initializer: Of the biases.
        seed: Of the dropout.
        output_initializer: Of the output's kernel, if it is to be another one.

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
        ValueError: If a size is not a positive integer, or a mask has the wrong shape.

    Example:

    >>> attention = MultiHeadAttention(num_heads=8, key_dim=64)
    >>> x = np.random.normal(size=(2, 10, 512))
    >>> attention(x, x, use_causal_mask=True).shape
    (2, 10, 512)
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        output_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        sizes = {"num_heads": num_heads, "key_dim": key_dim, "value_dim": value_dim}
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive integer, received {size!r}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, received {dropout}.")
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.output_dim = _last_dim(output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.output_initializer = keras.initializers.get(
            self.kernel_initializer if output_initializer is None else output_initializer
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        heads, key_dim, value_dim = self.num_heads, self.key_dim, self.value_dim
        output_dim = self.output_dim or query_shape[-1]
        self.query_kernel, self.query_bias = self._add_projection(
            "query", (query_shape[-1], heads, key_dim), 1, self.kernel_initializer
        )
        self.key_kernel, self.key_bias = self._add_projection(
            "key", (key_shape[-1], heads, key_dim), 1, self.kernel_initializer
        )
        self.value_kernel, self.value_bias = self._add_projection(
            "value", (value_shape[-1], heads, value_dim), 1, self.kernel_initializer
        )
        self.output_kernel, self.output_bias = self._add_projection(
            "output", (heads, value_dim, output_dim), 2, self.output_initializer
        )
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        causal = (ops.shape(query)[1], ops.shape(value)[1]) if use_causal_mask else None
        mask = join_masks(query_mask, value_mask, key_mask, attention_mask, causal)
        if query is value and (key is None or key is value):
            heads = self.project_self(query)
        else:
            heads = (self.project_query(query), *self.project_memory(value, key))
        output, scores = self.attend(*heads, mask=mask, training=training)
        return (output, scores) if return_attention_scores else output

    def project_query(self, query):
        """Projects `(B, T, D)`, or one position `(B, D)`, to what `projector` makes of it."""
        return self.projector("query")(query)[0]

    def project_memory(self, value, key=None):
        """Projects `(B, S, D)` to key heads `(B, H, S, K)` and value heads `(B, H, S, K')`."""
        if key is None or key is value:
            return self.projector("key", "value")(value)
        return (*self.projector("key")(key), *self.projector("value")(value))

    def project_self(self, x):
        """Projects `(B, T, D)`, or one position `(B, D)`, to what `projector` makes of it."""
        return self.projector("query", "key", "value")(x)

    def projector(self, *names, loop=None):
        """Returns a function that projects to heads, with the weights as they are now.

        Args:
            names: Any of `"query"`, `"key"`, `"value"`.
            loop: What runs the loop that it is for, as `projection` has it. Kernels are joined to
                one only for a loop: once, that takes longer than one product for three saves.

        Returns:
            Function from `(B, T, D)`, or one position `(B, D)`, to heads `(B, H, T, K)`, one tensor
            per name. The query comes multiplied by `query_scale`: that is done to its weights,
            which are fewer.
        """

        def product(names):
            def joined(kind):
                weights = [self._cast(self._flat_weight(name, kind)) for name in names]
                return ops.concatenate(weights, axis=-1)

            multiply = projection(joined("kernel"), joined("bias") if self.use_bias else None, loop)
            if len(names) == 1:
                return lambda x: [multiply(x)]
            widths = [math.prod(getattr(self, f"{name}_kernel").shape[1:]) for name in names]
            ends = [sum(widths[:i]) for i in range(1, len(names))]
            sections = len(names) if len(set(widths)) == 1 else ends  # the former: fewer operations
            return lambda x: ops.split(multiply(x), sections, axis=-1)

        products = [product(names)] if loop else [product([name]) for name in names]

        def project(x):
            leading = ops.shape(x)[:-1]  # (B, T), or (B,) for one position
            x = self._cast(x)
            if len(leading) == 2:
                x = ops.reshape(x, (-1, x.shape[-1]))  # (B·T, D)
            parts = [part for multiply in products for part in multiply(x)]
            return tuple(self._split_heads(part, leading) for part in parts)

        return project

    def output_projector(self, loop=None):
        """Returns the function from `(B·T, H·K')` to `(B·T, output_shape)`, like `projector`."""
        kernel = ops.reshape(self._cast(self.output_kernel), (self.num_heads * self.value_dim, -1))
        return projection(kernel, self._cast(self.output_bias) if self.use_bias else None, loop)

    def attend(self, query, key, value, mask=None, training=None, project=None, operations=None):
        """Attends with projected heads and projects the result.

        Args:
            query: Tensor of shape `(B, H, T, K)`, multiplied by `query_scale`.
            key: Tensor of shape `(B, H, S, K)`.
            value: Tensor of shape `(B, H, S, K')`.
            mask: Boolean, of a shape that broadcasts to `(B, H, T, S)`.
            training: Whether to drop.
            project, operations: In a loop, what `output_projector` returned, and `attend_heads`'.

        Returns:
            The output, shape `(B, T, output_shape)`, or `(B·T, output_shape)` with `project`; and
            the weights, shape `(B, H, T, S)`.
        """
        chance = self.dropout if training else 0.0, self.seed_generator
        x, weights = attend_heads(query, key, value, mask, *chance, operations)
        leading = ops.shape(x)[0], ops.shape(x)[2]  # (B, T)
        if x.shape[2] != 1:  # else there is nothing to transpose
            x = ops.transpose(x, (0, 2, 1, 3))
        x = ops.reshape(x, (-1, self.num_heads * self.value_dim))  # (B·T, H·K')
        if project:
            return project(x), weights
        x = self.output_projector()(x)
        return ops.reshape(x, (*leading, x.shape[-1])), weights

    def compute_mask(self, query, previous=None):
        return previous[0] if isinstance(previous, (list, tuple)) else previous

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], self.output_dim or query_shape[-1])

    def get_config(self):
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
        }

    def _add_projection(self, name, shape, inputs, initializer):
        """Adds a kernel, of which the first `inputs` axes are read, and its bias."""
        matrix = (math.prod(shape[:inputs]), math.prod(shape[inputs:]))
        # One initializer object gives equal values each time it is called: take a fresh copy.
        initializer = initializer.clone()
        # Drawn as the (inputs, outputs) matrix that it is: on three axes, Glorot's rule would
        # count the width of the model as a convolution's window and start far too small.
        kernel = self.add_weight(
            shape=shape,
            initializer=lambda shape, dtype=None: ops.reshape(initializer(matrix, dtype), shape),
            name=f"{name}_kernel",
        )
        if not self.use_bias:
            return kernel, None
        initializer = self.bias_initializer.clone()
        bias = self.add_weight(shape=shape[inputs:], initializer=initializer, name=f"{name}_bias")
        return kernel, bias

    def _flat_weight(self, name, kind):
        """A weight of heads side by side, `(D, H·K)` or `(H·K,)`; the query's are scaled."""
        weight = getattr(self, f"{name}_{kind}")
        if name == "query":
            weight = weight * query_scale(self.key_dim)
        return ops.reshape(weight, (*weight.shape[:-2], -1))

    def _split_heads(self, x, leading):
        """Takes `(B·T, H·K)` apart to `(B, H, T, K)`."""
        width = x.shape[-1] // self.num_heads
        if len(leading) == 1:
            return ops.reshape(x, (-1, self.num_heads, 1, width))  # nothing to transpose
        x = ops.reshape(x, (*leading, self.num_heads, width))
        return ops.transpose(x, (0, 2, 1, 3))

    def _cast(self, x):
        return ops.cast(x, self.compute_dtype)


def _last_dim(output_shape):
    """Reads `output_shape` as Keras writes it: None, an int, or a tuple of one int."""
    if output_shape is None or isinstance(output_shape, int):
        return output_shape
    if len(output_shape) == 1:
        return int(output_shape[0])
    raise ValueError(
        f"output_shape must be an int or a tuple of one int, received {output_shape!r}: reshape "
        "the output for more axes."
    )
