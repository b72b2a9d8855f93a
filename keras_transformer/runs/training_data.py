"""The data of trainings: text in memory, or corpora that `prepare` has tokenized."""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from glob import glob
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.data.corpora import load_corpus, load_valid, sample_rows
from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.data.prepare import prepare_corpus
from keras_transformer.data.prepared_corpus import MANIFEST, PreparedCorpus, read_manifest
from keras_transformer.data.text_files import ParallelText, text_size
from keras_transformer.presets import PrepareConfig, TrainConfig
from keras_transformer.presets.options import check_vocabularies
from keras_transformer.runs.checks import (
    VOCABULARY_FIELDS,
    check_vocabulary_files,
    parse_corpora,
    sides_with_vectors,
    vocabulary_options,
)
from keras_transformer.runs.run import CONFIG, CORPUS, TEXTS, VOCABULARIES, Run
from keras_transformer.runs.streams import tolerate_closed_stderr
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.tokenizer import Tokenizer
from keras_transformer.tokenizers.vocabularies import learn_vocabularies
from keras_transformer.training.cluster import cluster_for_strategy
from keras_transformer.utils import Pairs, Path

if TYPE_CHECKING:
    from keras_transformer.data.pairs import EncodedPairs
    from keras_transformer.transformer import Transformer

