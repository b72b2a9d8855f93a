"""Scores of translations during a training that a script began with `model.fit`."""

import dataclasses
import functools
import json
import shutil

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.pairs import fingerprint
from keras_transformer.runs.run import Run
from keras_transformer.runs.validation import validate_translator
from keras_transformer.translation.corpus_scores import corpus_scores
from tests.support.paths import FIXTURES
from tests.support.toy_translator import random_translator, toy_pairs, toy_tokenizer


@pytest.fixture(scope="module")
def trained():
    """A model, its history, its losses with the running mean and without; the validation set."""
    keras.utils.set_random_seed(1)
    tokenizer, losses = toy_tokenizer(), []
    sizes = [tokenizer.vocabulary_size] * 2
    model = kt.Transformer(*sizes, 1, 32, 2, 64, dropout=0.1, max_length=12)
    optimizer = keras.optimizers.Adam(5e-3, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, kt.SmoothedCrossEntropy(), jit_compile=False)
    pairs = toy_pairs(100, seed=7)
    valid = kt.make_dataset(pairs, tokenizer, tokenizer, 512, 12, shuffle=False)

    def compare(epoch, logs):
        plain = model.evaluate(valid, verbose=0)
        with kt.ema_weights(model):
            losses.append((model.evaluate(valid, verbose=0), plain))

    scores = kt.TranslationScores(pairs, tokenizer, tokenizer, "char", batch_size=30)
    callbacks = [kt.EMAValidation(), scores, keras.callbacks.LambdaCallback(on_epoch_end=compare)]
    options = dict(epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    dataset = kt.make_dataset(toy_pairs(2000), tokenizer, tokenizer, 512, 12)
    return model, model.fit(dataset, validation_data=valid, **options).history, losses, pairs


def test_before_a_training_there_is_no_mean():
    model = kt.Transformer(9, 9, 1, 8, 2, 8)
    expected = model.get_weights()[0]
    compiled = functools.partial(model.compile, keras.optimizers.Adam(use_ema=True))
    for prepare in (lambda: None, compiled, lambda: model.optimizer.build(model.weights)):
        prepare()
        with kt.ema_weights(model):
            np.testing.assert_array_equal(model.get_weights()[0], expected)


def test_scores_are_those_of_what_the_model_translates(trained):
    """`fit` leaves the running mean in the model, which is what the callbacks scored."""
    model, history, losses, valid = trained
    sources, targets = zip(*valid, strict=True)
    outputs = kt.Translator(model, toy_tokenizer(), toy_tokenizer()).translate(sources)
    expected = corpus_scores(outputs, targets, "char")
    for name in ("bleu", "chrf"):
        assert len(history[f"val_{name}"]) == 2
        assert history[f"val_{name}"][-1] == pytest.approx(expected[name], abs=1e-5)
    assert 0 < expected["bleu"] < 100, "scores that could differ"
    for val_loss, (averaged, plain) in zip(history["val_loss"], losses, strict=True):
        assert val_loss == pytest.approx(averaged, abs=1e-6)
        assert abs(val_loss - plain) > 1e-3


def test_scores_of_a_beam(trained):
    model, _, _, valid = trained
    sources, targets = zip(*valid[:20], strict=True)
    # So unsure a model that a beam finds something else.
    random, sure = np.random.default_rng(1), model
    model = kt.Transformer.from_config(sure.get_config())
    model.set_weights([w + 0.15 * random.normal(size=w.shape) for w in sure.get_weights()])
    tokenizers = [toy_tokenizer()] * 2
    scores = kt.TranslationScores(valid[:20], *tokenizers, "char", beam_size=4)
    translator = kt.Translator(model, *tokenizers)
    translator.run_eagerly = True
    beam, greedy = (translator.translate(sources, search=kt.SearchConfig(n)) for n in (4, 1))
    of_beam, of_greedy = (corpus_scores(x, targets, "char")["bleu"] for x in (beam, greedy))
    assert of_greedy != scores.measure(model)["val_bleu"] == of_beam


def test_untrained_model_does_not_go_on_for_long():
    """As many tokens as twice the source has, at this corpus' ratio of one, and ten."""
    tokenizer, model = toy_tokenizer(), random_translator(max_length=5000).model
    for embedding in (x for x in model.weights if x.name == "embeddings"):
        rows = np.arange(tokenizer.vocabulary_size)[:, None]
        embedding.assign(embedding * (rows != kt.END))  # which never is the most probable token
    scores = kt.TranslationScores(toy_pairs(3), tokenizer, tokenizer, "char")
    scores.measure(model)
    for text in ("abc", "abcdefgh" * 4):
        source, empty = scores._translator.read_source([text])
        tokens, *_ = scores._translator.translate_ids(source, empty)
        assert tokens.shape == (1, 1, 2 * source.shape[1] + 10)


def test_run_without_its_validation_set(tmp_path, capsys):
    """No scores are better than those of another text."""
    run = shutil.copytree(FIXTURES / "format-1" / "run", tmp_path / "run")
    valid, translator = tmp_path / "valid.tsv", kt.load(run)
    texts = dict.fromkeys(("train_source", "valid_source"), str(valid))
    Run(run).write_config(dataclasses.replace(Run(run).read_config(), **texts))
    for reason in ("No file matches", "has changed"):
        assert validate_translator(Run(run), translator) == {}
        error = capsys.readouterr().err
        assert error.startswith("warning: the model was not validated: ") and reason in error
        valid.write_text("abc\tABC\n")
    (run / "data.json").write_text(json.dumps({"valid": fingerprint([("abc", "ABC")])}))
    scores = validate_translator(Run(run), translator)
    assert scores.keys() == {"val_loss", "val_bleu", "val_chrf"} and scores["val_loss"] > 0
