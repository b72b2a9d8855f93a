"""The files of a training's directory: everything needed to translate, to resume and to look back.

`model.keras` (the best weights) and `model.json` (what these are, and how good), `source.spm` or
`source.wordpiece` and the target's (equal when shared), `config.yaml`, `data.json`, `history.csv`
(a row per validation), `logs/` (TensorBoard) and `checkpoints/`. Nothing in it names another place
on the machine that loading would need, so it can be moved.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from keras_transformer.atomic_files import reason, replacing
from keras_transformer.corpora.pair import Pair
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.configuration import MACHINE, from_yaml, to_yaml
from keras_transformer.runs.resume_points import STATE, ResumePoints
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path

MODEL, CONFIG = "model.keras", "config.yaml"
MODEL_SCORES = "model.json"  # of the model itself: `write_scores`
DATA = "data.json"  # how much text was trained on, and its fingerprint
CORPUS = "corpus"  # its text as ids, where that is large: `data.prepared`
HISTORY, CHECKPOINTS = "history.csv", "checkpoints"
OWNED = r"\d{6}\.weights\.h5"  # further files in checkpoints/, as ResumePoints takes them
LEAST_SCORE = 5.0  # below it, BLEU is noise: an untrained model may have more than a trained one
TEXTS = ("train_source", "train_target", "valid_source", "valid_target")  # fields that name files
VOCABULARIES = ("source_vocabulary", "target_vocabulary")  # as well
VECTORS = ("source_vectors", "target_vectors")  # as well


def is_run(path: Path) -> bool:
    """Tells whether `path` is a run directory with a model to translate with."""
    return os.path.isfile(os.path.join(path, MODEL)) and bool(saved.paths(path))


def describe(path: Path) -> dict[str, dict[str, Any]]:
    """Describes a run for a model card: recipe, data and scores, no places on this machine.

    Returns:
        Dict of `recipe`, `data` and `metrics`, dicts that JSON can hold; empty where nothing is
        known. Of a mean, also `mean_of`: what it was joined from; and where a mean was tried and
        was worse than the best checkpoint, which then is the model, `worse_mean`.
    """
    if not os.path.exists(os.path.join(path, CONFIG)):
        return {}
    recipe = _plain(dataclasses.asdict(read_config(path)))
    del recipe["model"]  # the card has it from the model itself
    here = "corpus", "start_from", "save_every", "log_file", "log_every"
    for field in (*TEXTS, *VOCABULARIES, *VECTORS, *here, *MACHINE):
        del recipe[field]
    scores = {"metrics": {}} | _read_json(path, MODEL_SCORES)
    return {"recipe": recipe, "data": read_data(path)} | scores


def read_data(path: Path) -> dict[str, Any]:
    """Reads the fingerprints of `train` and `valid` that a run was begun with; empty if unknown.

    And what its word `vectors` covered, where it began with some (`begin_with_vectors`).

    Raises:
        ValueError: If the file is damaged.
    """
    return _read_json(path, DATA)


def write_data(data: dict[str, Any], path: Path) -> None:
    """Writes what `read_data` reads, beside what is there already."""
    old = read_data(path)
    data = old | data
    if old != data:
        with replacing(os.path.join(path, DATA)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)


def valid_pairs(path: Path) -> list[Pair]:
    """Reads the pairs that a run was validated by.

    Raises:
        ValueError: If the files are not where they were.
    """
    from keras_transformer.corpora.configured import load_valid
    from keras_transformer.data.prepared.prepared_corpus import PreparedCorpus
    from keras_transformer.runs.prepared import parse_corpora

    config, kept = read_config(path), os.path.join(path, CORPUS)
    if config.valid_source is None and (config.corpus or os.path.isdir(kept)):
        first = parse_corpora(config.corpus)[0][0] if config.corpus else kept
        return PreparedCorpus(first).valid
    return load_valid(config)


def write_config(config: TrainConfig, path: Path) -> None:
    """Writes a `TrainConfig` as `config.yaml` into the directory `path`, whole or not at all.

    Where it says the same already, nothing is written.
    """
    if os.path.exists(os.path.join(path, CONFIG)) and to_yaml(read_config(path)) == to_yaml(config):
        return
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


def resume_points(path: Path) -> ResumePoints:
    """The points that the training of a run goes on from."""
    return ResumePoints(os.path.join(path, CHECKPOINTS), OWNED)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from training into a run directory.

    Raises:
        ValueError: If one does.
    """
    points = resume_points(path)
    points.lock()
    try:
        yield
    finally:
        points.release()


def read_state(path: Path) -> dict[str, Any] | None:
    """Reads where a training stands, None before its first point.

    Returns:
        Dict with `epoch`, the number of epochs done; `checkpoints`, a list of dicts of `file`,
        `epoch` and `sha256`, in the order of the epochs; and `history`, the scores of each epoch,
        among others.

    Raises:
        ValueError: If the file that says so is damaged, or missing beside checkpoints.
    """
    points, where = resume_points(path).read(), os.path.join(path, CHECKPOINTS, STATE)
    if os.path.exists(os.path.join(path, HISTORY)) and not os.path.exists(where):
        raise ValueError(
            f"{where} is missing, though there is a {HISTORY}: put back a copy of it, or train "
            "anew into another directory."
        )
    return points[-1]["state"]["more"] if points else None


def write_scores(path: Path, scores: dict[str, Any]) -> None:
    """Writes what `model.keras` is: `metrics`, its own, and what else `describe` returns of it."""
    with replacing(os.path.join(path, MODEL_SCORES)) as name:
        with open(name, "w", encoding="utf-8") as file:
            json.dump(scores, file, indent=1)


def rank(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoints of a training, best first; the earlier of equals."""
    history = state["history"]
    return sorted(
        state["checkpoints"], key=lambda one: demerit(state["monitor"], history[one["epoch"] - 1])
    )


def demerit(monitor: str, scores: Mapping[str, float]) -> tuple[bool, float]:
    """What models are ranked by, the best one first: the rule by which one is chosen.

    By `val_loss`; or by a score that grows, such as `val_bleu`. But where that is below 5, by the
    loss, and behind all that have 5 or more: near zero it is noise, and often falls while a young
    model learns.

    Args:
        monitor: `"val_loss"`, `"val_bleu"` or `"val_chrf"`.
        scores: Of the model, by these names.
    """
    is_noise = monitor != "val_loss" and scores[monitor] < LEAST_SCORE
    return is_noise, scores["val_loss"] if is_noise or monitor == "val_loss" else -scores[monitor]


def _read_json(path, name):
    """A JSON file of a run; an empty dict where there is none."""
    name = os.path.join(path, name)
    if not os.path.exists(name):
        return {}
    try:
        with open(name, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        what = reason(error) if isinstance(error, OSError) else "it is not JSON"
        raise ValueError(f"{name} cannot be read ({what}): put back a copy of it.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is damaged: put back a copy of it.")
    return value


def _plain(value):
    """Tuples as lists: YAML knows no others."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
