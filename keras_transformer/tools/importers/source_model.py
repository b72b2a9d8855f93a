"""What an importer finds in the files of a model, before TensorFlow is loaded."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.presets import ModelConfig
from keras_transformer.presets.options import Imported
from keras_transformer.tools.importers.vocabularies import Vocabulary
from keras_transformer.utils import Path

# Files that may name the licence, and how.
LICENCES = {"README.md": r"(?m)^licen[cs]e:[ \t]*\"?([^\s\"]+)", "LICENSE": r"(\S[^\n]*)"}
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu"}


@dataclasses.dataclass
class SourceModel:
    """A model of another system.

    Attributes:
        weights: Path of the file with its tensors, or of their index.
        imported: What made it, its licence, and the search that its configuration asks for.
        config: Its architecture; the tensors decide which embeddings are shared.
        tensors: Its tensors by their names.
        name_tensor: Function from the stack, `"encoder"` or `"decoder"`, the layer's index, the
            part, `"self"`, `"cross"`, `"feed_forward"` or, for the last normalization of pre-norm
            stacks, `"final"`, the sublayer, such as `"query"`, and the weight, such as `"kernel"`,
            to the name of the tensor.
        transposed: Whether kernels are stored as (outputs, inputs).
        embeddings: Names that the matrices of `source`, `target` and `output`, all (V, D), may
            have, the best first.
        bias: Name of the softmax bias, if there is one.
        source, target: The vocabularies.
        source_end: Whether sources end with END.
        shards: Paths of the files that the index names.
        notes: What is done otherwise than its files say, one sentence each.
    """

    weights: str
    imported: Imported
    config: ModelConfig
    tensors: dict[str, np.ndarray]
    name_tensor: Callable[[str, int, str, str, str], str]
    transposed: bool
    embeddings: dict[str, list[str]]
    bias: str
    source: Vocabulary
    target: Vocabulary
    source_end: bool = True
    shards: Sequence[str] = ()
    notes: Sequence[str] = ()


def list_files(folder: Path) -> list[str]:
    """Returns the names in a folder, without hidden ones such as `._model.npz` of macOS."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


def find_files(path: str, names: Sequence[str]) -> list[str]:
    """Finds the files that a configuration names, also if they have moved beside it.

    Two names never become one file: then a copy of one has replaced the other.
    """
    folder, found = os.path.dirname(path), []
    for name in names:
        places = [os.path.join(folder, x) for x in (name, os.path.basename(name))]
        place = next(filter(os.path.isfile, places), None)
        if place is None:
            raise ValueError(f"{places[1]} is missing: copy all files that {path} names there.")
        found.append(os.path.abspath(place))
    if len(set(found)) < len(set(map(os.path.normpath, names))):
        raise ValueError(
            f"{path} names {', '.join(names)}, but there is one file for two of them: give the "
            "copies different names, there and in the configuration."
        )
    return found


def check_options(
    path: Path, options: Mapping[str, Any], allowed: Mapping[str, Iterable[Any]]
) -> None:
    """Checks that options have the values that this package can have, or are missing."""
    for name, values in allowed.items():
        if name in options and not _is_in(options[name], values):
            expected = " or ".join(map(_show, values))
            raise ValueError(
                f"{path}: {name} must be {expected}, received {_show(options[name])}: such models "
                "are not supported."
            )


def list_ignored(options: Mapping[str, Any], neutral: Mapping[str, Iterable[Any]]) -> list[str]:
    """Returns a note for each option that is neither off nor has one of its neutral values."""
    off: tuple[Any, ...] = None, False, "", [], {}  # 0 may be an id
    return [
        f"{name} {_show(value)} of the configuration is ignored."
        for name, values in neutral.items()
        if (value := options.get(name)) not in values and not _is_in(value, off)
    ]


def _is_in(value, values):
    return any(type(value) is type(x) and value == x for x in values)


def _show(value):
    return repr(value)[:60] if not isinstance(value, bool) else str(value).lower()


def make_config(path: Path, **options: Any) -> ModelConfig:
    """Makes the architecture; errors name the file that the options are from."""
    try:
        if missing := [name for name, value in options.items() if value is None]:
            raise ValueError(f"it does not say {missing[0]}.")
        return ModelConfig(share_embeddings="none", suppress_ids=True, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def read_activation(path: Path, options: Mapping[str, Any], name: str) -> str:
    """Returns Keras' name of the activation."""
    check_options(path, {name: None, **options}, {name: ACTIVATIONS})
    return ACTIVATIONS[options[name]]


def read_licence(folder: Path) -> str:
    """Returns the licence: of the head of README.md, or the first line of LICENSE."""
    for name, pattern in LICENCES.items():
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                if found := re.search(pattern, file.read(1 << 14)):
                    return found[1][:100]
    return "unknown"
