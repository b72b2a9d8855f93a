"""Vocabularies: what they are learned from, and one sentence for what none can be learned from."""

import io
import math

import pytest
import sentencepiece

from keras_transformer.special_ids import UNK
from keras_transformer.tokenizers.subword import SubwordTokenizer
from tests.support.sample_text import LINES, TEXTS

SIZES = {"bpe": 400, "unigram": 330, "char": None, "word": 30}

every_type = pytest.mark.parametrize("model_type", SIZES)


@every_type
def test_files_teach_what_lines_teach(model_type, tmp_path):
    half = len(LINES) // 2
    paths = [tmp_path / "one, two.txt", tmp_path / "three.txt"]  # a comma separates no paths
    for path, lines in zip(paths, (LINES[:half], LINES[half:]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    from_files = SubwordTokenizer.train(None, SIZES[model_type], model_type, files=paths)
    from_lines = SubwordTokenizer.train(iter(LINES), SIZES[model_type], model_type)
    vocabularies = [
        [(processor.id_to_piece(id), processor.get_score(id)) for id in range(len(processor))]
        for processor in (
            sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
            for tokenizer in (from_files, from_lines)
        )
    ]
    assert vocabularies[0] == vocabularies[1] and len(vocabularies[0]) > 20


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
    assert f"vocabulary_size={size} is too small" in message


@every_type
@pytest.mark.parametrize("lines", [[], ["", "  \n"]], ids=["none", "blank"])
def test_no_text(model_type, lines, tmp_path):
    expected = "There is no text to learn a vocabulary from: every line is empty."
    assert message_of(SubwordTokenizer.train, lines, 300, model_type) == expected
    (tmp_path / "file.txt").write_text("".join(lines))
    files = [tmp_path / "file.txt"]
    assert message_of(SubwordTokenizer.train, None, 300, model_type, files=files) == expected


def test_unfit_arguments(tmp_path):
    message = message_of(SubwordTokenizer.train, LINES, 300, "words")
    assert message == (
        "model_type must be one of bpe, unigram, char, word, wordpiece, received 'words'."
    )
    for model_type in ("bpe", "unigram"):
        message = message_of(SubwordTokenizer.train, LINES, None, model_type)
        assert f"A {model_type} vocabulary needs a vocabulary_size, received None: pass" in message
    for size in ("300", 300.0, "char"):
        message = message_of(SubwordTokenizer.train, LINES, size)
        assert message == f"vocabulary_size must be an integer, received {size!r}."
    missing = tmp_path / "missing.txt"
    assert f'"{missing}": No such file' in message_of(
        SubwordTokenizer.train, None, 300, files=[missing]
    )


def test_where_the_text_is(tmp_path):
    for one in ("corpus.txt", b"corpus.txt", tmp_path):
        message = message_of(SubwordTokenizer.train, one, 300)
        assert message.startswith("lines must be several strings, received one, ")
        assert message.endswith("or pass files=[path].")
        message = message_of(SubwordTokenizer.train, None, 300, files=one)
        assert message == f"files must be a list of paths, received one, {one!r}: put it in a list."
    for lines, files in ((None, []), (LINES, ["corpus.txt"])):
        message = message_of(SubwordTokenizer.train, lines, 300, files=files)
        assert message.startswith("Give either lines or files")
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
