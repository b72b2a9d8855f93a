"""Prepares a corpus: reads text, learns vocabularies, tokenizes, writes shards."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_transformer import __version__
from keras_transformer.data.corpora import TrainingText, sample_rows
from keras_transformer.data.pairs import Pair, fingerprint
from keras_transformer.data.prepared.encoding import EncodedSide, ServedIds, encode_blocks
from keras_transformer.data.prepared.prepared_corpus import (
    FORMAT,
    MANIFEST,
    VALID,
    check_files,
    describe_file,
    read_manifest,
)
from keras_transformer.data.text_files import Block, ParallelText, read_pairs
from keras_transformer.presets import PrepareConfig
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.round_trip import MAX_LINES, describe_lost
from keras_transformer.tokenizers.training import learn_vocabularies
from keras_transformer.tokenizers.vocabularies import read_pieces
from keras_transformer.utils import Path, counted, open_locked, reason, replacing

CHUNK = 4096  # pairs that are tokenized at once
SHARD = 64  # chunks: a quarter of a million pairs, some 30 MB
PROGRESS = "progress.json"  # the manifest of an unfinished corpus
UNFINISHED = ".preparing"  # suffix of the directory of an unfinished corpus

VOCABULARIES = ("source_vocabulary", "target_vocabulary")
FILES = (
    *("train_source", "train_target", "valid_source", "valid_target", "vocabularies"),
    *VOCABULARIES,
)


def prepare_corpus(config: PrepareConfig, output: Path, processes: int | None = None) -> None:
    """Writes a prepared corpus; see `keras_transformer.prepare`. Another one there is replaced."""
    parallel = ParallelText(config.train_source, config.train_target)
    text = TrainingText(parallel, config.valid_fraction, config.seed)
    valid = text.valid
    if config.valid_source is not None:
        valid = read_pairs(config.valid_source, config.valid_target)
    names = ", ".join(filter(None, (config.train_source, config.train_target)))
    _log(f"{names}: {counted(len(text), 'training pair')}, {len(valid):,} for validation")
    try:
        request = _build_request(config, text, valid)
        if _is_prepared(output, request):
            return
        with lock_output(output):
            writer = CorpusWriter(output, request)
            if writer.is_resumed:
                _log(f"resuming after {counted(len(writer.content['shards']), 'complete shard')}")
            else:
                writer.begin(_make_vocabularies(config, text), valid)
            targets = _write_shards(writer, text, processes)
            writer.content["lost"] = describe_lost(saved.read(writer.folder)[1], targets)
            writer.finish()
    except OSError as error:
        raise ValueError(f"{output} cannot be created: {reason(error)}.") from error
    _log_summary(writer.content, output)


def _build_request(config, text, valid):
    """Returns everything that the corpus depends on: options, text, given vocabularies."""
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in FILES}
    prints = {"train": text.fingerprint, "valid": fingerprint(valid)}
    request: dict[str, Any] = {"format": FORMAT, "version": __version__, "options": options}
    request |= {"fingerprints": prints}
    if config.vocabularies is not None:
        models = saved.read(config.vocabularies)
        request["vocabularies"] = [hashlib.sha256(model).hexdigest() for model in models]
    for name in VOCABULARIES:
        if path := getattr(config, name):
            pieces = "\n".join(read_pieces(path))
            request[name] = hashlib.sha256(pieces.encode()).hexdigest()
    return request


def _is_prepared(output, request):
    """Returns whether the same corpus is already prepared; removes a different one."""
    if not os.path.exists(os.path.join(output, MANIFEST)):
        return False
    with contextlib.suppress(ValueError):
        manifest = read_manifest(output)
        check_files(output, manifest)
        if request.items() <= manifest.items():
            return True
    shutil.rmtree(output)
    return False


def _make_vocabularies(config, text):
    """Returns two serialized vocabularies, learned or given."""
    if config.vocabularies is not None:
        return saved.read(config.vocabularies)
    rows = sample_rows(len(text), config.vocabulary_sample, config.seed)
    if len(rows) < len(text):
        pairs = counted(len(rows), "pair")
        _log(f"vocabularies are learned from {pairs}, sampled with seed {config.seed}")

    def read():
        for block in text.blocks(rows):
            for pair in zip(*block, strict=True):
                yield [side.decode() for side in pair]

    names = ("vocabulary_size", "model_type", "lowercase", "nfkc", *VOCABULARIES)
    names += tuple(f"{name}_size" for name in VOCABULARIES)
    options = {name: getattr(config, name) for name in names}
    return learn_vocabularies(read, **options, joint=config.joint_vocabulary)


def _write_shards(writer, text, processes):
    """Tokenizes and writes the pairs not in complete shards yet; returns up to 10,000 targets."""
    models = saved.read(writer.folder)
    served = ServedIds(models, writer.content.get("served"))
    done = SHARD * len(writer.content["shards"])
    targets: list[str] = []

    def collect_targets(chunk):
        targets.extend(line.decode() for line in chunk[1][:: -(-len(text) // MAX_LINES)])
        return chunk

    chunks = map(collect_targets, _regroup_blocks(text.blocks()))
    chunks = itertools.islice(chunks, done, None)
    encoded = (
        [served.correct(side, block[side], sides[side]) for side in (0, 1)]
        for block, sides in encode_blocks(chunks, models, processes)
    )
    while shard := list(itertools.islice(encoded, SHARD)):
        writer.content["served"] = served.counts
        writer.add_shard(shard)
        _log(f"{writer.pairs_done:,} of {counted(len(text), 'pair')}")
    if writer.pairs_done != len(text):
        raise ValueError(
            f"The text changed while it was being read ({counted(len(text), 'pair')}, then "
            f"{writer.pairs_done}): prepare it again."
        )
    return targets[:MAX_LINES]


def _regroup_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Regroups pairs into blocks of CHUNK pairs; the last one may be smaller."""
    sources: list[bytes] = []
    targets: list[bytes] = []
    for block in blocks:
        sources += block[0]
        targets += block[1]
        whole = len(sources) - len(sources) % CHUNK
        for start in range(0, whole, CHUNK):
            yield sources[start : start + CHUNK], targets[start : start + CHUNK]
        sources, targets = sources[whole:], targets[whole:]
    if sources:
        yield sources, targets


