"""Masks arrive whether they are passed or carried by Keras from PositionalEmbedding."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import layer_harness
from tests.support.layer_harness import NORMS, SOURCE, TARGET, assert_close, build, to_numpy

NAMES = ["MultiHeadAttention", "EncoderLayer", "Encoder", "DecoderLayer", "Decoder"]
TARGET_MASK, SOURCE_MASK = TARGET != 0, SOURCE != 0
# Per layer: names of its target and source inputs, then its masks for those that carry one.
OF_TARGET = {"MultiHeadAttention": "query", "DecoderLayer": "x", "Decoder": "x"}
OF_SOURCE = {
    "MultiHeadAttention": "value",
    "EncoderLayer": "x",
    "Encoder": "x",
    "DecoderLayer": "memory",
    "Decoder": "memory",
}
MASKS = {
    "MultiHeadAttention": {"query_mask": TARGET_MASK, "value_mask": SOURCE_MASK},
    "EncoderLayer": {"mask": SOURCE_MASK},
    "Encoder": {"mask": SOURCE_MASK},
    "DecoderLayer": {"x_mask": TARGET_MASK, "memory_mask": SOURCE_MASK},
    "Decoder": {"x_mask": TARGET_MASK, "memory_mask": SOURCE_MASK},
}
both_norms = pytest.mark.parametrize("norm", NORMS)
every_layer = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def embedding():
    layer = kt.PositionalEmbedding(layer_harness.SOURCE_VOCABULARY, layer_harness.D)
    layer.build()
    return layer_harness.randomize(layer)


def embedded(name, embedding, source, target):
    """The layer's inputs by name, each with the mask that Keras carries."""
    inputs = {OF_TARGET[name]: embedding(target)} if name in OF_TARGET else {}
    return inputs | {OF_SOURCE[name]: embedding(source)}


@both_norms
@every_layer
def test_carried_equals_passed(name, norm, embedding):
    layer = build(name, norm)
    carried = embedded(name, embedding, SOURCE, TARGET)
    bare = to_numpy(carried)  # NumPy arrays carry nothing
    passed = layer(**bare, **MASKS[name], return_attention_scores=True)
    assert_close(layer(**carried, return_attention_scores=True), to_numpy(passed), 1e-6)
    assert_close(layer(*carried.values()), to_numpy(passed[0]), 1e-6)
    for mask in MASKS[name]:  # each of them matters
        others = {key: value for key, value in MASKS[name].items() if key != mask}
        scores = keras.tree.flatten(layer(**bare, **others, return_attention_scores=True)[1:])
        expected = keras.tree.flatten(passed[1:])
        differences = [
            np.abs(to_numpy(one) - to_numpy(other)).max()
            for one, other in zip(scores, expected, strict=True)
        ]
        assert max(differences) > 1e-2


@every_layer
def test_carried_through_a_functional_model(name, embedding):
    layer = build(name, "pre")
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    model = keras.Model(
        (source, target),
        layer(**embedded(name, embedding, source, target)),
    )
    bare = to_numpy(embedded(name, embedding, SOURCE, TARGET))
    expected = np.array(layer(**bare, **MASKS[name]))
    assert_close(model((SOURCE, TARGET)), expected)
    assert_close(model.predict((SOURCE, TARGET), verbose=0), expected)


LAYERS = {  # with the number of their inputs
    "Encoder": (lambda: kt.Encoder(2, 8, 2, 16, norm="pre"), 1),
    "EncoderLayer": (lambda: kt.EncoderLayer(8, 2, 16), 1),
    "Decoder": (lambda: kt.Decoder(2, 8, 2, 16, norm="pre"), 2),
    "DecoderLayer": (lambda: kt.DecoderLayer(8, 2, 16), 2),
    "Decoder alone": (lambda: kt.Decoder(2, 8, 2, 16, norm="pre", cross_attention=False), 1),
    "DecoderLayer alone": (lambda: kt.DecoderLayer(8, 2, 16, cross_attention=False), 1),
    "FeedForward": (lambda: kt.FeedForward(8, 16), 1),
    "MultiHeadAttention": (lambda: kt.MultiHeadAttention(2, 4), 2),
    "MultiHeadAttention with keys": (lambda: kt.MultiHeadAttention(2, 4), 3),
}
PADDED = {"left": [0, 0, 5, 6, 7, 8], "in the middle": [5, 0, 6, 7, 0, 8]}


