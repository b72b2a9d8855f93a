"""The commands that create runs: which configuration they are given."""

import pytest

from keras_transformer.presets import PRESETS
from keras_transformer.runs.run import from_yaml
from tests.support.command_line import refused, run


@pytest.fixture
def seen(monkeypatch):
    """The configurations that are checked; nothing is trained."""
    seen = []
    checked = "keras_transformer.runs.training_data.check_training"
    monkeypatch.setattr(checked, lambda config, *_: seen.append(config))
    monkeypatch.setattr("keras_transformer.train.train_run", lambda *_: None)
    return seen


def test_a_first_training_is_explained(seen, tmp_path):
    """Without a choice of preset; a chosen one needs no explanation."""
    own = ["--train-source", tmp_path / "text.tsv", "--valid-fraction", "0.5"]
    for options, message in (
        ([], b""),
        (own, b"warning: the default, --preset dates, splits text into characters"),
        (["--preset", "dates"], b""),
        ([*own, "--preset", "tiny"], b""),
        ([*own, "--model-type", "char"], b""),
    ):
        result = run("train", "--output", tmp_path / "run", *options)
        assert result.returncode == 0 and result.stderr.startswith(message), result.stderr
        assert bool(message) == bool(result.stderr)


def test_a_file_may_need_what_the_options_add(seen, tmp_path):
    """A configuration is checked as a whole: neither has to be valid without the other."""
    (tmp_path / "file.yaml").write_text("format: 1\nfreeze: [encoder]\nmodel: {d_model: 100}\n")
    words = ["train", "--output", "x", "--config", tmp_path / "file.yaml"]
    assert (run(*words).returncode, seen) == (2, [])
    assert run(*words, "--num-heads", "5", "--start-from", "run").returncode == 0
    model, freeze = seen[0].model, seen[0].freeze
    assert (model.d_model, model.num_heads, freeze) == (100, 5, ("encoder",))


def test_config_is_what_train_takes(seen, tmp_path):
    result = run("config", "--preset", "tiny")
    assert result.returncode == 0 and not result.stderr
    path = tmp_path / "tiny.yaml"
    path.write_bytes(result.stdout)
    assert from_yaml(path) == PRESETS["tiny"]
    assert run("train", "--output", "x", "--config", path, "--epochs", "7").returncode == 0
    assert (seen[0].epochs, seen[0].model) == (7, PRESETS["tiny"].model)
    refused(["config", "--preset", "huge"], "Unknown preset 'huge'")
    refused(["train", "--output", "x", "--preset", "tiny", "--config", path], "leave out one of")
