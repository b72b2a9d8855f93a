"""Prepares a corpus: reads text, learns or takes vocabularies, tokenizes, writes shards."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from keras_transformer import __version__
from keras_transformer.atomic_files import reason
from keras_transformer.corpora.corpus import fingerprint
from keras_transformer.corpora.drawing import draw_rows
from keras_transformer.corpora.parallel_text import Block, ParallelText
from keras_transformer.corpora.text_files import read_pairs
from keras_transformer.corpora.training_text import TrainingText
from keras_transformer.data.prepared.encoding import encode_blocks
from keras_transformer.data.prepared.manifest import (
    FORMAT,
    MANIFEST,
    SOURCE,
    TARGET,
    check_file,
    read_manifest,
)
from keras_transformer.data.prepared.prepare_config import PrepareConfig
from keras_transformer.data.prepared.served_ids import ServedIds
from keras_transformer.data.prepared.writing import CHUNK, SHARD, CorpusWriter, being_written
from keras_transformer.tokenizers.vocabularies import learn_vocabularies
from keras_transformer.typing import Path

FILES = ("train_source", "train_target", "valid_source", "valid_target", "vocabularies")


def prepare_corpus(config: PrepareConfig, output: Path, processes: int | None = None) -> None:
    """Writes a prepared corpus, which `PreparedCorpus` opens.

    The same text and options give the same bytes, with however many processes. Interrupted, it goes
    on from the last whole shard when it is called again. What is done goes to stderr.

    Args:
        config: `PrepareConfig`.
        output: Directory to make; if there is another corpus, that is replaced.
        processes: How many tokenize; by default one for each core.

    Raises:
        ValueError: If files are missing or unfit, a vocabulary cannot be learned, or the directory
            cannot be made.
    """
    parallel = ParallelText(config.train_source, config.train_target)
    text = TrainingText(parallel, config.valid_fraction, config.seed)
    valid = text.valid
    if config.valid_source is not None:
        valid = read_pairs(config.valid_source, config.valid_target)
    _say(f"{len(text):,} pairs to train on, {len(valid):,} to validate by")
    try:
        request = _request(config, text, valid)
        if _is_there(output, request):
            return
        with being_written(output):
            writer = CorpusWriter(output, request)
            if writer.is_begun:
                _say(f"going on after {len(writer.content['shards'])} whole shards")
            else:
                writer.begin(_vocabularies(config, text), valid)
            _write_shards(writer, text, processes)
            writer.finish()
    except OSError as error:
        raise ValueError(f"{output} cannot be made: {reason(error)}.") from error
    _report(writer.content, output)


def _request(config, text, valid):
    """All that decides what the corpus will be: options, text, vocabularies that are taken."""
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in FILES}
    prints = {"train": text.fingerprint, "valid": fingerprint(valid)}
    request: dict[str, Any] = {"format": FORMAT, "version": __version__, "options": options}
    request |= {"fingerprints": prints}
    if config.vocabularies is not None:
        models = read_vocabularies(config.vocabularies)
        request["vocabularies"] = [hashlib.sha256(model).hexdigest() for model in models]
    return request


def _is_there(output, request):
    """Tells whether the corpus has been prepared before; another one in its place is removed."""
    if not os.path.exists(os.path.join(output, MANIFEST)):
        return False
    with contextlib.suppress(ValueError):
        manifest = read_manifest(output)
        for name, described in manifest["files"].items():
            check_file(output, name, described)
        if request.items() <= manifest.items():
            return True
    shutil.rmtree(output)
    return False


def _vocabularies(config, text):
    """Two SentencePiece models, learned or taken."""
    if config.vocabularies is not None:
        return read_vocabularies(config.vocabularies)
    rows = draw_rows(len(text), config.vocabulary_sample, config.seed)
    if len(rows) < len(text):
        _say(f"vocabularies are learned from {len(rows):,} pairs, drawn with seed {config.seed}")

    def read():
        for block in text.blocks(rows):
            for pair in zip(*block, strict=True):
                yield [side.decode() for side in pair]

    names = ("vocabulary_size", "model_type", "lowercase", "nfkc")
    options = {name: getattr(config, name) for name in names}
    return learn_vocabularies(read, **options, joint=config.joint_vocabulary)


def read_vocabularies(path: Path) -> tuple[bytes, bytes]:
    """Reads the SentencePiece models of a run or a prepared corpus.

    Raises:
        ValueError: If there are none.
    """
    models = []
    for name in (SOURCE, TARGET):
        try:
            with open(os.path.join(path, name), "rb") as file:
                models.append(file.read())
        except OSError as error:
            raise ValueError(
                f"{path} has no vocabularies: give a run directory or a prepared corpus."
            ) from error
    return models[0], models[1]


def _write_shards(writer, text, processes):
    """Tokenizes what is not in whole shards yet, and writes it."""
    models = writer.models()
    served = ServedIds(models, writer.content.get("served"))
    chunks = itertools.islice(_chunks(text.blocks()), writer.chunks_done, None)
    encoded = (
        [served.correct(side, block[side], sides[side]) for side in (0, 1)]
        for block, sides in encode_blocks(chunks, models, processes)
    )
    while shard := list(itertools.islice(encoded, SHARD)):
        writer.content["served"] = served.counts
        writer.add_shard(shard)
        _say(f"{writer.pairs_done:,} of {len(text):,} pairs")
    if writer.pairs_done != len(text):
        raise ValueError(
            f"The text has changed while it was read ({len(text)} pairs, then "
            f"{writer.pairs_done}): prepare it again."
        )


def _chunks(blocks: Iterable[Block]) -> Iterator[Block]:
    """The same pairs in blocks of one size, but for the last."""
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


def _report(content, output):
    """Says what has become of it."""
    served, count = content["served"], len(content["shards"])
    if served["uncertain"]:
        such_as = "".join(f"\n    {line}" for line in served["such_as"])
        _say(
            f"{served['uncertain']:,} lines can be cut in several ways that are equally probable "
            "but for rounding: they were tokenized by the operation that is served, which cuts "
            f"{served['differing']:,} of them otherwise than the sentencepiece package"
            + (f", such as{such_as}" if such_as else "")
        )
    _say(f"{output}: {count} shard{'s' * (count != 1)}")


def _say(text):
    print(text, file=sys.stderr, flush=True)
