"""Ensembles: the mean of probabilities, in every search, in memory and exported."""

import functools
import math
import pickle
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import ExportConfig, SearchConfig, Transformer, Translator, load
from keras_transformer.decoding import search
from keras_transformer.presets import TrainConfig
from keras_transformer.runs import opening
from keras_transformer.runs.run import Run
from keras_transformer.serving.versions import describe
from keras_transformer.special_ids import END, START
from keras_transformer.tools.ctranslate2 import export_ctranslate2
from keras_transformer.translation.ensemble import Ensemble
from tests.support import toy_translator as toy
from tests.support.command_line import refused, succeeds
from tests.support.layer_harness import randomize
from tests.support.toy_steps import hypotheses, log_softmax, reference_beam, same

SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 16, "max_length": 9}
SOURCE = np.array([[4, 5, 6, END], [6, 7, END, 0]])


@pytest.fixture(scope="module")
def models():
    options = {"num_layers": 1}, {"num_layers": 2, "norm": "pre"}, {"num_decoder_layers": 1}
    kinds = {"positions": "rotary"}, {"share_embeddings": "target"}, {"suppress_ids": True}
    models = [Transformer(9, 7, **SIZES, **a, **b) for a, b in zip(options, kinds, strict=True)]
    for seed, model in enumerate(models):
        randomize(model, seed)
    models[2].suppressed.assign([-1e9, 0, -1e9, 0, 0, -3.0, 0])
    return models


