"""Run directories of OpenNMT-tf: what OpenNMT-tf computes with them, and which are refused."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml

import keras_transformer as kt
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.run import Run
from keras_transformer.tools.importers.importing import read_source
from keras_transformer.tools.importers.opennmt_tf import CATALOG, read_description
from keras_transformer.tools.importers.vocabularies import rewrite
from keras_transformer.tools.importers.weights import resolve_sharing
from tests.support.parity_marian import _log_probs
from tests.support.parity_opennmt import LINES, LONGEST
from tests.support.paths import FIXTURES
from tests.tools.importers.conftest import assert_equal, silent_weights, weights_of

FOLDER = FIXTURES / "opennmt"
ACTIVATIONS = {"all": None, "target": "silu", "input": None, "none": "relu"}
NUM_HEADS = 4
TINY = (
    'from opennmt import models\nmodel = lambda: models.get_model_from_catalog("TransformerTiny")\n'
)


# --- what OpenNMT-tf computes ---


class Imported:
    """A fixture as a run, and what OpenNMT-tf computed with it."""

    def __init__(self, name, path):
        self.name = name
        text = (FOLDER / name / "answers.json").read_text(encoding="utf-8")
        self.answers = json.loads(text)
        described = NUM_HEADS, ACTIVATIONS[name]
        self.run = kt.import_model(FOLDER / name, path, *described)
        self.translator = kt.load(path, "float32")
        self.model = self.translator.model
        self.original = read_source(FOLDER / name, *described)
        self.rows = [x.rows for x in rewrite(self.original.source, self.original.target)]
        self.source, _ = self.translator.read_source(LINES)
        ids = [self.target_ids(row) for row in self.answers["target"]]
        few = len(self.answers["logits"])
        self.inputs = self.source[:few], np.array(ids[:few])

    def target_ids(self, ids):
        """Our ids of target ids of OpenNMT-tf."""
        ours = {int(id): number for number, id in reversed([*enumerate(self.rows[1])])}
        return [ours[id] for id in ids]


@pytest.fixture(scope="module", params=ACTIVATIONS)
def imported(request, tmp_path_factory):
    return Imported(request.param, tmp_path_factory.mktemp(request.param) / "run")


def test_ids_and_logits(imported):
    found = [imported.rows[0][row[row != kt.PAD]].tolist() for row in np.array(imported.source)]
    assert found == imported.answers["ids"]
    kept = imported.model.suppressed.numpy() == 0
    expected = np.array(imported.answers["logits"])[..., imported.rows[1][kept]]
    logits = np.array(imported.model(imported.inputs))[..., kept]
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=1e-6)


def test_searches(imported):
    for name, beam, alpha in (("greedy", 1, 0.0), ("beam 6", 6, 0.6)):
        expected = imported.answers["searches"][name]
        model, rows = imported.model, len(LINES)
        state = model.initial_state(imported.source)
        how = dict(beam_size=beam, length_penalty=alpha)
        found = kt.search(model.make_step(), state, rows, LONGEST, **how)
        tokens, lengths, log_prob = (np.array(x)[:, 0] for x in found)
        texts = imported.translator.target_tokenizer.detokenize(tokens).numpy()
        same = [x.decode() == y for x, y in zip(texts, expected["texts"], strict=True)]
        # A beam of OpenNMT-tf drops ends below its N best, and confuses scores of those that have
        # ended: its translations may be less probable than ours.
        assert all(same) if beam == 1 else sum(same) > rows / 2
        ids = {piece: id for id, piece in reversed([*enumerate(imported.original.target.pieces)])}
        theirs = [imported.target_ids(ids[piece] for piece in row) for row in expected["tokens"]]
        theirs = [row if len(row) == LONGEST else [*row, kt.END] for row in theirs]
        other = _log_probs(model, np.array(imported.source), theirs)
        if beam == 1:
            np.testing.assert_allclose(log_prob, expected["log_probs"], atol=1e-4)
        penalties = [((5 + n) / 6) ** alpha for n in (lengths, np.array([*map(len, theirs)]))]
        assert (log_prob / penalties[0] > other / penalties[1] - 1e-4).all()


def test_pieces_in_text_and_its_search(imported):
    assert imported.name != "all" or silent_weights(imported.model, imported.inputs) == []
    pieces = imported.original.target.pieces
    for piece, text in imported.answers["odd"].items() if "▁a" in pieces else ():
        id = len(pieces) - 1 if piece == "<unk>" else pieces.index(piece)
        ids = imported.target_ids([pieces.index("▁a"), id])
        found = imported.translator.target_tokenizer.detokenize([ids]).numpy()
        assert found[0].decode() == text
    assert imported.translator.default_search == SearchConfig(6, 0.6, max_output_length=LONGEST)
    config, is_target = Run(imported.run.path).read_config(), imported.name == "target"
    assert (config.imported.kind, config.imported.length_norm) == ("OpenNMT-tf", "gnmt")
    assert (config.model.norm, config.source_end) == ("post" if is_target else "pre", is_target)
    assert config.model.epsilon == 1e-3


def test_a_softmax_without_bias():
    model = read_source(FOLDER / "target", NUM_HEADS, "silu")
    del model.tensors[model.bias]
    assert resolve_sharing(model).output_bias is False


# --- files ---


@pytest.fixture
def folder(tmp_path):
    """A copy of a run directory, of the one that has an optimizer, as a model of the catalog."""
    copy = shutil.copytree(FOLDER / "none", tmp_path / "model")
    (copy / "model_description.py").write_text(TINY)
    return copy


def edit(folder, section=None, **changes):
    options = yaml.safe_load((folder / "data.yml").read_text())
    place = options[section] if section else options
    place |= changes
    (folder / "data.yml").write_text(yaml.safe_dump(options))


def refused(folder, message, *described):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        weights_of(folder, *described)
    assert "\n" not in str(error.value)


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
    model = read_source(folder)
    assert model.notes == ["coverage_penalty 0.2 of the configuration is ignored."]
    found = model.imported
    assert (found.beam_size, found.length_penalty, found.max_output_length) == (1, 0.0, 250)
    edit(folder, auto_config=True)
    assert read_source(folder).imported.beam_size == 4


UNSUPPORTED = [
    ("data", {"source_tokenization": None}, "must be of the type SentencePieceTokenizer"),
    ("data", {"target_tokenization": {"mode": "space"}}, "received None"),
    ("data", {"source_vocabulary": "../../source.vocabulary"}, "is missing: copy all files"),
    ("data", {"source_vocabulary": "checkpoint"}, "must begin with the lines <blank>, <s>"),
    ("data", {"target_vocabulary": "source.model"}, "must be UTF-8"),
    ("data", {"source_sequence_controls": {"start": True}}, "start must be false"),
    ("data", {"target_sequence_controls": {"end": False}}, "end must be true"),
    (None, {"params": {"beam_width": -1}}, "beam_size must be"),
    (None, {"params": 7}, "of another form"),
]


@pytest.mark.parametrize("section, changes, message", UNSUPPORTED, ids=lambda x: str(x)[:40])
def test_configurations_that_are_refused(section, changes, message, folder):
    edit(folder, section, **changes)
    refused(folder, message)


def test_yaml_constructs_no_objects(folder):
    (folder / "data.yml").write_text("!!python/object/apply:os.system ['touch executed']")
    refused(folder, "is not valid YAML")


@pytest.mark.parametrize(
    "name, missing",
    [
        ("ckpt-7.index", "has no checkpoint, such as ckpt-5000.index"),
        ("ckpt-7.data-00000-of-00001", "ckpt-7.data-00000-of-00001"),
        ("source.model", "is missing: copy all files"),
    ],
)
def test_files_that_are_missing_or_damaged(name, missing, folder):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 9])
    refused(folder, name.partition(".")[0])
    if "data" in name:
        path.write_bytes(bytes(x ^ (i % 512 == 0) for i, x in enumerate(content)))
        refused(folder, "is corrupted")
    path.unlink()
    refused(folder, missing)


def test_vocabularies_that_do_not_fit(folder):
    with (folder / "target.vocab").open("a") as file:
        file.write("more\n")
    refused(folder, "they belong to different models")
    with (folder / "target.vocab").open("a") as file:
        file.write("more\n")
    refused(folder, "without gaps, each once")


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


# --- descriptions, which are not executed ---


def test_descriptions(folder, tmp_path):
    path, marker = folder / "model_description.py", tmp_path / "executed"

    def describe(text, *given):
        path.write_text(f"open({str(marker)!r}, 'w').close()\n" + text)
        return read_description(str(folder), *given)

    for name, num_heads in CATALOG.items():
        assert describe(TINY.replace("TransformerTiny", name)) == (num_heads, "relu")
    assert (CATALOG["TransformerTiny"], CATALOG["TransformerBig"]) == (2, 16)
    for text in (
        "class A(models.Transformer):\n  pass\nmodel = A",
        'model = lambda: models.get_model_from_catalog("LuongAttention")',
        '# model = lambda: models.get_model_from_catalog("TransformerBig")',
        f"{TINY}{TINY}",
    ):
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
