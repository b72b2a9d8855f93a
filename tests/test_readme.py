"""What README shows runs as it stands."""

import re

import numpy as np
import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_all_blocks_are_run_here():
    assert len(BLOCKS) == 8


def test_layer_in_another_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BLOCKS[2], names)
    assert names["classifier"].output_shape == (None, 2)
    assert (tmp_path / "classifier.keras").exists()


@pytest.mark.slow
def test_train_and_translate(capsys, tmp_path, monkeypatch):
    names = {}
    exec(BLOCKS[0], names)
    assert capsys.readouterr().out.splitlines()[-1] == "['1998-05-09']"
    exec(BLOCKS[1], names)
    assert capsys.readouterr().out.splitlines()[-1] == "[b'1998-05-09']"
    tokenizers = [names["tokenizer"]] * 2
    names["translator"] = names["kt"].Translator(names["model"], *tokenizers)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[5], names)
    assert (tmp_path / "docs" / "images" / "steps.png").stat().st_size > 10_000


def test_positions_in_another_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BLOCKS[4], names)
    ids = np.array([[5, 6, 7, 0], [7, 6, 5, 5]])
    loaded = names["keras"].saving.load_model("tagger.keras")
    np.testing.assert_allclose(loaded(ids), names["tagger"](ids), atol=1e-6)


def test_language_model(capsys):
    names = {}
    exec(BLOCKS[3], names)
    known = {name.encode() for name in names["names"]}
    said = names["tokenizer"].detokenize(names["tokens"]).numpy()
    assert len(said) == 4 and sum(name in known for name in said) >= 3


def test_a_script_goes_on(tmp_path, monkeypatch):
    """Run again as it is, after its end: there is nothing left to do."""
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BLOCKS[6], names)
    before = names["model"].get_weights()
    exec(BLOCKS[6], names)
    assert names["model"].history.history == {}
    assert all(map(np.array_equal, before, names["model"].get_weights()))


def test_file_map_names_every_room():
    named = re.search(r"```\nkeras_transformer/\n(.*?)```", README, flags=re.DOTALL)[1]
    named = re.findall(r"^  (\w+)(?:\.py|/) ", named, flags=re.MULTILINE)
    inside = [path for path in (ROOT / "keras_transformer").iterdir() if path.stem[0] != "_"]
    rooms = [path.stem for path in inside if path.is_dir() or path.suffix == ".py"]
    assert sorted(named) == sorted(rooms)


def test_a_script_for_one_device_and_for_workers(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    names = {}
    exec(BLOCKS[7], names)
    assert names["model"].history.history["perplexity"][0] < names["tokenizer"].vocabulary_size


def test_pictures_are_there_and_small():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < 60_000
        assert picture in README.replace(f"({picture})", ""), "the command that made it"
