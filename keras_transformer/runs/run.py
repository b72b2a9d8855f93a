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
from typing import Any, TypeAlias

from keras_transformer.data.pairs import Pair
from keras_transformer.inspection import files
from keras_transformer.inspection.model_config import MODEL as TRANSFORMER
from keras_transformer.inspection.model_config import check_weights, read_model_config
from keras_transformer.inspection.probing import Probe
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.checkpoints import STATE, Checkpoints
from keras_transformer.runs.configuration import MACHINE_FIELDS, from_yaml, to_yaml
from keras_transformer.tokenizers import saved
from keras_transformer.utils import Path, counted, creating, remove_leftovers, replacing

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

    Args:
        path: Name of the directory.

    Attributes:
        writes: Whether this process writes, as the chief does. If not, `lock`, `create` and
            `update` do nothing.
        checked: Arguments of the last successful `check_training`.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.writes = True
        self.checked: Any = None
        self._created = False  # by this object
        self._description: dict[str, Any] | None = None

    @classmethod
    def from_path(cls, path: Path) -> "Run":
        """Returns the run at a path. A `Run` is returned unchanged, with its inspection."""
        return path if isinstance(path, Run) else cls(path)

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path

    def file(self, *names: str) -> str:
        """Returns the path of a file in the run."""
        return os.path.join(self.path, *names)

    def has(self, name: str) -> bool:
        """Returns whether the run contains a file or directory of this name."""
        return os.path.exists(self.file(name))

    @property
    def has_model(self) -> bool:
        """Whether the run has a model to translate with."""
        return os.path.isfile(self.file(MODEL)) and bool(saved.paths(self.path))

    # --- opening ---

    def inspect(self) -> dict[str, Any]:
        """Checks that the run is not corrupted and is safe to load.

        Files are compared with their checksums, and parsed by native code in a separate process
        first. Only classes of this package, Keras' numeric classes and classes registered by the
        calling program are allowed. Neither Keras nor TensorFlow is imported. The result is cached.

        Returns:
            See `describe`.

        Raises:
            ValueError: If it is not a run directory, or cannot be loaded safely.
        """
        if self._description is None:
            self._description = self._inspect()
        return self._description

    def _inspect(self):
        if not self.has_model:
            check_not_foreign(self)
            raise ValueError(
                f"{self} is not a run directory with {MODEL} and {saved.NAMES[0]}: give the "
                "--output of a training that has completed an epoch."
            )
        names = [MODEL, *map(os.path.basename, saved.paths(self)), CONFIG, DATA]
        files.check_files(self, self.read_scores(), MODEL_SCORES, filter(self.has, names))
        description = self.describe()
        model, vocabularies = self.file(MODEL), saved.require_paths(self)
        answer, *sides = Probe([model, *vocabularies]).answers()
        config = read_model_config(model, answer["config"])
        check_weights(model, config, answer["weights"])
        if config["registered_name"] == TRANSFORMER:
            for name, side, vocabulary in zip(saved.SIDES, sides, vocabularies, strict=True):
                size = config["config"][f"{name}_vocabulary_size"]
                if side["pieces"] != size:
                    raise ValueError(
                        f"{vocabulary} must have {size:,} pieces, as {model} does, received "
                        f"{side['pieces']:,}: it belongs to another model."
                    )
        return description

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describes the run for a model card: recipe, data and scores, without paths.

        Returns:
            Dict of `recipe`, `data` and `metrics`, dicts that JSON can represent; empty if nothing
            is known. `mean_of` lists the checkpoints if the model is an average; `worse_mean`
            describes an average that was worse than the best checkpoint.

        Raises:
            ValueError: If a file is corrupted.
        """
        if not self.has(CONFIG):
            return {}
        config = self.read_config()
        recipe = _convert_tuples(dataclasses.asdict(config))
        imported = recipe.pop("imported")
        if not recipe["subword_sampling"]:
            del recipe["subword_sampling"]
        local = "corpus", "dates", "start_from", "save_every", "log_file", "log_every"
        # The card reads the architecture from the model.
        for field in ("model", *TEXTS, *VOCABULARIES, *VECTORS, *local, *MACHINE_FIELDS):
            del recipe[field]
        scores = {"metrics": {}} | self.read_scores()
        scores.pop(files.FILES, None)
        if config.is_imported:
            recipe = {}
        origin = {"imported": imported} if imported else {}
        return {**origin, "recipe": recipe, "data": self.read_data()} | scores

    # --- configuration and data ---

    def read_config(self) -> TrainConfig:
        """Reads the configuration.

        Raises:
            ValueError: If it is missing, or this version cannot read it.
        """
        if not os.path.isfile(self.file(CONFIG)):
            check_not_foreign(self)
            raise ValueError(f"{self} is not a run directory: {CONFIG} is missing.")
        # Older versions trained on the built-in dates if there was no text.
        return from_yaml(self.file(CONFIG), {"dates": True})

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

        Raises:
            ValueError: If the file is corrupted.
        """
        data = files.read_json(self.file(DATA)) if self.has(DATA) else {}
        files.check_types(self.file(DATA), data, {"train": dict, "valid": dict, "vectors": dict})
        return data

    def write_data(self, data: dict[str, Any]) -> None:
        """Writes data for `read_data`, in addition to what the file contains."""
        old = self.read_data()
        if old != (data := old | data):
            with replacing(self.file(DATA)) as name, open(name, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
            self._update_checksum(DATA)

    def check_same_text(self, fingerprints: Mapping[str, Any]) -> None:
        """Checks that the text has not changed; its path may have.

        Args:
            fingerprints: Fingerprints of the text now, with the names of `read_data`.

        Raises:
            ValueError: If they differ from those in `data.json`, or that is corrupted.
        """
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
        """Reads the pairs of `write_examples`; an older run has none.

        Raises:
            ValueError: If the file is corrupted.
        """
        if not self.has(EXAMPLES):
            return []
        pairs = files.read_json(self.file(EXAMPLES)).get("valid")
        if not isinstance(pairs, list) or not all(map(_is_string_pair, pairs)):
            raise ValueError(
                f"{self.file(EXAMPLES)} must contain pairs of strings under the key valid."
            )
        return [(source, target) for source, target in pairs[:MAX_EXAMPLES]]

    # --- the model and its scores ---

    def write_model(self, model: Any, scores: dict[str, Any]) -> None:
        """Writes `model.keras` and its scores.

        Args:
            model: `Transformer`.
            scores: `metrics`, and `mean_of` or `worse_mean`: see `describe`.
        """
        # If the process is killed here, the model has no scores rather than wrong ones.
        self._write_scores({})
        with replacing(self.file(MODEL)) as name:
            model.save(name)
        self.write_scores(scores)

    def write_scores(self, scores: dict[str, Any]) -> None:
        """Writes the scores of the model, and the checksums of the files."""
        sums = files.describe_files(self, filter(self.has, CHECKSUMMED))
        self._write_scores(scores | {files.FILES: sums})

    def read_scores(self) -> dict[str, Any]:
        """Reads the scores of `write_scores`; empty if there is no model.

        Raises:
            ValueError: If the file is corrupted.
        """
        name = self.file(MODEL_SCORES)
        if not os.path.exists(name):
            return {}
        scores = files.read_sealed(name)
        files.check_types(name, scores, {"metrics": dict, "mean_of": dict, "worse_mean": dict})
        return scores

    def _update_checksum(self, name):
        """Updates the checksum of a file that was written after the model."""
        scores = self.read_scores()
        if files.FILES in scores:
            scores[files.FILES] |= files.describe_files(self, [name])
            self._write_scores(scores)

    def _write_scores(self, scores):
        self._description = None
        with replacing(self.file(MODEL_SCORES)) as name:
            files.write_sealed(name, scores)

    # --- checkpoints and history ---

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints that the training resumes from."""
        return Checkpoints(self.file(CHECKPOINTS), WEIGHTS_PATTERN, self.writes)

    def read_state(self) -> dict[str, Any] | None:
        """Reads the state of the training, None before its first checkpoint.

        Returns:
            Dict with, among others, `epoch`, the number of completed epochs; `checkpoints`, the
            kept weights, a list of dicts of `file`, `epoch` and `sha256`, in the order of the
            epochs; and `history`, the scores of each epoch.

        Raises:
            ValueError: If the file is corrupted, or missing although there are checkpoints.
        """
        entries = self.checkpoints.read()
        if self.has(HISTORY) and not self.has(os.path.join(CHECKPOINTS, STATE)):
            raise ValueError(
                f"{self.file(CHECKPOINTS, STATE)} is missing, although {HISTORY} exists: restore "
                "it from a copy, or train again into another directory."
            )
        return entries[-1]["state"]["more"] if entries else None

    def read_history(self) -> list[dict[str, float | None]]:
        """Reads the history of the training.

        Returns:
            List of dicts, one for each validation: `step`, `target_tokens` and `minutes`, all since
            the start of the training; `learning_rate`; `loss` and `val_loss` in nats per token;
            and, if the file has them, `val_bleu` and `val_chrf` (0–100). Values are floats, or None
            for an empty cell. Other columns are ignored.

        Raises:
            ValueError: If the file is missing or empty, a column is missing, or a cell is not a
                number.
        """
        name = self.file(HISTORY)
        try:
            with open(name, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error):
            if self.has_model and not os.path.exists(name):
                raise ValueError(
                    f"{self} has no {HISTORY}, as an average of checkpoints has none: give the "
                    "run that it was averaged from."
                ) from None
            raise ValueError(
                f"{self} has no {HISTORY}: give the --output of a training that has completed an "
                "epoch."
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
        """Locks the run against other processes while it is resumed.

        A new run is locked later, when its directory exists.

        Raises:
            ValueError: If another process holds the lock.
        """
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

    def create(self, config: TrainConfig, data: Any, coverage: dict[str, Any]) -> None:
        """Creates the directory atomically.

        Args:
            config: `TrainConfig`.
            data: `TrainingData`.
            coverage: Coverage of pretrained embeddings: `vectors` in `data.json`.
        """
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

    def update(self, config: TrainConfig, data: Any, coverage: dict[str, Any]) -> None:
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
        if any(corpus.path == self.staged_corpus for corpus, _ in data.source.get("corpus", ())):
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

    Args:
        monitor: `"val_loss"`, `"val_bleu"` or `"val_chrf"`.
        scores: Scores of the model, with these names.
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
