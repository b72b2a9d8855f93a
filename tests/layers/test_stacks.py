"""Feed-forward network, encoder and decoder: equal to the formulas and to keras_nlp."""

import keras
import keras_nlp
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import (
    MEMORY,
    MEMORY_MASK,
    NORMS,
    OF_DECODER,
    OF_ENCODER,
    X_MASK,
    X,
    assert_close,
    build,
    normal,
)


def test_feed_forward():
    layer = build("FeedForward")
    assert_close(layer(X), oracle.feed_forward(layer, X.astype("float64")))
    assert_close(layer(X[0]), oracle.feed_forward(layer, X[0].astype("float64")))


def test_feed_forward_activation():
    layer, linear = build("FeedForward", activation="tanh"), build("FeedForward")
    w1, b1, w2, b2 = (w.astype("float64") for w in linear.get_weights())
    assert_close(layer(X), np.tanh(X @ w1 + b1) @ w2 + b2)


def test_kernels_start_apart():
    """Initializers with a copy each; the layers of a deep stack start near the identity."""
    layer = kt.FeedForward(8, 16, kernel_initializer=keras.initializers.RandomNormal())
    layer.build((None, 8))
    w1, _, w2, _ = layer.get_weights()
    assert not np.intersect1d(w1, w2).size
    decoder = kt.Decoder(4, d_model=64, num_heads=4, d_ff=128)
    decoder.build((None, None, 64), (None, None, 64))
    block = decoder.layers[1]
    attention, feed_forward = block.cross_attention, block.feed_forward
    glorot = {64: (2 / 128) ** 0.5, 128: (2 / 192) ** 0.5}  # deviations, by the inner width
    for kernel in (
        attention.query_dense.kernel,
        attention.key_dense.kernel,
        attention.value_dense.kernel,
    ):
        assert np.std(kernel) == pytest.approx(glorot[64] * 0.5**0.5, rel=0.05)
    assert np.std(attention.output_dense.kernel) == pytest.approx(
        glorot[64] * (1 / 12) ** 0.5, rel=0.05
    )
    assert np.std(feed_forward.inner.kernel) == pytest.approx(glorot[128] * 0.5**0.5, rel=0.05)
    assert np.std(feed_forward.outer.kernel) == pytest.approx(
        glorot[128] * (1 / 12) ** 0.5, rel=0.05
    )


def test_feed_forward_drops_inner_activations():
    layer = build("FeedForward", dropout=0.999999)
    output = np.array(layer(X, training=True))
    np.testing.assert_allclose(output, np.broadcast_to(layer.get_weights()[-1], X.shape))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["EncoderLayer", "Encoder"])
def test_encoder_equals_the_formula(name, norm):
    formula = {"EncoderLayer": oracle.encoder_layer, "Encoder": oracle.encoder}[name]
    layer = build(name, norm)
    assert_close(layer(MEMORY, MEMORY_MASK), formula(layer, MEMORY, MEMORY_MASK))
    assert_close(layer(MEMORY), formula(layer, MEMORY, np.ones_like(MEMORY_MASK)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["DecoderLayer", "Decoder"])
def test_decoder_equals_the_formula(name, norm):
    formula = {"DecoderLayer": oracle.decoder_layer, "Decoder": oracle.decoder}[name]
    layer = build(name, norm)
    arrays = (X, MEMORY, X_MASK, MEMORY_MASK)
    everything = (np.ones_like(X_MASK), np.ones_like(MEMORY_MASK))
    assert_close(layer(*arrays), formula(layer, *arrays))
    assert_close(layer(X, MEMORY), formula(layer, X, MEMORY, *everything))
    assert_close(
        layer(X, MEMORY, None, MEMORY_MASK), formula(layer, X, MEMORY, everything[0], MEMORY_MASK)
    )
    assert_close(layer(X, MEMORY, X_MASK, None), formula(layer, X, MEMORY, X_MASK, everything[1]))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["DecoderLayer alone", "Decoder alone"])
