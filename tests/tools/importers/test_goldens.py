"""Imported models compute what transformers and CTranslate2 compute."""

import ctranslate2
import ctranslate2.converters.marian as converter
import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.tools.importers.hugging_face import read_hugging_face
from keras_transformer.tools.importers.vocabularies import Vocabulary, rewrite
from keras_transformer.tools.importers.weights import load_weights, resolve_sharing
from tests.support import marian_models, parity_marian
from tests.support.marian_models import FOLDER, make_vocabulary, train_spm, write_native

LINES = ["A man in an orange hat.", "Two dogs, late!", "", "  é 漢 x ", "People are fixing."]


@pytest.mark.parametrize("name", parity_marian.FIXTURES)
def test_what_transformers_computes(name, tmp_path):
    figures = parity_marian.compare(FOLDER / name, tmp_path / "run", patience=float("inf"))
    lines = figures["lines"]
    assert figures["logits"] < 1e-5
    assert figures["ids"] == figures["greedy"] == lines
    for beam in ("beam 4", "beam 6"):
        # transformers stops earlier, and leaves out ends below its beam's best.
        assert figures[f"{beam} worse"] == 0 and figures[beam] > lines / 2


def make_transformer(model):
    """A model in memory, and its logits."""
    config = resolve_sharing(model)
    sides = rewrite(model.source, model.target)
    transformer = kt.Transformer(*(len(x.rows) for x in sides), **vars(config))
    transformer.build()
    load_weights(transformer, model, *sides)
    random = np.random.default_rng(0)
    source = random.integers(4, len(model.source.pieces), (3, 9))
    target = random.integers(4, len(model.target.pieces), (3, 7))
    return np.array(transformer((source, target)))


