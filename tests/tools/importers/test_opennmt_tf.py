"""Run directories of OpenNMT-tf: what OpenNMT-tf computes with them, and which are refused."""

import shutil

import numpy as np
import pytest
import yaml

from keras_transformer.presets import SearchConfig
from keras_transformer.runs.run import Run
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.opennmt_tf import read_description
from keras_transformer.tools.importers.weights import resolve_sharing
from tests.support.layer_harness import assert_equal
from tests.support.paths import FIXTURES
from tests.tools.importers.conftest import Imported, refused, weights_of

FOLDER = FIXTURES / "opennmt"
ACTIVATIONS = {"all": None, "target": "silu", "input": None, "none": "relu"}
NUM_HEADS, LONGEST = 4, 30  # LONGEST: tokens of a translation
TINY = 'model = lambda: models.get_model_from_catalog("TransformerTiny")\n'


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_opennmt_tf_computes(name, tmp_path):
    imported = Imported(FOLDER / name, tmp_path / "run", NUM_HEADS, ACTIVATIONS[name])
    imported.check_ids_and_logits()
    pieces = imported.original.target.pieces
    ids = {piece: id for id, piece in reversed([*enumerate(pieces)])}
    for search, beam, alpha in (("greedy", 1, 0.0), ("beam 6", 6, 0.6)):
        expected = imported.answers["searches"][search]
        rows = [[ids[piece] for piece in row] for row in expected["tokens"]]
        rows = [row if len(row) == LONGEST else [*row, ids["</s>"]] for row in rows]
        found = imported.check_search(rows, LONGEST, beam_size=beam, length_penalty=alpha)
        if beam == 1:
            np.testing.assert_allclose(found, expected["log_probs"], atol=1e-4)
    detokenize = imported.translator.target_tokenizer.detokenize
    texts = [detokenize(imported.target_ids(row)).numpy().decode() for row in rows]
    assert texts == expected["texts"]
    for piece, text in imported.answers["odd"].items() if "▁a" in pieces else ():
        id = len(pieces) - 1 if piece == "<unk>" else ids[piece]
        assert detokenize([imported.target_ids([ids["▁a"], id])]).numpy()[0].decode() == text
    assert imported.translator.default_search == SearchConfig(6, 0.6, max_output_length=LONGEST)
    config, is_target = Run(imported.run.path).read_config(), name == "target"
    assert (config.imported.kind, config.imported.length_norm) == ("OpenNMT-tf", "gnmt")
    assert (config.model.norm, config.source_end) == ("post" if is_target else "pre", is_target)
    assert name != "all" or imported.silent_weights() == []


def test_a_softmax_without_bias():
    model = read_source(FOLDER / "target", NUM_HEADS, "silu")
    del model.tensors[model.bias]
    assert resolve_sharing(model).output_bias is False


@pytest.fixture
def folder(tmp_path):
    """The run directory that has an optimizer, as one of a model of the catalog."""
    copy = shutil.copytree(FOLDER / "none", tmp_path / "model")
    (copy / "model_description.py").write_text(TINY)
    return copy


def edit(folder, section=None, **changes):
    options = yaml.safe_load((folder / "data.yml").read_text())
    (options[section] if section else options).update(changes)
    (folder / "data.yml").write_text(yaml.safe_dump(options))


def test_averaged_and_latest_checkpoints(folder):
    expected = weights_of(folder)
    (folder / "avg").mkdir()
    shutil.copy(folder / "checkpoint", folder / "avg")
    for path in folder.glob("ckpt-7.*"):
        shutil.copy(path, folder / "avg")
        path.write_bytes(b"")  # not read
    assert_equal(weights_of(folder), expected)
    for path in (folder / "avg").iterdir():
        shutil.move(path, folder / path.name.replace("ckpt-7", "ckpt-10"))
    text = (folder / "checkpoint").read_text().replace("ckpt-7", "ckpt-10")
    (folder / "checkpoint").write_text(text)
    assert_equal(weights_of(folder), expected)


def test_options_of_the_search(folder):
    edit(folder, params={"coverage_penalty": 0.2, "beam_width": None, "length_penalty": None})
    (folder / "._data.yml").write_bytes(b"\0\5\x16\7")  # of macOS
    assert read_source(folder).notes == ["coverage_penalty 0.2 of the configuration is ignored."]
    found = read_source(folder).imported
    assert (found.beam_size, found.length_penalty, found.max_output_length) == (1, 0.0, 250)
    edit(folder, params={"minimum_decoding_length": 4})
    assert read_source(folder).imported.min_length == 4
    edit(folder, auto_config=True)
    assert read_source(folder).imported.beam_size == 4


