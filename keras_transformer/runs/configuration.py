"""A training's configuration as a file: `TrainConfig` as YAML with comments, and back."""

import dataclasses
import difflib
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from keras_transformer.inspection.files import read_bytes
from keras_transformer.presets import ModelConfig, TrainConfig, change
from keras_transformer.presets.options import FORMAT, check_format, help_of
from keras_transformer.utils import Path

# Fields that older files of this format have under other names.
RENAMED = {"peak": "learning_rate"}
MACHINE = ("parallel_microbatches",)  # the machine's, not the training's: left out of files
MAX_BYTES = 1 << 16  # bytes of a file; what is written has four thousand


class _PlainLoader(yaml.SafeLoader):
    """Reads values that stand where they are: an alias may stand for a thousand others."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases (*name), which no configuration needs")
        return super().compose_node(parent, index)


def to_yaml(config: TrainConfig) -> str:
    """Writes a configuration with a comment on each line, as `--config` reads it.

    Args:
        config: `TrainConfig`.

    Returns:
        YAML.
    """
    lines = [f"format: {FORMAT}"]
    for title, fields in _sections():
        lines += ["", f"# {title}"]
        for field in fields:
            if field.name == "model":
                lines += ["model:", *_lines(config.model, dataclasses.fields(ModelConfig), "  ")]
            elif field.name not in MACHINE:
                lines += _lines(config, [field], "")
    return "\n".join(lines) + "\n"


def from_yaml(path: Path, missing: Mapping[str, Any] | None = None) -> TrainConfig:
    """Reads a configuration: what `to_yaml` has written, or a part of it.

    Args:
        path: Name of a file, such as the `config.yaml` of a run. Fields that it leaves out have
            their defaults.
        missing: Other values for these.

    Returns:
        `TrainConfig`.

    Raises:
        ValueError: If the file cannot be read or is of another format, or a key or a value is
            invalid.
    """
    values = {**(missing or {}), **read_values(path)}
    try:
        return change(TrainConfig(), values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_values(path: Path) -> dict[str, Any]:
    """Reads the values in a configuration file, as `presets.change` takes them.

    Raises:
        ValueError: If the file cannot be read or is of another format, a key is unknown, or a value
            has the wrong type.
    """
    content = read_bytes(path, MAX_BYTES)
    try:
        fields = yaml.load(content.decode(), _PlainLoader)
    except UnicodeDecodeError:
        raise ValueError(f"{path} cannot be read (it is not UTF-8): check the path.") from None
    # Dates that are none are ValueErrors.
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is not YAML: {reason}.") from None
    except RecursionError:  # whose message differs from call to call
        raise ValueError(f"{path} is not YAML: it is nested too deeply.") from None
    if not isinstance(fields, dict):
        raise ValueError(
            f"{path} is not a configuration: expected lines such as epochs: 20; keras-transformer "
            "config prints a whole one."
        )
    check_format(str(path), fields.pop("format", None))
    return _read_fields(TrainConfig, fields, str(path))


def summarize(config: TrainConfig, width: int = 100) -> str:
    """Describes a configuration on less than a screen: a paragraph for each of its sections."""
    return "\n".join(paragraphs(config, width))


def paragraphs(config: TrainConfig, width: int = 100) -> Iterator[str]:
    """The paragraphs of `summarize`; the first names the data."""
    for title, fields in _sections():
        values = {field.name: getattr(config, field.name) for field in fields}
        if "model" in values:
            values = dataclasses.asdict(config.model)
        if "dates" in values:
            given = config.train_source or config.corpus
            values["dates"] = None if given or not config.dates else "built-in"
        words = [f"{name}={_shown(value)}" for name, value in values.items() if _is_told(value)]
        if not words:
            continue
        text = f"{title.partition(':')[0]}: {', '.join(words)}"
        options: dict[str, Any] = dict(break_long_words=False, break_on_hyphens=False)
        yield textwrap.fill(text, width, subsequent_indent="    ", **options)


def _is_told(value):
    return value is not None and value != ()


def _shown(value):
    return " ".join(map(str, value)) if isinstance(value, tuple) else value


def _sections() -> Iterator[tuple[str, list["dataclasses.Field[Any]"]]]:
    """Titles of the sections of a `TrainConfig`, with the fields of each."""
    sections: dict[str, list[dataclasses.Field[Any]]] = {}
    title = ""
    for field in dataclasses.fields(TrainConfig):
        title = field.metadata.get("section") or title
        sections.setdefault(title, []).append(field)
    yield from sections.items()


def _lines(config, fields, indent):
    """Lines of YAML."""
    lines = []
    for field in fields:
        value = getattr(config, field.name)
        value = list(value) if isinstance(value, tuple) else value
        options: dict[str, Any] = dict(
            default_flow_style=True, width=float("inf"), allow_unicode=True
        )
        value = yaml.safe_dump([value], **options).strip()[1:-1]  # without the brackets
        comment = re.sub(r"\bnone(?=:)", "null", help_of(field))
        lines.append(f"{indent}{field.name}: {value}  # {comment}")
    return lines


def _read_fields(kind: Any, fields: dict[Any, Any], path: str) -> dict[str, Any]:
    """The values of a table, of the types that its fields have; those of the model among them."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        name = RENAMED.get(name, name)
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            advice = f"did you mean {near[0]}?" if near else f"it knows {', '.join(hints)}."
            if name in typing.get_type_hints(ModelConfig):
                advice = "indent it below model."
            raise ValueError(f"{path}: there is no {name!r}; {advice}")
        if name == "model" and isinstance(value, dict):
            values |= _read_fields(ModelConfig, value, path)
        else:
            values[name] = _read(value, hints[name], name, path)
    return values


def _read(value: Any, hint: Any, name: str, path: str) -> Any:
    """A value of the type that a field has."""
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ValueError(f"{path}: {name} must be a list of words, received {value!r}.")
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in kinds:
        return value
    if float in kinds and type(value) in (int, str):
        try:  # YAML takes 1e-3, without a point, for a word
            return float(value)
        except ValueError:
            pass
    if value is None and type(None) in kinds:
        return None
    raise ValueError(f"{path}: {name} must be {_expected(kinds)}, received {value!r}.")


def _expected(kinds):
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
    names |= {type(None): "null", ModelConfig: "a table of sizes"}
    return " or ".join(names[kind] for kind in kinds)
