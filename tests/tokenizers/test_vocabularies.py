"""What vocabularies are learned from, what they keep, and what is no vocabulary."""

import collections
import functools
import json
import random

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

import keras_transformer as kt
from keras_transformer.tokenizers import vocabularies
from tests.support.sample_text import BYTES, LINES, TEXTS

# Targets keep every printable character; sources are normalized to NFKC.
TARGETS = ["sʰ u n t͡ɕʰ a̠", "你好，世界！", "½ m² … № 5"]
SOURCES = ["ﬁve ½ m²", "② ﬁsh", "№ 5 ﬁr"]
NORMALIZED = ["five 1⁄2 m2", "2 fish", "No 5 fir"]
PAIRS = list(zip(SOURCES, TARGETS, strict=True)) * 20
SIZES = {"bpe": 330, "unigram": 320}


def learn(model_type="bpe", joint=True, lowercase=False, nfkc=True):
    options = dict(model_type=model_type, lowercase=lowercase, nfkc=nfkc, joint_vocabulary=joint)
    config = kt.PrepareConfig("x", vocabulary_size=SIZES[model_type], **options)
    return vocabularies.learn_vocabularies(lambda: iter(PAIRS), config, joint)


def written_back(model, lines):
    """What the served operation and the sentencepiece package write of lines: the same."""
    tokenizer = kt.SubwordTokenizer(model)
    served = [text.decode() for text in tokenizer.detokenize(tokenizer(lines)).numpy()]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert processor.decode(processor.encode(lines)) == served
    return served