def test_decoder_without_a_memory_is_a_causal_encoder(name, norm):
    """The same weights in the same order, and the encoder told not to look ahead."""
    decoder, encoder = build(name, norm), build(name.replace("Decoder", "Encoder")[:-6], norm)
    encoder.set_weights(decoder.get_weights())
    expected, weights = encoder(X, X_MASK, use_causal_mask=True, return_attention_scores=True)
    output, of_self = decoder(X, x_mask=X_MASK, return_attention_scores=True)
    assert_close((output, of_self), (expected, weights), 1e-6)
    assert_close(decoder(X), encoder(X, use_causal_mask=True), 1e-6)
    assert np.abs(np.array(decoder(X)) - np.array(encoder(X))).max() > 0.1
    # Keras' causal mask, spelled out, and the padding with it.
    causal = np.tril(np.ones((X.shape[1],) * 2, bool)) & X_MASK[:, np.newaxis]
    assert_close(encoder(X, causal), expected, 1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_epsilon_of_the_layer_normalisation(norm):
    """Inputs whose variance is of epsilon's size tell one epsilon from another."""
    layer = build("EncoderLayer", norm)
    x = 1e-3 * MEMORY
    assert_close(layer(x, MEMORY_MASK), oracle.encoder_layer(layer, x, MEMORY_MASK))


@pytest.mark.parametrize("name", ["Encoder", "Decoder"])
def test_only_pre_norm_ends_with_a_normalisation(name):
    """§3.1 normalises after each sublayer; pre-norm leaves the sum to be normalised once."""
    post, pre = build(name, "post"), build(name, "pre")
    assert len(pre.weights) == len(post.weights) + 2
    pre.set_weights([*pre.get_weights()[:-2], np.ones(8), np.zeros(8)])
    output = np.array(pre(**layer_harness.CASES[name].arrays))
    np.testing.assert_allclose(output.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(output.std(axis=-1), 1, atol=1e-3)


# Dropout.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["EncoderLayer", "DecoderLayer"])
def test_dropout_drops_every_sublayer(name, norm):
    """With almost everything dropped, only the residual connection and the norms remain."""
    layer = build(name, norm, dropout=0.999999)
    arrays = layer_harness.CASES[name].arrays
    expected = arrays["x"].astype("float64")
    if norm == "post":
        names = ["self_attention_norm", "cross_attention_norm", "feed_forward_norm"]
        for norm_layer in filter(None, [getattr(layer, n) for n in names]):
            expected = oracle.layer_norm(norm_layer, expected)
    assert_close(layer(**arrays, training=True), expected)
    assert np.abs(np.array(layer(**arrays)) - expected).max() > 0.1


# keras_nlp, an implementation by other hands.


def copy(ours, theirs, *attentions):
    """Gives their layer our weights."""
    for name in attentions:
        getattr(theirs, f"_{name}_layer").set_weights(getattr(ours, name).get_weights())
        getattr(theirs, f"_{name}_layer_norm").set_weights(
            getattr(ours, f"{name}_norm").get_weights()
        )
    theirs._feedforward_intermediate_dense.set_weights(ours.feed_forward.inner.get_weights())
    theirs._feedforward_output_dense.set_weights(ours.feed_forward.outer.get_weights())
    theirs._feedforward_layer_norm.set_weights(ours.feed_forward_norm.get_weights())


def keras_nlp_layer(layer_class, norm):
    return layer_class(
        intermediate_dim=layer_harness.F,
        num_heads=layer_harness.H,
        layer_norm_epsilon=1e-6,
        normalize_first=norm == "pre",
    )


@pytest.mark.parametrize("norm", NORMS)
def test_encoder_layer_equals_keras_nlp(norm):
    ours = build("EncoderLayer", norm)
    theirs = keras_nlp_layer(keras_nlp.layers.TransformerEncoder, norm)
    theirs.build(MEMORY.shape)
    copy(ours, theirs, "self_attention")
    expected = theirs(MEMORY, padding_mask=MEMORY_MASK, return_attention_scores=True)
    assert_close(ours(**OF_ENCODER, return_attention_scores=True), expected)


@pytest.mark.parametrize("norm", NORMS)
def test_decoder_layer_equals_keras_nlp(norm):
    ours = build("DecoderLayer", norm)
    theirs = keras_nlp_layer(keras_nlp.layers.TransformerDecoder, norm)
    theirs.build(X.shape, MEMORY.shape)
    copy(ours, theirs, "self_attention", "cross_attention")
    expected = theirs(X, MEMORY, decoder_padding_mask=X_MASK, encoder_padding_mask=MEMORY_MASK)
    assert_close(ours(**OF_DECODER), expected)


# The paper's sizes.


def test_weights_of_the_base_model():
    """Vaswani et al., table 3, base: 6 layers of 3.15 million and 4.2 million weights."""
    sizes = {"d_model": 512, "num_heads": 8, "d_ff": 2048}
    encoder, decoder = kt.EncoderLayer(**sizes), kt.DecoderLayer(**sizes)
    encoder.build((None, None, 512))
    decoder.build((None, None, 512), (None, None, 512))
    attention, norm = 4 * (512 * 512 + 512), 2 * 512
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    assert encoder.count_params() == attention + feed_forward + 2 * norm
    assert decoder.count_params() == 2 * attention + feed_forward + 3 * norm
    assert kt.EncoderLayer(8, 2, 16)(normal(1, 3, 8)).shape == (1, 3, 8)
