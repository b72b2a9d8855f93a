"""Saved layers and models, loaded by a process that knows nothing of this one, and by JAX."""

import contextlib
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support import child_process, reload
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
from tests.support.paths import ROOT

LAYERS = [
    ("PositionalEmbedding", "post"),
    ("PositionalEmbedding learned", "post"),
    ("MultiHeadAttention", "post"),
    ("FeedForward", "post"),
    ("EncoderLayer", "post"),
    ("DecoderLayer", "post"),
    ("Encoder", "pre"),
    ("Decoder", "pre"),
    ("Decoder alone", "pre"),
]
MODELS = {
    "separate": {},
    "shared, learned, pre": {
        "share_embeddings": "target",
        "norm": "pre",
        "positions": "learned",
    },
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
NAMES = [*(name for name, _ in LAYERS), "classifier"]


def classifier():
    """An encoder of texts between Keras' own layers."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = kt.Encoder(2, 8, 2, 16)(kt.PositionalEmbedding(SOURCE_VOCABULARY, 8)(ids))
    x = keras.layers.GlobalAveragePooling1D()(x)
    return randomize(keras.Model({"ids": ids}, keras.layers.Dense(3)(x)))


def save(directory, name, model, arrays):
    """Writes a model in both ways that Keras has, and its inputs; returns its outputs."""
    model.save(directory / f"{name}.keras")
    model.save_weights(directory / f"{name}.weights.h5")
    (directory / f"{name}.json").write_text(model.to_json())
    np.savez(directory / f"{name}.inputs.npz", **arrays)
    return reload.flat(model(reload.unpack(arrays)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models in a directory, and by their name the outputs of the process that wrote them."""
    directory = tmp_path_factory.mktemp("saved")
    outputs = {}
    for name, norm in LAYERS:
        scores = {"return_attention_scores": True} if CASES[name].has_scores else {}
        model = functional(build(name, norm, dropout=0.1), CASES[name].arrays, **scores)
        outputs[name] = save(directory, name, model, CASES[name].arrays)
    outputs["classifier"] = save(directory, "classifier", classifier(), {"ids": SOURCE})
    for name, arguments in MODELS.items():
        model = build("Transformer", **arguments)
        if name == "compiled":
            compile_and_train(model)
        outputs[name] = save(directory, name, model, {"source": SOURCE, "target": TARGET})
    outputs["untrained"] = model.get_weights()
    outputs["training"] = reload.train(model, (SOURCE, TARGET))
    return directory, outputs


def compile_and_train(model):
    """One epoch, so that optimizer and schedule have a state to save."""
    schedule = kt.WarmupInverseSqrt(peak=1e-2, warmup_steps=4)
    # Of a key's bias only rounding errors are the gradient: epsilon keeps Adam from following it.
    optimizer = keras.optimizers.Adam(schedule, 0.9, 0.98, epsilon=1e-3)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.2), metrics=[kt.MaskedAccuracy()])
    reload.train(model, (SOURCE, TARGET))


@pytest.fixture(scope="module")
def processes(saved):
    """One fresh process per backend, side by side."""
    command = [sys.executable, reload.__file__, saved[0]]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with contextlib.ExitStack() as stack:
        started = {}
        for backend in ("tensorflow", "jax"):
            environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
            process = child_process.running(command, env=environment, cwd=saved[0], **pipes)
            started[backend] = stack.enter_context(process)
        yield started


def answers_of(process, backend, directory):
    """Outputs of a fresh process: per file, arrays by how they came about."""
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr[-4000:]
    loaded = stdout.split()
    assert loaded[0] == backend
    assert loaded[1:] == ["tensorflow"] * (backend == "tensorflow")
    answers = {}
    for name in [*NAMES, *MODELS]:
        answers[name] = {}
        for key, array in np.load(directory / f"{name}.{backend}.npz").items():
            answers[name].setdefault(key.split()[0], []).append(array)
    return answers


@pytest.fixture(scope="module")
def fresh(processes, saved):
    return answers_of(processes["tensorflow"], "tensorflow", saved[0])


@pytest.fixture(scope="module")
def by_jax(processes, saved):
    require_jax()
    return answers_of(processes["jax"], "jax", saved[0])


@pytest.mark.parametrize("name", [*NAMES, *MODELS])
def test_fresh_process(name, saved, fresh):
    for how in ("keras", "weights"):
        assert_close(fresh[name][how], saved[1][name], 1e-6)


@pytest.mark.parametrize("name", [*NAMES, *MODELS])
def test_jax_gives_the_same_numbers(name, saved, by_jax):
    assert_close(by_jax[name]["keras"], saved[1][name])


@pytest.mark.parametrize("name", [*NAMES, *MODELS])
def test_what_jax_has_saved_is_loaded_here(name, saved, by_jax):
    model = keras.saving.load_model(saved[0] / f"{name}.jax.keras")
    if name == "compiled":  # and trained there
        for here, there in zip(model.get_weights(), by_jax[name]["training"][2:], strict=True):
            np.testing.assert_array_equal(here, there)
    else:
        inputs = reload.unpack(dict(np.load(saved[0] / f"{name}.inputs.npz")))
        assert_close(reload.flat(model(inputs)), saved[1][name], 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_jax_decodes_step_by_step(name, saved, by_jax):
    assert_close(by_jax[name]["steps"], saved[1][name])


def test_training_goes_on_in_a_fresh_process(saved, fresh):
    """The compiled model brings loss, metric, optimizer and schedule with it."""
    assert_close(fresh["compiled"]["training"], saved[1]["training"], 1e-6)
    loss, accuracy, *weights = fresh["compiled"]["training"]
    assert np.abs(weights[0] - saved[1]["untrained"][0]).max() > 1e-4


def test_jax_trains_alike(saved, by_jax):
    assert_close(by_jax["compiled"]["training"], saved[1]["training"])
    assert by_jax["compiled"]["refused"] == [True]
