"""WordPieceTokenizer: held id for id against the BERT tokenizer; vocabularies learned and read."""

import collections
import functools
import gzip
import random
import re
import unicodedata

import keras
import pytest
import tensorflow as tf
from tokenizers import BertWordPieceTokenizer

import keras_transformer as kt
from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from keras_transformer.tokenizers.wordpiece import WordPieceTokenizer, normalize
from tests.support.paths import ROOT
from tests.support.sample_text import BYTES, LINES, TEXTS

DATA = ROOT.parent / "shared" / "data"
BERT = DATA / "wordpiece" / "bert_uncased_vocab.txt"
TEXT = DATA / "multi30k" / "raw" / "train.en.gz"
PIECES = "the quick brown fox ##es jump ##s over lazy dog ##g ##e ' re , . 東 é ##é e ##r o ## /usr"
DROPPED = ("Mn", "Cc", "Cf", "Co")

needs_bert = pytest.mark.skipif(not BERT.exists(), reason="BERT's vocabulary is not here")


@pytest.fixture(scope="module")
def bert():
    """Ours and the package's tokenizer of BERT's uncased vocabulary."""
    ours = kt.WordPieceTokenizer.from_vocabulary(BERT, lowercase=True)
    return ours, BertWordPieceTokenizer(str(BERT), lowercase=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A cased tokenizer of a few pieces, with special ones in another order."""
    path = tmp_path_factory.mktemp("small") / "vocab.txt"
    path.write_text("\n".join(["[UNK]", *PIECES.split(), "[PAD]", "[CLS]"]) + "\n")
    return kt.WordPieceTokenizer.from_vocabulary(path, lowercase=False)


def ids_of(oracle, texts):
    return [one.ids for one in oracle.encode_batch(texts, add_special_tokens=False)]


@needs_bert
def test_ids_of_the_file(bert):
    text = "The cat slept on the couch.It was too tired to get up."
    ids = bert[0](text)
    assert bert[0].vocabulary_size == 30522
    assert bert[0].file_ids(ids).numpy().tolist() == [
        *(1996, 4937, 7771, 2006, 1996, 6411, 1012, 2009),
        *(2001, 2205, 5458, 2000, 2131, 2039, 1012),
    ]
    assert bert[0].file_ids([PAD, UNK, START, END]).numpy().tolist() == [0, 100, 101, 102]
    assert ids.numpy().min() > END


@needs_bert
@pytest.mark.skipif(not TEXT.exists(), reason="Multi30k is not here")
def test_text_is_cut_as_by_bert(bert):
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[:10_000]
    ours, oracle = bert
    ids = ours.file_ids(ours(lines)).to_list()
    assert sum(a == b for a, b in zip(ids, ids_of(oracle, lines), strict=True)) == 10_000


@functools.cache
def characters():
    """Characters by category, of those that Unicode has not changed its mind about for long."""
    kinds = {}
    for code in range(0x30000):
        kind = unicodedata.category(chr(code))
        if kind == unicodedata.ucd_3_2_0.category(chr(code)) and kind not in ("Cs", "Cn"):
            kinds.setdefault(kind, []).append(chr(code))
    return kinds


def hostile_texts(count):
    """Words of anything, marks and controls anywhere, capital sigmas, words without an end."""
    draw = random.Random(30)
    kinds = list(characters().values()) + [list("aàÀ ΣσİIß①ﬁ'.-\t\r\n\x00\ufffd#")] * 6

    def word():
        return "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, 9)))

    texts = [" ".join(word() for _ in range(draw.randint(1, 9))) for _ in range(count)]
    for row in range(0, count, 50):
        texts[row] += draw.choice(["ΟΔΟΣ", "ab" * 60, "ж" * 101, "word" * 120])
    return texts


def has_final_sigma(text):
    """Lower case goes by the letters around, as it does of a capital sigma at a word's end only."""
    text = unicodedata.normalize("NFD", text.replace("\ufffd", ""))
    letters = "".join(c for c in text if unicodedata.category(c) not in DROPPED)
    return letters.lower() != "".join(c.lower() for c in letters)


def has_long_word(text):
    return re.search(r"\S{101}", text)


def differing(ours, oracle, texts):
    """The texts that ours and BERT's tokenizer cut differently."""
    pairs = zip(texts, ours.file_ids(ours(texts)).to_list(), ids_of(oracle, texts), strict=True)
    return [text for text, a, b in pairs if a != b]


@needs_bert
def test_hostile_strings_are_cut_as_by_bert(bert):
    texts = hostile_texts(1000) + TEXTS
    assert all(map(has_long_word, differing(*bert, texts)))


@pytest.mark.parametrize("lowercase", [False, True])
def test_hostile_strings_differ_for_two_reasons_only(lowercase, tmp_path):
    """Of a vocabulary with a piece for every character, which lets none of them hide in [UNK]."""
    texts = hostile_texts(1000) + TEXTS
    cleaned = b"".join(normalize(tf.constant(texts), lowercase).numpy()).decode()
    known = [character for character in sorted({*cleaned, "ς", "σ"}) if not character.isspace()]
    pieces = ["[UNK]", "[SEP]", "[CLS]", *known, *(f"##{character}" for character in known)]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)), encoding="utf-8")
    ours = kt.WordPieceTokenizer.from_vocabulary(tmp_path / "vocab.txt", lowercase)
    oracle = BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lowercase)
    found = differing(ours, oracle, texts)
    assert [t for t in found if not (has_final_sigma(t) or has_long_word(t))] == []
    assert any(map(has_long_word, found)) and len(found) < 50
    assert any(not has_long_word(text) for text in found) is lowercase  # those with a sigma
    # What we have instead, in Greek and in words of 101 characters to 400 bytes.
    assert UNK not in ours("ж" * 101).numpy() and ours("ж" * 201).numpy().tolist() == [UNK]
    assert (ours("ΟΔΟΣ").numpy().tolist() == ours("οδος").numpy().tolist()) is lowercase


