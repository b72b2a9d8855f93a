"""What is fastest on this machine: precision, in runs and exports, and threads."""

import shutil

import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.kernels.tensorflow import machine
from keras_transformer.runs.run import Run
from keras_transformer.train import _adapt_to_machine, _configure_parallelism
from tests.support.command_line import refused, run
from tests.support.layer_harness import assert_equal
from tests.support.sealing import reseal


@pytest.fixture
def make_machine(monkeypatch, caplog):
    """A machine on which half precision takes as many times as long as one says."""

    def make(slowdown):
        machine._warn_slow.cache_clear()
        times = {"float32": 1.0}
        monkeypatch.setattr(machine, "slowdown", lambda policy: times.get(policy, slowdown))
        return caplog

    return make


def test_a_product_is_timed():
    assert machine.slowdown("float32") == 1.0
    assert 0 < machine.slowdown("mixed_bfloat16") == machine.slowdown("mixed_bfloat16") < 1000
    assert machine.choose_precision("auto") in ("float32", "mixed_bfloat16")


def test_choice(make_machine):
    for slowdown, asked, trained, chosen in (
        (9.0, "auto", None, "float32"),
        (0.5, "auto", None, "mixed_bfloat16"),
        (0.9, "auto", None, "float32"),  # no clear gain
        (9.0, None, "mixed_bfloat16", "float32"),
        (0.5, None, "mixed_bfloat16", "mixed_bfloat16"),
        (0.5, None, "float32", "float32"),  # nobody asked for less than it was trained in
        (9.0, "mixed_bfloat16", "float32", "mixed_bfloat16"),
    ):
        make_machine(slowdown)
        assert machine.choose_precision(asked, trained) == chosen


def test_what_is_slow_is_said_once_and_how_much(make_machine):
    log = make_machine(2.5)
    for precision in ("mixed_bfloat16", "mixed_bfloat16", "auto"):
        machine.choose_precision(precision)
    machine.choose_precision(None, "mixed_bfloat16")
    (message,) = log.messages
    assert "mixed_bfloat16 take 2.5 times as long as in float32" in message
    make_machine(0.5)
    machine.choose_precision("mixed_bfloat16")
    assert len(log.messages) == 1


def test_a_run_keeps_what_was_chosen(make_machine, trained_run, tmp_path):
    auto = kt.TrainConfig(precision="auto")
    make_machine(0.5)
    adapted = _adapt_to_machine(auto, None, False, None)
    chosen = adapted.precision
    assert (chosen, adapted.jit_compile) == ("mixed_bfloat16", False)
    copy = shutil.copytree(trained_run, tmp_path / "run")
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace("precision: float32", f"precision: {chosen}"))
    reseal(copy)
    make_machine(9.0)
    assert _adapt_to_machine(auto, Run(copy), True, None).precision == chosen
    slow, asked = kt.load(copy), kt.load(copy, precision=chosen)
    assert slow.model.dtype_policy.name == "float32"
    assert asked.model.dtype_policy.name == chosen
    assert_equal(slow.model.get_weights(), asked.model.get_weights())


@pytest.mark.parametrize("command", ["translate", "score", "evaluate"])
def test_commands_take_a_precision(command, trained_run, tmp_path, monkeypatch):
    opened, pairs = [], tmp_path / "pairs.tsv"
    monkeypatch.setattr(machine, "slowdown", lambda policy: opened.append(policy) or 1.0)
    pairs.write_text("ba ce\tce ba\n")
    text = [] if command == "translate" else ["--source", pairs]
    done = run(command, trained_run, *text, "--precision", "mixed_float16", stdin=b"ba ce\n")
    assert done.returncode == 0 and "mixed_float16" in opened
    refused([command, trained_run, *text, "--precision", "half"], "precision must be one of float")


@pytest.mark.parametrize(
    "before, environment, gpus, most, expected",
    [
        ({}, {}, [], 6, (6, 1, 6)),  # every core does its own operation
        ({}, {}, [], 5, (1, 0, 0)),  # many cores
        ({"intra": 3}, {}, [], None, (1, 3, 0)),
        ({"inter": 5}, {}, [], None, (1, 0, 5)),
        ({}, {"TF_NUM_INTRAOP_THREADS": "2"}, [], None, (1, 0, 0)),
        ({}, {}, ["GPU"], None, (1, 0, 0)),
        ({"intra": 1, "inter": 4}, {}, [], None, (4, 1, 4)),  # as this would set them
    ],
)
def test_threads_of_a_process(before, environment, gpus, most, expected, monkeypatch):
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)  # what `make test-numerical` sets
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    numbers, threading = {"intra": 0, "inter": 0} | before, tf.config.threading
    for kind in numbers:
        getter, setter = (f"{verb}_{kind}_op_parallelism_threads" for verb in ("get", "set"))
        monkeypatch.setattr(threading, getter, lambda kind=kind: numbers[kind])
        monkeypatch.setattr(threading, setter, lambda x, kind=kind: numbers.update({kind: x}))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(machine, "available_cores", lambda: 6)
    found = machine.configure_threads(most)
    assert (found, *numbers.values()) == expected
    assert machine.inter_op_threads() == found


def test_threads_that_have_started_stay_as_they_are():
    assert machine.configure_threads() == machine.inter_op_threads()


def test_parts_of_a_training(monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "configure_threads", lambda most: asked.append(most) or 3)
    for options, parts, apart in (
        ({}, 3, [machine.MAX_SLICES]),
        ({"parallel_microbatches": 2}, 2, [None]),
        ({"parallel_microbatches": 1}, 1, []),
        ({"jit_compile": True}, 1, []),
        ({"logical_devices": 2}, 1, []),
        ({"jit_compile": True, "parallel_microbatches": 2}, 2, []),
    ):
        asked.clear()
        assert (_configure_parallelism(kt.TrainConfig(**options)), asked) == (parts, apart)
