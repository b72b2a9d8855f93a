"""Targets keep every printable character; lines that a vocabulary cannot write are counted."""

import dataclasses
import itertools
import random
import unicodedata

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

import keras_transformer as kt
from keras_transformer.cli.main import run as run_command
from keras_transformer.runs.run import Run
from keras_transformer.runs.run_callbacks import summarize_training
from keras_transformer.runs.training_data import check_training, open_data
from keras_transformer.tokenizers import saved
from keras_transformer.tokenizers.saved import MAX_LINES, describe_lost
from keras_transformer.tokenizers.vocabularies import SPACES_AND_CONTROLS, learn_vocabularies
from keras_transformer.train import train
from tests.support.paths import FIXTURES
from tests.support.reversed_text import MODEL
from tests.support.toy_translator import random_translator

TARGETS = ["sʰ u n t͡ɕʰ a̠", "你好，世界！", "½ m² … № 5"]
SOURCES = ["ﬁve ½ m²", "② ﬁsh", "№ 5 ﬁr"]
NORMALIZED = ["five 1⁄2 m2", "2 fish", "No 5 fir"]
PAIRS = list(zip(SOURCES, TARGETS, strict=True)) * 20
SIZES = {"bpe": 330, "unigram": 320, "char": None}
HELP = (
    "; one of type bpe, unigram or char, learned without --lowercase, keeps every character but ▁"
)


def learn(pairs=PAIRS, model_type="bpe", joint=True, lowercase=False, nfkc=True, size=None):
    options = dict(model_type=model_type, lowercase=lowercase, nfkc=nfkc, joint_vocabulary=joint)
    config = kt.PrepareConfig("x", vocabulary_size=size or SIZES.get(model_type), **options)
    return learn_vocabularies(lambda: iter(pairs), config, joint)


def wordpiece(line):
    return learn([(line, line)], "wordpiece", size=99)[1]


def written_back(model, lines):
    """What the served operation and the sentencepiece package write of lines: the same."""
    tokenizer = kt.SubwordTokenizer(model)
    served = [text.decode() for text in tokenizer.detokenize(tokenizer(lines)).numpy()]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert processor.decode(processor.encode(lines)) == served
    return served


