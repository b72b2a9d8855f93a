"""The Transformer's layers: Keras 3 only, for any backend."""

from keras_transformer.layers.attention import MultiHeadAttention, dot_product_attention
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.masks import causal_mask, combine, key_mask, padding_mask
from keras_transformer.layers.positional_embedding import PositionalEmbedding, sinusoidal_encoding
from keras_transformer.layers.positions import (
    BucketedPositions,
    DisentangledPositions,
    Positions,
    RelativePositions,
    RotaryPositions,
)
from keras_transformer.layers.stack import FeedForward

__all__ = [
    "BucketedPositions",
    "Decoder",
    "DecoderLayer",
    "DisentangledPositions",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "Positions",
    "RelativePositions",
    "RotaryPositions",
    "causal_mask",
    "combine",
    "dot_product_attention",
    "key_mask",
    "padding_mask",
    "sinusoidal_encoding",
]
