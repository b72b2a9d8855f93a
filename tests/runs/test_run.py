"""A training's configuration as a file: what is written is read, and mistakes are named."""

import dataclasses
import json
import math
import typing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keras_transformer as kt
from keras_transformer.presets import TrainConfig, change
from keras_transformer.presets.options import FORMAT
from keras_transformer.runs.run import Run, from_yaml, rank, read_values, to_yaml
from keras_transformer.serving.server_process import ServerProcess
from tests.support.paths import FIXTURES

FORMATS = sorted(FIXTURES.glob("format-*"))
FIELDS = [*dataclasses.fields(TrainConfig), *dataclasses.fields(kt.ModelConfig)]
HINTS = typing.get_type_hints(TrainConfig) | typing.get_type_hints(kt.ModelConfig)
TYPES = {bool: st.booleans(), str: st.text(min_size=1), float: st.floats(), int: st.integers(0)}
TYPES |= {type(None): st.none(), tuple[str, ...]: st.tuples(st.text(), st.text())}


def values_of(name):
    hint = HINTS[name]
    kinds = [hint] if typing.get_origin(hint) is tuple else typing.get_args(hint) or [hint]
    return st.one_of([TYPES[kind] for kind in kinds if kind in TYPES])


def changed(config, changes):
    """The configuration with as many of the changes as go together, one after the other."""
    for name, value in changes.items():
        try:
            config = change(config, {name: value})
        except ValueError as error:
            assert str(error).count("\n") == str(value).count("\n") and str(error).endswith(".")
    return config


NAMES = [field.name for field in FIELDS if field.name not in ("model", "imported")]
CHANGES = st.lists(st.sampled_from(NAMES), min_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: values_of(name) for name in names})
)


@example(TrainConfig(), {"train_target": "\x85 \u2028\n", "languages": ("", "\x85")})
@given(st.sampled_from([*kt.PRESETS.values(), TrainConfig()]), CHANGES)
def test_what_is_written_is_read(tmp_path, config, changes):
    """Whatever the text; what belongs to the machine is not written."""
    config = change(changed(config, changes), {"parallel_microbatches": None})
    Run(tmp_path).write_config(config)
    assert Run(tmp_path).read_config() == config


def test_every_line_is_explained():
    lines = to_yaml(kt.PRESETS["tiny"]).splitlines()
    values = [line for line in lines if ": " in line and not line.startswith("#")]
    assert values[0] == "format: 1" and all("  # " in line for line in values[1:])
    assert "steps_per_epoch: 250  # null: one pass over the data" in values
    assert "\nbleu_tokenize: 13a  # sacreBLEU tokenizer; none: text" in to_yaml(kt.PRESETS["tiny"])
    named = {line.split(":")[0].strip() for line in lines if not line.startswith("#")}
    unwritten = {"parallel_microbatches", "imported", "subword_sampling"}
    assert {field.name for field in FIELDS} - named == unwritten


def test_what_is_left_out_is_as_usual(tmp_path):
    path = tmp_path / "few.yaml"
    path.write_text("format: 1\nepochs: 3\nlearning_rate: 1e-3\nmodel: {d_ff: 64}\n")
    expected = kt.TrainConfig(epochs=3, learning_rate=0.001, model=kt.ModelConfig(d_ff=64))
    assert from_yaml(path) == expected
    path.write_text("epochs: 20\nlanguages: null\n")  # of one's own: without a format
    assert read_values(path) == {"epochs": 20, "languages": ()}


def test_mistakes_are_named(tmp_path):
    path = tmp_path / "wrong.yaml"
    for text, message in (
        ("format: 1\nepoch: 3", "unknown field 'epoch'"),
        ("format: 1\nmodel: {num_layer: 2}", "unknown field 'num_layer'"),
        ("format: 1\nlearning_rate: high", "learning_rate must be float or null, received 'high'"),
        ("format: 1\nepochs: true", "epochs must be int, received True"),
        ("format: 1\nlanguages: de", "languages must be a list of strings, received 'de'"),
        ("format: 1\nmodel: 3", "model must be ModelConfig, received 3"),
        ("format: 1\nepochs: [", "is not valid YAML"),
        ("a text", "is not a configuration"),
        ("format: 2", "must have format 1, received format 2"),
        ("epochs: 3", "must have format 1, received format 0"),
    ):
        path.write_text(f"{text}\n")
        with pytest.raises(ValueError) as error:
            from_yaml(path)
        assert message in str(error.value) and str(path) in str(error.value)


# What a version has written, every later one reads; what came before is refused in a sentence.
@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_runs_and_exports_are_read_for_ever(folder):
    assert FIXTURES / f"format-{FORMAT}" in FORMATS
    expected = json.loads((folder / "translations.json").read_text())
    assert len(set(expected.values())) > 3
    assert kt.load(folder / "run").translate(list(expected)) == list(expected.values())
    config = Run(folder / "run").read_config()
    assert (config.learning_rate, config.ema) == (0.02, 0.998)  # `peak` in format 1
    with ServerProcess(folder / "export" / "1") as server:
        assert server.predict(list(expected))["text"] == list(expected.values())


def test_fields_that_have_left_are_ignored(tmp_path, caplog):
    (tmp_path / "config.yaml").write_text("format: 1\naverage: none\nlog_file: null\n")
    assert Run(tmp_path).read_config() == TrainConfig(dates=True) and not caplog.messages
    (tmp_path / "config.yaml").write_text("format: 1\naverage: best\n")
    assert Run(tmp_path).read_config() == TrainConfig(dates=True)
    assert "average: best is ignored" in caplog.text


def test_a_model_of_before_is_refused():
    config = kt.Transformer(20, 20, 1, 8, 2, 16).get_config()
    del config["format"]
    with pytest.raises(ValueError, match="must have format 1, received format 0"):
        kt.Transformer.from_config(config)


def test_rank():
    for monitor, losses, best in (
        ("val_loss", [5.0, 3.0, 9.0, 3.0, 4.0], [2, 4, 5, 1, 3]),
        # As runs of older versions hold what has diverged: behind all others.
        ("val_loss", [5.0, math.nan, 3.0, math.nan, 6.0], [3, 1, 5, 2, 4]),
        # By BLEU, the earlier of equals; below 5 by loss, behind all that have more.
        ("val_bleu", [5.0, 3.0, 9.0, 3.0, 4.0], [3, 1, 4, 2, 5]),
    ):
        rows = zip(losses, [5.0, 4.9, 7.0, 5.0, 4.99], strict=True)
        history = [{"val_loss": loss, "val_bleu": bleu} for loss, bleu in rows]
        state = {"monitor": monitor, "history": history}
        state["checkpoints"] = [{"epoch": i} for i in range(1, 6)]
        assert [one["epoch"] for one in rank(state)] == best
