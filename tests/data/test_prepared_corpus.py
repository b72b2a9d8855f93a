"""Prepared corpora: opened whole or refused, with the ids that are served."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from tests.support.hostile_lines import hostile, lines_with_numbers, repetitive
from tests.support.made_up_text import write_text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    texts = write_text(folder, 331)
    valid = folder / "valid.tsv"
    # Ends of lines that are none, a mark that is one, and an empty side.
    valid.write_bytes("\ufeff\ufeffone\ta\r\r\n\ttwo\u2028\x85\nthree\t\n".encode())
    config = kt.PrepareConfig(*texts, valid_source=str(valid), vocabulary_size=300)
    kt.prepare(config, folder / "corpus", processes=1)
    return folder


@pytest.fixture
def corpus(made, tmp_path):
    return shutil.copytree(made / "corpus", tmp_path / "corpus")


def test_what_is_in_it(made):
    corpus = kt.PreparedCorpus(made / "corpus")
    pairs = kt.read_pairs(made / "part-*.source", made / "part-*.target")
    assert len(corpus) == len(corpus.pairs) == 331
    assert corpus.valid == kt.read_pairs(made / "valid.tsv")
    assert corpus.valid[0] == ("\ufeffone", "a\r", "")
    source, target = corpus.tokenizers
    assert source.vocabulary_size == target.vocabulary_size == 300
    rows = np.array([330, 0, 17])
    for side, texts in enumerate(zip(*[pairs[row] for row in rows], strict=True)):
        if side < 2:
            ids, lengths = (corpus.pairs.source, corpus.pairs.target)[side].gather(rows)
            expected = (source, target)[side](list(texts))
            assert ids.tolist() == expected.flat_values.numpy().tolist()
            assert lengths.tolist() == expected.row_lengths().numpy().tolist()
    assert corpus.options["vocabulary_size"] == 300 and corpus.options["seed"] == 1
    assert corpus.fingerprints["train"]["pairs"] == 331


def test_it_can_be_moved(corpus, tmp_path):
    shutil.move(corpus, tmp_path / "elsewhere")
    assert len(kt.PreparedCorpus(tmp_path / "elsewhere").pairs) == 331


NAMES = ["00000.ids.npy", "00000.offsets.npy", "source.spm", "target.spm", "valid.source"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "deleted"])
def test_a_damaged_file_is_named(corpus, name, damage):
    path = corpus / name
    data = path.read_bytes()
    if damage == "deleted":
        path.unlink()
        expected = f"{corpus} lacks {name}: prepare the corpus again."
    else:
        flipped = data[:-7] + bytes([data[-7] ^ 1]) + data[-6:]
        path.write_bytes({"truncated": data[:-1], "emptied": b"", "flipped": flipped}[damage])
        expected = f"{path} has been changed or truncated: prepare it again."
    with pytest.raises(ValueError) as caught:
        kt.PreparedCorpus(corpus)
    assert str(caught.value) == expected


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]"])
def test_a_damaged_manifest_is_named(corpus, content):
    (corpus / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="manifest.json (is corrupted|holds no JSON object)"):
        kt.PreparedCorpus(corpus)


def test_another_version_and_no_corpus_at_all(corpus, tmp_path):
    manifest = json.loads((corpus / "manifest.json").read_text())
    (corpus / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(ValueError, match="was prepared by another version, in format 2, but this"):
        kt.PreparedCorpus(corpus)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            ValueError, match=f"{path} is not a prepared corpus .manifest.json is missing"
        ):
            kt.PreparedCorpus(path)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """1,000 hostile lines and, on the other side, 1,000 that rounding decides."""
    folder = tmp_path_factory.mktemp("text")
    lines = [line for line in hostile(1700) if b"\n" not in line and is_utf8(line)]
    sides = {"source": lines[:1000], "target": repetitive(1000)}
    for name, side in sides.items():
        (folder / name).write_bytes(b"".join(line + b"\n" for line in side))
    learned = folder / "learned.tsv"
    learned.write_text("".join(f"{line}\t{line}\n" for line in lines_with_numbers()))
    return folder


def is_utf8(line):
    try:
        line.decode()
        return True
    except UnicodeDecodeError:
        return False


SIZES = [("bpe", 600), ("unigram", 700), ("char", None), ("word", 90)]


@pytest.mark.parametrize("model_type, size", SIZES)
def test_ids_are_those_that_are_served(text, tmp_path, model_type, size):
    options = dict(vocabulary_size=size, model_type=model_type)
    vocabulary = kt.PrepareConfig(str(text / "learned.tsv"), **options, joint_vocabulary=False)
    kt.prepare(vocabulary, tmp_path / "learned", processes=1)
    config = kt.PrepareConfig(
        str(text / "source"), str(text / "target"), vocabularies=str(tmp_path / "learned")
    )
    kt.prepare(config, tmp_path / "corpus", processes=1)
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    pairs = kt.read_pairs(text / "source", text / "target")
    assert len(pairs) == 1000
    for side, sentences in enumerate((corpus.pairs.source, corpus.pairs.target)):
        served = corpus.tokenizers[side]([pair[side] for pair in pairs])
        ((ids, offsets),) = sentences.shards
        assert offsets.tolist() == served.row_splits.numpy().tolist()
        assert ids.tolist() == served.flat_values.numpy().tolist()


@pytest.mark.slow
def test_three_hundred_thousand_pairs(tmp_path):
    """Any sentence is its text, and every pair comes once a pass."""
    text = write_text(tmp_path, 300_007, shards=3, words=500, length=5)
    config = kt.PrepareConfig(*text, vocabulary_size=900, vocabulary_sample=5000)
    kt.prepare(config, tmp_path / "corpus")
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    rows = np.array([0, 262_143, 262_144, 300_006, *range(5, 300_000, 2999)])
    pairs = kt.read_pairs(*text)
    processor = sentencepiece.SentencePieceProcessor(model_proto=corpus.tokenizers[0].model)
    for side, sentences in enumerate((corpus.pairs.source, corpus.pairs.target)):
        ids, lengths = sentences.gather(rows)
        expected = processor.encode([pairs[row][side] for row in rows])
        assert np.split(ids, np.cumsum(lengths)[:-1])[3].tolist() == expected[3]
        assert ids.tolist() == [one for row in expected for one in row]
    dataset = kt.make_dataset(corpus=corpus, tokens_per_batch=16_000, max_length=300)
    taken = sum(len(target) for _, target in dataset)
    assert taken == 300_007