def test_what_it_cuts_and_loses(small):
    text = "the foxes're over,dogge. 東quick"
    ids = small(text)
    pieces = [piece.decode() for piece in small.pieces(ids).numpy()]
    assert pieces == "the fox ##es ' re over , dog ##g ##e . 東 quick".split()
    assert small.detokenize(ids).numpy().decode() == "the foxes ' re over , dogge . 東 quick"
    assert small.detokenizing_loses == "spaces around punctuation"
    # A word with a character that no piece has is unknown as a whole.
    assert [id == UNK for id in small("the foxz The").numpy()] == [False, True, True]
    # Composed and decomposed are two things to a cased vocabulary, accents and all.
    assert small("é").numpy().tolist() != [UNK] and UNK in small("e\u0301").numpy()


def test_special_ids_are_ours(small):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES.split()]
    ids = list(range(len(pieces)))
    assert small.vocabulary_size == len(pieces)
    assert [piece.decode() for piece in small.pieces(ids).numpy()] == pieces
    # The file begins with [UNK], ends with [PAD] and [CLS], and has no [SEP].
    count = len(PIECES.split())
    assert small.file_ids(ids).numpy().tolist() == [
        count + 1,
        0,
        count + 2,
        -1,
        *range(1, 1 + count),
    ]
    assert small.detokenize([START, 4, PAD, UNK, END]).numpy() == b"the [UNK]"
    # Text that looks like one is not one.
    assert not {PAD, START, END} & set(small("[CLS] [SEP][PAD]").numpy().tolist())


def test_ids_out_of_range_are_unknown(small):
    wild = [[4, -1, 10**9], [small.vocabulary_size, 5, -(2**31)]]
    assert small.detokenize(wild).numpy().tolist() == [b"the [UNK] [UNK]", b"[UNK] quick [UNK]"]
    assert small.pieces(wild).numpy()[:, ::2].tolist() == [[b"the", b"[UNK]"], [b"[UNK]"] * 2]
    assert small.file_ids(tf.constant([99], tf.int64)).numpy().tolist() == [0]


def test_shapes_of_words(small):
    """Of the call, see test_subword.py: it is the base's."""
    one = small("the fox").numpy().tolist()
    ids = small(["the fox", ""])
    assert ids.dtype == tf.int32 and small(["the fox", ""]).to_list() == [one, []]
    assert small.detokenize(ids).numpy().tolist() == [b"the fox", b""]
    assert small.pieces(ids).to_list() == [[b"the", b"fox"], []]
    padded = tf.constant([one + [PAD, PAD], [END, *one, PAD]], tf.int64)
    assert small.detokenize(padded).numpy().tolist() == [b"the fox"] * 2
    assert small.detokenize(small([])).numpy().tolist() == []
    assert small.detokenize(tf.zeros([0, 5], tf.int32)).numpy().tolist() == []
    assert isinstance(small, kt.Tokenizer)


