"""What can be wrong with a training, said before TensorFlow and the corpus are loaded."""

import dataclasses
import math
import os
from typing import Any

from keras_transformer.data.corpora import check_names
from keras_transformer.data.dates import parse_locales
from keras_transformer.data.text_files import ParallelText
from keras_transformer.presets import (
    FREEZABLE,
    STRATEGIES,
    ModelConfig,
    TrainConfig,
    check_positions,
    check_precision,
    check_sharing,
)
from keras_transformer.runs import files, vectors
from keras_transformer.runs.configuration import MACHINE
from keras_transformer.runs.opening import inspect_run
from keras_transformer.runs.prepared import VOCABULARY, check_corpora
from keras_transformer.runs.vocabulary_options import check_files, check_vocabularies
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
        ValueError: If a value is out of its range, a file is missing, `output` holds something,
            or the configuration contradicts the run that goes on or that is started from.
    """
    check_values(config)
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


def check_values(config: TrainConfig) -> None:
    """Refuses values that are out of their ranges, or that do not go together.

    Raises:
        ValueError: If there is one.
    """
    check_precision(config.precision)
    joint = config.model.share_embeddings == "all"
    check_vocabularies(config, joint, "--share-embeddings target")
    check_sharing(config.model.share_embeddings, 0, 0)
    vectors.check(config)
    if config.strategy not in STRATEGIES:
        raise ValueError(
            f"There is no strategy {config.strategy!r}: choose one of {', '.join(STRATEGIES)}."
        )
    _check_choices(config)
    _check_ranges(config)
    model = config.model
    if model.d_model % model.num_heads:
        raise ValueError(
            f"num_heads={model.num_heads} does not divide d_model={model.d_model}: every head "
            "takes an equal share of the width."
        )
    check_positions(model.positions, model.max_distance, model.d_model, model.num_heads)
    if config.tokens_per_batch < model.max_length:
        raise ValueError(
            f"tokens_per_batch={config.tokens_per_batch} cannot hold a sentence of max_length="
            f"{model.max_length} tokens: raise the budget or lower max_length."
        )
    is_taken = any(getattr(config, name) for name in files.VOCABULARIES)
    if config.subword_sampling and (is_taken or config.model_type not in ("bpe", "unigram")):
        raise ValueError(
            "subword_sampling needs a vocabulary of type bpe or unigram, received "
            f"{'wordpiece' if is_taken else config.model_type!r}."
        )
    if config.freeze and config.start_from is None:
        raise ValueError("--freeze needs --start-from: fresh weights would stay random.")
    if "source-embeddings" in config.freeze and model.share_embeddings == "all":
        raise ValueError(
            "--freeze source-embeddings would freeze the softmax, which shares their matrix "
            "(share_embeddings=all): freeze encoder or decoder, or start from a run trained with "
            "--share-embeddings target."
        )


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


def _check_choices(config: TrainConfig) -> None:
    """Refuses unknown words."""
    choices: dict[str, tuple[Any, tuple[str, ...]]] = {
        "validate_by": (config.validate_by, ("loss", "bleu")),
        "average": (config.average, ("none", "best", "last")),
        "norm": (config.model.norm, ("post", "pre")),
    }
    for name, (value, known) in choices.items():
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, received {value!r}.")
    for part in config.freeze:
        if part not in FREEZABLE:
            raise ValueError(f"freeze takes {', '.join(FREEZABLE)}, received {part!r}.")


def _check_ranges(config: TrainConfig) -> None:
    """Refuses numbers out of their ranges; None is in any."""
    values = _flat(config)
    counts = "epochs steps_per_epoch tokens_per_batch accumulation_steps parallel_microbatches "
    counts += "patience warmup_steps keep_checkpoints logical_devices num_layers d_model num_heads "
    counts += "vocabulary_sample d_ff max_length validation_beam_size save_every"
    shares = ("ema", "subword_sampling", "label_smoothing", "dropout")
    ranges: dict[str, tuple[bool, str]] = {}
    for name in counts.split():
        ranges[name] = (values[name] is None or values[name] >= 1, "at least 1")
    for name in shares:
        ranges[name] = (0 <= values[name] < 1, "at least 0 and below 1")
    ranges |= {
        "weight_decay": (0 <= config.weight_decay < math.inf, "a number of at least 0"),
        "cooldown_steps": (config.cooldown_steps >= 0, "at least 0"),
        "clip_norm": (config.clip_norm is None or config.clip_norm > 0, "above 0"),
        "peak": (config.peak is None or 0 < config.peak < math.inf, "a number above 0"),
        "log_every": (config.log_every > 0, "above 0"),
        "seed": (0 <= config.seed < 2**31, "at least 0 and less than 2^31"),
        "valid_fraction": (
            config.valid_fraction is None or 0 < config.valid_fraction < 1,
            "above 0 and below 1",
        ),
    }
    for name, (good, expected) in ranges.items():
        if not good:
            raise ValueError(f"{name} must be {expected}, received {values[name]}.")


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
