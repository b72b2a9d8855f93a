"""What Keras' own means keep of a layer's sublayers: frozen, quantized; LoRA is merged."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support.layer_harness import CASES, build, functional, randomize, to_numpy
from tests.support.toy_translator import SIZES

# Keras, of layers that it cannot quantize.
ignore_quantize = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")


def assert_same(one, other):
    assert [v.trainable for v in one.variables] == [v.trainable for v in other.variables]
    for a, b in zip(one.variables, other.variables, strict=True):
        np.testing.assert_array_equal(np.array(a), np.array(b), a.path)


def saved_and_loaded(model, path):
    model.save(path / "model.keras")
    return keras.saving.load_model(path / "model.keras")


def test_a_model_with_frozen_parts_is_loaded_and_cloned(tmp_path):
    model = kt.Transformer(20, 20, **SIZES | {"num_layers": 2}, share_embeddings="all")
    model.encoder.layers[0].trainable = False
    model.decoder.layers[1].feed_forward.inner.trainable = False
    model.decoder.layers[0].cross_attention.key_dense.trainable = False
    expected = ["decoder/decoder_layer/multi_head_attention_1/key"]
    expected = ["encoder/encoder_layer", *expected, "decoder/decoder_layer_1/feed_forward/dense"]
    assert model.get_config()["frozen"] == expected
    assert_same(model, saved_and_loaded(model, tmp_path))
    assert keras.models.clone_model(model).get_config() == model.get_config()


@pytest.mark.parametrize("name", ["MultiHeadAttention", "Transformer"])
def test_made_not_trainable_no_part_is_trainable(name):
    """Sublayers and positions too that are made later: a functional model asks every weight."""
    config = build(name, positions="disentangled").get_config()
    layer = type(build(name)).from_config(config | {"trainable": False})
    model = functional(layer, CASES[name].arrays)
    assert not model.trainable_variables and layer.weights
    layer.trainable = True
    assert len(model.trainable_variables) == len(layer.weights)


def test_what_earlier_versions_saved():
    """Weights of LoRA would be read for those of a layer that has none."""
    config = kt.FeedForward(8, 16).get_config()
    config["changes"] = {"parts": {"inner": {"lora_rank": 2}}}
    with pytest.raises(ValueError, match="quantized or LoRA layers of an earlier version"):
        kt.FeedForward.from_config(config)
    model = kt.Transformer(20, 20, **SIZES)
    changes = {"parts": {"decoder": {"trainable": False}, "encoder/layers": {}}}
    for entry in ({"changes": changes}, {"frozen": ["decoder", "source_embedding.embeddings"]}):
        loaded = kt.Transformer.from_config(model.get_config() | entry)
        assert not loaded.decoder.trainable and loaded.encoder.trainable


def test_policies_of_sublayers_are_kept(tmp_path):
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    policies["heads/key"] = "mixed_bfloat16"
    inputs, layer = keras.Input((3, 8)), kt.MultiHeadAttention(2, 4, dtype=policies, name="heads")
    model = keras.Model(inputs, layer(inputs, inputs))
    for copy in (model, saved_and_loaded(model, tmp_path), keras.models.clone_model(model)):
        assert copy.get_layer("heads").key_dense.compute_dtype == "bfloat16"


@ignore_quantize
@pytest.mark.parametrize("name, mode", [("FeedForward", "float8"), ("MultiHeadAttention", "int4")])
def test_a_quantized_layer_is_loaded(name, mode, tmp_path):
    layer, arrays = build(name), CASES[name].arrays
    before = to_numpy(layer(**arrays))
    model = functional(layer, arrays)
    for dense in (part for part in layer._flatten_layers() if hasattr(part, "lora_enabled")):
        dense.quantize(mode)
    after = to_numpy(model(arrays))
    assert 0 < np.abs(after - before).mean() < 0.3 * np.std(before)
    loaded = saved_and_loaded(model, tmp_path)
    assert_same(model, loaded)
    np.testing.assert_array_equal(after, to_numpy(loaded(arrays)))


@ignore_quantize
def test_the_loss_of_a_quantized_model_is_that_of_its_logits():
    """The fused loss would multiply by whole numbers."""
    model = randomize(kt.Transformer(20, 20, **SIZES))
    model.quantize("int8")
    loss = kt.SmoothedCrossEntropy(0.0)
    model.compile(keras.optimizers.SGD(0.0), loss, run_eagerly=True)
    inputs, labels = CASES["Transformer"].arrays["inputs"], np.array([[5, 6, 3, 0]] * 3)
    found = model.fit(inputs, labels, verbose=0).history["loss"][0]
    np.testing.assert_allclose(found, loss(labels, model(inputs)), rtol=1e-5)


def test_what_keras_cannot_load_is_not_saved(tmp_path):
    """Keras itself saves such a model, and then fails to load it."""
    layer = kt.FeedForward(8, 16)
    model = keras.Sequential([keras.Input((3, 8)), layer])
    layer.inner.quantize(config=keras.quantizers.GPTQConfig([], None, group_size=4))
    for attempt in (layer.get_config, lambda: model.save(tmp_path / "model.keras")):
        with pytest.raises(ValueError, match=r"cannot be loaded: .* quantize it\s+after loading"):
            attempt()
