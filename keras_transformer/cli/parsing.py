"""Command lines from functions: their parameters are the arguments and options of a command.

A parameter is annotated `Annotated[type, "help text"]`. One that is positional-only is an argument
of the command, any other an option. A parameter whose type is a dataclass, such as `SearchConfig`,
stands for all its fields, each an option with the help text in its metadata (`options.option`); one
that is annotated `Annotated[dict, TrainConfig]` takes a dict of those that are given.
"""

import argparse
import dataclasses
import difflib
import inspect
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.presets.options import help_of

PROGRAM = "keras-transformer"
REQUIRED = inspect.Parameter.empty
EXPECTED = {int: "a whole number", float: "a number"}
METAVARS = {int: "INT", float: "FLOAT", str: "STR"}


@dataclasses.dataclass(frozen=True)
class _Argument:
    """An argument or option of a command.

    Attributes:
        owner: The parameter that it belongs to.
        name: Of that parameter, or of the field of a dataclass that the parameter stands for.
        kind: Type of its value.
        default: `REQUIRED` if it has none.
        section: Title of the group of options that it is shown in; None for an argument.
    """

    owner: inspect.Parameter
    name: str
    kind: Any
    help: str
    default: Any
    section: str | None

    @property
    def shown(self) -> str:
        """What users call it."""
        return f"--{self.name.replace('_', '-')}" if self.section else self.name.upper()

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that each of its values may have."""
        kinds = typing.get_args(self.kind) or (self.kind,)
        return tuple(kind for kind in kinds if kind is not Ellipsis)

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def is_field(self) -> bool:
        """Whether it is a field of a dataclass that a parameter stands for."""
        return self.name != self.owner.name

    @property
    def has_opposite(self) -> bool:
        """Whether it is a flag with another one, `--no-…`: its default may come from a file."""
        return self.kind is bool and self.is_field

    def read(self, word: str) -> Any:
        """One value.

        Raises:
            argparse.ArgumentTypeError: If the word is invalid.
        """
        # Text may be "none", such as --bleu-tokenize; Python's None is none of its values.
        is_optional = type(None) in self.types or self.is_list
        if is_optional and word in (("None",) if self.types[0] is str else ("none", "None")):
            return None
        try:
            return self.types[0](word)
        except ValueError:
            expected = EXPECTED[self.types[0]] + " or none" * is_optional
            raise argparse.ArgumentTypeError(f"expected {expected}, received {word!r}") from None

    def help_with(self, default: Any) -> str:
        """Its help text with its default."""
        text = self.help
        if default is REQUIRED:
            text += "" if self.section is None else " (required)"
        elif default in (None, ()):
            text += " (default: none)" if "none:" in text else ""
        elif default is not False:
            words = default if isinstance(default, tuple) else [default]
            text += f" (default: {'yes' if default is True else ' '.join(map(str, words))})"
        return text.replace("%", "%%")  # which argparse would format


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        """Leaves it to `main` to print the error."""
        raise ValueError(f"{message.removeprefix('argument ')}; see {self.prog} --help.")


def call(
    name: str,
    command: Callable[..., None],
    words: Sequence[str],
    defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Calls a command with the words of a command line, or prints its help.

    Args:
        name: Of the command.
        command: The function.
        words: Those after the command's name.
        defaults: Function from the given options to the defaults that follow from them, for the
            help.

    Raises:
        ValueError: If an argument is unknown, missing or invalid.
    """
    arguments = list(_arguments(command))
    if {"-h", "--help"} & set(words):
        given = defaults(_parse(name, arguments, words)) if defaults else {}
        parser = _make_parser(name, arguments, given)
        parser.description = _wrapped(inspect.getdoc(command) or "")
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
                f"{argument.shown} is missing: {argument.help}; see {PROGRAM} {name} --help."
            )
    for owner, hint in typing.get_type_hints(command, include_extras=True).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            values[owner] = hint(**values[owner])
    positional = [values.pop(argument.name) for argument in arguments if not argument.section]
    command(*positional, **values)


