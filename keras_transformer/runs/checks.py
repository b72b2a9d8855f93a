"""Checks of a training or a preparation before TensorFlow and the text are loaded."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.corpora import check_data_options
from keras_transformer.data.dates import parse_locales
from keras_transformer.data.prepared.prepared_corpus import VALID, read_manifest
from keras_transformer.data.text_files import ParallelText
from keras_transformer.presets import ModelConfig, PrepareConfig, TrainConfig
from keras_transformer.runs.configuration import MACHINE
from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import read_pieces
from keras_transformer.tokenizers.word_vectors import check_vectors
from keras_transformer.training.cluster import cluster_for_strategy
from keras_transformer.utils import Path

# Fields that may change when a run is resumed; texts if they are the same in another place.
MAY_CHANGE = (
    *("epochs", "learning_rate", "warmup_steps", "cooldown_steps", "clip_norm", "patience"),
    *("bleu_tokenize", "validation_beam_size", "save_every", "log_every", "log_file"),
    *("strategy", "logical_devices", *MACHINE),
)
# Fields that a fine-tuned model has from the run that it starts from, beside its vocabulary.
ARCHITECTURE = [f.name for f in dataclasses.fields(ModelConfig) if f.name != "dropout"]
# Fields of `TrainConfig` and of `PrepareConfig` that vocabularies are learned with.
VOCABULARY = (
    *("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size"),
    *("model_type", "lowercase", "nfkc"),
)


def check_training(config: TrainConfig, run: Run, resume: bool = False) -> None:
    """Refuses a training that is impossible or would not do what is meant, in under a second.

    A training is checked once: with the same `Run`, configuration and `resume`, a second call
    returns at once.

    Args:
        config: `TrainConfig`.
        run: The run to create or resume. Its `writes` is set: whether this process is the chief.
        resume: Whether to resume the training in it.

    Raises:
        ValueError: If a file is missing or invalid, the directory is not empty, or the
            configuration contradicts the run that is resumed or started from.
    """
    if run.checked == (config, resume):
        return
    cluster = cluster_for_strategy(config.strategy)
    run.writes = cluster is None or cluster.is_chief
    if resume:
        _check_same(config, run.read_config())
    elif run.writes:
        _check_free(run.path)
    begun = resume and run.read_state() is not None
    if config.start_from is not None and not begun:
        _check_start(config, Run(config.start_from))
    check_data_options(config)
    _check_corpora(config)
    if not resume:
        check_vocabulary_files(config, config.start_from or next(iter(config.corpus), None))
    if not begun:
        for side in sides_with_vectors(config):
            check_vectors(getattr(config, f"{side}_vectors"), config.model.d_model)
    _check_files(config, run.path)
    if config.languages:
        parse_locales(config.languages)
    if config.validate_by == "bleu":
        from keras_transformer.translation.corpus_scores import make_metrics

        make_metrics(config.bleu_tokenize)
    run.checked = config, resume


def sides_with_vectors(config: TrainConfig) -> list[str]:
    """The sides whose embeddings start from word vectors: source, target."""
    return [side for side, name in zip(saved.SIDES, VECTORS, strict=True) if getattr(config, name)]


# --- files ---


def check_vocabulary_files(config: TrainConfig | PrepareConfig, instead: str | None) -> None:
    """Refuses files that hold no vocabulary, or that are named beside other vocabularies.

    Args:
        config: The configuration that names them.
        instead: The run or corpus that vocabularies are taken from, if not from these files.

    Raises:
        ValueError: If there is one.
    """
    for name in VOCABULARIES:
        path = getattr(config, name)
        if path is None:
            continue
        if instead is not None:
            raise ValueError(
                f"The vocabularies are those of {instead}: leave out --{name.replace('_', '-')}."
            )
        read_pieces(path)


def _check_files(config: TrainConfig, output: Path) -> None:
    """Refuses missing or empty text, and a log file that cannot be written."""
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


def _check_free(output: Path) -> None:
    """Refuses to overwrite anything."""
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise ValueError(
            f"{output} is not empty: choose another --output, or go on with the run in it by "
            "--resume."
        )


# --- other runs ---


def _check_same(config: TrainConfig, begun: TrainConfig) -> None:
    """Refuses to resume with another configuration than the run's."""
    for name, old, new in _differences(begun, config):
        decided = name == "precision" and new == "auto"  # by the run
        if name not in (*MAY_CHANGE, *TEXTS, "corpus", "dates") and not decided:
            raise ValueError(
                f"This run was begun with {name}={old!r}, received {new!r}: resume it with the "
                f"options it was begun with (only {', '.join(MAY_CHANGE)} and the place of the "
                "text may change), or start another one."
            )


