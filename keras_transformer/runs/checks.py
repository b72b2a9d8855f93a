"""Checks of a training or a preparation, before TensorFlow and the text are loaded."""

import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.corpora import check_data_options
from keras_transformer.data.dates import parse_locales
from keras_transformer.data.prepared_corpus import VALID, read_manifest
from keras_transformer.data.text_files import ParallelText
from keras_transformer.presets import ModelConfig, PrepareConfig, TrainConfig
from keras_transformer.runs.configuration import MACHINE_FIELDS
from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import read_pieces
from keras_transformer.training.cluster import cluster_for_strategy
from keras_transformer.training.word_vectors import check_vectors
from keras_transformer.utils import Path

logger = logging.getLogger(__name__)

# Fields that may change when a run is resumed; text files may also be in another place.
MUTABLE_FIELDS = (
    *("epochs", "learning_rate", "warmup_steps", "cooldown_steps", "clip_norm", "patience"),
    *("bleu_tokenize", "validation_beam_size", "save_every", "log_every", "log_file"),
    *("strategy", "logical_devices", *MACHINE_FIELDS),
)
# Fields that a fine-tuned model inherits, in addition to the vocabulary.
ARCHITECTURE_FIELDS = [f.name for f in dataclasses.fields(ModelConfig) if f.name != "dropout"]
ARCHITECTURE_FIELDS += ["source_end"]
# Fields of `TrainConfig` and of `PrepareConfig` that determine how vocabularies are learned.
VOCABULARY_FIELDS = (
    *("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size"),
    *("model_type", "lowercase", "nfkc"),
)


def check_training(config: TrainConfig, run: Run, resume: bool = False) -> None:
    """Checks options and files of a training, in under a second.

    With the same `Run`, configuration and `resume`, a second call returns immediately.

    Args:
        config: `TrainConfig`.
        run: The run to create or resume. `run.writes` is set to whether this process is the chief.
        resume: Whether to resume the run.
    """
    if run.checked == (config, resume):
        return
    if config.subword_sampling:
        raise ValueError(
            "train no longer has the option subword_sampling, which is set here: write a corpus "
            "with prepare --subword-sampling, and start a new run on it by --corpus."
        )
    cluster = cluster_for_strategy(config.strategy)
    run.writes = cluster is None or cluster.is_chief
    if resume:
        if run.read_config().is_imported:
            raise ValueError(
                f"{run} is an imported model, which has no training to resume: fine-tune it with "
                f"--start-from {run} and another --output."
            )
        _check_unchanged(config, run.read_config())
    elif run.writes:
        _check_output_is_free(run.path)
    has_checkpoint = resume and run.read_state() is not None
    if config.start_from is not None and not has_checkpoint:
        _check_start_from(config, Run(config.start_from))
    check_data_options(config)
    _check_corpora(config)
    if not resume:
        check_vocabulary_files(config, config.start_from or next(iter(config.corpus), None))
    if not has_checkpoint:
        for side in sides_with_vectors(config):
            check_vectors(getattr(config, f"{side}_vectors"), config.model.d_model)
    _check_files(config, run.path)
    if config.languages:
        parse_locales(config.languages)
    if config.rdrop and not config.model.dropout:
        logger.warning(
            "--rdrop has no effect without dropout, but doubles the time: leave it out, or set a "
            "--dropout above 0."
        )
    if config.validate_by == "bleu":
        from keras_transformer.translation.corpus_scores import make_metrics

        make_metrics(config.bleu_tokenize)
    run.checked = config, resume


def sides_with_vectors(config: TrainConfig) -> list[str]:
    """Returns the sides with pretrained embeddings: source, target."""
    return [side for side, name in zip(saved.SIDES, VECTORS, strict=True) if getattr(config, name)]


# --- files ---


def check_vocabulary_files(config: TrainConfig | PrepareConfig, origin: str | None) -> None:
    """Checks the vocabulary files of a configuration.

    Args:
        config: The configuration.
        origin: The run or corpus whose vocabularies are used instead, or None.
    """
    for name in VOCABULARIES:
        path = getattr(config, name)
        if path is None:
            continue
        if origin is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} and the vocabularies of {origin} cannot be used "
                "together: leave out the option."
            )
        read_pieces(path)


def _check_files(config: TrainConfig, output: Path) -> None:
    """Raises if text is missing or empty, or the log file cannot be written."""
    for source, target in (TEXTS[:2], TEXTS[2:]):
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


def _check_output_is_free(output: Path) -> None:
    """Raises if there is anything to overwrite."""
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise ValueError(
            f"{output} is not empty: choose another --output, or continue the run in it with "
            "--resume."
        )


