"""The architecture of a model, as a configuration."""

import dataclasses

from keras_transformer.presets.options import (
    BIT,
    COUNT,
    EPSILON,
    FREQUENCIES,
    POSITIONS,
    POSITIVE,
    SHARE,
    SHARED,
    check_fields,
    check_output_bias,
    check_positions,
    check_sinusoids,
    option,
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture: the arguments of `Transformer`.

    Raises:
        ValueError: If a value is invalid, or values do not fit together.
    """

    num_layers: int = option(6, "layers of the encoder, and of the decoder", COUNT)
    d_model: int = option(512, "dimension of embeddings and layer outputs", COUNT)
    num_heads: int = option(8, "attention heads; must divide d_model", COUNT)
    d_ff: int = option(2048, "dimension of the feed-forward hidden layer", COUNT)
    dropout: float = option(0.1, "dropout rate of sublayers and embeddings", SHARE)
    norm: str = option("post", "layer normalization before or after each sublayer", ("post", "pre"))
    activation: str = option("relu", "Keras activation of the feed-forward networks")
    positions: str = option("sinusoidal", "positional encoding", POSITIONS)
    share_embeddings: str = option(
        "target", "target: with the softmax; all: also with the source", SHARED
    )
    max_length: int = option(256, "maximum length of a sentence, in tokens", COUNT)
    max_distance: int | None = option(
        None, "maximum distance of relative, bucketed, disentangled; none: the scheme's"
    )
    epsilon: float = option(EPSILON, "added to the variance in layer normalization", POSITIVE)
    output_bias: bool = option(False, "softmax bias beside shared embeddings")
    num_encoder_layers: int | None = option(None, "layers of the encoder; none: num_layers", COUNT)
    num_decoder_layers: int | None = option(None, "layers of the decoder; none: num_layers", COUNT)
    frequencies: str = option("transformer", "wavelengths of sinusoidal positions", FREQUENCIES)
    first_position: int = option(0, "number of the first sinusoidal position", BIT)
    suppress_ids: bool = option(False, "a weight that keeps ids out of translations; see import")

    @property
    def depths(self) -> tuple[int, int]:
        """Numbers of layers of the encoder and of the decoder."""
        given = self.num_encoder_layers, self.num_decoder_layers
        encoder, decoder = (self.num_layers if depth is None else depth for depth in given)
        return encoder, decoder

    def __post_init__(self) -> None:
        check_fields(self)
        if self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads must divide d_model={self.d_model}, received {self.num_heads}: "
                "change one of the two."
            )
        check_positions(self.positions, self.max_distance, self.d_model, self.num_heads)
        check_sinusoids(self.positions, self.frequencies, self.first_position)
        check_output_bias(self.output_bias, self.share_embeddings)
