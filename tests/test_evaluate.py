"""Scores: those that the sacrebleu command line prints for the same files, and what is counted."""

import importlib.util
import json
import subprocess
import sys

import pytest
import sacrebleu

from keras_transformer.corpora.pair import Pair
from keras_transformer.evaluate import evaluate

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
    """A translate function that knows the answers."""
    answers = dict(zip(sources, outputs, strict=True))
    return lambda texts: [answers[text] for text in texts]


def report_of(targets, outputs, groups=None, **options):
    """Evaluates outputs, given as such."""
    sources = [f"source {i}" for i in range(len(targets))]
    rows = (sources, targets) if groups is None else (sources, targets, groups)
    pairs = [row if groups is None else Pair(*row) for row in zip(*rows, strict=True)]
    return evaluate(lookup(sources, outputs), pairs, **options)


@pytest.mark.parametrize("tokenizer", [None, "none", "intl", "char", "zh"])
def test_scores_are_those_of_the_command_line(tokenizer, tmp_path):
    reference, hypothesis = tmp_path / "reference.txt", tmp_path / "hypothesis.txt"
    reference.write_text("\n".join(TARGETS) + "\n", encoding="utf-8")
    hypothesis.write_text("\n".join(OUTPUTS) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", reference, "-i", hypothesis]
    command += ["-m", "bleu", "chrf", "-w", "12", "--format", "json"]
    command += ["-tok", tokenizer] if tokenizer else []
    printed = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    bleu, chrf = json.loads(printed)

    options = {"bleu_tokenize": tokenizer} if tokenizer else {}
    report = report_of(TARGETS, OUTPUTS, **options)
    assert (bleu["name"], chrf["name"]) == ("BLEU", "chrF2")
    assert report["bleu"] == pytest.approx(bleu["score"], abs=1e-9) and 5 < bleu["score"] < 95
    assert report["chrf"] == pytest.approx(chrf["score"], abs=1e-9) and 5 < chrf["score"] < 95
    assert report["signature"] == f"{bleu['signature']} {chrf['signature']}"
    assert f"tok:{tokenizer or '13a'}|" in report["signature"]


def test_exact_match_and_count():
    report = report_of(TARGETS, OUTPUTS)
    assert report["exact_match"] == 100 * 2 / 8
    assert report["sentences"] == 8
    assert report["by_group"] == {}
    assert json.loads(json.dumps(report)) == report


def test_perfect_and_hopeless():
    perfect = report_of(TARGETS, TARGETS)
    assert perfect["bleu"] == pytest.approx(100) and perfect["chrf"] == pytest.approx(100)
    assert perfect["exact_match"] == 100 and perfect["worst"] == []
    hopeless = report_of(TARGETS, [""] * 8)
    assert hopeless["bleu"] == hopeless["chrf"] == hopeless["exact_match"] == 0


def test_exact_means_exact():
    targets = ["a b", "a b", "A b", "a b", "ä"]
    outputs = ["a b", "a  b", "a b", "a b ", "a\u0308"]
    assert report_of(targets, outputs)["exact_match"] == 20


def test_groups_worst_first():
    rights = {"de": [1, 1, 0, 1], "en": [1, 1], "fr": [0, 0, 1], "bg": [1, 0, 1, 1], "": [0, 1]}
    rows = [(group, right) for group, hits in rights.items() for right in hits]
    groups, hits = zip(*rows, strict=True)
    report = report_of(["x"] * 15, ["x" if hit else "y" for hit in hits], groups)
    # Worst first, by name where equal; rows without a group count in the total only.
    assert list(report["by_group"].items()) == [
        ("fr", pytest.approx(100 / 3)),
        ("bg", 75.0),
        ("de", 75.0),
        ("en", 100.0),
    ]
    assert report["exact_match"] == pytest.approx(100 * 10 / 15)


def test_the_worst_are_the_least_similar():
    report = report_of(TARGETS, OUTPUTS)
    rows = report["worst"]
    assert len(rows) == 6  # two are right
    assert [row["chrf"] for row in rows] == sorted(row["chrf"] for row in rows)
    assert {row["translation"] for row in rows[:2]} == {"", "xyz"}
    for row in rows:
        i = SOURCES.index(row["source"])
        assert (row["target"], row["translation"]) == ROWS[i]
        assert row["chrf"] == sacrebleu.sentence_chrf(OUTPUTS[i], [TARGETS[i]]).score


def test_no_more_than_ten_of_the_worst():
    targets = [f"target number {i:02}" for i in range(30)]
    outputs = [target[: i + 1] for i, target in enumerate(targets)]
    worst = report_of(targets, outputs)["worst"]
    assert [row["translation"] for row in worst] == outputs[:10]


def test_everything_is_translated_at_once_and_in_order():
    calls = []

    def translate(texts):
        calls.append(texts)
        return [text.upper() for text in texts]

    report = evaluate(translate, [("a", "A"), ("c", "C"), ("b", "x")])
    assert calls == [["a", "c", "b"]]
    assert report["worst"] == [{"source": "b", "target": "x", "translation": "B", "chrf": 0.0}]


def refuse(texts):
    raise AssertionError("nothing should be translated before the arguments are checked")


def test_nothing_to_evaluate():
    with pytest.raises(ValueError, match="nothing to evaluate: no sentence pair"):
        evaluate(refuse, [])


def test_unknown_tokenizer():
    with pytest.raises(ValueError, match="no tokenizer '13b': choose one of none, zh, 13a"):
        evaluate(refuse, [("a", "b")], bleu_tokenize="13b")


@pytest.mark.skipif(importlib.util.find_spec("MeCab"), reason="the Japanese tokenizer is there")
def test_tokenizer_that_is_not_installed():
    with pytest.raises(ValueError, match="'ja-mecab' cannot be used to compare: .*sacrebleu.ja"):
        evaluate(refuse, [("a", "b")], bleu_tokenize="ja-mecab")
