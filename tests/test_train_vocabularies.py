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
