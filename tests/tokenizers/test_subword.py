"""SubwordTokenizer: the ids of the sentencepiece package; what vocabularies are learned from."""

import functools
import gc
import io
import itertools
import math
from unicodedata import category

import keras
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from tests.support.sample_text import BYTES, LINES, TEXTS

SIZES = {"bpe": 400, "unigram": 330, "char": None, "word": 30}

every_configuration = pytest.mark.parametrize(
    "model_type, lowercase, nfkc", list(itertools.product(SIZES, (False, True), (False, True)))
)
every_type = pytest.mark.parametrize("model_type", SIZES)


@functools.cache
def trained(model_type="bpe", lowercase=False, nfkc=True):
    """A tokenizer and the sentencepiece package's processor of the same model."""
    tokenizer = SubwordTokenizer.train(LINES, SIZES[model_type], model_type, lowercase, nfkc)
    return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)


@every_configuration
def test_ids_are_those_of_sentencepiece(model_type, lowercase, nfkc):
    tokenizer, processor = trained(model_type, lowercase, nfkc)
    batch = tokenizer(TEXTS + BYTES)
    assert batch.dtype == tf.int32
    for text, ids in zip(TEXTS + BYTES, batch.to_list(), strict=True):
        assert ids == processor.encode(text)
        assert tokenizer(text).numpy().tolist() == ids  # alone as in the batch


@every_configuration
def test_text_is_that_of_sentencepiece(model_type, lowercase, nfkc):
    tokenizer, processor = trained(model_type, lowercase, nfkc)
    ids = [processor.encode(text) for text in TEXTS + BYTES]
    # What a model writes may be no text at all: bytes in disorder, special ids in the middle.
    ids += [[id] for id in range(tokenizer.vocabulary_size)]
    ids += [[7, 250 % tokenizer.vocabulary_size, UNK, 7, END, START, 9]]
    texts = tokenizer.detokenize(tf.ragged.constant(ids, tf.int32)).numpy().tolist()
    assert [text.decode() for text in texts] == [processor.decode(row) for row in ids]


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char"])
def test_nothing_is_unknown_where_bytes_spell_the_rest(model_type):
    tokenizer, _ = trained(model_type, nfkc=False)
    ids = tokenizer(TEXTS + BYTES)
    assert UNK not in ids.flat_values.numpy()
    assert tokenizer("ᚠ").shape[0] >= 3  # not in LINES: three bytes
    # Nothing is lost either: only spaces and control characters are tidied.
    texts = [text for text in TEXTS if "▁" not in text]
    spaced = ["".join(" " if one.isspace() else one for one in text) for text in texts]
    texts = [
        " ".join("".join(one for one in text if category(one) != "Cc" or one == "\0").split())
        for text in spaced
    ]
    ids = tokenizer(texts)
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == texts


def test_words_that_are_not_in_a_word_vocabulary_are_unknown():
    tokenizer, _ = trained("word")
    ids = tokenizer("the unheard-of fox").numpy().tolist()
    assert [id == UNK for id in ids] == [False, True, False]
    assert tokenizer.detokenize(ids).numpy().decode().split() == ["the", "⁇", "fox"]


@pytest.mark.parametrize(
    "lowercase, nfkc, expected",
    [
        (False, False, "ÀÉ ﬁ ① ΟΔΟΣ"),
        (True, False, "àé ﬁ ① οδοσ"),
        (False, True, "ÀÉ fi 1 ΟΔΟΣ"),
        (True, True, "àé fi 1 οδοσ"),
    ],
)
def test_what_is_normalized(lowercase, nfkc, expected):
    tokenizer, _ = trained("char", lowercase, nfkc)
    assert tokenizer.detokenize(tokenizer("ÀÉ ﬁ ① ΟΔΟΣ")).numpy().decode() == expected


def test_char_takes_every_character_of_the_text():
    tokenizer = SubwordTokenizer.train(["abc", "cab d"], model_type="char")
    assert tokenizer.vocabulary_size == 4 + 256 + len("abcd▁")
    ids = tokenizer("abcd").numpy()
    assert len(ids) == 5 and ids.min() >= 260  # each its own piece, and one for the start


def test_shapes_of_input_and_output():
    tokenizer, _ = trained()
    one = tokenizer("the fox").numpy().tolist()
    assert isinstance(tokenizer("the fox"), tf.Tensor)
    for batch in (["the fox", ""], ("the fox", b""), tf.constant(["the fox", ""])):
        ids = tokenizer(batch)
        assert isinstance(ids, tf.RaggedTensor) and ids.to_list() == [one, []]
        assert tokenizer(batch, end=True).to_list() == [[*one, END], [END]]
        assert tokenizer.detokenize(ids).numpy().tolist() == [b"the fox", b""]
    for empty in ([], (), tf.zeros([0], tf.string)):
        ids = tokenizer(empty)
        assert ids.to_list() == tokenizer(empty, end=True).to_list() == [] and ids.dtype == tf.int32
        assert tokenizer.detokenize(ids).numpy().tolist() == []
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).numpy().tolist() == []
    padded = tf.constant([one + [PAD, PAD], [END, *one, PAD]], tf.int64)
    assert tokenizer.detokenize(padded).numpy().tolist() == [b"the fox"] * 2
    assert tokenizer.detokenize(one).numpy() == b"the fox"  # a scalar


