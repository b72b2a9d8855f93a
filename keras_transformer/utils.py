"""Types for annotations, messages, streams, and files: atomic, locked, bounded, with checksums.

Imports neither Keras nor TensorFlow. As neither of them ships types, a `Tensor` is `Any` to a type
checker; docstrings give shapes and dtypes.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import stat
import sys
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

# A decoding step: from ids, position and state to logits and the next state. With the attribute
# `takes_several`, True, also from the ids of several positions.
Step: TypeAlias = Callable[[Tensor, int | Tensor, State], tuple[Tensor, State]]

# Result of `get_config`, argument of `from_config`.
Config: TypeAlias = dict[str, Any]

# Arguments of keras.activations.get and keras.initializers.get.
Activation: TypeAlias = str | Config | Callable[[Tensor], Tensor] | None
Initializer: TypeAlias = str | Config | Callable[..., Tensor]

# The name of a file or directory.
Path: TypeAlias = str | os.PathLike[str]

# Sentences. In byte strings, invalid UTF-8 is replaced.
Texts: TypeAlias = Iterable[str | bytes]

# (source, target) strings; the group of a `Pair` is ignored.
Pairs: TypeAlias = Sequence[tuple[str, ...]]

MAX_JSON_BYTES = 16 << 20  # of a JSON file that is read; written are some kilobytes
FILES, SEAL = "files", "sha256"  # {name: its size and checksum}; the checksum of the JSON itself
BLANK_SEAL = f'"{SEAL}": ""'  # stands in its place while it is computed
TEMPORARY = "tmp."  # a prefix, since the suffix tells Keras the format


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Formats a number with its noun: "1 pair", "2,000 pairs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def reason(error: OSError) -> str:
    """Returns the system's message of an error."""
    return error.strerror or " ".join(str(error).split())


# --- standard streams: a training continues without its terminal ---


class LastingStream:
    """A text stream whose output is dropped once it cannot be written.

    Attributes:
        is_read: Whether output is still written.
        holds_results: Whether it is an error if output is lost, unless the reader has left.
    """

    def __init__(self, stream: Any, is_read: bool = True, holds_results: bool = False) -> None:
        self._stream, self.is_read, self.holds_results = stream, is_read, holds_results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._drop_output(error)
        return len(text)

    def flush(self) -> None:
        """Flushes what has been written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_output(error)

    def _drop_output(self, error):
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        self.is_read = False
        if self.holds_results and not isinstance(error, BrokenPipeError):
            raise ValueError(
                f"stdout cannot be written ({error.strerror}), and its output is incomplete: run "
                "the command again; translate has --resume."
            ) from error


def open_standard_streams() -> None:
    """Replaces closed standard streams by `/dev/null`, except `sys.stdin`, which stays None.

    Otherwise the next file that is opened would get the number of a closed stream, and receive its
    output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    is_read = getattr(sys.stdout, "is_read", sys.stdout is not None)
    out, error = (x or open(os.devnull, "w", encoding="utf-8") for x in (sys.stdout, sys.stderr))
    streams: Any = LastingStream(out, is_read, holds_results=True), LastingStream(error)
    sys.stdout, sys.stderr = streams


def check_stdout() -> None:
    """Checks that stdout is open, before the command computes anything."""
    if sys.stdout is None or not getattr(sys.stdout, "is_read", True):
        raise ValueError("stdout is closed: open it, since this command prints its results.")


# --- writing ---


def check_is_free(output: Path, remedy: str = "choose another name") -> None:
    """Checks that a directory can be created without overwriting anything."""
    if "://" in os.fspath(output):
        raise ValueError(f"{output} is a URL: write to a directory, and upload that.")
    if os.path.exists(output) and not (os.path.isdir(output) and not os.listdir(output)):
        raise ValueError(f"{output} is not empty: {remedy}.")


@contextlib.contextmanager
def creating(output: Path) -> Iterator[str]:
    """Creates a directory atomically: yields a temporary one, which is renamed at the end."""
    folder, name = os.path.split(os.fspath(output).rstrip("/"))
    temporary = os.path.join(folder, f"{TEMPORARY}{name}")
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
            f"{path} cannot be written ({reason(error)}): an existing file is unchanged."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            os.remove(temporary)  # frees the space on a full disk


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of killed processes from a directory."""
    for entry in os.scandir(folder):
        if entry.name.startswith(TEMPORARY) and entry.is_file():  # not an unfinished export
            os.remove(entry)


def flush(path: Path) -> None:
    """Flushes a file or directory to the disk, for it to be there before it is renamed."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def lock(descriptor: int) -> bool:
    """Locks an open file or directory until it is closed; False if another process holds it."""
    import fcntl  # Windows, where the layers can be used, does not have it

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(folder: Path) -> int | None:
    """Opens and locks a directory; None if another process holds it. Closing it unlocks it."""
    descriptor = os.open(folder, os.O_RDONLY)
    if lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


