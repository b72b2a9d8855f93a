"""The command line, `keras-transformer`: every command is a function that scripts can call.

Results go to stdout, everything else to stderr. A mistake of the user prints one sentence and exits
with status 2; a training that diverges exits with status 3. Commands import TensorFlow only when
they need it, not for their help.

The parameters of a command become its arguments and options. A parameter is annotated
`Annotated[type, "help text"]`. A positional-only parameter becomes an argument, any other an
option. A parameter annotated `Annotated[dict, TrainConfig]` receives a dict of the fields of this
dataclass that are given: each is an option, with the help text in its metadata (`options.option`).
"""

import argparse
import dataclasses
import difflib
import inspect
import logging
import os
import platform
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer import __version__, explain_missing
from keras_transformer.cli.models import attention, check, explore, export, plot
from keras_transformer.cli.text import align, evaluate, score, translate
from keras_transformer.cli.training import (
    average,
    config,
    find_train_defaults,
    import_,
    prepare,
    train,
)
from keras_transformer.utils import open_standard_streams

PROGRAM = "keras-transformer"
COMMANDS = {
    command.__name__.rstrip("_"): command
    for command in (
        *(prepare, train, config, import_, translate, evaluate, score, align),
        *(attention, explore, plot, average, export, check),
    )
}
REQUIRED = inspect.Parameter.empty


def main() -> None:
    """Entry point of `keras-transformer`."""
    open_standard_streams()
    run(sys.argv[1:])


def run(words: Sequence[str]) -> None:
    """Runs the command line of the given words; raises SystemExit if it fails."""
    name, *others = words or ["--help"]
    try:
        _set_environment()
        if name == "--version":
            print(f"{PROGRAM} {__version__}")
        elif name in ("--help", "-h"):
            print(_list_commands())
        elif name in COMMANDS:
            find_defaults = find_train_defaults if name == "train" else None
            call_command(name, COMMANDS[name], others, find_defaults)
        else:
            raise ValueError(_describe_unknown("command", name, list(COMMANDS)))
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        if not (sentence := explain_missing("this command", error)):
            raise
        _exit_with_error(sentence)
    except ValueError as error:
        _exit_with_error(error)
    except FloatingPointError as error:  # a training has diverged, and would again
        _exit_with_error(error, status=3)
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_with_error(error, status=2):
    print(f"{PROGRAM}: {error}", file=sys.stderr)
    sys.exit(status)


