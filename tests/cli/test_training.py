"""The commands that create runs: which configuration they are given."""

from keras_transformer.presets import PRESETS
from keras_transformer.runs.run import from_yaml
from tests.support.command_line import refused, run, succeeds


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
        said = succeeds("train", "--output", tmp_path / "run", *options).stderr
        assert said.startswith(message) and bool(message) == bool(said)


def test_a_file_may_need_what_the_options_add(seen, tmp_path):
    """A configuration is checked as a whole: neither has to be valid without the other."""
    (tmp_path / "file.yaml").write_text("format: 1\nfreeze: [encoder]\nmodel: {d_model: 100}\n")
    words = ["train", "--output", "x", "--config", tmp_path / "file.yaml"]
    assert (run(*words).returncode, seen) == (2, [])
    succeeds(*words, "--num-heads", "5", "--start-from", "run")
    model, freeze = seen[0].model, seen[0].freeze
    assert (model.d_model, model.num_heads, freeze) == (100, 5, ("encoder",))


def test_config_is_what_train_takes(seen, tmp_path):
    result, path = succeeds("config", "--preset", "tiny"), tmp_path / "tiny.yaml"
    path.write_bytes(result.stdout)
    assert not result.stderr and from_yaml(path) == PRESETS["tiny"]
    succeeds("train", "--output", "x", "--config", path, "--epochs", "7")
    assert (seen[0].epochs, seen[0].model) == (7, PRESETS["tiny"].model)
    refused(["config", "--preset", "huge"], "Unknown preset 'huge'")
