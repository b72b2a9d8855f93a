"""Small real translators: one that has half learned to write capitals, and random ones."""

import functools

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.serving.served_translator import functions_of, run_signature

MAX_LENGTH = 12
SIZES = dict(num_layers=1, d_model=32, num_heads=2, d_ff=64, dropout=0.0, max_length=MAX_LENGTH)
SOURCES = ["abc", "hgf", "a", "", "bbbbbbb", "fedcba", "hhhagg", "hb", "abcdefg", "cafe"]


def toy_pairs(count=3000, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 8, count)
    words = ["".join(generator.choice(list("abcdefgh"), length)) for length in lengths]
    return [(word, word.upper()) for word in words]


@functools.cache
def toy_tokenizer(**options):
    """Characters, small and capital, and bytes."""
    return kt.SubwordTokenizer.train(["abcdefgh", "ABCDEFGH"], model_type="char", **options)


@functools.cache
def trained_translator():
    """A translator that stops at several lengths, seldom right: do not change its weights."""
    keras.utils.set_random_seed(1)
    tokenizer = toy_tokenizer()
    size = tokenizer.vocabulary_size
    model = kt.Transformer(size, size, share_embeddings="all", **SIZES)
    model.compile(optimizer=keras.optimizers.Adam(5e-3), loss=kt.SmoothedCrossEntropy(0.0))
    dataset = kt.make_dataset(toy_pairs(), tokenizer, tokenizer, 512, max_length=MAX_LENGTH)
    model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    return kt.Translator(model, tokenizer, tokenizer)


def random_translator(*tokenizers, seed=0, deviation=0.4, **options):
    """Weights are so large that answers differ. Tokenizers: of both sides, or one, or the toy's."""
    first, *others = tokenizers or [toy_tokenizer()]
    sides = first, others[0] if others else first
    model = kt.Transformer(*(side.vocabulary_size for side in sides), **(SIZES | options))
    model.build()
    generator = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        if weight.name not in ("gamma", "beta"):
            weight.assign(generator.normal(0, deviation, weight.shape))
    return kt.Translator(model, *sides)


def serve_eagerly(translator, config, signature, **inputs):
    """What a signature of its export answers; a graph would take longer to make."""
    tf.config.run_functions_eagerly(True)
    try:
        return run_signature(functions_of(translator, config)[1], signature, inputs)
    finally:
        tf.config.run_functions_eagerly(False)


def without_graphs(translator, **options):
    """The same translator, which computes eagerly: graphs would take longer to make."""
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    twin = kt.Translator(translator.model, *tokenizers, **options)
    twin.run_eagerly = True
    return twin


def save_run(translator, folder):
    """Writes what of a run directory is needed to translate; of one tokenizer for both sides."""
    translator.model.save(folder / "model.keras")
    for side in ("source", "target"):
        translator.source_tokenizer.save(folder / f"{side}.spm")