def parts(model):
    """The pieces with their scores, and the normalization of a model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    return pieces, proto.normalizer_spec


@pytest.mark.parametrize("model_type", SIZES)
@pytest.mark.parametrize("joint", [True, False], ids=["joint", "apart"])
def test_sources_are_normalized_and_targets_are_not(model_type, joint):
    source, target = learn(model_type=model_type, joint=joint)
    assert written_back(source, SOURCES) == NORMALIZED
    assert written_back(target, TARGETS) == TARGETS
    source, target = learn(model_type=model_type, joint=joint, nfkc=False)
    assert written_back(source, SOURCES) == SOURCES and written_back(target, TARGETS) == TARGETS


@pytest.mark.parametrize("model_type", SIZES)
def test_one_tokenizer_for_both_sides_keeps_them(model_type):
    size = None if model_type == "char" else 290
    tokenizer = kt.SubwordTokenizer.train(SOURCES + TARGETS, size, model_type)
    assert written_back(tokenizer.model, TARGETS) == TARGETS


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_joint_vocabulary_differs_in_the_normalization_alone(lowercase):
    source, target = map(parts, learn(lowercase=lowercase))
    assert source[0] == target[0] and source[1] != target[1]
    pieces = "".join(piece for piece, _, _ in source[0])
    assert "ʰ" in pieces and "²" in pieces and "⁄" in pieces  # of targets, and of sources
    assert "ﬁ" not in pieces and "②" not in pieces  # no side would use them
    rules = sentencepiece.SentencePieceNormalizer(rule_name="nfkc_cf" if lowercase else "nfkc")
    proto = sentencepiece_model_pb2.ModelProto.FromString(rules.serialized_model_proto())
    assert source[1].precompiled_charsmap == proto.normalizer_spec.precompiled_charsmap
    for name in ("add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"):
        assert getattr(source[1], name) == getattr(target[1], name)


def test_text_that_nfkc_leaves_alone_has_the_same_joint_vocabulary():
    """Its source model is, byte by byte, one that is learned from all lines with NFKC."""
    pairs = [("two dogs run", "zwei Hunde laufen"), ("a cat", "eine Katze")] * 10
    source, _ = learn(pairs, size=300)
    lines = list(itertools.chain.from_iterable(pairs))
    assert source == kt.SubwordTokenizer.train(lines, 300, nfkc=True).model


def test_lower_case_is_the_only_loss_of_lower_case():
    _, target = learn(lowercase=True, joint=False)
    assert written_back(target, ["ʰ½ÄßΣ，№"]) == ["ʰ½äßσ，№"]


# What is normalized.


def test_the_list_of_what_targets_lose():
    """White space becomes a space, other control characters but NUL nothing; nothing else."""
    spaces = [*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
    spaces += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
    controls = [*range(0x01, 0x20), *range(0x7F, 0xA0)]
    expected = {code: "" for code in controls} | {code: " " for code in spaces}
    assert expected == SPACES_AND_CONTROLS
    _, target = learn()
    lines = [f"a{chr(code)}b" for code in expected]
    assert written_back(target, lines) == [f"a{text}b" for text in expected.values()]


@pytest.mark.parametrize("model_type", SIZES)
def test_every_printable_character_survives(model_type):
    """Of all of Unicode; in its order, and in others."""
    printable = [chr(code) for code in range(0x110000) if chr(code).isprintable()]
    printable = [one for one in printable if not one.isspace() and one != "▁"]
    assert len(printable) > 140_000
    rows = printable, random.Random(1).sample(printable, len(printable))
    lines = ["".join(row[start : start + 60]) for row in rows for start in range(0, len(row), 60)]
    assert written_back(learn(model_type=model_type)[1], lines) == lines


# What is said of lines that cannot be written back.


def test_nothing_is_said_when_all_can_be():
    _, target = learn()
    assert describe_lost(target, TARGETS) == describe_lost(target, []) == ""
    spaces = [" a  b ", "a\u00a0b", "\u3000a\u2003b\t", "a\x00b\x07\r", "\ufeffa\u200db"]
    assert describe_lost(target, spaces) == ""


def test_the_lines_and_the_most_frequent_characters():
    """By hand: two lines change; ʰ is lost three times, ½ once, the others not."""
    model = kt.SubwordTokenizer.train(TARGETS * 20, None, "char", nfkc=True).model
    lost = describe_lost(model, ["sʰ tʰ pʰ", "plain", "½ a"])
    assert lost == (
        "2 of 3 lines cannot be written in this vocabulary (most frequent changes: 'ʰ' 3, '½' 1)"
        + HELP
    )
    assert "'ʰ' 1, '²' 1, '½' 1, '№' 1, '…' 1)" in describe_lost(model, ["ʰ²½№…"])


@pytest.mark.parametrize(
    "model, line, changes",
    [
        (lambda: learn(lowercase=True)[1], "The THE", "'T' 2, 'H' 1, 'E' 1"),
        (lambda: learn(model_type="word")[1], "你好，世界！ foo", "'o' 2, 'f' 1"),
        (lambda: wordpiece("don ' t"), "don't", "' ' 2"),
        (lambda: wordpiece("don ' t"), "don\u200c", "'\\u200c' 1"),
        (lambda: learn()[1], "a▁b", "'▁' 1"),
    ],
    ids=["lower case", "unknown word", "punctuation", "format character", "SentencePiece's space"],
)
def test_whatever_the_reason(model, line, changes):
    said = f"1 of 1 line cannot be written in this vocabulary (most frequent changes: {changes})"
    assert describe_lost(model(), [line]) == said + HELP


def test_of_many_lines_some_are_checked():
    model = learn(lowercase=True)[1]
    lines = ["a", "A"] * (2 * MAX_LINES)  # the fourth of each, so that none has a capital
    assert describe_lost(model, lines) == ""
    lines = ["a", "a", "a", "A", "A"] * (MAX_LINES // 5) + ["a"]  # every other one
    assert describe_lost(model, lines).startswith(f"{2 * MAX_LINES // 10:,} of 5,001 lines")


def test_control_characters_and_unassigned_ones_are_printed_safely():
    said = describe_lost(wordpiece("a b"), ["a \u202e\x1b[0m b"])
    assert unicodedata.category("\u202e") == "Cf" and "'\\u202e' 1" in said
    assert said.isprintable()


# In trainings, prepared corpora, evaluations and exports.


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    paths = [folder / "train.source", folder / "train.target"]
    for path, lines in zip(paths, (SOURCES, TARGETS), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 10), encoding="utf-8")
    paths = [str(path) for path in paths]
    model = dataclasses.replace(MODEL, share_embeddings="all")
    options = dict(vocabulary_size=330, model=model, epochs=1, steps_per_epoch=2)
    options |= dict(tokens_per_batch=512, warmup_steps=2, strategy="one", valid_fraction=0.4)
    return kt.TrainConfig(*paths, **options)


def prepare(config, output, **options):
    names = {field.name for field in dataclasses.fields(kt.PrepareConfig)}
    values = {name: value for name, value in vars(config).items() if name in names}
    kt.prepare(kt.PrepareConfig(**values | options), output, processes=1)


def from_corpus(config, path, **changes):
    text = dict.fromkeys(("train_source", "train_target", "valid_fraction"))
    return dataclasses.replace(config, **text, corpus=(str(path),), **changes)


def summary(config, folder):
    """What a training prints at its start, as rows."""
    data = open_data(config, Run(folder), resume=False)
    model = kt.Transformer(9, 9, num_layers=1, d_model=8, num_heads=2, d_ff=16)
    model.build()
    lines = summarize_training(config, data, model, 7, "run").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "run"
    train(config, output)
    return output


def test_a_training_writes_both_vocabularies(run, config):
    models = saved.read(run)
    source, target = map(parts, models)
    assert source[0] == target[0] and source[1] != target[1]
    assert written_back(models[0], SOURCES) == NORMALIZED
    assert written_back(models[1], TARGETS) == TARGETS


def test_an_export_writes_what_the_model_does(tmp_path):
    source, target = map(saved.open_model, learn(model_type="word"))
    translator = random_translator(source, target, seed=2, share_embeddings="all")
    texts = SOURCES + NORMALIZED + TARGETS
    expected = translator.translate(texts)
    assert expected[:3] == expected[3:6]  # sources are normalized
    written = "".join(expected)
    assert unicodedata.normalize("NFKC", written) != written  # and targets are not
    path = kt.export(translator, tmp_path / "words", config=kt.ExportConfig(signatures=()))
    assert kt.load_saved_model(path)(texts)[0] == expected


def test_a_summary_counts_what_cannot_be_written(config, tmp_path, capsys):
    """In lower case every third target."""
    lines = ["A ʰ", "b", "c"] * 10
    target = tmp_path / "target"
    target.write_text("".join(f"{line}\n" for line in lines))
    config = dataclasses.replace(
        config, train_target=str(target), lowercase=True, vocabulary_size=300, valid_fraction=None
    )
    valid = dict(valid_source=config.train_source, valid_target=str(target))
    config = dataclasses.replace(config, **valid)
    said = "10 of 30 lines cannot be written in this vocabulary (most frequent changes: 'A' 10)"
    assert summary(config, tmp_path / "run")["targets"] == said + HELP
    prepare(config, tmp_path / "corpus")
    assert f"\ntargets: {said}{HELP}\n" in capsys.readouterr().err
    # A training on the corpus has no text to count, and says what was counted then.
    prepared = from_corpus(config, tmp_path / "corpus")
    assert summary(prepared, tmp_path / "run")["targets"] == said + HELP
    manifest = tmp_path / "corpus" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("10 of 30", "\\u001b[2J10 of 30"))
    assert kt.PreparedCorpus(tmp_path / "corpus").lost == "[2J" + said + HELP
    # Nothing is said when all can be written.
    config = dataclasses.replace(config, lowercase=False)
    rows = summary(config, tmp_path / "run")
    assert "targets" not in rows and rows["vocabulary"].endswith("tokens, joint")
    prepare(config, tmp_path / "whole")
    assert "targets" not in summary(from_corpus(config, tmp_path / "whole"), tmp_path / "run")
    assert "cannot be written" not in capsys.readouterr().err


def test_a_corpus_with_a_joint_vocabulary_is_taken_for_shared_embeddings(run, config, tmp_path):
    prepare(config, tmp_path / "corpus")
    assert saved.read(tmp_path / "corpus") == saved.read(run)
    for origin in (run, tmp_path / "corpus"):  # which are known to be joint
        again = tmp_path / f"of the {origin.name}"
        prepare(config, again, vocabularies=str(origin))
        assert kt.PreparedCorpus(again).options["joint_vocabulary"] is True
        assert saved.read(again) == saved.read(run)
        for start_from in (None, str(run)):
            tuned = from_corpus(config, again, start_from=start_from)
            check_training(tuned, tmp_path / "tuned")
    prepare(config, tmp_path / "apart", joint_vocabulary=False)
    with pytest.raises(ValueError, match="needs a joint vocabulary, but .* has two"):
        check_training(from_corpus(config, tmp_path / "apart"), tmp_path / "tuned")


def test_a_run_that_exists_keeps_its_normalization(tmp_path):
    """Its files hold it; a training that starts from it says what it cannot write."""
    source, target = saved.load(FIXTURES / "format-1" / "run")
    assert source is target
    assert target.detokenize(target("½")).numpy() == "1⁄2".encode()
    assert "'½' 1" in describe_lost(target.model, ["½"])
    assert Run(FIXTURES / "format-1" / "run").read_config().nfkc


def test_an_evaluation_warns_of_references_that_cannot_be_written(tmp_path, capsys):
    texts = [tmp_path / "source", tmp_path / "target"]
    for path, line in zip(texts, ("a", "½"), strict=True):
        path.write_text(f"{line}\n")
    command = ["evaluate", FIXTURES / "format-1" / "run", "--source", texts[0]]
    run_command([*map(str, command), "--target", str(texts[1]), "--n-bootstrap", "0"])
    said = capsys.readouterr().err
    assert "references that its target vocabulary can write: 1 of 1 line cannot be written" in said
    texts[1].write_text("a\n")
    run_command([*map(str, command), "--target", str(texts[1]), "--n-bootstrap", "0"])
    assert "warning" not in capsys.readouterr().err
