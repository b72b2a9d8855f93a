"""Prepared corpora, and the checkpoints of a training."""

import functools
import json
import os
import pathlib
import pickle
import shutil
import tempfile

import h5py
import numpy as np

from keras_transformer.data.prepared_corpus import MANIFEST, describe_file, prepare_corpus
from keras_transformer.presets import PrepareConfig
from keras_transformer.utils import digest, write_sealed
from tests.support.trials.trial import Trial

TRAIN = "train --preset tiny --corpus {} --output new --vocabulary-size none --model-type char"
AVERAGE = "average {} new --number 1"


@functools.cache
def prepared():
    """A small corpus that is well."""
    folder = pathlib.Path(tempfile.mkdtemp())
    rows = [f"{a} {b}\t{b} {a}\n" for a in ("ba", "ce", "di") for b in ("gu", "ka", "lo")]
    (folder / "pairs.tsv").write_text("".join(rows))
    options = dict(vocabulary_size=None, model_type="char", valid_fraction=0.2)
    prepare_corpus(PrepareConfig(str(folder / "pairs.tsv"), **options), folder / "corpus", 1)
    return folder / "corpus"


def manifest(change, sealed=True):
    """Changes the manifest, after its checksums have been made right again."""

    def break_it(corpus):
        content = json.loads((corpus / MANIFEST).read_text())
        if sealed:
            content["files"] = {name: describe_file(corpus, name) for name in content["files"]}
        content = change(content) or content
        (corpus / MANIFEST).write_text(json.dumps(content))

    return break_it


def file(kind, change, sealed=True):
    """Changes the first file whose name holds a word."""

    def break_it(corpus):
        path = next(path for path in sorted(corpus.iterdir()) if kind in path.name)
        change(path)
        if sealed:
            manifest(lambda content: None)(corpus)

    return break_it


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def vocabularies(corpus):
    """Halves both: they are to be one."""
    for path in corpus.glob("*.spm"):
        halve(path)
    manifest(lambda content: None)(corpus)


class Payload:
    """What a pickle that is read executes."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(path):
    np.save(path, np.array([Payload()], object), allow_pickle=True)


def pickle_alone(path):
    path.write_bytes(pickle.dumps(Payload()))


def packed(path):
    ids = np.load(path)
    with open(path, "wb") as archive:
        np.savez(archive, ids=ids)


def larger(path):
    """Its header says so many million times more than there are."""
    path.write_bytes(path.read_bytes().replace(b"'shape': (", b"'shape': (9999999"))


def beyond(path):
    offsets = np.load(path)
    offsets[:, -1] += 1000
    np.save(path, offsets)


def unknown_ids(path):
    ids = np.load(path)
    np.save(path, np.where(np.arange(len(ids)) == len(ids) // 3, 300, ids).astype(np.int16))


def negative_ids(path):
    ids = np.load(path).astype(np.int16)
    ids[-1] = -1
    np.save(path, ids)


def lists_outside(content):
    content["files"]["../pairs.tsv"] = {"bytes": 1, "crc32": 1}


def other_shard(content):
    content["shards"][0]["ids"] = "/etc/passwd"


def state(**checkpoint):
    """Makes the state of a training with one checkpoint."""

    def break_it(run):
        folder = run / "checkpoints"
        folder.mkdir()
        with h5py.File(folder / "000001.weights.h5", "w") as root:
            root["x"] = h5py.ExternalLink("/etc/passwd", "/")
        checksum = digest(folder / "000001.weights.h5")
        one = {"file": "000001.weights.h5", "epoch": 1, "sha256": checksum} | checkpoint
        row = {"step": 1, "val_loss": 1.0}
        more = {"epoch": 1, "monitor": "val_loss", "checkpoints": [one], "history": [row]}
        entry = {"arrays": "a", "sha256": "b", "files": {}, "state": {"additional": more}}
        write_sealed(folder / "resume.json", {"checkpoints": [entry]})

    return break_it


def junk_state(run):
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "resume.json").write_text('{"checkpoints": 1}')


CHANGED = "has been changed or truncated"

CORPORA = {
    "json": Trial(
        "a manifest that is none",
        lambda corpus: (corpus / MANIFEST).write_text("{") and None,
        CHANGED,
        TRAIN,
    ),
    "list": Trial("a list as manifest", manifest(lambda content: [content]), CHANGED, TRAIN),
    "types": Trial(
        "a manifest of wrong types", manifest(lambda m: m | {"shards": "x"}), CHANGED, TRAIN
    ),
    "names": Trial("a manifest that names a file outside", manifest(lists_outside), CHANGED, TRAIN),
    "shard": Trial("a shard of a file outside", manifest(other_shard), CHANGED, TRAIN),
    "ids": Trial("ids that are cut off", file("ids", halve, sealed=False), CHANGED, TRAIN),
    "ids again": Trial("ids that are cut off, sealed", file("ids", halve), CHANGED, TRAIN),
    "objects": Trial("a pickle in an array of ids", file("ids", pickled), CHANGED, TRAIN),
    "pickle": Trial("a pickle instead of ids", file("ids", pickle_alone), CHANGED, TRAIN),
    "archive": Trial("an archive instead of ids", file("ids", packed), CHANGED, TRAIN),
    "shape": Trial("10¹⁰ ids in a kilobyte", file("ids", larger), CHANGED, TRAIN),
    "offsets": Trial("offsets behind the end", file("offsets", beyond), CHANGED, TRAIN),
    "unknown ids": Trial(
        "an id that the vocabulary does not have",
        file("ids", unknown_ids),
        "has ids outside its vocabulary of",
        TRAIN,
    ),
    "negative ids": Trial(
        "an id below zero", file("ids", negative_ids), "has ids outside its vocabulary of", TRAIN
    ),
    "text": Trial(
        "text to validate by that is no UTF-8",
        file("valid.source", lambda path: path.write_bytes(b"\xff\n")),
        CHANGED,
        TRAIN,
    ),
    "lines": Trial(
        "a line to validate by without a source",
        file("valid.target", lambda path: path.write_bytes(path.read_bytes() + b"x\n")),
        CHANGED,
        TRAIN,
    ),
    "vocabulary": Trial(
        "a vocabulary that is cut off",
        vocabularies,
        "the bytes of a SentencePiece model",
        TRAIN,
    ),
}
CHECKPOINTS = {
    "state": Trial("a state of a training that is none", junk_state, "is corrupted", AVERAGE),
    "outside": Trial(
        "a checkpoint outside", state(file="../model.keras"), "is not a file of", AVERAGE
    ),
    "link": Trial("a checkpoint that is a link", state(), "is corrupted", AVERAGE),
}


def copy_corpus(folder):
    """A copy of the corpus that is well."""
    return shutil.copytree(prepared(), folder / "corpus")
