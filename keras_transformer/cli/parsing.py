"""How the command line is read, and how its help texts write types and defaults."""

import argparse
import functools
import inspect
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

DESCRIPTION = """Train Transformers that translate text; use, measure and export them.
--version tells which version this is; COMMAND --help, what a command does and takes."""
NONE = "none"  # what an option without a value says; "None", as Python has it, will do too
REPEATED = "--corpus"  # one corpus, or several, each with an option of its own or all behind one
UNSET = "unset"  # what one that takes any word says: "none" may be such a word


def parse_command(commands: Mapping[str, Callable[..., Any]], config: Sequence[Any] = ()) -> Any:
    """Calls the command that the command line names.

    Args:
        commands: {name: function or dataclass, the arguments of which are the options}.
        config: Markers of `tyro.conf` for all of them.

    Returns:
        What the command returns.
    """
    arguments = _gathered(sys.argv[1:])
    choices = []
    for name, command in commands.items():
        # In the list of all commands, the first paragraph is enough.
        doc = None if arguments[:1] == [name] else inspect.getdoc(command)
        first = doc and doc.partition("\n\n")[0]
        constructor = _readable(command)
        option = tyro.conf.subcommand(name=name, constructor=constructor, description=first)
        choices.append(Annotated[Any, option])
    one_of_them: Any = functools.reduce(operator.or_, choices)
    return tyro.cli(
        one_of_them,
        prog="keras-transformer",
        description=DESCRIPTION,
        args=arguments,
        config=(tyro.conf.PositionalMetavarFromFieldName, *config),
        registry=_registry(),
    )


def _gathered(arguments):
    """The same words; those of an option that adds to what it said before, in one place."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(REPEATED, nargs="*", action="extend")
    named, others = parser.parse_known_args(arguments)
    words = vars(named)[REPEATED.strip("-")]
    return others if words is None else [*others, REPEATED, *words]


def _readable(command):
    """The same function, each argument's description in one line: tyro keeps ends of lines."""
    if not inspect.isfunction(command):
        return command

    @functools.wraps(command)
    def readable(*positional, **named):
        return command(*positional, **named)

    del readable.__wrapped__  # or tyro would go by that
    readable.__signature__ = inspect.signature(command)
    readable.__doc__ = re.sub(r"\n {8,}(?=\S)", " ", inspect.getdoc(command) or "")
    return readable


def _registry():
    """Rules for what may be left out: `INT` and "none" instead of `{None}|INT` and nothing."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        kinds = [kind for kind in typing.get_args(info.type) if kind is not type(None)]
        union = info.type_origin in (typing.Union, types.UnionType)
        if not union or len(kinds) != 1 or len(typing.get_args(info.type)) != 2:
            return None
        inner, words = _spec(kinds[0], info), kinds[0] is str
        none = (lambda x: x == ["None"]) if words else _is_none
        label = [UNSET if words else NONE]
        return PrimitiveConstructorSpec(
            nargs=inner.nargs,
            metavar=inner.metavar,
            instance_from_str=lambda x: None if none(x) else inner.instance_from_str(x),
            is_instance=lambda value: value is None or inner.is_instance(value),
            str_from_instance=lambda x: label if x is None else inner.str_from_instance(x),
        )

    @registry.primitive_rule
    def several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        kinds = typing.get_args(info.type)
        if info.type_origin is not tuple or len(kinds) != 2 or kinds[1] is not Ellipsis:
            return None
        inner = _spec(kinds[0], info)
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar=f"[{inner.metavar} ...]",
            instance_from_str=lambda words: tuple(
                inner.instance_from_str([word]) for word in ([] if _is_none(words) else words)
            ),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda x: (
                [s for y in x for s in inner.str_from_instance(y)] or [NONE]
            ),
        )

    return registry


def _spec(kind, info):
    return ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))


def _is_none(words):
    return [word.lower() for word in words] == [NONE]
