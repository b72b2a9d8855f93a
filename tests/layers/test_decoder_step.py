"""Decoding one position at a time equals a pass over all, whatever a decoder is made of."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_transformer as kt
from tests.layers.test_composite import ignore_quantize
from tests.support.layer_harness import NORMS, TOLERANCES, assert_close, normal, randomize
from tests.support.toy_translator import SIZES, SOURCES, toy_tokenizer

SOURCE = np.array([[5, 6, 7, 3], [8, 3, 0, 0]])
TARGET = np.array([[2, 9, 4, 7, 5], [2, 6, 6, 8, 4]])

# Distances that occur are larger than those that are told apart.
SCHEMES = {
    "none": None,
    "relative": kt.RelativePositions(2),
    "bucketed": kt.BucketedPositions(4, 3, bidirectional=False),
    "rotary": kt.RotaryPositions(),
    "disentangled": kt.DisentangledPositions(2),
}


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(NORMS),
    st.sampled_from(list(SCHEMES)),
    st.sampled_from(["none", "bare", "masked", "carries its mask", "wide"]),
    st.sampled_from(list(TOLERANCES)),
    st.sampled_from([None, 5, 7]),
    st.sampled_from([int, np.int64, tf.constant]),
)
def test_a_step_is_a_pass(norm, scheme, kind, policy, room, number):
    options = dict(norm=norm, positions=SCHEMES[scheme], dtype=policy)
    decoder = kt.Decoder(2, 8, 2, 16, cross_attention=kind != "none", **options)
    memory = kt.PositionalEmbedding(9, 12 if kind == "wide" else 8)(SOURCE)
    mask = SOURCE != 0 if kind == "masked" else None
    if kind in ("bare", "masked"):
        memory = np.array(memory)
    memory = {} if kind == "none" else {"memory": memory, "memory_mask": mask}
    x = normal(2, 5, 8)
    decoder.initial_state(2, room, **memory)  # builds it
    randomize(decoder)
    # Also before the first pass, with a mask that the memory carries.
    first = state = decoder.initial_state(2, room, **memory)
    expected = np.array(keras.ops.cast(decoder(x, **memory), "float32"))
    for position in range(5):
        found, state = decoder.step(x[:, position], number(position), state)
        assert found.dtype == decoder.compute_dtype
        assert all(tensor.shape[0] == 2 for tensor in keras.tree.flatten(state))
        assert_close(found, expected[:, position], 2 * TOLERANCES[policy])
    found, several = decoder.step(x[:, :2], number(0), first)
    assert_close(found, expected[:, :2], 2 * TOLERANCES[policy])
    found, several = decoder.step(x[:, 2:], number(2), several)
    assert_close(found, expected[:, 2:], 2 * TOLERANCES[policy])
    for one, other in zip(*map(keras.tree.flatten, (state, several)), strict=True):
        one, other = (keras.ops.cast(tensor, "float32") for tensor in (one, other))
        assert_close(one, other, 2 * TOLERANCES[policy])


def test_a_step_beyond_the_room():
    decoder, x = kt.Decoder(1, 8, 2, 16, cross_attention=False), normal(1, 8)
    state = decoder.initial_state(1, 3)
    for position in (3, np.int64(7), -1, tf.constant(3)):
        with pytest.raises(ValueError, match=r"received -?\d: create the state with a larger len"):
            decoder.step(x, position, state)
    with pytest.raises(ValueError, match="received 3: create the state with a larger len"):
        decoder.step(normal(1, 2, 8), 2, state)
    # Of a tensor nothing is known in a graph, and no server gets an operation that asserts.
    step = tf.function(lambda position: decoder.step(x, position, state)[0])
    graph = step.get_concrete_function(tf.TensorSpec([], tf.int32))
    assert not [op.name for op in graph.graph.get_operations() if op.type == "Assert"]
    assert np.isnan(graph(tf.constant(3))).all() and np.isfinite(graph(tf.constant(2))).all()


@keras.saving.register_keras_serializable(package="tests")
class DoubledAttention(kt.MultiHeadAttention):
    def attend(self, query, key, value, mask=None, training=None):
        output, weights = super().attend(query, key, value, mask, training)
        return 2 * output + keras.ops.mean(query, axis=(2, 3), keepdims=True), weights


@keras.saving.register_keras_serializable(package="tests")
class OwnDecoderLayer(kt.DecoderLayer):
    def make_attention(self):
        return DoubledAttention.from_config(super().make_attention().get_config() | {"name": None})

    def make_feed_forward(self):
        return keras.layers.Dense(self.d_model, "swish", dtype=self.dtype_policy)

    def make_norm(self):
        return keras.layers.LayerNormalization(epsilon=1e-3, dtype=self.dtype_policy)


@keras.saving.register_keras_serializable(package="tests")
class OwnDecoder(kt.Decoder):
    layer_class = OwnDecoderLayer


@keras.saving.register_keras_serializable(package="tests")
class OwnTransformer(kt.Transformer):
    decoder_class = OwnDecoder


def changed(kind, **options):
    """A model that Keras' tools have changed: LoRA in two projections, int8 in the others."""
    size = toy_tokenizer().vocabulary_size
    keras.utils.set_random_seed(1)
    model = kind(size, size, **SIZES | {"num_layers": 2, "norm": "pre"}, **options)
    for seed, weight in enumerate(model.trainable_variables):
        weight.assign(0.4 * normal(*weight.shape, seed=seed))
    model.quantize("int8", filters="dense|key|attention_output")
    for layer in model.decoder.layers:
        for attention in (layer.self_attention, layer.cross_attention):
            for dense in (attention.query_dense, attention.value_dense):
                dense.enable_lora(2)
                dense.lora_kernel_b.assign(0.3 * normal(*dense.lora_kernel_b.shape))
    return model


