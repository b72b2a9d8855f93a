"""What the commands ask an export: the answers of the translator in memory, or one sentence."""

import dataclasses
import json
import os
import shutil
import signal
from unittest import mock

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.opening import Opened
from keras_transformer.serving import exported_translator
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.versions import read_card
from tests.support.command_line import python, refused, succeeds
from tests.support.paths import FIXTURES
from tests.support.sample_text import BYTES, LINES, TEXTS
from tests.support.toy_translator import SIZES, SOURCES

BEAM = kt.SearchConfig(beam_size=5)
SAMPLING = kt.SearchConfig(sample=True, temperature=1.5, top_k=20, top_p=0.9, seed=7)
TARGETS = ["ABC", "HGG", "", "A", "BBBB", "FEDCBA", "x", "HB", "ABCDEFGH", "\u6771"]


@pytest.fixture(scope="module")
def exported(toy_version):
    return ExportedTranslator(toy_version)


def check_hypotheses(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for (text, *numbers), (wanted, *others) in zip(ours, theirs, strict=True):
            assert text == wanted and numbers == pytest.approx(others, abs=1e-4)


def test_translations_are_those_in_memory(exported, translator):
    every = [*SOURCES, *TEXTS, *BYTES]
    greedy = kt.SearchConfig()
    for search, n_best, texts in ((greedy, 1, every), (BEAM, 2, SOURCES), (SAMPLING, 2, SOURCES)):
        found = exported.translate_n_best(texts, 4, search, n_best=n_best)
        check_hypotheses(found, translator.translate_n_best(texts, search=search, n_best=n_best))
    empty = exported.translate_n_best([""], search=BEAM)[0]
    assert empty == [("", 0.0, 0.0)] + [("", -1e9, -1e9)] * 4
    # Samples depend on the numbers of lines.
    whole, parts = translator.translate(SOURCES, search=SAMPLING), [(0, 3), (3, 4), (4, 10)]
    texts = [exported.translate(SOURCES[i:j], search=SAMPLING, first=i) for i, j in parts]
    assert sum(texts, []) == whole


def test_scores_are_those_in_memory(exported, translator):
    found, expected = exported.score(SOURCES, TARGETS, 3), translator.score(SOURCES, TARGETS)
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    values = [value for value, _ in expected]
    assert [value for value, _ in found] == pytest.approx(values, abs=1e-4)
    for targets in (["A", "B"], []):
        with pytest.raises(ValueError, match=f"each source, received {len(targets)} for 1"):
            exported.score(["a"], targets)


def test_the_commands_take_an_export(toy_version, translator, tmp_path):
    search = "--beam-size", "5", "--n-best", "2"
    printed = succeeds("translate", toy_version, *search, stdin=b"abc\nhgf\n").stdout.splitlines()
    (tmp_path / "pairs.tsv").write_text("abc\tABC\nhgf\tHG\n")
    scored = succeeds("score", toy_version, "--source", tmp_path / "pairs.tsv").stdout.splitlines()
    n_best = translator.translate_n_best(["abc", "hgf"], search=BEAM, n_best=2)
    expected = [(i, one.score) for i, hypotheses in enumerate(n_best) for one in hypotheses]
    found = [row.split(b" ||| ") for row in printed]
    assert [int(row[0]) for row in found] == [number for number, _ in expected]
    assert [float(row[2]) for row in found] == pytest.approx([x for _, x in expected], abs=1e-4)
    expected = translator.score(["abc", "hgf"], ["ABC", "HG"])
    assert [int(row.split(b"\t")[1]) for row in scored] == [tokens for _, tokens in expected]


class OwnLayer(kt.EncoderLayer):
    def make_feed_forward(self):
        return keras.layers.Dense(self.d_model, "tanh")


OwnEncoder = type("OwnEncoder", (kt.Encoder,), {"layer_class": OwnLayer})
OwnModel = type("OwnModel", (kt.Transformer,), {"encoder_class": OwnEncoder})


def own_translator(folder):
    """Layers of one's own, LoRA, and WordPiece on both sides; a piece looks like a path."""
    learned = kt.WordPieceTokenizer.train(LINES, 125, lowercase=True)
    pieces = [piece.decode() for piece in learned.pieces(range(4, 125)).numpy()]
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "/usr/bin", *pieces]), encoding="utf-8")
    source = kt.WordPieceTokenizer.from_vocabulary(folder / "vocab.txt", lowercase=True)
    target = kt.WordPieceTokenizer.train(LINES, 135)
    model = OwnModel(source.vocabulary_size, target.vocabulary_size, **SIZES)
    model.build()
    (layer,) = model.decoder.layers
    layer.cross_attention.query_dense.enable_lora(2)
    for seed, weight in enumerate(model.trainable_variables):
        weight.assign(np.random.default_rng(seed).normal(0, 0.4, weight.shape))
    return kt.Translator(model, source, target)


