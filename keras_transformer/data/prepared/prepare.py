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
    check_file,
    read_manifest,
)
from keras_transformer.data.prepared.served_ids import ServedIds
from keras_transformer.data.prepared.writing import CHUNK, SHARD, CorpusWriter, being_written
from keras_transformer.presets import PrepareConfig
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.vocabularies import learn_vocabularies
from keras_transformer.tokenizers.wordpiece_vocabulary import read_pieces
from keras_transformer.typing import Path
from keras_transformer.wording import counted

VOCABULARIES = ("source_vocabulary", "target_vocabulary")
FILES = (
    *("train_source", "train_target", "valid_source", "valid_target", "vocabularies"),
    *VOCABULARIES,
)


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
    names = ", ".join(filter(None, (config.train_source, config.train_target)))
    _say(f"{names}: {counted(len(text), 'pair')} to train on, {len(valid):,} to validate by")
    try:
        request = _request(config, text, valid)
        if _is_there(output, request):
            return
        with being_written(output):
            writer = CorpusWriter(output, request)
            if writer.is_begun:
                _say(f"going on after {counted(len(writer.content['shards']), 'whole shard')}")
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
        models = saved.read(config.vocabularies)
        request["vocabularies"] = [hashlib.sha256(model).hexdigest() for model in models]
    for name in VOCABULARIES:
        if path := getattr(config, name):
            pieces = "\n".join(read_pieces(path))
            request[name] = hashlib.sha256(pieces.encode()).hexdigest()
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
    """Two serialised vocabularies, learned or taken."""
    if config.vocabularies is not None:
        return saved.read(config.vocabularies)
    rows = draw_rows(len(text), config.vocabulary_sample, config.seed)
    if len(rows) < len(text):
        pairs = counted(len(rows), "pair")
        _say(f"vocabularies are learned from {pairs}, drawn with seed {config.seed}")

    def read():
        for block in text.blocks(rows):
            for pair in zip(*block, strict=True):
                yield [side.decode() for side in pair]

    names = ("vocabulary_size", "model_type", "lowercase", "nfkc", *VOCABULARIES)
    names += tuple(f"{name}_size" for name in VOCABULARIES)
    options = {name: getattr(config, name) for name in names}
    return learn_vocabularies(read, **options, joint=config.joint_vocabulary)


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
        _say(f"{writer.pairs_done:,} of {counted(len(text), 'pair')}")
    if writer.pairs_done != len(text):
        raise ValueError(
            f"The text has changed while it was read ({counted(len(text), 'pair')}, then "
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
            f"{counted(served['uncertain'], 'line')} can be cut in several ways that are equally "
            "probable but for rounding: they were tokenized by the operation that is served, which "
            f"cuts {served['differing']:,} of them otherwise than the sentencepiece package"
            + (f", such as{such_as}" if such_as else "")
        )
    _say(f"{output}: {counted(count, 'shard')}")


def _say(text):
    print(text, file=sys.stderr, flush=True)
