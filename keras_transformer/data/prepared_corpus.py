"""Prepared corpora: text tokenized once, into files of ids that trainings map into memory.

Loads no TensorFlow, unless a vocabulary needs the operation that is served: `saved.make_encoder`.
"""

import collections
import dataclasses
import hashlib
import io
import itertools
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from keras_transformer import __version__
from keras_transformer.data.pairs import EncodedPairs, Pair, Sentences, Shard, fingerprint
from keras_transformer.data.text_files import (
    ParallelText,
    TrainingText,
    decode,
    read_pairs,
    sample_rows,
)
from keras_transformer.presets import PrepareConfig
from keras_transformer.presets.languages import Languages
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import learn_vocabularies
from keras_transformer.utils import (
    SEAL,
    Path,
    counted,
    creating,
    describe_corruption,
    read_json,
    read_sealed,
    write_sealed,
)

FORMAT = 2  # of prepared corpora; the manifest of 1 has no checksum of its own
MANIFEST = "manifest.json"
VALID = ("valid.source", "valid.target")  # the validation text, line by line

BLOCK = 1 << 20  # bytes read at once
SHARD = 64  # blocks of text: some 64 MB, and half as many as ids

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
        for name, described in self.manifest["files"].items():
            if not os.path.exists(os.path.join(path, name)):
                raise ValueError(f"{path} lacks {name}: prepare the corpus again.")
            if describe_file(path, name) != described:
                raise ValueError(
                    f"{os.path.join(path, name)} has been changed or truncated: prepare it again."
                )
        self.options: dict[str, Any] = self.manifest["options"]
        self.fingerprints: dict[str, Any] = self.manifest["fingerprints"]
        self.lost = "".join(filter(str.isprintable, self.manifest.get("lost", "")))

    def __len__(self) -> int:
        return self.fingerprints["train"]["pairs"]

    @cached_property
    def pairs(self) -> EncodedPairs:
        """The training pairs, as ids."""
        sides: tuple[list[Shard], list[Shard]] = ([], [])
        for shard in self.manifest["shards"]:
            ids, offsets = (self._load(shard[kind]) for kind in ("ids", "offsets"))
            middle = int(offsets[0, -1])
            sides[0].append((ids[:middle], offsets[0]))
            sides[1].append((ids[middle:], offsets[1]))
        return EncodedPairs(*map(Sentences, sides))

    def _load(self, name):
        path = os.path.join(self.path, name)
        try:
            return np.load(path, mmap_mode="r")
        except ValueError as error:  # such as a pickle
            raise ValueError(describe_corruption(path, error)) from None

    @cached_property
    def tokenizers(self) -> "tuple[saved.Saved, saved.Saved]":
        """The tokenizers of source and target, one object if they are equal."""
        return saved.load(self.path)

    @cached_property
    def valid(self) -> list[Pair]:
        """The validation pairs; empty if the corpus was prepared without."""
        if VALID[0] not in self.manifest["files"]:
            return []
        texts = (pathlib.Path(self.path, name).read_bytes().decode() for name in VALID)
        sides = (text.split("\n")[:-1] for text in texts)
        return [Pair(*pair) for pair in zip(*sides, strict=True)]


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a prepared corpus.

    It has `format`, `version` (of this package), `options`, `fingerprints` (of `train` and
    `valid`), `lost` (see `PreparedCorpus`), `shards` (a dict each, of `pairs` and the names of
    `ids` and `offsets`) and `files`: {name in its directory: {"bytes": size, "crc32": checksum}}.
    """
    name = os.path.join(path, MANIFEST)
    if not os.path.isfile(name):
        raise ValueError(
            f"{path} is not a prepared corpus ({MANIFEST} is missing): create one by prepare."
        )
    manifest = read_json(name)
    if SEAL in manifest or manifest.get("format") == FORMAT:
        manifest = read_sealed(name)
    if manifest.get("format") not in (1, FORMAT):
        raise ValueError(
            f"{path} was prepared by another version, in format {manifest.get('format')}, but this "
            f"version reads format {FORMAT}: prepare it again."
        )
    if missing := {"options", "fingerprints", "shards", "files"} - manifest.keys():
        raise ValueError(f"{name} lacks {', '.join(sorted(missing))}: prepare the corpus again.")
    return manifest


def describe_file(path: Path, name: str) -> dict[str, int]:
    """Returns the entry of a file in a manifest: its size in bytes and its CRC-32."""
    size = checksum = 0
    with open(os.path.join(path, name), "rb") as file:
        while block := file.read(BLOCK):
            size, checksum = size + len(block), zlib.crc32(block, checksum)
    return {"bytes": size, "crc32": checksum}


# Writing.


def prepare_corpus(
    config: PrepareConfig,
    output: Path,
    processes: int | None = None,
    languages: Languages = Languages(),  # noqa: B008, it is frozen
) -> None:
    """Writes a prepared corpus, with the tokens of languages; see `keras_transformer.prepare`."""
    parallel = ParallelText(config.train_source, config.train_target)
    text = TrainingText(parallel, config.valid_fraction, config.seed)
    valid = text.valid
    if config.valid_source is not None:
        valid = read_pairs(config.valid_source, config.valid_target)
    names = ", ".join(filter(None, (config.train_source, config.train_target)))
    _log(f"{names}: {counted(len(text), 'training pair')}, {len(valid):,} for validation")
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in FILES}
    train = text.fingerprint | {"pairs": len(text) * config.samples}
    with creating(output) as folder:
        writer = CorpusWriter(folder, options, {"train": train, "valid": fingerprint(valid)})
        models = _make_vocabularies(config, text)
        writer.add_texts(models, valid)
        targets = _write_shards(writer, models, text, config, processes, languages)
        writer.manifest["lost"] = lost = saved.describe_lost(models[1], targets)
        writer.finish(is_sampled=config.subword_sampling > 0)
    if lost:
        _log(f"targets: {lost}")
    _log(f"{output}: {counted(len(writer.manifest['shards']), 'shard')}")


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

    return learn_vocabularies(read, config, config.joint_vocabulary)


def _write_shards(writer, models, text, config, processes, languages):
    """Tokenizes and writes the pairs; returns up to 10,000 targets, evenly spaced."""
    targets: list[str] = []

    def collect_targets(block):
        targets.extend(line.decode() for line in block[1][:: -(-len(text) // saved.MAX_LINES)])
        return block

    blocks = map(collect_targets, text.blocks())
    repeated = (block for block in blocks for _ in range(config.samples))
    encoders = [saved.make_encoder(model, config.subword_sampling) for model in models]
    firsts = list(map(saved.find_tokens, models, languages.beginnings()))
    dtype = np.min_scalar_type(max(size for _, size in encoders) - 1)

    def encode(block):
        languages.read_tags(block[0], bool(languages.target))
        sides = zip(block, encoders, firsts, strict=True)
        found = [_begin(first, *encode(lines)) for lines, (encode, _), first in sides]
        return [(ids.astype(dtype), lengths) for ids, lengths in found]

    encoded = _map_in_threads(encode, repeated, processes)
    done, total = 0, len(text) * config.samples
    while shard := list(itertools.islice(encoded, SHARD)):
        done += writer.add_shard(shard)
        _log(f"{done:,} of {counted(total, 'pair')}")
    if done != total:
        raise ValueError(
            f"The text changed while it was being read ({counted(total, 'pair')}, then {done}): "
            "prepare it again."
        )
    return targets[: saved.MAX_LINES]


def _begin(first, ids, lengths):
    """Puts the ids `first` before those of each line that has any."""
    counts = np.where(lengths > 0, len(first), 0)
    starts = np.repeat(np.cumsum(lengths) - lengths, counts)
    return np.insert(ids, starts, np.tile(first, np.count_nonzero(counts))), lengths + counts


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


def _log(text):
    print(text, file=sys.stderr, flush=True)


class CorpusWriter:
    """Writes the files of a corpus into a directory, the manifest last."""

    def __init__(self, folder: Path, options: dict[str, Any], prints: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = {
            **{"format": FORMAT, "version": __version__, "options": options},
            **{"fingerprints": prints, "shards": [], "files": {}},
        }

    def add_texts(self, models: tuple[bytes, bytes], valid: list[Pair]) -> None:
        """Writes vocabularies and validation text."""
        for side, model in zip(saved.SIDES, models, strict=True):
            self._write(side + saved.file_extension(model), model)
        for number, name in enumerate(VALID if valid else ()):
            self._write(name, "".join(f"{pair[number]}\n" for pair in valid).encode())

    def add_shard(self, blocks: Sequence[Sequence[saved.EncodedLines]]) -> int:
        """Writes the ids of all sources, then of all targets, and their offsets; returns pairs."""
        sides = list(zip(*blocks, strict=True))
        ids = np.concatenate([ids for side in sides for ids, _ in side])
        lengths = [np.concatenate([lengths for _, lengths in side]) for side in sides]
        offsets = np.zeros((2, len(lengths[0]) + 1), np.uint64)
        np.cumsum(lengths, axis=1, out=offsets[:, 1:])
        smallest = np.uint32 if offsets[:, -1].max() < 1 << 32 else np.int64
        shard: dict[str, Any] = {"pairs": len(lengths[0])}
        arrays = {"ids": ids, "offsets": offsets.astype(smallest)}
        for kind, array in arrays.items():
            shard[kind] = f"{len(self.manifest['shards']):05}.{kind}.npy"
            content = io.BytesIO()  # np.save reports a full disk as a number of missing bytes
            np.save(content, array)
            self._write(shard[kind], content.getbuffer())
        self.manifest["shards"].append(shard)
        return shard["pairs"]

    def finish(self, is_sampled: bool = False) -> None:
        """Writes the manifest; if the corpus is sampled, its ids are fingerprinted."""
        if is_sampled:
            files = [self.manifest["files"][shard["ids"]] for shard in self.manifest["shards"]]
            digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()
            self.manifest["fingerprints"]["train"]["sha256"] = digest
        write_sealed(os.path.join(self.folder, MANIFEST), self.manifest)

    def _write(self, name, content):
        """Writes a file, and adds it to the manifest."""
        with open(os.path.join(self.folder, name), "wb") as file:
            file.write(content)
        self.manifest["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
