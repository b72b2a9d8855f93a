"""A tokenizer of one's own: the one that the guide shows, from training to the export."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.tokenizers.subword import SubwordTokenizer
from tests.support.command_line import run

WORDS = ["one", "two", "three", "four"]
# What the example is made of, beside what an export always is.
OPS = "BroadcastTo DenseBincount HashTableV2 LookupTableFindV2 LookupTableImportV2".split()
OPS += ["StringSplitV2", "UnsortedSegmentJoin"]
SIZES = dict(num_layers=1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=8)


@pytest.fixture(scope="module")
def own():
    """The guide's class."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "tokenizers.md").read_text()
    known = {"kt": kt}
    blocks = [block.split("```")[0] for block in page.split("```python")[1:]]
    exec(next(block for block in blocks if "class Words" in block), known)
    return known["Words"](WORDS)


@pytest.fixture(scope="module")
def translator(own):
    """A model that has learned to turn two words round, by its dataset."""
    pairs = [(f"{a} {b}", f"{b} {a}") for a in WORDS for b in WORDS]
    keras.utils.set_random_seed(0)
    dataset = kt.make_dataset(pairs * 20, own, own, tokens_per_batch=256, max_length=8)
    model = kt.Transformer(own.vocabulary_size, own.vocabulary_size, **SIZES)
    model.compile(keras.optimizers.Adam(1e-2), kt.SmoothedCrossEntropy(0.0))
    model.fit(dataset, epochs=10, shuffle=False, verbose=0)
    return kt.Translator(model, own, own)


def test_ours_and_the_example_are_tokenizers(own):
    ours = SubwordTokenizer.train(WORDS, model_type="char")
    assert isinstance(ours, kt.Tokenizer) and isinstance(own, kt.Tokenizer)
    assert not isinstance("abc", kt.Tokenizer)
    for tokenizer in (ours, own):
        one, two = tokenizer("one"), tokenizer("two one")
        assert tokenizer(["one", "two one"]).to_list() == [one.numpy().tolist()] + [
            two.numpy().tolist()
        ]
        assert tokenizer("one", end=True).numpy().tolist() == [*one.numpy(), kt.END]
        padded = [[kt.START, *two.numpy(), kt.END, kt.PAD]]
        assert tokenizer.detokenize(tf.constant(padded)).numpy().tolist() == [b"two one"]
        assert tokenizer.pieces(two).shape == two.shape


def test_trains_translates_and_aligns(translator):
    texts = ["one two", "three three", "four one", ""]
    assert translator.translate(texts) == ["two one", "three three", "one four", ""]
    ((source, target, positions),) = translator.align(["one two"], ["two one"])
    assert (source, target) == (["one", "two"], ["two", "one"]) and len(positions) == 2


def test_is_exported(translator, tmp_path):
    texts = ["one two", "three three", "unknown four", ""]
    lines = "".join(f"{text}\n" for text in texts).encode()
    config = kt.ExportConfig(signatures=("serving_default",))
    path = kt.export(translator, tmp_path / "words", config=config)
    with pytest.raises(
        ValueError, match="which exports of this package do not contain: if you know"
    ):
        kt.load_saved_model(path)
    translate = kt.load_saved_model(path, allow_ops=OPS)
    answers = translator.translate(texts)
    assert translate(texts)[0] == answers
    (tmp_path / "pairs.tsv").write_text("one two\ttwo one\n")
    named = ["--allow-ops", *OPS]
    for command, said in {
        ("translate", path): "\n".join(answers),
        ("evaluate", path, "--source", tmp_path / "pairs.tsv"): "exact match: 100.0 %",
        ("score", path, "--source", tmp_path / "pairs.tsv"): "has no signature score",
    }.items():
        refused, result = (run(*command, *more, stdin=lines) for more in ([], named))
        assert refused.returncode == 2 and b"by --allow-ops" in refused.stderr
        assert said in (result.stdout + result.stderr).decode()


def test_ids_of_another_integer_type(own):
    class Wide(type(own)):
        def __call__(self, text, end=False):
            return tf.cast(super().__call__(text, end), tf.int64)

    wide, model = Wide(WORDS), kt.Transformer(8, 8, **SIZES)
    ((source, target_in), target_out) = next(iter(kt.make_dataset([("one", "two")], wide, wide, 8)))
    assert (source.dtype, target_in.dtype, target_out.dtype) == (tf.int32,) * 3
    scores = [kt.Translator(model, t, t).score(["one"], ["two"]) for t in (own, wide)]
    np.testing.assert_allclose(*scores)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ("abc", "The source tokenizer, a str, lacks vocabulary_size, __call__, detokenize, pieces"),
        (
            len,
            "a builtin_function_or_method, lacks vocabulary_size, detokenize, pieces: pass a Sub",
        ),
        (
            SubwordTokenizer,
            "The source tokenizer, the class SubwordTokenizer, lacks vocabulary_size:",
        ),
    ],
)
def test_what_is_no_tokenizer(wrong, sentence, own):
    model = kt.Transformer(8, 8, **SIZES)
    with pytest.raises(ValueError, match=sentence):
        kt.Translator(model, wrong, own)
    with pytest.raises(ValueError, match=r"The target tokenizer, .* of kt\.Tokenizer\.$"):
        kt.Translator(model, own, wrong)


def test_what_only_some_tokenizers_can(own, translator, tmp_path):
    with pytest.raises(ValueError, match="The target tokenizer, a str, lacks __call__: pass"):
        kt.make_dataset([("one", "two")], own, "abc", 8)
    with pytest.raises(ValueError, match="The source tokenizer, a Words, lacks save: pass a"):
        kt.export_ctranslate2(translator, tmp_path / "words")