@pytest.mark.parametrize("padded", PADDED.values(), ids=PADDED)
@pytest.mark.parametrize("name", LAYERS)
def test_padding_anywhere_changes_nothing(name, padded):
    """Right padding would show nothing: what looks back never sees it."""
    make, count = LAYERS[name]
    embed = kt.PositionalEmbedding(9, 8, positions="none")
    layer = make()
    plain, padded = np.array([[5, 6, 7, 8]]), np.array([padded])
    layer(*[embed(plain)] * count)
    layer_harness.randomize(embed)
    layer_harness.randomize(layer)
    expected = np.array(layer(*[embed(plain)] * count))
    inputs = [keras.Input((None,), dtype="int32") for _ in range(count)]
    model = keras.Model(inputs, layer(*map(embed, inputs)))
    first, *others = [padded] * count
    for ids in ([first, *others], [plain, *others]):
        real = ids[0][0] != 0
        assert_close(np.array(layer(*map(embed, ids)))[:, real], expected)
        assert_close(model.predict(ids, verbose=0)[:, real], expected)


@every_layer
def test_mask_is_carried_on(name, embedding):
    """A layer that follows, here an average over the positions, leaves the padding out."""
    layer = build(name)
    carried = embedded(name, embedding, SOURCE, TARGET)
    mask = TARGET_MASK if name in OF_TARGET else SOURCE_MASK
    outputs = layer(**carried)
    average = keras.layers.GlobalAveragePooling1D()(outputs)
    expected = [row[own].mean(axis=0) for row, own in zip(to_numpy(outputs), mask, strict=True)]
    assert_close(average, np.array(expected))


def test_embedding_carries_its_mask_through_feed_forward(embedding):
    outputs = build("FeedForward")(embedding(SOURCE))
    average = keras.layers.GlobalAveragePooling1D()(outputs)
    expected = [
        row[own].mean(axis=0) for row, own in zip(to_numpy(outputs), SOURCE_MASK, strict=True)
    ]
    assert_close(average, np.array(expected))


@pytest.mark.parametrize("policy", layer_harness.POLICIES[1:])
def test_carried_in_half_precision(policy, embedding):
    """The cast to the compute dtype does not lose the mask."""
    layer = build("EncoderLayer", policy=policy)
    x = embedding(SOURCE)  # float32, cast when the layer is called
    expected = to_numpy(layer(to_numpy(x), SOURCE_MASK))
    assert_close(layer(x), expected, layer_harness.TOLERANCES[policy])
    unmasked = to_numpy(layer(to_numpy(x)))
    assert np.abs(unmasked - expected).max() > 0.1


@every_layer
def test_passed_mask_comes_before_the_carried_one(name, embedding):
    layer = build(name)
    carried = embedded(name, embedding, SOURCE, TARGET)
    everything = {key: np.ones_like(mask) for key, mask in MASKS[name].items()}
    assert_close(layer(**carried, **everything), to_numpy(layer(**to_numpy(carried))))


@pytest.mark.parametrize("width", [16, 24])
@pytest.mark.parametrize("length", [None, 4])
def test_decoding_takes_the_mask_of_the_memory(width, length):
    """Also before the first pass, with a memory of another width, and from another dtype."""
    ids = np.array([[5, 6, 7, 0, 0], [8, 9, 4, 6, 0]])
    memory = kt.Encoder(1, width, 2, 32)(kt.PositionalEmbedding(20, width)(ids))
    decoder = kt.Decoder(2, 16, 2, 32)
    state = decoder.initial_state(length=length, memory=memory)
    x = np.random.default_rng(0).normal(size=(2, 3, 16))
    full = decoder(x, memory)
    for position in range(3):
        y, state = decoder.step(x[:, position], position, state)
        np.testing.assert_allclose(y, full[:, position], atol=1e-5)
