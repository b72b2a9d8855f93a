"""The entry point of `keras-transformer`: where a package is missing, one sentence says so."""

import sys

from keras_transformer import __version__, explain_missing
from keras_transformer.runs.streams import open_standard_streams


def main() -> None:
    """Runs the command line; exits with status 2 where it lacks an optional package."""
    open_standard_streams()
    if sys.argv[1:] == ["--version"]:
        print(f"keras-transformer {__version__}")
        return
    try:
        from keras_transformer.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        sentence = explain_missing("this command", error)
        if not sentence:
            raise
        print(f"keras-transformer: {sentence}", file=sys.stderr)
        sys.exit(2)
