"""Prepared corpora: text tokenized once, into files of ids that trainings map into memory.

Loads no TensorFlow, unless a vocabulary needs the operation that is served: `saved.make_encoder`.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from keras_transformer import __version__
from keras_transformer.data.pairs import Block, EncodedPairs, Pair, Sentences, Shard, fingerprint
from keras_transformer.data.text_files import (
    ParallelText,
    TrainingText,
    decode,
    read_pairs,
    sample_rows,
)
from keras_transformer.presets import PrepareConfig
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import learn_vocabularies, read_pieces
from keras_transformer.utils import Path, counted, open_locked, read_json, reason, replacing

FORMAT = 1  # of prepared corpora
MANIFEST = "manifest.json"
PROGRESS = "progress.json"  # the manifest of an unfinished corpus
UNFINISHED = ".preparing"  # suffix of the directory of an unfinished corpus
VALID = ("valid.source", "valid.target")  # the validation text, line by line

BLOCK = 1 << 20  # bytes read at once
CHUNK = 4096  # pairs that are tokenized at once
SHARD = 64  # chunks: a quarter of a million pairs, some 30 MB

VOCABULARIES = ("source_vocabulary", "target_vocabulary")
FILES = (
    *("train_source", "train_target", "valid_source", "valid_target", "vocabularies"),
    *VOCABULARIES,
)


class PreparedCorpus:
    """A corpus written by `prepare`: ids that stay on disk, memory-mapped.

    Every file is first compared with its checksum, which takes a second per gigabyte.

    Args:
        path: Its directory.

    Attributes:
        options: Dict of the options of its preparation, see `PrepareConfig`.
        fingerprints: Dict of the fingerprints of `train` and `valid`, as in a run's `data.json`.
        lost: Targets that its vocabulary cannot write, in a sentence; empty if there are none.

    Raises:
        ValueError: If it is not a prepared corpus or has another format, or if a file of it is
            missing, truncated or was changed.

    Example:

    >>> corpus = keras_transformer.PreparedCorpus("corpora/ende")
    >>> dataset = keras_transformer.make_dataset(corpus=corpus, tokens_per_batch=8192)
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.manifest = read_manifest(path)
        check_files(path, self.manifest)
        self.options: dict[str, Any] = self.manifest["options"]
        self.fingerprints: dict[str, Any] = self.manifest["fingerprints"]
        self.lost = "".join(filter(str.isprintable, str(self.manifest.get("lost", ""))))

    def __len__(self) -> int:
        return self.fingerprints["train"]["pairs"]

    @cached_property
    def pairs(self) -> EncodedPairs:
        """The training pairs, as ids."""
        return EncodedPairs(*(Sentences(shards) for shards in self.shards()))

    def shards(self) -> tuple[list[Shard], list[Shard]]:
        """Returns source and target as the shards of `Sentences`.

        Every id is checked, which takes less time than its checksum.
        """
        source, target = [], []
        for shard in self.manifest["shards"]:
            ids, offsets = (self._open_array(shard[kind]) for kind in ("ids", "offsets"))
            if not _offsets_match(ids, offsets):
                raise _corrupted_error(os.path.join(self.path, shard["offsets"]))
            middle = int(offsets[0, -1])
            source.append((ids[:middle], offsets[0]))
            target.append((ids[middle:], offsets[1]))
            for (side, _), tokenizer in zip((source[-1], target[-1]), self.tokenizers, strict=True):
                if side.min(initial=0) < 0 or side.max(initial=0) >= tokenizer.vocabulary_size:
                    raise ValueError(
                        f"{os.path.join(self.path, shard['ids'])} has ids outside its vocabulary "
                        f"of {tokenizer.vocabulary_size:,}: prepare the corpus again."
                    )
        return source, target

    @cached_property
    def tokenizers(self) -> "tuple[saved.Saved, saved.Saved]":
        """The tokenizers of source and target, one object if they are equal."""
        return saved.load(self.path)

    @cached_property
    def valid(self) -> list[Pair]:
        """The validation pairs; empty if the corpus was prepared without."""
        if VALID[0] not in self.manifest["files"]:
            return []
        try:
            source, target = (
                pathlib.Path(self.path, name).read_bytes().decode().split("\n")[:-1]
                for name in VALID
            )
            return [Pair(*texts) for texts in zip(source, target, strict=True)]
        except ValueError:
            raise _corrupted_error(f"{self.path}: the validation text") from None

    def _open_array(self, name):
        """Memory-maps an array, so that only accessed pages are read."""
        name = os.path.join(self.path, name)
        try:
            array = np.lib.format.open_memmap(name, mode="r")
        except Exception:  # the header is a Python literal of any kind and size
            raise _corrupted_error(name) from None
        if array.dtype.kind not in "ui":
            raise _corrupted_error(name)
        return array


