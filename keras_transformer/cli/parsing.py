"""Builds command lines from functions: their parameters become arguments and options.

A parameter is annotated `Annotated[type, "help text"]`. A positional-only parameter becomes an
argument, any other an option. If its type is a dataclass, such as `SearchConfig`, each field
becomes an option, with the help text in its metadata (`options.option`). A parameter annotated
`Annotated[dict, TrainConfig]` receives a dict of the fields that are given.
"""

import argparse
import dataclasses
import difflib
import inspect
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.presets.options import help_of

PROGRAM = "keras-transformer"
REQUIRED = inspect.Parameter.empty
TYPE_NAMES = {int: "a whole number", float: "a number"}
METAVARS = {int: "INT", float: "FLOAT", str: "STR"}


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument or option of a command."""

    owner: inspect.Parameter  # of the function
    name: str  # of the parameter, or of a field of its dataclass
    kind: Any
    help: str
    default: Any
    section: str | None  # title of its group of options; None for an argument

    @property
    def display_name(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}" if self.section else self.name.upper()

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that are valid for each value; the first one parses it."""
        return typing.get_args(self.kind) or (self.kind,)

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def is_field(self) -> bool:
        """Whether it is a field of a parameter that is a dataclass."""
        return self.name != self.owner.name

    @property
    def has_negation(self) -> bool:
        """Whether there is also `--no-…`, because the default may come from a file."""
        return self.kind is bool and self.is_field

    def parse_value(self, word: str) -> Any:
        """Parses one value."""
        # A string may be "none", as in --bleu-tokenize none.
        is_optional = type(None) in self.types or self.is_list
        if is_optional and word in (("None",) if self.types[0] is str else ("none", "None")):
            return None
        try:
            return self.types[0](word)
        except ValueError:
            expected = TYPE_NAMES[self.types[0]] + " or none" * is_optional
            raise argparse.ArgumentTypeError(f"must be {expected}, received {word!r}") from None

    def format_help(self, default: Any) -> str:
        """Formats its help text with its default."""
        text = self.help
        if default is REQUIRED:
            text += "" if self.section is None else " (required)"
        elif default in (None, ()):
            text += " (default: none)" if "none:" in text else ""
        elif default is not False:
            words = default if isinstance(default, tuple) else [default]
            text += f" (default: {'yes' if default is True else ' '.join(map(str, words))})"
        return text.replace("%", "%%")  # argparse formats it


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        """Raises argparse's error as one sentence: `main` prints it."""
        message = re.sub("^argument ([^:]+): ", r"\1 ", message)
        message = message.replace("expected one argument", "needs a value")
        message = re.sub("^the following arguments are required: (.*)", r"\1 is missing", message)
        raise ValueError(f"{message}; see {self.prog} --help.")


def call_command(
    name: str,
    command: Callable[..., None],
    words: Sequence[str],
    find_defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Calls a command with the words after its name, or prints its help.

    `find_defaults` is a function from the given options to the defaults that the help shows.
    """
    arguments = list(_list_arguments(command))
    if {"-h", "--help"} & set(words):
        shown = find_defaults(_parse(name, arguments, words)) if find_defaults else {}
        parser = _make_parser(name, arguments, shown)
        parts = (inspect.getdoc(command) or "").split("\n\n")
        parser.description = "\n\n".join(textwrap.fill(x, _terminal_width()) for x in parts)
        print(parser.format_help(), end="")
        return
    given = _parse(name, arguments, words)
    values: dict[str, Any] = {}
    for argument in arguments:
        owner = argument.owner.name
        target = values.setdefault(owner, {}) if argument.is_field else values
        if argument.name in given:
            target[argument.name] = given[argument.name]
        elif argument.default is REQUIRED:
            raise ValueError(
                f"{argument.display_name} is missing ({argument.help}): see {PROGRAM} {name} "
                "--help."
            )
    for owner, hint in typing.get_type_hints(command, include_extras=True).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            values[owner] = hint(**values[owner])
    positional = [values.pop(argument.name) for argument in arguments if not argument.section]
    command(*positional, **values)


def _parse(name, arguments, words):
    """Parses the given arguments: {name: value}."""
    parser = _make_parser(name, arguments)
    # Underscores in the name of an option are accepted too.
    hyphenated = [re.sub("^--[^=]*", lambda x: x[0].replace("_", "-"), word) for word in words]
    found, rest = parser.parse_known_args(hyphenated)
    if rest:
        option = rest[0].partition("=")[0]
        known = [argument.display_name for argument in arguments]
        if not option.startswith("-"):
            files = [name for name in known if name in ("--source", "--train-source", "--prefix")]
            advice = f"files are given by options, such as {files[0]}; " if files else ""
            if name == "translate":
                advice = f"text is read from stdin, as in {parser.prog} PATH < FILE; "
            raise ValueError(f"unexpected argument {rest[0]!r}; {advice}see {parser.prog} --help.")
        known += [f"--no-{x.display_name[2:]}" for x in arguments if x.has_negation]
        raise ValueError(describe_unknown("option", option, known, parser.prog))
    given = {name: value for name, value in vars(found).items() if name != "help"}
    for argument in arguments:
        if argument.is_list and argument.name in given:
            given[argument.name] = tuple(x for x in given[argument.name] if x not in ("none", None))
    return given


def _list_arguments(command: Callable[..., Any]) -> Iterator[_Argument]:
    """Lists the arguments of a command in order."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        kind, about = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", [hint])[0]
        if dataclasses.is_dataclass(about):
            yield from _list_fields(parameter, about, name)
        else:
            section = None if parameter.kind is parameter.POSITIONAL_ONLY else "options"
            yield _Argument(parameter, name, kind, about, parameter.default, section)


