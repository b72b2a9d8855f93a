"""Text to ids and back: the graph ops, held id for id against the sentencepiece package."""

import functools
import gc
import itertools

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


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_pieces_are_longer_than_characters(model_type):
    tokenizer, processor = trained(model_type)
    text = "the quick brown fox"
    pieces = [processor.id_to_piece(id) for id in tokenizer(text).numpy().tolist()]
    assert len(pieces) < len(text) * 3 / 4 and "".join(pieces).replace("▁", " ") == f" {text}"


@pytest.mark.parametrize("model_type", ["bpe", "unigram", "char"])
def test_nothing_is_unknown_where_bytes_spell_the_rest(model_type):
    tokenizer, _ = trained(model_type, nfkc=False)
    ids = tokenizer(TEXTS + BYTES)
    assert UNK not in ids.flat_values.numpy()
    assert tokenizer("ᚠ").shape[0] >= 3  # not in LINES: three bytes
    # Nothing is lost either: with the identity only spaces are tidied.
    texts = [" ".join(filter(None, text.split(" "))) for text in TEXTS if "▁" not in text]
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


@every_type
def test_special_ids(model_type):
    tokenizer, processor = trained(model_type)
    assert (PAD, UNK, START, END) == (0, 1, 2, 3)
    special = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
    assert special == [PAD, UNK, START, END]
    assert tokenizer.vocabulary_size == processor.vocab_size()
    assert SIZES[model_type] in (None, tokenizer.vocabulary_size)
    # Special ids have no text, and text that looks like one is not one.
    assert tokenizer.detokenize([START, PAD, END]).numpy() == b""
    assert not {PAD, START, END} & set(tokenizer("<s></s><pad>").numpy().tolist())


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
        assert tokenizer.detokenize(ids).numpy().tolist() == [b"the fox", b""]
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
    sampled = tokenizer.sample(texts, 0.3, seed=1).to_list()
    assert tokenizer.sample(texts, 0.3, seed=1, end=True).to_list() == [[*x, END] for x in sampled]


def test_tokenize_is_another_name_for_the_call():
    tokenizer, _ = trained()
    assert tokenizer.tokenize(TEXTS[:5]).to_list() == tokenizer(TEXTS[:5]).to_list()
    assert tokenizer.tokenize("the fox", end=True).numpy()[-1] == END


def test_empty_batch():
    tokenizer, _ = trained()
    for empty in ([], (), tf.zeros([0], tf.string)):
        ids = tokenizer(empty)
        assert ids.to_list() == [] and ids.dtype == tf.int32
        assert tokenizer.detokenize(ids).numpy().tolist() == []
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).numpy().tolist() == []


@every_type
def test_bytes_that_are_no_text(model_type):
    tokenizer, _ = trained(model_type)
    for raw in BYTES:
        replaced = raw.decode("utf-8", errors="replace")
        assert tokenizer(raw).numpy().tolist() == tokenizer(replaced).numpy().tolist()
    assert tokenizer(["a \ud800 b"]).to_list() == tokenizer(["a ? b"]).to_list()
    assert tokenizer("a \udfff b").numpy().tolist() == tokenizer("a ? b").numpy().tolist()


def test_runs_in_a_graph():
    tokenizer, _ = trained()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def there_and_back(text):
        ids = tokenizer(text)
        return ids.to_tensor(PAD), tokenizer.detokenize(ids)

    texts = ["the quick fox", "", "東京"]
    for batch in (texts, texts[:1], texts + texts):
        ids, back = there_and_back(tf.constant(batch))
        assert ids.numpy().tolist() == tokenizer(batch).to_tensor(PAD).numpy().tolist()
        assert [text.decode() for text in back.numpy()] == batch


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
