"""What is changed inside a layer is kept: frozen, quantized, LoRA, shared; training goes on."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
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


# Frozen and LoRA.


@pytest.mark.parametrize("name", ["FeedForward", "MultiHeadAttention", "EncoderLayer", "Decoder"])
def test_training_goes_on_after_loading(name, tmp_path):
    """As one that was never saved, bit for bit, the optimizer included."""
    layer = build(name)
    first, *_, last = denses(layer)
    first.enable_lora(2)
    last.trainable = False
    if name == "Decoder":
        layer.layers[1].trainable = False
        layer.layers[1].feed_forward.inner.bias.trainable = True
    arrays = CASES[name].arrays
    model = compiled(functional(layer, arrays), loss="mean_squared_error", run_eagerly=True)
    labels = normal(*layer(**arrays).shape)
    model.fit(arrays, labels, verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    for one in (model, loaded):
        one.fit(arrays, labels, verbose=0)
    assert np.abs(np.array(first.lora_kernel_b)).max() > 0
    assert_same(model, loaded)
    clone = keras.models.clone_model(model)
    assert [v.trainable for v in clone.variables] == [v.trainable for v in model.variables]


def changed_transformer(share="target"):
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, **SIZES | {"num_layers": 2}, share_embeddings=share)
    model.encoder.layers[0].trainable = False
    for layer in model.decoder.layers:
        layer.self_attention.query_dense.enable_lora(2, lora_alpha=3)
    model.decoder.layers[1].feed_forward.inner.trainable = False
    model.target_embedding.embeddings.trainable = False
    model.decoder.layers[0].cross_attention.key_dense.bias.trainable = False
    return model


@pytest.mark.parametrize("share", ["target", "all"])
def test_training_of_the_model_goes_on_after_loading(share, tmp_path):
    model = compiled(changed_transformer(share), loss=kt.SmoothedCrossEntropy(0.1))
    model.fit((SOURCE, TARGET), LABELS, verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    for one in (model, loaded):
        one.fit((SOURCE, TARGET), LABELS, epochs=2, verbose=0)
    assert_same(model, loaded)
    twin = kt.Transformer.from_config(model.get_config())
    assert [v.trainable for v in twin.variables] == [v.trainable for v in model.variables]
    assert keras.models.clone_model(model).get_config() == model.get_config()


def test_a_kernel_set_free_after_lora_stays_free():
    layer = build("FeedForward")
    layer.inner.enable_lora(2)
    layer.inner._kernel.trainable = True
    twin = type(layer).from_config(layer.get_config())
    assert len(twin.trainable_variables) == len(layer.trainable_variables) == 6


def test_a_part_that_learns_within_a_frozen_one():
    layer = build("Encoder")
    layer.trainable = False
    layer.layers[1].trainable = True
    layer.layers[1].self_attention.trainable = False
    twin = type(layer).from_config(layer.get_config())
    assert [v.trainable for v in twin.variables] == [v.trainable for v in layer.variables]
    assert 0 < sum(v.trainable for v in twin.variables) < len(layer.layers[1].variables)


def test_frozen_embeddings_and_positions_that_learn(tmp_path):
    layer = build("PositionalEmbedding learned")
    layer.embeddings.trainable = False
    model = compiled(functional(layer, CASES["PositionalEmbedding"].arrays), loss="mse")
    model.fit(CASES["PositionalEmbedding"].arrays, np.zeros((3, 4, 8)), verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    assert [v.shape for v in loaded.trainable_variables] == [(9, 8)]
    assert_same(model, loaded)


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
    layer = CASES[name].make(trainable=False)
    model = functional(layer, CASES[name].arrays)
    assert not model.trainable_variables and layer.weights
    layer.trainable = True
    assert len(model.trainable_variables) == len(layer.weights)


def test_positions_of_a_frozen_attention_are_frozen():
    attention = kt.MultiHeadAttention(2, 4, positions="disentangled", trainable=False)
    x = normal(1, 3, 8)
    attention(x, x)
    assert not any(v.trainable for v in attention.weights)


def test_an_unknown_part_is_refused():
    layer = build("FeedForward")
    layer.inner.enable_lora(2)
    config = layer.get_config()
    parts = config["changes"]["parts"]
    for path, change in (
        ("__class__", {"trainable": False}),
        ("inner/__class__", {"trainable": False}),
        ("third", {"trainable": False}),
        ("dropout_layer", {"lora_rank": 2}),
    ):
        other = config | {"changes": config["changes"] | {"parts": parts | {path: change}}}
        with pytest.raises(ValueError, match="load it with the same classes"):
            kt.FeedForward.from_config(other)


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
    half = kt.Transformer.from_config(model.get_config() | {"dtype": "mixed_bfloat16"})
    half.set_weights(model.get_weights())
    assert half.output_projection.quantization_mode == mode
    assert half.output_projection.compute_dtype == "bfloat16"


@ignore_quantize
def test_the_way_of_quantization_is_kept(tmp_path):
    """Four bits by blocks of four rows, with LoRA on top, go on training alike."""
    layer = build("FeedForward")
    config = keras.quantizers.Int4QuantizationConfig(block_size=4)
    for dense in denses(layer):
        dense.quantize(config=config)
        dense.enable_lora(2)
    arrays = CASES["FeedForward"].arrays
    model = compiled(functional(layer, arrays), loss="mse", run_eagerly=True)
    model.fit(arrays, normal(*layer(**arrays).shape), verbose=0)
    loaded = saved_and_loaded(model, tmp_path)
    assert loaded.layers[-1].inner.quantization_config.block_size == 4
    for one in (model, loaded):
        one.fit(arrays, normal(*layer(**arrays).shape), verbose=0)
    assert_same(model, loaded)


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


def test_lora_is_merged_where_there_is_none(tmp_path):
    """Weights of a layer with LoRA are those of one without."""
    model = changed_transformer()
    for layer in model.decoder.layers:
        layer.self_attention.query_dense.lora_kernel_b.assign(normal(2, 16))
    model.save_weights(tmp_path / "model.weights.h5")
    plain = kt.Transformer(20, 20, **SIZES | {"num_layers": 2}, share_embeddings="target")
    plain.load_weights(tmp_path / "model.weights.h5")
    expected = model.predict((SOURCE, TARGET), verbose=0)
    np.testing.assert_allclose(
        plain.predict((SOURCE, TARGET), verbose=0), expected, rtol=1e-5, atol=1e-5
    )


# Shared by several.


def make_attentions():
    shared = kt.BucketedPositions()
    return [kt.MultiHeadAttention(2, 4, positions=shared) for _ in range(2)]


def make_attentions_of_a_table():
    one = kt.DisentangledPositions(4)
    two = kt.DisentangledPositions(4, table=one.table)
    return [kt.MultiHeadAttention(2, 4, positions=positions) for positions in (one, two)]


def make_layers():
    shared = kt.BucketedPositions()
    return [kt.EncoderLayer(8, 2, 16, positions=shared) for _ in range(2)]


def make_encoders():
    shared = kt.DisentangledPositions(4)
    return [kt.Encoder(2, 8, 2, 16, positions=shared) for _ in range(2)]


@pytest.mark.parametrize(
    "make", [make_attentions, make_attentions_of_a_table, make_layers, make_encoders]
)
def test_shared_positions_stay_one(make, tmp_path):
    x = inputs = keras.Input((None, 8))
    for layer in make():
        x = layer(x, x) if isinstance(layer, kt.MultiHeadAttention) else layer(x)
    model = randomize(keras.Model(inputs, x))
    loaded = [saved_and_loaded(model, tmp_path) for _ in range(2)]
    clones = [keras.models.clone_model(model) for _ in range(2)]
    again = [keras.Model.from_config(model.get_config()), keras.models.clone_model(clones[0])]
    models = [model, *loaded, *clones, *again]
    assert {len(one.weights) for one in models} == {len(model.weights)}
    assert len({id(w) for one in models for w in one.weights}) == 7 * len(model.weights)
    for one in loaded:
        np.testing.assert_array_equal(one(normal(1, 3, 8)), model(normal(1, 3, 8)))


def test_copies_of_one_attention_share_nothing():
    attention, _ = attentions = make_attentions()
    x = normal(1, 3, 8)
    for one in attentions:
        one(x, x)
    copies = [
        kt.MultiHeadAttention.from_config(attention.get_config() | {"name": name}) for name in "ab"
    ]
    assert copies[0].positions is not copies[1].positions
