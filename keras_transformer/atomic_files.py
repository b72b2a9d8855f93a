"""Files and directories that appear whole or not at all, also where the power fails."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from keras_transformer.typing import Path


@contextlib.contextmanager
def creating(output: Path) -> Iterator[str]:
    """A directory beside `output` to fill, which takes its place at the end: whole or not at all.

    Raises:
        ValueError: If a file or directory cannot be made.
    """
    temporary = f"{os.fspath(output).rstrip('/')}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of one that was killed
        os.makedirs(temporary)
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in (*names, ""):
                _flush(os.path.join(folder, name))
        os.replace(temporary, output)
        _flush(os.path.dirname(os.path.abspath(output)))
    except OSError as error:
        raise ValueError(f"{output} cannot be made: {reason(error)}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class replacing:
    """A name to write to; what was written there takes the place of `path` at the end.

    Raises:
        ValueError: If the file cannot be written. What was there before then still is.
    """

    PREFIX = "tmp."  # Keras goes by the ending

    def __init__(self, path: Path) -> None:
        folder, name = os.path.split(path)
        self.path = path
        self.name = os.path.join(folder, f"{self.PREFIX}{name}")

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            if error is None:
                _flush(self.name)
                os.replace(self.name, self.path)
                _flush(os.path.dirname(os.path.abspath(self.path)))
                return
        except OSError as late:
            error = late
        with contextlib.suppress(OSError):
            os.remove(self.name)  # half of it takes room from whoever makes some
        if isinstance(error, OSError):
            raise ValueError(
                f"{self.path} cannot be written ({reason(error)}): mend that and try again; "
                "whatever was there before is unchanged."
            ) from error


def remove_leftovers(folder: Path) -> None:
    """Removes what processes that were killed while `replacing` have left in a directory."""
    for name in os.listdir(folder):
        if name.startswith(replacing.PREFIX):
            os.remove(os.path.join(folder, name))


def reason(error: OSError) -> str:
    """What the system says is wrong, in a few words."""
    return error.strerror or " ".join(str(error).split())


def _flush(path):
    """Has a file or directory written to the disk, which else may come after its renaming."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
