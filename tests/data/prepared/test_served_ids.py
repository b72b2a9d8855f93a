"""Ids of a prepared corpus are those of the operation that is served, line by line."""

import json

import pytest

import keras_transformer as kt
from tests.support.hostile_lines import hostile, lines_with_numbers, repetitive


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


@pytest.mark.parametrize("model_type, size", [("bpe", 600), ("unigram", 700)])
def test_ids_are_those_that_are_served(text, tmp_path, capsys, model_type, size):
    options = dict(vocabulary_size=size, model_type=model_type)
    vocabulary = kt.PrepareConfig(str(text / "learned.tsv"), **options, joint_vocabulary=False)
    kt.prepare(vocabulary, tmp_path / "learned", processes=1)
    capsys.readouterr()
    config = kt.PrepareConfig(
        str(text / "source"), str(text / "target"), vocabularies=str(tmp_path / "learned")
    )
    kt.prepare(config, tmp_path / "corpus", processes=1)
    corpus = kt.PreparedCorpus(tmp_path / "corpus")
    pairs = kt.read_pairs(text / "source", text / "target")
    assert len(pairs) == 1000
    for side, shards in enumerate(corpus.shards()):
        served = corpus.tokenizers[side]([pair[side] for pair in pairs])
        ((ids, offsets),) = shards
        assert offsets.tolist() == served.row_splits.numpy().tolist()
        assert ids.tolist() == served.flat_values.numpy().tolist()
    counts = json.loads((tmp_path / "corpus" / "manifest.json").read_text())["served"]
    said = capsys.readouterr().err
    if model_type == "bpe":
        assert counts == {"uncertain": 0, "differing": 0, "such_as": []} and "otherwise" not in said
    else:
        assert 100 < counts["differing"] <= counts["uncertain"] < 2000
        assert f"{counts['differing']:,} of them otherwise than the sentencepiece" in said
        assert len(counts["such_as"]) == 3 and counts["such_as"][0] in said
