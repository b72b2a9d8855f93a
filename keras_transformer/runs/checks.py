"""What can be wrong with a training, said before TensorFlow and the corpus are loaded."""

import dataclasses
import os
from typing import Any

from keras_transformer.corpora.configured import check_names
from keras_transformer.corpora.dates import parse_locales
from keras_transformer.corpora.parallel_text import ParallelText
from keras_transformer.presets import ModelConfig, TrainConfig
from keras_transformer.runs import files, vectors
from keras_transformer.runs.configuration import MACHINE
from keras_transformer.runs.opening import inspect_run
from keras_transformer.runs.prepared import VOCABULARY, check_corpora
from keras_transformer.runs.vocabulary_options import check_files
from keras_transformer.training.cluster import cluster_of
from keras_transformer.typing import Path
from keras_transformer.wording import counted

# What may change when a run goes on; texts if they are the same in another place.
MAY_CHANGE = (
    *("epochs", "peak", "warmup_steps", "cooldown_steps", "clip_norm", "patience"),
    *("bleu_tokenize", "validation_beam_size", "save_every", "log_every", "log_file"),
    *("strategy", "logical_devices", *MACHINE),
)
# What a fine-tuned model has from the run that it starts from, beside its vocabulary.
ARCHITECTURE = [f.name for f in dataclasses.fields(ModelConfig) if f.name != "dropout"]


def check_training(config: TrainConfig, output: Path, resume: bool = False) -> None:
    """Refuses a training that could not be done, or not as it is meant, in under a second.

    Args:
        config: `TrainConfig`.
        output: The run directory.
        resume: Whether to go on with the training in it.

    Raises:
        ValueError: If a file is missing or invalid, `output` holds something, or the configuration
            contradicts the run that is resumed or started from.
    """
    cluster = cluster_of(config.strategy)
    if resume:
        _check_same(config, files.read_config(output))
    elif cluster is None or cluster.is_chief:
        _check_free(output)
    begun = resume and files.read_state(output) is not None
    if config.start_from is not None and not begun:
        _check_start(config, config.start_from)
    check_names(config)
    check_corpora(config)
    if not resume:
        check_files(config, config.start_from or next(iter(config.corpus), None))
    if not begun:
        vectors.check_files(config)
    _check_files(config, output)
    if config.languages:
        parse_locales(config.languages)
    if config.validate_by == "bleu":
        from keras_transformer.translation.corpus_scores import make_metrics

        make_metrics(config.bleu_tokenize)


def check_same_text(path: Path, fingerprints: dict[str, Any]) -> None:
    """Refuses to go on with other text than a run was begun with, wherever it lies now.

    Args:
        path: The run directory.
        fingerprints: Of the text now, as `data.json` has them.

    Raises:
        ValueError: If its fingerprint is not the one in the run's `data.json`, or that is damaged.
    """
    recorded = files.read_data(path)
    for part, received in fingerprints.items():
        if recorded and received != recorded.get(part):
            then = (recorded.get(part) or {}).get("pairs", "an unknown number")
            raise ValueError(
                f"The {part} text is not what {path} was begun with "
                f"({counted(received['pairs'], 'pair')}, "
                f"then {then}): resume it with the same text, wherever that lies, fine-tune it by "
                "--start-from, or go on all the same by --accept-changed-text."
            )


def _check_files(config: TrainConfig, output: Path) -> None:
    """Refuses text that is not there, and a log without a place."""
    for source, target in (files.TEXTS[:2], files.TEXTS[2:]):
        path, other = getattr(config, source), getattr(config, target)
        if path is None:
            continue
        text = ParallelText(path, other, f"--{target.replace('_', '-')}")
        for name in filter(None, (name for pair in text.files for name in pair)):
            try:
                with open(name, "rb") as file:
                    empty = not file.read(1)
            except OSError as error:
                raise ValueError(
                    f"{name} cannot be read ({error.strerror}): check the path."
                ) from error
            if empty:
                raise ValueError(f"{name} is empty: expected one sentence per line.")
    if config.log_file is not None:
        folder = os.path.abspath(os.path.dirname(config.log_file) or ".")
        if os.path.isdir(config.log_file) or not (
            os.path.isdir(folder) or folder == os.path.abspath(output)
        ):
            raise ValueError(f"--log-file {config.log_file} cannot be written: check the path.")


def _check_free(output: Path) -> None:
    """Refuses to write over anything."""
    if os.path.isdir(output) and not os.listdir(output):
        return
    if os.path.exists(output):
        raise ValueError(
            f"{output} is not empty: choose another --output, or go on with the run in it by "
            "--resume."
        )


def _check_same(config: TrainConfig, begun: TrainConfig) -> None:
    """Refuses to go on with another recipe than the one begun."""
    for name, old, new in _differences(begun, config):
        decided = name == "precision" and new == "auto"  # by the run
        if name not in (*MAY_CHANGE, *files.TEXTS, "corpus", "dates") and not decided:
            raise ValueError(
                f"This run was begun with {name}={old!r}, received {new!r}: resume it with the "
                f"options it was begun with (only {', '.join(MAY_CHANGE)} and the place of the "
                "text may change), or start another one."
            )


def _check_start(config: TrainConfig, run: Path) -> None:
    """Refuses what is no run to start from, or another vocabulary or architecture than it has."""
    if not files.is_run(run):
        raise ValueError(
            f"--start-from {run} is no run directory with a model: give the --output of a training "
            "that has finished an epoch."
        )
    inspect_run(run)
    origin = files.read_config(run)
    for name, old, new in _differences(origin, config):
        if name in VOCABULARY or name in ARCHITECTURE:
            raise ValueError(
                f"{run} has {name}={old!r}, received {new!r}: what starts from it has its "
                "vocabulary and architecture; leave out the option or preset that says so."
            )
    if not (config.train_source or config.corpus) and (origin.train_source or origin.corpus):
        raise ValueError("--train-source is missing: name the text to fine-tune on.")


def _differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Fields that differ, those of the model for themselves: names, old values, new ones."""
    before, after = (_flat(config) for config in (old, new))
    return [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _flat(config: TrainConfig) -> dict[str, Any]:
    """The fields of a configuration and of its model in one dict."""
    fields = dataclasses.asdict(config)
    return {name: fields[name] for name in fields if name != "model"} | fields["model"]
