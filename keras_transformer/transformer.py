"""The Transformer ("Attention Is All You Need", figure 1).

Shapes: B batch, S source length, T target length, D d_model, H heads, V target vocabulary.
"""

import contextlib
import dataclasses
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.backend import ANY_LOOP, IS_TENSORFLOW, XLA_LOOP, LoopOperations
from keras_transformer.kernels.layers import Dense
from keras_transformer.layers import decoder_step
from keras_transformer.layers.attention import check_equal_sizes
from keras_transformer.layers.composite import (
    apply_state,
    find_sublayers,
    get_state,
    split_state,
)
from keras_transformer.layers.decoder import Decoder
from keras_transformer.layers.encoder import Encoder
from keras_transformer.layers.masks import padding_mask
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.presets import ModelConfig
from keras_transformer.presets.options import (
    ABSOLUTE,
    EPSILON,
    FORMAT,
    FREQUENCIES,
    check_format,
    check_sharing,
    check_value,
)
from keras_transformer.special_ids import SUPPRESSED
from keras_transformer.training.token_trainer import TokenTrainer
from keras_transformer.utils import (
    Activation,
    Config,
    Inputs,
    Nested,
    Path,
    Shape,
    State,
    Step,
    Tensor,
)

LOOPS: dict[str, LoopOperations] = {"graph": ANY_LOOP, "xla": XLA_LOOP}  # by their runtime
if IS_TENSORFLOW:
    from keras_transformer.kernels.tensorflow.machine import GRAPH_LOOP

    LOOPS["graph"] = GRAPH_LOOP


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(TokenTrainer):
    """Encoder–decoder Transformer: `call` is `decode` of `encode` ("Attention Is All You Need").

    Args:
        source_vocabulary_size: Number of source ids.
        target_vocabulary_size: V, number of target ids.
        num_layers: N, of the encoder and of the decoder.
        d_model: D, width of the model.
        num_heads: H, which must divide D.
        d_ff: Inner width of the feed-forward networks.
        dropout: Rate of dropout on sublayers' outputs and embeddings (§5.4).
        norm: `"post"` (the paper) or `"pre"`.
        activation: Activation of the feed-forward networks.
        positions: Positional encoding: `"sinusoidal"` or `"learned"`, added to the embeddings;
            `"relative"`, `"bucketed"`, `"rotary"` or `"disentangled"`, relative positions in the
            self-attention of encoder and decoder; or `"none"`.
        max_distance: Distance from which on all are treated alike, for `"relative"` (default 16),
            `"bucketed"` and `"disentangled"` (default 128).
        share_embeddings: `"none"`; `"target"`, the target embedding is also the output projection;
            or `"all"`, source embedding, target embedding and output projection share one matrix
            (§3.4).
        max_length: Maximum length of a sentence in tokens: it limits decoding, and is the number
            of learned positions.
        epsilon: Added to the variance in layer normalization.
        output_bias: Whether a softmax that shares the target embedding has a bias.
        num_encoder_layers, num_decoder_layers: N of one of the two, if not `num_layers`. Few
            decoder layers translate faster.
        frequencies: Of sinusoidal positions, see `sinusoidal_encoding`.
        first_position: Number of the first sinusoidal position, from 0.
        suppress_ids: Whether there is a weight `suppressed`, `(V,)`, that is added to the logits
            of `step` and of scores, not to those of `call`: -1000 keeps an id out of translations,
            and -inf does the same.

    Call arguments:
        inputs: `(source, target)`, ids of shapes `(B, S)` and `(B, T)`, any integer dtype. The
            target starts with START; position t predicts token t + 1.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether to apply dropout.

    Returns:
        Logits, float32 `(B, T, V)`; with `return_attention_scores` also a dict of lists with one
        tensor per layer: `encoder` `(B, H, S, S)`, `decoder` `(B, H, T, T)`, `cross`
        `(B, H, T, S)`.

    Raises:
        ValueError: If an argument is out of range, or the inputs are not a pair of ids with the
            same number of rows.

    Attributes:
        config: The arguments as a `ModelConfig`; each is an attribute too, such as `d_model`.

    The constructor builds the model: under a strategy, call it in the strategy's scope. To change
    its layers, subclass it and set `encoder_class` and `decoder_class`; their `layer_class` can
    override `make_attention`, `make_feed_forward` and `make_norm`. Layers that a subclass adds are
    built by the first call, as Keras does, or by `build()`. To use a sublayer such as
    `model.encoder` together with the model, write a subclass of `keras.Model`: Keras saves a
    functional model of both but does not load it.

    Example:

    >>> model = Transformer(8000, 8000, num_layers=2, d_model=64, num_heads=4, d_ff=128)
    >>> source, target = np.array([[5, 6, 3]]), np.array([[2, 7]])
    >>> model((source, target)).shape
    (1, 2, 8000)
    """

    encoder: Encoder
    decoder: Decoder
    encoder_class = Encoder
    decoder_class = Decoder
    fused_loss = True
    # The inputs of `serve` in an export: `(source, target)`.
    input_signature = [
        tuple(keras.layers.InputSpec("int32", (None, None), name=x) for x in ("source", "target"))
    ]

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        num_layers: int = 6,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        dropout: float = 0.1,
        norm: str = "post",
        activation: Activation = "relu",
        positions: str = "sinusoidal",
        share_embeddings: str = "none",
        max_length: int = 512,
        max_distance: int | None = None,
        epsilon: float = EPSILON,
        output_bias: bool = False,
        num_encoder_layers: int | None = None,
        num_decoder_layers: int | None = None,
        frequencies: str = FREQUENCIES[0],
        first_position: int = 0,
        suppress_ids: bool = False,
        **kwargs: Any,
    ) -> None:
        arguments = locals()
        super().__init__(**kwargs)
        options = {field.name: arguments[field.name] for field in dataclasses.fields(ModelConfig)}
        function = keras.activations.get(activation)
        if not isinstance(activation, str):  # serializing a name would load TensorFlow
            options["activation"] = keras.activations.serialize(function)
        self.config = ModelConfig(**options)
        check_sharing(share_embeddings, source_vocabulary_size, target_vocabulary_size)
        self.__dict__.update(vars(self.config))
        self.source_vocabulary_size = source_vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self._create_layers(function)

    def _create_layers(self, activation):
        """Creates the layers, and builds them here: no weight depends on the shape of the inputs.

        `build` would lock the model against the layers that a subclass adds.
        """
        config, policy = dataclasses.asdict(self.config), {"dtype": self.dtype_policy}
        names = ("d_model", "positions", "max_length", "dropout", "frequencies", "first_position")
        options = {name: config[name] for name in names} | policy
        self.target_embedding = PositionalEmbedding(
            self.target_vocabulary_size, **options, output_bias=self.output_bias
        )
        if self.share_embeddings == "all":
            self.source_embedding = self.target_embedding
        else:
            self.source_embedding = PositionalEmbedding(self.source_vocabulary_size, **options)
        names = ("d_model", "num_heads", "d_ff", "dropout", "norm", "epsilon")
        options = {name: config[name] for name in (*names, "positions", "max_distance")} | policy
        encoder_depth, decoder_depth = self.config.depths
        self.encoder = self.encoder_class(encoder_depth, **options, activation=activation)
        self.decoder = self.decoder_class(decoder_depth, **options, activation=activation)
        self.output_projection = None
        if self.share_embeddings == "none":
            self.output_projection = Dense(self.target_vocabulary_size, dtype=self.dtype_policy)
        ids, embedded = (None, None), (None, None, self.d_model)
        with keras.name_scope(self.name):
            self.target_embedding.build(ids)
            if self.source_embedding is not self.target_embedding:
                self.source_embedding.build(ids)
            self.encoder.build(embedded)
            self.decoder.build(embedded)
            if self.output_projection:
                self.output_projection.build(embedded)
        self.suppressed = None
        if self.suppress_ids:
            shape = (self.target_vocabulary_size,)
            self.suppressed = self.add_weight(
                shape, "zeros", "float32", trainable=False, autocast=False, name="suppressed"
            )
        self.built = True

    def build(self, input_shape: tuple[Shape, Shape] | None = None) -> None:
        """Builds the layers that a subclass has added, by a call with shapes alone."""
        if not all(layer.built for layer in self.layers):
            inputs = keras.tree.map_structure(
                lambda spec: keras.KerasTensor(spec.shape, spec.dtype), self.input_signature
            )
            self.compute_output_spec(*inputs)

    # Computing.

    def call(
        self, inputs: Inputs, return_attention_scores: bool = False, training: bool | None = None
    ) -> Tensor | tuple[Tensor, dict[str, list[Tensor]]]:
        source, target = _unpack_pair(inputs)
        if not return_attention_scores:
            return self.decode(target, self.encode(source, training), source, training)
        memory, scores = self.encode(source, training, return_attention_scores)
        logits, of_target, of_memory = self.decode(
            target, memory, source, training, return_attention_scores
        )
        return logits, {"encoder": scores, "decoder": of_target, "cross": of_memory}

    def encode(
        self, source: Tensor, training: bool | None = False, return_attention_scores: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Encodes source ids `(B, S)`; returns the memory, shape `(B, S, D)`.

        With `return_attention_scores` also the attention weights, N tensors `(B, H, S, S)`.
        """
        x = self.source_embedding(source, training=training)
        options = {"return_attention_scores": return_attention_scores, "training": training}
        return self.encoder(x, padding_mask(source), **options)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source: Tensor,
        training: bool | None = False,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor | list[Tensor], ...]:
        """Predicts, at each target position, the token that follows.

        Args:
            target: Ids of shape `(B, T)`, START first.
            memory: The output of `encode(source)`.
            source: Ids of shape `(B, S)`, from which the padding mask is computed.
            training: Whether to apply dropout.
            return_attention_scores: Whether to return the attention weights too.

        Returns:
            Logits, float32 `(B, T, V)`; with `return_attention_scores` also two lists of N tensors,
            the weights of the self-attention `(B, H, T, T)` and of the cross-attention
            `(B, H, T, S)`.
        """
        x, *scores = self._decode(target, memory, source, training)
        project = self.output_projection or self.target_embedding.logits
        logits = ops.cast(project(x), "float32")
        return (logits, *scores) if return_attention_scores else logits

    def _decode(self, target, memory, source, training):
        """Returns the decoder's output `(B, T, D)`, and its attention weights."""
        rows = [x.shape[0] for x in (target, memory, source)]
        check_equal_sizes("numbers of rows of target, memory and source", *rows)
        check_equal_sizes("lengths of memory and source", memory.shape[1], source.shape[1])
        x = self.target_embedding(target, training=training)
        # A target is padded at its end, which causality hides already. An all-True mask keeps
        # `step`, which has no padding mask, equal at every position.
        masks = ops.ones(ops.shape(target), dtype="bool"), padding_mask(source)
        return self.decoder(x, memory, *masks, return_attention_scores=True, training=training)

    def softmax_inputs(self, inputs: Inputs, training: bool = False) -> tuple[Tensor, Tensor]:
        """Computes the factors of the logits.

        Args:
            inputs: See `call`.
            training: Whether to apply dropout.

        Returns:
            Tensors `(B, T, D')` in the compute dtype and `(V, D')` in that of the weights, to be
            transposed for the product: the decoder's output and the embedding, or the kernel of a
            separate output projection; with a bias, both have one more column for it.
        """
        source, target = _unpack_pair(inputs)
        x = self._decode(target, self.encode(source, training), source, training)[0]
        if self.output_projection:
            matrix = ops.transpose(self.output_projection.kernel)
            bias = self.output_projection.bias
        else:
            matrix = ops.convert_to_tensor(self.target_embedding.embeddings)
            bias = self.target_embedding.output_bias
        if bias is None:
            return x, matrix
        matrix = ops.concatenate([matrix, ops.expand_dims(bias, 1)], axis=1)
        return ops.concatenate([x, ops.ones_like(x[..., :1])], axis=-1), matrix

    def initial_state(self, source: Tensor, length: int | None = None) -> State:
        """Prepares decoding token by token: encodes the source and projects the memory.

        Args:
            source: Ids of shape `(B, S)`.
            length: Number of steps to allocate, see `Decoder.initial_state`.

        Returns:
            A nested structure of tensors, batch first, for `step`.
        """
        memory, mask = self.encode(source), padding_mask(source)
        return self.decoder.initial_state(length=length, memory=memory, memory_mask=mask)

    def step(self, ids: Tensor, position: int | Tensor, state: State) -> tuple[Tensor, State]:
        """Predicts the token that follows one more token.

        Args:
            ids: The token at `position`, shape `(B,)`, START at position 0; or those at P positions
                from there on, `(B, P)`.
            position: Python int or scalar integer tensor.
            state: The state from `initial_state` or from the previous step.

        Returns:
            Logits, float32 `(B, V)` or `(B, P, V)`, with suppressed ids, and the next state.
        """
        return self.make_step()(ids, position, state)

    def make_step(self, loop: str = "graph") -> Step:
        """Returns a function that does the same as `step`, with the current weights, for a loop.

        Args:
            loop: Its runtime: `"graph"` (TensorFlow's executor) or `"xla"`.
        """
        check_value("loop", loop, tuple(LOOPS))
        operations = LOOPS[loop]
        decode = decoder_step.DecoderStep(self.decoder, operations)
        project = decoder_step.make_logits(
            self.target_embedding, self.output_projection, self._suppression(), operations
        )

        def step(ids, position, state):
            ids = ops.convert_to_tensor(ids)
            if len(ids.shape) == 2:
                x, state = decode(self.target_embedding(ids, start=position), position, state)
                logits = project(ops.reshape(x, (-1, self.d_model)))
                shape = *ops.shape(ids), self.target_vocabulary_size
                return ops.reshape(ops.cast(logits, "float32"), shape), state
            x = self.target_embedding(ops.expand_dims(ids, 1), start=position)[:, 0]
            x, state = decode(x, position, state)
            return ops.cast(project(x), "float32"), state

        step.takes_several = True  # type: ignore[attr-defined]
        return step

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Nested:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, input_shape: tuple[Shape, Shape]) -> Shape:
        return (*input_shape[1], self.target_vocabulary_size)

    def suppress(self, logits: Tensor) -> Tensor:
        """Adds `suppressed`, if there is one, to logits `(..., V)` of `call` or `decode`."""
        return logits if self.suppressed is None else logits + self._suppression()

    def _suppression(self):
        # Finite also where a user has assigned -inf: a prefix may require such an id.
        return None if self.suppressed is None else ops.maximum(self.suppressed, SUPPRESSED)

    # Saving.

    def get_config(self) -> Config:
        sizes = {
            "source_vocabulary_size": self.source_vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
        }
        config = super().get_config() | get_state(self) | {"format": FORMAT}
        return config | sizes | dataclasses.asdict(self.config)

    @classmethod
    def from_config(cls, config: Config) -> Self:
        config = dict(config)
        check_format("The model's file", config.pop("format", None))
        config, state = split_state(config)
        model = super().from_config(config)
        with contextlib.suppress(Exception):  # a subclass may take other inputs
            cls.build(model)  # unlike model.build(), this does not lock the model
        if any(state) or not model.trainable:
            apply_state(model, state)
        return model

    # Without these entries, Keras would load the first layers of a deeper model, and a model with
    # another positional encoding that has no weights.

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        store["layers"] = np.array(len(list(find_sublayers(self))))
        if self.positions not in ABSOLUTE:
            store["positions"] = np.frombuffer(self.positions.encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        entries = {key: np.asarray(store[key]) for key in store.keys()}
        found: tuple[str, ...] = ABSOLUTE
        if "positions" in entries:
            found = (entries.pop("positions").astype("uint8").tobytes().decode(),)
        expected = len(list(find_sublayers(self)))
        count = entries.pop("layers", expected)  # older files have none
        if self.positions not in found or count != expected:
            raise ValueError(
                f"The file has weights of a model with positions={' or '.join(map(repr, found))} "
                f"and {count} layers, but this model has positions={self.positions!r} and "
                f"{expected}: create it with the same arguments."
            )
        super().load_own_variables(entries)

    def export(
        self,
        filepath: Path,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Nested = None,
        **kwargs: Any,
    ) -> None:
        """Exports `call`, see `keras.Model.export`; `input_signature` defaults to the class's.

        To export a search from text to text, use `kt.export(translator, base)`. The formats
        `"onnx"` and `"litert"` need a model that computes in float32.
        """
        # By default, Keras would export float inputs.
        signature = self.input_signature if input_signature is None else input_signature
        super().export(filepath, format, verbose, signature, **kwargs)


def _unpack_pair(inputs):
    """Returns source and target; the rows of a single tensor would unpack too."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        given = f"{len(inputs)} tensors" if isinstance(inputs, tuple | list) else "one tensor"
        raise ValueError(f"The inputs must be a pair (source, target), received {given}.")
    return inputs
