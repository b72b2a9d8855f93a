"""The files of a training's directory: everything needed to translate, to resume and to look back.

`model.keras` (the best weights), `source.spm` and `target.spm` (equal when shared), `config.yaml`,
`data.json`, `history.csv` (a row per validation), `logs/` (TensorBoard) and `checkpoints/`. Nothing
in it names another place on the machine that loading would need, so it can be moved.
"""

import dataclasses
import json
import os
from typing import Any

from keras_transformer.corpora.pair import Pair
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.atomic_files import replacing
from keras_transformer.runs.configuration import MACHINE, from_yaml, to_yaml
from keras_transformer.typing import Path

MODEL, CONFIG, SOURCE, TARGET = "model.keras", "config.yaml", "source.spm", "target.spm"
DATA = "data.json"  # how much text was trained on, and its fingerprint
HISTORY, CHECKPOINTS, STATE = "history.csv", "checkpoints", "resume.json"
TEXTS = ("train_source", "train_target", "valid_source", "valid_target")  # fields that name files


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
    for field in (*TEXTS, "start_from", "log_file", "log_every", *MACHINE):
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
    from keras_transformer.corpora.configured import load_valid

    return load_valid(read_config(path))


def write_config(config: TrainConfig, path: Path) -> None:
    """Writes a `TrainConfig` as `config.yaml` into the directory `path`, whole or not at all."""
    with replacing(os.path.join(path, CONFIG)) as name:
        with open(name, "w", encoding="utf-8") as file:
            file.write(to_yaml(config))


def read_config(path: Path) -> TrainConfig:
    """Reads the `TrainConfig` of a run directory.

    Raises:
        ValueError: If there is none, or one that this version does not understand.
    """
    name = os.path.join(path, CONFIG)
    if not os.path.isfile(name):
        raise ValueError(f"{path} is no run directory: there is no {CONFIG} in it.")
    return from_yaml(name)


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
