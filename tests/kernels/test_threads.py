"""Cores that work apart: what TensorFlow is told, and when it is left alone."""

import json
import os

import pytest

from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets import TrainConfig
from keras_transformer.train import _configure_parallelism
from tests.support.command_line import python

CORES = len(os.sched_getaffinity(0))
# Each case in a child of its own: what `configure_threads` returns, and the numbers of threads.
PROGRAM = """
import json, os, sys
for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.pop(name, None)  # what `make test-numerical` sets
import tensorflow as tf
from keras_transformer.kernels.tensorflow import machine

threading = tf.config.threading
for before, environment, options in json.loads(sys.argv[1]):
    if os.fork():
        assert os.wait()[1] == 0, before
        continue
    os.environ.update(environment)
    exec(before)
    found = machine.configure_threads(**options)
    assert found == machine.inter_op_threads()
    numbers = threading.get_intra_op_parallelism_threads, threading.get_inter_op_parallelism_threads
    print(json.dumps([found, *(number() for number in numbers)]), flush=True)
    os._exit(0)
"""
INTRA, INTER = (f"threading.set_{x}_op_parallelism_threads" for x in ("intra", "inter"))
CASES = {
    "every core does its own operation": ("", {}, {}, [CORES, 1, CORES]),
    "few cores": ("", {}, {"max_parallel": CORES}, [CORES, 1, CORES]),
    "many cores": ("", {}, {"max_parallel": CORES - 1}, [1, 0, 0]),
    "too late": ("tf.zeros(1) + 1", {}, {}, [1, 0, 0]),
    "own threads": (f"{INTRA}(3)", {}, {}, [1, 3, 0]),
    "own operations": (f"{INTER}(5)", {}, {}, [1, 0, 5]),
    "own environment": ("", {"TF_NUM_INTRAOP_THREADS": "2"}, {}, [1, 0, 0]),
    "a GPU": ("tf.config.list_physical_devices = lambda kind: [kind]", {}, {}, [1, 0, 0]),
    "as this would set them": (f"{INTRA}(1); {INTER}(4)", {}, {}, [4, 1, 4]),
}


@pytest.fixture(scope="module")
def found():
    """What each case comes to, by its name."""
    given = json.dumps([case[:3] for case in CASES.values()])
    lines = python("-W", "error", "-c", PROGRAM, given, TF_CPP_MIN_LOG_LEVEL="3").splitlines()
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_threads_of_a_process(name, found):
    assert found[name] == CASES[name][-1]


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, (3, machine.MAX_SLICES)),
        ({"parallel_microbatches": 2}, (2, None)),
        ({"parallel_microbatches": 1}, (1, "together")),
        ({"jit_compile": True}, (1, "together")),
        ({"logical_devices": 2}, (1, "together")),
        ({"jit_compile": True, "parallel_microbatches": 2}, (2, "together")),
    ],
)
def test_parts_of_a_training(monkeypatch, options, expected):
    """As many as the cores that work apart; told how many, the cores work apart however many."""
    asked = []
    monkeypatch.setattr(machine, "configure_threads", lambda most: asked.append(most) or 3)
    parts = _configure_parallelism(TrainConfig(**options))
    assert (parts, asked[0] if asked else "together") == expected
