"""The files that a training goes on from: two points, whole and checked, and one training at them.

`resume.json` says what each point holds, and the checksum of every file of it; beside it lie their
arrays. Everything is written beside its place, flushed and renamed, first the files and then what
names them, so that a process killed at any moment leaves two points that are whole.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.atomic_files import reason, replacing
from keras_transformer.runs.arrays_file import file_checksum, read_arrays, write_arrays
from keras_transformer.typing import Path

try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

STATE, LOCK = "resume.json", "lock"
_held: dict[
    str, int
] = {}  # file descriptors of the locks of this process: a notebook may train there again


class ResumePoints:
    """The points of a training in a directory, the newest last.

    Args:
        folder: Name of the directory.
        owned: Regular expression of the names of further files that belong to points: what no point
            names is removed.
        writes: Whether this process is the one of several that writes; others only read.

    Attributes:
        points: List of dicts as `write` takes them; of those on the disk, once `read` has read it.
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
        """Reads what the points are, without looking at their files.

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
            lost = sorted(self._strangers(set()))
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
        """Opens the newest point that is whole; says on stderr what is wrong with a newer one.

        Returns:
            What `write` was given: a state and arrays. None where nothing has been saved yet.

        Raises:
            ValueError: If no point is whole, or as `read` does.
        """
        damages: list[str] = []
        for point in reversed(self.read()):
            try:
                for name, checksum in point["files"].items():
                    path = os.path.join(self.folder, name)
                    if file_checksum(path) != checksum:
                        raise ValueError(
                            f"{path} is damaged (its checksum is another than when it was written)"
                        )
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
        """Writes that there is no point yet: from then on, `resume.json` must not be missing."""
        self.points = []
        self._write()

    def write(
        self,
        name: str,
        state: dict[str, Any],
        arrays: Mapping[str, np.ndarray],
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a point, and removes what none of those that are kept needs.

        Args:
            name: Of the point: "epoch-update", of 6 and 8 digits.
            state: What JSON can hold.
            arrays: {name: array}.
            files: {name: checksum} of other files in the directory that belong to the point.

        Raises:
            ValueError: If something cannot be written; the points from before are whole then.
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
        """Removes the points after so many applied updates, or more.

        Args:
            since: Number of updates, as the `"applied"` of a state counts them.
        """
        if self.writes:  # others do not know them all
            self.points = [x for x in self.points if x["state"].get("applied", 0) < since]
            self._write()
            self.clean()

    def amend(self, **changes: Any) -> None:
        """Changes fields of the newest point's state; does nothing where there is no point."""
        if self.points:
            self.points[-1]["state"] |= changes
            self._write()

    def clean(self) -> None:
        """Removes what belongs to no point: of points that are gone, or of killed processes."""
        if not self.writes:
            return
        named = {name for point in self.points for name in (point["arrays"], *point["files"])}
        for name in self._strangers(named):
            try:
                os.remove(os.path.join(self.folder, name))
            except OSError as error:
                raise ValueError(
                    f"{os.path.join(self.folder, name)} cannot be removed ({reason(error)})."
                ) from error

    def _write(self):
        if not self.writes:
            return
        # As it will be read: JSON has no tuples.
        points = json.loads(json.dumps(self.points, default=_plain))
        with replacing(os.path.join(self.folder, STATE)) as name:
            with open(name, "w", encoding="utf-8") as file:
                json.dump({"sha256": _checksum(points), "points": points}, file)
        self.points = points

    def _strangers(self, named):
        """Files like those of points that are not among the named ones."""
        if not os.path.isdir(self.folder):
            return set()
        return {x for x in os.listdir(self.folder) if self._owned.fullmatch(x)} - named


def _checksum(points):
    return hashlib.sha256(json.dumps(points, sort_keys=True).encode()).hexdigest()


def _plain(value):
    """Numbers and arrays of NumPy or TensorFlow as JSON can hold them."""
    return np.asarray(value).tolist()


def _is_file(file, name):
    return os.path.samestat(os.fstat(file), os.stat(name))
