"""`Run`: the directory of a training, with its model, checkpoints, configuration and history.

A configuration is a YAML file with comments, which `to_yaml` writes and `from_yaml` reads.
"""

import contextlib
import csv
import dataclasses
import itertools
import json
import logging
import math
import os
import re
import shutil
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from keras_transformer.presets import GREEDY, ModelConfig, SearchConfig, TrainConfig, change
from keras_transformer.presets.options import FORMAT, Imported, check_format
from keras_transformer.tokenizers import saved
from keras_transformer.utils import (
    FILES,
    Path,
    counted,
    creating,
    describe_corruption,
    describe_files,
    read_bytes,
    read_json,
    read_sealed,
    remove_leftovers,
    replacing,
    write_sealed,
)

if TYPE_CHECKING:
    from keras_transformer.data.pairs import Pair
    from keras_transformer.runs.checkpoints import Checkpoints
    from keras_transformer.runs.training_data import TrainingData

MODEL, CONFIG = "model.keras", "config.yaml"
MODEL_SCORES = "model.json"  # scores of the model, and checksums: `write_scores`
DATA = "data.json"  # size and fingerprint of the text
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

RENAMED = {"peak": "learning_rate"}  # old names of fields, in files of this format
# Removed fields, and what files say by default.
REMOVED: dict[str, Any] = {"average": "none", "freeze_vectors": False, "log_file": None}
TABLES: dict[str, Any] = {"model": ModelConfig, "imported": Imported}  # fields with fields
MACHINE_FIELDS = ("parallel_microbatches",)  # depend on the machine: not written to files
MAX_CONFIG_BYTES = 1 << 16  # size limit of a file; `to_yaml` writes about 4,000 bytes

logger = logging.getLogger(__name__)

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
        writes: Whether this process writes, as the chief does. If not, `created` and `update` do
            nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.writes = True

    def __fspath__(self) -> str:
        return self.path

    __str__ = __fspath__

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

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describes the run for a model card: `recipe`, `data` and `metrics`, without paths.

        `mean_of` lists the checkpoints if the model is an average.
        """
        if not self.has(CONFIG):
            return {}
        config = self.read_config()
        recipe = json.loads(json.dumps(dataclasses.asdict(config)))  # without tuples
        imported = recipe.pop("imported")
        left = () if config.subword_sampling else ("subword_sampling",)
        local = "corpus", "dates", "start_from", "save_every", "log_every"
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
        return from_yaml(self.file(CONFIG), dates=True)

    def read_search(self) -> SearchConfig:
        """Returns the search by default: that of an imported model, or greedy search."""
        return self.read_config().search if self.has(CONFIG) else GREEDY

    def write_config(self, config: TrainConfig) -> None:
        """Writes the configuration."""
        self._write(CONFIG, to_yaml(config))

    def read_data(self) -> dict[str, Any]:
        """Reads the fingerprints `train` and `valid` of the text."""
        return read_json(self.file(DATA)) if self.has(DATA) else {}

    def write_data(self, data: dict[str, Any]) -> None:
        """Writes data for `read_data`, in addition to what the file contains."""
        self._write(DATA, json.dumps(self.read_data() | data, indent=1))

    def _write(self, name, text):
        """Writes a file atomically, and its checksum if the model has been written before."""
        with (
            replacing(self.file(name)) as temporary,
            open(temporary, "w", encoding="utf-8") as file,
        ):
            file.write(text)
        scores = self.read_scores()
        if FILES in scores:
            scores[FILES] |= describe_files(self, [name])
            self._write_scores(scores)

    def check_same_text(self, fingerprints: Mapping[str, Any]) -> None:
        """Checks that the text, whose path may change, has the fingerprints in `data.json`."""
        recorded = self.read_data()
        for part, received in fingerprints.items():
            if recorded and received != recorded.get(part):
                before = (recorded.get(part) or {}).get("pairs", "an unknown number")
                raise ValueError(
                    f"The {part} text must be that of {self} to resume it, received other text "
                    f"or corpus weights ({counted(received['pairs'], 'pair')}, before {before}): "
                    "give the same, or fine-tune with --start-from."
                )

    def write_examples(self, pairs: "Iterable[Pair]") -> None:
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
        pairs = read_json(self.file(EXAMPLES))["valid"]
        return [(str(source), str(target)) for source, target in pairs[:MAX_EXAMPLES]]

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
        return read_sealed(self.file(MODEL_SCORES)) if self.has(MODEL_SCORES) else {}

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
        """Reads the state of the training, see `RunCheckpoint`; None before a checkpoint."""
        checkpoints = self.checkpoints
        entries = checkpoints.read()
        if self.has(HISTORY) and not os.path.exists(checkpoints.state_file):
            raise ValueError(
                f"{checkpoints.state_file} is missing, although {HISTORY} exists: restore it."
            )
        return entries[-1]["state"]["additional"] if entries else None

    def read_history(self) -> list[dict[str, float | None]]:
        """Reads the history of the training: for each validation, the values of its columns.

        `step`, `target_tokens` and `minutes` count from the start of the training; `loss` and
        `val_loss` are in nats per token, `val_bleu` and `val_chrf` from 0 to 100. Empty cells are
        None.
        """
        name = self.file(HISTORY)
        if not os.path.isfile(name):
            raise ValueError(
                f"{self} has no {HISTORY}: give a run that has completed an epoch, not an average "
                "of checkpoints."
            )
        try:
            with open(name, encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            if not rows:
                raise ValueError("it has no rows yet: wait for the first validation")
            columns = [*COLUMNS, *(column for column in SCORES if column in rows[0])]
            return [{x: float(row[x]) if row[x] else None for x in columns} for row in rows]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise ValueError(describe_corruption(name, error)) from None

    def write_history(self, rows: History) -> None:
        """Writes the history atomically; missing values become empty cells."""
        with replacing(self.file(HISTORY)) as name, open(name, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS + SCORES)
            writer.writeheader()
            writer.writerows(rows)

    # --- training into it ---

    @contextlib.contextmanager
    def created(self, config: TrainConfig, data: "TrainingData") -> Iterator[None]:
        """Creates the directory atomically; removes it if training fails without a checkpoint."""
        if not self.writes:
            yield
            return
        with creating(self.path) as temporary:
            new = Run(temporary)
            for folder in (LOGS, CHECKPOINTS):
                os.makedirs(new.file(folder))
            prints = json.dumps(data.fingerprints, indent=1)
            for name, text in ((CONFIG, to_yaml(config)), (DATA, prints)):
                with open(new.file(name), "w", encoding="utf-8") as file:
                    file.write(text)
            new.write_examples(data.valid)
            saved.write(temporary, data.tokenizers)
        try:
            yield
        except Exception:
            if self.read_state() is None and not self.has_model:
                shutil.rmtree(self.path)
            raise

    def update(self, config: TrainConfig, data: "TrainingData") -> None:
        """Writes the changed options and data of a resumed run; see `created`."""
        if self.writes:
            remove_leftovers(self.path)
            self.write_config(config)
            self.write_data(data.fingerprints)


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


# --- config.yaml ---


class _PlainLoader(yaml.SafeLoader):
    """Raises errors for aliases, which could expand to a huge file."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)


