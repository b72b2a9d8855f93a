"""A translator with WordPiece on both sides, exported and run as a server does, without Python."""

import pytest

import keras_transformer as kt
from keras_transformer.runs.opening import Opened
from keras_transformer.serving.versions import read_card
from keras_transformer.tokenizers import saved
from tests.support.sample_text import BYTES, LINES, TEXTS
from tests.support.serving import run_through_c_api
from tests.support.toy_translator import random_translator

BATCHES = (LINES[:9], TEXTS + BYTES, [])


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Uncased sources by a file with a piece that looks like a path; cased targets."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    learned = kt.WordPieceTokenizer.train(LINES, 125, lowercase=True)
    pieces = [piece.decode() for piece in learned.pieces(range(4, 125)).numpy()]
    path.write_text("\n".join(["[UNK]", "/usr/bin", *pieces]), encoding="utf-8")
    source = kt.WordPieceTokenizer.from_vocabulary(path, lowercase=True)
    return random_translator(source, kt.WordPieceTokenizer.train(LINES, 135), seed=8)


def test_answers_are_those_in_memory(translator, tmp_path):
    expected = [translator.translate(list(texts)) for texts in BATCHES]
    path = kt.export(translator, tmp_path / "words", config=kt.ExportConfig(signatures=()))
    replies = run_through_c_api(path, [list(texts) for texts in BATCHES])
    assert [reply["text"] for reply in replies] == expected
    assert len(set(expected[0])) > 3 and expected[1][0] == ""
    assert kt.load_saved_model(path)(LINES[:9])[0] == expected[0]
    vocabulary = read_card(path)["vocabulary"]
    assert vocabulary["target"]["detokenizing_loses"] == "spaces around punctuation"
    assert "detokenizing_loses" not in vocabulary["source"]
    assert Opened(path).detokenizing_losses(LINES) == "it loses spaces around punctuation"


def test_vocabularies_of_a_directory(translator, tmp_path):
    saved.write(tmp_path, [translator.source_tokenizer, kt.SubwordTokenizer.train(LINES, 400)])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["source.wordpiece", "target.spm"]
    source, target = saved.load(tmp_path)
    assert source(LINES).to_list() == translator.source_tokenizer(LINES).to_list()
    assert saved.read(tmp_path) == (source.model, target.model)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(ValueError, match="has no vocabularies of source and target, such as sourc"):
        saved.load(tmp_path)
    saved.write(tmp_path, [source, source])
    assert len(set(map(id, saved.load(tmp_path)))) == 1
