"""What Keras' own means keep of a layer's sublayers: frozen, quantized; LoRA is merged."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.composite import change_precision
from tests.support.layer_harness import CASES, build, functional, normal, randomize, to_numpy
from tests.support.toy_translator import SIZES

SOURCE = np.array([[5, 6, 7, 3], [8, 9, 3, 0]])
TARGET, LABELS = np.array([[2, 5, 6], [2, 7, 0]]), np.array([[5, 6, 3], [7, 3, 0]])
MODES = ("int8", "int4", "float8")
every_layer = pytest.mark.parametrize("name", [name for name in CASES if "Embedding" not in name])
# Keras, of layers that it cannot quantize.
ignore_quantize = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")


def denses(layer):
    return [part for part in layer._flatten_layers() if hasattr(part, "lora_enabled")]


def compiled(model, **options):
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False, **options)
    return model


def assert_same(one, other):
    """The same variables, trainable or not, with the same values."""
    assert [v.trainable for v in one.variables] == [v.trainable for v in other.variables]
    pairs = list(zip(one.variables, other.variables, strict=True))
    if one.compiled:
        pairs += zip(one.optimizer.variables, other.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(np.array(a), np.array(b), a.path)


def saved_and_loaded(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


# Frozen.


@pytest.mark.parametrize("name", ["FeedForward", "MultiHeadAttention", "EncoderLayer", "Decoder"])
def test_training_goes_on_after_loading(name, tmp_path):
    """As one that was never saved, bit for bit, the optimizer included."""
    layer = build(name)
    denses(layer)[-1].trainable = False
    if name == "Decoder":
        layer.layers[1].trainable = False
    arrays = CASES[name].arrays
    model = compiled(functional(layer, arrays), loss="mean_squared_error", run_eagerly=True)
    labels = normal(*layer(**arrays).shape)
    model.fit(arrays, labels, verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    for one in (model, loaded):
        one.fit(arrays, labels, verbose=0)
    assert_same(model, loaded)
    clone = keras.models.clone_model(model)
    assert [v.trainable for v in clone.variables] == [v.trainable for v in model.variables]


@pytest.mark.parametrize("share", ["target", "all"])
def test_training_of_the_model_goes_on_after_loading(share, tmp_path):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, **SIZES | {"num_layers": 2}, share_embeddings=share)
    model.encoder.layers[0].trainable = False
    model.decoder.layers[1].feed_forward.inner.trainable = False
    model.decoder.layers[0].cross_attention.key_dense.trainable = False
    assert model.get_config()["frozen"] == [
        "encoder/encoder_layer",
        "decoder/decoder_layer/multi_head_attention_1/key",
        "decoder/decoder_layer_1/feed_forward/dense",
    ]
    model = compiled(model, loss=kt.SmoothedCrossEntropy(0.1))
    model.fit((SOURCE, TARGET), LABELS, verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    for one in (model, loaded):
        one.fit((SOURCE, TARGET), LABELS, epochs=2, verbose=0)
    assert_same(model, loaded)
    assert keras.models.clone_model(model).get_config() == model.get_config()


def test_a_sequential_model_keeps_what_is_frozen(tmp_path):
    model = keras.Sequential([kt.PositionalEmbedding(11, 8), kt.EncoderLayer(8, 2, 16, 0.0)])
    model.build((None, 4))
    model.layers[1].self_attention.trainable = False
    loaded = saved_and_loaded(model, tmp_path)
    assert_same(model, loaded)
    assert len(loaded.trainable_variables) == len(model.weights) - 8


@every_layer
def test_made_not_trainable_no_part_is_trainable(name):
    """Sublayers too that are made later: a functional model asks every weight."""
    layer = type(build(name)).from_config(build(name).get_config() | {"trainable": False})
    model = functional(layer, CASES[name].arrays)
    assert not model.trainable_variables and layer.weights
    layer.trainable = True
    assert len(model.trainable_variables) == len(layer.weights)


def test_positions_of_a_frozen_attention_are_frozen():
    attention = kt.MultiHeadAttention(2, 4, positions="disentangled", trainable=False)
    x = normal(1, 3, 8)
    attention(x, x)
    assert not any(v.trainable for v in attention.weights)


def test_what_earlier_versions_froze():
    model = kt.Transformer(20, 20, **SIZES)
    changes = {"parts": {"decoder": {"trainable": False}, "encoder/layers": {}}}
    for entry in ({"changes": changes}, {"frozen": ["decoder", "source_embedding.embeddings"]}):
        loaded = kt.Transformer.from_config(model.get_config() | entry)
        assert not loaded.decoder.trainable and loaded.encoder.trainable


# Quantized.


@ignore_quantize
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["FeedForward", "MultiHeadAttention", "Decoder"])
def test_a_quantized_layer_is_loaded(name, mode, tmp_path):
    model = functional(build(name), CASES[name].arrays)
    for dense in denses(model.layers[-1]):
        dense.quantize(mode)
    loaded = saved_and_loaded(model, tmp_path)
    arrays = CASES[name].arrays
    assert_same(model, loaded)
    np.testing.assert_array_equal(to_numpy(model(arrays)), to_numpy(loaded(arrays)))
    clone = keras.models.clone_model(model)
    assert [(v.dtype, v.shape) for v in clone.weights] == [
        (v.dtype, v.shape) for v in model.weights
    ]


@ignore_quantize
@pytest.mark.parametrize("mode", MODES)
def test_a_quantized_model_is_loaded(mode, tmp_path):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, **SIZES)
    model.build()
    randomize(model)
    model.quantize(mode)
    loaded = saved_and_loaded(model, tmp_path)
    np.testing.assert_array_equal(
        model.predict((SOURCE, TARGET), verbose=0), loaded.predict((SOURCE, TARGET), verbose=0)
    )
    half = kt.Transformer.from_config(change_precision(model.get_config(), "mixed_bfloat16"))
    half.set_weights(model.get_weights())
    assert half.output_projection.quantization_mode == mode
    assert half.output_projection.compute_dtype == "bfloat16"


@ignore_quantize
def test_the_loss_of_a_quantized_model_is_that_of_its_logits():
    """The fused loss would multiply by whole numbers."""
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, **SIZES | {"dropout": 0.0})
    model.build()
    model.quantize("int8")
    loss = kt.SmoothedCrossEntropy(0.0)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=False)
    found = model.fit((SOURCE, TARGET), LABELS, verbose=0).history["loss"][0]
    np.testing.assert_allclose(found, loss(LABELS, model((SOURCE, TARGET))), rtol=1e-5)


def test_lora_is_merged_when_saved(tmp_path):
    model = kt.Transformer(20, 20, **SIZES)
    model.build()
    for layer in model.decoder.layers:
        layer.self_attention.query_dense.enable_lora(2)
        layer.self_attention.query_dense.lora_kernel_b.assign(normal(2, 16))
    loaded = saved_and_loaded(model, tmp_path)
    assert len(loaded.trainable_variables) == len(loaded.variables) == len(model.weights) - 2
    expected = model.predict((SOURCE, TARGET), verbose=0)
    found = loaded.predict((SOURCE, TARGET), verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [kt.BucketedPositions, kt.DisentangledPositions])
def test_positions_of_two_layers_are_two(scheme, tmp_path):
    positions, x = scheme(), keras.Input((None, 8))
    layers = [kt.EncoderLayer(8, 2, 16, positions=positions), kt.Encoder(2, 8, 2, 16)]
    layers.append(kt.MultiHeadAttention(2, 4, positions=positions))
    y = layers[2](z := layers[1](layers[0](x)), z)
    model = randomize(keras.Model(x, y))
    assert len({positions, layers[0].positions, layers[2].positions}) == 3
    loaded = saved_and_loaded(model, tmp_path)
    np.testing.assert_array_equal(loaded(normal(1, 3, 8)), model(normal(1, 3, 8)))
