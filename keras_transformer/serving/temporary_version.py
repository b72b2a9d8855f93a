"""A version that is being made, under a name that servers ignore."""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator

import tensorflow as tf

try:
    import fcntl
except ImportError:  # on Windows, where what a killed export has left stays
    fcntl = None  # type: ignore[assignment]

PREFIX = ".tmp-"
# What a disk says that cannot be written to; TensorFlow has it in words only.
OF_DISKS = [
    os.strerror(getattr(errno, name))
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EIO")
    if hasattr(errno, name)
]


@contextlib.contextmanager
def temporary_version(base: str, version: int) -> Iterator[str]:
    """A directory that servers ignore, on the same file system as its place will be; then gone.

    What killed exports have left there is removed.

    Args:
        base: The directory that holds all versions.
        version: Number of the one that is made.

    Raises:
        ValueError: If it cannot be made or written to.
    """
    try:
        os.makedirs(base, exist_ok=True)
        _remove_leftovers(base)
        temporary, lock = _make(base, version)
    except OSError as error:
        raise ValueError(
            f"{base} is not a directory that can be written to ({error.strerror}); pass the one "
            "that is to hold the model's versions."
        ) from error
    try:
        yield temporary
    except (OSError, tf.errors.OpError) as error:
        said = str(error)
        reason = next((words for words in OF_DISKS if words in said), None)
        if reason is None and temporary not in said:
            raise  # of something else
        raise ValueError(
            f"The version could not be written into {base} ({reason or said.splitlines()[0]}): "
            "mend that and export again; nothing was published."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone already when all went well
        os.close(lock)


def _make(base, version):
    """An empty directory, and the file descriptor that locks it as long as this process lives."""
    while True:
        temporary = os.path.join(base, f"{PREFIX}{version}-{uuid.uuid4().hex}")
        # Not by tempfile, whose directories are closed to other users: a server often is one.
        os.mkdir(temporary)
        lock = os.open(temporary, os.O_RDONLY)
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(temporary):
            return temporary, lock
        os.close(lock)  # another export has taken it for a leftover before it was locked


def _remove_leftovers(base):
    """Removes the directories that no living process has locked."""
    for entry in os.scandir(base) if fcntl is not None else ():
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
            lock = os.open(entry.path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            except BlockingIOError:
                continue  # an export under way
            finally:
                os.close(lock)
