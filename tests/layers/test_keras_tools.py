"""What Keras' tools do to a sublayer holds in a pass, step by step, by beam and exported."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.presets import ExportConfig
from keras_transformer.serving.server_process import ServerProcess
from tests.support.layer_harness import assert_close, normal
from tests.support.toy_translator import SIZES, SOURCES, random_translator, toy_tokenizer

X, MEMORY = normal(3, 5, 8), normal(3, 6, 8)
SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
TARGET = np.array([[2, 9, 4, 7, 5], [2, 6, 6, 8, 4]])
BEAM = kt.SearchConfig(beam_size=3)


@keras.saving.register_keras_serializable(package="tests")
class DoubledAttention(kt.MultiHeadAttention):
    """Overrides `attend`, the part that a pass and a step share."""

    def attend(self, query, key, value, mask=None, training=None):
        output, weights = super().attend(query, key, value, mask, training)
        return 2 * output + keras.ops.mean(query, axis=(2, 3), keepdims=True), weights


@keras.saving.register_keras_serializable(package="tests")
class CountedAttention(kt.MultiHeadAttention):
    """Overrides `call`."""

    calls = 0

    def call(
        self,
        query,
        value,
        value_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        type(self).calls += 1
        return super().call(
            query,
            value,
            value_mask=value_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
        )


@keras.saving.register_keras_serializable(package="tests")
class Swish(keras.layers.Layer):
    """A feed-forward network of one's own."""

    def __init__(self, d_model, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(d_model, "swish", dtype=self.dtype_policy)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x, training=None):
        return self.dense(x)


class Own:
    """Makes other sublayers."""

    def make_attention(self):
        options = super().make_attention().get_config() | {"name": None}
        return DoubledAttention.from_config(options)

    def make_feed_forward(self):
        return Swish(self.d_model, dtype=self.dtype_policy)

    def make_norm(self):
        return keras.layers.LayerNormalization(epsilon=1e-3, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable(package="tests")
class OwnEncoderLayer(Own, kt.EncoderLayer):
    """An encoder layer of these."""


@keras.saving.register_keras_serializable(package="tests")
class OwnDecoderLayer(Own, kt.DecoderLayer):
    """A decoder layer of these."""


@keras.saving.register_keras_serializable(package="tests")
class OwnEncoder(kt.Encoder):
    """A stack of them."""

    layer_class = OwnEncoderLayer


@keras.saving.register_keras_serializable(package="tests")
class OwnDecoder(kt.Decoder):
    """A stack of them."""

    layer_class = OwnDecoderLayer


@keras.saving.register_keras_serializable(package="tests")
class OwnTransformer(kt.Transformer):
    """A model of them."""

    encoder_class, decoder_class = OwnEncoder, OwnDecoder


def own_translator(**options):
    tokenizer = toy_tokenizer()
    size = tokenizer.vocabulary_size
    model = OwnTransformer(size, size, **SIZES | options)
    model.build()
    generator = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(generator.normal(0, 0.4, weight.shape))
    return kt.Translator(model, tokenizer, tokenizer)


def with_lora():
    """LoRA on query and value of all attention, with matrices that change something."""
    translator = random_translator(seed=5)
    for attention in attentions(translator.model):
        for dense in (attention.query_dense, attention.value_dense):
            dense.enable_lora(2)
            dense.lora_kernel_b.assign(0.3 * normal(*dense.lora_kernel_b.shape))
    return translator


def quantized():
    translator = random_translator(seed=5, share_embeddings="none")
    translator.model.quantize("int8", filters=r"dense|query|key|value|attention_output")
    return translator


def attentions(model):
    for layer in model.encoder.layers:
        yield layer.self_attention
    for layer in model.decoder.layers:
        yield from (layer.self_attention, layer.cross_attention)


CHANGED = {
    "own layers": functools.partial(own_translator, norm="pre", num_layers=2),
    "LoRA": with_lora,
    "int8": quantized,
}


@functools.cache
def changed(name):
    """A translator whose model has been changed so: leave it as it is."""
    return CHANGED[name]()


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("length", [None, 5])
def test_step_by_step_is_one_pass(name, length):
    model = changed(name).model
    expected = model((SOURCE, TARGET))
    state, step = model.initial_state(SOURCE, length), model.make_step()
    for position in range(TARGET.shape[1]):
        found, state = step(TARGET[:, position], position, state)
        assert_close(found, expected[:, position])


@pytest.mark.parametrize("name", CHANGED)
def test_export_answers_as_the_translator(name, tmp_path):
    translator = changed(name)
    config = ExportConfig(signatures=("beam",), beam_size=3, length_penalty=BEAM.length_penalty)
    path = kt.export(translator, tmp_path, config=config)
    with ServerProcess(path) as server:
        greedy, beam = server.predict(SOURCES), server.predict(SOURCES, "beam")
    assert greedy["text"] == translator.translate(SOURCES)
    expected = translator.translate_n_best(SOURCES, search=BEAM)
    assert [row[0] for row in beam["text"]] == [row[0][0] for row in expected]
    assert len({*greedy["text"]}) > 1


def test_own_layers_are_saved_and_loaded(tmp_path):
    model = own_translator().model
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.decoder.layers[0].self_attention) is DoubledAttention
    assert_close(loaded((SOURCE, TARGET)), model((SOURCE, TARGET)), 1e-6)


