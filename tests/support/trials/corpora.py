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
    options = dict(vocabulary_size=None, model_type="char", valid_fraction=0.4)
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


CORPORA = {
    "json": Trial(
        "a manifest that is none",
        lambda corpus: (corpus / MANIFEST).write_text("{") and None,
        "it is not JSON",
        TRAIN,
    ),
    "list": Trial(
        "a list as manifest", manifest(lambda content: [content]), "holds no JSON object", TRAIN
    ),
    "ids": Trial("ids that are cut off", file("ids", halve, sealed=False), "changed", TRAIN),
    "objects": Trial("a pickle in an array of ids", file("ids", pickled), "Python objects", TRAIN),
    "pickle": Trial("a pickle instead of ids", file("ids", pickle_alone), "pickled", TRAIN),
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