# --- other runs ---


def _check_unchanged(config: TrainConfig, original: TrainConfig) -> None:
    """Raises if a field has changed that must not change when a run is resumed."""
    for name, old, new in _list_differences(original, config):
        uses_recorded = name == "precision" and new == "auto"
        if name not in (*MUTABLE_FIELDS, *TEXTS, "corpus", "dates") and not uses_recorded:
            raise ValueError(
                f"{name} must be {old!r} to resume this run, received {new!r}: leave out the "
                f"option or start a new run (only {', '.join(MUTABLE_FIELDS)} and the paths of the "
                "text may change)."
            )


def _check_start_from(config: TrainConfig, run: Run) -> None:
    """Raises if `start_from` is not a run, or has another vocabulary or architecture."""
    if not run.has_model:
        raise ValueError(
            f"--start-from {run} is not a run directory with a model: give the --output of a "
            "training that has completed an epoch."
        )
    run.inspect()
    origin = run.read_config()
    for name, old, new in _list_differences(origin, config):
        if name in VOCABULARY_FIELDS or name in ARCHITECTURE_FIELDS:
            raise ValueError(
                f"{name} must be {old!r} with --start-from {run}, received {new!r}: leave out the "
                "option or preset; the vocabulary and the architecture do not change."
            )
    from_text = origin.train_source or origin.corpus or not origin.dates
    if from_text and not (config.train_source or config.corpus):
        raise ValueError("--train-source is missing: give the text to fine-tune on.")


def _list_differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Lists the names, old and new values of fields that differ, those of the model included."""
    before, after = (_flatten_fields(config) for config in (old, new))
    return [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _flatten_fields(config: TrainConfig) -> dict[str, Any]:
    """Returns the fields of a configuration and of its model in one dict."""
    fields = dataclasses.asdict(config)
    return {name: fields[name] for name in fields if name != "model"} | fields["model"]


# --- prepared corpora ---


def parse_corpora(corpora: Sequence[str]) -> list[tuple[str, float]]:
    """Parses the values of `--corpus`.

    Args:
        corpora: `path` or `path:weight` of each corpus.

    Returns:
        List of paths and weights, by default 1.
    """
    return [_parse_corpus(corpus) for corpus in corpora]


def _parse_corpus(corpus):
    path, colon, weight = corpus.rpartition(":")
    if not colon or os.path.isdir(corpus):
        return corpus, 1.0
    try:
        value = float(weight)
    except ValueError:
        return corpus, 1.0
    if not 0 < value < math.inf:
        raise ValueError(f"The weight in --corpus must be a number above 0, received {corpus}.")
    return path, value


def vocabulary_options(path: Path) -> dict[str, Any]:
    """Returns the `VOCABULARY_FIELDS` of a prepared corpus."""
    options = read_manifest(path)["options"]
    return {name: options.get(name) for name in VOCABULARY_FIELDS}  # older versions had fewer


def _check_corpora(config):
    """Raises if prepared corpora do not fit the training or each other, by their manifests."""
    if not config.corpus:
        return
    first, *others = [path for path, _ in parse_corpora(config.corpus)]
    manifest = read_manifest(first)
    for name in VOCABULARY_FIELDS:
        old, new = manifest["options"].get(name), getattr(config, name)
        if old != new:
            raise ValueError(
                f"{name} must be {old!r} for the corpus {first}, received {new!r}: leave out the "
                "option, or prepare the corpus again."
            )
    vocabularies = _vocabulary_checksums(manifest)
    for path in others:
        if _vocabulary_checksums(read_manifest(path)) != vocabularies:
            raise ValueError(
                f"{path} was prepared with other vocabularies than {first}: prepare it with "
                f"--vocabularies {first}."
            )
    joint = config.model.share_embeddings == "all" and config.imported is None
    if joint and not manifest["options"].get("joint_vocabulary"):
        raise ValueError(
            f"--share-embeddings all needs a joint vocabulary, but {first} has two: give "
            "--share-embeddings target, or prepare it without --no-joint-vocabulary."
        )
    if config.start_from is not None and saved.read(first) != saved.read(config.start_from):
        raise ValueError(
            f"{first} was prepared with another vocabulary than that of --start-from "
            f"{config.start_from}: prepare it with --vocabularies {config.start_from}."
        )
    if config.valid_source is None and VALID[0] not in manifest["files"]:
        raise ValueError(
            f"--valid-source is missing: {first} was prepared without validation data."
        )


def _vocabulary_checksums(manifest):
    names = saved.names(manifest["files"].__contains__)
    return [manifest["files"][name] for name in names]