def test_configurations_that_are_refused(folder):
    config = (folder / "data.yml").read_text()
    for section, changes, message in (
        ("data", {"source_tokenization": None}, "must be of the type SentencePieceTokenizer"),
        ("data", {"target_tokenization": {"mode": "space"}}, "received None"),
        ("data", {"source_vocabulary": "../../source.vocabulary"}, "is missing: copy all files"),
        ("data", {"source_vocabulary": "checkpoint"}, "must begin with the lines <blank>, <s>"),
        ("data", {"target_vocabulary": "source.model"}, "must be UTF-8"),
        ("data", {"source_sequence_controls": {"start": True}}, "start must be false"),
        ("data", {"target_sequence_controls": {"end": False}}, "end must be true"),
        (None, {"params": {"beam_width": -1}}, "beam_size must be"),
        (None, {"params": 7}, "of another form"),
    ):
        (folder / "data.yml").write_text(config)
        edit(folder, section, **changes)
        refused(folder, message)
    (folder / "data.yml").write_text("!!python/object/apply:os.system ['touch executed']")
    refused(folder, "is not valid YAML")


def test_files_that_are_missing_or_damaged(folder):
    for name, message in (
        ("source.model", "is missing: copy all files"),
        ("ckpt-7.data-00000-of-00001", "ckpt-7.data-00000-of-00001"),
        ("ckpt-7.index", "has no checkpoint, such as ckpt-5000.index"),
    ):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 9])
        refused(folder, name.partition(".")[0])
        if "data" in name:
            (folder / name).write_bytes(bytes(x ^ (i % 512 == 0) for i, x in enumerate(content)))
            refused(folder, "is corrupted")
        (folder / name).unlink()
        refused(folder, message)
        (folder / name).write_bytes(content)
    for message in ("they belong to different models", "without gaps, each once"):
        with (folder / "target.vocab").open("a") as file:
            file.write("more\n")
        refused(folder, message)


def test_absolute_paths_of_vocabularies(folder, tmp_path):
    """They are followed if they exist; copied beside, two of one name are not one."""
    before = read_source(folder)
    for side in ("source", "target"):
        where = tmp_path / "data" / side
        where.mkdir(parents=True)
        for end in ("vocab", "model"):
            shutil.move(folder / f"{side}.{end}", where / f"sp.{end}")
        tokenizer = {"type": "SentencePieceTokenizer", "params": {"model": str(where / "sp.model")}}
        edit(folder, "data", **{f"{side}_vocabulary": str(where / "sp.vocab")})
        edit(folder, "data", **{f"{side}_tokenization": tokenizer})
    after = read_source(folder)
    assert (before.source, before.target) == (after.source, after.target)
    for side in ("source", "target"):  # the second copy replaces the first
        shutil.copytree(tmp_path / "data" / side, folder, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "data")
    refused(folder, "but there is one file for two of them")
    # One tokenization, in one file, is of both sides.
    tokenizer = {"type": "SentencePieceTokenizer", "params": {"model": "/data/sp.model"}}
    (folder / "sp.yml").write_text(yaml.safe_dump(tokenizer))
    for side in ("source", "target"):
        edit(folder, "data", **{f"{side}_vocabulary": "./sp.vocab"})
        edit(folder, "data", **{f"{side}_tokenization": "sp.yml"})
    model = read_source(folder)
    assert model.source == model.target


def test_descriptions(folder, tmp_path):
    path, marker = folder / "model_description.py", tmp_path / "executed"

    def describe(text, *given):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n" + text)
        return read_description(str(folder), *given)

    assert describe(TINY) == (2, "relu")
    assert describe(TINY.replace("Tiny", "Big")) == (16, "relu")
    commented = '# model = lambda: models.get_model_from_catalog("TransformerBig")'
    for text in (TINY.replace("TransformerTiny", "LuongAttention"), commented, f"{TINY}{TINY}"):
        with pytest.raises(ValueError, match="give --num-heads"):
            describe(text)
        assert describe(text, 4) == (4, "relu")
    with pytest.raises(ValueError, match="only models with OpenNMT-tf's sinusoidal positions"):
        describe("model = lambda: Transformer(position_encoder_class=None)", 4)
    assert not marker.exists()
    shutil.copy(FOLDER / "none" / "model_description.py", path)
    refused(folder, "has the option ffn_activation: give --activation relu or silu", 4)
    refused(folder, "activation must be", 4, "gelu")
    refused(folder, "num_heads must divide", 5, "relu")
