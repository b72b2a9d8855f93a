"""The vocabularies in a run directory, of each kind."""

import pytest

import keras_transformer as kt
from keras_transformer.tokenizers import saved
from tests.support.sample_text import LINES


def test_vocabularies_of_a_directory(tmp_path):
    words = kt.WordPieceTokenizer.train(LINES, 125)
    saved.write(tmp_path, [words, kt.SubwordTokenizer.train(LINES, 400)])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["source.wordpiece", "target.spm"]
    source, target = saved.load(tmp_path)
    assert source(LINES).to_list() == words(LINES).to_list()
    assert saved.read(tmp_path) == (source.model, target.model)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(ValueError, match="has no vocabularies of source and target, such as sourc"):
        saved.load(tmp_path)
    saved.write(tmp_path, [source, source])
    assert len(set(map(id, saved.load(tmp_path)))) == 1
