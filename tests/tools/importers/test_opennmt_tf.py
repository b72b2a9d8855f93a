"""Run directories of OpenNMT-tf: what OpenNMT-tf computes with them, and which are refused."""

import json
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
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from tests.support.command_line import refused, run
from tests.support.parity_marian import _log_probs
from tests.support.parity_opennmt import LINES, LONGEST
from tests.support.paths import FIXTURES

FOLDER = FIXTURES / "opennmt"
ACTIVATIONS = {"all": None, "target": "silu", "input": None, "none": "relu"}
NUM_HEADS = 4
TINY = (
    'from opennmt import models\nmodel = lambda: models.get_model_from_catalog("TransformerTiny")\n'
)


class Imported:
    """A fixture as a run, and what OpenNMT-tf computed with it."""

    def __init__(self, name, path):
        text = (FOLDER / name / "answers.json").read_text(encoding="utf-8")
        self.answers = json.loads(text)
        described = NUM_HEADS, ACTIVATIONS[name]
        self.path = kt.import_model(FOLDER / name, path, *described)
        self.translator = kt.load(path, "float32")
        self.model = self.translator.model
        self.original = read_source(FOLDER / name, *described)
        self.rows = [x.rows for x in rewrite(self.original.source, self.original.target)]
        self.source, _ = self.translator.read_source(LINES)

    def target_ids(self, ids):
        """Our ids of target ids of OpenNMT-tf."""
        ours = {int(id): number for number, id in reversed([*enumerate(self.rows[1])])}
        return [ours[id] for id in ids]

    def logits(self):
        target = [self.target_ids(row) for row in self.answers["target"]]
        few = len(self.answers["logits"])
        return np.array(self.model((self.source[:few], np.array(target[:few]))))


@pytest.fixture(scope="module", params=ACTIVATIONS)
def imported(request, tmp_path_factory):
    return Imported(request.param, tmp_path_factory.mktemp(request.param) / "run")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return Imported("all", tmp_path_factory.mktemp("one") / "run")


# --- what OpenNMT-tf computes ---


def test_source_ids(imported):
    found = [imported.rows[0][row[row != kt.PAD]].tolist() for row in np.array(imported.source)]
    assert found == imported.answers["ids"]