def _list_fields(parameter, kind, section):
    """Lists the options for the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get("hidden"):
            continue
        section = field.metadata.get("section") or section
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _list_fields(parameter, hints[field.name], section)
            continue
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        yield _Argument(parameter, field.name, hints[field.name], help_of(field), default, section)


def _make_parser(name, arguments, defaults=None):
    """Makes a parser; its help shows `defaults` instead of those of the arguments."""
    names = [argument.display_name for argument in arguments if not argument.section]
    parser = _Parser(
        f"{PROGRAM} {name}",
        usage=" ".join([PROGRAM, name, "[OPTION ...]", *names]),
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, 2, 34, _terminal_width()
        ),
    )
    groups = {None: parser, "options": parser.add_argument_group("options")}
    groups["options"].add_argument("-h", "--help", action="store_true", help="show this help")
    for argument in arguments:
        section, kind = argument.section, argument.types[0]
        group = groups.get(section) or groups.setdefault(
            section, parser.add_argument_group(section)
        )
        how = {"help": argument.format_help((defaults or {}).get(argument.name, argument.default))}
        if not section:
            nargs = "+" if argument.is_list else None
            group.add_argument(argument.name, metavar=argument.display_name, nargs=nargs, **how)
        elif kind is bool:
            flag = argparse.BooleanOptionalAction if argument.has_negation else "store_true"
            group.add_argument(argument.display_name, action=flag, **how)
        else:
            several = {"nargs": "*", "action": "extend"} if argument.is_list else {}
            how |= {"type": argument.parse_value, "metavar": METAVARS[kind], **several}
            group.add_argument(argument.display_name, **how)
    return parser


def describe_unknown(what: str, word: str, known: Sequence[str], program: str = PROGRAM) -> str:
    """Returns the error about an unknown option or command, with similar names."""
    near = difflib.get_close_matches(word, known, n=3)
    choices = " or ".join(filter(None, [", ".join(near[:-1]), *near[-1:]]))
    advice = f"did you mean {choices}? See" if near else "see"
    return f"unknown {what} {word}: {advice} {program} --help."


def list_commands(commands: Mapping[str, Callable[..., None]]) -> str:
    """Formats the help of the program, with the first paragraph about each command."""
    rows = [
        f"usage: {PROGRAM} COMMAND [OPTION ...]\n",
        "Train Transformers that translate text, evaluate and export them.",
        "--version prints the version, COMMAND --help the options of a command.\n",
        "commands:",
    ]
    for name, command in commands.items():
        first = (inspect.getdoc(command) or "").partition("\n\n")[0]
        indents: dict[str, Any] = dict(initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
        rows.append(textwrap.fill(" ".join(first.split()), _terminal_width(), **indents))
    return "\n".join(rows)


def _terminal_width():
    return shutil.get_terminal_size().columns - 2
