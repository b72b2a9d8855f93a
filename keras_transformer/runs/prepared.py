"""Prepared corpora in a configuration: which, with what weights, and whether they fit it."""

import math
import os
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.prepared.prepared_corpus import VALID, read_manifest
from keras_transformer.presets import TrainConfig
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path

# What vocabularies are learned with: fields of `TrainConfig` and of `PrepareConfig`.
VOCABULARY = (
    *("vocabulary_size", "source_vocabulary_size", "target_vocabulary_size"),
    *("model_type", "lowercase", "nfkc"),
)


def parse_corpora(corpora: Sequence[str]) -> list[tuple[str, float]]:
    """Reads how corpora are to be mixed.

    Args:
        corpora: `path` or `path:weight` of each.

    Returns:
        List of paths and weights; 1 where none is given.

    Raises:
        ValueError: If a weight is not positive.
    """
    return [_parse(corpus) for corpus in corpora]


def vocabulary_options(path: Path) -> dict[str, Any]:
    """What the vocabularies of a prepared corpus were learned with, by the names of `VOCABULARY`.

    Raises:
        ValueError: If `path` is none.
    """
    options = read_manifest(path)["options"]
    return {name: options.get(name) for name in VOCABULARY}  # earlier versions had fewer


def check_corpora(config: TrainConfig) -> None:
    """Refuses prepared corpora that do not fit a training or each other, by their manifests.

    Raises:
        ValueError: If there is one.
    """
    if not config.corpus:
        return
    paths = [path for path, _ in parse_corpora(config.corpus)]
    manifests = [read_manifest(path) for path in paths]
    _check_options(config, paths[0], manifests[0])
    vocabularies = [_vocabularies(one["files"]) for one in manifests]
    for path, vocabulary in zip(paths, vocabularies, strict=True):
        if vocabulary != vocabularies[0]:
            raise ValueError(
                f"{path} was prepared with other vocabularies than {paths[0]}: prepare it with "
                f"--vocabularies {paths[0]}."
            )
    if config.model.share_embeddings == "all" and vocabularies[0][0] != vocabularies[0][1]:
        raise ValueError(
            f"{paths[0]} has a vocabulary for each side, and --share-embeddings all needs one for "
            "both: take --share-embeddings target, or prepare it without --no-joint-vocabulary."
        )
    if config.start_from is not None:
        _check_same_vocabularies(paths[0], config.start_from)
    if config.valid_source is None and VALID[0] not in manifests[0]["files"]:
        raise ValueError(
            f"{paths[0]} was prepared without a validation part, which the best model is chosen "
            "by: name one by --valid-source."
        )


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


def _check_options(config, path, manifest):
    """Refuses a configuration that asks for another vocabulary."""
    for name in VOCABULARY:
        old, new = manifest["options"].get(name), getattr(config, name)
        if old != new:
            raise ValueError(
                f"{path} was prepared with {name}={old!r}, received {new!r}: leave out that option "
                "or give the same; with another vocabulary, the corpus must be prepared anew."
            )


def _check_same_vocabularies(path, run):
    """Refuses a corpus with another vocabulary than a run that is started from."""
    if saved.read(path) != saved.read(run):
        raise ValueError(
            f"{path} was prepared with another vocabulary than that of {run}, which a training "
            f"that starts from it has: prepare it with --vocabularies {run}."
        )


def _vocabularies(files):
    """What a manifest says of the vocabularies: their sizes and checksums."""
    return [files[name] for name in saved.names(files.__contains__)]
