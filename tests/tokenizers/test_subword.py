"""SubwordTokenizer: the ids and the text of the sentencepiece package, for any content."""

import copy
import functools
import gc
import io
import pickle
from unicodedata import category

import keras
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.special_ids import END, PAD, START, UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from tests.support.sample_text import BYTES, LINES, TEXTS

# Size, and whether text is lower-cased and normalized to NFKC.
CONFIGURATIONS = {
    "bpe": (400, False, False),
    "unigram": (330, False, True),
    "char": (None, True, True),
    "word": (30, True, False),
}


@functools.cache
def trained(model_type="bpe"):
    size, lowercase, nfkc = CONFIGURATIONS[model_type]
    tokenizer = SubwordTokenizer.train(LINES, size, model_type, lowercase, nfkc)
    return tokenizer, sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)


@pytest.mark.parametrize("model_type", CONFIGURATIONS)
def test_ids_and_text_are_those_of_sentencepiece(model_type):
    tokenizer, processor = trained(model_type)
    assert tokenizer.vocabulary_size == processor.vocab_size()
    batch = tokenizer(TEXTS + BYTES)
    assert batch.dtype == tf.int32
    for text, ids in zip(TEXTS + BYTES, batch.to_list(), strict=True):
        assert ids == processor.encode(text)
        assert tokenizer(text).numpy().tolist() == ids  # alone as in the batch
    # What a model writes may be no text at all: bytes in disorder, special ids in the middle.
    ids = batch.to_list() + [[id] for id in range(tokenizer.vocabulary_size)]
    ids += [[7, 250 % tokenizer.vocabulary_size, UNK, 7, END, START, 9]]
    texts = tokenizer.detokenize(tf.ragged.constant(ids, tf.int32)).numpy().tolist()
    assert [text.decode() for text in texts] == [processor.decode(row) for row in ids]
    # Special ids have no text, and text that looks like one is not one.
    assert tokenizer.detokenize([START, PAD, END]).numpy() == b""
    assert not {PAD, START, END} & set(tokenizer("<s></s><pad>").numpy().tolist())
    assert tokenizer(["a \ud800 b"]).to_list() == tokenizer(["a ? b"]).to_list()
    assert tokenizer("a \udfff b").numpy().tolist() == tokenizer("a ? b").numpy().tolist()


def tidied(text):
    """Text as it comes back: white space and controls but NUL are tidied; ▁ is a space."""
    text = "".join(" " if one.isspace() or one == "▁" else one for one in text)
    return " ".join("".join(x for x in text if x == "\0" or category(x) != "Cc").split())


@given(st.lists(st.text() | st.binary(), min_size=1))
def test_any_text_comes_back(texts):
    """Bytes spell what no piece does: nothing is unknown, every id is one of the vocabulary."""
    tokenizer, processor = trained()
    ids = tokenizer(texts)
    assert ids.to_list() == [processor.encode(text) for text in texts]
    flat = ids.flat_values.numpy()
    assert UNK not in flat and ((flat > END) & (flat < tokenizer.vocabulary_size)).all()
    for text, found in zip(texts, tokenizer.detokenize(ids).numpy(), strict=True):
        written = found.decode()  # whatever it was made from, it is UTF-8
        assert isinstance(text, bytes) or written == tidied(text)


def test_what_is_normalized_and_unknown():
    for lowercase, nfkc, expected in (
        (False, False, "ÀÉ ﬁ ① ΟΔΟΣ"),
        (True, False, "àé ﬁ ① οδοσ"),
        (False, True, "ÀÉ fi 1 ΟΔΟΣ"),
        (True, True, "àé fi 1 οδοσ"),
    ):
        tokenizer = SubwordTokenizer.train(["a"], None, "char", lowercase, nfkc)
        assert tokenizer.detokenize(tokenizer("ÀÉ ﬁ ① ΟΔΟΣ")).numpy().decode() == expected
    words, _ = trained("word")
    ids = words("the unheard-of fox").numpy().tolist()
    assert [id == UNK for id in ids] == [False, True, False]
    assert words.detokenize(ids).numpy().decode().split() == ["the", "⁇", "fox"]


