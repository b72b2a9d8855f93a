"""Ways to break a run: its archive, its configuration, its weights, its vocabulary."""

import base64
import io
import json
import marshal
import os
import shutil
import zipfile

import h5py
import numpy as np
from sentencepiece import sentencepiece_model_pb2

from tests.support.sealing import reseal

LAYER = {"module": "keras.layers", "registered_name": None, "build_config": {}}


def payload():
    """Python's byte code that leaves a file behind, as Keras writes it for a Lambda."""
    code = marshal.dumps(compile("open('executed', 'w')", "payload", "exec"))
    value = {"code": base64.b64encode(code).decode(), "defaults": None, "closure": None}
    return {"class_name": "__lambda__", "config": value}


def lambda_layer(function):
    return LAYER | {"class_name": "Lambda", "config": {"name": "x", "function": function}}


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path, contents, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def archive(change, **options):
    """Changes the members of `model.keras`: {name: bytes}."""

    def break_it(run):
        contents = members(run / "model.keras")
        change(contents)
        write_members(run / "model.keras", contents, **options)
        reseal(run)

    return break_it


def zip_bomb(run):
    """Packs a configuration of 1 GiB, which nobody has to have in memory."""
    contents = members(run / "model.keras")
    with zipfile.ZipFile(run / "model.keras", "w", zipfile.ZIP_DEFLATED) as packed:
        with packed.open("config.json", "w", force_zip64=True) as file:
            for _ in range(1 << 10):
                file.write(bytes(1 << 20))
        for name in contents.keys() - {"config.json"}:
            packed.writestr(name, contents[name])
    reseal(run)


def config(change):
    """Changes the configuration of the model."""

    def in_members(contents):
        value = json.loads(contents["config.json"])
        value = change(value) or value
        contents["config.json"] = json.dumps(value).encode()

    return archive(in_members)


def argument(**values):
    return config(lambda model: model["config"].update(values))


def weights(change):
    """Changes the HDF5 file."""

    def in_members(contents):
        file = io.BytesIO(contents["model.weights.h5"])
        with h5py.File(file, "r+") as root:
            change(root)
        contents["model.weights.h5"] = file.getvalue()

    return archive(in_members)


def vocabulary(change):
    def break_it(run):
        model = sentencepiece_model_pb2.ModelProto.FromString((run / "source.spm").read_bytes())
        change(model)
        (run / "source.spm").write_bytes(model.SerializeToString())
        reseal(run)

    return break_it


def content(name, value):
    """Writes a file anew."""

    def break_it(run):
        (run / name).write_bytes(value if isinstance(value, bytes) else value.encode())
        reseal(run)

    return break_it


def text(name, change):
    """Changes a file of text."""

    def break_it(run):
        (run / name).write_text(change((run / name).read_text()))
        reseal(run)

    return break_it


def halve(name, again=True):
    def break_it(run):
        os.truncate(run / name, (run / name).stat().st_size // 2)
        if again:
            reseal(run)

    return break_it


def flip(run):
    value = bytearray((run / "model.keras").read_bytes())
    value[60_000] ^= 1
    (run / "model.keras").write_bytes(value)


def cut_weights(contents):
    contents["model.weights.h5"] = contents["model.weights.h5"][:50_000]


ARRAY = "layers/positional_embedding/vars/0"


def linked(root):
    del root[ARRAY]
    root[ARRAY] = h5py.ExternalLink("/etc/passwd", "/")


def array_elsewhere(root):
    shape = root[ARRAY].shape
    del root[ARRAY]
    root.create_dataset(ARRAY, shape, "u1", external=[("/etc/passwd", 0, 1 << 20)])


def swapped(root):
    del root[ARRAY]
    root[ARRAY] = np.zeros([8, 277], "f4")


def pointing_out(model):
    table = bytearray(model.normalizer_spec.precompiled_charsmap)
    table[4:8] = (0x7FFFFC00).to_bytes(4, "little")
    model.normalizer_spec.precompiled_charsmap = bytes(table)


def another(run):
    """The vocabulary of another model, one piece longer."""

    def add(model):
        piece = model.pieces.add()
        piece.piece, piece.score = "another", -1.0

    vocabulary(add)(run)


def other_model(model):
    dense = {"class_name": "Dense", "config": {"units": 3}} | LAYER
    module = {"module": "keras", "registered_name": None}
    return module | {"class_name": "Sequential", "config": {"name": "s", "layers": [dense]}}


def with_part(**part):
    """A part that the model's constructor is given besides."""
    return argument(activation=part)


def as_directory(run):
    os.remove(run / "model.keras")
    os.mkdir(run / "model.keras")


def as_pipe(run):
    os.remove(run / "config.yaml")
    os.mkfifo(run / "config.yaml")


def card(value):
    return lambda run: (run / "model.json").write_text(value)


def outside(run):
    """The list of files names one outside."""
    from keras_transformer.utils import describe_files, write_sealed

    shutil.copy("/etc/hosts", run.parent / "hosts")
    write_sealed(run / "model.json", {"files": describe_files(run, ["../hosts"])})


BOMB = b"[" * 200_000
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{two}: &{two} [{', '.join(f'*{one}' for _ in range(9))}]\n"
    for one, two in zip("abcdefgh", "bcdefghi", strict=True)
)
