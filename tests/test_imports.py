"""The rules of the house: what imports what, what is public, how long a file may be."""

import ast
import graphlib
import importlib
import inspect
import os
import subprocess
import sys

import pytest

import keras_transformer
from tests.support.layer_harness import require_jax
from tests.support.paths import ROOT

PACKAGE = "keras_transformer"
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}

# The house from the roof down, DESIGN §2a. A room may import itself and the floors below its own.
FLOORS = [
    ["__main__"],
    ["cli"],
    ["train", "evaluate", "visualization"],
    ["runs"],
    ["serving"],
    ["translation"],
    ["transformer"],
    ["training", "data"],
    ["layers", "decoding", "tokenizers"],
    ["kernels", "atomic_files", "inspection"],
    ["presets"],
    ["options", "special_ids", "typing", "wording"],
]
BESIDE = {"training": {"data"}}  # what else
ROOMS = [room for floor in FLOORS for room in floor]
# These run on any backend of Keras: nothing in them imports TensorFlow.
WITHOUT_TENSORFLOW = [
    *("special_ids", "typing", "presets", "options"),
    *("layers", "transformer"),
    *(f"training.{name}" for name in ("losses", "labels")),
    *(f"kernels.{name}" for name in ("dense", "dropout", "layer_normalization", "products")),
]


def imports_of(module):
    """Full names of all that a module imports, also inside its functions."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in SOURCES else node.module


def ours(module):
    return {name for name in imports_of(module) if name.split(".")[0] == PACKAGE}


def room_of(module):
    """`keras_transformer.layers.masks` is in the room `layers`."""
    return module.split(".")[1] if "." in module else ""


# Directions.


def test_every_module_is_in_a_room():
    assert {room_of(module) for module in SOURCES} == {"", *ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_down(room):
    floor = next(number for number, rooms in enumerate(FLOORS) if room in rooms)
    below = {other for rooms in FLOORS[floor + 1 :] for other in rooms}
    allowed = {"", room} | below | BESIDE.get(room, set())
    for module in SOURCES:
        if room_of(module) == room:
            assert {room_of(name) for name in ours(module)} <= allowed, module


def test_no_room_has_the_name_of_a_public_function():
    """The module would take the lazy name's place."""
    assert not set(ROOMS) & set(keras_transformer.__all__)


def test_there_are_no_circles():
    sorter = graphlib.TopologicalSorter({module: ours(module) for module in SOURCES})
    assert set(sorter.static_order()) == set(SOURCES)  # raises CycleError


def test_what_any_backend_runs_knows_no_tensorflow():
    strangers = {"tensorflow", "tensorflow_text", "jax", "torch", "sentencepiece", "keras_nlp"}
    for module in SOURCES:
        if any(f"{module}.".startswith(f"{PACKAGE}.{name}.") for name in WITHOUT_TENSORFLOW):
            assert not {name.split(".")[0] for name in imports_of(module)} & strangers, module


# Sizes.


def test_no_file_over_500_lines_and_no_function_over_60():
    too_long = []
    for path in sorted([*SOURCES.values(), *ROOT.glob("tests/**/*.py"), *ROOT.glob("export/*.py")]):
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
    module = importlib.import_module(f"{PACKAGE}.{room}")
    assert sorted(module.__all__) == module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(keras_transformer, name)


@pytest.mark.parametrize("module", SOURCES)
def test_docstrings(module):
    """Every module, public class and function has one; of a class, it stands on the class."""
    tree = TREES[module]
    definitions = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    public = [node for node in definitions if not node.name.startswith("_")]
    assert ast.get_docstring(tree)
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            assert not ast.get_docstring(node), module


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
