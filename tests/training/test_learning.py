"""What a working Transformer must learn within a stated number of steps."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data.text_files import read_pairs
from keras_transformer.train import train
from keras_transformer.translation.corpus_scores import corpus_scores

VOCABULARY = 14  # four special ids and ten digits


def sequences(rows, transform, seed):
    """Source (B, 9), target_in (B, 9) and target_out (B, 9): 3 to 8 digits and what they become."""
    generator = np.random.default_rng(seed)
    source, target_in, target_out = (np.zeros((rows, 9), "int32") for _ in range(3))
    for row in range(rows):
        digits = generator.integers(4, VOCABULARY, generator.integers(3, 9))
        answer = transform(digits)
        source[row, : len(digits) + 1] = [*digits, kt.END]
        target_in[row, : len(digits) + 1] = [kt.START, *answer]
        target_out[row, : len(digits) + 1] = [*answer, kt.END]
    return (source, target_in), target_out


def reverse(digits):
    return digits[::-1]


def small_model(**options):
    keras.utils.set_random_seed(1)
    sizes = dict(num_layers=1, d_model=64, num_heads=4, d_ff=128, dropout=0.0)
    return kt.Transformer(VOCABULARY, VOCABULARY, **sizes | options)


def compile_model(model, label_smoothing, **cooldown):
    schedule = kt.WarmupInverseSqrt(peak=3e-3, warmup_steps=100, **cooldown)
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        kt.SmoothedCrossEntropy(label_smoothing),
        jit_compile=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_reversal_is_learned(norm, steps=800):
    model = small_model(norm=norm, share_embeddings="all")
    # Without a cooldown, how much is right depends on the moment at which the training stops.
    compile_model(model, 0.0, cooldown_steps=steps // 2, total_steps=steps)
    inputs, target_out = sequences(128 * steps, reverse, seed=1)
    model.fit(inputs, target_out, batch_size=128, verbose=0)

    (source, _), expected = sequences(500, reverse, seed=2)
    search = tf.function(lambda ids: kt.greedy_search(model.step, model.initial_state(ids), 500, 9))
    tokens = np.pad(search(tf.constant(source))[0].numpy(), ((0, 0), (0, 9)))[:, :9]
    right = np.mean(np.all(tokens == expected, axis=1))
    assert right >= 0.99, f"{100 * right:.1f} % of the sequences"


def test_one_batch_is_learned_by_heart():
    """The loss falls to its floor, which label smoothing sets: the smoothed labels' entropy."""
    model = small_model(share_embeddings="target")
    compile_model(model, 0.1)
    batch = sequences(16, reverse, seed=3)
    dataset = tf.data.Dataset.from_tensors(batch).repeat(300)
    model.fit(dataset, shuffle=False, verbose=0)
    loss = model.evaluate(*batch, verbose=0)
    right, wrong = 0.9 + 0.1 / VOCABULARY, 0.1 / VOCABULARY
    floor = -right * np.log(right) - (VOCABULARY - 1) * wrong * np.log(wrong)
    assert floor <= loss < floor + 0.02


# The whole path, from files to BLEU.


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
        learning_rate=3e-3,
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
