"""Saved layers and models, loaded by a process with JAX as Keras' backend."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import on_jax
from tests.support.command_line import python
from tests.support.layer_harness import (
    CASES,
    SOURCE,
    SOURCE_VOCABULARY,
    TARGET,
    assert_close,
    build,
    functional,
    randomize,
    require_jax,
)

LAYERS = ["MultiHeadAttention", "Decoder alone"]
MODELS = {
    "shared, learned, pre": {"share_embeddings": "target", "norm": "pre", "positions": "learned"},
    # Distances that occur are larger than those that are told apart.
    **{
        positions: {"share_embeddings": "all", "num_layers": 1, "positions": positions, **options}
        for positions, options in {
            "relative": {"max_distance": 2},
            "bucketed": {},
            "rotary": {},
            "disentangled": {"max_distance": 2},
        }.items()
    },
    "compiled": {"share_embeddings": "all", "num_layers": 1},
}
NAMES = [*LAYERS, "classifier", *MODELS]


def classifier():
    """An encoder of texts between Keras' own layers, for any lengths."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = kt.PositionalEmbedding(SOURCE_VOCABULARY, 8)(ids)
    for positions in ("relative", "bucketed", "rotary", "disentangled"):
        x = kt.Encoder(1, 8, 2, 16, positions=positions)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return randomize(keras.Model({"ids": ids}, keras.layers.Dense(3)(x)))


def compile_and_train(model):
    """One epoch, so that optimizer and schedule have a state to save."""
    schedule = kt.WarmupInverseSqrt(peak=1e-2, warmup_steps=4)
    # Of a key's bias only rounding errors are the gradient: epsilon keeps Adam from following it.
    optimizer = keras.optimizers.Adam(schedule, 0.9, 0.98, epsilon=1e-3)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.2), metrics=[kt.MaskedAccuracy()])
    on_jax.train(model, (SOURCE, TARGET))


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A directory, and by the names of models what they compute here and with JAX."""
    require_jax()
    directory, here = tmp_path_factory.mktemp("saved"), {}
    for name in NAMES:
        arrays = {"source": SOURCE, "target": TARGET}
        if name in MODELS:
            model = build("Transformer", **MODELS[name])
        elif name == "classifier":
            model, arrays = classifier(), {"ids": SOURCE}
        else:
            layer, arrays = build(name, "pre", dropout=0.1), CASES[name].arrays
            model = functional(layer, arrays, return_attention_scores=True)
        if name == "compiled":
            compile_and_train(model)
        model.save(directory / f"{name}.keras")
        np.savez(directory / f"{name}.inputs.npz", **arrays)
        here[name] = on_jax.flat(model(on_jax.unpack(arrays)))
    here["training"] = on_jax.train(model, (SOURCE, TARGET))
    assert python(on_jax.__file__, directory, KERAS_BACKEND="jax").split()[-1] == "jax"
    there = {}
    for name in NAMES:
        there[name] = {}
        for key, array in np.load(directory / f"{name}.outputs.npz").items():
            there[name].setdefault(key.split()[0], []).append(array)
    return directory, here, there


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_jax_gives_the_same_numbers(name, computed):
    directory, here, there = computed
    assert_close(there[name]["call"], here[name])
    if name in MODELS:
        assert_close(there[name]["steps"], here[name])
    # And back, trained there.
    model = keras.saving.load_model(directory / f"{name}.jax.keras")
    if name == "compiled":
        for own, theirs in zip(model.get_weights(), there[name]["training"][2:], strict=True):
            np.testing.assert_array_equal(own, theirs)
    else:
        inputs = on_jax.unpack(dict(np.load(directory / f"{name}.inputs.npz")))
        assert_close(on_jax.flat(model(inputs)), here[name], 1e-6)


@pytest.mark.slow
def test_jax_trains_alike(computed):
    """The compiled model brings loss, metric, optimizer and schedule with it."""
    _, here, there = computed
    assert_close(there["compiled"]["training"], here["training"])
