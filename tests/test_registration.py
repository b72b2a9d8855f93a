"""`import keras_transformer` before `import keras`: saved models find the classes all the same."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.support.layer_harness import assert_close, normal, require_jax
from tests.support.paths import ROOT

X = normal(2, 3, 8)
# Keras first, with both backends: `tests/layers/test_fresh_process.py`.
TF_KERAS = """
import sys, tensorflow as tf
load_model = tf.keras.models.load_model
"""
# An import of Keras that fails halfway; then several at once, of Keras and of modules of ours, one
# of which is broken; then a sound one.
TROUBLE = """
import importlib, importlib.util, sys, threading, warnings

assert importlib.util.find_spec("keras").loader.get_filename("keras").endswith("__init__.py")
importlib.reload(keras_transformer)
assert sum(type(finder).__name__ == "_Waiting" for finder in sys.meta_path) == 1

sys.modules["keras.wrappers"] = None
try:
    import keras
except ImportError:
    del sys.modules["keras.wrappers"]
assert not any(name.startswith("keras_transformer.layers") for name in sys.modules)

ours = ("training.losses", "layers.masks", "transformer")
names = ["keras", *(f"keras_transformer.{name}" for name in ours)]
errors, together = [], threading.Barrier(len(names))

def load(name):
    together.wait()
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors.append((name, error))

sys.modules["keras_transformer.training.optimizer"] = None
with warnings.catch_warnings(record=True) as caught:
    threads = [threading.Thread(target=load, args=[name]) for name in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
assert not errors, errors
(warning,) = caught
assert "keras_transformer could not register its classes" in str(warning.message), warning
assert "training.optimizer" in str(warning.message), warning
del sys.modules["keras_transformer.training.optimizer"]
keras_transformer.PAD

import keras
assert type(keras.__loader__) is type(keras.__spec__.loader) is type(keras_transformer.__loader__)
importlib.reload(keras)
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
load_model = keras.saving.load_model
"""
LOAD = """
import numpy as np
model = load_model(sys.argv[1])
assert type(model.optimizer).__name__ == "MeanAdam"
np.save(sys.argv[2], np.array(model(np.load(sys.argv[3]))))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a model, its inputs and its outputs."""
    folder = tmp_path_factory.mktemp("saved")
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, kt.MultiHeadAttention(2, 4)(inputs, inputs))
    model.compile(kt.MeanAdam(kt.WarmupInverseSqrt(peak=0.1, warmup_steps=4)), "mse")
    model.save(folder / "model.keras")
    np.save(folder / "inputs.npy", X)
    return folder, np.array(model(X))


@pytest.mark.parametrize(
    ("backend", "code"), [("tensorflow", TF_KERAS), ("jax", TROUBLE)], ids=["tf.keras", "trouble"]
)
def test_package_first(backend, code, saved):
    if backend == "jax":
        require_jax()
    folder, expected = saved
    code = "import keras_transformer\n" + code + LOAD
    files = [folder / "model.keras", folder / f"{backend}.npy", folder / "inputs.npy"]
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:keras_transformer", "-c", code, *files],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "could not register" not in run.stderr
    assert_close(np.load(folder / f"{backend}.npy"), expected)
