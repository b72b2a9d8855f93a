"""Prepares a corpus for trainings: `keras-transformer prepare`."""

import dataclasses
import os
from typing import Any

from keras_transformer.data.prepared.prepare import prepare_corpus
from keras_transformer.data.prepared.prepare_config import PrepareConfig
from keras_transformer.data.prepared.prepared_corpus import MANIFEST
from keras_transformer.data.text_files import ParallelText
from keras_transformer.runs import files
from keras_transformer.runs.prepared import VOCABULARY, vocabulary_options
from keras_transformer.runs.vocabulary_options import check_files, check_vocabularies
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
        ValueError: If the configuration, a file or the directory is at fault.

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
    check_vocabularies(config, config.joint_vocabulary, "--no-joint-vocabulary")
    check_files(config, config.vocabularies)
    if config.vocabulary_sample < 1:
        raise ValueError(
            f"vocabulary_sample must be at least 1, received {config.vocabulary_sample}."
        )
    if not 0 <= config.seed < 2**31:
        raise ValueError(f"seed must be at least 0 and less than 2^31, received {config.seed}.")
    fraction = config.valid_fraction
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"valid_fraction must be above 0 and below 1, received {fraction}.")
    if config.valid_source is not None and fraction is not None:
        raise ValueError(
            f"--valid-fraction {fraction} is for corpora without --valid-source: leave out one of "
            "the two."
        )
    if config.valid_target is not None and config.valid_source is None:
        raise ValueError("--valid-source is missing: name it along with --valid-target.")
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
