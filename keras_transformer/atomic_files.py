"""Files and directories that appear whole or not at all."""

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
        os.replace(temporary, output)
    except OSError as error:
        raise ValueError(f"{output} cannot be made: {error.strerror}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class replacing:
    """A name to write to; what was written there takes the place of `path` at the end."""

    def __init__(self, path: Path) -> None:
        folder, name = os.path.split(path)
        self.path = path
        self.name = os.path.join(folder, f"tmp.{name}")  # Keras goes by the ending

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            os.replace(self.name, self.path)
