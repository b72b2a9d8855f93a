"""What a working Transformer must learn within a stated number of steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.train import train
from keras_transformer.translation.corpus_scores import corpus_scores
from tests.support.made_up_text import write_text
from tests.training.test_gradients import batch


def test_one_batch_is_learned_by_heart():
    """The loss falls to its floor, which label smoothing sets: the smoothed labels' entropy."""
    keras.utils.set_random_seed(1)
    model = kt.Transformer(20, 20, 1, 64, 4, 128, dropout=0.0)
    schedule = kt.WarmupInverseSqrt(peak=3e-3, warmup_steps=50)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, kt.SmoothedCrossEntropy(0.1), jit_compile=False)
    model.fit(tf.data.Dataset.from_tensors(batch(9)).repeat(200), shuffle=False, verbose=0)
    loss = model.evaluate(*batch(9), verbose=0)
    right, wrong = 0.9 + 0.1 / 20, 0.1 / 20
    floor = -right * np.log(right) - 19 * wrong * np.log(wrong)
    assert floor <= loss < floor + 0.02


@pytest.mark.slow
def test_100_pairs_are_learned_by_heart(tmp_path):
    # Random words on both sides: nothing about a target can be guessed.
    files = write_text(tmp_path, 100, seed=3, words=80, length=5)
    sizes = dict(num_layers=2, d_model=64, num_heads=4, d_ff=128, dropout=0.0, max_length=64)
    options = dict(vocabulary_size=400, model=kt.ModelConfig(**sizes, share_embeddings="all"))
    options |= dict(epochs=2, steps_per_epoch=200, tokens_per_batch=1024, validate_by="bleu")
    options |= dict(learning_rate=3e-3, warmup_steps=60, ema=0.95)
    config = kt.TrainConfig(*files, *files, **options)
    history = train(config, tmp_path / "run")
    assert history["val_bleu"][-1] >= 95
    sources, targets, *_ = zip(*kt.read_pairs(*files), strict=True)
    beam = kt.SearchConfig(beam_size=5, length_penalty=1.0)
    outputs = kt.load(tmp_path / "run").translate(sources, search=beam)
    assert corpus_scores(outputs, targets)["bleu"] >= 95