# --- reading files that others may have written ---


def read_bytes(path: Path, most: int) -> bytes:
    """Reads a file of at most `most` bytes."""
    try:
        # Opening a pipe would wait for ever, and a device never ends.
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            raise ValueError(f"{path} cannot be read (it is a pipe or a device): name a file.")
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path.") from None
    if len(content) > most:
        raise ValueError(f"{path} has more than {most:,} bytes, the limit for such files.")
    return content


def read_json(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """Reads a JSON object from a file of limited size, whose content may have been read before."""
    content = read_bytes(path, MAX_JSON_BYTES) if content is None else content
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path} is corrupted: it is not JSON. Copy it again from its origin."
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object, received a {type(value).__name__}.")
    return value


def check_types(path: Path, value: dict[str, Any], kinds: dict[str, type]) -> None:
    """Checks the types of those values of a JSON object that are there: {name: type}."""
    for name, kind in kinds.items():
        if name in value and not isinstance(value[name], kind):
            raise ValueError(
                f"{path}: {name} must be of the type {kind.__name__}, received a "
                f"{type(value[name]).__name__}."
            )


def describe_corruption(path: Path | None, error: object) -> str:
    """Describes a file that cannot be read, and why."""
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return f"{path} is corrupted ({reason}): copy or download it again."


# --- checksums, which detect corruption; they are not signatures ---


def digest(*paths: Path) -> str:
    """Returns the SHA-256 of a file, or of several as if they were one, in hexadecimal digits."""
    total = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            hashlib.file_digest(file, lambda: total)
    return total.hexdigest()


def describe_files(directory: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describes files in a directory: {name: {"bytes": size, "sha256": checksum}}."""
    paths = {name: os.path.join(directory, name) for name in sorted(names)}
    return {
        name: {"bytes": os.path.getsize(path), "sha256": digest(path)}
        for name, path in paths.items()
    }


def write_sealed(path: Path, fields: dict[str, Any]) -> None:
    """Writes a JSON object with a checksum of itself, which comes first."""
    text = json.dumps({SEAL: "", **fields}, ensure_ascii=False, indent=1)
    seal = hashlib.sha256(text.encode()).hexdigest()
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(text.replace(BLANK_SEAL, f'"{SEAL}": "{seal}"', 1))


def read_sealed(path: Path) -> dict[str, Any]:
    """Reads what `write_sealed` has written, or an earlier version without checksums."""
    content = read_bytes(path, MAX_JSON_BYTES)
    fields = read_json(path, content)
    seal = fields.pop(SEAL, None)
    if seal is None and FILES not in fields:
        return fields
    own = f'"{SEAL}": "{seal}"'.encode()
    if hashlib.sha256(content.replace(own, BLANK_SEAL.encode(), 1)).hexdigest() != seal:
        raise ValueError(
            f"{path} was changed or is corrupted (its checksum does not match): copy it again."
        )
    return fields


def check_files(
    directory: Path, fields: dict[str, Any], source: str, expected: Iterable[str]
) -> None:
    """Compares the files of a directory with their checksums; logs a warning if there are none.

    `fields` are what `read_sealed` has returned of the file `source`; their `files` must describe
    the `expected` ones at least.
    """
    if FILES not in fields:
        logging.getLogger(__name__).warning(
            f"{directory} was written without checksums: corrupted files cannot be detected."
        )
        return
    described = fields[FILES]
    if any(os.path.isabs(name) or ".." in name for name in described):
        raise ValueError(f"{os.path.join(directory, source)} lists a file outside {directory}.")
    for name in expected:
        if name not in described:
            raise ValueError(
                f"{os.path.join(directory, name)} is not among the files that {source} lists: "
                "remove it, or copy the directory again from its origin."
            )
    for name, one in described.items():
        path = os.path.join(directory, name)
        if not os.path.isfile(path):
            raise ValueError(f"{path} is missing: {source} lists it; copy it from where it was.")
        if os.path.getsize(path) != one["bytes"] or digest(path) != one["sha256"]:
            raise ValueError(
                f"{path} is corrupted: it is not what was written (see the checksum in "
                f"{source}): copy it again, or remove {source} if you have changed the file."
            )
