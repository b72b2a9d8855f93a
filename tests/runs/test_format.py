"""What a version has written, every later one reads; what came before is refused in a sentence."""

import json
import shutil

import pytest

import keras_transformer as kt
from keras_transformer.presets.options import FORMAT
from keras_transformer.runs.run import Run
from keras_transformer.serving.server_process import ServerProcess
from tests.support.paths import FIXTURES

FORMATS = sorted(FIXTURES.glob("format-*"))


def test_this_format_has_a_fixture():
    assert FIXTURES / f"format-{FORMAT}" in FORMATS


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_runs_and_exports_are_read_for_ever(folder):
    expected = json.loads((folder / "translations.json").read_text())
    assert len(set(expected.values())) > 3
    assert kt.load(folder / "run").translate(list(expected)) == list(expected.values())
    assert Run(folder / "run").read_config().learning_rate == 0.02  # `peak` in format 1
    with ServerProcess(folder / "export" / "1") as server:
        assert server.predict(list(expected))["text"] == list(expected.values())


def test_a_run_of_before_is_refused(tmp_path):
    run = shutil.copytree(FIXTURES / f"format-{FORMAT}" / "run", tmp_path / "run")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(f"format: {FORMAT}\n", ""))
    with pytest.raises(ValueError, match="config.yaml must have format 1, received format 0"):
        kt.load(run)


def test_a_model_of_before_is_refused():
    config = kt.Transformer(20, 20, 1, 8, 2, 16).get_config()
    del config["format"]
    with pytest.raises(ValueError, match="must have format 1, received format 0"):
        kt.Transformer.from_config(config)
