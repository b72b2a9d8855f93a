"""What an importer finds in the files of a model, before TensorFlow is loaded."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_transformer.importers.tensors import StoredTensor
from keras_transformer.importers.vocabularies import Vocabulary
from keras_transformer.presets import ModelConfig, SearchConfig
from keras_transformer.utils import Path

# Files that may name the licence, and how.
LICENCES = {"README.md": r"(?m)^licen[cs]e:[ \t]*\"?([^\s\"]+)", "LICENSE": r"(\S[^\n]*)"}
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu"}


@dataclasses.dataclass
class SourceModel:
    """A model of another system.

    Attributes:
        path: Its folder.
        kind: What made it, such as `"Marian"`.
        weights: Path of the file with its tensors.
        licence: As its files name it, or `"unknown"`.
        config: Its architecture; `share_embeddings` is what its configuration says.
        tensors: {name: `StoredTensor`}.
        name_tensor: Function from the stack, `"encoder"` or `"decoder"`, the layer's index, the
            part, `"self"`, `"cross"`, `"feed_forward"` or, for the last normalization of pre-norm
            stacks, `"final"`, the sublayer, such as `"query"`, and the weight, such as `"kernel"`,
            to the name of the tensor.
        transposed: Whether kernels are stored as (outputs, inputs).
        embeddings: Names that the matrices of `source`, `target` and `output` may have, the best
            first; those of the output projection are (V, D) too.
        bias: Name of the softmax bias; empty if there is none.
        output_kernel: Name of an output projection (D, V).
        tables: Names of tables of positions: they must be those that are computed.
        source, target: The vocabularies.
        search: The search that its configuration asks for.
        source_end: Whether sources end with END.
        notes: What is done otherwise than its files say, one sentence each.
    """

    path: str
    kind: str
    weights: str
    licence: str
    config: ModelConfig
    tensors: dict[str, StoredTensor]
    name_tensor: Callable[[str, int, str, str, str], str]
    transposed: bool
    embeddings: dict[str, list[str]]
    bias: str
    source: Vocabulary
    target: Vocabulary
    search: SearchConfig
    output_kernel: str = ""
    tables: tuple[str, ...] = ()
    source_end: bool = True
    notes: list[str] = dataclasses.field(default_factory=list)


def parse_yaml(path: Path, content: bytes) -> dict[str, Any]:
    """Parses a YAML file with options; objects are not constructed.

    Args:
        path: Name of the file, for errors.
        content: What it contains.
    """
    import yaml

    try:
        options = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise ValueError(f"{path} must hold options such as beam-size: 6.")
    return options


def read_size(path: Path, options: Mapping[str, Any], *names: str) -> int:
    """Returns a size; several names must agree.

    Args:
        path: Name of the file, for errors.
        options: What it contains.
        *names: Names of the option.
    """
    values: list[int] = []
    for name in names:
        value = options.get(name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{path}: {name} must be a positive integer, received {value!r:.40}.")
        values.append(value)
    if len(set(values)) > 1:
        raise ValueError(
            f"{path}: {' and '.join(names)} must be equal, received {values}: such models are not "
            "supported."
        )
    return values[0]


def check_options(
    path: Path, options: Mapping[str, Any], allowed: Mapping[str, Iterable[Any]]
) -> None:
    """Checks options of a model's configuration; one that is missing has its default.

    Args:
        path: Name of the file, for errors.
        options: What it contains.
        allowed: {name: values that the Transformer of this package can have}.
    """
    for name, values in allowed.items():
        if name in options and not any(
            type(options[name]) is type(x) and options[name] == x for x in values
        ):
            expected = " or ".join(map(_show, values))
            raise ValueError(
                f"{path}: {name} must be {expected}, received {_show(options[name])}: such models "
                "are not supported."
            )


def _show(value):
    return repr(value)[:60] if not isinstance(value, bool) else str(value).lower()


def read_activation(path: Path, options: Mapping[str, Any], name: str) -> str:
    """Returns Keras' name of the activation."""
    check_options(path, {name: options.get(name)}, {name: ACTIVATIONS})
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
