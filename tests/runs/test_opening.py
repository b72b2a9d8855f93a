"""What is corrupted or malicious is refused in a sentence: nothing is executed or written."""

import base64
import contextlib
import io
import json
import marshal
import os
import pathlib
import re
import shutil
import tempfile
import zipfile
from collections import namedtuple

import h5py
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer as kt
from keras_transformer.data.prepared_corpus import MANIFEST, describe_file
from keras_transformer.runs import opening
from keras_transformer.runs.checkpoints import STATE
from keras_transformer.runs.run import Run
from keras_transformer.serving.structure import inspect_version
from keras_transformer.utils import describe_files, digest, read_sealed, write_sealed
from tests.support.command_line import run as run_command
from tests.support.command_line import succeeds
from tests.support.paths import ROOT
from tests.support.sealing import reseal, sound


# Any damage is named. Whoever means harm makes the checksums right again.
@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    return {
        "run": (sound(folder, "run"), lambda path: opening.inspect_run(Run(path))),
        "export": (sound(folder, "export"), inspect_version),
        "corpus": (corpus(folder), kt.PreparedCorpus),
    }


def corpus(folder):
    rows = [f"{a} {b}\t{b} {a}\n" for a in ("ba", "ce", "di") for b in ("gu", "ka", "lo")]
    (folder / "rows.tsv").write_text("".join(rows))
    options = dict(vocabulary_size=None, model_type="char", valid_fraction=0.4)
    config = kt.PrepareConfig(str(folder / "rows.tsv"), **options)
    kt.prepare(config, folder / "corpus", processes=1)
    return folder / "corpus"


@pytest.mark.parametrize("kind", ["run", "export", "corpus"])
@given(number=st.integers(0, 99), share=st.floats(0, 1, exclude_max=True), bits=st.integers(0, 255))
def test_every_flip_and_truncation_is_named(kind, opened, number, share, bits):
    """`bits` are flipped of the byte at a share of a file; if there are none, it is cut there."""
    directory, inspect = opened[kind]
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    path = files[number % len(files)]
    content = path.read_bytes()
    place = int(share * len(content))
    turned = bytes([content[place] ^ bits]) + content[place + 1 :] if bits else b""
    path.write_bytes(content[:place] + turned)
    try:
        with pytest.raises(ValueError) as caught:
            inspect(directory)
    finally:
        path.write_bytes(content)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


# What is done to a sound copy, part of what is said, the command that opens it, {}, and what it is.
Trial = namedtuple("Trial", "break_it message command kind", defaults=["translate {}", "run"])


def archive(change, **options):
    """Changes the members of `model.keras`: {name: bytes}."""

    def break_it(run):
        with zipfile.ZipFile(run / "model.keras") as file:
            members = {name: file.read(name) for name in file.namelist()}
        change(members)
        with zipfile.ZipFile(run / "model.keras", "w", **options) as file:
            for name, content in members.items():
                file.writestr(name, content)
        reseal(run)

    return break_it


def member(name, content, **options):
    return archive(lambda members: members.update({name: content}), **options)


def config(change):
    def in_members(members):
        value = json.loads(members["config.json"])
        members["config.json"] = json.dumps(change(value) or value).encode()

    return archive(in_members)


def weights(change):
    def in_members(members):
        file = io.BytesIO(members["model.weights.h5"])
        with h5py.File(file, "r+") as root:
            shape = root[ARRAY].shape
            del root[ARRAY]
            change(root, shape)
        members["model.weights.h5"] = file.getvalue()

    return archive(in_members)


def link_elsewhere(h5, shape):
    h5[ARRAY] = h5py.ExternalLink("/etc/passwd", "/")


def bytes_elsewhere(h5, shape):
    h5.create_dataset(ARRAY, shape, "u1", external=[("/etc/passwd", 0, 1 << 20)])


def content(name, value):
    def break_it(directory):
        path = directory / name
        path.write_bytes(value(path.read_bytes()) if callable(value) else value)
        reseal(directory)

    return break_it