def _set_environment():
    """Sets the variables that Keras and TensorFlow read when they are imported."""
    keras = sys.modules.get("keras")  # imported by a program that calls `run`
    backend = keras.backend.backend() if keras else "tensorflow"
    if backend != "tensorflow":
        raise ValueError(
            f"this command needs Keras' TensorFlow backend, received {backend}: unset "
            "KERAS_BACKEND, or run the command in its own process."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The CLI ignores other settings, in ~/.keras/keras.json and in the environment.
    os.environ["KERAS_HOME"] = os.path.join(os.path.dirname(__file__), "keras_home")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    if platform.machine() == "x86_64":
        # Without AVX512-VNNI TensorFlow leaves oneDNN off, although a training step with AVX2 takes
        # 0.85 of the time with it.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


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
        width = shutil.get_terminal_size().columns - 2
        parts = (inspect.getdoc(command) or "").split("\n\n")
        parser.description = "\n\n".join(textwrap.fill(part, width) for part in parts)
        print(parser.format_help(), end="")
        return
    given = _parse(name, arguments, words)
    values: dict[str, Any] = {}
    for argument in arguments:
        target = values.setdefault(argument.owner, {}) if argument.is_field else values
        if argument.name in given:
            target[argument.name] = given[argument.name]
        elif argument.default is REQUIRED:
            raise ValueError(
                f"{argument.label} is missing ({argument.help}): see {PROGRAM} {name} --help."
            )
    positional = [values.pop(argument.name) for argument in arguments if not argument.section]
    command(*positional, **values)


class _Argument:
    """An argument or option of a command: a parameter, or a field of one that is a dataclass.

    Attributes:
        owner: Name of the parameter.
        name: Name of the parameter or of the field.
        section: Title of its group of options; None for an argument.
        label: Its name on the command line.
        kind: The type that parses each value.
        has_negation: Whether there is also `--no-…`, because the default may come from a file.
    """

    def __init__(
        self, owner: str, name: str, kind: Any, help: str, default: Any, section: str | None
    ) -> None:
        self.owner, self.name, self.help = owner, name, help
        self.default, self.section = default, section
        self.label = f"--{name.replace('_', '-')}" if section else name.upper()
        types = typing.get_args(kind) or (kind,)
        self.kind = types[0]
        self.is_list = typing.get_origin(kind) is tuple
        self.is_optional = type(None) in types or self.is_list
        self.is_field = name != owner
        self.has_negation = self.kind is bool and self.is_field

    def parse_value(self, word: str) -> Any:
        """Parses one value."""
        # A string may be "none", as in --bleu-tokenize none.
        if self.is_optional and word in (("None",) if self.kind is str else ("none", "None")):
            return None
        try:
            return self.kind(word)
        except ValueError:
            expected = "a whole number" if self.kind is int else "a number"
            expected += " or none" * self.is_optional
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


def _list_arguments(command: Callable[..., Any]) -> Iterator[_Argument]:
    """Lists the arguments of a command in order."""
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind, about = hints[name].__origin__, hints[name].__metadata__[0]
        if dataclasses.is_dataclass(about):
            yield from _list_fields(name, about, name)
        else:
            section = None if parameter.kind is parameter.POSITIONAL_ONLY else "options"
            yield _Argument(name, name, kind, about, parameter.default, section)


def _list_fields(owner, kind, section):
    """Lists the options for the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.metadata.get("hidden"):
            continue
        section = field.metadata.get("section") or section
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _list_fields(owner, hints[field.name], section)
            continue
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        about = field.metadata["help"]
        yield _Argument(owner, field.name, hints[field.name], about, default, section)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        """Raises argparse's error as one sentence: `main` prints it."""
        message = re.sub("^argument ([^:]+): ", r"\1 ", message)
        message = message.replace("expected one argument", "needs a value")
        message = re.sub("^the following arguments are required: (.*)", r"\1 is missing", message)
        raise ValueError(f"{message}; see {self.prog} --help.")


def _make_parser(name, arguments, defaults=None):
    """Makes a parser; for its help, with `defaults` instead of those of the arguments."""
    names = [argument.label for argument in arguments if not argument.section]
    parser = _Parser(
        f"{PROGRAM} {name}",
        usage=" ".join([PROGRAM, name, "[OPTION ...]", *names]),
        add_help=False,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 34),
    )
    titles = dict.fromkeys(["options", *(x.section for x in arguments if x.section)])
    groups = {title: parser.add_argument_group(title) for title in titles}
    groups["options"].add_argument("-h", "--help", action="store_true", help="show this help")
    for argument in arguments:
        group, how = groups.get(argument.section, parser), {}
        if defaults is not None:
            default = defaults.get(argument.name, argument.default)
            how["help"] = argument.format_help(default)
        if not argument.section:
            nargs = "+" if argument.is_list else None
            group.add_argument(argument.name, metavar=argument.label, nargs=nargs, **how)
        elif argument.kind is bool:
            flag = argparse.BooleanOptionalAction if argument.has_negation else "store_true"
            group.add_argument(argument.label, action=flag, **how)
        else:
            how |= {"nargs": "*", "action": "extend"} if argument.is_list else {}
            metavar = argument.kind.__name__.upper()
            group.add_argument(argument.label, type=argument.parse_value, metavar=metavar, **how)
    return parser


def _parse(name, arguments, words):
    """Parses the given arguments: {name: value}."""
    parser = _make_parser(name, arguments)
    # Underscores in the name of an option are accepted too.
    hyphenated = [re.sub("^--[^=]*", lambda x: x[0].replace("_", "-"), word) for word in words]
    found, rest = parser.parse_known_args(hyphenated)
    if rest:
        if not rest[0].startswith("-"):
            raise ValueError(f"unexpected argument {rest[0]!r}: see {parser.prog} --help.")
        known = [argument.label for argument in arguments]
        raise ValueError(_describe_unknown("option", rest[0].partition("=")[0], known, parser.prog))
    given = {name: value for name, value in vars(found).items() if name != "help"}
    for argument in arguments:
        if argument.is_list and argument.name in given:
            left_out = ("none", None) if argument.section else ()
            given[argument.name] = tuple(x for x in given[argument.name] if x not in left_out)
    return given


def _describe_unknown(what, word, known, program=PROGRAM):
    """Returns the error about an unknown option or command, with similar names."""
    near = difflib.get_close_matches(word, known, n=1)
    advice = f"did you mean {near[0]}? See" if near else "see"
    return f"unknown {what} {word}: {advice} {program} --help."


def _list_commands():
    """Formats the help of the program, with the first paragraph about each command."""
    rows = [
        f"usage: {PROGRAM} COMMAND [OPTION ...]\n",
        "Train Transformers that translate text, evaluate and export them.",
        "--version prints the version, COMMAND --help the options of a command.\n",
        "commands:",
    ]
    width = shutil.get_terminal_size().columns - 2
    for name, command in COMMANDS.items():
        first = " ".join((inspect.getdoc(command) or "").partition("\n\n")[0].split())
        indents: dict[str, Any] = dict(initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
        rows.append(textwrap.fill(first, width, **indents))
    return "\n".join(rows)


if __name__ == "__main__":
    main()
