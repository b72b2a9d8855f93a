"""The command line, `keras-transformer`: thin, every command is a function that scripts can call.

Results go to stdout, everything else to stderr. A user's mistake gives one sentence and exit status
2, a training that diverges status 3. TensorFlow is imported by the commands that need it, not for
their help.
"""

import logging
import os
import platform
import sys
from collections.abc import Sequence

from keras_transformer import __version__, explain_missing
from keras_transformer.cli.parsing import PROGRAM, call, list_commands, unknown
from keras_transformer.cli.pictures import attention, explore, plot
from keras_transformer.cli.serving import check, export
from keras_transformer.cli.text import align, evaluate, score, translate
from keras_transformer.cli.training import average, config, defaults, prepare, train
from keras_transformer.runs.streams import open_standard_streams

COMMANDS = {
    command.__name__: command
    for command in (
        *(prepare, train, config, translate, evaluate, score, align),
        *(attention, explore, plot, average, export, check),
    )
}
INVALID = 2  # exit status: a mistake of the user's
DIVERGED = 3  # exit status: the options are valid, and training again in the same way is no use
INTERRUPTED = 130  # exit status: by Ctrl-C


def main() -> None:
    """Entry point of `keras-transformer`."""
    open_standard_streams()
    run(sys.argv[1:])


def run(words: Sequence[str]) -> None:
    """Runs the command that the words of a command line name.

    Raises:
        SystemExit: If it fails.
    """
    _set_environment()
    try:
        _run(words)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        sentence = explain_missing("this command", error)
        if not sentence:
            raise
        _fail(sentence, INVALID)
    except ValueError as error:
        _fail(error, INVALID)
    except FloatingPointError as error:  # a training has diverged
        _fail(error, DIVERGED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run(words):
    name, *others = words or ["--help"]
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
    elif name in ("--help", "-h"):
        print(list_commands(COMMANDS))
    elif name in COMMANDS:
        call(name, COMMANDS[name], others, defaults if name == "train" else None)
    else:
        raise ValueError(unknown("command", name, list(COMMANDS)))


def _fail(error, status):
    print(f"{PROGRAM}: {error}", file=sys.stderr)
    sys.exit(status)


def _set_environment():
    """Settings that Keras and TensorFlow read when they are imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Whatever other programs of Keras have left in ~/.keras/keras.json or in the environment.
    os.environ["KERAS_HOME"] = os.path.join(os.path.dirname(__file__), "keras_home")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    if platform.machine() in ("x86_64", "AMD64"):
        # Without AVX512-VNNI TensorFlow leaves oneDNN off, though it pays there too: with AVX2, a
        # step of training takes 0.85 of the time.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


if __name__ == "__main__":
    main()
