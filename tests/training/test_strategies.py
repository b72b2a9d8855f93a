"""Replicas train, evaluate and predict like one device; strategies by name."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import make_strategy
from tests.support.command_line import run_process
from tests.support.mirrored_training import ROWS
from tests.support.paths import SUPPORT

PROGRAM = SUPPORT / "mirrored_training.py"
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 2e-2, "mixed_float16": 5e-3}  # DESIGN, §3


def run(options):
    argument = options if isinstance(options, str) else json.dumps(options)
    result = subprocess.run(
        [sys.executable, PROGRAM, argument], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def case(rows, replicas, precision="float32", recipe="plain", built=False, slow=False):
    options = dict(rows=rows, precision=precision, recipe=recipe, built=built)
    name = f"{replicas} replicas, {'-'.join(map(str, rows))}, {precision}, {recipe}"
    # One device and the replicas: TensorFlow takes one number of replicas a process.
    options["replicas"] = [1, replicas]
    return pytest.param(options, id=name, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(
    "options",
    [
        case([1, 4], 2),
        case([7, 1], 3, "mixed_bfloat16", "options"),
        case([2, 7, 1], 3, recipe="options", slow=True),
        case([3, 1], 2, "mixed_bfloat16", "options", slow=True),
        case([7, 1], 2, "mixed_float16", "options", slow=True),
        case([23, 2, 1], 3, recipe="weights", slow=True),
        # Ten steps of both recipes, of a model that was built by hand.
        case(ROWS, 2, built=True, slow=True),
        case(ROWS, 2, recipe="options", built=True, slow=True),
        case([23, 2], 3, "mixed_float16", "options", slow=True),
        case([7, 2], 3, "mixed_bfloat16", slow=True),
        *(case([rows, 1], n, slow=True) for rows, n in [(2, 2), (3, 3), (7, 2), (23, 3), (1, 3)]),
    ],
)
def test_replicas_equal_one_device(options):
    """First batches of any number of rows; last ones that leave replicas without a row."""
    one, several = run(options)
    tolerance = TOLERANCES[options["precision"]]
    assert [one["replicas"], several["replicas"]] == options["replicas"]
    assert one["steps"] == several["steps"] == len(options["rows"])
    np.testing.assert_allclose(several["weights"], one["weights"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(several["logits"], one["logits"], rtol=0, atol=10 * tolerance)
    assert one["history"].keys() == several["history"].keys()
    assert {"loss", "val_loss", "accuracy", "before_loss"} <= set(one["history"])
    for name, values in one["history"].items():
        np.testing.assert_allclose(several["history"][name], values, rtol=0, atol=tolerance)


def test_keras_still_needs_help_with_replicas():
    """A canary: once this fails, `training/first_step.py` can do without replicas, or
    `TokenTrainer.compile` need not refuse several steps a call."""
    odd, several, ours = run("canary")
    assert "[1,2]" in odd
    assert "Placeholder" in several
    assert ours.startswith("steps_per_execution=2 cannot be done on 2 replicas")


@pytest.mark.parametrize("name", ["auto", "one"])
def test_without_a_gpu_the_cpu_is_taken(name):
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    strategy = make_strategy(name)
    assert strategy.num_replicas_in_sync == 1
    (device,) = strategy.extended.worker_devices
    assert device.endswith("device:CPU:0")


def test_replicas_on_one_processor_by_the_command_line(reverse_run, tmp_path):
    """`--strategy mirrored --logical-devices 2`: the training of one device."""
    folder, _ = reverse_run
    losses = []
    for replicas in (1, 2):
        sizes = "--num-layers 1 --d-model 16 --num-heads 2 --d-ff 32 --max-length 16".split()
        sizes += ["--dropout", "0"]
        output = tmp_path / str(replicas)
        result = run_process(
            *["train", "--preset", "tiny", *sizes, "--output", output, "--epochs", "1"],
            *["--steps-per-epoch", "2", "--validate-by", "loss", "--logical-devices", replicas],
            *["--strategy", "mirrored" if replicas > 1 else "one"],
            *["--train-source", folder / "pairs.tsv", "--valid-source", folder / "pairs.tsv"],
            *["--vocabulary-size", "280", "--tokens-per-batch", "100"],
        )
        assert result.returncode == 0, result.stderr.decode()
        (row,) = csv.DictReader((output / "history.csv").read_text().splitlines())
        losses.append([float(row["loss"]), float(row["val_loss"])])
    np.testing.assert_allclose(*losses, atol=1e-4)


def test_logical_devices_come_first():
    with pytest.raises(ValueError, match="logical devices? already, expected 7"):
        make_strategy("mirrored", logical_devices=7)


def test_unknown_strategy():
    with pytest.raises(
        ValueError, match="Unknown strategy .many.: choose one of auto, one, mirrored"
    ):
        make_strategy("many")
