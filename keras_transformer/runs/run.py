"""`Run`: the directory of a training, with its model, checkpoints, configuration and history."""

import contextlib
import csv
import dataclasses
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.data.pairs import Pair
from keras_transformer.presets import GREEDY, SearchConfig, TrainConfig
from keras_transformer.runs.configuration import MACHINE_FIELDS, from_yaml, to_yaml
from keras_transformer.runs.inspection import inspect_model
from keras_transformer.tokenizers import saved
from keras_transformer.utils import (
    FILES,
    Path,
    check_files,
    check_types,
    counted,
    creating,
    describe_files,
    read_json,
    read_sealed,
    remove_leftovers,
    replacing,
    write_sealed,
)

if TYPE_CHECKING:
    from keras_transformer.runs.checkpoints import Checkpoints
    from keras_transformer.runs.training_data import TrainingData

MODEL, CONFIG = "model.keras", "config.yaml"
MODEL_SCORES = "model.json"  # scores of the model, and checksums: `write_scores`
DATA = "data.json"  # size and fingerprint of the text
CORPUS = "corpus"  # the prepared corpus, if the text is large: `data.prepare`
EXAMPLES = "examples.json"  # pairs for exports
HISTORY, CHECKPOINTS, LOGS = "history.csv", "checkpoints", "logs"
CHECKSUMMED = (MODEL, *saved.NAMES, CONFIG, DATA, EXAMPLES)  # files with checksums in `model.json`
WEIGHTS_PATTERN = r"\d{6}\.weights\.h5"  # names of the weights of an epoch

MAX_EXAMPLES, MAX_EXAMPLES_CHARS = 500, 1 << 20  # pairs, characters in total
MIN_SCORE = 5.0  # BLEU below it is noise: that of an untrained model may be higher

# Fields of `TrainConfig` that name files.
TEXTS = ("train_source", "train_target", "valid_source", "valid_target")
VOCABULARIES = ("source_vocabulary", "target_vocabulary")
VECTORS = ("source_vectors", "target_vectors")

# Columns of every history, and those of trainings that validate by BLEU.
COLUMNS = ("step", "target_tokens", "minutes", "learning_rate", "loss", "val_loss")
SCORES = ("val_bleu", "val_chrf")

# Files of models of other systems.
FOREIGN = ("config.json", "model_description.py", ".npz")

# See `Run.read_history`.
History: TypeAlias = Sequence[Mapping[str, float | None]]


def check_not_foreign(path: Path) -> None:
    """Raises if a path is a model of another system, which `import` makes a run of."""
    name = os.fspath(path)
    names = os.listdir(name) if os.path.isdir(name) else []
    if name.endswith(".zip") or any(x.endswith(FOREIGN) for x in names):
        raise ValueError(
            f"{name} is not a run directory but looks like a model of another system: make a run "
            f"of it by keras-transformer import {name} RUN."
        )


