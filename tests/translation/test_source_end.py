"""Sources without END, as OpenNMT-tf's models read them: everywhere, or nowhere."""

import dataclasses
import pickle

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.presets import TrainConfig
from keras_transformer.runs.training_data import check_training
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import export
from keras_transformer.special_ids import END, PAD, START
from keras_transformer.tools.ctranslate2 import export_ctranslate2
from keras_transformer.train import train
from keras_transformer.translation.inspection import attention_maps
from tests.support.ctranslate2_oracle import translate_with_ctranslate2
from tests.support.reversed_text import MODEL, write_corpus
from tests.support.toy_translator import (
    MAX_LENGTH,
    SOURCES,
    toy_pairs,
    toy_tokenizer,
    trained_translator,
)

TARGETS = ["ABC", "HGF", "A", "", "BBBB", "FE", "H", "HB", "GFEDCBA", "CAFE"]


@pytest.fixture(scope="module")
def translator():
    return kt.Translator(
        trained_translator().model, toy_tokenizer(), toy_tokenizer(), source_end=False
    )


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    config = kt.ExportConfig(("score", "attention", "tokens"))
    path = export(translator, tmp_path_factory.mktemp("export"), config=config)
    return ExportedTranslator(path)


def test_sources_of_a_translator(translator):
    tokenizer = translator.source_tokenizer
    source, empty = translator.read_source(tf.constant(SOURCES + ["a" * 50]))
    rows = [row[row != PAD].tolist() for row in np.array(source)]
    for text, row in zip(SOURCES, rows, strict=False):
        assert row == (tokenizer(text).numpy().tolist() if text else [END])
    assert len(rows[-1]) == MAX_LENGTH - 1
    assert np.array(empty).tolist() == [not text for text in SOURCES] + [False]


def test_datasets_have_the_sources_of_translators(translator):
    tokenizer, pairs = toy_tokenizer(), toy_pairs(50)
    datasets = [
        kt.make_dataset(pairs, tokenizer, tokenizer, 64, MAX_LENGTH, seed=3, **options)
        for options in ({"source_end": False}, {})
    ]
    read = np.array(translator.read_source(tf.constant([pair[0] for pair in pairs]))[0])
    expected = sorted(row[row != PAD].tolist() for row in read)
    found = []
    for ((source, *targets), *labels), ((other, *more), *labelled) in zip(*datasets, strict=True):
        found += [row[row != PAD].tolist() for row in np.array(source)]
        np.testing.assert_array_equal(np.where(other == END, PAD, other), source)
        for one, two in zip([*targets, *labels], [*more, *labelled], strict=True):
            np.testing.assert_array_equal(one, two)
    assert sorted(found) == expected


def test_scores_are_those_of_sources_without_end(translator):
    model, tokenizer = translator.model, translator.target_tokenizer
    found = translator.score(SOURCES, TARGETS)
    for source, target, (log_prob, tokens) in zip(SOURCES, TARGETS, found, strict=True):
        if not source:
            continue
        ids = [*tokenizer(target).numpy().tolist(), END]
        logits = model((tokenizer([source]).to_tensor(), np.array([[START, *ids[:-1]]])))
        gains = tf.nn.log_softmax(logits[0]).numpy()[np.arange(len(ids)), ids]
        assert (tokens, log_prob) == (len(ids), pytest.approx(gains.sum(), abs=1e-4))


def test_translations_are_those_of_sources_without_end(translator):
    model, tokenizer = translator.model, translator.source_tokenizer
    for source, text in zip(SOURCES, translator.translate(SOURCES), strict=True):
        if source:
            state = model.initial_state(tokenizer([source]).to_tensor())
            tokens = kt.greedy_search(model.make_step(), state, 1, MAX_LENGTH)[0]
            assert tokenizer.detokenize(tokens)[0].numpy().decode() == text


def test_alignments_name_every_token_of_the_source(translator):
    tokenizer = translator.source_tokenizer
    aligned = translator.align(SOURCES, TARGETS)
    for source, (pieces, targets, positions) in zip(SOURCES, aligned, strict=True):
        expected = tokenizer.pieces(tokenizer(source)).numpy().tolist()
        assert [piece.encode() for piece in pieces] == expected
        assert len(positions) == len(targets)
        assert all(0 <= position < len(pieces) for position in positions)
    maps = attention_maps(translator, "abc", "AB")
    assert len(maps.source_tokens) == maps.scores["encoder"].shape[-1] == len(tokenizer("abc"))


def test_exports_answer_as_in_memory(translator, exported):
    found = translator.translate(SOURCES)
    assert exported.translate(SOURCES) == found
    assert len(set(found)) > 5 and found != trained_translator().translate(SOURCES)
    pairs = zip(exported.score(SOURCES, TARGETS), translator.score(SOURCES, TARGETS), strict=True)
    for found, expected in pairs:
        assert found == pytest.approx(expected, abs=1e-4)


def test_copies_know_of_it(translator):
    copies = translator.in_precision("mixed_bfloat16"), pickle.loads(pickle.dumps(translator))
    assert not any(copy.source_end for copy in copies)


def test_ctranslate2_agrees(translator, tmp_path):
    texts = [text for text in SOURCES if text]
    path = export_ctranslate2(translator, tmp_path / "model")
    theirs = translate_with_ctranslate2(path, texts, 1, MAX_LENGTH)
    assert [text for text, _ in theirs] == translator.translate(texts)


def test_a_run_is_trained_and_loaded_so(tmp_path):
    texts = [*write_corpus(tmp_path, 60, 1), *write_corpus(tmp_path, 20, 2)]
    config = TrainConfig(
        *texts,
        source_end=False,
        vocabulary_size=None,
        model_type="word",
        model=dataclasses.replace(MODEL, num_decoder_layers=2, first_position=1),
        epochs=1,
        steps_per_epoch=2,
        tokens_per_batch=256,
        validate_by="bleu",
    )
    output = tmp_path / "run"
    train(config, output)
    loaded = kt.load(output)
    assert not loaded.source_end and loaded.model.decoder.num_layers == 2
    assert END not in np.array(loaded.read_source(tf.constant(["ba ce"]))[0])
    for changed in ({"source_end": True}, {"model": MODEL}):
        name = next(iter(changed)) if "model" not in changed else "num_decoder_layers"
        other = dataclasses.replace(config, start_from=str(output), **changed)
        with pytest.raises(ValueError, match=f"{name} must be .* with --start-from"):
            check_training(other, tmp_path / "next")
        other = dataclasses.replace(config, **changed)
        with pytest.raises(ValueError, match=f"{name} must be .* to resume this run"):
            check_training(other, output, resume=True)
