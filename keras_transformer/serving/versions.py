"""The directories below base/ that TF Serving takes for versions of a model, and their cards."""

import dataclasses
import os
import re
from typing import Any

from keras_transformer.presets import GREEDY, SearchConfig
from keras_transformer.utils import Path, check_types, read_sealed

PARTS: dict[str, dict[str, type]] = {  # of a card, with the types of the fields that are read
    "architecture": {"max_length": int},
    "precision": {"computation": str},
    "recipe": {"bleu_tokenize": str},
    "imported": {"language_tags": list},
    "vocabulary": {"source": dict, "target": dict, "end": str},
    "signatures": {},
    "versions": {},
}
CARD = "model.json"
PLACEHOLDERS = ("a", "b c", "")  # example texts of a model exported without pairs
DEFAULT = "serving_default"  # the signature of requests that name none
MAX_VERSION = 2**63 - 1  # TF Serving keeps versions as int64
# What TF Serving reads as a version: "7", and "00007" as well. int() would also take "1_000".
VERSION_NAME = re.compile(r"\s*\+?[0-9]+\s*")


def versions(base: Path) -> dict[int, str]:
    """The entries of `base` that a server takes for versions: {number: name}.

    Files count: the server looks at names only, and a rename onto a file would fail.
    """
    names = os.listdir(base) if os.path.isdir(base) else []
    numbers = {int(name): name for name in names if VERSION_NAME.fullmatch(name)}
    return {number: name for number, name in numbers.items() if number <= MAX_VERSION}


def version_dir(path: Path) -> Path:
    """`path` itself when it holds a SavedModel, else its highest version."""
    if not os.path.isfile(os.path.join(path, "saved_model.pb")) and (taken := versions(path)):
        path = os.path.join(path, taken[max(taken)])
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return path
    raise ValueError(
        f"{path} does not contain a SavedModel: expected a version with saved_model.pb, or a "
        "directory of such versions, as keras_transformer.export writes them."
    )


def read_card(version_dir: Path) -> dict[str, Any]:
    """Reads the model card of a version; an empty dict if it has none."""
    path = os.path.join(version_dir, CARD)
    if not os.path.exists(path):
        return {}
    card = read_sealed(path)
    check_types(path, card, dict.fromkeys(PARTS, dict))
    for part, kinds in PARTS.items():
        check_types(f"{path}: {part}", card.get(part, {}), kinds)
    for name, signature in card.get("signatures", {}).items():
        check_types(f"{path}: signatures", {name: signature}, {name: dict})
        example = signature.get("example", {"inputs": {}, "outputs": {}})
        if not isinstance(example, dict) or set(example) != {"inputs", "outputs"}:
            raise ValueError(f"{path}: the example of {name} needs inputs and outputs.")
        check_types(f"{path}: {name}", example, {"inputs": dict, "outputs": dict})
    return card


def find_exported_search(directory: Path, beam_size: int) -> SearchConfig:
    """Returns the search of an export's signatures: greedy search, or that of `beam` if wider.

    It is in the card, because the graph does not name it.
    """
    directory = version_dir(os.fspath(directory))
    try:
        card = read_card(directory)
        length = card.get("max_output_length")  # earlier cards lack it
        if beam_size == 1:
            return dataclasses.replace(GREEDY, max_output_length=length)
        options = card["signatures"]["beam"]
        norm = options.get("length_norm", SearchConfig.length_norm)  # likewise
        return SearchConfig(
            options["beam_size"],
            options["length_penalty"],
            length_norm=norm,
            max_output_length=length,
        )
    except (ValueError, KeyError, TypeError):
        if beam_size == 1:
            return GREEDY
        raise ValueError(
            f"{directory} has no {CARD} with the options of its signature beam: copy it from the "
            "export, or leave out --beam-size."
        ) from None
