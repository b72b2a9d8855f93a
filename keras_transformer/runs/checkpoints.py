"""The files of checkpoints that a training resumes from, with checksums.

`resume.json` describes the last two checkpoints, with the checksums of their files; the files with
their arrays are in the same directory. Each file is written under a temporary name, flushed and
renamed, `resume.json` last. A process killed at any time thus leaves valid checkpoints.

Arrays are in the format of safetensors: the length of the header, the header (JSON: name, type,
shape and offsets of each array), and the bytes of the arrays. Unlike a pickle, it cannot contain
code; and Python writes it, so that a full disk raises an error instead of ending the process, as in
HDF5.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.inspection.files import digest
from keras_transformer.utils import TEMPORARY, Path, reason, replacing

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

STATE, LOCK = "resume.json", "lock"
TYPES = {
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{"bool": "BOOL", "bfloat16": "BF16"},
}
# File descriptors of the locks of this process, which may train into a directory again.
_held: dict[str, int] = {}


class Checkpoints:
    """The checkpoints of a training in a directory, the newest last.

    Args:
        folder: Name of the directory.
        owned: Regular expression of the names of other files that belong to checkpoints. Files
            that no checkpoint uses are removed.
        writes: Whether this process writes, as the chief does; if not, methods that write do
            nothing.

    Attributes:
        entries: List of dicts: `arrays` (the name of the file), `sha256`, `state` and `files`; see
            `write`. Those on the disk, after `read`.
    """

    MAX_ENTRIES = 2  # the second in case that the last is corrupted
    ARRAYS_PATTERN = r"\d{6}-\d{8}\.safetensors"

    def __init__(self, folder: Path, owned: str | None = None, writes: bool = True) -> None:
        self.writes = writes
        self.folder = os.fspath(folder)
        self.entries: list[dict[str, Any]] = []
        names = "|".join(filter(None, (self.ARRAYS_PATTERN, owned)))
        self._owned = re.compile(rf"({re.escape(TEMPORARY)}.*|{names})")

    # --- one training at a time ---

    def lock(self) -> None:
        """Creates the directory if necessary, and locks it against other processes."""
        if not self.writes:
            return
        name = os.path.realpath(os.path.join(self.folder, LOCK))
        try:
            os.makedirs(self.folder, exist_ok=True)
            held = _held.get(name)
            if (
                held is not None
                and os.path.exists(name)
                and os.path.samestat(os.fstat(held), os.stat(name))
            ):
                return
            file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be written ({reason(error)}).") from error
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process = os.read(file, 99).decode()
                os.close(file)
                raise ValueError(
                    f"{self.folder} is in use by another training process"
                    f"{f' ({process})' if process else ''}: wait until it ends, or choose another "
                    "directory."
                ) from None
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        _held[name] = file

    def release(self) -> None:
        """Unlocks the directory; the end of the process does so too."""
        file = _held.pop(os.path.realpath(os.path.join(self.folder, LOCK)), None)
        if file is not None:
            os.close(file)

    # --- reading ---

    def read(self) -> list[dict[str, Any]]:
        """Reads `resume.json`, but not the other files."""
        name = os.path.join(self.folder, STATE)
        remedy = "restore it from a copy, or train again into another directory"
        try:
            with open(name, encoding="utf-8") as file:
                content = json.load(file)
            entries = content["points"]
            is_valid = content["sha256"] == _entries_checksum(entries)
        except FileNotFoundError:
            checkpoints = sorted(self._list_unused_files(set()))
            if checkpoints:
                raise ValueError(
                    f"{name} is missing, although {checkpoints[-1]} exists: {remedy}."
                ) from None
            entries, is_valid = [], True
        except OSError as error:
            raise ValueError(f"{name} cannot be read ({reason(error)}): {remedy}.") from None
        except (ValueError, KeyError, TypeError):
            is_valid = False
        if not is_valid:
            raise ValueError(f"{name} is corrupted: {remedy}.")
        self.entries = entries
        return entries

    def latest(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Reads the newest valid checkpoint; warns on stderr about a corrupted newer one.

        Returns:
            The state and the arrays that were passed to `write`, or None before the first one.
        """
        problems: list[str] = []
        for entry in reversed(self.read()):
            try:
                for name, checksum in entry["files"].items():
                    check_checksum(os.path.join(self.folder, name), checksum)
                arrays = read_arrays(os.path.join(self.folder, entry["arrays"]), entry["sha256"])
            except ValueError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                print(f"warning: {problem}: using the checkpoint before it", file=sys.stderr)
            self.entries = self.entries[: self.entries.index(entry) + 1]
            return entry["state"], arrays
        if problems:
            raise ValueError(
                f"No checkpoint is valid: {'; '.join(dict.fromkeys(problems))}. Restore one from a "
                "copy, or train again into another directory."
            )
        return None

    # --- writing ---

    def begin(self) -> None:
        """Writes an empty `resume.json`; from now on it must exist."""
        self.entries = []
        self._write()

    def write(
        self,
        name: str,
        state: dict[str, Any],
        arrays: Mapping[str, np.ndarray],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a checkpoint, and removes the files that no remaining checkpoint uses.

        Args:
            name: Name of the checkpoint: "epoch-step", with 6 and 8 digits.
            state: A state that JSON can represent.
            arrays: {name: array} of numbers or booleans.
            files: {name: checksum} of other files in the directory that belong to the checkpoint.
        """
        if not self.writes:
            return
        file = f"{name}.safetensors"
        checksum = write_arrays(os.path.join(self.folder, file), arrays)
        entry = {"arrays": file, "sha256": checksum, "state": state, "files": dict(files or {})}
        others = [one for one in self.entries if one["arrays"] != file]
        before, self.entries = self.entries, [*others, entry][-self.MAX_ENTRIES :]
        try:
            self._write()
        except ValueError:
            self.entries = before
            raise
        self.clean()

    def drop(self, since: int) -> None:
        """Removes the checkpoints with at least `since` applied steps (`"applied"` of a state)."""
        if self.writes:  # other workers do not know them all
            self.entries = [x for x in self.entries if x["state"].get("applied", 0) < since]
            self._write()
            self.clean()

    def amend(self, **changes: Any) -> None:
        """Changes fields of the newest state, if there is a checkpoint."""
        if self.entries:
            self.entries[-1]["state"] |= changes
            self._write()

    def clean(self) -> None:
        """Removes files of dropped checkpoints and of killed processes."""
        if not self.writes:
            return
        used = {name for entry in self.entries for name in (entry["arrays"], *entry["files"])}
        for name in self._list_unused_files(used):
            try:
                os.remove(os.path.join(self.folder, name))
            except OSError as error:
                raise ValueError(
                    f"{os.path.join(self.folder, name)} cannot be removed ({reason(error)})."
                ) from error

    def _write(self):
        if not self.writes:
            return
        # As `read` returns them: without tuples and numbers of NumPy and TensorFlow.
        entries = json.loads(json.dumps(self.entries, default=lambda x: np.asarray(x).tolist()))
        with replacing(os.path.join(self.folder, STATE)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump({"sha256": _entries_checksum(entries), "points": entries}, file)
        self.entries = entries

    def _list_unused_files(self, used):
        """Lists the files of checkpoints, by their names, that are not in `used`."""
        if not os.path.isdir(self.folder):
            return set()
        return {x for x in os.listdir(self.folder) if self._owned.fullmatch(x)} - used


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays by name, atomically; returns the SHA-256 of the file."""
    header, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the arrays
    checksum = hashlib.sha256()
    with replacing(path) as name, open(name, "wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text, *map(_array_bytes, arrays.values())):
            checksum.update(chunk)
            file.write(chunk)
    return checksum.hexdigest()


def read_arrays(path: Path, checksum: str) -> dict[str, np.ndarray]:
    """Reads the arrays of `write_arrays`, those of bfloat16 as uint16."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise _corrupted(path)
    size = 8 + int.from_bytes(content[:8], "little")
    names = {code: name for name, code in TYPES.items()} | {"BF16": "uint16"}
    arrays = {}
    for name, entry in json.loads(content[8:size]).items():
        begin, end = entry["data_offsets"]
        data = memoryview(content)[size + begin : size + end]
        arrays[name] = np.frombuffer(data, names[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def file_checksum(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    try:
        return digest(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error


def check_checksum(path: Path, checksum: str) -> None:
    """Checks the SHA-256 of a file."""
    if file_checksum(path) != checksum:
        raise _corrupted(path)


def _array_bytes(array: np.ndarray) -> Any:
    """Returns the bytes of an array; NumPy has no memoryview of bfloat16 or scalars."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _corrupted(path):
    return ValueError(f"{path} is corrupted (its checksum has changed)")


def _entries_checksum(entries):
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
