"""Relative positions in one attention: the papers' equations, and other implementations."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.layers.positions import PositionBias, buckets
from tests.support import oracle, parity
from tests.support.layer_harness import assert_close, normal, randomize

D, H, K = 10, 8, 6
X = normal(2, 9, D)
PADDING = np.arange(9) < np.array([[9], [5]])  # (B, T)
MASK = np.tril(np.ones((9, 9), bool)) & PADDING[:, None]

# Distances that occur are larger than those that are told apart.
SCHEMES = {
    "relative": lambda: kt.RelativePositions(3),
    "bucketed": lambda: kt.BucketedPositions(8, 6),
    "bucketed, causal": lambda: kt.BucketedPositions(8, 6, bidirectional=False),
    "rotary": kt.RotaryPositions,
    "disentangled": lambda: kt.DisentangledPositions(3),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_equals_the_equations(name):
    layer = kt.MultiHeadAttention(H, K, positions=SCHEMES[name](), value_dim=5)
    layer.build(X.shape, X.shape)
    randomize(layer)
    with tf.GradientTape() as tape:
        output, weights = layer(X, X, return_attention_scores=True)
    assert_close((output, weights), oracle.multi_head(layer, X, X))
    for gradient in tape.gradient(output, layer.positions.trainable_variables):
        assert np.any(tf.convert_to_tensor(gradient)), "each weight learns"
    expected = oracle.multi_head(layer, X, X, mask=MASK)
    how = dict(value_mask=PADDING, use_causal_mask=True, return_attention_scores=True)
    assert_close(layer(X, X, **how), expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_equal_keras_hub(bidirectional):
    from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

    distance = np.arange(-300, 301)
    bucket = T5MultiHeadAttention._relative_position_bucket
    expected = bucket(distance, bidirectional, num_buckets=32, max_distance=128)
    found = buckets(32, 128, bidirectional)[np.clip(distance, -128, 128) + 128]
    np.testing.assert_array_equal(found, expected)


def rotation(width, policy="float32"):
    positions = kt.RotaryPositions()
    positions.prepare(1, width, width, width, policy=keras.DTypePolicy(policy))
    return positions


def test_rotation_equals_keras_hub():
    """Theirs pairs entries half a head apart: the same with the columns in another order."""
    import keras_nlp  # here, since it takes long

    heads = normal(2, 500, 3, 16)
    halves = np.concatenate([np.arange(0, 16, 2), np.arange(1, 16, 2)])
    theirs = keras_nlp.layers.RotaryEmbedding()(heads[..., halves])
    positions = rotation(16)
    ours = positions.rotate(heads, PositionBias(positions, 500, 500))
    assert_close(np.array(ours)[..., halves], theirs, 1e-4)  # theirs rounds angles as they come


def test_rotation_is_exact_at_any_position():
    """Angles are float32 in every precision, and as exact far away as near."""
    positions = rotation(4, "mixed_bfloat16")
    at = PositionBias(positions, 3, 3, 9_998)
    heads = normal(1, 3, 1, 4)
    turns = (np.arange(9_998, 10_001)[:, None] / [1, 100]).astype("float64")
    expected = (heads[0, :, 0, 0::2] + 1j * heads[0, :, 0, 1::2]) * np.exp(1j * turns)
    expected = np.stack([expected.real, expected.imag], -1).reshape(1, 3, 1, 4)
    assert_close(positions.rotate(heads, at), expected)
    assert positions.rotate(tf.cast(heads, "bfloat16"), at).dtype == "bfloat16"


def debertas(golden, heads=2):
    """Ours with the weights of theirs, whose projections join query, key and value by head."""
    x, width = golden["x"], golden["x"].shape[-1]
    layer = kt.MultiHeadAttention(heads, width // heads, positions="disentangled", max_distance=3)
    layer.build(x.shape, x.shape)
    joined = golden["in_proj.weight"].reshape(heads, 3, width // heads, width)
    for i, name in enumerate(("query", "key", "value")):
        kernel = joined[:, i].transpose(2, 0, 1)
        bias = golden.get(f"{name[0]}_bias", np.zeros(width)).reshape(heads, -1)
        getattr(layer, f"{name}_dense").set_weights([kernel, bias])
    identity = np.eye(width).reshape(heads, -1, width)  # theirs ends with the heads joined
    layer.output_dense.set_weights([identity, np.zeros(width)])
    layer.positions.table.set_weights([golden["table"]])
    names = "pos_proj", "pos_q_proj"
    key, query = (golden[f"{name}.weight"].T.reshape(width, heads, -1) for name in names)
    layer.positions.key_dense.set_weights([key])
    layer.positions.query_dense.set_weights([query, golden["pos_q_proj.bias"].reshape(heads, -1)])
    return layer


def test_disentangled_attention_is_debertas():
    deberta = parity.read("deberta")
    layer, x = debertas(deberta), deberta["x"].astype("float32")
    mask = np.arange(x.shape[1]) < deberta["lengths"][:, None]
    output, scores = layer(x, x, value_mask=mask, return_attention_scores=True)
    # Theirs has other numbers where there is no token.
    assert_close(np.array(output)[mask], deberta["output"][mask])
    scores, expected = (np.moveaxis(x, 1, 2)[mask] for x in (scores, deberta["scores"]))
    assert_close(scores, expected)


@keras.saving.register_keras_serializable(package="tests")
class HalvedRelative(kt.RelativePositions):
    def add_values(self, output, weights, at):
        return output


@pytest.mark.parametrize("scheme", [HalvedRelative, kt.DisentangledPositions])
def test_an_object_keeps_its_class_and_stays_frozen(scheme, tmp_path):
    """One object for all layers, each of which has its own; for any lengths, saved and loaded."""
    inputs = keras.Input((None, D))
    encoder = kt.Encoder(2, D, 2, 16, positions=scheme(3, trainable=False))
    model = randomize(keras.Model(inputs, encoder(inputs)))
    own = [x.self_attention.positions for x in encoder.layers]
    assert own[0] is not own[1] and {type(x) for x in own} == {scheme}
    assert [x.max_distance for x in own] == [3, 3]
    assert not any(x.trainable_variables for x in own)
    model.save(tmp_path / "stack.keras")
    loaded = keras.saving.load_model(tmp_path / "stack.keras")
    assert_close(loaded(X), np.array(encoder(X)))
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


def test_layers_share_what_is_the_stacks():
    counts = {"relative": 2 * 2, "bucketed": 1, "rotary": 0, "disentangled": 1 + 2 * 3}
    for positions, count in counts.items():
        decoder = kt.Decoder(2, 8, 2, 16, positions=positions)
        decoder.build((None, None, 8), (None, None, 8))
        parts = "positions", "position_", "distances"
        tables = [w for w in decoder.weights if any(part in w.path for part in parts)]
        assert len(tables) == count, positions
        assert all(layer.cross_attention.positions is None for layer in decoder.layers)
    kinds = kt.Encoder, kt.Decoder
    stacks = [kind(1, 8, 2, 16, positions="bucketed", max_distance=17) for kind in kinds]
    schemes = [stack.layers[0].positions for stack in stacks]
    attentions = [kt.MultiHeadAttention(2, 4, positions=schemes[0]) for _ in "12"]
    assert len({schemes[0], *(x.positions for x in attentions)}) == 3
    assert [(x.bidirectional, x.max_distance) for x in schemes] == [(True, 17), (False, 17)]