def pointing_out(model):
    model = sentencepiece_model_pb2.ModelProto.FromString(model)
    table = bytearray(model.normalizer_spec.precompiled_charsmap)
    table[4:8] = (0x7FFFFC00).to_bytes(4, "little")
    model.normalizer_spec.precompiled_charsmap = bytes(table)
    return model.SerializeToString()


def as_pipe(run):
    os.remove(run / "config.yaml")
    os.mkfifo(run / "config.yaml")


def outside(directory):
    shutil.copy("/etc/hosts", directory.parent / "hosts")
    write_sealed(directory / "model.json", {"files": describe_files(directory, ["../hosts"])})


def checkpoint_outside(run):
    (run / "checkpoints").mkdir()
    one = {"file": "../model.keras", "epoch": 1, "sha256": digest(run / "model.keras")}
    row = {"step": 1, "val_loss": 1.0}
    more = {"epoch": 1, "monitor": "val_loss", "checkpoints": [one], "history": [row]}
    entry = {"arrays": "a", "sha256": "b", "files": {}, "state": {"additional": more}}
    write_sealed(run / "checkpoints" / STATE, {"checkpoints": [entry]})


def writing_node(graph):
    model = saved_model_pb2.SavedModel.FromString(graph)
    library = model.meta_graphs[0].graph_def.library.function
    function = next(f for f in library if "signature_wrapper" in f.signature.name)
    function.node_def.add(name="added", op="WriteFile")
    return model.SerializeToString()


