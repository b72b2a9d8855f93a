"""Prepares a corpus: reads text, learns vocabularies, tokenizes, writes shards.

Loads no TensorFlow, unless a vocabulary needs the operation that is served: see `make_encoder`.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import sentencepiece

from keras_transformer import __version__
from keras_transformer.data.pairs import Block, Pair, fingerprint
from keras_transformer.data.prepared_corpus import (
    FORMAT,
    MANIFEST,
    VALID,
    check_files,
    describe_file,
    read_manifest,
)
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
from keras_transformer.utils import Path, counted, open_locked, reason, replacing

# One side of some pairs as ids: the sentences' one after the other, (I,), and their lengths, (N,).
EncodedSide: TypeAlias = tuple[np.ndarray, np.ndarray]

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
            targets = _write_shards(writer, text, config, processes)
            writer.content["lost"] = saved.describe_lost(saved.read(writer.folder)[1], targets)
            if config.subword_sampling:
                writer.set_fingerprint_of_ids()
            writer.finish()
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
    encode = make_encoder(saved.read(writer.folder), config.subword_sampling)
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


def make_encoder(
    models: tuple[bytes, bytes], subword_sampling: float = 0.0
) -> Callable[[Block], list[EncodedSide]]:
    """Returns a function from a block of pairs to the ids of both sides.

    The ids are those of the operation that is served. For most types, the sentencepiece package
    returns the same in less time. But a unigram model adds up scores, and between segmentations
    that are equally probable, such as `0 000` and `000 0`, rounding decides, which differs between
    the two; and no package matches the operation for WordPiece.

    Args:
        models: The serialized vocabularies of source and target.
        subword_sampling: If positive, segmentations are sampled: the probability that BPE-dropout
            skips a merge, or the exponent of the probabilities of a unigram model. The samples
            differ each time: a seed of sentencepiece holds in one process only.
    """
    sides = [_make_side_encoder(model, subword_sampling) for model in models]
    dtype = np.min_scalar_type(max(size for _, size in sides) - 1)

    def encode(block):
        encoded = (encode_side(lines) for lines, (encode_side, _) in zip(block, sides, strict=True))
        return [(ids.astype(dtype), lengths) for ids, lengths in encoded]

    return encode


def _make_side_encoder(model, subword_sampling):
    """Returns a function from lines to `EncodedSide`, and the size of the vocabulary."""
    if not subword_sampling and saved.model_type(model) in ("unigram", "wordpiece"):
        tokenizer = saved.open_model(model)

        def encode_as_served(lines):
            ragged = tokenizer(lines)
            return ragged.flat_values.numpy(), ragged.row_lengths().numpy()

        return encode_as_served, tokenizer.vocabulary_size
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    sampling = {"enable_sampling": True, "alpha": subword_sampling, "nbest_size": -1}

    def encode(lines):
        rows = processor.encode(lines, num_threads=1, **(sampling if subword_sampling else {}))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths

    return encode, processor.vocab_size()


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

    def set_fingerprint_of_ids(self) -> None:
        """Replaces the fingerprint of the text by one of the ids, which were sampled."""
        files = [self.content["files"][shard["ids"]] for shard in self.content["shards"]]
        train = self.content["fingerprints"]["train"]
        train["sha256"] = hashlib.sha256(json.dumps(files).encode()).hexdigest()

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
