"""Hints: on everything public, in a stub that names what is public, and seen by type checkers."""

import ast
import os
import sys
import venv

import keras_transformer
from tests.support import child_process
from tests.support.paths import ROOT


def test_the_stub_imports_what_the_package_does():
    stub = (ROOT / "keras_transformer" / "__init__.pyi").read_text(encoding="utf-8")
    found = {
        (node.module, name.name, name.asname)
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    homes = keras_transformer._HOME_OF.items()
    assert found == {(f"keras_transformer.{home}", name, name) for name, home in homes}


SCRIPT = """
import keras_transformer as kt

translator = kt.load("runs/dates")
reveal_type(translator)
reveal_type(translator.translate(["9 May 1998"], search=kt.SearchConfig(beam_size=5)))
reveal_type(kt.Transformer(8000, 8000, num_layers=2).encoder)
tokenizer = kt.SubwordTokenizer.train(["a b"], vocabulary_size=300)
dataset = kt.make_dataset([("a", "b")], tokenizer, tokenizer, tokens_per_batch=4096)
kt.load("runs/dates", precison="float32")
kt.make_dataset([("a", "b")], tokenizer, tokenizer, "many")
kt.transformer_of_another_name
reveal_type((kt.__version__, kt.OPTIONAL, kt.LIGHT, kt.explain_missing))
"""
SEEN = """
5: note: Revealed type is "keras_transformer.translation.translator.Translator"
6: note: Revealed type is "list[str]"
7: note: Revealed type is "keras_transformer.layers.encoder.Encoder"
10: error: Unexpected keyword argument "precison" for "load"
11: error: Argument 4 to "make_dataset" has incompatible type "str"; expected "int"
12: error: Module has no attribute "transformer_of_another_name"
13: note: Revealed type is "tuple[str, dict[str, str], str, def (what: str, error: Mod
"""


def test_a_type_checker_sees_the_hints(tmp_path):
    """In an environment that holds the package alone, as if installed: py.typed says so."""
    venv.create(tmp_path / "environment", symlinks=True)
    (packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    os.symlink(ROOT / "keras_transformer", packages / "keras_transformer")
    (tmp_path / "script.py").write_text(SCRIPT)
    python = tmp_path / "environment" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--config-file=", f"--python-executable={python}"]
    command += ["--ignore-missing-imports", "--no-color-output", "script.py"]
    done = child_process.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stdout.splitlines() if "defined in" not in line]
    assert lines.pop().startswith("Found 3 errors in 1 file")
    seen = [line.removeprefix("script.py:") for line in lines]
    for line, start in zip(seen, SEEN.strip().splitlines(), strict=True):
        assert line.startswith(start)