def _check_start(config: TrainConfig, run: Run) -> None:
    """Refuses to start from a path that is not a run, or one with another architecture."""
    if not run.has_model:
        raise ValueError(
            f"--start-from {run} is no run directory with a model: give the --output of a training "
            "that has finished an epoch."
        )
    run.inspect()
    origin = run.read_config()
    for name, old, new in _differences(origin, config):
        if name in VOCABULARY or name in ARCHITECTURE:
            raise ValueError(
                f"{run} has {name}={old!r}, received {new!r}: what starts from it has its "
                "vocabulary and architecture; leave out the option or preset that says so."
            )
    if not (config.train_source or config.corpus) and (origin.train_source or origin.corpus):
        raise ValueError("--train-source is missing: name the text to fine-tune on.")


def _differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Fields that differ, those of the model among them: names, old values, new ones."""
    before, after = (_flat(config) for config in (old, new))
    return [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def _flat(config: TrainConfig) -> dict[str, Any]:
    """The fields of a configuration and of its model in one dict."""
    fields = dataclasses.asdict(config)
    return {name: fields[name] for name in fields if name != "model"} | fields["model"]


# --- prepared corpora ---


def parse_corpora(corpora: Sequence[str]) -> list[tuple[str, float]]:
    """Parses the names of corpora to be mixed.

    Args:
        corpora: `path` or `path:weight` of each.

    Returns:
        List of paths and weights; 1 where none is given.

    Raises:
        ValueError: If a weight is not positive.
    """
    return [_parse(corpus) for corpus in corpora]


def _parse(corpus):
    path, colon, weight = corpus.rpartition(":")
    if not colon or os.path.isdir(corpus):
        return corpus, 1.0
    try:
        value = float(weight)
    except ValueError:
        return corpus, 1.0
    if not 0 < value < math.inf:
        raise ValueError(f"The weight of a corpus must be a number above 0, received {corpus}.")
    return path, value


def vocabulary_options(path: Path) -> dict[str, Any]:
    """The values of `VOCABULARY` that the vocabularies of a prepared corpus were learned with.

    Raises:
        ValueError: If `path` is not a prepared corpus.
    """
    options = read_manifest(path)["options"]
    return {name: options.get(name) for name in VOCABULARY}  # earlier versions had fewer


def _check_corpora(config):
    """Refuses prepared corpora that do not fit a training or each other, by their manifests."""
    if not config.corpus:
        return
    first, *others = [path for path, _ in parse_corpora(config.corpus)]
    manifest = read_manifest(first)
    for name in VOCABULARY:
        old, new = manifest["options"].get(name), getattr(config, name)
        if old != new:
            raise ValueError(
                f"{first} was prepared with {name}={old!r}, received {new!r}: leave out that "
                "option or give the same; with another vocabulary, the corpus must be prepared "
                "anew."
            )
    vocabularies = _checksums_of_vocabularies(manifest)
    for path in others:
        if _checksums_of_vocabularies(read_manifest(path)) != vocabularies:
            raise ValueError(
                f"{path} was prepared with other vocabularies than {first}: prepare it with "
                f"--vocabularies {first}."
            )
    if config.model.share_embeddings == "all" and vocabularies[0] != vocabularies[1]:
        raise ValueError(
            f"{first} has a vocabulary for each side, and --share-embeddings all needs one for "
            "both: take --share-embeddings target, or prepare it without --no-joint-vocabulary."
        )
    if config.start_from is not None and saved.read(first) != saved.read(config.start_from):
        raise ValueError(
            f"{first} was prepared with another vocabulary than that of {config.start_from}, which "
            "a training that starts from it has: prepare it with --vocabularies "
            f"{config.start_from}."
        )
    if config.valid_source is None and VALID[0] not in manifest["files"]:
        raise ValueError(
            f"{first} was prepared without a validation part, which the best model is chosen by: "
            "name one by --valid-source."
        )


def _checksums_of_vocabularies(manifest):
    names = saved.names(manifest["files"].__contains__)
    return [manifest["files"][name] for name in names]