def to_yaml(config: TrainConfig) -> str:
    """Returns a configuration as YAML for `--config`, with a comment on each line."""
    lines = [f"format: {FORMAT}"]
    for field in dataclasses.fields(TrainConfig):
        if field.metadata.get("hidden") and getattr(config, field.name) == field.default:
            continue
        if title := field.metadata.get("section"):
            lines += ["", f"# {title}"]
        if field.name in TABLES:
            value, fields = getattr(config, field.name), dataclasses.fields(TABLES[field.name])
            lines += [f"{field.name}:", *_yaml_lines(value, fields, "  ")]
        elif field.name not in MACHINE_FIELDS:
            lines += _yaml_lines(config, [field], "")
    return "\n".join(lines) + "\n"


def from_yaml(path: Path, **missing: Any) -> TrainConfig:
    """Reads a configuration; `missing` are values of fields that the file omits."""
    values = missing | read_values(path, None)
    try:
        return change(TrainConfig(), values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_values(path: Path, default_format: int | None = FORMAT) -> dict[str, Any]:
    """Reads the values in a file, for `presets.change`; with None, it has to name its format."""
    content = read_bytes(path, MAX_CONFIG_BYTES)
    try:
        fields = yaml.load(content.decode(), _PlainLoader)
    except RecursionError:  # its message differs from call to call
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:  # also for an invalid date, or not UTF-8
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is not valid YAML: {reason}.") from None
    if not isinstance(fields, dict):
        raise ValueError(
            f"{path} is not a configuration: keras-transformer config prints an example."
        )
    check_format(str(path), fields.pop("format", default_format))
    try:
        return _read_fields(TrainConfig, fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _yaml_lines(config, fields, indent):
    """Writes fields as lines of YAML with comments."""
    lines = []
    for field in fields:
        value = getattr(config, field.name)
        value = list(value) if isinstance(value, tuple) else value
        # Line breaks of Unicode would be folded.
        is_plain = all(
            str(x).isprintable() for x in (value if isinstance(value, list) else [value])
        )
        options: dict[str, Any] = dict(
            default_flow_style=True, width=float("inf"), allow_unicode=is_plain
        )
        value = yaml.safe_dump([value], **options).strip()[1:-1]  # without the brackets
        comment = field.metadata["help"]
        if field.type is not str:  # for which "none" may be a value
            comment = re.sub(r"\bnone(?=:)", "null", comment)
        lines.append(f"{indent}{field.name}: {value}  # {comment}")
    return lines


def _read_fields(kind: Any, fields: dict[Any, Any]) -> dict[str, Any]:
    """Reads the values of a table, those of the model included, with the types of the fields."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        name = RENAMED.get(name, name)
        if name in REMOVED:
            if value != REMOVED[name]:
                logger.warning(f"{name}: {value} is ignored: trainings no longer have this option.")
            continue
        if name not in hints:
            raise ValueError(f"unknown field {name!r}: keras-transformer config prints all fields.")
        if name == "model" and isinstance(value, dict):
            values |= _read_fields(ModelConfig, value)
        elif name == "imported" and isinstance(value, dict):
            values[name] = Imported(**_read_fields(Imported, value))
        else:
            values[name] = _convert_value(value, hints[name], name)
    return values


def _convert_value(value: Any, hint: Any, name: str) -> Any:
    """Converts a value to the type of a field."""
    if typing.get_origin(hint) is tuple:
        value = [] if value is None else value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ValueError(f"{name} must be a list of strings, received {value!r}.")
    kinds = typing.get_args(hint) or (hint,)
    if type(value) in kinds:
        return value
    if float in kinds and type(value) in (int, str):
        with contextlib.suppress(ValueError):  # YAML reads 1e-3, without a point, as a string
            return float(value)
    expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
    raise ValueError(f"{name} must be {expected}, received {value!r}.")
