"""Feed-forward network, encoder and decoder: equal to the formulas."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import layer_harness, oracle
from tests.support.layer_harness import MEMORY, MEMORY_MASK, NORMS, X_MASK, X, assert_close, build


def test_kernels_start_apart():
    """Initializers with a copy each; the layers of a deep stack start near the identity."""
    layer = kt.FeedForward(8, 16, kernel_initializer=keras.initializers.RandomNormal())
    layer.build((None, 8))
    w1, _, w2, _ = layer.get_weights()
    assert not np.intersect1d(w1, w2).size
    decoder = kt.Decoder(4, d_model=64, num_heads=4, d_ff=128)
    decoder.build((None, None, 64), (None, None, 64))
    attention, feed_forward = decoder.layers[1].cross_attention, decoder.layers[1].feed_forward
    inner = attention.query_dense, attention.key_dense, attention.value_dense, feed_forward.inner
    outer = attention.output_dense, feed_forward.outer
    assert np.abs(np.array(inner[0].kernel) - np.array(inner[1].kernel)).max() > 1e-2
    for share, layers in ((1 / 2, inner), (1 / 12, outer)):  # of Glorot's variance
        for dense in layers:
            sizes = 64 + (128 if dense in (feed_forward.inner, feed_forward.outer) else 64)
            assert np.var(dense.kernel) == pytest.approx(share * 2 / sizes, rel=0.1)


@pytest.mark.parametrize("norm", NORMS)
def test_stacks_equal_the_formula(norm):
    encoder, decoder = build("Encoder", norm), build("Decoder", norm)
    for x, memory in ((X_MASK, MEMORY_MASK), (None, MEMORY_MASK), (X_MASK, None)):
        masks = np.ones_like(X_MASK) if x is None else x
        masks = masks, np.ones_like(MEMORY_MASK) if memory is None else memory
        assert_close(encoder(MEMORY, memory), oracle.encoder(encoder, MEMORY, masks[1]))
        assert_close(decoder(X, MEMORY, x, memory), oracle.decoder(decoder, X, MEMORY, *masks))


def test_decoder_without_a_memory_is_a_causal_encoder():
    decoder, encoder = build("Decoder alone", "pre"), build("Encoder", "pre")
    encoder.set_weights(decoder.get_weights())
    expected, weights = encoder(X, X_MASK, use_causal_mask=True, return_attention_scores=True)
    output, of_self = decoder(X, x_mask=X_MASK, return_attention_scores=True)
    assert_close((output, of_self), (expected, weights), 1e-6)
    assert np.abs(np.array(decoder(X)) - np.array(encoder(X))).max() > 0.1
    # Keras' causal mask, spelled out, and the padding with it.
    causal = np.tril(np.ones((X.shape[1],) * 2, bool)) & X_MASK[:, np.newaxis]
    assert_close(encoder(X, causal), expected, 1e-6)


def test_epsilon_of_every_layer_normalization(monkeypatch):
    """Inputs whose variance is of epsilon's size tell one epsilon from another."""
    monkeypatch.setattr(oracle, "EPSILON", 1e-3)
    layer, x = build("Encoder", "pre", epsilon=1e-3), 1e-2 * MEMORY
    assert_close(layer(x, MEMORY_MASK), oracle.encoder(layer, x, MEMORY_MASK))


def test_each_layer_has_its_own_weights_of_an_activation(tmp_path):
    inputs, x = keras.Input((6, 8)), layer_harness.normal(2, 6, 8)
    activation = keras.layers.PReLU(shared_axes=[1])
    model = keras.Model(inputs, kt.Encoder(2, 8, 2, 16, activation=activation)(inputs))
    layer_harness.randomize(model).save(tmp_path / "model.keras")
    assert_close(keras.models.load_model(tmp_path / "model.keras")(x), model(x))
    assert sum("alpha" in weight.path for weight in model.weights) == 2


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
