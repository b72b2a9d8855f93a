"""The data of trainings: checked before TensorFlow and the text are loaded, opened, prepared."""

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.data.prepared_corpus import (
    MANIFEST,
    VALID,
    PreparedCorpus,
    prepare_corpus,
    read_manifest,
)
from keras_transformer.data.text_files import (
    ParallelText,
    load_corpus,
    load_valid,
    sample_rows,
)
from keras_transformer.presets import ModelConfig, PrepareConfig, TrainConfig
from keras_transformer.presets.languages import SIDES, Languages
from keras_transformer.runs.opening import inspect_run
from keras_transformer.runs.run import (
    CONFIG,
    MACHINE_FIELDS,
    TEXTS,
    VOCABULARIES,
    Run,
)
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.tokenizers.vocabularies import learn_vocabularies, read_pieces
from keras_transformer.training.cluster import cluster_for_strategy
from keras_transformer.training.word_vectors import check_vectors
from keras_transformer.utils import Pairs, Path, check_is_free

if TYPE_CHECKING:
    from keras_transformer.transformer import Transformer

# Text of up to this number of bytes is read into memory: half a million pairs, some hundred MB as
# strings, a minute to tokenize.
MAX_IN_MEMORY = 64_000_000

# Fields that may change when a run is resumed; text files may also be in another place.
MUTABLE_FIELDS = (
    *("epochs", "learning_rate", "warmup_steps", "cooldown_steps", "clip_norm", "patience"),
    *("bleu_tokenize", "validation_beam_size", "save_every", "log_every"),
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


# --- checking ---


def check_training(config: TrainConfig, output: Path, resume: bool = False) -> Run:
    """Checks options and files of a training, in under a second; returns the run to write."""
    if config.subword_sampling:
        raise ValueError(
            "train no longer has the option subword_sampling, which is set here: write a corpus "
            "with prepare --subword-sampling, and start a new run on it by --corpus."
        )
    if config.logical_devices > 1 and (config.strategy != "mirrored" or config.jit_compile):
        raise ValueError("--logical-devices needs --strategy mirrored, without --jit-compile.")
    run, cluster = Run(output), cluster_for_strategy(config.strategy)
    run.writes = cluster is None or cluster.is_chief
    if resume:
        original = run.read_config()
        if original.is_imported:
            raise ValueError(
                f"{run} is an imported model, which has no training to resume: fine-tune it with "
                f"--start-from {run} and another --output."
            )
        _check_unchanged(config, original)
    elif run.writes:
        check_is_free(output, "choose another --output, or continue the run in it with --resume")
    has_checkpoint = resume and run.read_state() is not None
    if config.start_from is not None and not has_checkpoint:
        _check_start_from(config, Run(config.start_from))
    languages = config.find_languages()
    languages.beginnings()  # raises if one is missing
    if config.corpus:
        _check_corpora(config, languages)
    if not resume:
        _check_vocabulary_files(config, config.start_from or next(iter(config.corpus), None))
    if not has_checkpoint:
        for side in config.pretrained:
            check_vectors(getattr(config, f"{side}_vectors"), config.model.d_model)
    _check_texts(config)
    if config.validate_by == "bleu":
        from keras_transformer.translation.corpus_scores import make_metrics

        make_metrics(config.bleu_tokenize)
    return run


def _check_vocabulary_files(config: TrainConfig | PrepareConfig, origin: str | None) -> None:
    """Checks the vocabulary files; `origin` is a run or corpus with vocabularies to use instead."""
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


def _check_texts(config: TrainConfig) -> None:
    """Raises if text is missing, incomplete or too large."""
    is_validated = config.valid_source is not None or config.valid_fraction is not None
    if config.train_source is None and not config.corpus:
        if is_validated or config.train_target or not (config.dates or config.languages):
            raise ValueError(
                "Training data is missing: pass --train-source and --train-target, --corpus, or "
                "--dates."
            )
    elif not is_validated and not config.corpus:
        raise ValueError(
            "--valid-source is missing: pass it, or hold out a part by --valid-fraction 0.02."
        )
    for source, target in (TEXTS[:2], TEXTS[2:]):
        if path := getattr(config, source):
            text = ParallelText(path, getattr(config, target), f"--{target.replace('_', '-')}")
            names = [name for pair in text.files for name in pair if name is not None]
            # Packed text is about four times as large.
            sizes = (os.path.getsize(x) * (4 if x.endswith(".gz") else 1) for x in names)
            if source == TEXTS[0] and sum(sizes) > MAX_IN_MEMORY:
                raise ValueError(
                    f"{path} is too large to be read into memory: prepare it with "
                    "keras-transformer prepare, and give the result by --corpus."
                )


def _check_unchanged(config: TrainConfig, original: TrainConfig) -> None:
    """Raises if a field has changed that must not change when a run is resumed."""
    for name, old, new in list_differences(original, config):
        uses_recorded = (name, new) in (("precision", "auto"), ("jit_compile", None))
        if name not in (*MUTABLE_FIELDS, *TEXTS, "corpus", "dates") and not uses_recorded:
            raise ValueError(
                f"{name} must be {old!r} to resume this run, received {new!r} (by --preset?): only "
                f"{', '.join(MUTABLE_FIELDS)} and the paths of the text may change."
            )


def _check_start_from(config: TrainConfig, run: Run) -> None:
    """Raises if `start_from` is not a run, or has another vocabulary or architecture."""
    if not run.has_model:
        raise ValueError(f"--start-from {run} is not a run directory with a model.")
    inspect_run(run)
    origin = run.read_config()
    for name, old, new in list_differences(origin, config):
        if name in VOCABULARY_FIELDS or name in ARCHITECTURE_FIELDS:
            raise ValueError(
                f"{name} must be {old!r} with --start-from {run}, received {new!r}, perhaps by "
                "--preset or --config: leave it out."
            )
    from_text = origin.train_source or origin.corpus or not origin.dates
    if from_text and not (config.train_source or config.corpus):
        raise ValueError("--train-source is missing: give the text to fine-tune on.")


def list_differences(old: TrainConfig, new: TrainConfig) -> list[tuple[str, Any, Any]]:
    """Lists the names, old and new values of fields that differ, those of the model included."""
    before, after = ({**vars(config), **vars(config.model)} for config in (old, new))
    del before["model"]
    return [(name, before[name], after[name]) for name in before if before[name] != after[name]]


def parse_corpora(corpora: Sequence[str]) -> list[tuple[str, float]]:
    """Parses the values of `--corpus`, `path` or `path:weight`, into paths and weights."""
    parsed = []
    for corpus in corpora:
        path, colon, word = corpus.rpartition(":")
        try:
            weight = float(word) if colon and not os.path.isdir(corpus) else None
        except ValueError:
            weight = None
        if weight is not None and not 0 < weight < math.inf:
            raise ValueError(f"The weight in --corpus must be a number above 0, received {corpus}.")
        parsed.append((corpus, 1.0) if weight is None else (path, weight))
    return parsed


def vocabulary_options(path: Path) -> dict[str, Any]:
    """Returns the `VOCABULARY_FIELDS` of a prepared corpus."""
    options = read_manifest(path)["options"]
    return {name: options.get(name) for name in VOCABULARY_FIELDS}  # older versions had fewer


def _check_corpora(config, languages):
    """Raises if prepared corpora do not fit the training or each other, by their manifests."""
    first, *others = [path for path, _ in parse_corpora(config.corpus)]
    manifest = read_manifest(first)
    for name in VOCABULARY_FIELDS:
        old, new = manifest["options"].get(name), getattr(config, name)
        if old != new:
            raise ValueError(f"{name} must be {old!r} for the corpus {first}, received {new!r}.")
    vocabularies = _vocabulary_checksums(manifest)
    for path in (first, *others):
        prepared_for = read_manifest(path)["options"].get("target_language")
        if languages.target and not prepared_for:
            options = " and ".join(f"--{side}-language" for side in languages.sides)
            raise ValueError(f"{path} was prepared without languages: prepare it with {options}.")
        if prepared_for and not languages.tokens:
            raise ValueError(
                f"{path} was prepared with languages, which the run does not have: give "
                "--start-from the imported model."
            )
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


# --- opening ---


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The data of a training."""

    pairs: Pairs  # the training text in memory; empty if it is prepared
    corpora: list[tuple[PreparedCorpus, float]]  # with their weights; empty if it is not
    valid: list[Pair]
    tokenizers: "tuple[saved.Saved, saved.Saved]"  # the same object twice if shared
    fingerprints: dict[str, Any]  # of `train` and `valid`, for `data.json`


def open_data(config: TrainConfig, run: Run, resume: bool) -> TrainingData:
    """Opens the data of a training: in memory or prepared, with the same batches."""
    if config.corpus:
        corpora = parse_corpora(config.corpus)
        return _open_corpora([(PreparedCorpus(path), weight) for path, weight in corpora], config)
    corpus = load_corpus(config)
    origin = run.path if resume else config.start_from
    tokenizers = train_tokenizers(config, corpus.train) if origin is None else saved.load(origin)
    prints = {"train": fingerprint(corpus.train), "valid": fingerprint(corpus.valid)}
    return TrainingData(corpus.train, [], corpus.valid, tokenizers, prints)


def train_tokenizers(config: TrainConfig, pairs: Pairs) -> "tuple[saved.Saved, saved.Saved]":
    """Learns the vocabularies from training pairs: a joint one if all embeddings are shared."""
    rows = sample_rows(len(pairs), config.vocabulary_sample, config.seed)
    joint = config.model.share_embeddings == "all"
    models = learn_vocabularies(lambda: (pairs[row] for row in rows), config, joint)
    source, target = map(saved.open_model, models)
    return source, source if models[0] == models[1] else target


def valid_pairs(run: Run) -> Sequence[Pair]:
    """Reads the validation set of a run, from the paths in its configuration."""
    config, known = run.read_config(), run.read_data().get("valid")
    if known is None:
        raise ValueError(f"the fingerprint of the validation set of {run} is missing.")
    if config.valid_source is None and config.corpus:
        pairs = PreparedCorpus(parse_corpora(config.corpus)[0][0]).valid
    else:
        pairs = load_valid(config)
    if fingerprint(pairs) != known:
        raise ValueError(f"the validation set of {run} has changed.")
    return pairs


def load_word_vectors(
    config: TrainConfig, model: "Transformer", tokenizers: tuple[Tokenizer, Tokenizer]
) -> str:
    """Loads word vectors into a new model, and prints their coverage; returns their hashes."""
    from keras_transformer.training.word_vectors import initialize_embeddings

    digests = []
    for side in config.pretrained:
        embedding, path = getattr(model, f"{side}_embedding"), getattr(config, f"{side}_vectors")
        coverage = initialize_embeddings(embedding, tokenizers[saved.SIDES.index(side)], path)
        print(f"{side} vectors: {coverage}", file=sys.stderr)
        digests.append(hashlib.sha256(np.array(embedding.embeddings).tobytes()).hexdigest())
    return " ".join(digests)


def _open_corpora(corpora, config):
    """Returns the data of a list of (`PreparedCorpus`, weight)."""
    first = corpora[0][0]
    valid = first.valid if config.valid_source is None else load_valid(config)
    train = [corpus.fingerprints["train"] for corpus, _ in corpora]
    if len(corpora) > 1:
        parts = [[part, weight] for part, (_, weight) in zip(train, corpora, strict=True)]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        train = [{"pairs": sum(part["pairs"] for part in train), "sha256": digest}]
    prints = {"train": train[0], "valid": fingerprint(valid)}
    return TrainingData([], corpora, valid, first.tokenizers, prints)


# --- preparing ---


def prepare(config: PrepareConfig, output: Path, processes: int | None = None) -> None:
    """Tokenizes a corpus of any size once, into a directory that trainings map into memory.

    The output depends on the text and the options only, not on `processes`; with
    `subword_sampling`, it differs each time. The directory is created when it is complete. Progress
    is printed on stderr.

    Args:
        config: `PrepareConfig`.
        output: Directory to create, for `PreparedCorpus`.
        processes: Number of blocks of text that are tokenized at once; by default one per core.

    Raises:
        ValueError: If the configuration, a file or the directory is invalid.

    Example:

    >>> config = PrepareConfig("part-*.en.gz", "part-*.de.gz", valid_fraction=0.001)
    >>> keras_transformer.prepare(config, "corpora/ende")
    """
    check_is_free(output, "choose another --output")
    if processes is not None and processes < 1:
        raise ValueError(f"processes must be at least 1, received {processes}.")
    if config.vocabularies is not None:
        config = dataclasses.replace(config, **_find_vocabulary_options(config))
    _check_vocabulary_files(config, config.vocabularies)
    ParallelText(config.train_source, config.train_target, "--train-target")
    if config.valid_source is not None:
        ParallelText(config.valid_source, config.valid_target, "--valid-target")
    origin = config.vocabularies and Run(config.vocabularies)
    known = origin.read_config().find_languages() if origin and origin.has(CONFIG) else Languages()
    languages = known.choose(config.source_language, config.target_language)
    chosen = {f"{side}_language": getattr(languages, side) for side in SIDES}
    config = dataclasses.replace(config, **chosen)  # written to the manifest
    languages.beginnings()  # raises if one is missing
    prepare_corpus(config, output, processes, languages)


def _find_vocabulary_options(config):
    """Returns the options of the reused vocabularies; raises if those of `config` differ."""
    run = Run(config.vocabularies)
    saved.require_paths(run)
    if run.has(MANIFEST):
        options = vocabulary_options(run)
        options["joint_vocabulary"] = read_manifest(run)["options"].get("joint_vocabulary")
    elif run.has(CONFIG):
        origin = run.read_config()
        options = {name: getattr(origin, name) for name in VOCABULARY_FIELDS}
        options["joint_vocabulary"] = origin.model.share_embeddings == "all"
    else:
        raise ValueError(
            f"--vocabularies must be a run directory or a prepared corpus, received {run}."
        )
    for name, value in options.items():
        received = getattr(config, name)
        if received not in (value, getattr(PrepareConfig, name)):
            raise ValueError(
                f"{name} must be {value!r} with --vocabularies {run}, received {received!r}."
            )
    return options
