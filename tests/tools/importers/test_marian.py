"""Native Marian models compute what CTranslate2 computes; and which are refused."""

import os

import ctranslate2
import ctranslate2.converters.marian as converter
import numpy as np
import pytest
import sentencepiece
import yaml

import keras_transformer as kt
from keras_transformer.presets.languages import Languages
from keras_transformer.tools.importers.importing import read_source
from tests.support.layer_harness import assert_equal
from tests.support.marian_models import OPTIONS, SIDES, TAGS, read_pieces, train_spm, write_native
from tests.tools.importers.conftest import refused, weights_of


def marian_positions(dim, num_positions=2048):
    """Marian's formula, which is not the one that CTranslate2 writes."""
    rates = np.exp(np.arange(dim // 2) * -(np.log(10000.0) / (dim // 2 - 1)))
    angles = np.arange(num_positions)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


@pytest.mark.parametrize("how", [{}, dict(separate=True), dict(separate=True, tied=False)], ids=str)
def test_native_models_score_as_ctranslate2_does(how, tmp_path, monkeypatch):
    folder = write_native(tmp_path / "opus", **how)
    kt.import_model(folder, tmp_path / "run")
    translator = kt.load(tmp_path / "run", "float32")
    monkeypatch.setattr(converter, "_make_sinusoidal_position_encodings", marian_positions)
    vocabularies = [str(folder / f"opus.{side}.vocab.yml") for side in SIDES]
    marian = converter.MarianConverter(str(folder / "model.npz"), vocabularies)
    load = marian._load

    def load_with_epsilon():
        spec = load()
        spec.config.add_attribute("layer_norm_epsilon", 1e-6)
        return spec

    monkeypatch.setattr(marian, "_load", load_with_epsilon)
    marian.convert(str(tmp_path / "ct2"))
    oracle = ctranslate2.Translator(str(tmp_path / "ct2"), "cpu")
    texts = ["A man in a hat.", "Two dogs, late!"], ["Ein Mann mit Hut", "Leute, die Sonne!"]
    spm = [sentencepiece.SentencePieceProcessor(model_proto=train_spm(side)) for side in SIDES]
    pieces = [x.encode(y, out_type=str) for x, y in zip(spm, texts, strict=True)]
    # CTranslate2 suppresses rows of zeros only: PAD, START, and pieces that the vocabulary lacks.
    suppressed = translator.model.suppressed.numpy()
    assert suppressed[kt.UNK] < 0
    suppressed[kt.UNK] = 0.0
    translator.model.suppressed.assign(suppressed)
    translator.run_eagerly = True
    expected = [sum(x.log_probs) for x in oracle.score_batch(*pieces)]
    translator.languages = Languages()  # whose tokens the oracle does not know
    found = [value for value, _ in translator.score(*texts)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_lists_of_the_tatoeba_challenge(tmp_path):
    one = write_native(tmp_path / "yml", separate=True)
    how = dict(separate=True, vocabularies="lists")
    moved = {"vocabs": [f"/home/{end}/opus.{end}.vocab" for end in ("src", "trg")]}
    other = write_native(tmp_path / "lists", **how, decoder=moved)
    for side, end in zip(SIDES, ("src", "trg"), strict=True):
        os.rename(other / f"opus.{side}.lists", other / f"opus.{end}.vocab")
    expected = read_source(one)
    assert expected.source.tags == TAGS and expected.source != expected.target
    assert_equal(weights_of(other), weights_of(one))
    for name in ("._model.npz", "._opus.source.vocab.yml"):  # of macOS
        (other / name).write_bytes(b"\0\5\x16\7")
    (other / "decoder.yml").unlink()
    found = read_source(other)
    assert (found.source, found.target) == (expected.source, expected.target)
    assert (found.imported.beam_size, found.imported.length_penalty) == (6, 0)


def test_vocabularies_of_marian_itself(tmp_path):
    folder = write_native(tmp_path / "opus", separate=True, vocabularies="spm")
    assert weights_of(folder)
    sides = read_source(folder).source, read_source(folder).target
    assert [x.pieces for x in sides] == [read_pieces(train_spm(side)) for side in SIDES]
    assert all(x.plain for x in sides)


def test_search_of_marian(tmp_path):
    options = {"output-sampling": ["topk", "10"], "allow-unk": True, "beam-size": 3, "normalize": 2}
    folder = write_native(tmp_path / "opus", decoder=options)
    model = read_source(folder)
    assert model.notes == ["output-sampling ['topk', '10'] of the configuration is ignored."]
    assert (model.imported.beam_size, model.imported.length_penalty) == (3, 2)
    assert model.target.suppressed == frozenset()
    folder = write_native(tmp_path / "opus", decoder={"normalize": None})
    assert read_source(folder).imported.length_penalty == 0


def test_unsupported_models(tmp_path):
    for changes, message in (
        ({"type": "s2s"}, "type must be 'transformer'"),
        ({"transformer-decoder-autoreg": "average-attention"}, "decoder-autoreg must be"),
        ({"transformer-ffn-depth": 1}, "transformer-ffn-depth must be 2"),
        ({"transformer-decoder-dim-ffn": 48}, "transformer-decoder-dim-ffn must be 0 or 24"),
        ({"transformer-postprocess": "da"}, "transformer-postprocess must be 'dan'"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb must be"),
        ({"transformer-something-new": "x"}, "transformer-something-new must be"),
        ({"factors-dim-emb": 8}, "factors-dim-emb must be 0"),
        ({"right-left": True}, "right-left must be false"),
        ({"transformer-heads": 3}, "num_heads must divide"),
        ({"dec-depth": 2}, "lacks decoder_l2"),
    ):
        content = np.frombuffer(yaml.safe_dump(OPTIONS | changes).encode() + b"\0", "int8")
        refused(write_native(tmp_path, tensors={"special:model.yml": content}), message)


def test_unsupported_decoders(tmp_path):
    for decoder, message in (
        ({"word-penalty": 0.5}, "word-penalty must be"),
        ({"models": ["a.npz", "b.npz"]}, "copy one of them into a new folder, with"),
        ({"vocabs": ["a.vocab"]}, "must have a vocabulary for source and target"),
        ({"vocabs": 7}, "has an option or a tensor of another form"),
        ({"beam-size": 0}, "beam_size must be"),
    ):
        refused(write_native(tmp_path, decoder=decoder), message)


def test_tensors_that_do_not_fit(tmp_path):
    for name, value, message in (
        ("decoder_l1_self_extra", np.ones((4, 4)), "has decoder_l1_self_extra"),
        ("encoder_l1_self_Wq", np.full((16, 16), np.nan), "not finite"),
        ("encoder_l1_self_Wq", np.ones((16, 8)), "must have the shape [16, 16]"),
    ):
        refused(write_native(tmp_path, tensors={name: value.astype("float32")}), message)
