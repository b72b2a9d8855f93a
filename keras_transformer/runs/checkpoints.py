"""The files that a training resumes from: two checkpoints, whole and with checksums.

`resume.json` describes each checkpoint, with the checksum of every file of it; beside it lie their
arrays. Everything is written beside its place, flushed and renamed, first the files and then
`resume.json`, so that a process killed at any moment leaves two whole checkpoints.

Arrays are in safetensors' format: the length of the header, the header (JSON: name, type, shape and
place of each array), and their bytes one after the other. Nothing in it can be code, as in a
pickle; and it is written by Python alone, where a full disk raises an error and does not, as in
HDF5, end the process.
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
from keras_transformer.utils import Path, reason, replacing

try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

STATE, LOCK = "resume.json", "lock"
TYPES = {
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{"bool": "BOOL", "bfloat16": "BF16"},
}
# File descriptors of the locks of this process: a notebook may train there again.
_held: dict[str, int] = {}


class Checkpoints:
    """The checkpoints of a training in a directory, the newest last.

    Args:
        folder: Name of the directory.
        owned: Regular expression of the names of further files that belong to checkpoints: those
            that no checkpoint names are removed.
        writes: Whether this process is the one of several workers that writes; if not, methods that
            write do nothing.

    Attributes:
        points: List of dicts: `arrays` (the name of their file), `sha256`, `state` and `files`, see
            `write`; of those on the disk, once `read` has read it.
    """

    KEPT = 2  # should the last one be damaged
    OWN = r"\d{6}-\d{8}\.safetensors"

    def __init__(self, folder: Path, owned: str | None = None, writes: bool = True) -> None:
        self.writes = writes
        self.folder = os.fspath(folder)
        self.points: list[dict[str, Any]] = []
        names = "|".join(filter(None, (self.OWN, owned)))
        self._owned = re.compile(rf"({re.escape(replacing.PREFIX)}.*|{names})")

    # --- one training at a time ---

    def lock(self) -> None:
        """Makes the directory, if need be, and keeps other processes from training into it.

        Raises:
            ValueError: If another one does, or nothing can be written there.
        """
        if not self.writes:
            return
        name = os.path.realpath(os.path.join(self.folder, LOCK))
        try:
            os.makedirs(self.folder, exist_ok=True)
            held = _held.get(name)
            if held is not None and os.path.exists(name) and _is_file(held, name):
                return
            file = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be written to ({reason(error)}).") from error
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                process = os.read(file, 99).decode()
                os.close(file)
                raise ValueError(
                    f"{self.folder} is being trained into by another process"
                    f"{f' ({process})' if process else ''}: wait for its end, or choose another "
                    "directory."
                ) from None
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        _held[name] = file

    def release(self) -> None:
        """Lets others train into the directory; the end of a process does so too."""
        file = _held.pop(os.path.realpath(os.path.join(self.folder, LOCK)), None)
        if file is not None:
            os.close(file)

    # --- reading ---

    def read(self) -> list[dict[str, Any]]:
        """Reads the descriptions of the checkpoints, not their files.

        Raises:
            ValueError: If `resume.json` is damaged, or is missing where there are checkpoints.
        """
        name = os.path.join(self.folder, STATE)
        mend = "put back a copy of it, or train anew into another directory"
        try:
            with open(name, encoding="utf-8") as file:
                whole = json.load(file)
            points = whole["points"]
            good = whole["sha256"] == _checksum(points)
        except FileNotFoundError:
            lost = sorted(self._not_named(set()))
            if lost:
                raise ValueError(
                    f"{name} is missing, though there are checkpoints such as {lost[-1]}: {mend}."
                ) from None
            points, good = [], True
        except OSError as error:
            raise ValueError(f"{name} cannot be read ({reason(error)}): {mend}.") from None
        except (ValueError, KeyError, TypeError):
            good = False
        if not good:
            raise ValueError(f"{name} is damaged: {mend}.")
        self.points = points
        return points

    def latest(self) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """Opens the newest checkpoint that is whole; warns on stderr about a damaged newer one.

        Returns:
            The state and the arrays that `write` was given. None where nothing has been saved yet.

        Raises:
            ValueError: If no checkpoint is whole, or as `read` does.
        """
        damages: list[str] = []
        for point in reversed(self.read()):
            try:
                for name, checksum in point["files"].items():
                    path = os.path.join(self.folder, name)
                    if file_checksum(path) != checksum:
                        raise _changed(path)
                arrays = read_arrays(os.path.join(self.folder, point["arrays"]), point["sha256"])
            except ValueError as error:
                damages.append(str(error))
                continue
            for damage in damages:
                print(f"{damage}: going on from the point before it", file=sys.stderr)
            self.points = self.points[: self.points.index(point) + 1]
            return point["state"], arrays
        if damages:
            raise ValueError(
                f"There is nothing whole to go on from: {'; '.join(dict.fromkeys(damages))}. Put "
                "back a copy, or train anew into another directory."
            )
        return None

    # --- writing ---

    def begin(self) -> None:
        """Writes an empty `resume.json`, which from then on must not be missing."""
        self.points = []
        self._write()

    def write(
        self,
        name: str,
        state: dict[str, Any],
        arrays: Mapping[str, np.ndarray],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a checkpoint, and removes the files that none of those that are kept needs.

        Args:
            name: Of the checkpoint: "epoch-step", of 6 and 8 digits.
            state: What JSON can hold.
            arrays: {name: array}, of numbers or booleans.
            files: {name: checksum} of other files in the directory that belong to the checkpoint.

        Raises:
            ValueError: If something cannot be written; the checkpoints from before are whole then.
        """
        if not self.writes:
            return
        file = f"{name}.safetensors"
        checksum = write_arrays(os.path.join(self.folder, file), arrays)
        point = {"arrays": file, "sha256": checksum, "state": state, "files": dict(files or {})}
        others = [one for one in self.points if one["arrays"] != file]
        before, self.points = self.points, [*others, point][-self.KEPT :]
        try:
            self._write()
        except ValueError:
            self.points = before
            raise
        self.clean()

    def drop(self, since: int) -> None:
        """Removes the checkpoints after `since` applied steps (`"applied"` of a state), or more."""
        if self.writes:  # others do not know them all
            self.points = [x for x in self.points if x["state"].get("applied", 0) < since]
            self._write()
            self.clean()

    def amend(self, **changes: Any) -> None:
        """Changes fields of the newest state; does nothing where there is no checkpoint."""
        if self.points:
            self.points[-1]["state"] |= changes
            self._write()

    def clean(self) -> None:
        """Removes files that belong to no checkpoint: of dropped ones, or of killed processes."""
        if not self.writes:
            return
        named = {name for point in self.points for name in (point["arrays"], *point["files"])}
        for name in self._not_named(named):
            try:
                os.remove(os.path.join(self.folder, name))
            except OSError as error:
                raise ValueError(
                    f"{os.path.join(self.folder, name)} cannot be removed ({reason(error)})."
                ) from error

    def _write(self):
        if not self.writes:
            return
        # As it will be read: JSON has no tuples, and neither NumPy's nor TensorFlow's numbers.
        points = json.loads(json.dumps(self.points, default=lambda x: np.asarray(x).tolist()))
        with replacing(os.path.join(self.folder, STATE)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump({"sha256": _checksum(points), "points": points}, file)
        self.points = points

    def _not_named(self, named):
        """Files with names like those of checkpoints that are not among the named ones."""
        if not os.path.isdir(self.folder):
            return set()
        return {x for x in os.listdir(self.folder) if self._owned.fullmatch(x)} - named


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays by name, whole or not at all; returns the SHA-256 of the file.

    Raises:
        ValueError: If the file cannot be written.
    """
    header, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the arrays then lie at whole words
    checksum = hashlib.sha256()
    with replacing(path) as name, open(name, "wb") as file:
        for part in (len(text).to_bytes(8, "little"), text, *map(_bytes, arrays.values())):
            checksum.update(part)
            file.write(part)
    return checksum.hexdigest()


def read_arrays(path: Path, checksum: str) -> dict[str, np.ndarray]:
    """Reads the arrays that `write_arrays` has written; those of bfloat16 as uint16.

    Raises:
        ValueError: If the file cannot be read, or has another checksum.
    """
    try:
        with open(path, "rb") as file:
            whole = file.read()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error
    if hashlib.sha256(whole).hexdigest() != checksum:
        raise _changed(path)
    size = 8 + int.from_bytes(whole[:8], "little")
    names = {code: name for name, code in TYPES.items()} | {"BF16": "uint16"}
    arrays = {}
    for name, entry in json.loads(whole[8:size]).items():
        begin, end = entry["data_offsets"]
        data = memoryview(whole)[size + begin : size + end]
        arrays[name] = np.frombuffer(data, names[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({reason(error)})") from error


def _bytes(array: np.ndarray) -> Any:
    """An array's bytes as they lie in memory; NumPy itself shows none of bfloat16 or scalars."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _changed(path):
    return ValueError(f"{path} is damaged (its checksum is another than when it was written)")


def _checksum(points):
    return hashlib.sha256(json.dumps(points, sort_keys=True).encode()).hexdigest()


def _is_file(file, name):
    return os.path.samestat(os.fstat(file), os.stat(name))
