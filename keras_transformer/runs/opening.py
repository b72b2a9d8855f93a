"""Looks at a run directory that others may have made, before anything of it is loaded."""

import os
from typing import Any

from keras_transformer.inspection.checksums import check_files
from keras_transformer.inspection.model_config import MODEL as TRANSFORMER
from keras_transformer.inspection.model_config import check_weights, read_model_config
from keras_transformer.inspection.probing import Probe
from keras_transformer.runs.files import (
    CONFIG,
    DATA,
    MODEL,
    MODEL_SCORES,
    describe,
    is_run,
    read_scores,
)
from keras_transformer.tokenizers import saved
from keras_transformer.typing import Path


def inspect_run(path: Path) -> dict[str, Any]:
    """Refuses a run that is damaged, or made to do more than to translate.

    Its files are compared with their checksums; what native code reads is tried in a process of its
    own; and nothing is made but what this package, Keras' numbers and the calling program's
    registered classes are. It imports neither Keras nor TensorFlow.

    Args:
        path: A run directory.

    Returns:
        The run as `describe` has it.

    Raises:
        ValueError: If it is no run directory, or not fit to be loaded.
    """
    if not is_run(path):
        raise ValueError(
            f"{path} is no run directory (no {MODEL} and {saved.NAMES[0]} in it): give the "
            "--output of a training that has finished an epoch."
        )
    model, vocabularies = os.path.join(path, MODEL), saved.paths(path)
    others = [os.path.join(path, name) for name in (CONFIG, DATA)]
    sealed = [model, *vocabularies, *filter(os.path.exists, others)]
    check_files(path, read_scores(path), MODEL_SCORES, map(os.path.basename, sealed))
    description = describe(path)
    vocabularies = saved.both(path)
    answer, *sides = Probe([model, *vocabularies]).answers()
    config = read_model_config(model, answer["config"])
    check_weights(model, config, answer["weights"])
    if config["registered_name"] == TRANSFORMER:
        for name, side, vocabulary in zip(("source", "target"), sides, vocabularies, strict=True):
            size = config["config"][f"{name}_vocabulary_size"]
            if side["pieces"] != size:
                raise ValueError(
                    f"{vocabulary} has {side['pieces']:,} pieces, its model {size:,} ids: it is "
                    "another model's."
                )
    return description
