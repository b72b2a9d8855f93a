"""The files of a training's directory: everything needed to translate, to resume and to look back.

`model.keras` (the best weights), `source.spm` and `target.spm` (equal when shared), `config.yaml`,
`data.json`, `history.csv` (a row per validation), `logs/` (TensorBoard) and `checkpoints/`. Nothing
in it names another place on the machine that loading would need, so it can be moved.
"""

import dataclasses
import json
import os
from typing import Any

import yaml

from keras_transformer.corpora.pair import Pair
from keras_transformer.presets import FORMAT, ModelConfig, TrainConfig, check_format
from keras_transformer.runs.atomic_files import replacing
from keras_transformer.typing import Path

MODEL, CONFIG, SOURCE, TARGET = "model.keras", "config.yaml", "source.spm", "target.spm"
DATA = "data.json"  # how much text was trained on, and its fingerprint
HISTORY, CHECKPOINTS, STATE = "history.csv", "checkpoints", "resume.json"


def is_run(path: Path) -> bool:
    """Tells whether `path` is a run directory with a model to translate with."""
    return os.path.isfile(os.path.join(path, MODEL)) and os.path.isfile(os.path.join(path, SOURCE))


def describe(path: Path) -> dict[str, dict[str, Any]]:
    """Describes a run for a model card: recipe, data and scores, no places on this machine.

    Returns:
        Dict of `recipe`, `data` and `metrics`, dicts that JSON can hold; empty where nothing is
        known.
    """
    if not os.path.exists(os.path.join(path, CONFIG)):
        return {}
    recipe = _plain(dataclasses.asdict(read_config(path)))
    del recipe["model"]  # the card has it from the model itself
    for field in ("train_source", "train_target", "valid_source", "valid_target"):
        del recipe[field]
    data, state = os.path.join(path, DATA), read_state(path)
    known = {}
    if os.path.exists(data):
        with open(data, encoding="utf-8") as file:
            known = json.load(file)
    metrics = {}
    if state and state["checkpoints"]:
        best = rank(state)[0]["epoch"]
        row = state["history"][best - 1]
        metrics = {name: value for name, value in row.items() if value is not None}
    return {"recipe": recipe, "data": known, "metrics": metrics}


def valid_pairs(path: Path) -> list[Pair]:
    """Reads the pairs that a run was validated by.

    Raises:
        ValueError: If the files are not where they were.
    """
    from keras_transformer.corpora.dates import LANGUAGES, dates
    from keras_transformer.corpora.text_files import read_pairs

    config = read_config(path)
    if config.valid_source is None:
        return dates(config.languages or LANGUAGES).valid
    return read_pairs(config.valid_source, config.valid_target)


def write_config(config: TrainConfig, path: Path) -> None:
    """Writes a `TrainConfig` as `config.yaml` into the directory `path`."""
    fields = _plain(dataclasses.asdict(config))
    del fields["parallel_microbatches"]  # the machine's
    with open(os.path.join(path, CONFIG), "w", encoding="utf-8") as file:
        yaml.safe_dump({"format": FORMAT} | fields, file, sort_keys=False)


def read_config(path: Path) -> TrainConfig:
    """Reads the `TrainConfig` of a run directory.

    Raises:
        ValueError: If there is none, or one that this version does not understand.
    """
    name = os.path.join(path, CONFIG)
    try:
        with open(name, encoding="utf-8") as file:
            fields = yaml.safe_load(file)
        check_format(name, fields.pop("format", None))
        model = ModelConfig(**fields.pop("model"))
        fields["languages"] = tuple(fields["languages"])
        return TrainConfig(model=model, **fields)
    except OSError:
        raise ValueError(f"{path} is no run directory: there is no {CONFIG} in it.") from None
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{name} is not a configuration of this version: {error}.") from error


def read_state(path: Path) -> dict[str, Any] | None:
    """Reads where a training stands, None before its first validation.

    Returns:
        Dict with `epoch`, the number of epochs done, and `checkpoints`, a list of dicts of
        `file`, `epoch` and `score`, in the order of the epochs, among others.
    """
    name = os.path.join(path, CHECKPOINTS, STATE)
    if not os.path.exists(name):
        return None
    with open(name, encoding="utf-8") as file:
        return json.load(file)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Writes where a training stands, whole or not at all."""
    with replacing(os.path.join(path, CHECKPOINTS, STATE)) as name:
        with open(name, "w", encoding="utf-8") as file:
            json.dump(state, file)


def rank(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoints of a training, best first; the earlier of equals."""
    sign = 1 if state["monitor"] == "val_loss" else -1
    return sorted(state["checkpoints"], key=lambda one: sign * one["score"])


def _plain(value):
    """Tuples as lists: YAML knows no others."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
