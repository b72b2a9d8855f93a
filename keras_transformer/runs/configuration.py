"""Configuration files: writes a `TrainConfig` as YAML with comments, and reads it."""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

import yaml

from keras_transformer.inspection.files import read_bytes
from keras_transformer.presets import ModelConfig, TrainConfig, change
from keras_transformer.presets.imported import Imported
from keras_transformer.presets.options import FORMAT, check_format, help_of
from keras_transformer.utils import Path

RENAMED = {"peak": "learning_rate"}  # old names of fields, in files of this format
TABLES: dict[str, Any] = {"model": ModelConfig, "imported": Imported}  # fields with fields
MACHINE_FIELDS = ("parallel_microbatches",)  # depend on the machine: not written to files
MAX_BYTES = 1 << 16  # size limit of a file; `to_yaml` writes about 4,000 bytes


class _PlainLoader(yaml.SafeLoader):
    """Raises errors for repeated fields and for aliases, which could expand to a huge file."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        names = [key.value for key, _ in node.value]
        if twice := [name for name in names if names.count(name) > 1]:
            raise yaml.YAMLError(f"{twice[0]} is given twice")
        return super().construct_mapping(node, deep)


def to_yaml(config: TrainConfig) -> str:
    """Writes a configuration for `--config`, with a comment on each line.

    Args:
        config: `TrainConfig`.

    Returns:
        YAML.
    """
    lines = [f"format: {FORMAT}"]
    for field in dataclasses.fields(TrainConfig):
        if field.metadata.get("hidden") and getattr(config, field.name) == field.default:
            continue
        if title := field.metadata.get("section"):
            lines += ["", f"# {title}"]
        if field.name in TABLES:
            value, fields = getattr(config, field.name), dataclasses.fields(TABLES[field.name])
            lines += [f"{field.name}:", *_yaml_lines(value, fields, "  ")]
        elif field.name not in MACHINE_FIELDS:
            lines += _yaml_lines(config, [field], "")
    return "\n".join(lines) + "\n"


def from_yaml(path: Path, missing: Mapping[str, Any] | None = None) -> TrainConfig:
    """Reads a configuration that `to_yaml` has written, or some of its fields.

    Args:
        path: Name of a file, such as the `config.yaml` of a run.
        missing: Values of fields that the file omits, instead of their defaults.

    Returns:
        `TrainConfig`.
    """
    values = {**(missing or {}), **read_values(path, None)}
    try:
        return change(TrainConfig(), values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_values(path: Path, default_format: int | None = FORMAT) -> dict[str, Any]:
    """Reads the values in a configuration file, for `presets.change`.

    Args:
        path: Name of the file.
        default_format: The format of a file that does not name it; None if it has to.
    """
    content = read_bytes(path, MAX_BYTES)
    try:
        fields = yaml.load(content.decode(), _PlainLoader)
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be UTF-8: check the path.") from None
    # YAML raises ValueError for an invalid date.
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is not valid YAML: {reason}.") from None
    except RecursionError:  # its message differs from call to call
        raise ValueError(f"{path} is not valid YAML: it is nested too deeply.") from None
    if not isinstance(fields, dict):
        raise ValueError(
            f"{path} is not a configuration: expected lines such as epochs: 20; keras-transformer "
            "config prints an example."
        )
    check_format(str(path), fields.pop("format", default_format))
    return _read_fields(TrainConfig, fields, str(path))


def _yaml_lines(config, fields, indent):
    """Writes fields as lines of YAML with comments."""
    lines = []
    for field in fields:
        value = getattr(config, field.name)
        value = list(value) if isinstance(value, tuple) else value
        options: dict[str, Any] = dict(
            default_flow_style=True, width=float("inf"), allow_unicode=True
        )
        value = yaml.safe_dump([value], **options).strip()[1:-1]  # without the brackets
        comment = help_of(field)
        if field.type is not str:  # for which "none" may be a value
            comment = re.sub(r"\bnone(?=:)", "null", comment)
        lines.append(f"{indent}{field.name}: {value}  # {comment}")
    return lines


def _read_fields(kind: Any, fields: dict[Any, Any], path: str) -> dict[str, Any]:
    """Reads the values of a table, those of the model included, with the types of the fields."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        name = RENAMED.get(name, name)
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            advice = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(hints)}."
            if name in typing.get_type_hints(ModelConfig):
                advice = "indent it below model."
            raise ValueError(f"{path}: unknown field {name!r}; {advice}")
        if name == "model" and isinstance(value, dict):
            values |= _read_fields(ModelConfig, value, path)
        elif name == "imported" and isinstance(value, dict):
            values[name] = _make_imported(_read_fields(Imported, value, path), path)
        else:
            values[name] = _convert_value(value, hints[name], name, path)
    return values


def _make_imported(fields, path):
    try:
        return Imported(**fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _convert_value(value: Any, hint: Any, name: str, path: str) -> Any:
    """Converts a value to the type of a field."""
    if typing.get_origin(hint) is tuple:
        value = [] if value is None else value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ValueError(f"{path}: {name} must be a list of strings, received {value!r}.")
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in kinds:
        return value
    if float in kinds and type(value) in (int, str):
        try:  # YAML reads 1e-3, without a point, as a string
            return float(value)
        except ValueError:
            pass
    if value is None and type(None) in kinds:
        return None
    raise ValueError(f"{path}: {name} must be {_describe_types(kinds)}, received {value!r}.")


def _describe_types(kinds):
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    names |= {type(None): "null", ModelConfig: "a table of sizes", Imported: "a table"}
    return " or ".join(names[kind] for kind in kinds)
