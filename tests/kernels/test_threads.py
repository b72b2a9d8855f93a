"""Cores that work apart: what TensorFlow is told, and when it is left alone."""

import os
import subprocess
import sys

import pytest

from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets import TrainConfig
from keras_transformer.train import _configure_parallelism

CORES = len(os.sched_getaffinity(0))
# What `make test-numerical` tells the tests, and would tell their processes.
SETTINGS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
SCRIPT = """
import tensorflow as tf
from keras_transformer.kernels.tensorflow import machine
{before}
found = machine.configure_threads({most})
assert found == machine.inter_op_threads()
threading = tf.config.threading
print(
    found,
    threading.get_intra_op_parallelism_threads(),
    threading.get_inter_op_parallelism_threads(),
)
"""


def run(before="", most="", **environment):
    """What `configure_threads` returns in a new process, and the numbers of threads after it."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(before=before, most=most)],
        env=inherited | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


def test_every_core_does_its_own_operation():
    assert run() == [CORES, 1, CORES]


def test_only_where_there_are_few_cores():
    assert run(most=f"max_parallel={CORES}") == [CORES, 1, CORES]
    assert run(most=f"max_parallel={CORES - 1}") == [1, 0, 0]


@pytest.mark.parametrize(
    "before, environment, expected",
    [
        ("tf.zeros(1) + 1", {}, [1, 0, 0]),
        ("tf.config.threading.set_intra_op_parallelism_threads(3)", {}, [1, 3, 0]),
        ("tf.config.threading.set_inter_op_parallelism_threads(5)", {}, [1, 0, 5]),
        ("", {"TF_NUM_INTRAOP_THREADS": "2"}, [1, 0, 0]),
        ("tf.config.list_physical_devices = lambda kind: [kind]", {}, [1, 0, 0]),
    ],
    ids=["too late", "own threads", "own operations", "own environment", "a GPU"],
)
def test_what_is_settled_stays(before, environment, expected):
    assert run(before, **environment) == expected


def test_threads_set_by_hand_count():
    before = (
        "tf.config.threading.set_intra_op_parallelism_threads(1);"
        "tf.config.threading.set_inter_op_parallelism_threads(4)"
    )
    assert run(before) == [4, 1, 4]


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