def _parse(name, arguments, words):
    """The values of the arguments that are given, by their names."""
    parser = _make_parser(name, arguments)
    found, rest = parser.parse_known_args([_hyphenated(word) for word in words])
    if rest:
        option = rest[0].partition("=")[0]
        if not option.startswith("-"):
            raise ValueError(f"unexpected argument {rest[0]!r}; see {parser.prog} --help.")
        known = [argument.shown for argument in arguments]
        known += [f"--no-{x.shown[2:]}" for x in arguments if x.has_opposite]
        raise ValueError(unknown("option", option, known, parser.prog))
    given = {name: value for name, value in vars(found).items() if name != "help"}
    for argument in arguments:
        if argument.is_list and argument.name in given:
            given[argument.name] = tuple(x for x in given[argument.name] if x not in ("none", None))
    return given


def _arguments(command: Callable[..., Any]) -> Iterator[_Argument]:
    """The arguments of a command, in their order."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        kind, about = getattr(hint, "__origin__", hint), getattr(hint, "__metadata__", [hint])[0]
        if dataclasses.is_dataclass(about):
            yield from _fields(parameter, about, name)
        else:
            section = None if parameter.kind is parameter.POSITIONAL_ONLY else "options"
            yield _Argument(parameter, name, kind, about, parameter.default, section)


def _fields(parameter, kind, section):
    """The options that the fields of a dataclass are."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        section = field.metadata.get("section") or section
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _fields(parameter, hints[field.name], section)
            continue
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        yield _Argument(parameter, field.name, hints[field.name], help_of(field), default, section)


def _make_parser(name, arguments, defaults=None):
    """A parser whose help shows some other defaults."""
    names = [argument.shown for argument in arguments if not argument.section]
    parser = _Parser(
        f"{PROGRAM} {name}",
        usage=" ".join([PROGRAM, name, "[OPTION ...]", *names]),
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 34, _width()),
    )
    groups = {None: parser, "options": parser.add_argument_group("options")}
    groups["options"].add_argument("-h", "--help", action="store_true", help="show this help")
    for argument in arguments:
        section, kind = argument.section, argument.types[0]
        group = groups.get(section) or groups.setdefault(
            section, parser.add_argument_group(section)
        )
        how = {"help": argument.help_with((defaults or {}).get(argument.name, argument.default))}
        if not section:
            nargs = "+" if argument.is_list else None
            group.add_argument(argument.name, metavar=argument.shown, nargs=nargs, **how)
        elif kind is bool:
            flag = argparse.BooleanOptionalAction if argument.has_opposite else "store_true"
            group.add_argument(argument.shown, action=flag, **how)
        else:
            several = {"nargs": "*", "action": "extend"} if argument.is_list else {}
            how |= {"type": argument.read, "metavar": METAVARS[kind], **several}
            group.add_argument(argument.shown, **how)
    return parser


def _hyphenated(word):
    """The word; if it is an option, with hyphens, which may be written as underscores as well."""
    if not word.startswith("--"):
        return word
    option, equals, value = word.partition("=")
    return option.replace("_", "-") + equals + value


def unknown(what: str, word: str, known: Sequence[str], program: str = PROGRAM) -> str:
    """The error about an unknown option or command, with those that look like it."""
    near = difflib.get_close_matches(word, known, n=3)
    advice = f"did you mean {' or '.join(near)}? See" if near else "see"
    return f"unknown {what} {word}: {advice} {program} --help."


def list_commands(commands: Mapping[str, Callable[..., None]]) -> str:
    """The help of the program: what it is for, and the first paragraph about each command."""
    rows = [
        f"usage: {PROGRAM} COMMAND [OPTION ...]\n",
        "Train Transformers that translate text; use, measure and export them.",
        "--version prints the version; COMMAND --help explains a command.\n",
        "commands:",
    ]
    for name, command in commands.items():
        first = (inspect.getdoc(command) or "").partition("\n\n")[0]
        indents: dict[str, Any] = dict(initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
        rows.append(textwrap.fill(" ".join(first.split()), _width(), **indents))
    return "\n".join(rows)


def _wrapped(text):
    """Paragraphs, as wide as the terminal."""
    return "\n\n".join(textwrap.fill(part, _width()) for part in text.split("\n\n"))


def _width():
    return shutil.get_terminal_size().columns - 2