def test_bytes_that_are_no_words(small):
    for raw in (*BYTES, b"the \xff\xfe fox", "\ue000the\u200b \x07fox"):
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        kept = "".join(c for c in text if unicodedata.category(c)[0] != "C" and c != "\ufffd")
        assert small(raw).numpy().tolist() == small(kept).numpy().tolist()
    assert small("the \ud800 fox").numpy().tolist() == small("the ? fox").numpy().tolist()


def test_words_in_a_graph_and_in_a_dataset(small):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def there_and_back(text):
        ids = small(text, end=True)
        return ids.to_tensor(PAD), small.detokenize(ids)

    texts = ["the quick fox", "", "東 over"]
    ids, back = there_and_back(tf.constant(texts))
    assert ids.numpy().tolist() == small(texts, end=True).to_tensor().numpy().tolist()
    assert [text.decode() for text in back.numpy()] == texts
    dataset = tf.data.Dataset.from_tensor_slices(texts).map(small)
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    assert [ids.numpy().tolist() for ids in dataset] == small(texts).to_list()
    assert there_and_back(tf.constant(texts))[0].numpy().tolist() == ids.numpy().tolist()


@pytest.mark.parametrize("lowercase", [False, True])
def test_wordpiece_saved_and_loaded(lowercase, tmp_path):
    tokenizer = kt.WordPieceTokenizer.train(LINES, 125, lowercase)
    tokenizer.save(tmp_path / "source.wordpiece")
    loaded = kt.WordPieceTokenizer.load(tmp_path / "source.wordpiece")
    assert loaded.model == tokenizer.model and loaded.lowercase is lowercase
    assert loaded(TEXTS).to_list() == tokenizer(TEXTS).to_list()
    assert ("capitals" in loaded.detokenizing_loses) is lowercase
    upper = loaded.detokenize(loaded("Zwölf")).numpy().decode()
    assert upper == ("zwolf" if lowercase else "Zwölf")


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


def test_what_no_wordpiece_vocabulary_is_learned_from():
    for lines in ([], ["", " \n"], ["\x00", "\u200b\ufeff"]):
        expected = "Cannot learn a vocabulary: every line of the text is empty."
        assert message_of(train, lines, 300) == expected
    assert "lines must be a list of strings" in message_of(train, "the fox", 300)
    assert "Every line must be a string, received a int: 7." == message_of(train, ["a", 7], 300)
    # Of aab: 4 special ids, a, b, ##a, ##b and aab; two of each letter if less is asked for.
    assert train(["aab"] * 3, 9).vocabulary_size == 9
    message = message_of(train, ["aab"] * 3, 10)
    assert message.startswith("The text allows at most 9 ids, received vocabulary_size=10:")
    message = message_of(train, ["aab"] * 3, 7)
    assert "special ids take 8 ids, received vocabulary_size=7:" in message
    for size, words in ((4, "vocabulary_size must be greater than 4"),
                        (None, "vocabulary_size must be an integer"),
                        (9.0, "vocabulary_size must be an integer, received 9.0.")):  # fmt: skip
        assert words in message_of(train, LINES, size)
    message = message_of(SubwordTokenizer.train, LINES, 300, "wordpiece")
    assert message.endswith("use WordPieceTokenizer.train.")


def test_vocabulary_of_another_system(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("[UNK]\r\nthe\r\n##re \r\nå ‚\r\n".encode())  # the last two as BERT's has them
    tokenizer = WordPieceTokenizer.from_vocabulary(path, lowercase=True)
    assert pieces_of(tokenizer)[4:] == ["the", "##re", "å ‚"]
    assert tokenizer.file_ids(tokenizer("Thére")).numpy().tolist() == [1, 2]


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"[UNK]\nthe\nfox\nthe\n", "'the' is duplicated"),
        (b"[UNK]\nthe\nthe \n", "'the' is duplicated"),
        (b"[PAD]\nthe\n", "has no [UNK], which stands for"),
        (b"", "has no [UNK], which stands for"),
        (b"[UNK]\nthe\n  \nfox\n", "line 3 has no piece: remove"),
        (b"[UNK]\n\nthe\n", "line 2 has no piece: remove"),
        (b"[UNK]\nthe\n\xff\n", "is not UTF-8"),
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
