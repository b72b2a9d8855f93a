"""What README shows runs as it stands."""

import pathlib
import re

import pytest

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_two_programs():
    assert len(BLOCKS) == 2
    assert all(10 <= len(block.splitlines()) <= 18 for block in BLOCKS)


def test_layer_in_another_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BLOCKS[1], names)
    assert names["classifier"].output_shape == (None, 2)
    assert (tmp_path / "classifier.keras").exists()


@pytest.mark.slow
def test_train_and_translate(capsys):
    exec(BLOCKS[0], {})
    assert capsys.readouterr().out.splitlines()[-1] == "['1998-05-09']"


def test_file_map_names_every_file():
    package = pathlib.Path(__file__).parents[1] / "keras_transformer"
    for path in package.rglob("*.py"):
        named = path.name == "__init__.py" or path.name in README
        assert named or path.parent.name == "corpora", path.name