def _offsets_match(ids, offsets):
    """Returns whether offsets `(2, N + 1)` split ids `(I,)` into sentences of both sides."""
    if ids.ndim != 1 or offsets.ndim != 2 or len(offsets) != 2 or not offsets.shape[1]:
        return False
    return (
        not offsets[:, 0].any()
        and int(offsets[0, -1]) + int(offsets[1, -1]) == len(ids)
        and bool(np.all(offsets[:, 1:] >= offsets[:, :-1]))
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a prepared corpus.

    It has `format`, `version` (of this package), `options`, `fingerprints` (of `train` and
    `valid`), `lost` (see `PreparedCorpus`), `shards` (a dict each, of `pairs` and the names of
    `ids` and `offsets`) and `files`: {name in its directory: {"bytes": size, "crc32": checksum}}.
    """
    name = os.path.join(path, MANIFEST)
    if not os.path.isfile(name):
        raise ValueError(
            f"{path} is not a prepared corpus ({MANIFEST} is missing): create one with "
            "keras-transformer prepare."
        )
    try:
        manifest = read_json(name)
        if manifest["format"] != FORMAT:
            is_complete = True  # as far as this version knows
        else:
            files = manifest["files"].keys()
            arrays = {shard[kind] for shard in manifest["shards"] for kind in ("ids", "offsets")}
            is_complete = (
                isinstance(manifest["options"], dict)
                and isinstance(manifest["fingerprints"]["train"]["pairs"], int)
                and arrays <= files
                and len(saved.names(files.__contains__)) == len(saved.SIDES)
                and len(files & set(VALID)) != 1
                and all(file == os.path.basename(file) and file.strip(".") for file in files)
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        is_complete = False
    if not is_complete:
        raise _corrupted_error(name)
    if manifest["format"] != FORMAT:
        raise ValueError(
            f"{path} was prepared by another version, in format {manifest['format']}, but this "
            f"version reads format {FORMAT}: prepare it again."
        )
    return manifest


def describe_file(path: Path, name: str) -> dict[str, int]:
    """Returns the entry of a file in a manifest: its size in bytes and its CRC-32."""
    size = checksum = 0
    with open(os.path.join(path, name), "rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


def check_files(path: Path, manifest: dict[str, Any]) -> None:
    """Compares the files of a corpus with its manifest."""
    for name, described in manifest["files"].items():
        try:
            received = describe_file(path, name)
        except OSError as error:
            raise ValueError(
                f"{os.path.join(path, name)} cannot be read ({error.strerror}): prepare the corpus "
                "again."
            ) from error
        if received != described:
            raise _corrupted_error(os.path.join(path, name))


def _corrupted_error(name):
    return ValueError(f"{name} has been changed or truncated: prepare the corpus again.")


# Writing.


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
            targets = _write_shards(writer, text, config, processes)
            writer.content["lost"] = saved.describe_lost(saved.read(writer.folder)[1], targets)
            writer.finish(is_sampled=config.subword_sampling > 0)
    except OSError as error:
        raise ValueError(f"{output} cannot be created: {reason(error)}.") from error
    if writer.content["lost"]:
        _log(f"targets: {writer.content['lost']}")
    _log(f"{output}: {counted(len(writer.content['shards']), 'shard')}")


def _build_request(config, text, valid):
    """Returns everything that the corpus depends on: options, text, given vocabularies."""
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in FILES}
    train = text.fingerprint | {"pairs": len(text) * config.samples}
    prints = {"train": train, "valid": fingerprint(valid)}
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
        if request.items() <= PreparedCorpus(output).manifest.items():
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
            yield from decode(block)

    names = ("vocabulary_size", "model_type", "lowercase", "nfkc", *VOCABULARIES)
    names += tuple(f"{name}_size" for name in VOCABULARIES)
    options = {name: getattr(config, name) for name in names}
    return learn_vocabularies(read, **options, joint=config.joint_vocabulary)


def _write_shards(writer, text, config, processes):
    """Tokenizes and writes the pairs not in complete shards yet; returns up to 10,000 targets."""
    targets: list[str] = []

    def collect_targets(block):
        targets.extend(line.decode() for line in block[1][:: -(-len(text) // saved.MAX_LINES)])
        return block

    blocks = map(collect_targets, _regroup_blocks(text.blocks()))
    repeated = (block for block in blocks for _ in range(config.samples))
    rest = itertools.islice(repeated, SHARD * len(writer.content["shards"]), None)
    models = saved.read(writer.folder)
    encoders = [saved.make_encoder(model, config.subword_sampling) for model in models]
    dtype = np.min_scalar_type(max(size for _, size in encoders) - 1)

    def encode(block):
        sides = (encode(lines) for lines, (encode, _) in zip(block, encoders, strict=True))
        return [(ids.astype(dtype), lengths) for ids, lengths in sides]

    encoded = _map_in_threads(encode, rest, processes)
    total = len(text) * config.samples
    while shard := list(itertools.islice(encoded, SHARD)):
        writer.add_shard(shard)
        _log(f"{writer.pairs_done:,} of {counted(total, 'pair')}")
    if writer.pairs_done != total:
        raise ValueError(
            f"The text changed while it was being read ({counted(total, 'pair')}, then "
            f"{writer.pairs_done}): prepare it again."
        )
    return targets[: saved.MAX_LINES]


def _map_in_threads(function, items, threads):
    """Maps a function over items, in order, of which only a few are in memory at a time."""
    threads = threads or os.cpu_count() or 1
    waiting: collections.deque[Future[Any]] = collections.deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            if len(waiting) == 2 * threads:  # one in progress and one waiting for each thread
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()


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


def _log(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def lock_output(output: Path) -> Iterator[None]:
    """Creates and locks the directory in which a corpus is written; removes it if still empty.

    The lock is released even if the process is killed.
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
            with self._open_for_writing(side + saved.file_extension(model)) as file:
                file.write(model)
        for number, name in enumerate(VALID if valid else ()):
            with self._open_for_writing(name) as file:
                file.write("".join(f"{pair[number]}\n" for pair in valid).encode())
        self._save()

    def add_shard(self, chunks: Sequence[Sequence[saved.EncodedLines]]) -> None:
        """Writes a shard: the ids of all sources, then of all targets, and their offsets."""
        sides = list(zip(*chunks, strict=True))
        ids = np.concatenate([ids for side in sides for ids, _ in side])
        lengths = [np.concatenate([lengths for _, lengths in side]) for side in sides]
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

    def finish(self, is_sampled: bool = False) -> None:
        """Moves the corpus to its final directory; if it is sampled, its ids are fingerprinted."""
        if is_sampled:
            files = [self.content["files"][shard["ids"]] for shard in self.content["shards"]]
            digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
            self.content["fingerprints"]["train"]["sha256"] = digest
        self._save()
        os.replace(os.path.join(self.folder, PROGRESS), os.path.join(self.folder, MANIFEST))
        os.replace(self.folder, self.output)

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
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                content = json.load(file)
            files = content["files"].items()
            if all(describe_file(folder, name) == described for name, described in files):
                return content
    return {}