@ignore_quantize
@pytest.mark.parametrize("kind", [kt.Transformer, OwnTransformer])
def test_a_changed_model(kind, tmp_path):
    model = changed(kind)
    expected = model((SOURCE, TARGET))
    state, step = model.initial_state(SOURCE, 5), model.make_step()
    for position in range(TARGET.shape[1]):
        found, state = step(TARGET[:, position], position, state)
        assert_close(found, expected[:, position])
    assert_close(step(TARGET, 0, model.initial_state(SOURCE))[0], expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.decoder.layers[0]) is type(model.decoder.layers[0])
    assert_close(loaded((SOURCE, TARGET)), expected)


@ignore_quantize
def test_a_changed_model_in_another_precision():
    models = [changed(OwnTransformer, dtype=dtype) for dtype in ("float32", "mixed_bfloat16")]
    translator, half = (kt.Translator(x, toy_tokenizer(), toy_tokenizer()) for x in models)
    twin = half.in_precision("float32")
    translator.run_eagerly = twin.run_eagerly = True
    found = twin.translate(SOURCES)
    assert found == translator.translate(SOURCES) and len(set(found)) > 1


class OwnCall(kt.MultiHeadAttention):
    def call(self, query, value, **kwargs):
        output, weights = super().call(query, value, return_attention_scores=True)
        return 0 * output, weights


def test_attention_with_a_call_of_its_own():
    """It is called in every pass; decoding step by step, which would not, refuses it by name."""
    own = {"make_attention": lambda self: OwnCall(2, 4, name="own")}
    layers = {"layer_class": type("Layer", (kt.DecoderLayer,), own)}
    decoder = type("Stack", (kt.Decoder,), layers)(1, 8, 2, 16)
    x, memory = normal(2, 5, 8), normal(2, 4, 8)
    assert_close(decoder(x, memory)[:, -1], decoder(x[:, -1:], 2 * memory)[:, 0])
    with pytest.raises(ValueError, match=r"OwnCall \('own'\) does not use MultiHeadAttention.call"):
        decoder.initial_state(memory=memory)
