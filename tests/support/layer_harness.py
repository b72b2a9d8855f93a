"""One way to make, call and compare every layer: small sizes, S ≠ T, padded rows."""

import collections

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.special_ids import SUPPRESSED

B, S, T, D, H, F = 3, 6, 4, 8, 2, 16  # batch, source, target, d_model, heads, d_ff
SOURCE_VOCABULARY, TARGET_VOCABULARY = 13, 11
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 2e-2, "mixed_float16": 5e-3}
NORMS = ["post", "pre"]

SOURCE = np.array([[5, 6, 7, 8, 9, 3], [4, 12, 3, 0, 0, 0], [7, 10, 11, 5, 3, 0]], "int32")
TARGET = np.array([[2, 4, 5, 6], [2, 7, 10, 0], [2, 8, 0, 0]], "int32")


def truncates():
    """Whether this processor has no instructions for bfloat16: TensorFlow then truncates."""
    import tensorflow as tf

    row = tf.constant([[1.0, 0.75 * 2.0**-7]] * 8, "bfloat16")
    return bool(tf.reduce_any(tf.matmul(row, tf.ones([2, 8], "bfloat16")) == 1))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X, MEMORY = normal(B, T, D, seed=1), normal(B, S, D, seed=2)
X_MASK, MEMORY_MASK = TARGET != 0, SOURCE != 0


# How a layer is made, of its norm and other arguments; and what it is called with.
Case = collections.namedtuple("Case", ["make", "arrays"])


def embedding(norm="post", **kwargs):
    return kt.PositionalEmbedding(TARGET_VOCABULARY, D, **kwargs)


def attention(norm="post", **kwargs):
    return kt.MultiHeadAttention(H, 3, **{"value_dim": 5, "output_shape": 7} | kwargs)


def stack_of(layer_class, *leading, **options):
    def make(norm="post", dropout=0.0, **kwargs):
        return layer_class(*leading, D, H, F, dropout=dropout, norm=norm, **options | kwargs)

    return make


def transformer(norm="post", dropout=0.0, **kwargs):
    sizes = {"num_layers": 2, "d_model": D, "num_heads": H, "d_ff": F, "max_length": 16}
    vocabularies = (SOURCE_VOCABULARY, TARGET_VOCABULARY)
    if kwargs.get("share_embeddings") == "all":
        vocabularies = (SOURCE_VOCABULARY, SOURCE_VOCABULARY)
    return kt.Transformer(*vocabularies, dropout=dropout, norm=norm, **sizes | kwargs)


OF_ENCODER = {"x": MEMORY, "mask": MEMORY_MASK}
OF_DECODER = {"x": X, "memory": MEMORY, "x_mask": X_MASK, "memory_mask": MEMORY_MASK}
CASES = {
    "PositionalEmbedding": Case(embedding, {"ids": TARGET}),
    "MultiHeadAttention": Case(attention, {"query": X, "value": MEMORY, "value_mask": MEMORY_MASK}),
    "FeedForward": Case(lambda norm="post", **kwargs: kt.FeedForward(D, F, **kwargs), {"x": X}),
    "EncoderLayer": Case(stack_of(kt.EncoderLayer), OF_ENCODER),
    "Encoder": Case(stack_of(kt.Encoder, 2), OF_ENCODER),
    "DecoderLayer": Case(stack_of(kt.DecoderLayer), OF_DECODER),
    "Decoder": Case(stack_of(kt.Decoder, 2), OF_DECODER),
    "Decoder alone": Case(
        stack_of(kt.Decoder, 2, cross_attention=False), {"x": X, "x_mask": X_MASK}
    ),
    "Transformer": Case(transformer, {"inputs": (SOURCE, TARGET)}),
}


def randomize(layer, seed=0):
    """Sets every weight by the seed: no bias is 0 and no scale is 1 any more."""
    random = np.random.default_rng(seed)

    def draw(weight):
        noise = random.normal(size=weight.shape)
        constant = weight.min() == weight.max()
        return weight + 0.2 * noise if constant else noise / np.sqrt(weight[..., 0].size)

    layer.set_weights([draw(weight) for weight in layer.get_weights()])
    return layer


def suppress(model):
    """Makes PAD, UNK and START of a model impossible, if it can."""
    if model.suppressed is not None:
        values = np.zeros(model.target_vocabulary_size, "float32")
        values[[kt.PAD, kt.UNK, kt.START]] = SUPPRESSED
        model.suppressed.assign(values)
    return model


def build(name, norm="post", policy="float32", **kwargs):
    """The layer of that name, built, always with the same weights and seeds."""
    keras.utils.set_random_seed(0)
    layer = CASES[name].make(norm, dtype=policy, **kwargs)
    layer(**CASES[name].arrays)
    return randomize(layer)


def functional(layer, arrays):
    """A functional model around the layer, for any batch size and any lengths."""

    def symbol(array, name=None):
        shape = (None, array.shape[-1]) if array.ndim == 3 else (None,)
        return keras.Input(shape, dtype=str(array.dtype), name=name)

    inputs = {
        key: tuple(map(symbol, x)) if isinstance(x, tuple) else symbol(x, key)
        for key, x in arrays.items()
    }
    return keras.Model(inputs, layer(**inputs))


def to_numpy(outputs):
    """All tensors of a structure as NumPy arrays, half precision widened."""
    return keras.tree.map_structure(
        lambda x: np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32"))), outputs
    )


def assert_close(actual, expected, tolerance=1e-5):
    """Compares structures of tensors; the tolerance is absolute below 1 and relative above."""
    actual, expected = (keras.tree.flatten(x) for x in (actual, expected))
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        one, other = (np.asarray(x, "float64") for x in (to_numpy(one), other))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def reseeding(layer):
    """A function that makes the layer's dropouts draw again what they would draw now."""
    seeds = [(v, v.numpy()) for v in layer.variables if "seed_generator" in v.path]
    assert seeds, "no dropout in here"

    def reseed():
        for variable, seed in seeds:
            variable.assign(seed)

    return reseed
