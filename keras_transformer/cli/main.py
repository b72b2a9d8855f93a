"""The command line, `keras-transformer`: every command is a function that scripts can call.

Results go to stdout, everything else to stderr. A mistake of the user prints one sentence and exits
with status 2; a training that diverges exits with status 3. Commands import TensorFlow only when
they need it, not for their help.
"""

import logging
import os
import platform
import sys
from collections.abc import Sequence

from keras_transformer import __version__, explain_missing
from keras_transformer.cli.models import attention, check, explore, export, plot
from keras_transformer.cli.parsing import (
    PROGRAM,
    call_command,
    describe_unknown,
    list_commands,
)
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

COMMANDS = {
    command.__name__.rstrip("_"): command
    for command in (
        *(prepare, train, config, import_, translate, evaluate, score, align),
        *(attention, explore, plot, average, export, check),
    )
}
FIRST_TRAINING = (
    f"--output is missing: {PROGRAM} train --output DIRECTORY trains on the built-in dates; for "
    "your own text, add --preset tiny --train-source FILE --train-target FILE --valid-fraction 0.02"
    "."
)
# Exit statuses.
INVALID = 2  # a mistake of the user
DIVERGED = 3  # the options are valid, but the training diverged, and would again
INTERRUPTED = 130  # by Ctrl-C


def main() -> None:
    """Entry point of `keras-transformer`."""
    open_standard_streams()
    run(sys.argv[1:])


def run(words: Sequence[str]) -> None:
    """Runs the command line of the given words; raises SystemExit if it fails."""
    try:
        _set_environment()
        _run_command(words)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        sentence = explain_missing("this command", error)
        if not sentence:
            raise
        _exit_with_error(sentence, INVALID)
    except ValueError as error:
        _exit_with_error(error, INVALID)
    except FloatingPointError as error:  # a training has diverged
        _exit_with_error(error, DIVERGED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _run_command(words):
    name, *others = words or ["--help"]
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
    elif name in ("--help", "-h"):
        print(list_commands(COMMANDS))
    elif [name, *others] == ["train"]:
        raise ValueError(FIRST_TRAINING)
    elif name in COMMANDS:
        find_defaults = find_train_defaults if name == "train" else None
        call_command(name, COMMANDS[name], others, find_defaults)
    else:
        raise ValueError(describe_unknown("command", name, list(COMMANDS)))


def _exit_with_error(error, status):
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
    if platform.machine() in ("x86_64", "AMD64"):
        # Without AVX512-VNNI TensorFlow leaves oneDNN off, although a training step with AVX2 takes
        # 0.85 of the time with it.
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


if __name__ == "__main__":
    main()
