"""`make ablations` takes hours: at least its options are the command line's."""

import gzip

import pytest

from benchmarks import adaptation, distillation
from benchmarks.ablations import VARIANTS, training
from benchmarks.fine_tuning import split, trainings
from benchmarks.position_trainings import LENGTHS, copying, multi30k, write_letters
from tests.support.command_line import run


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_a_training(name, tmp_path):
    """The only thing wrong with it is the corpus."""
    result = run("train", *training(tmp_path / "none", tmp_path / "run", VARIANTS[name]))
    message = f"{tmp_path}/none/train.lc.norm.tok.en.gz: check the path"
    assert result.returncode == 2 and message in result.stderr.decode()


def test_fine_tuning_reads_each_half_once(tmp_path):
    """`make fine-tuning` does too: its halves have no pair in common, and its options are right."""
    for language in ("en", "de"):
        for part in ("train", "val"):
            with gzip.open(tmp_path / f"{part}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{language} {i}\n" for i in range(5))
    halves = split(tmp_path, tmp_path / "runs")
    with gzip.open(f"{halves[1]}/train.lc.norm.tok.de.gz", "rt") as file:
        assert file.read() == "de 1\nde 3\n"
    variants = trainings(tmp_path, halves, tmp_path / "runs")
    for name, (text, changes) in variants.items():
        result = run("train", *training(text, tmp_path / name, changes), "--bleu-tokenize", "x")
        expected = "one-half is not a run directory" if "then" in name else "no tokenizer 'x'"
        assert result.returncode == 2 and expected in result.stderr.decode()


def test_adaptation_is_to_other_words(tmp_path):
    """`python -m benchmarks.adaptation` too."""
    texts = {"en": ["a man", "a hat"], "de": ["ein mann", "ein hut"]}
    for language, lines in texts.items():
        for part in ("train", "val"):
            with gzip.open(tmp_path / f"{part}.lc.norm.tok.{language}.gz", "wt") as file:
                file.writelines(f"{line}\n" for line in lines)
    paths = adaptation.write_texts(tmp_path, tmp_path)
    with open(paths["few"]) as few, open(paths["old words"]) as old:
        assert (few.read(), old.read()) == ("a man\tein herr\n", "a hat\tein hut\n")
    for name, options in adaptation.trainings(paths, tmp_path).items():
        result = run("train", *options, "--output", tmp_path / "run", "--seed", "-1")
        expected = "seed must be" if name == "before" else "before is not a run directory"
        assert result.returncode == 2 and expected in result.stderr.decode()


def test_trainings_of_positions(tmp_path):
    """`make positions` too; and no text of letters is longer in training than it says."""
    folder = write_letters(tmp_path / "letters")
    lines = {part: (folder / f"{part}.tsv").read_text().split() for part in ("train", "valid")}
    assert max(map(len, lines["train"])) == 20 and len(lines["valid"]) == 1000
    for length in LENGTHS:
        assert {len(word) for word in (folder / f"{length}.tsv").read_text().split()} == {length}
    none, new = tmp_path / "none", tmp_path / "run"
    for options in (copying(none, new, "bucketed"), training(none, new, multi30k("rotary", "2"))):
        result = run("train", *options)
        assert result.returncode == 2 and "No file matches" in result.stderr.decode()


def test_students_are_trained_on_translations(tmp_path):
    """`python -m benchmarks.distillation` names them after the corpus: the last one counts."""
    for language in ("en", "de"):
        for part in ("train", "val"):
            with gzip.open(tmp_path / f"{part}.lc.norm.tok.{language}.gz", "wt") as file:
                file.write("a\n")
    for _, changes in distillation.STUDENTS.values():
        options = [*changes, "--train-target", f"{tmp_path}/translations.de"]
        result = run("train", *training(tmp_path, tmp_path / "run", options))
        assert result.returncode == 2 and "translations.de" in result.stderr.decode()
