"""Prepares a corpus for trainings: `keras-transformer prepare`."""

import dataclasses
import os
from typing import Any

from keras_transformer.corpora.parallel_text import ParallelText
from keras_transformer.data.prepared.manifest import MANIFEST
from keras_transformer.data.prepared.prepare import prepare_corpus
from keras_transformer.presets import PrepareConfig
from keras_transformer.runs import files
from keras_transformer.runs.prepared import VOCABULARY, vocabulary_options
from keras_transformer.runs.vocabulary_options import check_files
from keras_transformer.streams import lasting_stderr
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path


@lasting_stderr()
def prepare(config: PrepareConfig, output: Path, processes: int | None = None) -> None:
    """Tokenizes a corpus of any size once, into a directory that trainings map into memory.

    The same text and options give the same bytes, with however many processes. Interrupted, it goes
    on from the last whole shard when it is called again. What is done goes to stderr.

    Args:
        config: `PrepareConfig`.
        output: Directory to make, which `PreparedCorpus` opens.
        processes: How many tokenize; by default one for each core. None of them loads TensorFlow,
            but for the lines of a unigram vocabulary that rounding decides.

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
    prepare_corpus(_checked(config), output, processes)


def _checked(config):
    """The configuration, with what the vocabularies that it takes were learned with."""
    if config.vocabularies is not None:
        config = dataclasses.replace(config, **_taken(config))
    check_files(config, config.vocabularies)
    ParallelText(config.train_source, config.train_target, "--train-target")
    if config.valid_source is not None:
        ParallelText(config.valid_source, config.valid_target, "--valid-target")
    return config


def _taken(config):
    """Options of the vocabularies of a run or a corpus; refuses those that contradict them."""
    path = config.vocabularies
    source, target = saved.read(path)
    options: dict[str, Any] = {}
    if os.path.exists(os.path.join(path, MANIFEST)):
        options = vocabulary_options(path)
    elif os.path.exists(os.path.join(path, files.CONFIG)):
        run = files.read_config(path)
        options = {name: getattr(run, name) for name in VOCABULARY}
    else:
        raise ValueError(f"{path} is neither a run directory nor a prepared corpus.")
    options["joint_vocabulary"] = source == target
    for name, value in options.items():
        received = getattr(config, name)
        if received not in (value, getattr(PrepareConfig, name)):
            raise ValueError(
                f"{path} has {name}={value!r}, received {received!r}: what takes its vocabularies "
                "has them as they are; leave out that option."
            )
    return options
