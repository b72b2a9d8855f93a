"""What an importer finds in the files of a model, before TensorFlow is loaded."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keras_transformer.presets import ModelConfig, SearchConfig
from keras_transformer.tools.importers.tensors import StoredTensor
from keras_transformer.tools.importers.vocabularies import Vocabulary
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


def list_files(folder: Path) -> list[str]:
    """Returns the names in a folder, without hidden ones such as `._model.npz` of macOS."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


class NamedFiles:
    """Finds the files that a configuration names, also if they have moved to some folders.

    Two names never become one file: then a copy of one has replaced the other.
    """

    def __init__(self, path: Path, *folders: str) -> None:
        self._path, self._folders = path, folders
        self._names: dict[str, str] = {}

    def find(self, value: Any) -> str:
        """Returns the path of a file; one outside the folders is named by an absolute path."""
        if not isinstance(value, str):
            raise ValueError(f"{self._path} must name a file, received {value!r:.40}.")
        places = [value] if os.path.isabs(value) else []
        names = [os.path.basename(value)]
        if not places and ".." not in value.replace("\\", "/").split("/"):
            names.insert(0, value)
        places += [os.path.join(folder, name) for name in names for folder in self._folders]
        place = next(filter(os.path.isfile, places), None)
        if place is None:
            raise ValueError(
                f"{places[-1]} is missing: copy all files that {self._path} names there."
            )
        place, value = os.path.abspath(place), os.path.normpath(value)
        if (other := self._names.setdefault(place, value)) != value:
            raise ValueError(
                f"{self._path} names {other} and {value}, but there is one file for both, {place}: "
                "give the copies different names, there and in the configuration."
            )
        return place


def parse_yaml(path: Path, content: bytes) -> dict[str, Any]:
    """Parses a YAML file with options; objects are not constructed."""
    import yaml

    try:
        options = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(options, dict):
        raise ValueError(f"{path} must hold options such as beam-size: 6.")
    return options


def read_size(path: Path, options: Mapping[str, Any], *names: str) -> int:
    """Returns a size; several names of it must agree."""
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
    """Checks that options have the values that this package can have, or are missing."""
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


def read_option(options: Mapping[str, Any], name: str, default: Any) -> Any:
    """Returns an option; the default also where it is null."""
    value = options.get(name)
    return default if value is None else value


def list_ignored(options: Mapping[str, Any], neutral: Mapping[str, Iterable[Any]]) -> list[str]:
    """Returns a note for each option that is neither off nor has one of its neutral values."""
    off: tuple[Any, ...] = None, False, "", [], {}
    return [
        f"{name} {_show(value)} of the configuration is ignored."
        for name, values in neutral.items()
        if (value := options.get(name)) not in values
        and not any(type(value) is type(x) and value == x for x in off)  # 0 may be an id
    ]


def make_config(path: Path, layers: int, decoder_layers: int, **options: Any) -> ModelConfig:
    """Makes the architecture; errors name the file that the options are from."""
    depth = None if decoder_layers == layers else decoder_layers
    try:
        return ModelConfig(
            num_layers=layers, num_decoder_layers=depth, suppress_ids=True, **options
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def make_search(name: Path, length_penalty: Any, **options: Any) -> SearchConfig:
    """Makes the search; errors say that its options are from `name`."""
    try:
        return SearchConfig(length_penalty=float(length_penalty), **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search of {name} is invalid: {error}") from None


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