def parts(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    return [(piece.piece, piece.score, piece.type) for piece in proto.pieces], proto.normalizer_spec


@pytest.mark.parametrize("model_type, joint", [("bpe", True), ("unigram", False)])
def test_sources_are_normalized_and_targets_are_not(model_type, joint):
    source, target = learn(model_type=model_type, joint=joint)
    assert written_back(source, SOURCES) == NORMALIZED
    assert written_back(target, TARGETS) == TARGETS
    source, target = learn(model_type=model_type, joint=joint, nfkc=False)
    assert written_back(source, SOURCES) == SOURCES and (source == target) is joint


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_joint_vocabulary_differs_in_the_normalization_alone(lowercase):
    source, target = map(parts, learn(lowercase=lowercase))
    assert source[0] == target[0] and source[1] != target[1]
    pieces = "".join(piece for piece, _, _ in source[0])
    assert "ʰ" in pieces and "²" in pieces and "⁄" in pieces  # of targets, and of sources
    assert "ﬁ" not in pieces and "②" not in pieces  # no side would use them
    rules = sentencepiece.SentencePieceNormalizer(rule_name="nfkc_cf" if lowercase else "nfkc")
    proto = sentencepiece_model_pb2.ModelProto.FromString(rules.serialized_model_proto())
    assert source[1].precompiled_charsmap == proto.normalizer_spec.precompiled_charsmap


def test_what_targets_lose():
    """White space becomes a space, other control characters but NUL nothing; nothing else."""
    spaces = [*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
    spaces += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    controls = [*range(0x01, 0x20), *range(0x7F, 0xA0)]
    expected = {code: "" for code in controls} | {code: " " for code in spaces}
    assert expected == vocabularies.SPACES_AND_CONTROLS
    _, target = learn()
    lines = [f"a{chr(code)}b" for code in expected]
    assert written_back(target, lines) == [f"a{text}b" for text in expected.values()]
    # Every other printable character of Unicode survives.
    printable = [x for x in map(chr, range(0x110000)) if x.isprintable() and not x.isspace()]
    printable.remove("▁")
    mixed = random.Random(1).sample(printable, len(printable))
    lines = ["".join(mixed[start : start + 60]) for start in range(0, len(mixed), 60)]
    assert written_back(target, lines) == lines
    # Of a vocabulary in lower case, all but the case.
    _, target = learn(lowercase=True, joint=False)
    assert written_back(target, ["ʰ½ÄßΣ，№"]) == ["ʰ½äßσ，№"]


def message_of(function, *arguments):
    """What the ValueError says: one line, and not in terms of somebody's C++."""
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    message = str(caught.value)
    assert "\n" not in message and ".cc" not in message and "INTERNAL" not in message, message
    return message


def test_all_that_there_is():
    for lines in (["aab ab"] * 3, ["aab", "ab"]):
        tokenizer = kt.SubwordTokenizer.train(lines, None, "char")
        assert tokenizer.vocabulary_size == 4 + 256 + len("▁ab")
    many = [f"w{k}" for k in range(20_000)]
    tokenizer = kt.SubwordTokenizer.train(many, model_type="word")
    assert tokenizer.vocabulary_size == 20_004 and kt.UNK not in tokenizer(many).flat_values.numpy()
    hostile = ["", "  ", "a \ud800 fox", b"b\xff fox", "c\x00 fox", *TEXTS[:17]] * 3
    tokenizer = kt.SubwordTokenizer.train(LINES + hostile, 600)
    assert tokenizer.detokenize(tokenizer("the fox")).numpy() == b"the fox"


# Of ▁aab: 4 special ids, 256 bytes and ▁ a b; then bpe joins ▁a ▁aa ▁aab aa aab ab.
LIMITS = {"bpe": 269, "unigram": 264, "char": 263, "word": 5}


@pytest.mark.parametrize("model_type, limit", LIMITS.items())
def test_vocabulary_of_another_size_than_the_text_allows(model_type, limit):
    train, lines = kt.SubwordTokenizer.train, ["aab"] * 3
    assert train(lines, limit, model_type).vocabulary_size == limit
    message = message_of(train, lines, limit + 1, model_type)
    assert f"at most {limit} ids, received vocabulary_size={limit + 1}:" in message
    assert "vocabulary_size must be greater than" in message_of(train, LINES, 4, model_type)
    message = message_of(train, ["", "  \n"], 300, model_type)
    assert message == "Cannot learn a vocabulary: every line of the text is empty."


def test_unfit_arguments():
    for arguments, sentence in (
        ((["abcd"], 264, "unigram"), "take 265 ids, received vocabulary_size=264"),
        ((LINES, 300, "words"), "model_type must be one of bpe, unigram, char"),
        ((LINES, None, "bpe"), "vocabulary_size must be an integer for model_type='bpe'"),
        ((LINES, 300.0), "integer, received 300.0."),
        ((LINES, 300, "wordpiece"), "use WordPieceTokenizer.train."),
        (("corpus.txt", 300), "lines must be a list of strings or an open file, received "),
        (([*LINES, ("a", "b")], 300), "Every line must be a string, received a tuple: ('a', 'b')."),
    ):
        assert sentence in message_of(kt.SubwordTokenizer.train, *arguments)


def test_an_interruption_while_text_is_read_is_no_error():
    def interrupted():
        yield "abcd"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kt.SubwordTokenizer.train(interrupted(), 300)


train = kt.WordPieceTokenizer.train


def pieces_of(tokenizer):
    pieces = tokenizer.pieces(list(range(tokenizer.vocabulary_size)))
    return [piece.decode() for piece in pieces.numpy()]


@pytest.mark.parametrize("lowercase, sizes", [(False, (130, 142)), (True, (112, 125))])
def test_the_size_asked_for_is_the_size_got(lowercase, sizes):
    for size in sizes:
        tokenizer = train(LINES, size, lowercase)
        pieces = pieces_of(tokenizer)
        assert tokenizer.vocabulary_size == size == len(set(pieces))
        assert kt.UNK not in tokenizer(LINES).flat_values.numpy()
        assert tokenizer.model == train(iter(LINES), size, lowercase).model
    assert "quick" in pieces and "##uick" not in pieces
    longer = [piece for piece in pieces if len(piece.removeprefix("##")) > 1]
    assert len(tokenizer(LINES).flat_values) < sum(map(len, LINES)) / 3 and len(longer) > 10


def test_characters_that_are_words_take_one_piece_each():
    """Of some thousand ideographs, which the learner by itself would cut off at a thousand."""
    ideographs = [chr(code) for code in range(0x4E00, 0x4E00 + 3000)]
    tokenizer = train(["".join(ideographs), "ab, ab. ab!"], 3000 + 4 + 3 + 2 * 2 + 1)
    assert kt.UNK not in tokenizer(["".join(ideographs)]).flat_values.numpy()
    counts = collections.Counter(len(piece) for piece in pieces_of(tokenizer))
    assert counts == {1: 3005, 3: 2, 2: 1, 5: 4}  # ## before a and b only, and ab


def test_small_and_odd_corpora():
    assert pieces_of(train(["a"], 6))[4:] == ["a", "##a"]
    assert pieces_of(train(["?"], 5))[4:] == ["?"]
    long = "x" * 60 + " " + "y" * 500  # longer than what pieces are learned from, and than a word
    assert kt.UNK not in train([long, "a"], 10)(["x" * 60]).flat_values.numpy()
    tokenizer = train([*LINES, *BYTES, *TEXTS[:5], "a \ud800 fox"], 166)
    assert tokenizer.detokenize(tokenizer("the fox")).numpy() == b"the fox"
    for lines in ([], ["", " \n"], ["\x00", "\u200b\ufeff"]):
        assert message_of(train, lines, 300).endswith("every line of the text is empty.")
    # Of aab: 4 special ids, a, b, ##a, ##b and aab; two of each letter if less is asked for.
    assert train(["aab"] * 3, 9).vocabulary_size == 9
    message = message_of(train, ["aab"] * 3, 10)
    assert message.startswith("The text allows at most 9 ids, received vocabulary_size=10:")
    message = message_of(train, ["aab"] * 3, 7)
    assert "special ids take 8 ids, received vocabulary_size=7:" in message


def test_vocabulary_of_another_system(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\nthe\r\n##re \r\nå ‚\r\n".encode())  # the last two as BERT's has them
    tokenizer = kt.WordPieceTokenizer.from_vocabulary(path, lowercase=True)
    assert pieces_of(tokenizer)[4:] == ["the", "##re", "å ‚"]
    assert tokenizer.file_ids(tokenizer("Thére")).numpy().tolist() == [1, 2]


SOUND = {"format": "wordpiece 1", "lowercase": True, "pieces": ["[UNK]", "[SEP]", "a", "##b"]}


def test_files_that_are_no_vocabulary(tmp_path):
    path, whole = tmp_path / "vocabulary", vocabularies.serialize_pieces(["[UNK]", "a"], True)
    of_pieces = functools.partial(kt.WordPieceTokenizer.from_vocabulary, lowercase=True)
    for load, content, reason in (
        (of_pieces, b"[UNK]\nthe\nthe \n", "'the' is duplicated"),
        (of_pieces, b"[PAD]\nthe\n", "has no [UNK], which stands for"),
        (of_pieces, b"[UNK]\nthe\n  \nfox\n", "line 3 has no piece: remove"),
        (of_pieces, b"[UNK]\nthe\n\xff\n", "is not UTF-8"),
        (kt.SubwordTokenizer.load, b"the quick brown fox\n" * 10, "the bytes of a SentencePiece"),
        (kt.WordPieceTokenizer.load, whole[:-9], "it is not JSON"),
        (kt.WordPieceTokenizer.load, b"[" * 100_000, "it is not JSON"),
        (kt.WordPieceTokenizer.load, b"[1]", "it is not JSON with pieces"),
        (kt.WordPieceTokenizer.load, SOUND | {"format": 2}, "its format is not 'wordpiece 1'"),
        (kt.WordPieceTokenizer.load, SOUND | {"pieces": "[UNK]"}, "has no [UNK]"),
        (kt.WordPieceTokenizer.load, SOUND | {"lowercase": "yes"}, "its format is not"),
    ):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        message = message_of(load, path)
        assert message.startswith(str(path)) and reason in message and len(message) < 400
