"""After `import keras_transformer`, in any order, Keras finds the classes of saved models."""

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
# More orders, with both backends: `tests/layers/test_fresh_process.py`.
ORDERS = {
    "package, then tf.keras": (
        "tensorflow",
        """
import keras_transformer
import tensorflow as tf
load_model = tf.keras.models.load_model
""",
    ),
    "Keras, then a module": (
        "tensorflow",
        """
import keras
import keras_transformer.training.losses
load_model = keras.saving.load_model
""",
    ),
    "several threads, on JAX": (
        "jax",
        """
import importlib, threading

errors = []
names = "keras", "keras_transformer", "keras_transformer"
together = threading.Barrier(len(names))

def load(name):
    together.wait()
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors.append((name, error))

threads = [threading.Thread(target=load, args=[name]) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not errors, errors
import keras
assert keras.backend.backend() == "jax" and "tensorflow" not in sys.modules
load_model = keras.saving.load_model
""",
    ),
}
LOAD = """
import numpy as np
model = load_model(sys.argv[1])
assert type(model.optimizer).__name__ == "EMAAdam"
np.save(sys.argv[2], np.array(model(np.load(sys.argv[3]))))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory with a model and its inputs, and the model's outputs."""
    folder = tmp_path_factory.mktemp("saved")
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, kt.MultiHeadAttention(2, 4)(inputs, inputs))
    model.compile(kt.EMAAdam(kt.WarmupInverseSqrt(peak=0.1, warmup_steps=4)), "mse")
    model.save(folder / "model.keras")
    np.save(folder / "inputs.npy", X)
    return folder, np.array(model(X))


@pytest.mark.parametrize(("backend", "code"), ORDERS.values(), ids=ORDERS)
def test_saved_model_is_found(backend, code, saved, tmp_path):
    if backend == "jax":
        require_jax()
    folder, expected = saved
    files = [folder / "model.keras", tmp_path / "outputs.npy", folder / "inputs.npy"]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{LOAD}", *files],
        env=os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert_close(np.load(tmp_path / "outputs.npy"), expected)
