"""Prepared corpora: the same bytes whatever happens; opened whole or refused."""

import collections
import os
import shutil

import numpy as np
import pytest
import sentencepiece

import keras_transformer as kt
from keras_transformer.data import prepared_corpus as module
from keras_transformer.data import text_files
from keras_transformer.data.dataset import open_corpora
from keras_transformer.data.text_files import load_corpus, sample_rows
from keras_transformer.tokenizers import saved
from tests.support import child_process
from tests.support.made_up_text import write_text
from tests.support.paths import FIXTURES


@pytest.fixture(scope="module", autouse=True)
def small_shards():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "BLOCK", 1 << 12)
        patch.setattr(module, "SHARD", 2)
        yield


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text"), 513, shards=3)


PARTS = dict(valid_fraction=0.1, seed=3)


@pytest.fixture(scope="module")
def made(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "corpus"
    kt.prepare(kt.PrepareConfig(*text, **PARTS, vocabulary_size=400), path, processes=1)
    return path


def contents(path):
    return {name: (path / name).read_bytes() for name in sorted(os.listdir(path))}


def sentences(corpus):
    for side in (corpus.pairs.source, corpus.pairs.target):
        parts = (np.split(ids, offsets[1:-1].astype(int)) for ids, offsets in side.shards)
        yield [row.tolist() for part in parts for row in part]


def test_a_corpus_is_its_text_as_ids(made, text):
    corpus = kt.PreparedCorpus(made)
    read = load_corpus(kt.TrainConfig(*text, **PARTS))
    assert sorted([*read.train, *read.valid]) == sorted(kt.read_pairs(*text))
    assert len(corpus) == len(read.train) and corpus.valid == read.valid
    names = [name for name in contents(made) if "ids" in name]
    assert len(names) > 3 and names == [f"{n:05}.ids.npy" for n in range(len(names))]
    for side, rows in enumerate(sentences(corpus)):
        assert rows == corpus.tokenizers[side]([pair[side] for pair in read.train]).to_list()
    for ids, offsets in corpus.pairs.source.shards + corpus.pairs.target.shards:
        assert not ids.flags.owndata and ids.dtype == np.uint16  # memory-mapped
        assert not offsets.flags.owndata and offsets.dtype == np.uint32
    assert corpus.tokenizers[0].vocabulary_size == corpus.options["vocabulary_size"] == 400
    assert corpus.options["seed"] == 3 and corpus.fingerprints["train"]["pairs"] == len(read.train)


def test_the_same_bytes_with_any_number_of_processes(made, text, tmp_path):
    config = kt.PrepareConfig(*text, **PARTS, vocabulary_size=400)
    kt.prepare(config, tmp_path / "three", processes=3)
    assert contents(tmp_path / "three") == contents(made)


def test_vocabularies_are_those_of_a_training(text, tmp_path):
    """On a sample of the lines, and in their order; of any validation text."""
    valid = tmp_path / "valid.tsv"
    # Ends of lines that are none, a mark that is one, and an empty side.
    valid.write_bytes("\ufeff\ufeffone\ta\r\r\n\ttwo\u2028\x85\nthree\t\n".encode())
    options = dict(vocabulary_size=350, model_type="unigram", lowercase=True, nfkc=False)
    own = dict(vocabulary_sample=217, joint_vocabulary=False, valid_source=str(valid))
    kt.prepare(kt.PrepareConfig(*text, **options, **own), tmp_path / "corpus", processes=1)
    rows = sample_rows(513, 217, seed=1)
    sides = list(zip(*[kt.read_pairs(*text)[row] for row in rows], strict=True))[:2]
    for side, name in zip(sides, ("source.spm", "target.spm"), strict=True):
        expected = kt.SubwordTokenizer.train(side, **options).model
        assert (tmp_path / "corpus" / name).read_bytes() == expected
    found = kt.PreparedCorpus(tmp_path / "corpus").valid
    assert found == kt.read_pairs(valid) and found[0] == ("\ufeffone", "a\r", "")


def test_segmentations_are_sampled(text, tmp_path):
    """Each pair comes as often as wanted, in other pieces each time; the fingerprint is its own."""
    options = dict(vocabulary_size=400, model_type="unigram", subword_sampling=0.3, samples=3)
    for name in ("one", "other"):
        kt.prepare(kt.PrepareConfig(*text, **options), tmp_path / name, processes=1)
    one, other = (kt.PreparedCorpus(tmp_path / name) for name in ("one", "other"))
    assert len(one) == len(one.pairs) == 3 * 513
    prints = [corpus.fingerprints["train"]["sha256"] for corpus in (one, other)]
    assert len(set(prints)) == 2 and list(sentences(one)) != list(sentences(other))
    for side, rows in enumerate(sentences(one)):
        processor = sentencepiece.SentencePieceProcessor(model_proto=one.tokenizers[side].model)
        texts = [pair[side] for pair in kt.read_pairs(*text)]
        assert collections.Counter(processor.decode(rows)) == collections.Counter(3 * texts)
        assert len(set(map(tuple, rows))) > 2 * len(texts)


def test_vocabularies_of_another_corpus_or_run_are_taken(made, text, tmp_path):
    run = FIXTURES / "format-1" / "run"  # of characters, for both sides
    for origin, options in ((made, ("bpe", 400, True)), (run, ("char", None, True))):
        output = tmp_path / options[0]
        kt.prepare(kt.PrepareConfig(*text, vocabularies=str(origin)), output, processes=1)
        corpus = kt.PreparedCorpus(output)
        assert [tokenizer.model for tokenizer in corpus.tokenizers] == list(saved.read(origin))
        names = "model_type", "vocabulary_size", "joint_vocabulary"
        assert tuple(corpus.options[name] for name in names) == options
    # Only the first of them can be mixed with its origin.
    opened, weights = open_corpora([(made, 3), (kt.PreparedCorpus(tmp_path / "bpe"), 0.5)])
    assert weights == [3, 0.5] and len(opened[0]) == len(kt.PreparedCorpus(made))
    with pytest.raises(ValueError, match="char was prepared with other vocabularies than .*corpus"):
        open_corpora([(made, 3), (tmp_path / "char", 0.5)])
    other = kt.PrepareConfig(*text, vocabularies=str(made), model_type="char")
    with pytest.raises(ValueError, match="model_type must be 'bpe' .* received 'char'"):
        kt.prepare(other, tmp_path / "third")


def test_what_is_damaged_is_named(made, tmp_path):
    """Files of ids: `tests/runs/test_opening.py`. A whole corpus may be moved."""
    corpus = shutil.copytree(made, tmp_path / "corpus")
    assert len(kt.PreparedCorpus(corpus).pairs) == len(kt.PreparedCorpus(made))
    (corpus / "00000.ids.npy").unlink()
    with pytest.raises(ValueError, match=f"{corpus} lacks 00000.ids.npy: prepare the corpus"):
        kt.PreparedCorpus(corpus)
    for content, message in (
        ('{"format": 1', "manifest.json is corrupted"),
        ("[]", "manifest.json holds no JSON object"),
        ('{"format": 3}', "was prepared by another version, in format 3, but this"),
        ('{"format": 2, "files": {}}', "manifest.json was changed or is corrupted"),
        ('{"sha256": "", "format": 1, "files": {}}', "manifest.json was changed or is corrupted"),
        ('{"format": 1, "files": {}}', "manifest.json lacks fingerprints, options, shards"),
    ):
        (corpus / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match=f"{corpus}.*{message}"):
            kt.PreparedCorpus(corpus)
    with pytest.raises(ValueError, match="is not a prepared corpus .manifest.json is missing"):
        kt.PreparedCorpus(tmp_path)


def test_only_into_an_empty_directory(text, tmp_path):
    (tmp_path / "full" / "mine").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not empty: choose another --output"):
        kt.prepare(kt.PrepareConfig(*text), tmp_path / "full")
    with pytest.raises(ValueError, match="processes must be at least 1, received 0"):
        kt.prepare(kt.PrepareConfig(*text), tmp_path / "other", processes=0)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_full_disk_is_one_sentence(text, tmp_path, monkeypatch):
    """Vocabularies of bytes and characters fit into the 20 kB that a file may have, ids do not."""
    monkeypatch.setattr(module, "SHARD", 64)
    config = kt.PrepareConfig(*text, vocabulary_size=300, vocabulary_sample=30, nfkc=False)
    said = "corpus cannot be created: File too large"
    with pytest.raises(ValueError, match=said), child_process.largest_file(20_000):
        kt.prepare(config, tmp_path / "corpus", processes=1)
    assert not list(tmp_path.iterdir())
