"""Scores of translations during a training that a script began with `model.fit`."""

import dataclasses
import json
import shutil
import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.pairs import fingerprint
from keras_transformer.runs.run import Run
from keras_transformer.runs.validation import validate_translator
from keras_transformer.translation.corpus_scores import corpus_scores
from tests.support import child_process
from tests.support.paths import FIXTURES
from tests.support.toy_translator import toy_pairs, toy_tokenizer


@pytest.fixture(scope="module")
def trained():
    """A model after three epochs of `fit` with the callback, its history, and the pairs."""
    keras.utils.set_random_seed(1)
    tokenizer = toy_tokenizer()
    size = tokenizer.vocabulary_size
    model = kt.Transformer(size, size, 1, 32, 2, 64, dropout=0.1, max_length=12)
    model.compile(
        keras.optimizers.Adam(5e-3, use_ema=True, ema_momentum=0.9),
        kt.SmoothedCrossEntropy(),
        jit_compile=False,
    )
    valid = toy_pairs(100, seed=7)
    scores = kt.TranslationScores(valid, tokenizer, tokenizer, "char", batch_size=30)
    history = model.fit(
        kt.make_dataset(toy_pairs(4000), tokenizer, tokenizer, 512, 12),
        epochs=3,
        shuffle=False,
        callbacks=[scores],
        verbose=0,
    )
    return model, history.history, valid


def test_scores_are_those_of_the_sacrebleu_command(trained, tmp_path):
    """`fit` leaves the running mean in the model, which is what the callback scored."""
    model, history, valid = trained
    assert len(history["val_bleu"]) == len(history["val_chrf"]) == 3
    translator = kt.Translator(model, toy_tokenizer(), toy_tokenizer())
    outputs = translator.translate([source for source, _ in valid])
    (tmp_path / "out").write_text("\n".join(outputs) + "\n")
    (tmp_path / "ref").write_text("\n".join(target for _, target in valid) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "out", "-m", "bleu", "chrf", "-b"]
    command += ["-tok", "char", "-w", "6", "--force"]
    result = child_process.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = [float(line.strip(" [],")) for line in result.stdout.split() if line.strip(" [],")]
    assert history["val_bleu"][-1] == pytest.approx(expected[0], abs=1e-5)
    assert history["val_chrf"][-1] == pytest.approx(expected[1], abs=1e-5)
    assert 0 < history["val_bleu"][-1] < 100, "scores that could differ"


def test_scores_of_a_beam(trained):
    model, _, valid = trained
    sources, targets = zip(*valid[:20], strict=True)
    # So unsure a model that a beam finds something else.
    random, sure = np.random.default_rng(1), model
    model = kt.Transformer.from_config(sure.get_config())
    model.set_weights([w + 0.15 * random.normal(size=w.shape) for w in sure.get_weights()])
    scores = kt.TranslationScores(valid[:20], toy_tokenizer(), toy_tokenizer(), "char", beam_size=4)
    translator = kt.Translator(model, toy_tokenizer(), toy_tokenizer())
    translator.run_eagerly = True
    beam, greedy = (translator.translate(sources, search=kt.SearchConfig(n)) for n in (4, 1))
    of_beam, of_greedy = (corpus_scores(x, targets, "char")["bleu"] for x in (beam, greedy))
    assert of_greedy != scores.measure(model)["val_bleu"] == of_beam


def test_untrained_model_does_not_go_on_for_long():
    """As many tokens as twice the source has, at this corpus' ratio of one, and ten."""
    tokenizer = toy_tokenizer()
    size = tokenizer.vocabulary_size
    model = kt.Transformer(size, size, 1, 8, 2, 16, max_length=5000)
    model.build()
    for embedding in {id(x): x for x in model.weights if x.name == "embeddings"}.values():
        value = embedding.numpy()
        value[kt.END] = 0.0  # which never is the most probable token
        embedding.assign(value)
    scores = kt.TranslationScores(toy_pairs(3), tokenizer, tokenizer, "char")
    scores.measure(model)
    for text in ("abc", "abcdefgh" * 4):
        source, empty = scores._translator.read_source([text])
        tokens, *_ = scores._translator.translate_ids(source, empty)
        assert tokens.shape == (1, 1, 2 * source.shape[1] + 10)


def test_validation_uses_the_running_mean():
    keras.utils.set_random_seed(1)
    model = kt.Transformer(9, 9, 1, 8, 2, 16, dropout=0.0)
    model.compile(
        keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9),
        kt.SmoothedCrossEntropy(0.0),
        jit_compile=False,
    )
    ids = np.array([[4, 5, 6, 3], [7, 8, 3, 0]])
    losses = []

    class Compare(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            plain = self.model.evaluate((ids, ids), ids, verbose=0)
            with kt.ema_weights(self.model):
                averaged = self.model.evaluate((ids, ids), ids, verbose=0)
            losses.append((logs["val_loss"], averaged, plain))

    validation = ((ids, ids), ids)
    callbacks = [kt.EMAValidation(), Compare()]
    options = dict(validation_data=validation, callbacks=callbacks, verbose=0)
    model.fit((ids, ids), ids, epochs=6, **options)
    for val_loss, averaged, plain in losses[1:]:
        assert val_loss == pytest.approx(averaged, abs=1e-6)
        assert abs(val_loss - plain) > 1e-3


def test_run_without_its_validation_set(tmp_path, capsys):
    """No scores are better than those of another text."""
    run = shutil.copytree(FIXTURES / "format-1" / "run", tmp_path / "run")
    valid, translator = tmp_path / "valid.tsv", kt.load(run)
    texts = dict.fromkeys(("train_source", "valid_source"), str(valid))
    config = dataclasses.replace(Run(run).read_config(), **texts)
    Run(run).write_config(config)
    for reason in ("No file matches", "has changed"):
        assert validate_translator(Run(run), translator) == {}
        error = capsys.readouterr().err
        assert error.startswith("warning: the model was not validated: ") and reason in error
        valid.write_text("abc\tABC\n")
    (run / "data.json").write_text(json.dumps({"valid": fingerprint([("abc", "ABC")])}))
    scores = validate_translator(Run(run), translator)
    assert scores.keys() == {"val_loss", "val_bleu", "val_chrf"} and scores["val_loss"] > 0
