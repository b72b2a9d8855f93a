"""A training's configuration as a file: what is written is read, and mistakes are named."""

import dataclasses
import re

import pytest

import keras_transformer as kt
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.run import Run, from_yaml, read_values, to_yaml
from keras_transformer.runs.training_data import check_training
from tests.support.paths import FIXTURES

EVERYTHING = dataclasses.replace(
    kt.PRESETS["dates"],
    languages=("de", "fr"),
    start_from="süß: # 1",
    freeze=("encoder",),
    learning_rate=1e-05,
    clip_norm=0.5,
    bleu_tokenize="none",
    lowercase=True,
)


@pytest.mark.parametrize("config", [*kt.PRESETS.values(), EVERYTHING])
def test_what_is_written_is_read(config, tmp_path):
    Run(tmp_path).write_config(config)
    assert Run(tmp_path).read_config() == config


def test_every_line_is_explained():
    """By the comments that are the command line's help."""
    lines = to_yaml(kt.PRESETS["tiny"]).splitlines()
    values = [line for line in lines if ": " in line and not line.startswith("#")]
    assert values[0] == "format: 1" and all("  # " in line for line in values[1:])
    assert "steps_per_epoch: 250  # null: one pass over the data" in values
    assert "  d_ff: 256  # dimension of the feed-forward hidden layer" in values
    fields = [field.name for field in dataclasses.fields(kt.TrainConfig)]
    fields += [field.name for field in dataclasses.fields(kt.ModelConfig)]
    named = {line.split(":")[0].strip() for line in lines if not line.startswith("#")}
    unwritten = {"parallel_microbatches", "imported", "subword_sampling"}
    assert set(fields) - named == unwritten, "the machine's, import's, an earlier version's"


def test_what_is_left_out_is_as_usual(tmp_path):
    (tmp_path / "few.yaml").write_text(
        "format: 1\nepochs: 3\nlearning_rate: 1e-3\nmodel: {d_ff: 64}\n"
    )
    config = from_yaml(tmp_path / "few.yaml")
    assert config == kt.TrainConfig(epochs=3, learning_rate=0.001, model=kt.ModelConfig(d_ff=64))


def test_a_run_of_the_first_version_is_read():
    config = Run(FIXTURES / "format-1" / "run").read_config()
    assert config.ema == 0.998 and config.start_from is None and config.freeze == ()


def test_a_run_with_an_option_that_has_left_is_read(tmp_path):
    """Subword sampling: the run translates, but is not trained further."""
    (tmp_path / "config.yaml").write_text("format: 1\nsubword_sampling: 0.1\n")
    config = Run(tmp_path).read_config()
    assert config.subword_sampling == 0.1 and "\nsubword_sampling: 0.1" in to_yaml(config)
    with pytest.raises(ValueError, match="train no longer has the option subword_sampling"):
        check_training(config, tmp_path / "new")


def test_fields_that_have_left_are_ignored(tmp_path, caplog):
    (tmp_path / "config.yaml").write_text("format: 1\naverage: none\nlog_file: null\n")
    assert Run(tmp_path).read_config() == TrainConfig(dates=True) and not caplog.messages
    (tmp_path / "config.yaml").write_text("format: 1\naverage: best\n")
    assert Run(tmp_path).read_config() == TrainConfig(dates=True)
    assert "average: best is ignored" in caplog.text


@pytest.mark.parametrize(
    "text, message",
    [
        ("epoch: 3", "unknown field 'epoch'"),
        ("model: {num_layer: 2}", "unknown field 'num_layer'"),
        ("num_layers: 2", "unknown field 'num_layers'"),
        ("learning_rate: high", "learning_rate must be float or null, received 'high'"),
        ("epochs: 2.5", "epochs must be int, received 2.5"),
        ("epochs: true", "epochs must be int, received True"),
        ("nfkc: 1", "nfkc must be bool, received 1"),
        ("train_source: 3", "train_source must be str or null, received 3"),
        ("languages: de", "languages must be a list of strings, received 'de'"),
        ("model: 3", "model must be ModelConfig, received 3"),
        ("epochs: [", "is not valid YAML"),
        ("- 3", "is not valid YAML"),
    ],
)
def test_mistakes_are_named(text, message, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(f"format: 1\n{text}\n")
    with pytest.raises(ValueError) as error:
        from_yaml(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.yaml"
    with pytest.raises(ValueError, match="cannot be read"):
        from_yaml(path)
    path.write_text("a text")
    with pytest.raises(ValueError, match="is not a configuration"):
        from_yaml(path)
    path.write_text("format: 2\n")
    with pytest.raises(ValueError, match="must have format 1, received format 2"):
        from_yaml(path)


def test_a_file_of_ones_own(tmp_path):
    """Without a format, and with null where a comment of `config` says so."""
    path = tmp_path / "own.yaml"
    path.write_text("epochs: 20\nlanguages: null\n")
    assert read_values(path) == {"epochs": 20, "languages": ()}
    comments = to_yaml(TrainConfig())
    assert re.search("^languages: .*null: the default", comments, re.MULTILINE)
    assert re.search("^bleu_tokenize: .*none: text is already tokenized", comments, re.MULTILINE)
