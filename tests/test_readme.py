"""README's Python blocks run as they stand, and the page stays short."""

import re

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TRAINING, LAYER = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_it_is_short():
    assert len(README.splitlines()) <= 150
    assert len([line for line in TRAINING.splitlines() if line]) <= 20


def test_layer_in_another_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(LAYER, names)
    assert names["classifier"].output_shape == (None, 2)
    assert (tmp_path / "classifier.keras").exists()


@pytest.mark.slow
def test_train_and_translate(capsys):
    exec(TRAINING, {})
    assert capsys.readouterr().out.splitlines()[-1] == "['1998-05-09']"