def test_end_closes_each_text():
    tokenizer, _ = trained()
    texts = ["the fox", "", "東京"]
    rows = [[*ids, END] for ids in tokenizer(texts).to_list()]
    for batch in (texts, tuple(texts), tf.constant(texts)):
        ids = tokenizer(batch, end=True)
        assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32
        assert ids.to_list() == rows
    assert [tokenizer(text, end=True).numpy().tolist() for text in texts] == rows
    assert tokenizer([], end=True).to_list() == []
    padded = ids.to_tensor()
    assert padded.numpy()[1].tolist() == [END] + [PAD] * (padded.shape[1] - 1)
    assert [text.decode() for text in tokenizer.detokenize(padded).numpy()] == texts
    graph = tf.function(lambda text: tokenizer(text, end=True).to_tensor(PAD))
    assert graph(tf.constant(texts)).numpy().tolist() == padded.numpy().tolist()


@every_type
def test_special_ids(model_type):
    tokenizer, processor = trained(model_type)
    assert (PAD, UNK, START, END) == (0, 1, 2, 3)
    assert tokenizer.vocabulary_size == processor.vocab_size()
    assert SIZES[model_type] in (None, tokenizer.vocabulary_size)
    # Special ids have no text, and text that looks like one is not one.
    assert tokenizer.detokenize([START, PAD, END]).numpy() == b""
    assert not {PAD, START, END} & set(tokenizer("<s></s><pad>").numpy().tolist())


@every_type
def test_bytes_that_are_no_text(model_type):
    tokenizer, _ = trained(model_type)
    for raw in BYTES:
        replaced = raw.decode("utf-8", errors="replace")
        assert tokenizer(raw).numpy().tolist() == tokenizer(replaced).numpy().tolist()
    assert tokenizer(["a \ud800 b"]).to_list() == tokenizer(["a ? b"]).to_list()
    assert tokenizer("a \udfff b").numpy().tolist() == tokenizer("a ? b").numpy().tolist()


def test_runs_in_a_dataset():
    tokenizer, processor = trained()
    texts = [text for text in TEXTS if len(text) < 100]
    lines = tf.data.Dataset.from_tensor_slices(texts)
    alone = lines.map(tokenizer, num_parallel_calls=2)
    assert [ids.numpy().tolist() for ids in alone] == [processor.encode(text) for text in texts]
    batches = lines.batch(4).map(tokenizer)
    assert sum((ids.to_list() for ids in batches), []) == [ids.numpy().tolist() for ids in alone]


def test_outlives_the_cache_of_kernels_and_its_twins():
    """TensorFlow drops cached kernels when a seed is set, and with them what they own."""
    tokenizer, processor = trained()
    traced = tf.function(lambda text: tokenizer(text))
    dataset = tf.data.Dataset.from_tensors("the fox").map(tokenizer)
    twins = [SubwordTokenizer(tokenizer.model)]
    expected = processor.encode("the fox")
    assert traced(tf.constant("the fox")).numpy().tolist() == expected
    for disturb in (
        lambda: keras.utils.set_random_seed(1),
        lambda: tf.random.set_seed(2),
        keras.utils.clear_session,
        lambda: (twins.clear(), gc.collect()),
    ):
        disturb()
        assert tokenizer("the fox").numpy().tolist() == expected
        assert traced(tf.constant("the fox")).numpy().tolist() == expected
        assert [ids.numpy().tolist() for ids in dataset] == [expected]


@every_configuration
def test_saved_and_loaded(model_type, lowercase, nfkc, tmp_path):
    tokenizer, _ = trained(model_type, lowercase, nfkc)
    tokenizer.save(tmp_path / "source.spm")
    loaded = SubwordTokenizer.load(tmp_path / "source.spm")
    assert loaded.model == tokenizer.model
    assert loaded.vocabulary_size == tokenizer.vocabulary_size
    assert loaded(TEXTS[:9]).to_list() == tokenizer(TEXTS[:9]).to_list()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.spm"))
    assert processor.encode(TEXTS[:9]) == tokenizer(TEXTS[:9]).to_list()