def test_logits(imported):
    kept = imported.model.suppressed.numpy() == 0
    expected = np.array(imported.answers["logits"])[..., imported.rows[1][kept]]
    np.testing.assert_allclose(imported.logits()[..., kept], expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("name, search", [("greedy", (1, 0.0)), ("beam 6", (6, 0.6))])
def test_searches(name, search, imported):
    expected, (beam, alpha) = imported.answers["searches"][name], search
    model, rows = imported.model, len(LINES)
    state = model.initial_state(imported.source)
    tokens, lengths, log_prob = (
        np.array(x)[:, 0]
        for x in kt.search(
            model.make_step(), state, rows, LONGEST, beam_size=beam, length_penalty=alpha
        )
    )
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


def test_every_tensor_matters(one):
    before, silent = one.logits(), []
    for variable in one.model.weights:
        value = variable.numpy()
        variable.assign(np.zeros_like(value))
        if np.abs(one.logits() - before).max() < 1e-3:
            silent.append(variable.path)
        variable.assign(value)
    # Softmax does not depend on what a bias of the keys adds to all scores of a query; ids are
    # suppressed in decoding only.
    assert all("key/bias" in path or "suppressed" in path for path in silent), silent


@pytest.mark.parametrize("name", ["target", "none"])
def test_a_softmax_without_bias(name):
    model, logits = read_source(FOLDER / name, NUM_HEADS, ACTIVATIONS[name]), []
    sides = rewrite(model.source, model.target)
    ids = np.random.default_rng(3).integers(4, 90, (2, 3, 5))
    bias = model.tensors[model.bias][sides[1].rows]
    for bias_name in (model.bias, ""):
        if not bias_name:
            del model.tensors[model.bias]
        model.bias = bias_name
        sizes = [len(side.rows) for side in sides]
        transformer = kt.Transformer(*sizes, **vars(resolve_sharing(model)))
        transformer.build()
        load_weights(transformer, model, *sides)
        logits.append(np.array(transformer((ids[0], ids[1]))))
    assert transformer.output_bias is False
    np.testing.assert_allclose(
        logits[0] - logits[1], np.broadcast_to(bias, logits[0].shape), atol=1e-4
    )


def test_pieces_in_text(one):
    pieces = one.original.target.pieces
    for piece, text in one.answers["odd"].items():
        id = len(pieces) - 1 if piece == "<unk>" else pieces.index(piece)
        ids = one.target_ids([pieces.index("▁a"), id])
        assert one.translator.target_tokenizer.detokenize([ids]).numpy()[0].decode() == text


# --- the run ---


def test_its_search_and_its_export(one, tmp_path):
    search = SearchConfig(6, 0.6, max_output_length=LONGEST)
    assert one.translator.default_search == search
    config = Run(one.path.path).read_config()
    assert (config.imported.kind, config.imported.length_norm) == ("OpenNMT-tf", "gnmt")
    assert (config.model.norm, config.model.epsilon, config.source_end) == ("pre", 1e-3, False)
    texts = one.translator.translate(LINES)
    result = run("export", one.path.path, tmp_path / "export", "--signatures", "beam")
    assert result.returncode == 0, result.stderr.decode()
    signature = json.loads((tmp_path / "export" / "1" / "model.json").read_text())["signatures"]
    assert signature["beam"]["length_norm"] == "gnmt"
    lines = "".join(f"{line}\n" for line in LINES).encode()
    options = "--beam-size", "6", "--length-penalty", "0.6"
    served = run("translate", tmp_path / "export", *options, stdin=lines)
    assert served.stdout.decode().splitlines() == texts


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


def weights(folder, output):
    return kt.load(kt.import_model(folder, output).path).model.get_weights()


def test_averaged_and_latest_checkpoints(folder, tmp_path):
    expected = weights(folder, tmp_path / "run")
    (folder / "avg").mkdir()
    shutil.copy(folder / "checkpoint", folder / "avg")
    for path in folder.glob("ckpt-7.*"):
        shutil.copy(path, folder / "avg")
        path.write_bytes(b"")  # not read
    for one, other in zip(expected, weights(folder, tmp_path / "average"), strict=True):
        np.testing.assert_array_equal(one, other)
    for path in (folder / "avg").iterdir():
        shutil.move(path, folder / path.name.replace("ckpt-7", "ckpt-10"))
    text = (folder / "checkpoint").read_text().replace("ckpt-7", "ckpt-10")
    (folder / "checkpoint").write_text(text)
    for one, other in zip(expected, weights(folder, tmp_path / "latest"), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_ignored_is_said(folder, tmp_path):
    edit(folder, params={"coverage_penalty": 0.2, "minimum_decoding_length": 3})
    notes = run("import", folder, tmp_path / "run").stderr.decode()
    assert "coverage_penalty 0.2 of the configuration is ignored" in notes
    assert "minimum_decoding_length 3 of the configuration is ignored" in notes
    search = kt.load(tmp_path / "run").default_search
    assert search == SearchConfig(length_penalty=0.0, max_output_length=250)


@pytest.mark.parametrize(
    "section, changes, message",
    [
        ("data", {"source_tokenization": None}, "must be of the type SentencePieceTokenizer"),
        ("data", {"target_tokenization": {"mode": "space"}}, "received None"),
        ("data", {"source_vocabulary": "other.vocab"}, "other.vocab is missing"),
        ("data", {"source_vocabulary": "../../source.vocabulary"}, "is missing: copy all files"),
        (
            "data",
            {"source_vocabulary": "checkpoint"},
            "must begin with the lines <blank>, <s>",
        ),
        ("data", {"target_vocabulary": "source.model"}, "must be UTF-8"),
        ("data", {"source_sequence_controls": {"start": True}}, "start must be false"),
        ("data", {"target_sequence_controls": {"end": False}}, "end must be true"),
        (None, {"params": {"beam_width": -1}}, "beam_size must be"),
        (None, {"params": 7}, "of another form"),
        (None, {"data": {}}, "must be of the type SentencePieceTokenizer"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_configurations_that_are_refused(section, changes, message, folder, tmp_path):
    edit(folder, section, **changes)
    refused(["import", folder, tmp_path / "run"], message)
    assert not (tmp_path / "run").exists()


def test_yaml_constructs_no_objects(folder, tmp_path):
    (folder / "data.yml").write_text("!!python/object/apply:os.system ['touch executed']")
    refused(["import", folder, tmp_path / "run"], "is not valid YAML")


@pytest.mark.parametrize(
    "name, missing",
    [
        ("ckpt-7.index", "has no checkpoint, such as ckpt-5000.index"),
        ("ckpt-7.data-00000-of-00001", "ckpt-7.data-00000-of-00001"),
        ("model_description.py", "nor model_description.py"),
        ("source.model", "is missing: copy all files"),
    ],
)
def test_files_that_are_missing_or_truncated(name, missing, folder, tmp_path):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 9])
    refused(["import", folder, tmp_path / "run"], name.partition(".")[0])
    path.unlink()
    refused(["import", folder, tmp_path / "run"], missing)
    assert not (tmp_path / "run").exists()


def test_bytes_that_changed(folder, tmp_path):
    path = folder / "ckpt-7.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 512):
        content[place] ^= 1
    path.write_bytes(content)
    refused(["import", folder, tmp_path / "run"], "is corrupted")


def test_a_vocabulary_of_another_size(folder, tmp_path):
    with (folder / "target.vocab").open("a") as file:
        file.write("more\n")
    refused(["import", folder, tmp_path / "run"], "they belong to different models")
    with (folder / "target.vocab").open("a") as file:
        file.write("more\n")
    refused(["import", folder, tmp_path / "run"], "without gaps, each once")


def move_vocabularies(folder, place, name="{}"):
    """Moves the vocabularies of both sides to other places, and names these."""
    for side in ("source", "target"):
        where = place / name.format(side)
        where.mkdir(parents=True)
        for end in ("vocab", "model"):
            shutil.move(folder / f"{side}.{end}", where / f"sp.{end}")
        tokenizer = {"type": "SentencePieceTokenizer", "params": {"model": str(where / "sp.model")}}
        edit(folder, "data", **{f"{side}_vocabulary": str(where / "sp.vocab")})
        edit(folder, "data", **{f"{side}_tokenization": tokenizer})


def test_an_absolute_path_that_exists_is_followed(folder, tmp_path):
    before = read_source(folder)
    move_vocabularies(folder, tmp_path / "data")
    after = read_source(folder)
    assert (before.source, before.target) == (after.source, after.target)


def test_two_files_of_one_name_are_not_one(folder, tmp_path):
    move_vocabularies(folder, tmp_path / "data")
    for side in ("source", "target"):  # the second copy replaces the first
        for path in (tmp_path / "data" / side).iterdir():
            shutil.copy(path, folder)
    shutil.rmtree(tmp_path / "data")
    refused(["import", folder, tmp_path / "run"], "but there is one file for two of them")
    # One tokenization, in one file, is of both sides.
    tokenizer = {"type": "SentencePieceTokenizer", "params": {"model": "/data/sp.model"}}
    (folder / "sp.yml").write_text(yaml.safe_dump(tokenizer))
    for side in ("source", "target"):
        edit(folder, "data", **{f"{side}_vocabulary": "./sp.vocab"})
        edit(folder, "data", **{f"{side}_tokenization": "sp.yml"})
    model = read_source(folder)
    assert model.source == model.target


def test_hidden_files_are_none_of_its_configurations(folder, tmp_path):
    (folder / "._data.yml").write_bytes(b"\0\5\x16\7")  # of macOS
    assert read_source(folder).config.num_heads == 2


def test_null_is_the_default(folder):
    edit(folder, params={"beam_width": None, "length_penalty": None})
    imported = read_source(folder).imported
    found = imported.beam_size, imported.length_penalty, imported.max_output_length
    assert found == (1, 0.0, 250)


# --- descriptions ---


def describe(tmp_path, text, *given):
    (tmp_path / "model_description.py").write_text(text)
    return read_description(str(tmp_path), *given)


@pytest.mark.parametrize("name, num_heads", [("TransformerTiny", 2), ("TransformerBig", 16)])
def test_a_model_of_the_catalog_is_known_by_its_name(name, num_heads, tmp_path):
    assert describe(tmp_path, TINY.replace("TransformerTiny", name)) == (num_heads, "relu")
    assert CATALOG[name] == num_heads


@pytest.mark.parametrize(
    "text",
    [
        "model = lambda: models.Transformer(num_heads=4)",
        "class A(models.Transformer):\n  pass\nmodel = A",
        'model = lambda: models.get_model_from_catalog("LuongAttention")',
        '# model = lambda: models.get_model_from_catalog("TransformerBig")',
        f"{TINY}{TINY}",
        "model = lambda:",
    ],
)
def test_the_heads_of_others_are_asked_for(text, tmp_path):
    with pytest.raises(ValueError, match="give --num-heads"):
        describe(tmp_path, text)
    assert describe(tmp_path, text, 4) == (4, "relu")


def test_what_an_own_model_may_be(folder, tmp_path):
    path = folder / "model_description.py"
    shutil.copy(FOLDER / "none" / "model_description.py", path)
    command = ["import", folder, tmp_path / "run", "--num-heads"]
    refused([*command, "4"], "has the option ffn_activation: give --activation relu or silu")
    refused([*command, "4", "--activation", "gelu"], "activation must be")
    refused([*command, "5", "--activation", "relu"], "num_heads must divide")
    path.write_text("model = lambda: Transformer(position_encoder_class=None)")
    refused([*command, "4"], "only models with OpenNMT-tf's sinusoidal positions")


def test_its_options_are_for_no_other_model(tmp_path):
    folder = FIXTURES / "marian" / "tied"
    refused(["import", folder, tmp_path / "run", "--num-heads", "2"], "are for OpenNMT-tf")


def test_a_description_is_not_executed(folder, tmp_path):
    path, marker = folder / "model_description.py", tmp_path / "executed"
    path.write_text(f"open({str(marker)!r}, 'w').close()\n" + path.read_text())
    kt.import_model(folder, tmp_path / "run")
    assert not marker.exists()
