"""WordPiece vocabularies: learned to the size asked for, read from files, refused in a sentence."""

import collections

import pytest
import tensorflow as tf

from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer
from tests.support.sample_text import BYTES, LINES, TEXTS

train = WordPieceTokenizer.train


def pieces_of(tokenizer):
    ids = tf.range(tokenizer.vocabulary_size)
    return [piece.decode() for piece in tokenizer.pieces(ids).numpy()]


def message_of(function, *arguments, **options):
    """What the ValueError says: one line."""
    with pytest.raises(ValueError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message, message
    return message


@pytest.mark.parametrize("lowercase, sizes", [(False, (130, 137, 142)), (True, (112, 113, 125))])
def test_the_size_asked_for_is_the_size_got(lowercase, sizes):
    for size in sizes:
        tokenizer = train(LINES, size, lowercase)
        pieces = pieces_of(tokenizer)
        assert tokenizer.vocabulary_size == size == len(set(pieces))
        assert UNK not in tokenizer(LINES).flat_values.numpy()
        assert tokenizer.model == train(iter(LINES), size, lowercase).model
    assert "quick" in pieces and "##uick" not in pieces
    longer = [piece for piece in pieces if len(piece.removeprefix("##")) > 1]
    assert len(tokenizer(LINES).flat_values) < sum(map(len, LINES)) / 3 and len(longer) > 10


def test_frequent_words_are_whole_and_rare_ones_in_pieces():
    lines = ["walk"] * 50 + ["walking"] * 9 + ["talking"] * 9 + ["talk"] * 5 + ["king klink"]
    tokenizer = train(lines, 4 + 2 * len(set("walkingt")) + 3)
    cut = {text: tokenizer.pieces(tokenizer(text)).numpy().tolist() for text in ("walk", "klink")}
    assert cut["walk"] == [b"walk"] and len(cut["klink"]) > 2


def test_characters_that_are_words_take_one_piece_each():
    """Of some thousand ideographs, which the learner by itself would cut off at a thousand."""
    ideographs = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]
    tokenizer = train(["".join(ideographs), "ab, ab. ab!"], 3000 + 4 + 3 + 2 * 2 + 1)
    assert UNK not in tokenizer(["".join(ideographs)]).flat_values.numpy()
    counts = collections.Counter(len(piece) for piece in pieces_of(tokenizer))
    assert counts == {1: 3005, 3: 2, 2: 1, 5: 4}  # ## before a and b only, and ab


def test_small_and_odd_corpora():
    assert pieces_of(train(["a"], 6))[4:] == ["a", "##a"]
    assert pieces_of(train(["?"], 5))[4:] == ["?"]
    long = "x" * 60 + " " + "y" * 500  # longer than what pieces are learned from, and than a word
    assert UNK not in train([long, "a"], 10)(["x" * 60]).flat_values.numpy()
    tokenizer = train([*LINES, *BYTES, *TEXTS[:5], "a \ud800 fox"], 166)
    assert tokenizer.detokenize(tokenizer("the fox")).numpy() == b"the fox"


def test_files_teach_words_as_lines_do(tmp_path):
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path, lines in zip(paths, (LINES[:20], LINES[20:]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert train(None, 140, files=paths).model == train(LINES, 140).model
    missing = tmp_path / "missing.txt"
    assert message_of(train, None, 140, files=[missing]) == (
        f"{missing} cannot be read: No such file or directory."
    )


def test_what_no_wordpiece_vocabulary_is_learned_from():
    for lines in ([], ["", " \n"], ["\x00", "\u200b\ufeff"]):
        expected = "There is no text to learn a vocabulary from: every line is empty."
        assert message_of(train, lines, 300) == expected
    assert "lines must be several strings" in message_of(train, "the fox", 300)
    assert "Every line must be a string, received a int: 7." == message_of(train, ["a", 7], 300)
    # Of aab: 4 special ids, a, b, ##a, ##b and aab; two of each letter if less is asked for.
    assert train(["aab"] * 3, 9).vocabulary_size == 9
    message = message_of(train, ["aab"] * 3, 10)
    assert message.startswith("The text allows at most 9 ids, received vocabulary_size=10:")
    message = message_of(train, ["aab"] * 3, 7)
    assert "special ids take 8 ids, received vocabulary_size=7." in message
    for size, words in ((4, "is too small: 4 ids of a wordpiece vocabulary are special"),
                        (None, "A wordpiece vocabulary needs a vocabulary_size, received None"),
                        (9.0, "vocabulary_size must be an integer, received 9.0.")):  # fmt: skip
        assert words in message_of(train, LINES, size)
    message = message_of(SubwordTokenizer.train, LINES, 300, "wordpiece")
    assert message.endswith("WordPieceTokenizer.train learns it.")


def test_vocabulary_of_another_system(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\nthe\r\n##re \r\nå ‚\r\n".encode())  # the last two as BERT's has them
    tokenizer = WordPieceTokenizer.from_vocabulary(path, lowercase=True)
    assert pieces_of(tokenizer)[4:] == ["the", "##re", "å ‚"]
    assert tokenizer.file_ids(tokenizer("Thére")).numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"\xef\xbb\xbf[UNK]\nthe\n", "begins with a byte order mark"),
        (b"[UNK]\nthe\nfox\nthe\n", "'the' is there twice"),
        (b"[UNK]\nthe\nthe \n", "'the' is there twice"),
        (b"[PAD]\nthe\n", "has no [UNK], which stands for"),
        (b"", "has no [UNK], which stands for"),
        (b"[UNK]\nthe\n  \nfox\n", "line 3 holds no piece: take"),
        (b"[UNK]\n\nthe\n", "line 2 holds no piece: take"),
        (b"[UNK]\nthe\n" + b"x" * 257, "the piece on line 3 has 257 bytes, expected at most 256"),
        (b"[UNK]\nthe\n\xff\n", "is not UTF-8"),
        (b"[UNK]\n[PAD]\n", "has special pieces only"),
    ],
)
def test_what_is_no_vocabulary(content, sentence, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    message = message_of(WordPieceTokenizer.from_vocabulary, path, True)
    assert message.startswith(str(path)) and sentence in message


def test_what_is_no_wordpiece_model(tmp_path):
    model = train(LINES, 130).model
    for wrong in (b"garbage", b"{}", b"[]", b"", model[:100], model.replace(b"piece 1", b"piece 2"),
                  model.replace(b"[UNK]", b"[unk]"), model.replace(b"false", b"0")):  # fmt: skip
        assert "Expected the bytes of a WordPiece" in message_of(WordPieceTokenizer, wrong)
        (tmp_path / "source.wordpiece").write_bytes(wrong)
        message = message_of(WordPieceTokenizer.load, tmp_path / "source.wordpiece")
        assert message.startswith(str(tmp_path / "source.wordpiece"))
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        for read in (
            WordPieceTokenizer.load,
            lambda path: WordPieceTokenizer.from_vocabulary(path, True),
        ):
            message = message_of(read, path)
            assert str(path) in message and reason in message
