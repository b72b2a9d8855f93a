"""Conventions of the code: what is public, what imports what, how long a file may be."""

import ast
import importlib
import inspect

import keras_transformer
from tests.support.command_line import python
from tests.support.paths import ROOT

PACKAGE = ROOT / "keras_transformer"


def test_no_file_over_500_lines_and_no_function_over_60():
    too_long = []
    folders = PACKAGE.rglob("*.py"), ROOT.glob("tests/**/*.py"), ROOT.glob("export/*.py")
    for path in (path for folder in folders for path in folder):
        text = path.read_text()
        if len(text.splitlines()) > 500:
            too_long.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                too_long.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert too_long == []


def test_public_names():
    # A module of the name of a public function would take the place of the lazy name.
    assert not {path.stem for path in PACKAGE.iterdir()} & set(keras_transformer.__all__)
    for name in keras_transformer.__all__:
        value = getattr(keras_transformer, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__name__ == name
    for subpackage in ("layers", "decoding"):
        module = importlib.import_module(f"keras_transformer.{subpackage}")
        assert sorted(module.__all__) == module.__all__
        for name in module.__all__:
            assert getattr(module, name) is getattr(keras_transformer, name)


def loaded_by(code, **environment):
    names = ["tensorflow", "tensorflow_text", "keras", "keras_nlp", "sentencepiece", "babel"]
    code += f"\nimport sys; print(*[name for name in {names} if name in sys.modules])"
    return set(python("-c", code, **environment).split())


def test_the_command_line_starts_without_keras():
    code = "import keras_transformer, keras_transformer.runs; dir(keras_transformer)"
    assert loaded_by(code, **{keras_transformer.LIGHT: "1"}) == set()
    assert loaded_by(f"import sys; sys.argv[0] = '/bin/keras-transformer'\n{code}") == set()


def test_layers_load_keras_and_no_text_processing():
    """Nor does dir, which has what a user may want; another command of a similar name is none."""
    code = """
import sys
sys.argv[0] = "my-keras-transformer"
import keras_transformer, keras_transformer.runs
assert "keras" in sys.modules
from keras_transformer import Encoder, Transformer, SmoothedCrossEntropy
names = dir(keras_transformer)
assert sorted(set(names)) == names and set(keras_transformer.__all__) <= set(names)
public = {name for name in names if name[0] != "_"} - set(keras_transformer.__all__)
assert public == {"LIGHT", "OPTIONAL", "explain_missing"}, public
"""
    assert loaded_by(code, KERAS_BACKEND="tensorflow") == {"tensorflow", "keras"}
