"""A prepared corpus is opened whole, or one sentence says why not."""

import json
import shutil

import numpy as np
import pytest

import keras_transformer as kt
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
    assert source is target and source.vocabulary_size == 300
    rows = np.array([330, 0, 17])
    for side, texts in enumerate(zip(*[pairs[row] for row in rows], strict=True)):
        if side < 2:
            ids, lengths = (corpus.pairs.source, corpus.pairs.target)[side].gather(rows)
            expected = source(list(texts))
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
        expected = f"{path} cannot be read (No such file or directory): "
    else:
        flipped = data[:-7] + bytes([data[-7] ^ 1]) + data[-6:]
        path.write_bytes({"truncated": data[:-1], "emptied": b"", "flipped": flipped}[damage])
        expected = f"{path} has been changed or truncated since: "
    with pytest.raises(ValueError) as caught:
        kt.PreparedCorpus(corpus)
    assert str(caught.value) == f"{expected}prepare the corpus anew."


@pytest.mark.parametrize("content", ["", '{"format": 1', "[]", "{}"])
def test_a_damaged_manifest_is_named(corpus, content):
    (corpus / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="manifest.json has been changed or truncated since: "):
        kt.PreparedCorpus(corpus)


def test_another_version_and_no_corpus_at_all(corpus, tmp_path):
    manifest = json.loads((corpus / "manifest.json").read_text())
    (corpus / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(ValueError, match="was prepared by another version, in format 2; this"):
        kt.PreparedCorpus(corpus)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=f"{path} is no prepared corpus: there is no manifest"):
            kt.PreparedCorpus(path)