@pytest.mark.parametrize("model_type, size", [("char", 263), ("word", 6)])
def test_all_that_there_is(model_type, size):
    for lines in (["aab ab"] * 3, ["aab", "ab"]):
        assert SubwordTokenizer.train(lines, None, model_type).vocabulary_size == size
    many = [f"w{k}" for k in range(20_000)]
    tokenizer = SubwordTokenizer.train(many, model_type="word")
    assert tokenizer.vocabulary_size == 20_004 and UNK not in tokenizer(many).flat_values.numpy()


def test_lines_may_hold_anything():
    hostile = ["", "  ", "a \ud800 fox", b"b\xff fox", "c\x00 fox", *TEXTS[:17]] * 3
    tokenizer = SubwordTokenizer.train(LINES + hostile, 600)
    assert tokenizer.detokenize(tokenizer("the fox")).numpy() == b"the fox"


def message_of(function, *arguments, **options):
    """What the ValueError says: one line, and not in terms of somebody's C++."""
    with pytest.raises(ValueError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message and ".cc" not in message and "INTERNAL" not in message, message
    return message


# Of ▁aab: 4 special ids, 256 bytes and ▁ a b; then bpe joins ▁a ▁aa ▁aab aa aab ab.
@pytest.mark.parametrize(
    "model_type, limit", [("bpe", 269), ("unigram", 264), ("char", 263), ("word", 5)]
)
@pytest.mark.parametrize("excess", [1, 1000])
def test_vocabulary_larger_than_the_text_allows(model_type, limit, excess):
    lines = ["aab"] * 3
    assert SubwordTokenizer.train(lines, limit, model_type).vocabulary_size == limit
    message = message_of(SubwordTokenizer.train, lines, limit + excess, model_type)
    assert f"at most {limit} ids, received vocabulary_size={limit + excess}:" in message


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_vocabulary_too_small_for_the_characters(model_type):
    message = message_of(SubwordTokenizer.train, ["abcd"], 264, model_type)
    assert "take 265 ids" in message and "vocabulary_size=264" in message


@every_type
@pytest.mark.parametrize("size", [4, 0, -3])
def test_vocabulary_too_small_for_anything(model_type, size):
    message = message_of(SubwordTokenizer.train, LINES, size, model_type)
    assert "vocabulary_size must be greater than" in message


@every_type
@pytest.mark.parametrize("lines", [[], ["", "  \n"]], ids=["none", "blank"])
def test_no_text(model_type, lines):
    expected = "Cannot learn a vocabulary: every line of the text is empty."
    assert message_of(SubwordTokenizer.train, lines, 300, model_type) == expected


def test_unfit_arguments():
    message = message_of(SubwordTokenizer.train, LINES, 300, "words")
    assert message == (
        "model_type must be one of bpe, unigram, char, word, wordpiece, received 'words'."
    )
    for model_type in ("bpe", "unigram"):
        message = message_of(SubwordTokenizer.train, LINES, None, model_type)
        assert f"vocabulary_size must be an integer for model_type={model_type!r}" in message
    for size in ("300", 300.0, "char"):
        message = message_of(SubwordTokenizer.train, LINES, size)
        assert message == f"vocabulary_size must be an integer, received {size!r}."


def test_where_the_text_is(tmp_path):
    for one in ("corpus.txt", b"corpus.txt", tmp_path):
        message = message_of(SubwordTokenizer.train, one, 300)
        assert message.startswith("lines must be a list of strings or an open file, received ")
    for line in (("a", "b"), 7, None):
        message = message_of(SubwordTokenizer.train, [*LINES, line], 300)
        kind = type(line).__name__
        assert message == f"Every line must be a string, received a {kind}: {line!r}."


def test_what_is_no_model(tmp_path):
    for model in (b"garbage", "text", math.pi, b"\x00" * 1000):
        assert "Expected the bytes of a SentencePiece" in message_of(SubwordTokenizer, model)
    (tmp_path / "text.spm").write_text("the quick brown fox\n" * 10)
    message = message_of(SubwordTokenizer.load, tmp_path / "text.spm")
    assert str(tmp_path / "text.spm") in message and "SentencePiece" in message
    for path, reason in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        message = message_of(SubwordTokenizer.load, path)
        assert str(path) in message and reason in message


def test_other_special_ids_are_refused():
    model = train_with_sentencepiece(pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
    message = message_of(SubwordTokenizer, model)
    assert "[0, 1, 2, 3]" in message and "[-1, 0, 1, 2]" in message


def test_model_of_the_sentencepiece_package_is_welcome():
    model = train_with_sentencepiece(pad_id=0, unk_id=1, bos_id=2, eos_id=3)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert SubwordTokenizer(model)(TEXTS).to_list() == processor.encode(TEXTS)


def train_with_sentencepiece(**special_ids):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=100,
        hard_vocab_limit=False,
        minloglevel=2,
        **special_ids,
    )
    return model.getvalue()
