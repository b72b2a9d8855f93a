"""Scores: those that the sacrebleu command line prints for the same files, and what is counted."""

import dataclasses
import importlib.util
import json
import re
import shutil
import sys

import pytest
import sacrebleu

from keras_transformer.evaluate import evaluate
from keras_transformer.runs.opening import Opened
from keras_transformer.runs.run import Run
from keras_transformer.translation.corpus_scores import corpus_scores
from tests.support import child_process
from tests.support.paths import FIXTURES

# Target, then translation: equal, close, far off, nothing, of several scripts.
ROWS = [
    ("The cat sat on the mat.", "The cat sat on the mat."),
    ("It's raining, isn't it?", "It's raining , isn't it ?"),
    ("two dogs run across a wide green field", "two dogs are running across the field"),
    ("a man in a red shirt", ""),
    ("東京の夜は長い。", "東京の夜は短い。"),
    ("Ein älterer Mann — 50 % größer!", "ein aelterer mann - 50% groesser"),
    ("1998-05-09", "1998-05-09"),
    ("nothing in common", "xyz"),
]
TARGETS, OUTPUTS = zip(*ROWS, strict=True)
SOURCES = [f"source {i}" for i in range(len(ROWS))]


def lookup(sources, outputs):
    answers = dict(zip(sources, outputs, strict=True))
    return lambda texts: [answers[text] for text in texts]


def report_of(targets, outputs, *groups, **options):
    sources = [f"source {i}" for i in range(len(targets))]
    pairs = list(zip(sources, targets, *groups, strict=True))
    return evaluate(lookup(sources, outputs), pairs, **options)


def sacrebleu_command(folder, systems, *options):
    """What the sacrebleu command prints for the outputs of systems, with TARGETS as references."""
    names = [folder / f"{number}.txt" for number in range(len(systems) + 1)]
    for name, lines in zip(names, [TARGETS, *systems], strict=True):
        name.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", names[0], "-i", *names[1:]]
    command += ["-m", "bleu", "chrf", "ter", "-w", "12", "--force", *options]
    return child_process.run(command, capture_output=True, check=True).stdout.decode("utf-8")


@pytest.mark.parametrize("tokenizer", [None, "zh"])
def test_scores_are_those_of_the_command_line(tokenizer, tmp_path):
    options = {"bleu_tokenize": tokenizer} if tokenizer else {}
    unspaced = ["--ter-normalized", "--ter-asian-support"]  # TER without it knows no Chinese words
    flags = ["-tok", tokenizer, *unspaced] if tokenizer else []
    bleu, chrf, ter = json.loads(sacrebleu_command(tmp_path, [OUTPUTS], "--format", "json", *flags))
    quick = corpus_scores(OUTPUTS, TARGETS, **options)
    assert (bleu["name"], chrf["name"]) == ("BLEU", "chrF2")
    assert quick["bleu"] == pytest.approx(bleu["score"], abs=1e-9) and 5 < bleu["score"] < 95
    assert quick["chrf"] == pytest.approx(chrf["score"], abs=1e-9) and 5 < chrf["score"] < 95
    assert quick["signature"] == f"{bleu['signature']} {chrf['signature']}"
    assert f"tok:{tokenizer or '13a'}|" in quick["signature"]
    report = report_of(TARGETS, OUTPUTS, **options)
    assert report["bleu"] == quick["bleu"] and report["chrf"] == quick["chrf"]
    assert report["ter"] == pytest.approx(ter["score"], abs=1e-9) and 5 < ter["score"] < 95
    signature = f"{quick['signature']} {ter['signature']}"
    assert report["signature"].replace("bs:1000|seed:12345|", "") == signature
    without = report_of(TARGETS, OUTPUTS, n_bootstrap=0, **options)
    expected = quick | {"ter": report["ter"], "signature": signature}
    assert without.items() >= expected.items() and "bleu_interval" not in without


def test_comparison_is_that_of_the_command_line(tmp_path):
    other = [output.lower()[:20] for output in OUTPUTS]
    # As a table: its JSON fails on NumPy's numbers.
    table = sacrebleu_command(tmp_path, [OUTPUTS, other], "--paired-bs", "--format", "text")
    triples = re.findall(r"([0-9.]+) \(([0-9.]+) ± ([0-9.]+)\)", table)
    triples = [tuple(map(float, triple)) for triple in triples]
    p_values = [float(p_value) for p_value in re.findall(r"p = ([0-9.]+)", table)]
    report = report_of(TARGETS, OUTPUTS, compare=lookup(SOURCES, other))
    comparison = report["comparison"]
    names = "bleu", "chrf", "ter"
    for scores, expected in ((report, triples[:3]), (comparison, triples[3:])):
        for name, (score, middle, half) in zip(names, expected, strict=True):
            limits = [max(middle - half, 0), min(middle + half, 1000 if name == "ter" else 100)]
            assert scores[name] == pytest.approx(score, abs=1e-9)
            assert scores[f"{name}_interval"] == pytest.approx(limits, rel=1e-6)
    ours = [comparison[f"{name}_p_value"] for name in names]
    assert ours == pytest.approx(p_values, abs=6e-5) and 0.01 < ours[0] < 0.99
    assert comparison["exact_match"] == 100 / 8
    assert json.loads(json.dumps(report)) == report


