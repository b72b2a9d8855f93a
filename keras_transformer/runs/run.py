"""`Run`: the directory of a training, with everything needed to translate, resume and look back."""

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
from keras_transformer.runs.configuration import MACHINE, from_yaml, to_yaml
from keras_transformer.tokenizers import saved
from keras_transformer.utils import Path, counted, creating, remove_leftovers, replacing

MODEL, CONFIG = "model.keras", "config.yaml"
MODEL_SCORES = "model.json"  # of the model itself: `write_scores`
DATA = "data.json"  # how much text was trained on, and its fingerprint
CORPUS = "corpus"  # its text as ids, where that is large: `data.prepared`
EXAMPLES = "examples.json"  # pairs that an export shows and compares
HISTORY, CHECKPOINTS, LOGS = "history.csv", "checkpoints", "logs"
SEALED = (MODEL, *saved.NAMES, CONFIG, DATA, EXAMPLES)  # by checksums in `model.json`
WEIGHTS = r"\d{6}\.weights\.h5"  # names of the weights of an epoch, among the checkpoints

MAX_EXAMPLES, MAX_EXAMPLES_BYTES = 500, 1 << 20  # pairs, and characters of all together
MIN_SCORE = 5.0  # below it, BLEU is noise: an untrained model may have more than a trained one

# Fields of `TrainConfig` that name files.
TEXTS = ("train_source", "train_target", "valid_source", "valid_target")
VOCABULARIES = ("source_vocabulary", "target_vocabulary")
VECTORS = ("source_vectors", "target_vectors")

# Columns of every history, and those of trainings that translated at validations.
COLUMNS = ("step", "target_tokens", "minutes", "learning_rate", "loss", "val_loss")
SCORES = ("val_bleu", "val_chrf")

# As `Run.read_history` returns it.
History: TypeAlias = Sequence[Mapping[str, float | None]]


