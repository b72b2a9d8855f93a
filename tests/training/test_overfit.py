"""The whole path, from files to BLEU: 200 pairs that can only be learned by heart."""

import random

import pytest

import keras_transformer as kt
from keras_transformer.data.text_files import read_pairs
from keras_transformer.train import train
from keras_transformer.translation.corpus_scores import corpus_scores


def write_pairs(folder):
    """Random words on both sides: nothing about a target can be guessed."""
    chooser = random.Random(3)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(chooser.choices(syllables, k=chooser.randint(1, 3))) for _ in range(80)]
    paths = [str(folder / name) for name in ("source", "target")]
    for path in paths:
        lines = [" ".join(chooser.choices(words, k=chooser.randint(5, 9))) for _ in range(200)]
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return paths


@pytest.mark.slow
def test_200_pairs_are_learned_by_heart(tmp_path):
    """95 BLEU within 500 updates, with a greedy search and with a beam."""
    files = write_pairs(tmp_path)
    sizes = dict(num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.0, max_length=48)
    config = kt.TrainConfig(
        *files,
        *files,
        vocabulary_size=400,
        model=kt.ModelConfig(**sizes, share_embeddings="all"),
        epochs=5,
        steps_per_epoch=100,
        tokens_per_batch=2048,
        label_smoothing=0.1,
        peak=3e-3,
        warmup_steps=100,
        ema=0.95,
        validate_by="bleu",
    )
    history = train(config, tmp_path / "run")
    assert history["val_bleu"][-1] >= 95
    pairs = read_pairs(*files)
    translator = kt.load(tmp_path / "run")
    beam = kt.SearchConfig(beam_size=5, length_penalty=1.0)
    outputs = translator.translate([pair[0] for pair in pairs], search=beam)
    assert corpus_scores(outputs, [pair[1] for pair in pairs])["bleu"] >= 95