def test_shapes_of_input_and_output():
    tokenizer, _ = trained()
    one = tokenizer("the fox").numpy().tolist()
    assert isinstance(tokenizer("the fox"), tf.Tensor)
    assert tokenizer("the fox", end=True).numpy().tolist() == [*one, END]
    for batch in (["the fox", ""], ("the fox", b""), tf.constant(["the fox", ""])):
        ids = tokenizer(batch)
        assert isinstance(ids, tf.RaggedTensor) and ids.to_list() == [one, []]
        ended = tokenizer(batch, end=True)
        assert ended.to_list() == [[*one, END], [END]] and ended.dtype == tf.int32
        assert tokenizer.detokenize(ids).numpy().tolist() == [b"the fox", b""]
    for empty in ([], tf.zeros([0], tf.string)):
        ids = tokenizer(empty)
        assert ids.to_list() == tokenizer(empty, end=True).to_list() == [] and ids.dtype == tf.int32
        assert tokenizer.detokenize(ids).numpy().tolist() == []
    padded = tf.constant([one + [PAD, PAD], [END, *one, PAD]], tf.int64)
    assert tokenizer.detokenize(padded).numpy().tolist() == [b"the fox"] * 2
    assert tokenizer.detokenize(one).numpy() == b"the fox"  # a scalar
    pieces = [piece.decode() for piece in tokenizer.pieces(one).numpy()]
    assert "".join(pieces) == "▁the▁fox" and tokenizer.pieces(ids).to_list() == []


def test_outlives_the_cache_of_kernels_and_its_twins():
    """TensorFlow drops cached kernels when a seed is set, and with them what they own."""
    tokenizer, processor = trained()
    traced = tf.function(lambda text: tokenizer(text, end=True).to_tensor(PAD))
    dataset = tf.data.Dataset.from_tensors("the fox").map(tokenizer)
    twins = [SubwordTokenizer(tokenizer.model)]
    expected = processor.encode("the fox")
    for disturb in (
        lambda: None,
        lambda: keras.utils.set_random_seed(1),
        lambda: tf.random.set_seed(2),
        keras.utils.clear_session,
        lambda: (twins.clear(), gc.collect()),
    ):
        disturb()
        assert tokenizer("the fox").numpy().tolist() == expected
        found = traced(tf.constant(["the fox", ""])).numpy().tolist()
        assert found == [[*expected, END], [END] + [PAD] * len(expected)]
        assert [ids.numpy().tolist() for ids in dataset] == [expected]


def test_saved_copied_and_loaded(tmp_path):
    tokenizer, _ = trained()
    tokenizer.save(tmp_path / "source.spm")
    copies = [SubwordTokenizer.load(tmp_path / "source.spm"), copy.deepcopy(tokenizer)]
    for twin in (*copies, copy.copy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert type(twin) is SubwordTokenizer and twin.model == tokenizer.model
        assert twin.vocabulary_size == tokenizer.vocabulary_size
        assert twin(TEXTS[:9]).to_list() == tokenizer(TEXTS[:9]).to_list()
        assert twin.detokenize(twin("the fox")).numpy() == b"the fox"


def test_what_is_no_model_with_our_special_ids():
    for model in (b"garbage", "text", b"\x00" * 1000):
        with pytest.raises(ValueError, match="Expected the bytes of a SentencePiece"):
            SubwordTokenizer(model)

    def train(**special_ids):
        model = io.BytesIO()
        options = dict(vocab_size=100, hard_vocab_limit=False, minloglevel=2) | special_ids
        learn = sentencepiece.SentencePieceTrainer.train
        learn(sentence_iterator=iter(LINES), model_writer=model, **options)
        return model.getvalue()

    with pytest.raises(ValueError, match=r"\[0, 1, 2, 3\].*\[-1, 0, 1, 2\]"):
        SubwordTokenizer(train(pad_id=-1, unk_id=0, bos_id=1, eos_id=2))
    model = train(pad_id=0, unk_id=1, bos_id=2, eos_id=3)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert SubwordTokenizer(model)(TEXTS).to_list() == processor.encode(TEXTS)
