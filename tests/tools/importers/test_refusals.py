"""What the importer refuses, in a sentence, with nothing written and nothing executed."""

import collections
import json
import os
import pickle
import shutil
import struct
import zipfile

import numpy as np
import pytest
import yaml

import keras_transformer as kt
from keras_transformer.tools.importers.tensors import read_tensors
from tests.support.command_line import refused
from tests.support.marian_models import FOLDER, native_options, write_native


@pytest.fixture
def folder(tmp_path):
    """A copy of a model that can be imported."""
    return shutil.copytree(FOLDER / "tied", tmp_path / "model")


@pytest.fixture
def zipped(tmp_path):
    """A copy of a model with a pickle of PyTorch."""
    return shutil.copytree(FOLDER / "separate", tmp_path / "zipped")


def edit(path, **changes):
    options = json.loads(path.read_text())
    path.write_text(json.dumps(options | changes))


def write_zip(path, entries):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


# --- pickles ---


class Call:
    """Pickled as the call of a function, as an attacker does."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(marker):
    command = f"touch {marker}"
    yield Call(os.system, command)
    yield Call(eval, f"__import__('os').system({command!r})")
    yield Call(exec, f"open({str(marker)!r}, 'w')")
    yield {"weight": [Call(os.system, command)]}
    yield collections.OrderedDict(a=(1, {"b": Call(os.system, command)}))
    yield Call(os.execv, "/bin/touch", ("touch", str(marker)))
    yield Call(__import__, "subprocess")


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("kind", ["zip", "stream", "first of a stream"])
def test_no_pickle_is_executed(number, protocol, kind, zipped, tmp_path):
    marker = tmp_path / "executed"
    attack = pickle.dumps(list(attacks(marker))[number], protocol)
    path = zipped / "pytorch_model.bin"
    if kind == "zip":
        write_zip(path, {"archive/data.pkl": attack, "archive/version": "3"})
    elif kind == "stream":
        parts = 0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}
        path.write_bytes(b"".join(pickle.dumps(x, 2) for x in parts) + attack)
    else:
        path.write_bytes(pickle.dumps(list(attacks(marker))[number], max(protocol, 2)))
    with pytest.raises(ValueError, match="nothing was run"):
        kt.import_model(zipped, tmp_path / "run")
    assert not marker.exists() and not (tmp_path / "run").exists()


def torch_zip(
    shape=(2, 3), numbers=6, offset=0, strides=(3, 1), stored=24, kind=b"Float", data=None
):
    """A state dict of one tensor, written without PyTorch."""

    content = (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\n"
        + kind
        + b"Storage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + integer(numbers)
        + b"tQ"
        + integer(offset)
        + b"("
        + b"".join(map(integer, shape))
        + b"t("
        + b"".join(map(integer, strides))
        + b"t\x89NtRs."
    )
    data = data or np.arange(stored // 4, dtype="<f4").tobytes()
    return {"a/data.pkl": content, "a/data/0": data, "a/version": "3", "a/byteorder": "little"}


def integer(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def test_a_view_of_a_storage(tmp_path):
    write_zip(tmp_path / "x.bin", torch_zip((2, 2), offset=1, strides=(1, 3)))
    found = read_tensors(tmp_path / "x.bin")["w"]
    np.testing.assert_array_equal(found, [[1, 4], [2, 5]])


def test_bfloat16_of_pytorch(tmp_path):
    data = np.arange(6, dtype="<f4").view("<u2")[1::2].tobytes()  # the upper halves
    write_zip(tmp_path / "x.bin", torch_zip(kind=b"BFloat16", data=data))
    found = read_tensors(tmp_path / "x.bin")["w"]
    np.testing.assert_array_equal(found.astype("float32"), [[0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (2, 4)},
        {"offset": 1},
        {"strides": (4, 1)},
        {"shape": (1 << 40, 1), "strides": (0, 0)},
        {"strides": (-3, 1)},
        {"numbers": 7},
        {"stored": 20},
        {"numbers": 1 << 50, "shape": (1 << 40, 1), "strides": (1, 1)},
    ],
    ids=str,
)
def test_tensors_beyond_their_storage(changes, tmp_path):
    write_zip(tmp_path / "x.bin", torch_zip(**changes))
    kind = "it is truncated" if {"numbers", "stored"} & changes.keys() else ""
    with pytest.raises(ValueError, match=f"is corrupted .*{kind}"):
        read_tensors(tmp_path / "x.bin")


# --- files ---


def test_safetensors_that_claim_a_terabyte(folder, tmp_path):
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    refused(["import", folder, tmp_path / "run"], "is corrupted (Error while deserializing header")
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"0000")
    refused(["import", folder, tmp_path / "run"], "is corrupted")
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 4]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"0000")
    refused(["import", folder, tmp_path / "run"], "is corrupted")
    assert not (tmp_path / "run").exists()


def test_git_lfs_pointers(folder, tmp_path):
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    refused(["import", folder, tmp_path / "run"], "git lfs pull")


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json", "model.safetensors"])
def test_files_that_are_missing_or_truncated(name, folder, tmp_path):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused(["import", folder, tmp_path / "run"], name)
    path.unlink()
    refused(["import", folder, tmp_path / "run"], name)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["untied", "half"])
@pytest.mark.parametrize("part", [0.2, 0.9, 0.999])
def test_truncated_pickles(name, part, tmp_path):
    content = (FOLDER / name / "pytorch_model.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ValueError, match="is corrupted"):
        read_tensors(tmp_path / "x.bin")


def test_zips_that_leave_their_folder(tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "opus.zip"
    for name in ("../model.npz", f"{tmp_path}/model.npz", "a/../../model.npz", "..\\model.npz"):
        write_zip(path, {name: b""})
        refused(["import", path, tmp_path / "run"], "opus.zip")
    assert [x.name for x in tmp_path.iterdir()] == ["in"]


def test_what_is_no_model(tmp_path):
    (tmp_path / "text.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    run = tmp_path / "run"
    refused(["import", tmp_path / "text.txt", run], "is not a zip file")
    refused(["import", tmp_path / "empty", run], "has neither config.json")
    refused(["import", tmp_path / "none" / "at" / "all", run], "does not exist")
    refused(["import", tmp_path / "empty", tmp_path], "is not empty")


# --- architectures ---


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "t5"}, "the model is of the type 't5'"),
        ({"scale_embedding": False}, "scale_embedding must be true"),
        ({"normalize_before": True}, "normalize_before must be false"),
        ({"normalize_embedding": True}, "normalize_embedding must be false"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm must be false"),
        ({"static_position_embeddings": False}, "static_position_embeddings must be true"),
        ({"activation_function": "gelu_new"}, "activation_function must be"),
        ({"d_model": "16"}, "d_model must be"),
        ({"d_model": 8}, "must have the shape"),
        ({"encoder_attention_heads": 4}, "decoder_attention_heads must be 4"),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, "num_heads must divide"),
        ({"decoder_layers": 2}, "lacks model.decoder.layers.1"),
        ({"encoder_layers": 1}, "has model.encoder.layers.1"),
        ({"pad_token_id": 5}, "are of different models"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id must be one id below"),
        ({"eos_token_id": [0, 2]}, "eos_token_id must be one id below"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_unsupported_models_of_hugging_face(changes, message, folder, tmp_path):
    edit(folder / "config.json", **changes)
    (folder / "generation_config.json").unlink()
    refused(["import", folder, tmp_path / "run"], message)
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_of_another_size(folder, tmp_path):
    pieces = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(pieces | {"more": len(pieces)}))
    refused(["import", folder, tmp_path / "run"], "they belong to different models")
    (folder / "vocab.json").write_text(json.dumps(pieces | {"more": len(pieces) + 1}))
    refused(["import", folder, tmp_path / "run"], "without gaps")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"type": "s2s"}, "type must be 'transformer'"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg must be"),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg"),
        ({"transformer-ffn-depth": 1}, "transformer-ffn-depth must be 2"),
        ({"transformer-no-projection": True}, "transformer-no-projection must be"),
        ({"transformer-preprocess": "n"}, "transformer-preprocess must be"),
        ({"transformer-postprocess": "da"}, "transformer-postprocess must be 'dan'"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb must be"),
        ({"transformer-postprocess-top": "n"}, "transformer-postprocess-top must be"),
        ({"transformer-train-position-embeddings": True}, "position-embeddings must be"),
        ({"transformer-pool": True}, "transformer-pool must be"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers must be"),
        ({"transformer-something-new": "x"}, "transformer-something-new must be"),
        ({"factors-dim-emb": 8}, "factors-dim-emb must be 0"),
        ({"transformer-heads": 3}, "num_heads must divide"),
        ({"dec-depth": 2}, "lacks decoder_l2"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_unsupported_native_models(changes, message, tmp_path):
    folder = write_native(tmp_path / "opus")
    with np.load(folder / "model.npz") as file:
        arrays = dict(file)
    content = yaml.safe_dump(native_options(**changes)).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(content, "int8")
    np.savez(folder / "model.npz", **arrays)
    refused(["import", folder, tmp_path / "run"], message)


@pytest.mark.parametrize(
    "decoder, message",
    [
        ({"word-penalty": 0.5}, "word-penalty must be"),
        ({"models": ["a.npz", "b.npz"]}, "ensembles are not supported"),
        ({"vocabs": ["a.vocab"]}, "must have a vocabulary for source and target"),
        ({"vocabs": 7}, "has an option or a tensor of another form"),
        ({"beam-size": 0}, "beam_size must be"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_unsupported_decoders(decoder, message, tmp_path):
    folder = write_native(tmp_path / "opus", decoder=decoder)
    refused(["import", folder, tmp_path / "run"], message)


def test_models_of_the_bpe_era(tmp_path):
    folder = write_native(tmp_path / "opus")
    (folder / "source.spm").rename(folder / "source.bpe")
    refused(["import", folder, tmp_path / "run"], "source.spm cannot be read")


@pytest.mark.parametrize(
    "tensors, message",
    [
        ({"decoder_l1_self_extra": np.ones((4, 4), "float32")}, "has decoder_l1_self_extra"),
        ({"encoder_l1_self_Wq": np.full((16, 16), np.nan, "float32")}, "not finite"),
        ({"encoder_l1_self_Wq": np.ones((16, 8), "float32")}, "must have the shape [16, 16]"),
        ({"Wpos": np.ones((8, 16), "float32")}, "has Wpos"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_tensors_that_do_not_fit(tensors, message, tmp_path):
    folder = write_native(tmp_path / "opus", tensors=tensors)
    refused(["import", folder, tmp_path / "run"], message)