# Text up to about this size in bytes is read into memory: half a million pairs, some hundred MB as
# strings, a minute to tokenize. Larger text is prepared on disk.
MAX_IN_MEMORY = 64_000_000


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The data of a training.

    Attributes:
        source: Arguments of `make_dataset`: `pairs` and tokenizers, or a `corpus`.
        valid: List of `Pair`, the validation set.
        tokenizers: The source and the target tokenizer, the same object if shared.
        fingerprints: Fingerprints of `train` and `valid`, for `data.json`.
    """

    source: dict[str, Any]
    valid: list[Pair]
    tokenizers: "tuple[saved.Saved, saved.Saved]"
    fingerprints: dict[str, Any]

    @property
    def digest(self) -> str:
        """A string that identifies text and vocabularies."""
        models = [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in self.tokenizers]
        return json.dumps([self.fingerprints, models], sort_keys=True)


# --- opening ---


def open_data(
    config: TrainConfig, run: Run, resume: bool, accept_changed_text: bool = False
) -> TrainingData:
    """Opens the data of a training: in memory or prepared, with the same batches.

    Args:
        config: `TrainConfig`.
        run: The run. Text larger than `MAX_IN_MEMORY` is prepared into its `corpus`, or into
            `run.staged_corpus` before the run exists.
        resume: Whether to resume the run.
        accept_changed_text: Whether to read the text again if it is prepared already.
    """
    mix = _open_or_prepare_corpora(config, run, resume, accept_changed_text)
    corpus = None if mix else load_corpus(config)
    if corpus is None:
        return _make_corpus_data(config, mix)
    origin = run.path if resume else config.start_from
    tokenizers = train_tokenizers(config, corpus.train) if origin is None else saved.load(origin)
    source = dict(zip(("source_tokenizer", "target_tokenizer"), tokenizers, strict=True))
    prints = {"train": fingerprint(corpus.train), "valid": fingerprint(corpus.valid)}
    return TrainingData({"pairs": corpus.train} | source, corpus.valid, tokenizers, prints)


def train_tokenizers(config: TrainConfig, pairs: Pairs) -> "tuple[saved.Saved, saved.Saved]":
    """Learns the vocabularies from training pairs: a joint one if all embeddings are shared.

    Returns:
        The source and the target tokenizer.
    """
    rows = sample_rows(len(pairs), config.vocabulary_sample, config.seed)
    options = {name: getattr(config, name) for name in (*VOCABULARY_FIELDS, *VOCABULARIES)}
    joint = config.model.share_embeddings == "all"
    models = learn_vocabularies(lambda: (pairs[row] for row in rows), **options, joint=joint)
    source, target = map(saved.open_model, models)
    return source, source if models[0] == models[1] else target


def valid_pairs(run: Run) -> Sequence[Pair]:
    """Reads the validation set of a run, from the paths in its configuration."""
    config, known = run.read_config(), run.read_data().get("valid")
    if known is None:
        raise ValueError(f"the fingerprint of the validation set of {run} is missing.")
    if config.valid_source is None and (config.corpus or os.path.isdir(run.file(CORPUS))):
        first = parse_corpora(config.corpus)[0][0] if config.corpus else run.file(CORPUS)
        pairs = PreparedCorpus(first).valid
    else:
        for name in filter(None, (getattr(config, text) for text in TEXTS)):
            if not (os.path.exists(name) or glob(name)):
                raise ValueError(f"{name} does not exist: check the path.")
        pairs = load_valid(config)
    if fingerprint(pairs) != known:
        raise ValueError(f"the validation set of {run} has changed.")
    return pairs


def load_word_vectors(
    config: TrainConfig,
    model: "Transformer",
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: "EncodedPairs",
) -> dict[str, Any]:
    """Loads word vectors into a new model, and prints their coverage on stderr.

    Args:
        config: `TrainConfig`.
        model: The model, built.
        tokenizers: The source and the target tokenizer.
        pairs: The training data, for the coverage of running tokens.

    Returns:
        Dict of `vectors`, for `data.json`: for each side with word vectors, its `Coverage` as a
        dict and the hash of the embeddings. Empty without word vectors.
    """
    from keras_transformer.training.word_vectors import initialize_embeddings

    covered = {}
    for side in sides_with_vectors(config):
        number = saved.SIDES.index(side)
        counts = (pairs.source, pairs.target)[number].count(tokenizers[number].vocabulary_size)
        embedding, path = getattr(model, f"{side}_embedding"), getattr(config, f"{side}_vectors")
        coverage = initialize_embeddings(embedding, tokenizers[number], path, counts)
        print(f"{side} vectors: {coverage}", file=sys.stderr)
        digest = hashlib.sha256(np.array(embedding.embeddings).tobytes()).hexdigest()
        covered[side] = dataclasses.asdict(coverage) | {"sha256": digest}
    return {"vectors": covered} if covered else {}


def _open_or_prepare_corpora(config, run, resume, accept_changed_text):
    """Returns a list of (`PreparedCorpus`, weight); empty if text is read into memory."""
    if config.corpus:
        corpora = parse_corpora(config.corpus)
        return [(PreparedCorpus(path), weight) for path, weight in corpora]
    if config.train_source is None:
        return []
    if resume and not accept_changed_text and run.has(CORPUS):
        return [(PreparedCorpus(run.file(CORPUS)), 1.0)]
    text = ParallelText(config.train_source, config.train_target)
    if sum(text_size(x) for pair in text.files for x in pair if x is not None) <= MAX_IN_MEMORY:
        return []
    if cluster_for_strategy(config.strategy) is not None:
        raise ValueError(
            f"{config.train_source} is too large to be read by each worker: prepare it with "
            "keras-transformer prepare, and give the result to all workers by --corpus."
        )
    # The options that give the same batches as in memory.
    names = {field.name for field in dataclasses.fields(PrepareConfig)}
    preparation = PrepareConfig(
        **{name: value for name, value in vars(config).items() if name in names},
        vocabularies=run.path if resume else config.start_from,
        joint_vocabulary=config.model.share_embeddings == "all",
    )
    prepare_corpus(preparation, run.staged_corpus)
    return [(PreparedCorpus(run.staged_corpus), 1.0)]


def _make_corpus_data(config, mix):
    """Makes the `TrainingData` of prepared corpora."""
    first = mix[0][0]
    valid = first.valid if config.valid_source is None else load_valid(config)
    train = [corpus.fingerprints["train"] for corpus, _ in mix]
    if len(mix) > 1:
        parts = [[part, weight] for part, (_, weight) in zip(train, mix, strict=True)]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        train = [{"pairs": sum(part["pairs"] for part in train), "sha256": digest}]
    prints = {"train": train[0], "valid": fingerprint(valid)}
    return TrainingData({"corpus": mix}, valid, first.tokenizers, prints)


# --- preparing ---


@tolerate_closed_stderr()
def prepare(config: PrepareConfig, output: Path, processes: int | None = None) -> None:
    """Tokenizes a corpus of any size once, into a directory that trainings map into memory.

    The output depends on the text and the options only, not on `processes`; with
    `subword_sampling`, it differs each time. After an interruption, the same call resumes after the
    last complete shard. Progress is printed on stderr.

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
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise ValueError(f"{output} is not empty: choose another --output.")
    if processes is not None and processes < 1:
        raise ValueError(f"processes must be at least 1, received {processes}.")
    prepare_corpus(_check_preparation(config), output, processes)


def _check_preparation(config):
    """Checks a configuration; returns it with the options of the vocabularies that it reuses."""
    if config.vocabularies is not None:
        config = dataclasses.replace(config, **_find_vocabulary_options(config))
        check_vocabularies(config, config.joint_vocabulary, "--no-joint-vocabulary")
    check_vocabulary_files(config, config.vocabularies)
    ParallelText(config.train_source, config.train_target, "--train-target")
    if config.valid_source is not None:
        ParallelText(config.valid_source, config.valid_target, "--valid-target")
    return config


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
                f"{name} must be {value!r} with --vocabularies {run}, received {received!r}: "
                "leave out the option."
            )
    return options
