"""As many pairs as have to do with shards of their real size."""

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from tests.support.made_up_text import write_text


@pytest.mark.slow
def test_three_hundred_thousand_pairs(tmp_path):
    """Two shards: any sentence of either is its text, and every pair comes once a pass."""
    text = write_text(tmp_path, 300_007, shards=3, words=500, length=5)
    config = kt.PrepareConfig(*text, vocabulary_size=900, vocabulary_sample=5000)
    kt.prepare(config, tmp_path / "corpus")
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    assert [len(offsets) - 1 for _, offsets in corpus.shards()[0]] == [262_144, 37_863]
    rows = np.array([0, 262_143, 262_144, 300_006, *range(5, 300_000, 2999)])
    pairs = kt.read_pairs(*text)
    processor = sentencepiece.SentencePieceProcessor(model_proto=corpus.tokenizers[0].model)
    for side, sentences in enumerate((corpus.pairs.source, corpus.pairs.target)):
        ids, lengths = sentences.gather(rows)
        expected = processor.encode([pairs[row][side] for row in rows])
        assert np.split(ids, np.cumsum(lengths)[:-1])[3].tolist() == expected[3]
        assert ids.tolist() == [one for row in expected for one in row]
    dataset = kt.make_dataset(corpus=corpus, tokens_per_batch=16_000, max_length=300)
    taken = sum(len(target) for _, target in dataset.stream)
    assert taken == 300_007
