"""The files of a training's directory: everything needed to translate, to resume and to look back.

`model.keras` (the best weights) and `model.json` (what these are, how good, and the checksums of
all that translating needs), `source.spm` or `source.wordpiece` and the target's (equal when
shared), `config.yaml`, `data.json`, `examples.json` (some pairs that it was validated by, for an
export), `history.csv` (a row per validation), `logs/` (TensorBoard) and `checkpoints/`. Nothing in
it names another place on the machine that loading would need, so it can be moved; and loading reads
nothing outside it.
"""

import contextlib
import dataclasses
import glob
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.atomic_files import replacing
from keras_transformer.data.pairs import Pair
from keras_transformer.inspection import checksums
from keras_transformer.inspection.bounded_files import check_types, read_json
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.configuration import MACHINE, from_yaml, to_yaml
from keras_transformer.runs.resume_points import STATE, ResumePoints
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path

MODEL, CONFIG = "model.keras", "config.yaml"
MODEL_SCORES = "model.json"  # of the model itself: `write_scores`
DATA = "data.json"  # how much text was trained on, and its fingerprint
CORPUS = "corpus"  # its text as ids, where that is large: `data.prepared`
EXAMPLES = "examples.json"  # pairs that an export shows and compares
MOST_EXAMPLES, LONGEST_EXAMPLES = 500, 1 << 20  # of them, and characters of all together
SEALED = (MODEL, *saved.NAMES, CONFIG, DATA, EXAMPLES)  # by checksums in `model.json`
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

    Raises:
        ValueError: If one of the files is damaged.
    """
    if not os.path.exists(os.path.join(path, CONFIG)):
        return {}
    recipe = _plain(dataclasses.asdict(read_config(path)))
    del recipe["model"]  # the card has it from the model itself
    here = "corpus", "dates", "start_from", "save_every", "log_file", "log_every"
    for field in (*TEXTS, *VOCABULARIES, *VECTORS, *here, *MACHINE):
        del recipe[field]
    scores = {"metrics": {}} | read_scores(path)
    scores.pop(checksums.FILES, None)
    return {"recipe": recipe, "data": read_data(path)} | scores


def read_data(path: Path) -> dict[str, Any]:
    """Reads the fingerprints of `train` and `valid` that a run was begun with; empty if unknown.

    And what its word `vectors` covered, where it began with some (`begin_with_vectors`).

    Raises:
        ValueError: If the file is damaged.
    """
    name = os.path.join(path, DATA)
    data = read_json(name) if os.path.exists(name) else {}
    check_types(name, data, {"train": dict, "valid": dict, "vectors": dict})
    return data


def write_data(data: dict[str, Any], path: Path) -> None:
    """Writes what `read_data` reads, beside what is there already."""
    old = read_data(path)
    data = old | data
    if old != data:
        with replacing(os.path.join(path, DATA)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
        _seal_anew(path, DATA)


def read_scores(path: Path) -> dict[str, Any]:
    """Reads what `write_scores` has written; empty where there is no model.

    Raises:
        ValueError: If it is damaged.
    """
    name = os.path.join(path, MODEL_SCORES)
    if not os.path.exists(name):
        return {}
    scores = checksums.read_sealed(name)
    check_types(name, scores, {"metrics": dict, "mean_of": dict, "worse_mean": dict})
    return scores


def write_examples(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes the first of the pairs that a run is validated by: at most 500, and a megabyte."""
    chosen: list[list[str]] = []
    room = LONGEST_EXAMPLES
    for pair in itertools.islice(pairs, MOST_EXAMPLES):
        room -= len(pair[0]) + len(pair[1])
        if room < 0:
            break
        chosen.append([pair[0], pair[1]])
    with open(os.path.join(path, EXAMPLES), "w", encoding="utf-8") as file:
        json.dump({"valid": chosen}, file, ensure_ascii=True, indent=1)  # also a lone surrogate


