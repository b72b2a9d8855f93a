"""Writes a prepared corpus: shard after shard, whole or not at all."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

from keras_transformer.atomic_files import replacing
from keras_transformer.corpora.pair import Pair
from keras_transformer.data.prepared.encoder import EncodedSide
from keras_transformer.data.prepared.manifest import (
    MANIFEST,
    SOURCE,
    TARGET,
    VALID,
    describe_file,
    write_json,
)
from keras_transformer.typing import Path

CHUNK = 4096  # pairs that are tokenized at once
SHARD = 64  # chunks: a quarter of a million pairs, some 30 MB
PROGRESS = "progress.json"  # the manifest, as far as it has come
UNFINISHED = ".preparing"  # what the name of a directory ends with that is not a corpus yet


@contextlib.contextmanager
def being_written(output: Path) -> Iterator[None]:
    """Makes the directory in which a corpus is written, and keeps other processes from it.

    A process that is killed leaves no lock behind; one that fails before it has written anything,
    no directory.

    Raises:
        ValueError: If another process writes it.
    """
    folder = _folder(output)
    os.makedirs(folder, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ValueError(
            f"{output} is being prepared by another process: wait for its end, or choose another "
            "directory."
        ) from error
    finally:
        if lock is not None:
            os.close(lock)
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # if there is nothing in it


class CorpusWriter:
    """A corpus that is being written, in a directory beside its place, `being_written`.

    What was killed goes on after the last whole shard, if it is asked for the same; else it is
    begun anew.

    Args:
        output: Directory to make.
        request: All that decides what the corpus will be, as JSON has it.

    Attributes:
        content: Its manifest, as far as it has come.
        is_begun: Whether there is something to go on from.
    """

    def __init__(self, output: Path, request: dict[str, Any]) -> None:
        self.output = output
        self.folder = _folder(output)
        self.content = _read_progress(self.folder)
        self.is_begun = request.items() <= self.content.items()
        if not self.is_begun:
            self.content = request | {"shards": [], "files": {}}

    @property
    def chunks_done(self) -> int:
        """How many chunks are in whole shards."""
        return SHARD * len(self.content["shards"])

    @property
    def pairs_done(self) -> int:
        """How many pairs are in whole shards."""
        return sum(shard["pairs"] for shard in self.content["shards"])

    def begin(self, models: tuple[bytes, bytes], valid: list[Pair]) -> None:
        """Writes what is not text to train on, into a directory without anything else."""
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        for name, model in zip((SOURCE, TARGET), models, strict=True):
            self._write(name, model)
        for side, name in enumerate(VALID if valid else ()):
            self._write(name, "".join(f"{pair[side]}\n" for pair in valid).encode())
        self._save()

    def models(self) -> tuple[bytes, bytes]:
        """The vocabularies that it was begun with."""
        source, target = (self._read(name) for name in (SOURCE, TARGET))
        return source, target

    def add_shard(self, chunks: Sequence[Sequence[EncodedSide]]) -> None:
        """Writes some chunks: the ids of all sources, then of all targets, and their offsets."""
        sides = list(zip(*chunks, strict=True))
        ids = np.concatenate([chunk.ids for side in sides for chunk in side])
        lengths = [np.concatenate([chunk.lengths for chunk in side]) for side in sides]
        offsets = np.zeros((2, len(lengths[0]) + 1), np.uint64)
        np.cumsum(lengths, axis=1, out=offsets[:, 1:])
        smallest = np.uint32 if offsets[:, -1].max() < 1 << 32 else np.int64
        shard: dict[str, Any] = {"pairs": len(lengths[0])}
        arrays = {"ids": ids, "offsets": offsets.astype(smallest)}
        for kind, array in arrays.items():
            name = shard[kind] = f"{len(self.content['shards']):05}.{kind}.npy"
            with replacing(os.path.join(self.folder, name)) as temporary:
                _save(temporary, array)
            self.content["files"][name] = describe_file(self.folder, name)
        self.content["shards"].append(shard)
        self._save()

    def finish(self) -> None:
        """Moves the corpus to its place."""
        progress = os.path.join(self.folder, PROGRESS)
        if os.path.exists(progress):  # else it was killed here
            os.replace(progress, os.path.join(self.folder, MANIFEST))
        os.replace(self.folder, self.output)

    def _save(self):
        write_json(self.folder, PROGRESS, self.content)

    def _read(self, name):
        with open(os.path.join(self.folder, name), "rb") as file:
            return file.read()

    def _write(self, name, data):
        with replacing(os.path.join(self.folder, name)) as temporary:
            with open(temporary, "wb") as file:
                file.write(data)
        self.content["files"][name] = describe_file(self.folder, name)


def _save(name, array):
    """What np.save does, which tells a full disk by numbers of bytes, and not for what it is."""
    with open(name, "wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(array).data)


def _folder(output):
    """Where a corpus is written."""
    return os.fspath(output).rstrip("/") + UNFINISHED


def _read_progress(folder):
    """How far a corpus whose writing was killed has come; an empty dict where that is unknown."""
    for name in (PROGRESS, MANIFEST):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                content = json.load(file)
            files = content["files"].items()
            if all(describe_file(folder, name) == described for name, described in files):
                return content
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
    return {}
