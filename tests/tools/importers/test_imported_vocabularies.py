"""Vocabularies of other systems give the segmentation of the original."""

import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.tools.importers.vocabularies import Vocabulary, read_vocabulary, rewrite
from tests.support.marian_models import SENTENCES, SIDES, make_vocabulary, read_pieces, train_spm

LINES = ["A man in an orange hat.", "Two dogs, late!", "", "  é 漢 x ", "ﬁne ２ ½ … „x“"]


def both_sides(**options):
    models = [train_spm(side, **options) for side in SIDES]
    pieces = make_vocabulary(*models)
    ids = [pieces.index(piece) for piece in ("<pad>", "<unk>", "<pad>", "</s>")]
    return [Vocabulary(pieces, *ids, frozenset(), model) for model in models]


OPTIONS = [dict(size=110), dict(size=110, kind="bpe")]
OPTIONS += [dict(size=366, byte_fallback=True)]  # to bytes of what the other side has, too


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_segmentation_is_that_of_the_original(options):
    sides = both_sides(rule="nmt_nfkc", **options)
    lines = [*SENTENCES["source"], *SENTENCES["target"], *LINES]
    ids = {piece: id for id, piece in enumerate(sides[0].pieces)}
    for side, rewritten in zip(sides, rewrite(*sides), strict=True):
        tokenizer = kt.SubwordTokenizer(rewritten.model)
        original = sentencepiece.SentencePieceProcessor(model_proto=side.model)
        known = set(read_pieces(side.model))
        cut = original.encode(lines, out_type=str)
        # Several unknown characters in a row are one piece there; such lines may differ.
        plain = [all(len(x) == 1 or x in known for x in row) for row in cut]
        assert all(plain) or "byte_fallback" not in options
        assert sum(plain) > len(lines) / 2
        found = [rewritten.rows[row].tolist() for row in tokenizer(lines).to_list()]
        expected = [[ids.get(piece, side.unk) for piece in row] for row in cut]
        for row, other, same in zip(found, expected, plain, strict=True):
            assert row == other or not same
        assert rewritten.suppressed.sum() > 2  # those that the vocabulary lacks
        texts = tokenizer.detokenize(tokenizer(["A dog  in the snow."])).numpy()
        assert texts[0].decode() == "A dog in the snow." or side is sides[1]


def test_language_tags_are_one_token():
    sides = both_sides()
    rewritten, _ = rewrite(*sides)
    tokenizer = kt.SubwordTokenizer(rewritten.model)
    tagged, plain = tokenizer([">>fra<< A man.", "A man."]).to_list()
    assert tagged[1:] == plain
    assert sides[0].pieces[rewritten.rows[tagged[0]]] == ">>fra<<"
    with pytest.raises(ValueError, match=">>deu<< needs a SentencePiece model that adds a space"):
        rewrite(*both_sides(add_dummy_prefix=False))


@pytest.mark.parametrize("start", ["", "\ufeff---\n"], ids=ascii)
def test_pieces_in_yaml_are_strings(start, tmp_path):
    path = tmp_path / "x.vocab.yml"
    lines = ["</s>: 0", '"<unk>": 1', "no: 2", "1e3: 3", '":": 4', "'it''s': 5", '"\\"": 6']
    lines += ['"\\u2581\\\\": 7', "? long", ": 8", "---: 9", ""]
    path.write_text(start + "\n".join(lines))
    expected = ["</s>", "<unk>", "no", "1e3", ":", "it's", '"', "▁\\", "long", "---"]
    assert read_vocabulary(path) == expected
    path.write_text("!!python/object/apply:os.system ['touch executed']: 0")
    with pytest.raises(ValueError, match="x.vocab.yml"):
        read_vocabulary(path)
