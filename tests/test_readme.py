"""README stays short, its layer runs, and its script is the one that the guide starts with."""

import re

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


def test_the_guide_starts_with_the_same_script():
    """It is run there: tests/test_guide.py."""
    guide = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8")
    assert guide.index(f"```python\n{TRAINING}```\n") == guide.index("```python")