def layer_tensors():
    """A name for each kind of tensor of the fixture `untied`."""
    kinds = [f"{x}.{y}" for x in ("fc1", "fc2", "final_layer_norm") for y in ("weight", "bias")]
    for part in ("self_attn", "encoder_attn"):
        # A bias of the keys shifts all scores of a query alike: softmax does not depend on it.
        kinds += [f"{part}.{x}_proj.{y}" for x in "qvk" for y in ("weight", "bias")][:-1]
        kinds += [f"{part}.out_proj.weight", f"{part}.out_proj.bias"]
        kinds += [f"{part}_layer_norm.weight", f"{part}_layer_norm.bias"]
    names = [f"model.decoder.layers.0.{kind}" for kind in kinds]
    names += [f"model.encoder.layers.1.{kind}" for kind in kinds if "encoder_attn" not in kind]
    names += [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
    return [*names, "lm_head.weight", "final_logits_bias"]


@pytest.fixture(scope="module")
def untied():
    model = read_hugging_face(FOLDER / "untied")
    return model, make_transformer(model)


def changed(untied, **tensors):
    """How much the logits move with other tensors."""
    model, before = untied
    original = dict(model.tensors)
    for name, array in tensors.items():
        model.tensors[name] = array
    try:
        return np.abs(make_transformer(model) - before).max()
    finally:
        model.tensors.clear()
        model.tensors.update(original)


@pytest.mark.parametrize("name", layer_tensors())
def test_every_kind_of_tensor_matters(name, untied):
    array = untied[0].tensors[name]
    assert changed(untied, **{name: np.zeros_like(array)}) > 1e-3
    order = np.random.default_rng(1).permutation(array.shape[-1])
    assert changed(untied, **{name: array[..., order]}) > 1e-3


@pytest.mark.parametrize("part", ["self_attn", "encoder_attn"])
def test_query_and_key_are_not_swapped(part, untied):
    names = [f"model.decoder.layers.0.{part}.{x}_proj.weight" for x in "qk"]
    query, key = (untied[0].tensors[name] for name in names)
    assert changed(untied, **{names[0]: key, names[1]: query}) > 1e-3


# --- native ---


def marian_positions(dim, num_positions=2048):
    """Marian's formula, which is not the one that CTranslate2 writes."""
    rates = np.exp(np.arange(dim // 2) * -(np.log(10000.0) / (dim // 2 - 1)))
    angles = np.arange(num_positions)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def _only_rows_of_zeros(translator):
    """PAD, START and pieces that the vocabulary lacks are not there in CTranslate2's softmax."""
    suppressed = translator.model.suppressed.numpy()
    suppressed[kt.UNK] = 0.0
    return suppressed


@pytest.mark.parametrize(
    "how", [{}, {"separate": True}, {"separate": True, "tied-embeddings": False}], ids=str
)
def test_native_models_score_as_ctranslate2_does(how, tmp_path, monkeypatch):
    folder = write_native(tmp_path / "opus", **how)
    kt.import_model(folder, tmp_path / "run")
    translator = kt.load(tmp_path / "run", "float32")
    monkeypatch.setattr(converter, "_make_sinusoidal_position_encodings", marian_positions)
    vocabularies = [str(folder / f"opus.{side}.vocab.yml") for side in marian_models.SIDES]
    marian = converter.MarianConverter(str(folder / "model.npz"), vocabularies)
    load = marian._load

    def load_with_epsilon():
        spec = load()
        spec.config.add_attribute("layer_norm_epsilon", 1e-6)
        return spec

    monkeypatch.setattr(marian, "_load", load_with_epsilon)
    marian.convert(str(tmp_path / "ct2"))
    oracle = ctranslate2.Translator(str(tmp_path / "ct2"), "cpu")
    sources, targets = LINES[:2], ["Ein Mann mit Hut", "Leute, die Sonne!"]
    spm = [
        sentencepiece.SentencePieceProcessor(model_proto=train_spm(side))
        for side in marian_models.SIDES
    ]
    pieces = [x.encode(y, out_type=str) for x, y in zip(spm, (sources, targets), strict=True)]
    # CTranslate2 suppresses nothing in scores.
    translator.model.suppressed.assign(_only_rows_of_zeros(translator))
    expected = [sum(x.log_probs) for x in oracle.score_batch(*pieces)]
    found = [value for value, _ in translator.score(sources, targets)]
    np.testing.assert_allclose(found, expected, atol=1e-4)


# --- vocabularies ---


@pytest.mark.parametrize("kind", ["unigram", "bpe", "bytes"])
@pytest.mark.parametrize("style", ["opus", "tc-big"])
def test_segmentation_is_that_of_the_original(kind, style):
    options = dict(size=110, kind=kind, rule="nmt_nfkc")
    if kind == "bytes":  # to which unknown characters fall back, also those of the other side
        options |= dict(size=366, kind="unigram", byte_fallback=True)
    models = [train_spm(side, **options) for side in marian_models.SIDES]
    pieces = make_vocabulary(*models, style=style)
    ids = {piece: id for id, piece in enumerate(pieces)}
    pad, unk, end = ids["<pad>"], ids["<unk>"], ids["</s>"]
    sides = [Vocabulary(pieces, pad, unk, pad, end, frozenset(), model) for model in models]
    lines = [*marian_models.SENTENCES["source"], *marian_models.SENTENCES["target"], *LINES]
    lines += parity_marian.numbered_lines(100) + ["ﬁne ２ ½ … „x“", "Zügen 漢 é"]
    for side, rewritten in zip(sides, rewrite(*sides), strict=True):
        tokenizer = kt.SubwordTokenizer(rewritten.model)
        original = sentencepiece.SentencePieceProcessor(model_proto=side.model)
        known = set(marian_models.read_pieces(side.model))
        cut = original.encode(lines, out_type=str)
        # Several unknown characters in a row are one piece there; such lines may differ.
        plain = [all(len(x) == 1 or x in known for x in row) for row in cut]
        assert all(plain) or kind != "bytes"
        assert sum(plain) > len(lines) / 2
        found = [rewritten.rows[row].tolist() for row in tokenizer(lines).to_list()]
        expected = [[ids.get(piece, unk) for piece in row] for row in cut]
        for row, other, same in zip(found, expected, plain, strict=True):
            assert row == other or not same
        assert rewritten.suppressed.sum() > 2  # those that the vocabulary lacks
        texts = tokenizer.detokenize(tokenizer(["A dog  in the snow."])).numpy()
        assert texts[0].decode() == "A dog in the snow." or side is sides[1]


def test_language_tags_are_one_token():
    models = [train_spm(side) for side in marian_models.SIDES]
    pieces = make_vocabulary(*models)
    sides = [
        Vocabulary(pieces, len(pieces) - 1, 1, len(pieces) - 1, 0, frozenset(), x) for x in models
    ]
    rewritten, _ = rewrite(*sides)
    tokenizer = kt.SubwordTokenizer(rewritten.model)
    tagged, plain = tokenizer([">>fra<< A man.", "A man."]).to_list()
    assert tagged[1:] == plain
    assert pieces[rewritten.rows[tagged[0]]] == ">>fra<<"


def test_language_tags_need_the_space_before_a_text():
    models = [train_spm(side, add_dummy_prefix=False) for side in marian_models.SIDES]
    pieces = make_vocabulary(*models)
    sides = [Vocabulary(pieces, None, 1, None, 0, frozenset(), x) for x in models]
    with pytest.raises(ValueError, match=">>deu<< needs a SentencePiece model that adds a space"):
        rewrite(*sides)
