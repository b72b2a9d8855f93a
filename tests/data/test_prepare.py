"""Preparing a corpus: the same bytes whatever happens, and the ids that are served."""

import collections
import os
import sys

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.data import prepared_corpus as module
from keras_transformer.data import text_files
from keras_transformer.data.text_files import load_corpus, sample_rows
from tests.support import child_process
from tests.support.made_up_text import write_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """1,013 pairs in three shards of text."""
    return write_text(tmp_path_factory.mktemp("text"), 1013, shards=3)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Two blocks each, of some kilobytes."""
    monkeypatch.setattr(text_files, "BLOCK", 1 << 12)
    monkeypatch.setattr(module, "SHARD", 2)


def contents(path):
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path))}


def sentences(corpus):
    """Both sides as lists of lists of ids."""
    for side in (corpus.pairs.source.shards, corpus.pairs.target.shards):
        rows = []
        for ids, offsets in side:
            rows += [part.tolist() for part in np.split(ids, offsets[1:-1].astype(int))]
        yield rows


def test_a_corpus_is_its_text_as_ids(text, tmp_path, capsys):
    config = kt.PrepareConfig(*text, vocabulary_size=400, valid_fraction=0.1, seed=3)
    kt.prepare(config, tmp_path / "corpus", processes=1)
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    pairs = kt.read_pairs(*text)
    options = dict(train_source=text[0], train_target=text[1], valid_fraction=0.1, seed=3)
    read = load_corpus(kt.TrainConfig(**options))
    train, valid = read.train, read.valid
    assert sorted([*train, *valid]) == sorted(pairs)
    assert len(corpus) == len(train) and corpus.valid == valid
    names = [name for name in contents(tmp_path / "corpus") if "ids" in name]
    assert len(names) > 3 and names == [f"{n:05}.ids.npy" for n in range(len(names))]
    for side, rows in enumerate(sentences(corpus)):
        model = corpus.tokenizers[side].model
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        assert rows == processor.encode([pair[side] for pair in train])
    for ids, offsets in corpus.pairs.source.shards + corpus.pairs.target.shards:
        assert not ids.flags.owndata and ids.dtype == np.uint16  # memory-mapped
        assert not offsets.flags.owndata and offsets.dtype == np.uint32
    said = f"{len(train):,} training pairs, {len(valid):,} for validation"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "apart"])
def test_vocabularies_are_those_of_a_training(text, tmp_path, joint):
    """On a sample of the lines, and in their order."""
    options = dict(vocabulary_size=350, model_type="unigram", lowercase=True, nfkc=False)
    config = kt.PrepareConfig(*text, **options, vocabulary_sample=217, joint_vocabulary=joint)
    kt.prepare(config, tmp_path / "corpus", processes=1)
    rows = sample_rows(1013, 217, seed=1)
    assert len(rows) == 217
    pairs = [kt.read_pairs(*text)[row] for row in rows]
    lines = [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
    if joint:
        lines = [[text for pair in pairs for text in pair[:2]]] * 2
    for side, name in zip(lines, ("source.spm", "target.spm"), strict=True):
        expected = kt.SubwordTokenizer.train(side, **options).model
        assert (tmp_path / "corpus" / name).read_bytes() == expected


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_bytes_with_any_number_of_processes(text, tmp_path, model_type):
    config = kt.PrepareConfig(*text, vocabulary_size=400, model_type=model_type)
    for count in (1, 2, 3):
        kt.prepare(config, tmp_path / str(count), processes=count)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_segmentations_are_sampled(text, tmp_path, model_type):
    """Each pair comes as often as wanted, in other pieces each time; the fingerprint is its own."""
    options = dict(vocabulary_size=400, model_type=model_type)
    config = kt.PrepareConfig(*text, **options, subword_sampling=0.3, samples=3)
    kt.prepare(config, tmp_path / "sampled")
    kt.prepare(kt.PrepareConfig(*text, **options), tmp_path / "plain")
    kt.prepare(config, tmp_path / "other", processes=1)
    sampled, plain, other = (
        kt.PreparedCorpus(tmp_path / name) for name in ("sampled", "plain", "other")
    )
    assert len(sampled) == len(sampled.pairs) == 3 * len(plain) == 3 * 1013
    prints = [corpus.fingerprints["train"]["sha256"] for corpus in (sampled, plain, other)]
    assert len(set(prints)) == 3 and list(sentences(sampled)) != list(sentences(other))
    for side, rows in enumerate(sentences(sampled)):
        processor = sentencepiece.SentencePieceProcessor(model_proto=plain.tokenizers[side].model)
        texts = [pair[side] for pair in kt.read_pairs(*text)]
        found = collections.Counter(processor.decode(rows))
        assert found == collections.Counter(3 * texts)
        assert len(set(map(tuple, rows))) > 2 * len(texts)


def test_vocabularies_of_another_corpus_are_taken(text, tmp_path):
    first = kt.PrepareConfig(*text, vocabulary_size=400, lowercase=True)
    kt.prepare(first, tmp_path / "first", processes=1)
    second = kt.PrepareConfig(*text, vocabularies=str(tmp_path / "first"))
    kt.prepare(second, tmp_path / "second", processes=1)
    first, second = (kt.PreparedCorpus(tmp_path / name) for name in ("first", "second"))
    assert list(sentences(first)) == list(sentences(second))
    assert second.options == first.options
    other = kt.PrepareConfig(*text, vocabularies=str(tmp_path / "first"), model_type="char")
    with pytest.raises(ValueError, match="model_type must be 'bpe' .* received 'char'"):
        kt.prepare(other, tmp_path / "third")


def test_only_into_an_empty_directory(text, tmp_path):
    (tmp_path / "full" / "mine").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not empty: choose another --output"):
        kt.prepare(kt.PrepareConfig(*text), tmp_path / "full")
    (tmp_path / "full" / "mine").rmdir()
    (tmp_path / "full").rmdir()
    with pytest.raises(ValueError, match="processes must be at least 1, received 0"):
        kt.prepare(kt.PrepareConfig(*text), tmp_path / "other", processes=0)
    assert not list(tmp_path.iterdir())


def test_text_without_a_vocabulary_leaves_nothing_behind(tmp_path):
    """That there is none is found when the directory has been made."""
    (tmp_path / "empty.tsv").write_text("\t\n \t \n")
    with pytest.raises(ValueError, match="every line of the text is empty"):
        kt.prepare(kt.PrepareConfig(str(tmp_path / "empty.tsv")), tmp_path / "corpus")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.tsv"]


FULL_DISK = """import resource, sys
sys.argv = ["keras-transformer", *sys.argv[1:]]
from keras_transformer.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
main()
"""


def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(text, tmp_path):
    """Vocabularies of bytes and characters fit into the 20 kB that a file may have, ids do not."""
    words = ["prepare", "--train-source", text[0], "--train-target", text[1]]
    words += ["--vocabulary-size", "300", "--vocabulary-sample", "30", "--processes", "1"]
    words += ["--no-nfkc", "--output", str(tmp_path / "corpus")]
    process = child_process.run(
        [sys.executable, "-c", FULL_DISK, *words], capture_output=True, text=True
    )
    assert process.returncode == 2
    assert "corpus cannot be created: File too large" in process.stderr
    assert "Traceback" not in process.stderr and not list(tmp_path.iterdir())


# What is wrong with the text leaves nothing behind.


def test_a_bad_line_in_the_middle(text, tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    patterns = write_text(folder, 1013, shards=3)
    path = folder / "part-01.target"
    lines = path.read_bytes().split(b"\n")
    lines[200] = b"ab\xffc"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=f"{path} line 201 is not valid UTF-8 at byte 3"):
        kt.prepare(kt.PrepareConfig(*patterns, vocabulary_size=400), tmp_path / "corpus")
    path.write_bytes(b"\n".join(lines[:200]) + b"\n")
    source = folder / "part-01.source"
    with pytest.raises(ValueError, match=f"{source} has 338 lines and {path} has 200"):
        kt.prepare(kt.PrepareConfig(*patterns, vocabulary_size=400), tmp_path / "corpus")
    assert [entry.name for entry in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"train_source": "/none-*.en"}, "No file matches /none-[*].en"),
        ({"valid_source": "/none.tsv"}, "No file matches /none.tsv"),
        ({"valid_target": "/none"}, "--valid-source is missing"),
        ({"valid_fraction": 1.5}, "valid_fraction must be above 0 and below 1, received 1.5"),
        ({"valid_fraction": 0.1, "valid_source": "x.tsv"}, "leave out one of the two"),
        ({"vocabulary_size": 7}, "vocabulary_size must be greater than"),
        ({"vocabulary_sample": 0}, "vocabulary_sample must be at least 1, received 0"),
        ({"model_type": "words"}, "model_type must be one of"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"subword_sampling": -0.1}, "subword_sampling must be at least 0"),
        (
            {"subword_sampling": 0.1, "model_type": "char"},
            "of type bpe or unigram, received 'char'",
        ),
        ({"samples": 3}, "samples needs --subword-sampling"),
        ({"vocabularies": "/none"}, "/none has no vocabularies"),
    ],
)
def test_bad_options_leave_nothing_behind(text, tmp_path, changes, message):
    options = dict(zip(("train_source", "train_target"), text, strict=True)) | changes
    with pytest.raises(ValueError, match=message):
        kt.prepare(kt.PrepareConfig(**options), tmp_path / "corpus")
    assert not list(tmp_path.iterdir())