class Run(os.PathLike[str]):
    """The directory of a training; can be used as a path.

    It contains `model.keras` (the best weights), `model.json` (its scores, and the checksums of the
    files needed to translate), `source.spm` or `source.wordpiece` and the target's (the same pieces
    if shared), `config.yaml`, `data.json`, `examples.json` (some pairs of the validation set, for
    exports), `history.csv` (a row per validation), `logs/` (TensorBoard) and `checkpoints/`.
    Loading reads nothing outside the directory, so it can be moved.

    Attributes:
        path: Name of the directory.
        writes: Whether this process writes, as the chief does. If not, `lock`, `create` and
            `update` do nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.writes = True
        self._created = False  # by this object

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path

    def file(self, *names: str) -> str:
        """Returns the path of a file in the run."""
        return os.path.join(self.path, *names)

    def has(self, *names: str) -> bool:
        """Returns whether the run contains a file or directory of this name."""
        return os.path.exists(self.file(*names))

    @property
    def has_model(self) -> bool:
        """Whether the run has a model to translate with."""
        return os.path.isfile(self.file(MODEL)) and bool(saved.paths(self.path))

    # --- opening ---

    def inspect(self) -> dict[str, Any]:
        """Checks that the run is not corrupted and is safe to load; returns its description.

        Files are compared with their checksums. Only classes of this package, Keras' numeric
        classes and classes registered by the calling program are allowed. Neither Keras nor
        TensorFlow is imported.
        """
        if not self.has_model:
            check_not_foreign(self)
            raise ValueError(
                f"{self} is not a run directory with {MODEL} and {saved.NAMES[0]}: give the "
                "--output of a training that has completed an epoch."
            )
        names = [MODEL, *map(os.path.basename, saved.require_paths(self)), CONFIG, DATA]
        check_files(self, self.read_scores(), MODEL_SCORES, filter(self.has, names))
        inspect_model(self.file(MODEL))
        return self.describe()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describes the run for a model card: recipe, data and scores, without paths.

        Returns:
            Dict of `recipe`, `data` and `metrics`, dicts that JSON can represent; empty if nothing
            is known. `mean_of` lists the checkpoints if the model is an average; `worse_mean`
            describes an average that was worse than the best checkpoint.
        """
        if not self.has(CONFIG):
            return {}
        config = self.read_config()
        recipe = _convert_tuples(dataclasses.asdict(config))
        imported = recipe.pop("imported")
        left = () if config.subword_sampling else ("subword_sampling",)
        local = "corpus", "dates", "start_from", "save_every", "log_file", "log_every"
        # The card reads the architecture from the model.
        for field in ("model", *TEXTS, *VOCABULARIES, *VECTORS, *left, *local, *MACHINE_FIELDS):
            del recipe[field]
        scores = {"metrics": {}} | self.read_scores()
        scores.pop(FILES, None)
        if config.is_imported:
            recipe = {}
        origin = {"imported": imported} if imported else {}
        return {**origin, "recipe": recipe, "data": self.read_data()} | scores

    # --- configuration and data ---

    def read_config(self) -> TrainConfig:
        """Reads the configuration."""
        if not os.path.isfile(self.file(CONFIG)):
            check_not_foreign(self)
            raise ValueError(f"{self} is not a run directory: {CONFIG} is missing.")
        # Older versions trained on the built-in dates if there was no text.
        return from_yaml(self.file(CONFIG), {"dates": True})

    def read_search(self) -> SearchConfig:
        """Returns the search by default: that of an imported model, or greedy search."""
        return self.read_config().search if self.has(CONFIG) else GREEDY

    def write_config(self, config: TrainConfig) -> None:
        """Writes the configuration atomically, unless it is unchanged."""
        if self.has(CONFIG) and to_yaml(self.read_config()) == to_yaml(config):
            return
        with replacing(self.file(CONFIG)) as name, open(name, "w", encoding="utf-8") as file:
            file.write(to_yaml(config))
        self._update_checksum(CONFIG)

    def read_data(self) -> dict[str, Any]:
        """Reads the fingerprints of the `train` and `valid` data, and the coverage of embeddings.

        Returns:
            Dict of `train`, `valid` and, with pretrained embeddings, `vectors`; empty if unknown.
        """
        data = read_json(self.file(DATA)) if self.has(DATA) else {}
        check_types(self.file(DATA), data, {"train": dict, "valid": dict, "vectors": dict})
        return data

    def write_data(self, data: dict[str, Any]) -> None:
        """Writes data for `read_data`, in addition to what the file contains."""
        old = self.read_data()
        if old != (data := old | data):
            with replacing(self.file(DATA)) as name, open(name, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
            self._update_checksum(DATA)

    def check_same_text(self, fingerprints: Mapping[str, Any]) -> None:
        """Checks that the text, whose path may change, has the fingerprints in `data.json`."""
        recorded = self.read_data()
        for part, received in fingerprints.items():
            if recorded and received != recorded.get(part):
                before = (recorded.get(part) or {}).get("pairs", "an unknown number")
                raise ValueError(
                    f"The {part} text must be that of {self} to resume it, received other text "
                    f"({counted(received['pairs'], 'pair')}, before {before}): give the same text, "
                    "fine-tune with --start-from, or give --accept-changed-text."
                )

    def write_examples(self, pairs: Iterable[Pair]) -> None:
        """Writes the first pairs of the validation set: at most 500, and 2^20 characters."""
        chosen: list[list[str]] = []
        room = MAX_EXAMPLES_CHARS
        for pair in itertools.islice(pairs, MAX_EXAMPLES):
            room -= len(pair[0]) + len(pair[1])
            if room < 0:
                break
            chosen.append([pair[0], pair[1]])
        with open(self.file(EXAMPLES), "w", encoding="utf-8") as file:
            json.dump({"valid": chosen}, file, ensure_ascii=True, indent=1)  # also lone surrogates

    def read_examples(self) -> list[tuple[str, str]]:
        """Reads the pairs of `write_examples`; an older run has none."""
        if not self.has(EXAMPLES):
            return []
        pairs = read_json(self.file(EXAMPLES)).get("valid")
        if not isinstance(pairs, list) or not all(map(_is_string_pair, pairs)):
            raise ValueError(
                f"{self.file(EXAMPLES)} must contain pairs of strings under the key valid."
            )
        return [(source, target) for source, target in pairs[:MAX_EXAMPLES]]

    # --- the model and its scores ---

    def write_model(self, model: Any, scores: dict[str, Any]) -> None:
        """Writes `model.keras` and its scores: `metrics` and others, see `describe`."""
        # If the process is killed here, the model has no scores rather than wrong ones.
        self._write_scores({})
        with replacing(self.file(MODEL)) as name:
            model.save(name)
        self.write_scores(scores)

    def write_scores(self, scores: dict[str, Any]) -> None:
        """Writes the scores of the model, and the checksums of the files."""
        sums = describe_files(self, filter(self.has, CHECKSUMMED))
        self._write_scores(scores | {FILES: sums})

    def read_scores(self) -> dict[str, Any]:
        """Reads the scores of `write_scores`; empty if there is no model."""
        name = self.file(MODEL_SCORES)
        if not os.path.exists(name):
            return {}
        scores = read_sealed(name)
        check_types(name, scores, {"metrics": dict, "mean_of": dict, "worse_mean": dict})
        return scores

    def _update_checksum(self, name):
        """Updates the checksum of a file that was written after the model."""
        scores = self.read_scores()
        if FILES in scores:
            scores[FILES] |= describe_files(self, [name])
            self._write_scores(scores)

    def _write_scores(self, scores):
        with replacing(self.file(MODEL_SCORES)) as name:
            write_sealed(name, scores)

    # --- checkpoints and history ---

    @property
    def checkpoints(self) -> "Checkpoints":
        """The checkpoints that the training resumes from."""
        # Needs safetensors, which opening a run does not.
        from keras_transformer.runs.checkpoints import Checkpoints

        return Checkpoints(self.file(CHECKPOINTS), WEIGHTS_PATTERN, self.writes)

    def read_state(self) -> dict[str, Any] | None:
        """Reads the state of the training, None before its first checkpoint.

        Returns:
            Dict with, among others, `epoch`, the number of completed epochs; `checkpoints`, the
            kept weights, a list of dicts of `file`, `epoch` and `sha256`, in the order of the
            epochs; and `history`, the scores of each epoch.
        """
        checkpoints = self.checkpoints
        entries = checkpoints.read()
        if self.has(HISTORY) and not os.path.exists(checkpoints.state_file):
            raise ValueError(
                f"{checkpoints.state_file} is missing, although {HISTORY} exists: restore it from "
                "a copy, or train again into another directory."
            )
        return entries[-1]["state"]["additional"] if entries else None

    def read_history(self) -> list[dict[str, float | None]]:
        """Reads the history of the training.

        Returns:
            List of dicts, one for each validation: `step`, `target_tokens` and `minutes`, all since
            the start of the training; `learning_rate`; `loss` and `val_loss` in nats per token;
            and, if the file has them, `val_bleu` and `val_chrf` (0–100). Values are floats, or None
            for an empty cell. Other columns are ignored.
        """
        name = self.file(HISTORY)
        try:
            with open(name, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error):
            raise ValueError(
                f"{self} has no {HISTORY}: give the --output of a training that has completed an "
                "epoch; for an average of checkpoints, that of the run that it was averaged from."
            ) from None
        if not rows:
            raise ValueError(f"{name} has no rows yet: wait for the first validation.")
        missing = [column for column in COLUMNS if column not in rows[0]]
        if missing:
            raise ValueError(
                f"{name} lacks the columns {', '.join(missing)}: restore a copy of it."
            )
        columns = [column for column in COLUMNS + SCORES if column in rows[0]]
        try:
            return [{x: float(row[x]) if row[x] else None for x in columns} for row in rows]
        except ValueError as error:
            raise ValueError(f"{name} is corrupted: {error}.") from None

    def write_history(self, rows: History) -> None:
        """Writes the history atomically; missing values become empty cells."""
        with replacing(self.file(HISTORY)) as name:
            with open(name, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS + SCORES)
                writer.writeheader()
                writer.writerows(rows)

    # --- training into it ---

    @contextlib.contextmanager
    def locked(self, resume: bool = True) -> Iterator[None]:
        """Locks the run while it is resumed; a new run is locked when its directory exists."""
        if not resume:
            yield
            return
        checkpoints = self.checkpoints
        checkpoints.lock()
        try:
            yield
        finally:
            checkpoints.release()

    @property
    def staged_corpus(self) -> str:
        """Path of the corpus that is prepared before the run directory exists."""
        return f"{self.path.rstrip('/')}.corpus"

    def create(self, config: TrainConfig, data: "TrainingData", coverage: dict[str, Any]) -> None:
        """Creates the directory atomically; `coverage` are the `vectors` in `data.json`."""
        if not self.writes:
            return
        with creating(self.path) as temporary:
            new = Run(temporary)
            new.write_data(data.fingerprints | coverage)
            for folder in (LOGS, CHECKPOINTS):
                os.makedirs(new.file(folder))
            new.checkpoints.begin()
            new.write_config(config)
            new.write_examples(data.valid)
            saved.write(temporary, data.tokenizers)
            self._adopt_corpus(data, new)
        self._created = True

    def update(self, config: TrainConfig, data: "TrainingData", coverage: dict[str, Any]) -> None:
        """Writes the changed options and data of a resumed run; see `create`."""
        if not self.writes:
            return
        remove_leftovers(self.path)
        self.write_config(config)
        self.write_data(data.fingerprints | coverage)
        self._adopt_corpus(data, self)

    @contextlib.contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Removes the run if it is new and training fails before the first checkpoint."""
        try:
            yield
        except Exception:
            if self._created and self.read_state() is None and not self.has_model:
                if self.has(CORPUS):  # the next training reuses it
                    os.replace(self.file(CORPUS), self.staged_corpus)
                shutil.rmtree(self.path)
            raise

    def _adopt_corpus(self, data, run):
        """Moves the corpus that was prepared next to this run into `run`, its directory."""
        if any(corpus.path == self.staged_corpus for corpus, _ in data.corpora):
            shutil.rmtree(run.file(CORPUS), ignore_errors=True)
            os.replace(self.staged_corpus, run.file(CORPUS))


def rank(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Sorts the kept weights of a training, best first, the earlier of equals first."""
    history = state["history"]
    return sorted(
        state["checkpoints"],
        key=lambda one: ranking_key(state["monitor"], history[one["epoch"] - 1]),
    )


def ranking_key(monitor: str, scores: Mapping[str, float]) -> tuple[bool, float]:
    """Returns the key that sorts models, best first.

    Models are ranked by `val_loss`, or by a score such as `val_bleu`. Models with a score below 5
    come last and are ranked by the loss: near zero, the score is noise.
    """
    is_noise = monitor != "val_loss" and scores[monitor] < MIN_SCORE
    value = scores["val_loss"] if is_noise or monitor == "val_loss" else -scores[monitor]
    return is_noise, math.inf if math.isnan(value) else value


def _is_string_pair(value):
    return isinstance(value, list) and [type(item) for item in value] == [str, str]


def _convert_tuples(value):
    """Converts tuples to lists, as YAML has no tuples."""
    if isinstance(value, dict):
        return {name: _convert_tuples(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
