"""Sources without END, as OpenNMT-tf's models read them: everywhere, or nowhere."""

import dataclasses
import pickle
import types

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.runs.training_data import check_training
from keras_transformer.train import train
from tests.support import toy_translator as toy
from tests.support.ctranslate2_oracle import translate_with_ctranslate2
from tests.support.reversed_text import MODEL, write_corpus

TARGETS = ["ABC", "HGF", "A", "", "BBBB", "FE", "H", "HB", "GFEDCBA", "CAFE"]


@pytest.fixture(scope="module")
def translator():
    return toy.without_graphs(toy.trained_translator(), source_end=False)


def test_sources_of_a_translator_and_its_copies(translator):
    tokenizer = translator.source_tokenizer
    source, empty = translator.read_source(tf.constant(toy.SOURCES + ["a" * 50]))
    rows = [row[row != kt.PAD].tolist() for row in np.array(source)]
    for text, row in zip(toy.SOURCES, rows, strict=False):
        assert row == (tokenizer(text).numpy().tolist() if text else [kt.END])
    assert len(rows[-1]) == toy.MAX_LENGTH - 1
    assert np.array(empty).tolist() == [not text for text in toy.SOURCES] + [False]
    copies = translator.in_precision("mixed_bfloat16"), pickle.loads(pickle.dumps(translator))
    assert not any(copy.source_end for copy in copies)


def test_datasets_have_the_sources_of_translators(translator):
    pairs = toy.toy_pairs(50)
    arguments = pairs, toy.toy_tokenizer(), toy.toy_tokenizer(), 64, toy.MAX_LENGTH
    datasets = [kt.make_dataset(*arguments, seed=3, **how) for how in ({"source_end": False}, {})]
    read = np.array(translator.read_source(tf.constant([pair[0] for pair in pairs]))[0])
    expected = sorted(row[row != kt.PAD].tolist() for row in read)
    found = []
    for ((source, *targets), *labels), ((other, *more), *labelled) in zip(*datasets, strict=True):
        found += [row[row != kt.PAD].tolist() for row in np.array(source)]
        np.testing.assert_array_equal(np.where(other == kt.END, kt.PAD, other), source)
        for one, two in zip([*targets, *labels], [*more, *labelled], strict=True):
            np.testing.assert_array_equal(one, two)
    assert sorted(found) == expected


def test_scores_translations_and_alignments(translator, tmp_path):
    model, tokenizer = translator.model, translator.target_tokenizer
    found = translator.translate(toy.SOURCES)
    assert len(set(found)) > 5 and found != toy.trained_translator().translate(toy.SOURCES)
    scores, aligned = translator.score(toy.SOURCES, TARGETS), translator.align(toy.SOURCES, TARGETS)
    for source, target, score, (pieces, targets, positions) in zip(
        toy.SOURCES, TARGETS, scores, aligned, strict=True
    ):
        assert "".join(pieces) == (f"▁{source}" if source else "")
        assert len(positions) == (len(targets) if source else 0)
        assert all(0 <= position < len(pieces) for position in positions)
        if source:
            ids = [*tokenizer(target).numpy().tolist(), kt.END]
            logits = model((tokenizer([source]).to_tensor(), np.array([[kt.START, *ids[:-1]]])))
            gains = tf.nn.log_softmax(logits[0]).numpy()[np.arange(len(ids)), ids]
            assert score == (pytest.approx(gains.sum(), abs=1e-4), len(ids))
    maps = kt.attention_maps(translator, "abc", "AB")
    assert len(maps.source_tokens) == maps.scores["encoder"].shape[-1] == len(tokenizer("abc"))
    path = kt.export_ctranslate2(translator, tmp_path / "model")
    texts, expected = zip(*[x for x in zip(toy.SOURCES, found, strict=True) if x[0]], strict=True)
    theirs = translate_with_ctranslate2(path, list(texts), 1, toy.MAX_LENGTH)
    assert [text for text, _ in theirs] == list(expected)


def test_signatures_answer_as_the_translator_does(translator):
    config = kt.ExportConfig(signatures=("tokens",), max_output_length=toy.MAX_LENGTH)
    found = toy.serve_eagerly(translator, config, "serving_default", text=np.array(toy.SOURCES))
    expected = translator.translate(toy.SOURCES)
    assert found["text"] == expected
    ids = translator.source_tokenizer(toy.SOURCES).to_tensor().numpy()
    found = toy.serve_eagerly(translator, config, "tokens", ids=ids)["ids"]
    texts = translator.target_tokenizer.detokenize(found).numpy()
    assert [text.decode() for text in texts] == expected


def test_a_run_is_trained_and_loaded_so(tmp_path, monkeypatch):
    texts = [*write_corpus(tmp_path, 60, 1), *write_corpus(tmp_path, 20, 2)]
    sizes = dict(vocabulary_size=None, model_type="word", tokens_per_batch=256, model=MODEL)
    config = kt.TrainConfig(*texts, source_end=False, strategy="one", **sizes)
    output, batches = tmp_path / "run", []

    def fit(model, dataset, validation_data, **_):
        batches.extend(next(iter(data)) for data in (dataset, validation_data))
        Run(output).write_model(model, {})
        return types.SimpleNamespace(history={})

    monkeypatch.setattr(kt.Transformer, "fit", fit)
    train(config, output)
    for (sources, _), targets in batches:
        assert kt.END in np.array(targets) and kt.END not in np.array(sources)
    assert not kt.load(output).source_end
    other = dataclasses.replace(config, source_end=True)
    with pytest.raises(ValueError, match="source_end.* must be .* to resume this run"):
        check_training(other, output, resume=True)
    other = dataclasses.replace(other, start_from=str(output))
    with pytest.raises(ValueError, match="source_end.* must be .* with --start-from"):
        check_training(other, tmp_path / "next")
