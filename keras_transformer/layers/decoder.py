"""The decoder ("Attention Is All You Need", §3.1, right half of figure 1).

Shapes: B batch, S source length, T target length, t positions decoded so far, D d_model, H heads,
K width of a head.
"""

import keras
from keras import ops

from keras_transformer.layers.masks import causal_mask, combine, key_mask
from keras_transformer.layers.residual_block import ResidualBlock
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualBlock):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Args:
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward network.
        dropout: Share of each sublayer's output that is dropped in training.
        norm: `"post"` (the paper) or `"pre"`.
        activation: Of the feed-forward network.
        depth: Layers of the stack it belongs to; deeper ones start with smaller sublayers.

    Call arguments:
        x: Tensor of shape `(B, T, D)`. Position t sees positions 0 … t only.
        memory: The encoder's output, shape `(B, S, D)`.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also the weights of the
        self-attention `(B, H, T, T)` and of the attention to the memory `(B, H, T, S)`.

    Raises:
        ValueError: If `num_heads` does not divide `d_model`, or `norm` or a mask is wrong.

    Example:

    >>> layer = DecoderLayer(d_model=512, num_heads=8, d_ff=2048)
    >>> layer(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    num_sublayers = 3

    def make_attention_sublayers(self):
        self.self_attention = self.make_attention()
        self.self_attention_norm = self.make_norm()
        self.cross_attention = self.make_attention()
        self.cross_attention_norm = self.make_norm()

    def build(self, x_shape, memory_shape=None):
        memory_shape = x_shape if memory_shape is None else memory_shape
        self.self_attention.build(x_shape, x_shape)
        self.self_attention_norm.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.cross_attention_norm.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_norm.build(x_shape)
        self.built = True

    def call(
        self,
        x,
        memory,
        x_mask=None,
        memory_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        mask = combine(causal_mask(ops.shape(x)[1]), key_mask(x_mask))

        def attend_self(y):
            heads = self.self_attention.project_self(y)
            return self.self_attention.attend(*heads, mask=mask, training=training)

        def attend_memory(y):
            heads = (self.cross_attention.project_query(y), *self.project_memory(memory))
            return self.cross_attention.attend(
                *heads, mask=key_mask(memory_mask), training=training
            )

        x, self_scores = self.residual(x, self.self_attention_norm, attend_self, training)
        x, cross_scores = self.residual(x, self.cross_attention_norm, attend_memory, training)
        x = self.residual_feed_forward(x, training)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape, memory_shape=None):
        return tuple(x_shape)

    def project_memory(self, memory):
        """Projects the memory `(B, S, D)` to the keys and values `(B, H, S, K)` it is read by."""
        return self.cross_attention.project_memory(memory)

    def stepper(self, loop="graph", operations=None):
        """Returns a function that computes the next position from what earlier ones left behind.

        The same sublayers as in `call`; only where keys and values come from differs. Kernels are
        joined and laid out now, once, so the function belongs to the weights as they are now.

        Args:
            loop: What runs the loop that it is for: `"graph"` (TensorFlow's executor) or `"xla"`.
            operations: Those of `attend_heads`, if others suit that loop better.

        Returns:
            Function of

            - x: The next position, shape `(B, D)`.
            - past: Keys and values of the t positions before it, `(B, H, t, K)` each.
            - memory: Keys and values of the memory, `project_memory(memory)`.
            - memory_mask: Boolean `(B, 1, 1, S)`.
            - position: Where in `past` this position goes, if there is room for it already; else
              `past` grows.
            - past_mask: Boolean `(B, 1, 1, t)`: what of `past`, this position included, is filled.

            to a tensor of shape `(B, D)`, and `past` with this position added.
        """
        own, cross = self.self_attention, self.cross_attention
        project_self = own.projector("query", "key", "value", loop=loop)
        of_own = {"project": own.output_projector(loop), "operations": operations}
        project_query = cross.projector("query", loop=loop)
        of_cross = {"project": cross.output_projector(loop), "operations": operations}
        feed_forward = self.feed_forward.stepper(loop)
        norms = self.self_attention_norm, self.cross_attention_norm, self.feed_forward_norm
        own_norm, cross_norm, feed_forward_norm = (norm.stepper() for norm in norms)

        def step(x, past, memory, memory_mask, position=None, past_mask=None):
            def add(old, new):
                if position is None:
                    return ops.concatenate((old, new), axis=2)
                return ops.slice_update(old, (0, 0, position, 0), new)

            def attend_self(y):
                query, *new = project_self(y)
                grown = tuple(map(add, past, new))
                output, _ = own.attend(query, *grown, mask=past_mask, **of_own)
                return output, grown

            def attend_memory(y):
                (query,) = project_query(y)
                output, _ = cross.attend(query, *memory, mask=memory_mask, **of_cross)
                return output, None

            x, past = self.residual(x, own_norm, attend_self)
            x, _ = self.residual(x, cross_norm, attend_memory)
            x, _ = self.residual(x, feed_forward_norm, lambda y: (feed_forward(y), None))
            return x, past

        return step


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(Stack):
    """A stack of `DecoderLayer`s, always causal; pre-norm adds a final normalisation.

    Args:
        num_layers: N, number of layers.
        d_model, num_heads, d_ff, dropout, norm, activation: Of each `DecoderLayer`.

    Call arguments:
        x: Embedded target, shape `(B, T, D)`.
        memory: The encoder's output, shape `(B, S, D)`.
        x_mask: Boolean `(B, T)`, True = may be attended to; taken from `x` when Keras carries one.
        memory_mask: Boolean `(B, S)`, likewise for `memory`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to drop.

    Returns:
        Tensor of shape `(B, T, D)`; with `return_attention_scores` also two lists of N tensors:
        `(B, H, T, T)` and `(B, H, T, S)`.

    Example:

    >>> decoder = Decoder(num_layers=6, d_model=512, num_heads=8, d_ff=2048)
    >>> decoder(np.ones((2, 7, 512)), np.ones((2, 10, 512))).shape
    (2, 7, 512)
    """

    layer_class = DecoderLayer

    def build(self, x_shape, memory_shape=None):
        self.build_layers(x_shape, x_shape if memory_shape is None else memory_shape)

    def call(
        self,
        x,
        memory,
        x_mask=None,
        memory_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        self_scores, cross_scores = [], []
        for layer in self.layers:
            x, of_self, of_memory = layer(
                x, memory, x_mask, memory_mask, return_attention_scores=True, training=training
            )
            self_scores.append(of_self)
            cross_scores.append(of_memory)
        x = self.finish(x)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def compute_output_shape(self, x_shape, memory_shape=None):
        return tuple(x_shape)

    def initial_state(self, memory, memory_mask, length=None):
        """Prepares decoding position by position: projects the memory once.

        Args:
            memory: The encoder's output, shape `(B, S, D)`.
            memory_mask: Boolean `(B, S)`.
            length: t, number of positions to make room for, so that no shape changes from step to
                step; XLA compiles nothing else.

        Returns:
            Dict of `past`, per layer empty keys and values `(B, H, 0, K)` that grow along axis 2
            with every step, or of size t where `length` is given; `memory`, per layer keys and
            values `(B, H, S, K)`; `memory_mask` `(B, 1, 1, S)`; and with `length` also `places`,
            the numbers of the t positions, int32 `(B, t)`.
        """
        heads = [layer.project_memory(memory) for layer in self.layers]
        state = {"memory": heads, "memory_mask": key_mask(memory_mask)}
        if length is None:
            return state | {"past": [tuple(x[:, :, :0] for x in pair) for pair in heads]}

        def room(x):
            batch_size, num_heads, _, width = ops.shape(x)
            return ops.zeros((batch_size, num_heads, length, width), x.dtype)

        places = ops.broadcast_to(ops.arange(length, dtype="int32"), (ops.shape(memory)[0], length))
        return state | {"past": [tuple(map(room, pair)) for pair in heads], "places": places}

    def stepper(self, loop="graph", operations=None):
        """Returns a function that computes the next position.

        Kernels are joined and laid out now, once, so the function belongs to the weights as they
        are now.

        Args:
            loop: What runs the loop that it is for: `"graph"` (TensorFlow's executor) or `"xla"`.
            operations: Those of `attend_heads`, if others suit that loop better.

        Returns:
            Function of

            - x: The embedded next position, shape `(B, D)`.
            - position: Its number, a Python int or a scalar integer tensor.
            - state: What `initial_state` or the step before returned.

            to a tensor of shape `(B, D)`, and the next state.
        """
        steps = [layer.stepper(loop, operations) for layer in self.layers]

        def step(x, position, state):
            place = {}
            if "places" in state:
                filled = ops.less_equal(state["places"], position)
                place = {"position": position, "past_mask": key_mask(filled)}
            past = []
            for of_layer, own_past, memory in zip(
                steps, state["past"], state["memory"], strict=True
            ):
                x, own_past = of_layer(x, own_past, memory, state["memory_mask"], **place)
                past.append(own_past)
            return self.finish(x), state | {"past": past}

        return step