@pytest.fixture(scope="module")
def translators():
    return [toy.random_translator(seed=seed, num_layers=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def together(translators):
    first = translators[0]
    models = [translator.model for translator in translators]
    translator = Translator(models, first.source_tokenizer, first.target_tokenizer)
    translator.run_eagerly = True
    return translator


@pytest.fixture(scope="module")
def runs(translators, tmp_path_factory):
    folders = [tmp_path_factory.mktemp("run") for _ in translators]
    for translator, folder in zip(translators, folders, strict=True):
        toy.save_run(translator, folder)
    return folders


def mean_log_probs(models, row, tokens):
    inputs = SOURCE[row : row + 1], np.array([[START, *tokens]])
    logits = [model.suppress(model(inputs))[0, -1] for model in models]
    return np.log(np.mean([np.exp(log_softmax(x)) for x in logits], axis=0))


# Greedy, beam, and as wide as there are ids, so that nothing of two steps is left out.
@pytest.mark.parametrize("beam_size, length", [(1, 3), (3, 3), (7, 2)])
def test_mean_of_probabilities(models, beam_size, length):
    model = Ensemble(models)
    arguments = model.make_step(), model.initial_state(tf.constant(SOURCE)), 2, length
    how = {"length_penalty": 0.6, "beam_patience": math.inf, "length_norm": "gnmt"}
    found = hypotheses(*search(*arguments, SearchConfig(beam_size, **how)))
    for row in range(2):
        follow = functools.partial(mean_log_probs, models, row)
        kept = 1000 if beam_size == 7 else beam_size  # by brute force
        same([found[row]], [reference_beam(follow, length, kept, **how, prefix=[])[:beam_size]])


def test_logits_are_those_of_steps_and_attention_of_the_first(models):
    model, target = Ensemble(models), np.array([[START, 4, 5, 6], [START, 6, END, 0]])
    logits, scores = model((SOURCE, target), return_attention_scores=True)
    tf.debugging.assert_near(logits, model((SOURCE, target)), atol=1e-6)
    np.testing.assert_allclose(np.sum(np.exp(logits), axis=-1), 1.0, rtol=1e-5)
    at_once, _ = model.make_step()(target, 0, model.initial_state(SOURCE))
    tf.debugging.assert_near(at_once, logits, atol=1e-5)
    _, expected = models[0]((SOURCE, target), return_attention_scores=True)
    tf.nest.map_structure(tf.debugging.assert_equal, scores, expected)


def test_one_is_itself_and_copies_are_too(translators):
    first, tokenizers = translators[0], [toy.toy_tokenizer()] * 2
    assert Translator([first.model], *tokenizers).model is first.model
    thrice = Translator([first.model] * 3, *tokenizers)
    copies, eager = toy.without_graphs(thrice), toy.without_graphs(first)
    for options in ({}, {"beam_size": 3}, {"sample": True, "seed": 2}):
        found, expected = (x.translate_n_best(toy.SOURCES, **options) for x in (copies, eager))
        texts, values = (
            [[h[i] for row in x for h in row] for x in (found, expected)] for i in (0, 1)
        )
        assert texts[0] == texts[1] and values[0] == pytest.approx(values[1], abs=1e-5)


def test_what_a_translator_does_with_several(together, translators):
    texts, targets = ["abc", "hgf"], ["AB", "H"]
    found = together.translate(texts, beam_size=2, prefixes=targets)
    assert [text[: len(x)] for text, x in zip(found, targets, strict=True)] == targets
    each = [toy.without_graphs(one).score(texts, targets) for one in translators]
    scores = together.score(texts, targets)
    assert [count for _, count in scores] == [x[1] for x in each[0]]
    assert min(x[0][0] for x in each) < scores[0][0] < max(x[0][0] for x in each)
    first = toy.without_graphs(translators[0])
    assert together.align(texts, targets) == first.align(texts, targets)
    again = pickle.loads(pickle.dumps(together))
    again.run_eagerly = True
    assert again.score(texts, targets) == scores
    half = together.in_precision("mixed_bfloat16")
    assert {one.dtype_policy.name for one in half.model.models} == {"mixed_bfloat16"}
    assert half.in_precision("mixed_bfloat16") is half


def test_export_is_in_memory(together):
    odd = np.arange(together.target_tokenizer.vocabulary_size, dtype="float32") % 2
    how = dict(logits_processors=(lambda x, *_: x - 9 * odd,), min_length=3, no_repeat_ngram_size=2)
    config = ExportConfig(beam_size=3, **how)
    reply = toy.serve_eagerly(together, config, "beam", text=toy.SOURCES)
    expected = together.translate_n_best(toy.SOURCES, search=SearchConfig(3, **how))
    assert reply["text"] == [[h.text for h in row] for row in expected]
    reply = toy.serve_eagerly(together, config, "serving_default", text=toy.SOURCES)
    assert reply["text"] == together.translate(toy.SOURCES, search=SearchConfig(**how))
    card = describe(together, lambda *_: {}, [], config, [])
    assert [x["num_layers"] for x in card["ensemble"]] == [1, 2, 3]
    assert card["parameters"] == together.model.count_params()


def test_commands(runs, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)
    monkeypatch.setattr(Translator, "run_eagerly", True)
    expected = load(runs).translate_n_best(["abc", "b"], beam_size=2, n_best=1)
    done = succeeds("translate", *runs, "--beam-size", "2", stdin=b"abc\nb\n")
    assert done.stdout.decode().split("\n") == [*(row[0].text for row in expected), ""]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("abc\tAB\n")
    (score,) = load(runs).score(["abc"], ["AB"])
    done = succeeds("score", *runs, "--source", pairs)
    assert done.stdout.decode() == f"{score[0]:.6f}\t{score[1]}\n"
    done = succeeds("evaluate", *runs, "--source", pairs, "--compare", runs[0])
    assert "TER: " in done.stdout.decode()
    assert "in the ensemble" not in caplog.text
    opening.Opened([runs[0], runs[1], runs[0]])
    assert f"{runs[0]} counts 2 times in the ensemble" in caplog.text


def test_what_is_no_ensemble(models, translators, runs, tmp_path):
    with pytest.raises(ValueError, match="Expected a model or several, received none"):
        Translator([], None, None)
    with pytest.raises(ValueError, match="Expected a run directory, or several, received none"):
        load([])
    with pytest.raises(ValueError, match=r"same vocabularies, received models of \(9, 7\) and \(9"):
        Ensemble([models[0], Transformer(9, 8, num_layers=1, **SIZES)])
    folder = shutil.copytree(runs[1], tmp_path / "other")
    (folder / "target.spm").write_bytes((folder / "target.spm").read_bytes() + b"\x10\x02")
    refused(["translate", runs[0], folder], "has other vocabularies than")
    shutil.copytree(runs[1], folder, dirs_exist_ok=True)
    Run(folder).write_config(TrainConfig(source_end=False))
    refused(["translate", runs[0], folder], "has other tokens around sources than")
    export = tmp_path / "1"
    export.mkdir()
    (export / "saved_model.pb").touch()
    refused(["translate", runs[0], export], f"{export} is a SavedModel: an ensemble consists of")
    tokenizers = translators[0].source_tokenizer, translators[0].target_tokenizer
    several = Translator([one.model for one in translators], *tokenizers)
    with pytest.raises(ValueError, match="CTranslate2 has no ensembles"):
        export_ctranslate2(several, tmp_path / "ct2")
    assert keras.saving.get_registered_object("keras_transformer>Ensemble") is Ensemble