class Payload:
    """What a pickle that is read executes."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(corpus):
    np.save(corpus / "00000.ids.npy", np.array([Payload()], object))
    manifest = read_sealed(corpus / MANIFEST)
    manifest["files"] = {name: describe_file(corpus, name) for name in manifest["files"]}
    write_sealed(corpus / MANIFEST, manifest)


CODE = marshal.dumps(compile("open('executed', 'w')", "payload", "exec"))
VALUE = {"code": base64.b64encode(CODE).decode(), "defaults": None, "closure": None}
LAMBDA = {"module": "keras.layers", "registered_name": None, "class_name": "Lambda"}
LAMBDA["config"] = {"name": "x", "function": {"class_name": "__lambda__", "config": VALUE}}
SYSTEM = {"module": "os", "class_name": "system", "config": {"command": "touch executed"}}
ARRAY = "layers/positional_embedding/vars/0"
NAMES, CORRUPTED = "which no model of this package uses", "is corrupted"
TRAIN = "train --preset tiny --corpus {} --output new --vocabulary-size none --model-type char"
CALL = b"format: !!python/object/apply:os.system ['touch executed']"
TUNE = "train --start-from {} --output new"
TRIALS = {
    "a Lambda with byte code": Trial(config(lambda m: LAMBDA), NAMES),
    "os.system as a class": Trial(config(lambda m: m["config"].update(activation=SYSTEM)), NAMES),
    "a config.json of 200,000 brackets": Trial(member("config.json", b"[" * 200_000), "not JSON"),
    "a config.json of 64 MiB in 64 KiB": Trial(
        member("config.json", bytes(1 << 26), compression=8), "in a way that Keras does not"
    ),
    "a member ../evil": Trial(member("../evil", b""), "model.keras holds '../evil'"),
    "an HDF5 link to another file": Trial(weights(link_elsewhere), CORRUPTED),
    "an array whose bytes lie in /etc/passwd": Trial(weights(bytes_elsewhere), CORRUPTED),
    "a vocabulary of 40 MB": Trial(content("source.spm", bytes(40 << 20)), "has more than"),
    "a normalization table with an invalid offset": Trial(
        content("source.spm", pointing_out), "an invalid offset"
    ),
    "a model.json that lists a file outside": Trial(outside, "lists a file outside"),
    "a config.yaml that calls os.system": Trial(content("config.yaml", CALL), "a constructor"),
    "a config.yaml of aliases": Trial(content("config.yaml", b"a: &a [x]\nb: [*a, *a]"), "aliases"),
    "a pipe as config.yaml": Trial(as_pipe, "config.yaml"),
    "a Lambda to fine-tune": Trial(config(lambda m: LAMBDA), NAMES, TUNE),
    "a checkpoint outside": Trial(checkpoint_outside, "is not a file", "average {} new --number 1"),
    "a signature that writes a file": Trial(
        content("saved_model.pb", writing_node), "holds the ops WriteFile, which", kind="export"
    ),
    "a pickle in an array of ids": Trial(pickled, "Python objects", TRAIN, "corpus"),
}


@pytest.mark.parametrize("title", TRIALS)
def test_trial(title, tmp_path):
    trial = TRIALS[title]
    copy = corpus(tmp_path) if trial.kind == "corpus" else sound(tmp_path, trial.kind)
    trial.break_it(copy)
    before = {path: path.lstat().st_size for path in tmp_path.rglob("*")}
    with contextlib.chdir(tmp_path):
        result = run_command(*trial.command.replace("{}", str(copy)).split(), stdin=b"abc\n")
    error = result.stderr.decode()
    assert (result.returncode, result.stdout) == (2, b""), error
    *_, sentence = error.splitlines()  # a training names its data first
    assert sentence.startswith("keras-transformer: ") and trial.message in sentence, error
    assert "Traceback" not in error
    after = {path: path.lstat().st_size for path in tmp_path.rglob("*")}
    assert after == before, "something was written"


@given(
    name=st.sampled_from(["config.yaml", "data.json", "config.json"]),
    share=st.floats(0, 1, exclude_max=True),
    bits=st.integers(1, 255),
)
def test_sealed_flips_of_text_are_read_or_named(name, share, bits):
    def flip(text):
        place = int(share * len(text))
        return text[:place] + bytes([text[place] ^ bits]) + text[place + 1 :]

    in_archive = archive(lambda members: members.update({name: flip(members[name])}))
    with tempfile.TemporaryDirectory() as folder:
        run = sound(pathlib.Path(folder), "run")
        (in_archive if name == "config.json" else content(name, flip))(run)
        try:
            assert opening.inspect_run(Run(run))["recipe"]
        except ValueError as error:
            assert str(error).startswith(str(run)) and "\n" not in str(error)


def test_the_page_lists_the_trials():
    page = (ROOT / "docs" / "loading-trials.md").read_text()
    assert re.findall(r"^\| (?!tried|-)(.*?) \|", page, re.MULTILINE) == list(TRIALS)


@keras.saving.register_keras_serializable(package="strangers")
class Wider(kt.Transformer):
    """A class of the calling program's."""


def test_classes_of_the_calling_program_are_loaded(tmp_path):
    run = sound(tmp_path, "run")
    model = kt.load(run).model
    own = Wider.from_config(model.get_config())
    own.build()
    own.set_weights(model.get_weights())
    own.save(run / "model.keras")
    reseal(run)
    assert type(kt.load(run).model) is Wider
    config(lambda model: model | {"registered_name": "strangers>Other"})(run)
    with pytest.raises(ValueError, match="refers to the Wider .* if it is your own, register it"):
        kt.load(run)


def test_an_export_holds_no_file_that_a_run_names(tmp_path, untried):
    (tmp_path / "secret.txt").write_text("the key of the house\n" * 7)
    run, named = sound(tmp_path, "run"), rf"\1: {tmp_path}/secret.txt"
    fields = re.compile("(?m)^((train|valid)_(source|target)): .*")
    content("config.yaml", lambda text: fields.sub(named, text.decode()).encode())(run)
    assert Run(run).read_config().valid_source and Run(run).read_examples() == []
    (run / "examples.json").write_text(json.dumps({"valid": [["cab bac", "CAB BAC"]] * 3}))
    reseal(run)
    result = succeeds("export", run, tmp_path / "models", "--signatures", "serving_default")
    written = [path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()]
    assert not any(b"the key of the house" in text for text in [result.stderr, *written])
    assert any(b"cab bac" in text for text in written)