def test_lora_freezes_kernels_and_changes_the_pass():
    model = with_lora().model
    (layer,) = model.decoder.layers
    attention = layer.self_attention
    frozen = [attention.query_dense, attention.value_dense]
    assert all(not any(w is dense._kernel for w in model.trainable_variables) for dense in frozen)
    assert any(w is attention.key_dense._kernel for w in model.trainable_variables)
    plain = random_translator(seed=5).model((SOURCE, TARGET))
    assert np.abs(np.array(model((SOURCE, TARGET))) - plain).max() > 0.1
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=kt.SmoothedCrossEntropy())
    before = {w.path: np.array(w) for w in model.variables}
    model.fit((SOURCE, TARGET), TARGET, verbose=0)
    changed = {w.path for w in model.weights if np.abs(np.array(w) - before[w.path]).max() > 0}
    query = attention.query_dense
    assert {query.lora_kernel_a.path, query.lora_kernel_b.path} <= changed
    assert query._kernel.path not in changed


@pytest.mark.parametrize("name", ["FeedForward", "MultiHeadAttention", "Transformer"])
def test_int8_stays_near(name):
    if name == "FeedForward":
        layer, inputs = kt.FeedForward(8, 16), (X,)
    elif name == "MultiHeadAttention":
        layer, inputs = kt.MultiHeadAttention(2, 4), (X, MEMORY)
    else:
        layer, inputs = random_translator(share_embeddings="none").model, ((SOURCE, TARGET),)
    before = np.array(layer(*inputs))
    denses = [part for part in layer._flatten_layers() if hasattr(part, "kernel")]
    for dense in denses:
        dense.quantize("int8")
    after = np.array(layer(*inputs))
    assert len(denses) >= 2 and all(dense.kernel.dtype == "int8" for dense in denses)
    assert 0 < np.abs(after - before).mean() < 0.05 * np.std(before)


def test_embeddings_are_not_quantized():
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.PositionalEmbedding(20, 8)
    model = keras.Model(ids, kt.FeedForward(8, 16)(embedding(ids)))
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):
        model.quantize("int8")
    assert embedding.embeddings.dtype == "float32" and not hasattr(embedding, "enable_lora")
    with pytest.raises(NotImplementedError, match="PositionalEmbedding"):
        embedding.quantize("int8")


@pytest.mark.parametrize("kind", [keras.quantizers.GPTQConfig, keras.quantizers.AWQConfig])
def test_what_keras_cannot_load_is_not_saved(kind, tmp_path):
    """Keras itself saves such a model, and then fails to load it."""
    layer = kt.FeedForward(8, 16)
    model = keras.Sequential([keras.Input((3, 8)), layer])
    layer.inner.quantize(config=kind([], None, group_size=4))
    for attempt in (layer.get_config, lambda: model.save(tmp_path / "model.keras")):
        with pytest.raises(ValueError, match=r"cannot be loaded: .* quantize it\s+after loading"):
            attempt()


# A call of one's own.


def model_with(**sublayers):
    """A model with other sublayers in its decoder, put in before they are built."""

    class Layer(kt.DecoderLayer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for name, sublayer in sublayers.items():
                setattr(self, name, sublayer)

    stack = type("Stack", (kt.Decoder,), {"layer_class": Layer})
    return type("Model", (kt.Transformer,), {"decoder_class": stack})(20, 20, **SIZES)


@pytest.mark.parametrize("name", ["self_attention", "cross_attention"])
def test_attention_with_a_call_of_its_own(name):
    """It is called in every pass; decoding step by step, which would not, refuses it by name."""
    attention = CountedAttention(2, 16, name="counted")
    model = model_with(**{name: attention})
    before = CountedAttention.calls
    model((SOURCE, TARGET))
    assert CountedAttention.calls == before + 1
    with pytest.raises(
        ValueError, match=r"CountedAttention \('counted'\) does not use MultiHeadAttention.call"
    ):
        model.initial_state(SOURCE)


def test_the_sublayer_before_is_forgotten():
    count = kt.Transformer(20, 20, **SIZES)
    model = model_with(self_attention=DoubledAttention(2, 16), feed_forward=kt.FeedForward(32, 64))
    assert model.count_params() == count.count_params()
    layer = model.decoder.layers[0]
    assert len(layer.weights) == len(count.decoder.layers[0].weights)
    with pytest.raises(ValueError, match="a layer that is already built"):
        layer.feed_forward = kt.FeedForward(32, 64)


def test_a_step_of_a_sublayer_put_in_is_its_pass():
    model = model_with(
        self_attention=DoubledAttention(2, 16), cross_attention=DoubledAttention(2, 16)
    )
    expected, state = model((SOURCE, TARGET)), model.initial_state(SOURCE)
    for position in range(TARGET.shape[1]):
        found, state = model.step(TARGET[:, position], position, state)
        assert_close(found, expected[:, position])


def test_what_an_earlier_version_has_saved_is_refused():
    """Its weights would be read for those of a layer that is neither quantized nor has LoRA."""
    config = kt.FeedForward(8, 16).get_config()
    config["changes"] = {"parts": {"inner": {"lora_rank": 2}}}
    with pytest.raises(ValueError, match="quantized or LoRA layers of an earlier version"):
        kt.FeedForward.from_config(config)