def test_lines_per_second_are_those_of_translating(monkeypatch):
    clock = iter([100.0, 104.0, 200.0, 201.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    report = report_of(TARGETS, OUTPUTS, compare=lookup(SOURCES, OUTPUTS), n_bootstrap=0)
    assert (report["sentences"], report["by_group"]) == (8, {})
    assert report["lines_per_second"] == 2 and report["comparison"]["lines_per_second"] == 8


def test_exact_means_exact():
    targets = ["a b", "a b", "A b", "a b", "ä"]
    outputs = ["a b", "a  b", "a b", "a b ", "a\u0308"]
    assert report_of(targets, outputs, n_bootstrap=0)["exact_match"] == 20


def test_groups_worst_first():
    rights = {"de": [1, 1, 0, 1], "en": [1, 1], "fr": [0, 0, 1], "bg": [1, 0, 1, 1], "": [0, 1]}
    rows = [(group, right) for group, hits in rights.items() for right in hits]
    groups, hits = zip(*rows, strict=True)
    report = report_of(["x"] * 15, ["x" if hit else "y" for hit in hits], groups)
    # Worst first, by name where equal; rows without a group count in the total only.
    expected = [("fr", pytest.approx(100 / 3)), ("bg", 75.0), ("de", 75.0), ("en", 100.0)]
    assert list(report["by_group"].items()) == expected
    assert report["exact_match"] == pytest.approx(100 * 10 / 15)


def test_the_worst_are_the_least_similar():
    rows = report_of(TARGETS, OUTPUTS, n_bootstrap=0)["worst"]
    assert len(rows) == 6  # two are right
    assert [row["chrf"] for row in rows] == sorted(row["chrf"] for row in rows)
    assert {row["translation"] for row in rows[:2]} == {"", "xyz"}
    for row in rows:
        i = SOURCES.index(row["source"])
        assert (row["target"], row["translation"]) == ROWS[i]
        assert row["chrf"] == sacrebleu.sentence_chrf(OUTPUTS[i], [TARGETS[i]]).score
    assert report_of(TARGETS, OUTPUTS, n_bootstrap=0, worst=2)["worst"] == rows[:2]


MISTAKES = [
    (dict(pairs=[]), "Nothing to evaluate: received no sentence pairs"),
    (dict(n_bootstrap=-5), "n_bootstrap must be at least 0, received -5"),
    (dict(bleu_tokenize="13b"), "no tokenizer '13b': choose one of none, zh, 13a"),
    (dict(worst=-1), "worst must be at least 0"),
    (dict(translate=["a"]), "Received 1 hypothesis but 2 references"),
    (dict(compare=["a"] * 1000), "1,000 hypotheses but 2 references"),
]


@pytest.mark.parametrize("arguments, message", MISTAKES)
def test_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**{"translate": pytest.fail, "pairs": [("a", "b"), ("c", "d")]} | arguments)


@pytest.mark.skipif(importlib.util.find_spec("MeCab"), reason="the Japanese tokenizer is there")
def test_tokenizer_that_is_not_installed():
    with pytest.raises(ValueError, match="'ja-mecab' cannot be used as tokenizer: .*sacrebleu.ja"):
        evaluate(pytest.fail, [("a", "b")], bleu_tokenize="ja-mecab")


def test_tokenizer_is_that_of_the_run(tmp_path):
    run = shutil.copytree(FIXTURES / "format-1" / "run", tmp_path / "run")
    version = shutil.copytree(FIXTURES / "format-1" / "export" / "1", tmp_path / "models" / "1")
    assert [Opened(path).bleu_tokenize for path in (run, version)] == ["13a", "13a"]
    Run(run).write_config(dataclasses.replace(Run(run).read_config(), bleu_tokenize="zh"))
    (version / "model.json").write_text('{"recipe": {"bleu_tokenize": "char"}}')
    found = [Opened(path).bleu_tokenize for path in (run, version, version.parent)]
    assert found == ["zh", "char", "char"]
    (version / "model.json").unlink()
    assert Opened(version).bleu_tokenize == "13a"