def _log_summary(content, output):
    """Prints a summary."""
    served, count = content["served"], len(content["shards"])
    if content["lost"]:
        _log(f"targets: {content['lost']}")
    if served["uncertain"]:
        such_as = "".join(f"\n    {line}" for line in served["such_as"])
        _log(
            f"{counted(served['uncertain'], 'line')} can be segmented in several ways that are "
            "equally probable except for rounding: they were tokenized by the served operation, "
            f"which segments {served['differing']:,} of them differently from the sentencepiece "
            "package" + (f", such as{such_as}" if such_as else "")
        )
    _log(f"{output}: {counted(count, 'shard')}")


def _log(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def lock_output(output: Path) -> Iterator[None]:
    """Creates and locks the directory in which a corpus is written.

    The lock is released even if the process is killed. If the directory remains empty, it is
    removed.
    """
    folder = _unfinished_path(output)
    os.makedirs(folder, exist_ok=True)
    lock = open_locked(folder)
    if lock is None:
        raise ValueError(
            f"{output} is being prepared by another process: wait until it ends, or choose another "
            "directory."
        )
    try:
        yield
    finally:
        os.close(lock)
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # if it is empty


class CorpusWriter:
    """Writes a corpus in a directory next to its final one; see `lock_output`.

    An interrupted corpus for the same request, which is everything that the corpus depends on, is
    resumed after the last complete shard; any other is started again.
    """

    def __init__(self, output: Path, request: dict[str, Any]) -> None:
        self.output = output
        self.folder = _unfinished_path(output)
        self.content = _read_progress(self.folder)
        self.is_resumed = request.items() <= self.content.items()
        if not self.is_resumed:
            self.content = request | {"shards": [], "files": {}}

    @property
    def pairs_done(self) -> int:
        """Number of pairs in complete shards."""
        return sum(shard["pairs"] for shard in self.content["shards"])

    def begin(self, models: tuple[bytes, bytes], valid: list[Pair]) -> None:
        """Clears the directory, then writes vocabularies and validation text."""
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))
        for side, model in zip(saved.SIDES, models, strict=True):
            self._write(side + saved.file_extension(model), model)
        for number, name in enumerate(VALID if valid else ()):
            self._write(name, "".join(f"{pair[number]}\n" for pair in valid).encode())
        self._save()

    def add_shard(self, chunks: Sequence[Sequence[EncodedSide]]) -> None:
        """Writes a shard: the ids of all sources, then of all targets, and their offsets."""
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
            # np.save reports a full disk as a number of bytes that were not written.
            header = np.lib.format.header_data_from_array_1_0(array)
            with self._open_for_writing(name) as file:
                np.lib.format.write_array_header_1_0(file, header)
                file.write(np.ascontiguousarray(array).data)
        self.content["shards"].append(shard)
        self._save()

    def finish(self) -> None:
        """Moves the corpus to its final directory."""
        self._save()
        os.replace(os.path.join(self.folder, PROGRESS), os.path.join(self.folder, MANIFEST))
        os.replace(self.folder, self.output)

    def _write(self, name, data):
        with self._open_for_writing(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def _open_for_writing(self, name):
        """Opens a file to write, which is added to the manifest once it is complete."""
        with replacing(os.path.join(self.folder, name)) as temporary:
            with open(temporary, "wb") as file:
                yield file
        self.content["files"][name] = describe_file(self.folder, name)

    def _save(self):
        with replacing(os.path.join(self.folder, PROGRESS)) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(self.content, file, indent=1)


def _unfinished_path(output):
    """Returns the directory of an unfinished corpus."""
    return os.fspath(output).rstrip("/") + UNFINISHED


def _read_progress(folder):
    """Returns the manifest of an interrupted corpus; an empty dict if missing or corrupted."""
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
