"""The files of checkpoints that a training resumes from, with checksums.

`resume.json` describes the last two checkpoints, with the checksums of their files; the files with
their arrays (safetensors) are in the same directory. Each file is written under a temporary name,
flushed and renamed, `resume.json` last. A process killed at any time thus leaves valid checkpoints.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_transformer.utils import (
    TEMPORARY,
    Path,
    digest,
    lock,
    read_sealed,
    reason,
    replacing,
    write_sealed,
)

STATE, LOCK = "resume.json", "lock"
KEPT = "checkpoints"  # in `resume.json`
# File descriptors of the locks of this process, which may train into a directory again.
_held: dict[str, int] = {}


class Checkpoints:
    """The checkpoints of a training in a directory, the newest last.

    `owned` is a regular expression of the names of other files that belong to checkpoints; files
    that no checkpoint uses are removed. Unless this process `writes`, as the chief does, methods
    that write do nothing.

    Attributes:
        state_file: Path of `resume.json`.
        entries: After `read`, a list of dicts: `arrays` (the name of the file), `sha256`, `state`
            and `files`; see `write`.
    """

    MAX_ENTRIES = 2  # the second in case that the last is corrupted
    ARRAYS_PATTERN = r"\d{6}-\d{8}\.safetensors"

    def __init__(self, folder: Path, owned: str | None = None, writes: bool = True) -> None:
        self.writes = writes
        self.folder = os.fspath(folder)
        self._path = functools.partial(os.path.join, self.folder)
        self.state_file = self._path(STATE)
        self.entries: list[dict[str, Any]] = []
        names = "|".join(filter(None, (self.ARRAYS_PATTERN, owned)))
        self._owned = re.compile(rf"({re.escape(TEMPORARY)}.*|{names})")

    # --- one training at a time ---

    def lock(self) -> None:
        """Creates the directory if necessary, and locks it against other processes."""
        if not self.writes:
            return
        name = os.path.realpath(self._path(LOCK))
        try:
            os.makedirs(self.folder, exist_ok=True)
            file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be written ({reason(error)}).") from error
        held = _held.get(name)
        if held is not None and os.path.samestat(os.fstat(held), os.fstat(file)):
            os.close(file)
            return
        if not lock(file):
            process = os.read(file, 99).decode()
            os.close(file)
            raise ValueError(
                f"{self.folder} is in use by another training process"
                f"{f' ({process})' if process else ''}: choose another directory."
            )
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        _held[name] = file

    def release(self) -> None:
        """Unlocks the directory; the end of the process does so too."""
        file = _held.pop(os.path.realpath(self._path(LOCK)), None)
        if file is not None:
            os.close(file)

    # --- reading ---

    def read(self) -> list[dict[str, Any]]:
        """Reads `resume.json`, but not the other files."""
        name, self.entries = self.state_file, []
        remedy = "restore it from a copy, or train again into another directory"
        if not os.path.exists(name):
            if checkpoints := sorted(self._list_unused_files(set())):
                raise ValueError(f"{name} is missing, although {checkpoints[-1]} exists: {remedy}.")
            return self.entries
        try:
            self.entries = list(read_sealed(name)[KEPT])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{name} is corrupted, or of an earlier version: {remedy}.") from None
        return self.entries

    def latest(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Reads the state and the arrays of the newest valid checkpoint, None before the first.

        Warns on stderr about a corrupted newer one.
        """
        problems: list[str] = []
        for entry in reversed(self.read()):
            try:
                for name, checksum in entry["files"].items():
                    check_checksum(self._path(name), checksum)
                name = self._path(entry["arrays"])
                check_checksum(name, entry["sha256"])
                arrays = load_file(name)
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

        The name is "epoch-step", with 6 and 8 digits; JSON can represent the state; `files` are
        {name: checksum} of other files in the directory that belong to the checkpoint.
        """
        if not self.writes:
            return
        file = f"{name}.safetensors"
        checksum = write_arrays(self._path(file), arrays)
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
                os.remove(self._path(name))
            except OSError as error:
                raise ValueError(
                    f"{self._path(name)} cannot be removed ({reason(error)})."
                ) from error

    def _write(self):
        if not self.writes:
            return
        # As `read` returns them: without tuples and numbers of NumPy and TensorFlow.
        entries = json.loads(json.dumps(self.entries, default=lambda x: np.asarray(x).tolist()))
        with replacing(self.state_file) as name:
            write_sealed(name, {KEPT: entries})
        self.entries = entries

    def _list_unused_files(self, used):
        """Lists the files of checkpoints, by their names, that are not in `used`."""
        if not os.path.isdir(self.folder):
            return set()
        return {x for x in os.listdir(self.folder) if self._owned.fullmatch(x)} - used


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays by name, atomically; returns the SHA-256 of the file."""
    with replacing(path) as name:
        try:
            save_file({key: np.asarray(array, order="C") for key, array in arrays.items()}, name)
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        return digest(name)


def check_checksum(path: Path, checksum: str) -> None:
    """Checks the SHA-256 of a file."""
    try:
        received = digest(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error
    if received != checksum:
        raise ValueError(f"{path} is corrupted (its checksum has changed)")