def read_examples(path: Path) -> list[tuple[str, str]]:
    """Reads the pairs that `write_examples` has written; none where an older run has none.

    Raises:
        ValueError: If the file is damaged.
    """
    name = os.path.join(path, EXAMPLES)
    if not os.path.exists(name):
        return []
    pairs = read_json(name).get("valid")
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise ValueError(f"{name} must hold pairs of sentences by the name valid.")
    return [(source, target) for source, target in pairs[:MOST_EXAMPLES]]


def valid_pairs(path: Path) -> Sequence[Pair]:
    """Reads the pairs that a run was validated by, from where its configuration says.

    Raises:
        ValueError: If the files are not where they were, or hold something else: by the
            fingerprint in the run, without which they are not read.
    """
    from keras_transformer.data.corpora import load_valid
    from keras_transformer.data.pairs import fingerprint
    from keras_transformer.data.prepared.prepared_corpus import PreparedCorpus
    from keras_transformer.runs.prepared import parse_corpora

    config, known = read_config(path), read_data(path).get("valid")
    if known is None:
        raise ValueError(f"{path} does not say what it was validated by.")
    kept = os.path.join(path, CORPUS)
    if config.valid_source is None and (config.corpus or os.path.isdir(kept)):
        first = parse_corpora(config.corpus)[0][0] if config.corpus else kept
        pairs = PreparedCorpus(first).valid
    else:
        for name in filter(None, (getattr(config, text) for text in TEXTS)):
            if not (os.path.exists(name) or glob.glob(name)):
                raise ValueError(f"{name} cannot be read (it is no file): check the path.")
        pairs = load_valid(config)
    if fingerprint(pairs) != known:
        raise ValueError(f"what {path} was validated by has changed.")
    return pairs


def write_config(config: TrainConfig, path: Path) -> None:
    """Writes a `TrainConfig` as `config.yaml` into the directory `path`, whole or not at all.

    Where it says the same already, nothing is written.
    """
    if os.path.exists(os.path.join(path, CONFIG)) and to_yaml(read_config(path)) == to_yaml(config):
        return
    with replacing(os.path.join(path, CONFIG)) as name:
        with open(name, "w", encoding="utf-8") as file:
            file.write(to_yaml(config))
    _seal_anew(path, CONFIG)


def read_config(path: Path) -> TrainConfig:
    """Reads the `TrainConfig` of a run directory.

    Raises:
        ValueError: If there is none, or one that this version does not understand.
    """
    name = os.path.join(path, CONFIG)
    if not os.path.isfile(name):
        raise ValueError(f"{path} is no run directory: there is no {CONFIG} in it.")
    return from_yaml(name, {"dates": True})  # earlier versions took them where there was no text


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


def write_scores(path: Path, scores: dict[str, Any], finished: bool = True) -> None:
    """Writes what `model.keras` is: `metrics`, its own, and what else `describe` returns of it.

    Args:
        path: The run directory.
        scores: What is written.
        finished: Whether the model is in its place: then the checksums are written too, of it and
            of what else translating and exporting need.
    """
    if finished:
        names = [name for name in SEALED if os.path.exists(os.path.join(path, name))]
        scores = scores | {checksums.FILES: checksums.describe_files(path, names)}
    _write_scores(path, scores)


def _seal_anew(path, name):
    """Puts the checksum right of a file that is another now than when the model was saved."""
    scores = read_scores(path)
    if checksums.FILES in scores:
        scores[checksums.FILES] |= checksums.describe_files(path, [name])
        _write_scores(path, scores)


def _write_scores(path, scores):
    with replacing(os.path.join(path, MODEL_SCORES)) as name:
        checksums.write_sealed(name, scores)


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
    value = scores["val_loss"] if is_noise or monitor == "val_loss" else -scores[monitor]
    return is_noise, math.inf if math.isnan(value) else value


def _is_pair(value):
    return isinstance(value, list) and [type(item) for item in value] == [str, str]


def _plain(value):
    """Tuples as lists: YAML knows no others."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
