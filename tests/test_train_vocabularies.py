"""The vocabularies of a training fit its text."""

import pytest

import keras_transformer as kt
from keras_transformer.runs.training_data import train_tokenizers


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char", "word"])
def test_a_small_corpus_gets_the_largest_vocabulary(model_type, capsys):
    """As many ids as the text allows, and not one more is possible; in one go, and it is said."""
    pairs = [(f"the {animal} sleeps", f"这只{animal}睡着了") for animal in ("cat", "hen", "cow")]
    config = kt.TrainConfig(vocabulary_size=9900, model_type=model_type)
    tokenizers, said = train_tokenizers(config, pairs), capsys.readouterr().err
    for side, tokenizer in enumerate(tokenizers):
        size = tokenizer.vocabulary_size
        assert f"{size} ids instead of 9900, all that the text allows" in said
        with pytest.raises(ValueError, match=f"at most {size} ids"):
            lines = [pair[side] for pair in pairs]
            kt.SubwordTokenizer.train(lines, size + 1, model_type)


def test_each_side_has_a_size_of_its_own(capsys):
    """All words on one side, some pieces on the other; and more than there are."""
    pairs = [(f"the {animal} sleeps", f"这只{animal}睡着了") for animal in ("cat", "hen", "cow")]
    words = kt.TrainConfig(vocabulary_size=None, model_type="word", target_vocabulary_size=6)
    source, target = train_tokenizers(words, pairs)
    assert (source.vocabulary_size, target.vocabulary_size) == (4 + 5, 6)
    assert kt.UNK not in source([pair[0] for pair in pairs]).flat_values.numpy()
    pieces = kt.TrainConfig(vocabulary_size=27, model_type="wordpiece", source_vocabulary_size=99)
    source, target = train_tokenizers(pieces, pairs)
    assert isinstance(source, kt.WordPieceTokenizer) and target.vocabulary_size == 27
    limit = source.vocabulary_size
    said = f"{limit} ids instead of 99, all that the text allows"
    assert 27 < limit < 99 and said in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"at most {limit} ids"):
        kt.WordPieceTokenizer.train([pair[0] for pair in pairs], limit + 1)
