"""A tokenizer of one's own: the one that the guide shows, from batches to the export."""

import unicodedata

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from tests.support.command_line import run
from tests.support.paths import ROOT
from tests.support.toy_translator import random_translator, without_graphs

WORDS = ["one", "two", "three", "four"]
# What the example is made of, beside what an export always is.
OPS = "BroadcastTo DenseBincount HashTableV2 LookupTableFindV2 LookupTableImportV2".split()
OPS += ["StringSplitV2", "UnsortedSegmentJoin"]


@pytest.fixture(scope="module")
def own():
    page = (ROOT / "docs" / "tokenizers.md").read_text()
    known = {"kt": kt}
    blocks = [block.split("```")[0] for block in page.split("```python")[1:]]
    exec(next(block for block in blocks if "class Words" in block), known)
    return known["Words"](WORDS)


def test_translates_aligns_and_is_exported(own, tmp_path):
    """With targets that are not normalized, unlike those of a source; and without END."""
    texts = ["one two", "three three", "unknown four", ""]
    target = kt.SubwordTokenizer.train(["½ m²", "№ 5"] * 20, 8, "word")
    model = random_translator(own, target, seed=15).model
    translator = kt.Translator(model, own, target, source_end=False)
    answers = translator.translate(texts)
    assert len(set(answers)) > 2 and answers[3] == ""
    written = "".join(answers)
    assert unicodedata.normalize("NFKC", written) != written
    ((source, pieces, positions),) = translator.align(["one two"], ["№ 5"])
    assert (source, pieces) == (["one", "two"], ["▁№", "▁5"]) and len(positions) == 2
    config = kt.ExportConfig(signatures=("serving_default",))
    path = kt.export(translator, tmp_path / "words", config=config)
    with pytest.raises(ValueError, match="which exports of this package do not contain: if you"):
        kt.load_saved_model(path)
    assert kt.load_saved_model(path, allow_ops=OPS)(texts)[0] == answers
    rows = [f"{text}\t{answer}\n" for text, answer in zip(texts, answers, strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(rows))
    pairs = ["--source", tmp_path / "pairs.tsv"]
    for command, said in (
        (["translate", path], "\n".join(answers)),
        (["evaluate", path, *pairs], "exact match: 100.0 %"),
        (["score", path, *pairs], "has no signature score"),
    ):
        result = run(*command, "--allow-ops", *OPS, stdin="\n".join(texts).encode())
        assert said in (result.stdout + result.stderr).decode()
    with pytest.raises(ValueError, match="The source tokenizer, a Words, lacks save: pass a"):
        kt.export_ctranslate2(translator, tmp_path / "other")


def test_ids_of_another_integer_type(own):
    class Wide(type(own)):
        def __call__(self, text, end=False):
            return tf.cast(super().__call__(text, end), tf.int64)

    wide, model = Wide(WORDS), random_translator(own).model
    ((source, target_in), target_out) = next(iter(kt.make_dataset([("one", "two")], wide, wide, 8)))
    assert (source.dtype, target_in.dtype, target_out.dtype) == (tf.int32,) * 3
    scores = []
    for tokenizer in (own, wide):
        translator = without_graphs(kt.Translator(model, tokenizer, tokenizer))
        scores.append(translator.score(["one"], ["two"]))
    np.testing.assert_allclose(*scores)
