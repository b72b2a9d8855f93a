"""Checks of a training or a preparation before TensorFlow and the text are loaded."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.corpora import check_names
from keras_transformer.data.dates import parse_locales
from keras_transformer.data.prepared.prepare_config import PrepareConfig
from keras_transformer.data.prepared.prepared_corpus import (
    VALID,
    read_manifest,
)
from keras_transformer.data.text_files import ParallelText
from keras_transformer.presets import (
    FREEZABLE,
    STRATEGIES,
    ModelConfig,
    TrainConfig,
    check_frozen_vectors,
    check_positions,
    check_precision,
    check_sharing,
)
from keras_transformer.runs.configuration import MACHINE
from keras_transformer.runs.run import TEXTS, VECTORS, VOCABULARIES, Run
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import (
    check_type,
    check_vocabulary,
    read_pieces,
)
from keras_transformer.tokenizers.word_vectors import check_vectors
from keras_transformer.training.cluster import cluster_of
from keras_transformer.typing import Path

# Fields that may change when a run is resumed; texts if they are the same in another place.
MAY_CHANGE = (
    *("epochs", "peak", "warmup_steps", "cooldown_steps", "clip_norm", "patience"),
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
        ValueError: If a value is out of its range, a file is missing, the directory is not empty,
            or the configuration contradicts the run that is resumed or started from.
    """
    if run.checked == (config, resume):
        return
    check_values(config)
    cluster = cluster_of(config.strategy)
    run.writes = cluster is None or cluster.is_chief
    if resume:
        _check_same(config, run.read_config())
    elif run.writes:
        _check_free(run.path)
    begun = resume and run.read_state() is not None
    if config.start_from is not None and not begun:
        _check_start(config, Run(config.start_from))
    check_names(config)
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


# --- values ---


def check_values(config: TrainConfig) -> None:
    """Refuses values that are out of their ranges, or that contradict each other.

    Raises:
        ValueError: If there is one.
    """
    model = config.model
    check_precision(config.precision)
    check_vocabularies(config, model.share_embeddings == "all", "--share-embeddings target")
    check_sharing(model.share_embeddings, 0, 0)
    _check_vectors(config)
    if config.strategy not in STRATEGIES:
        raise ValueError(
            f"There is no strategy {config.strategy!r}: choose one of {', '.join(STRATEGIES)}."
        )
    _check_choices(config)
    _check_ranges(config)
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
    is_taken = any(getattr(config, name) for name in VOCABULARIES)
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


def check_vocabularies(config: TrainConfig | PrepareConfig, joint: bool, apart: str) -> None:
    """Refuses vocabularies that could not be learned or read, or of which one side has too many.

    Args:
        config: The configuration.
        joint: Whether both sides have one vocabulary.
        apart: The option that gives each side its own, for errors.

    Raises:
        ValueError: If there is one.
    """
    files = [getattr(config, name) for name in VOCABULARIES]
    sizes = [getattr(config, f"{name}_size") for name in VOCABULARIES]
    for name, path, size in zip(VOCABULARIES, files, sizes, strict=True):
        option = name.replace("_", "-")
        if size is not None and joint:
            raise ValueError(
                f"--{option}-size {size} is for a vocabulary of its own, and both sides have one: "
                f"give --vocabulary-size, or {apart} as well."
            )
        if size is not None and path is not None:
            raise ValueError(f"--{option} {path} has the size it has: leave out --{option}-size.")
    if joint and files[0] != files[1]:
        raise ValueError(
            f"Both sides have one vocabulary, received --source-vocabulary {files[0] or 'none'} "
            f"and --target-vocabulary {files[1] or 'none'}: give the same file twice, or {apart}."
        )
    for path, size in zip(files, sizes, strict=True):
        if path is None:
            check_vocabulary(config.vocabulary_size if size is None else size, config.model_type)
    check_type(config.model_type)


def sides_with_vectors(config: TrainConfig) -> list[str]:
    """The sides whose embeddings start from word vectors: source, target."""
    return [side for side, name in zip(saved.SIDES, VECTORS, strict=True) if getattr(config, name)]


def _check_vectors(config):
    """Refuses word vectors that contradict the rest."""
    sides, share = sides_with_vectors(config), config.model.share_embeddings
    if config.freeze_vectors and not sides:
        raise ValueError("--freeze-vectors needs --source-vectors or --target-vectors.")
    if len(sides) == len(saved.SIDES) and share == "all":
        raise ValueError(
            "Both sides have one matrix of embeddings (share_embeddings=all): give --source-vectors"
            " or --target-vectors, not both, or --share-embeddings target."
        )
    if sides and config.start_from is not None:
        raise ValueError(
            f"The embeddings are those of {config.start_from}: leave out --{sides[0]}-vectors."
        )
    for side in sides if config.freeze_vectors else ():
        check_frozen_vectors(side, share)


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