def test_an_export_of_ones_own_layers_and_vocabulary_and_search(tmp_path, untried):
    translator = own_translator(tmp_path)
    own = {"beam_size": 3, "length_penalty": 0.5, "length_norm": "length", "max_output_length": 7}
    config = kt.ExportConfig(signatures=("beam",), **own)
    path = kt.export(translator, tmp_path / "words", config=config)
    exported, texts = ExportedTranslator(path), [*LINES[:9], *TEXTS, *BYTES]
    expected = translator.translate(texts, max_output_length=7)
    assert exported.translate(texts, seed=2) == expected and len(set(expected)) > 3
    expected = translator.translate_n_best(texts, search=kt.SearchConfig(**own), n_best=2)
    check_hypotheses(exported.translate_n_best(texts, beam_size=3, n_best=2), expected)
    assert Opened(path).search == kt.SearchConfig(max_output_length=7)
    assert Opened(path, {"beam_size": 3}).search == kt.SearchConfig(**own)
    with pytest.raises(ValueError, match="fixes length_penalty .* beam at 0.5, received 1.0"):
        exported.translate(SOURCES, beam_size=3, length_penalty=1.0)
    described = read_card(path)["vocabulary"]
    assert described["target"]["detokenizing_loses"] == "spaces around punctuation"
    assert "detokenizing_loses" not in described["source"]
    assert Opened(path).detokenizing_losses(LINES) == "it loses spaces around punctuation"


PLAIN = FIXTURES / "format-1" / "export" / "1"
ANSWERS = json.loads((FIXTURES / "format-1" / "translations.json").read_text())
EXPECTED = [ANSWERS[source] for source in SOURCES]


def test_a_path_that_looks_like_a_pattern(tmp_path, monkeypatch):
    """TensorFlow takes the prefix of the weights' files for one."""
    path = shutil.copytree(PLAIN, tmp_path / "[v2] *? \\ {a,b}" / "1")
    assert kt.load_saved_model(path.parent)(SOURCES)[0] == EXPECTED
    monkeypatch.chdir(path)
    assert ExportedTranslator(".").translate(SOURCES) == EXPECTED


def test_a_process_that_has_died_is_replaced():
    exported = ExportedTranslator(PLAIN)
    assert exported.translate(SOURCES) == EXPECTED
    os.kill(exported._run.__self__._process.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="ended with status -9"):
        exported.translate(SOURCES)
    assert exported.translate(SOURCES) == EXPECTED
    process = exported._run.__self__._process
    del exported
    assert process.poll() == 0  # has ended


def test_tensorflow_is_not_imported():
    """Neither to translate, nor to find that a signature is not there, before anything is loaded"""
    code = f"""
import sys
sys.argv[0] = "keras-transformer"
from keras_transformer.runs.opening import Opened, SentenceTranslator
print(SentenceTranslator(Opened(sys.argv[1]))({SOURCES!r}))
for search in {{"beam_size": 2}}, {{"sample": True}}:
    try:
        SentenceTranslator(Opened(sys.argv[1], search))
    except ValueError as error:
        print(error)
assert not {{"tensorflow", "keras"}} & set(sys.modules)
"""
    answers, *said = python("-c", code, PLAIN).splitlines()
    assert answers == str(EXPECTED)
    for name, line in zip(("beam", "sample"), said, strict=True):
        assert f"has no signature {name}: export it with" in line
    with pytest.raises(ValueError, match="has no signature score: export it with"):
        ExportedTranslator(PLAIN).score(["abc"], ["a"])


def test_many_sentences_have_their_graph_rewritten(monkeypatch):
    monkeypatch.setattr(exported_translator, "OPTIMIZE_THRESHOLD", 2)
    observed = mock.Mock(wraps=exported_translator.ServerProcess)
    monkeypatch.setattr(exported_translator, "ServerProcess", observed)
    translator = ExportedTranslator(PLAIN)
    parts = [(0, 0), (0, 1), (1, 2), (2, 3), (3, None)]
    assert sum([translator.translate(SOURCES[i:j]) for i, j in parts], []) == EXPECTED
    # One process for the first two, one for all others.
    assert [call.kwargs["optimize"] for call in observed.call_args_list] == [False, True]


def test_what_an_export_cannot_do(toy_version, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("a\tb\n")
    for arguments, message in (
        ("translate {} --max-output-length 5", "fixes max_output_length of its signature serving"),
        ("translate {} --beam-size 5 --n-best 6", "from 1 to the beam size, 5, unless"),
        ("translate {} --prefix {}/model.json", "which takes no prefixes"),
        ("score {} --source x.tsv --precision float32", "SavedModel, whose precision is fixed"),
        ("align {} --source x.tsv", "is a SavedModel: give the run directory it was"),
    ):
        words = [word.replace("{}", toy_version) for word in arguments.split()]
        refused(words, message, stdin=b"a\n")


def test_searches_that_it_fixes(exported):
    other = dataclasses.replace(SAMPLING, seed=1, temperature=0.1, top_k=1, top_p=0.5)
    assert [exported.check_search(x) for x in (BEAM, other)] == ["beam", "sample"]
    assert exported.check_search(kt.SearchConfig(seed=5)) == "serving_default"
    with pytest.raises(ValueError, match="fixes beam_size of its signature beam at 5, received 4"):
        exported.check_search(kt.SearchConfig(beam_size=4))
