"""Types for annotations, formatting of messages, and atomic writes.

Imports neither Keras nor TensorFlow. As neither of them ships types, a `Tensor` is `Any` to a type
checker; docstrings give shapes and dtypes.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

# A tensor of the Keras backend: eager, symbolic or in a tf.function. Functions also accept NumPy
# arrays.
Tensor: TypeAlias = Any

# Nested tuples, lists and dicts of tensors.
Nested: TypeAlias = Any

# Inputs of a `Transformer`: source and target ids.
Inputs: TypeAlias = tuple[Tensor, Tensor] | list[Tensor]

# Cache of a decoder for the previous positions: nested tensors, batch first.
State: TypeAlias = Any

# The size of each axis, None if unknown.
Shape: TypeAlias = tuple[int | None, ...]

# Outputs of a search: tokens, lengths and log-probabilities.
SearchOutputs: TypeAlias = tuple[Tensor, Tensor, Tensor]

# A decoding step: from ids, position and state to logits and the next state.
Step: TypeAlias = Callable[[Tensor, int | Tensor, State], tuple[Tensor, State]]

# Result of `get_config`, argument of `from_config`.
Config: TypeAlias = dict[str, Any]

# Arguments of keras.activations.get, keras.initializers.get and so on.
Activation: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Initializer: TypeAlias = str | Config | Callable[..., Tensor]
Regularizer: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Constraint: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None

# The name of a file or directory.
Path: TypeAlias = str | os.PathLike[str]

# Sentences. In byte strings, invalid UTF-8 is replaced.
Texts: TypeAlias = Iterable[str | bytes]

# (source, target) strings; the group of a `Pair` is ignored.
Pairs: TypeAlias = Sequence[tuple[str, ...]]


class Hidden:
    """An attribute's value that Keras and TensorFlow shall not track, save or wrap.

    `tf.saved_model.save` would trace a Keras model in its own way and save functions a second time,
    and a dict would become a `DictWrapper`, which JSON cannot always hold.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: "1 pair", "2,000 pairs".

    Args:
        number: The number.
        noun: The noun in the singular.
        plural: The plural; by default `noun` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


@contextlib.contextmanager
def creating(output: Path) -> Iterator[str]:
    """Creates a directory atomically: yields a temporary one, which is renamed at the end."""
    temporary = f"{os.fspath(output).rstrip('/')}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # from a killed process
        os.makedirs(temporary)
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in (*names, ""):
                flush(os.path.join(folder, name))
        os.replace(temporary, output)
        flush(os.path.dirname(os.path.abspath(output)))
    except OSError as error:
        raise ValueError(f"{output} cannot be created: {reason(error)}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


TEMPORARY = "tmp."  # a prefix, since the suffix tells Keras the format


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[str]:
    """Replaces a file atomically: yields a temporary name, which is renamed at the end."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f"{TEMPORARY}{name}")
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        flush(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({reason(error)}): try again after fixing the cause; an "
            "existing file is unchanged."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(temporary)  # frees the space on a full disk


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of killed processes from a directory."""
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY):
            os.remove(os.path.join(folder, name))


def reason(error: OSError) -> str:
    """Returns the system's message of an error."""
    return error.strerror or " ".join(str(error).split())


def flush(path: Path) -> None:
    """Flushes a file or directory to the disk, for it to be there before it is renamed."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
