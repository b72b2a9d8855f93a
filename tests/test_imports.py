"""The rules of the house: what imports what, what is public, how long a file may be."""

import ast
import importlib
import inspect
import os
import subprocess
import sys

import pytest

import keras_transformer
from tests.support.layer_harness import require_jax
from tests.support.paths import ROOT

PACKAGE = ROOT / "keras_transformer"


def test_no_module_has_the_name_of_a_public_function():
    """The module would take the place of the lazy name."""
    assert not {path.stem for path in PACKAGE.iterdir()} & set(keras_transformer.__all__)


# Sizes.


def test_no_file_over_500_lines_and_no_function_over_60():
    too_long = []
    for path in sorted(
        [*PACKAGE.rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("export/*.py")]
    ):
        text = path.read_text()
        if len(text.splitlines()) > 500:
            too_long.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                too_long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert too_long == []


# Public names.


@pytest.mark.parametrize("name", keras_transformer.__all__)
def test_public_name(name):
    value = getattr(keras_transformer, name)
    assert name in dir(keras_transformer)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert inspect.getdoc(value)


@pytest.mark.parametrize("room", ["layers", "decoding"])
def test_rooms_export_what_they_say(room):
    module = importlib.import_module(f"keras_transformer.{room}")
    assert sorted(module.__all__) == module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(keras_transformer, name)


# Imports that were not asked for.


def loaded_by(code, **environment):
    """Which packages a fresh process has loaded after running `code`."""
    names = ["tensorflow", "tensorflow_text", "keras", "keras_nlp", "sentencepiece", "babel"]
    code += f"\nimport sys; print(*[name for name in {names} if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("start", "environment", "loaded"),
    [
        ("", {"KERAS_BACKEND": "tensorflow"}, {"tensorflow", "keras"}),
        ("", {keras_transformer.LIGHT: "1"}, set()),
        ("import sys; sys.argv[0] = '/bin/keras-transformer'", {}, set()),
        ("import sys; sys.argv[0] = 'my-keras-transformer'", {}, {"tensorflow", "keras"}),
    ],
)
def test_package_loads_keras_except_in_the_command_line(start, environment, loaded):
    code = "import keras_transformer, keras_transformer.runs; dir(keras_transformer)"
    assert loaded_by(f"{start}\n{code}", **environment) == loaded


def test_dir_is_what_a_user_may_want():
    code = """
import keras_transformer
names = dir(keras_transformer)
assert sorted(set(names)) == names and set(keras_transformer.__all__) <= set(names)
public = {name for name in names if name[0] != "_"} - set(keras_transformer.__all__)
assert public == {"LIGHT", "OPTIONAL", "explain_missing"}, public
"""
    loaded_by(code)


def test_layers_load_no_text_processing():
    code = "from keras_transformer import Encoder, Transformer, SmoothedCrossEntropy"
    assert loaded_by(code, KERAS_BACKEND="tensorflow") == {"tensorflow", "keras"}


def test_layers_load_no_tensorflow_with_jax():
    require_jax()
    code = """
import keras
from keras_transformer import PRESETS, MaskedAccuracy, SmoothedCrossEntropy, WarmupInverseSqrt
from keras_transformer import Transformer
from keras_transformer.layers import *
assert keras.backend.backend() == "jax"
"""
    assert loaded_by(code, KERAS_BACKEND="jax") == {"keras"}
