"""The vocabularies of a training fit its text; word vectors start it and may stay as they are."""

import dataclasses

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs.training_data import train_tokenizers
from keras_transformer.train import train
from tests.support.reversed_text import MODEL, config_of, write_corpus

PAIRS = [(f"the {animal} sleeps", f"这只{animal}睡着了") for animal in ("cat", "hen", "cow")]


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char", "word"])
def test_a_small_corpus_gets_the_largest_vocabulary(model_type, capsys):
    """As many ids as the text allows, and not one more is possible; in one go, and it is said."""
    config = kt.TrainConfig(vocabulary_size=9900, model_type=model_type)
    tokenizers, said = train_tokenizers(config, PAIRS), capsys.readouterr().err
    for side, tokenizer in enumerate(tokenizers):
        size = tokenizer.vocabulary_size
        assert f"{size} ids instead of 9900, the maximum for this text" in said
        with pytest.raises(ValueError, match=f"at most {size} ids"):
            lines = [pair[side] for pair in PAIRS]
            kt.SubwordTokenizer.train(lines, size + 1, model_type)


def test_each_side_has_a_size_of_its_own(capsys):
    """All words on one side, some pieces on the other; and more than there are."""
    words = kt.TrainConfig(vocabulary_size=None, model_type="word", target_vocabulary_size=6)
    source, target = train_tokenizers(words, PAIRS)
    assert (source.vocabulary_size, target.vocabulary_size) == (4 + 5, 6)
    assert kt.UNK not in source([pair[0] for pair in PAIRS]).flat_values.numpy()
    pieces = kt.TrainConfig(vocabulary_size=27, model_type="wordpiece", source_vocabulary_size=99)
    source, target = train_tokenizers(pieces, PAIRS)
    assert isinstance(source, kt.WordPieceTokenizer) and target.vocabulary_size == 27
    limit = source.vocabulary_size
    said = f"{limit} ids instead of 99, the maximum for this text"
    assert 27 < limit < 99 and said in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"at most {limit} ids"):
        kt.WordPieceTokenizer.train([pair[0] for pair in PAIRS], limit + 1)


def test_vectors_in_a_run(tmp_path, capsys):
    corpus = write_corpus(tmp_path, 100, 1)
    vectors = tmp_path / "vectors.txt"
    with open(corpus[0], encoding="utf-8") as file:
        words = sorted(set(file.read().split()))[:6]
    table = np.random.default_rng(3).normal(0, 0.3, (6, 16)).round(4)
    lines = [f"{word} {' '.join(map(str, row))}" for word, row in zip(words, table, strict=True)]
    vectors.write_text("\n".join(lines) + "\n")
    options = dict(valid_fraction=0.2, vocabulary_size=None, model_type="word", epochs=1)
    options |= dict(source_vectors=str(vectors), learning_rate=1e-9)
    model = dataclasses.replace(MODEL, positions="learned", share_embeddings="target")
    config = config_of(tmp_path, 100, 0, **options, model=model, warmup_steps=1)
    assert config.model.d_model == 16
    output = tmp_path / "run"
    train(config, output)
    first = embeddings(output)
    vectors.unlink()
    train(dataclasses.replace(config, epochs=3), output, resume=True)
    translator, last = kt.load(output), embeddings(output)
    np.testing.assert_allclose(first["embeddings"], last["embeddings"], atol=1e-6)
    ids = [int(translator.source_tokenizer(word)[0]) for word in words]
    known = [i for i, id in enumerate(ids) if id != kt.UNK]
    factors = first["embeddings"][np.array(ids)[known]] / table[known]
    np.testing.assert_allclose(factors, factors[0, 0], rtol=1e-3)
    assert capsys.readouterr().err.count(f"source vectors: {len(known)} of ") == 1
    assert "source_vectors" not in translator.card["recipe"]


def embeddings(output):
    """The weights of the source embedding, by name."""
    return {w.name: np.array(w) for w in kt.load(output).model.source_embedding.weights}


def test_vectors_that_cover_nothing_leave_nothing(tmp_path):
    (tmp_path / "v").write_text("unheard-of" + " 0.5" * 8 + "\n")
    tiny = dataclasses.replace(MODEL, d_model=8)
    options = dict(vocabulary_size=None, model_type="word", target_vectors=str(tmp_path / "v"))
    config = config_of(tmp_path, 30, 0, valid_fraction=0.2, model=tiny, **options)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="has no vector for any of the"):
        train(config, tmp_path / "run")
    assert sorted(tmp_path.iterdir()) == before
