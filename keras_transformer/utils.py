"""Types for annotations, wording of messages and atomic writes, for the whole package.

Loads neither Keras nor TensorFlow. Neither of them ships types, so a type checker takes a `Tensor`
for anything; for readers the names say more, and docstrings give shapes and dtypes.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

# Of whichever backend Keras runs on: eager, symbolic or in a tf.function. What takes one takes a
# NumPy array as well.
Tensor: TypeAlias = Any

# Tuples, lists and dicts of tensors, nested in any way.
Nested: TypeAlias = Any

# What a `Transformer` reads: source and target ids.
Inputs: TypeAlias = tuple[Tensor, Tensor] | list[Tensor]

# What a decoder remembers of the positions before: nested tensors, batch first.
State: TypeAlias = Any

# The size of each axis, None where it is not known yet.
Shape: TypeAlias = tuple[int | None, ...]

# A search's tokens, their numbers and their log-probabilities, a row for each one searched for.
SearchOutputs: TypeAlias = tuple[Tensor, Tensor, Tensor]

# The next position: from ids, their position and a state to logits and the next state.
Step: TypeAlias = Callable[[Tensor, int | Tensor, State], tuple[Tensor, State]]

# What `get_config` returns, and `from_config` takes.
Config: TypeAlias = dict[str, Any]

# What keras.activations.get, keras.initializers.get and so on take.
Activation: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Initializer: TypeAlias = str | Config | Callable[..., Tensor]
Regularizer: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Constraint: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None

# The name of a file or directory.
Path: TypeAlias = str | os.PathLike[str]

# Sentences. Byte strings may hold anything; what is no UTF-8 is replaced.
Texts: TypeAlias = Iterable[str | bytes]

# (source, target) strings; what else there is in a `Pair` is passed over.
Pairs: TypeAlias = Sequence[tuple[str, ...]]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Writes a number with its noun: "1 pair", "2,000 pairs".

    Args:
        number: How many there are.
        noun: The word for one of them.
        plural: The word for several; `noun` and an s when left out.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


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
                flush(os.path.join(folder, name))
        os.replace(temporary, output)
        flush(os.path.dirname(os.path.abspath(output)))
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
                flush(self.name)
                os.replace(self.name, self.path)
                flush(os.path.dirname(os.path.abspath(self.path)))
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


def flush(path: Path) -> None:
    """Has a file or directory written to the disk, which else may come after its renaming."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
