"""What `MultiHeadAttention` takes of the arguments of Keras' layer, and how it refuses the rest."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.layers.test_attention_like_keras import QUERY, VALUE, B, T, pair
from tests.support.layer_harness import assert_close, normal

PENALTIES = {
    "kernel_regularizer": keras.regularizers.L2(0.1),
    "bias_regularizer": "l1",
    "activity_regularizer": keras.regularizers.L2(0.01),
    "kernel_constraint": keras.constraints.MaxNorm(0.3),
    "bias_constraint": "non_neg",
}


@pytest.mark.parametrize("names", [[name] for name in PENALTIES] + [[*PENALTIES]])
def test_penalties_are_those_of_keras(names):
    theirs, ours = pair({name: PENALTIES[name] for name in names}, QUERY, VALUE)
    assert_close(ours(QUERY, VALUE), theirs(QUERY, VALUE))
    regularizers = [name for name in names if name.endswith("regularizer")]
    assert len(ours.losses) == 4 * len(regularizers)
    assert_close(np.array(ours.losses), np.array(theirs.losses), 1e-6)


def test_fit_as_keras_does():
    """With penalties that act: the same losses and the same weights after two updates."""
    trained = []
    for layer in pair(PENALTIES, QUERY, VALUE):
        inputs = keras.Input((None, 8)), keras.Input((None, 10))
        model = keras.Model(inputs, layer(*inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        target = normal(B, T, 8, seed=7)
        history = model.fit((QUERY, VALUE), target, epochs=2, batch_size=B, verbose=0).history
        trained.append([np.array(history["loss"]), *model.get_weights()])
    assert_close(trained[1], trained[0])
    losses, kernel, bias, *_ = trained[1]
    mse = np.mean((target - np.array(model.predict((QUERY, VALUE), verbose=0))) ** 2)
    assert model.evaluate((QUERY, VALUE), target, verbose=0) > mse + 0.1
    assert bias.min() >= 0 and np.linalg.norm(kernel, axis=0).max() < 0.3 + 1e-5


def test_round_trip_of_penalties():
    layer = kt.MultiHeadAttention(2, 3, **PENALTIES)
    described_as = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(described_as)
    assert again.get_config() == layer.get_config()
    layer(QUERY, VALUE), again(QUERY, VALUE)
    again.set_weights(layer.get_weights())
    assert_close(np.array(again.losses[4:]), np.array(layer.losses[4:]), 1e-6)
    assert type(again.query_dense.kernel.constraint) is keras.constraints.MaxNorm


@pytest.mark.parametrize("built", [False, True])
def test_from_the_configuration_of_keras_layer(built):
    theirs = keras.layers.MultiHeadAttention(2, 3, 5, output_shape=(6,), **PENALTIES)
    if built:
        theirs.build(QUERY.shape, VALUE.shape)
    ours = kt.MultiHeadAttention.from_config(theirs.get_config())
    assert ours.get_config().items() >= {"value_dim": 5, "output_shape": 6}.items()
    assert type(ours.penalties["kernel_constraint"]) is keras.constraints.MaxNorm


def test_positions_of_the_arguments_are_those_of_keras():
    arguments = (2, 3, None, 0.0, True, None, None, None, None, "he_normal", "ones", "l2")
    theirs, ours = keras.layers.MultiHeadAttention(*arguments), kt.MultiHeadAttention(*arguments)
    config = ours.get_config()
    del config["output_initializer"], config["name"]
    assert config.pop("positions") is None  # ours alone, by name only
    assert config.items() <= theirs.get_config().items()


def test_integers_of_numpy():
    sizes = dict(num_heads=2, key_dim=3, value_dim=4, output_shape=5)
    layer = kt.MultiHeadAttention(**{name: np.int64(size) for name, size in sizes.items()})
    config = layer.get_config()
    assert {name: config[name] for name in sizes} == sizes
    assert all(type(config[name]) is int for name in sizes)
    assert layer(QUERY, VALUE).shape == (B, T, 5)
    keras.Sequential([layer]).to_json()


@pytest.mark.parametrize("axes", [None, 1, (1,), [1]])
def test_what_is_keras_default_is_accepted(axes):
    layer = kt.MultiHeadAttention(
        2, 3, attention_axes=axes, sliding_window=None, flash_attention=False, use_gate=False
    )
    assert layer(QUERY, VALUE).shape == QUERY.shape


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_axes", 2),
        ("attention_axes", (1, 2)),
        ("sliding_window", 4),
        ("flash_attention", True),
        ("use_gate", True),
    ],
)
def test_what_is_not_there_names_itself(name, value):
    with pytest.raises(ValueError, match=f"kt.MultiHeadAttention has no {name}, received") as error:
        kt.MultiHeadAttention(2, 3, **{name: value})
    assert repr(value) in str(error.value)
    assert f"`{name}" in kt.MultiHeadAttention.__doc__


@pytest.mark.parametrize("output_shape", [8.0, "8", (3, 4), ()])
def test_output_shape_that_is_none(output_shape):
    with pytest.raises(ValueError, match="output_shape must be an int or a tuple of one int"):
        kt.MultiHeadAttention(2, 3, output_shape=output_shape)


def test_keys_and_values_of_different_lengths():
    layer = kt.MultiHeadAttention(2, 3)
    key = normal(B, 5, 12)
    for _ in ("to be built", "built"):
        with pytest.raises(ValueError, match=r"must be equal.*\(3, 6, 10\) and \(3, 5, 12\)"):
            layer(QUERY, VALUE, key)
        layer(QUERY, VALUE, normal(B, 6, 12))
    with pytest.raises(ValueError, match="must be equal"):
        layer.compute_output_shape(QUERY.shape, VALUE.shape, key.shape)
    assert layer.compute_output_shape((3, 4, 8), (3, None, 10), (3, 5, 12)) == (3, 4, 8)


def test_policies_of_single_projections():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies["mha/key"] = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    layer = kt.MultiHeadAttention(2, 3, dtype=policies, name="mha")
    layer.build(QUERY.shape, VALUE.shape)
    kernels = [layer.query_dense.kernel, layer.key_dense.kernel]
    assert [kernel.dtype for kernel in kernels] == ["float32", "int8"]
