"""Precision chosen by the machine: in training, where a run is opened, and in exports."""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer as kt
from keras_transformer.kernels.tensorflow import machine
from keras_transformer.presets import ExportConfig
from keras_transformer.runs.run import Run
from keras_transformer.serving.saved_model import export
from keras_transformer.train import train
from tests.support.command_line import run
from tests.support.reversed_text import config_of
from tests.support.toy_translator import SOURCES, random_translator


@pytest.fixture
def make_machine(monkeypatch, caplog):
    """A machine on which half precision takes as many times as long as one says."""

    def make(slowdown):
        machine._warn_slow.cache_clear()
        monkeypatch.setattr(
            machine, "slowdown", lambda policy: 1.0 if policy == "float32" else slowdown
        )
        return caplog

    return make


def test_a_product_is_timed():
    assert machine.slowdown("float32") == 1.0
    assert 0 < machine.slowdown("mixed_bfloat16") < 1000
    assert machine.slowdown("mixed_bfloat16") == machine.slowdown("mixed_bfloat16")
    assert machine.choose_precision("auto") in ("float32", "mixed_bfloat16")


@pytest.mark.parametrize(
    "slowdown, asked, trained, chosen",
    [
        (9.0, "auto", None, "float32"),
        (0.5, "auto", None, "mixed_bfloat16"),
        (0.9, "auto", None, "float32"),  # no clear gain
        (9.0, None, "mixed_bfloat16", "float32"),
        (0.5, None, "mixed_bfloat16", "mixed_bfloat16"),
        (0.5, None, "float32", "float32"),  # nobody asked for less than it was trained in
        (9.0, None, "mixed_float16", "float32"),
        (9.0, "mixed_bfloat16", "float32", "mixed_bfloat16"),
        (0.5, "float32", "mixed_bfloat16", "float32"),
    ],
)
def test_choice(make_machine, slowdown, asked, trained, chosen):
    make_machine(slowdown)
    assert machine.choose_precision(asked, trained) == chosen


def test_what_is_slow_is_said_once_and_how_much(make_machine):
    log = make_machine(2.5)
    for _ in range(2):
        machine.choose_precision("mixed_bfloat16")
    machine.choose_precision("auto")
    machine.choose_precision(None, "mixed_bfloat16")
    (message,) = log.messages
    assert "mixed_bfloat16 take 2.5 times as long as in float32" in message
    assert "less exact on processors without instructions" in message
    make_machine(0.5)
    machine.choose_precision("mixed_bfloat16")
    assert len(log.messages) == 1


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder, how = tmp_path_factory.mktemp("corpus"), dict(epochs=1, steps_per_epoch=2)
    return config_of(folder, 60, 20, precision="auto", tokens_per_batch=128, **how)


def test_run_keeps_what_was_chosen(make_machine, config, tmp_path, capfd):
    """`auto` is decided once, printed and written down; the run goes on in it elsewhere."""
    make_machine(0.5)
    output = tmp_path / "run"
    train(config, output)
    assert re.search("^precision +mixed_bfloat16$", capfd.readouterr().err, re.MULTILINE)
    assert Run(output).read_config().precision == "mixed_bfloat16"
    assert kt.load(output).model.dtype_policy.name == "mixed_bfloat16"
    make_machine(9.0)
    train(dataclasses.replace(config, epochs=2), output, resume=True)
    assert Run(output).read_config().precision == "mixed_bfloat16"
    # Opened where it is slow, it computes in float32, with the same weights.
    slow, asked = kt.load(output), kt.load(output, precision="mixed_bfloat16")
    assert slow.model.dtype_policy.name == "float32"
    assert asked.model.dtype_policy.name == "mixed_bfloat16"
    for one, other in zip(slow.model.get_weights(), asked.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="precision must be one of float32, mixed_bfloat16"):
        kt.load(output, precision="bfloat16")


def products(version_dir):
    """The types in which the graph multiplies matrices."""
    with open(os.path.join(version_dir, "saved_model.pb"), "rb") as file:
        (meta,) = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    nodes = [node for f in meta.graph_def.library.function for node in f.node_def]
    types = {n.attr["T"].type for n in nodes if n.op in ("MatMul", "BatchMatMulV2")}
    return {tf.dtypes.as_dtype(number).name for number in types}


@pytest.mark.parametrize(
    "computation, trained", [("float32", "mixed_bfloat16"), ("bfloat16", "float32")]
)
def test_an_export_computes_in_what_it_is_asked_to(computation, trained, tmp_path):
    translator = random_translator(seed=5, dtype=trained)
    options = {"computation": computation} if computation != "float32" else {}
    path = export(translator, tmp_path, config=ExportConfig(signatures=(), **options))
    assert computation in products(path)
    if computation == "float32":
        assert products(path) == {"float32"}
    card = json.loads((tmp_path / "1" / "model.json").read_text())
    assert card["precision"] == {"computation": computation, "weights": "float32"}
    single = random_translator(seed=5).translate(SOURCES)
    found = kt.load_saved_model(path)(SOURCES)[0]
    same = sum(one == other for one, other in zip(found, single, strict=True))
    assert same >= (len(SOURCES) if computation == "float32" else len(SOURCES) // 2)


def test_unknown_computation(tmp_path):
    with pytest.raises(ValueError, match="computation must be one of float32, bfloat16"):
        export(random_translator(), tmp_path, config=ExportConfig(computation="int8"))


@pytest.mark.parametrize("command", ["translate", "score", "evaluate"])
def test_commands_take_a_precision(command, reverse_run):
    folder, _ = reverse_run
    text = [] if command == "translate" else ["--source", folder / "pairs.tsv"]
    for precision, status in (("float32", 0), ("mixed_bfloat16", 0), ("half", 2)):
        options = [*text, "--precision", precision]
        done = run(command, folder / "run", *options, stdin=b"ba gu\n")
        assert done.returncode == status, done.stderr
        assert bool(done.stdout) == (status == 0)
    assert done.stderr.startswith(b"keras-transformer: precision must be one of float32")