class Run(os.PathLike[str]):
    """The directory of a training; a path that knows what is in it.

    `model.keras` (the best weights) and `model.json` (its scores, and the checksums of all files
    that translating needs), `source.spm` or `source.wordpiece` and the target's (equal when
    shared), `config.yaml`, `data.json`, `examples.json` (some pairs of the validation set, for an
    export), `history.csv` (a row per validation), `logs/` (TensorBoard) and `checkpoints/`. Nothing
    in it names another place on the machine that loading would need, so it can be moved; and
    loading reads nothing outside it.

    Args:
        path: Name of the directory.

    Attributes:
        writes: Whether this process is the one of several workers that writes. If not, `lock`,
            `create` and `update` do nothing.
        checked: What `check_training` has checked for this run.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.writes = True
        self.checked: Any = None
        self._created = False  # by this object
        self._description: dict[str, Any] | None = None

    @classmethod
    def of(cls, path: Path) -> "Run":
        """The run at a path. A `Run` is returned as it is, with what it has inspected already."""
        return path if isinstance(path, Run) else cls(path)

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path

    def file(self, *names: str) -> str:
        """The path of a file in the run."""
        return os.path.join(self.path, *names)

    def has(self, name: str) -> bool:
        """Whether there is a file or directory of this name in the run."""
        return os.path.exists(self.file(name))

    @property
    def has_model(self) -> bool:
        """Whether the run has a model to translate with."""
        return os.path.isfile(self.file(MODEL)) and bool(saved.paths(self.path))

    # --- opening ---

    def inspect(self) -> dict[str, Any]:
        """Refuses a run that is damaged, or made to do more than to translate.

        Its files are compared with their checksums; native code first reads them in a process of
        its own; and only this package's classes, Keras' numbers and the classes that the calling
        program has registered may be named in it. Neither Keras nor TensorFlow is imported. A run
        is inspected once: afterwards, the same object returns the same description.

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
            raise ValueError(
                f"{self} is no run directory (no {MODEL} and {saved.NAMES[0]} in it): give the "
                "--output of a training that has finished an epoch."
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
                        f"{vocabulary} has {side['pieces']:,} pieces, its model {size:,} ids: it "
                        "is another model's."
                    )
        return description

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describes the run for a model card: recipe, data and scores, no places on this machine.

        Returns:
            Dict of `recipe`, `data` and `metrics`, dicts that JSON can hold; empty where nothing is
            known. Of an average, also `mean_of`: its members; and where an average was worse than
            the best checkpoint, which then is the model, `worse_mean`.

        Raises:
            ValueError: If one of the files is damaged.
        """
        if not self.has(CONFIG):
            return {}
        recipe = _plain(dataclasses.asdict(self.read_config()))
        here = "corpus", "dates", "start_from", "save_every", "log_file", "log_every"
        # The card has the sizes of the model from the model itself.
        for field in ("model", *TEXTS, *VOCABULARIES, *VECTORS, *here, *MACHINE):
            del recipe[field]
        scores = {"metrics": {}} | self.read_scores()
        scores.pop(files.FILES, None)
        return {"recipe": recipe, "data": self.read_data()} | scores

    # --- configuration and data ---

    def read_config(self) -> TrainConfig:
        """Reads the configuration.

        Raises:
            ValueError: If there is none, or one that this version does not understand.
        """
        if not os.path.isfile(self.file(CONFIG)):
            raise ValueError(f"{self} is no run directory: there is no {CONFIG} in it.")
        # Earlier versions trained on the built-in dates where there was no text.
        return from_yaml(self.file(CONFIG), {"dates": True})

    def write_config(self, config: TrainConfig) -> None:
        """Writes the configuration, whole or not at all, unless it is there already."""
        if self.has(CONFIG) and to_yaml(self.read_config()) == to_yaml(config):
            return
        with replacing(self.file(CONFIG)) as name, open(name, "w", encoding="utf-8") as file:
            file.write(to_yaml(config))
        self._seal_anew(CONFIG)

    def read_data(self) -> dict[str, Any]:
        """Reads the fingerprints of the `train` and `valid` data, and the coverage of word vectors.

        Returns:
            Dict of `train`, `valid` and, where the training started with word vectors, `vectors`;
            empty if unknown.

        Raises:
            ValueError: If the file is damaged.
        """
        data = files.read_json(self.file(DATA)) if self.has(DATA) else {}
        files.check_types(self.file(DATA), data, {"train": dict, "valid": dict, "vectors": dict})
        return data

    def write_data(self, data: dict[str, Any]) -> None:
        """Writes what `read_data` reads; what is there already stays unless it is replaced."""
        old = self.read_data()
        if old != (data := old | data):
            with replacing(self.file(DATA)) as name, open(name, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
            self._seal_anew(DATA)

    def check_same_text(self, fingerprints: Mapping[str, Any]) -> None:
        """Refuses to resume on other text than the run was trained on, wherever it lies now.

        Args:
            fingerprints: Of the text now, by the names of `read_data`.

        Raises:
            ValueError: If they differ from those in `data.json`, or that is damaged.
        """
        recorded = self.read_data()
        for part, received in fingerprints.items():
            if recorded and received != recorded.get(part):
                then = (recorded.get(part) or {}).get("pairs", "an unknown number")
                raise ValueError(
                    f"The {part} text is not what {self} was begun with "
                    f"({counted(received['pairs'], 'pair')}, then {then}): resume it with the same "
                    "text, wherever that lies, fine-tune it by --start-from, or go on all the same "
                    "by --accept-changed-text."
                )

    def write_examples(self, pairs: Iterable[Pair]) -> None:
        """Writes the first pairs of the validation set: at most 500, and a megabyte."""
        chosen: list[list[str]] = []
        room = MAX_EXAMPLES_BYTES
        for pair in itertools.islice(pairs, MAX_EXAMPLES):
            room -= len(pair[0]) + len(pair[1])
            if room < 0:
                break
            chosen.append([pair[0], pair[1]])
        with open(self.file(EXAMPLES), "w", encoding="utf-8") as file:
            json.dump({"valid": chosen}, file, ensure_ascii=True, indent=1)  # also lone surrogates

    def read_examples(self) -> list[tuple[str, str]]:
        """Reads the pairs that `write_examples` has written; an older run has none.

        Raises:
            ValueError: If the file is damaged.
        """
        if not self.has(EXAMPLES):
            return []
        pairs = files.read_json(self.file(EXAMPLES)).get("valid")
        if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
            raise ValueError(
                f"{self.file(EXAMPLES)} must hold pairs of sentences by the name valid."
            )
        return [(source, target) for source, target in pairs[:MAX_EXAMPLES]]

    # --- the model and its scores ---

    def write_model(self, model: Any, scores: dict[str, Any]) -> None:
        """Writes `model.keras`, and beside it its scores.

        Args:
            model: `Transformer`.
            scores: `metrics`, and what else `describe` returns of the model.
        """
        # Never the scores of another model, whenever the process is killed: rather none.
        self._write_scores({})
        with replacing(self.file(MODEL)) as name:
            model.save(name)
        self.write_scores(scores)

    def write_scores(self, scores: dict[str, Any]) -> None:
        """Writes the scores of the model that is there, and the checksums of the run's files."""
        sums = files.describe_files(self, filter(self.has, SEALED))
        self._write_scores(scores | {files.FILES: sums})

    def read_scores(self) -> dict[str, Any]:
        """Reads what `write_scores` has written; empty where there is no model.

        Raises:
            ValueError: If it is damaged.
        """
        name = self.file(MODEL_SCORES)
        if not os.path.exists(name):
            return {}
        scores = files.read_sealed(name)
        files.check_types(name, scores, {"metrics": dict, "mean_of": dict, "worse_mean": dict})
        return scores

    def _seal_anew(self, name):
        """Corrects the checksum of a file that has changed since the model was saved."""
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
        return Checkpoints(self.file(CHECKPOINTS), WEIGHTS, self.writes)

    def read_state(self) -> dict[str, Any] | None:
        """Reads how far the training is, None before its first checkpoint.

        Returns:
            Dict with `epoch`, the number of epochs done; `checkpoints`, the weights that are kept,
            a list of dicts of `file`, `epoch` and `sha256`, in the order of the epochs; and
            `history`, the scores of each epoch, among others.

        Raises:
            ValueError: If the file is damaged, or missing beside checkpoints.
        """
        saved_states = self.checkpoints.read()
        if self.has(HISTORY) and not self.has(os.path.join(CHECKPOINTS, STATE)):
            raise ValueError(
                f"{self.file(CHECKPOINTS, STATE)} is missing, though there is a {HISTORY}: put "
                "back a copy of it, or train anew into another directory."
            )
        return saved_states[-1]["state"]["more"] if saved_states else None

    def read_history(self) -> list[dict[str, float | None]]:
        """Reads the history of the training.

        Returns:
            List of dicts, one for each validation: `step`, `target_tokens` and `minutes`, all since
            the start of the training; `learning_rate`; `loss` and `val_loss` in nats per token;
            and, where the file has them, `val_bleu` and `val_chrf` (0–100). Floats, or None where a
            cell is empty. Other columns are left out.

        Raises:
            ValueError: If there is no history, it is empty, a column is missing, or a cell is not a
                number.
        """
        name = self.file(HISTORY)
        try:
            with open(name, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error):
            if self.has_model and not os.path.exists(name):
                raise ValueError(
                    f"{self} has no {HISTORY}, for a mean of checkpoints was not trained itself: "
                    "name the run that it was averaged from."
                ) from None
            raise ValueError(
                f"{self} has no {HISTORY} to read: give the --output of a training that has "
                "validated."
            ) from None
        if not rows:
            raise ValueError(f"{name} holds no validation yet: wait for the first one.")
        missing = [column for column in COLUMNS if column not in rows[0]]
        if missing:
            raise ValueError(
                f"{name} has no column {', '.join(missing)}: its first line should name "
                f"{', '.join(COLUMNS)}."
            )
        columns = [column for column in COLUMNS + SCORES if column in rows[0]]
        try:
            return [{x: float(row[x]) if row[x] else None for x in columns} for row in rows]
        except ValueError as error:
            raise ValueError(f"{name} is damaged: {error}.") from None

    def write_history(self, rows: History) -> None:
        """Writes the history, whole or not at all; what is missing in a row is an empty cell."""
        with replacing(self.file(HISTORY)) as name:
            with open(name, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS + SCORES)
                writer.writeheader()
                writer.writerows(rows)

    # --- training into it ---

    @contextlib.contextmanager
    def locked(self, resume: bool = True) -> Iterator[None]:
        """Keeps other processes from training into the run while it is resumed.

        A new run is locked by its first checkpoint, once the directory is there.

        Raises:
            ValueError: If another process trains into it.
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
        """Where text is prepared for a run that does not exist yet: beside its directory."""
        return f"{self.path.rstrip('/')}.corpus"

    def create(self, config: TrainConfig, data: Any, coverage: dict[str, Any]) -> None:
        """Makes the directory, whole or not at all.

        Args:
            config: The configuration.
            data: The data to train on, `TrainingData`.
            coverage: Of the word vectors: `vectors` in `data.json`.
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
        """Records what a resumed run is trained with from now on; arguments as in `create`."""
        if not self.writes:
            return
        remove_leftovers(self.path)
        self.write_config(config)
        self.write_data(data.fingerprints | coverage)
        self._adopt_corpus(data, self)

    @contextlib.contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Removes a run that was created here if training fails before its first checkpoint."""
        try:
            yield
        except Exception:
            if self._created and self.read_state() is None and not self.has_model:
                if self.has(CORPUS):  # the next start finds what has been prepared
                    os.replace(self.file(CORPUS), self.staged_corpus)
                shutil.rmtree(self.path)
            raise

    def _adopt_corpus(self, data, run):
        """Moves text that was prepared beside this run into `run`, which is or will be it."""
        if any(corpus.path == self.staged_corpus for corpus, _ in data.source.get("corpus", ())):
            shutil.rmtree(run.file(CORPUS), ignore_errors=True)
            os.replace(self.staged_corpus, run.file(CORPUS))


def rank(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The kept weights of a training, best first; the earlier of equals."""
    history = state["history"]
    return sorted(
        state["checkpoints"],
        key=lambda one: ranking_key(state["monitor"], history[one["epoch"] - 1]),
    )


def ranking_key(monitor: str, scores: Mapping[str, float]) -> tuple[bool, float]:
    """The key by which models are ranked, best first, and one is chosen.

    `val_loss`; or a score that grows, such as `val_bleu`. But where that is below 5, the loss, and
    behind all that have 5 or more: near zero it is noise, and often falls while a young model
    learns.

    Args:
        monitor: `"val_loss"`, `"val_bleu"` or `"val_chrf"`.
        scores: Of the model, by these names.
    """
    is_noise = monitor != "val_loss" and scores[monitor] < MIN_SCORE
    value = scores["val_loss"] if is_noise or monitor == "val_loss" else -scores[monitor]
    return is_noise, math.inf if math.isnan(value) else value


def _is_pair(value):
    return isinstance(value, list) and [type(item) for item in value] == [str, str]


def _plain(value):
    """Tuples as lists: YAML has no tuples."""
    if isinstance(value, dict):
        return {name: _plain(v) for name, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
