"""Two replicas train like one device; strategies by name."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import make_strategy

PROGRAM = pathlib.Path(__file__).with_name("mirrored_training.py")


def run(strategy, recipe):
    result = subprocess.run(
        [sys.executable, PROGRAM, strategy, recipe], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("recipe", ["plain", pytest.param("options", marks=pytest.mark.slow)])
def test_two_replicas_equal_one_device(recipe):
    """Ten steps, bucketed lengths, uneven halves, a last batch that leaves one replica empty."""
    one, two = run("one", recipe), run("mirrored", recipe)
    assert (one["replicas"], two["replicas"]) == (1, 2)
    assert one["steps"] == two["steps"] == 10
    np.testing.assert_allclose(two["weights"], one["weights"], rtol=0, atol=1e-5)
    assert one["history"].keys() == two["history"].keys() >= {"loss", "val_loss", "accuracy"}
    for name, values in one["history"].items():
        np.testing.assert_allclose(two["history"][name], values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["auto", "one"])
def test_without_a_gpu_the_cpu_is_taken(name):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == 1
    (device,) = strategy.extended.worker_devices
    assert device.endswith("device:CPU:0")


def test_unknown_strategy():
    with pytest.raises(ValueError, match="no strategy 'many': choose one of auto, one, mirrored"):
        make_strategy("many")
