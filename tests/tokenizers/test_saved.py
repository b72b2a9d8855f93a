"""Vocabularies in directories: whole corpora get the ids that are served; losses are counted."""

import dataclasses
import random
import unicodedata

import pytest

import keras_transformer as kt
from keras_transformer.runs.run import Run
from keras_transformer.runs.run_callbacks import summarize_training
from keras_transformer.runs.training_data import open_data
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.saved import MAX_LINES, describe_lost, make_encoder, model_type
from keras_transformer.utils import read_sealed, write_sealed
from tests.support.reversed_text import MODEL
from tests.support.sample_text import BYTES, LINES, TEXTS

LOST = "cannot be written in this vocabulary (most frequent changes: "
HELP = "; one of type bpe, unigram or char, learned without --lowercase, keeps every character but "
HELP += "▁"


def repetitive_lines():
    """Of words that have many segmentations of the same pieces: rounding decides between them."""
    chooser = random.Random(1)
    units, ends = ["0", "0", "a", "ba", "haha", "x", ".", "12"], ["", "", "fox", ",000"]
    stems = [chooser.choice(units) * chooser.randrange(1, 12) for _ in range(5000)]
    words = [stem + chooser.choice(ends) for stem in stems]
    return [" ".join(chooser.choices(words, k=chooser.choice([1, 9, 300]))) for _ in range(300)]


@pytest.fixture(scope="module")
def tokenizers():
    """One of each type, with pieces of several digits, of which some are equally probable."""
    chooser = random.Random(3)
    lines = [f"for {chooser.randrange(10**6):,} dollars or 10,000" for _ in range(300)] + LINES
    sizes = {"bpe": 600, "unigram": 680, "char": None, "word": 90}
    found = {kind: kt.SubwordTokenizer.train(lines, size, kind) for kind, size in sizes.items()}
    return found | {"wordpiece": kt.WordPieceTokenizer.train(lines, 200)}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word", "wordpiece"])
def test_ids_are_those_that_are_served(tokenizers, kind):
    tokenizer = tokenizers[kind]
    assert model_type(tokenizer.model) == kind
    encode, size = make_encoder(tokenizer.model)
    assert size == tokenizer.vocabulary_size
    lines = [text.replace("\n", " ").encode() for text in TEXTS + repetitive_lines()]
    lines += [raw.decode(errors="replace").encode() for raw in BYTES]
    ids, lengths = encode(lines)
    served = tokenizer(lines)
    assert lengths.tolist() == served.row_lengths().numpy().tolist()
    assert ids.tolist() == served.flat_values.numpy().tolist()


def test_vocabularies_of_a_directory(tokenizers, tmp_path):
    words = tokenizers["wordpiece"]
    saved.write(tmp_path, [words, tokenizers["bpe"]])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["source.wordpiece", "target.spm"]
    source, target = saved.load(tmp_path)
    assert source(LINES).to_list() == words(LINES).to_list()
    assert saved.read(tmp_path) == (source.model, target.model)
    (tmp_path / "target.spm").unlink()
    saved.write(tmp_path, [source, source])
    assert len(set(map(id, saved.load(tmp_path)))) == 1


def learn(line, **options):
    return kt.SubwordTokenizer.train([line] * 20, **options).model


def test_the_lines_and_the_most_frequent_characters():
    """By hand: two lines change; ʰ is lost three times, ½ once, the others not."""
    model = learn("ʰ½²№… a", model_type="char", nfkc=True)
    lost = describe_lost(model, ["sʰ tʰ pʰ", "plain", "½ a"])
    assert lost == f"2 of 3 lines {LOST}'ʰ' 3, '½' 1){HELP}"
    assert "'ʰ' 1, '²' 1, '½' 1, '№' 1, '…' 1)" in describe_lost(model, ["ʰ²½№…"])
    # Nothing is said when all can be written.
    model = learn("a b", model_type="char")
    lines = ["sʰ 你好，", " a  b ", "a\u00a0b", "\u3000a\u2003b\t", "a\x00b\x07\r", "\ufeffa\u200d"]
    assert describe_lost(model, lines) == describe_lost(model, []) == ""


def test_whatever_the_reason():
    lower = learn("the", model_type="char", lowercase=True, nfkc=True)
    words = learn("the fox", model_type="word")
    pieces = kt.WordPieceTokenizer.train(["don ' t"], 13).model
    for model, line, changes in (
        (lower, "The THE", "'T' 2, 'H' 1, 'E' 1"),
        (words, "the foo", "'o' 2, 'f' 1"),
        (pieces, "don't", "' ' 2"),
        (pieces, "don\u200c", "'\\u200c' 1"),
        (learn("a", model_type="char"), "a▁b", "'▁' 1"),
    ):
        assert describe_lost(model, [line]) == f"1 of 1 line {LOST}{changes}){HELP}"
    said = describe_lost(pieces, ["don \u202e\x1b[0m t"])  # a control character, printed safely
    assert unicodedata.category("\u202e") == "Cf" and "'\\u202e' 1" in said and said.isprintable()


def test_of_many_lines_some_are_checked():
    model = learn("a", model_type="char", lowercase=True, nfkc=True)
    lines = ["a", "A"] * (2 * MAX_LINES)  # the fourth of each, so that none has a capital
    assert describe_lost(model, lines) == ""
    lines = ["a", "a", "a", "A", "A"] * (MAX_LINES // 5) + ["a"]  # every other one
    assert describe_lost(model, lines).startswith(f"{2 * MAX_LINES // 10:,} of 5,001 lines")


def summary(config, folder):
    data = open_data(config, Run(folder), resume=False)
    model = kt.Transformer(9, 9, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    model.build()
    lines = summarize_training(config, data, model, 7, "run").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def test_trainings_and_corpora_count_what_cannot_be_written(tmp_path, capsys):
    """Every third target has a word that is none of the three most frequent ones."""
    for name, lines in (("source", ["a", "b", "c"]), ("target", ["A", "b a", "c"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines * 10))
    paths = [str(tmp_path / name) for name in ("source", "target")]
    names = "train_source", "train_target", "valid_source", "valid_target"
    texts = dict(zip(names, 2 * paths, strict=True))
    own = dict(model_type="word", vocabulary_size=7)
    model = dataclasses.replace(MODEL, share_embeddings="all")
    config = kt.TrainConfig(**texts, **own, model=model, tokens_per_batch=512, strategy="one")
    said = f"10 of 30 lines {LOST}'A' 10){HELP}"
    assert summary(config, tmp_path / "run")["targets"] == said
    kt.prepare(kt.PrepareConfig(**texts, **own), tmp_path / "corpus", processes=1)
    assert f"\ntargets: {said}\n" in capsys.readouterr().err
    # A training on the corpus has no text to count, and says what was counted then.
    corpus = dict.fromkeys(texts) | {"corpus": (str(tmp_path / "corpus"),)}
    assert summary(dataclasses.replace(config, **corpus), tmp_path / "run")["targets"] == said
    manifest = tmp_path / "corpus" / "manifest.json"
    write_sealed(manifest, read_sealed(manifest) | {"lost": f"\x1b[2J{said}"})
    assert kt.PreparedCorpus(tmp_path / "corpus").lost == "[2J" + said
    # Nothing is said when all can be written.
    rows = summary(dataclasses.replace(config, vocabulary_size=8), tmp_path / "run")
    assert "targets" not in rows and rows["vocabulary"].endswith("tokens, joint")
    assert rows["pairs"] == "30, for validation 30 (of the training text itself)"
    assert rows["steps"].endswith(" of 7 steps") and "vocabulary_size 8" in rows["options"]
