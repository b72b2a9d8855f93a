"""Saved layers and models, loaded by a process with JAX as Keras' backend."""

import importlib.util
import os

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import on_jax
from tests.support.command_line import python
from tests.support.layer_harness import SOURCE, TARGET, assert_close, build, randomize


def make_classifier():
    ids = keras.Input((None,), dtype="int32")
    x = kt.PositionalEmbedding(SOURCE.max() + 1, 8, positions="learned", max_length=9)(ids)
    for positions in ("relative", "bucketed", "rotary", "disentangled"):
        x = kt.Encoder(1, 8, 2, 16, positions=positions)(x)
    x = keras.layers.GlobalAveragePooling1D()(kt.MultiHeadAttention(2, 4)(x, x))
    return randomize(keras.Model(ids, keras.layers.Dense(3)(x)))


@pytest.mark.slow
def test_jax_computes_the_same(tmp_path):
    if importlib.util.find_spec("jax") is None:  # in CI it has to be there
        (pytest.fail if os.environ.get("CI") else pytest.skip)('pip install "jax[cpu]"')
    classifier = make_classifier()
    options = {"positions": "disentangled", "max_distance": 2, "share_embeddings": "all"}
    model = build("Transformer", num_layers=1, **options)
    schedule = kt.WarmupInverseSqrt(peak=1e-2, warmup_steps=4)
    # Of a key's bias only rounding errors are the gradient: epsilon keeps Adam from following it.
    optimizer = keras.optimizers.Adam(schedule, 0.9, 0.98, epsilon=1e-3)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.2), metrics=[kt.MaskedAccuracy()])
    inputs = {"source": SOURCE, "target": TARGET}
    on_jax.compute(model, **inputs)  # so that optimizer and schedule have a state to save
    model.save(tmp_path / "model.keras")
    classifier.save(tmp_path / "classifier.keras")
    np.savez(tmp_path / "inputs.npz", **inputs)
    expected = on_jax.compute(model, **inputs) | {"classes": classifier(SOURCE)}
    assert python(on_jax.__file__, tmp_path, KERAS_BACKEND="jax").split()[-1] == "jax"
    found = dict(np.load(tmp_path / "computed.npz"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert_close(found[name], value)
    trained = keras.saving.load_model(tmp_path / "trained on jax.keras")
    for i, weight in enumerate(trained.get_weights()):
        np.testing.assert_array_equal(weight, found[f"weight {i}"])
