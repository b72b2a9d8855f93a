"""translate, evaluate, score and align as a user types them, with a run of random weights."""

import json

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.runs import opening
from keras_transformer.runs.opening import load
from keras_transformer.translation.text_model import TextModel
from tests.support.command_line import succeeds
from tests.support.paths import FIXTURES

SOURCES, TARGETS = ["abc", "", "hgf", "b"], ["AB", "A", "HGF", ""]


@pytest.fixture(autouse=True)
def without_graphs(monkeypatch):
    """They would take longer to make."""
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)
    monkeypatch.setattr(TextModel, "run_eagerly", True)


@pytest.fixture(scope="module")
def translator(random_run):
    translator = load(random_run)
    translator.run_eagerly = True
    return translator


def results(name, model, pairs, *options):
    *lines, end = succeeds(name, model, "--source", pairs, *options).stdout.decode().split("\n")
    assert not end
    return lines


def write_pairs(path, targets):
    rows = zip(SOURCES, targets, strict=True)
    path.write_text("".join(f"{source}\t{' '.join(x.splitlines())}\n" for source, x in rows))
    return path


def test_score_and_align(random_run, translator, tmp_path):
    asked = random_run, write_pairs(tmp_path / "pairs.tsv", TARGETS)
    expected = np.array(translator.score(SOURCES, TARGETS))
    rows = [line.split("\t") for line in results("score", *asked)]
    assert np.array(rows, float) == pytest.approx(expected, abs=1e-4)
    aligned = translator.align(SOURCES, TARGETS)
    pairs = [" ".join(f"{i}-{j}" for j, i in enumerate(row[2])) for row in aligned]
    assert pairs[0].endswith("-2") and pairs[1] == pairs[3] == ""
    assert results("align", *asked) == pairs
    options = ["--layers", "1", "2", "--heads", "2", "--tokens"]
    assert results("align", *asked, *options) == [
        f"{' '.join(a)} ||| {' '.join(b)} ||| " + " ".join(f"{i}-{j}" for j, i in enumerate(where))
        for a, b, where in translator.align(SOURCES, TARGETS, layers=[1, 2], heads=[2])
    ]


def test_evaluate_takes_the_tokenizer_of_the_run(random_run, translator, monkeypatch, tmp_path):
    found = translator.translate(SOURCES, search=SearchConfig(sample=True, seed=5))
    command = ["evaluate", random_run, write_pairs(tmp_path / "drawn.tsv", found), "--json"]
    monkeypatch.setattr(opening, "inspect_run", lambda run: {"recipe": {"bleu_tokenize": "char"}})
    command.append("--n-bootstrap=0")
    report = json.loads(results(*command, "--sample", "--seed", "5")[0])
    assert report["exact_match"] == 100 and "tok:char|" in report["signature"]
    report = json.loads(results(*command, "--bleu-tokenize", "13a")[0])
    assert report["exact_match"] < 100 and "tok:13a|" in report["signature"]


def test_evaluate_translations_that_are_there(tmp_path):
    pairs, first, second = [tmp_path / name for name in ("pairs.tsv", "first", "second")]
    write_pairs(pairs, ["a b c d e .", "f g h i j", "k l m n", "o p q r s"])
    first.write_text("a b c d e .\nf g h i\nk l m n\n" + "x" * 200 + "\n")
    second.write_text("a b c d .\nf g h i\nk l n m\no q p r s\n")
    command = ["evaluate", first, pairs, "--bleu-tokenize", "none", "--compare", second]
    report = json.loads(results(*command, "--json")[0])
    assert report["exact_match"] == 50 and report["comparison"]["exact_match"] == 0
    assert report["comparison"]["system"] == str(second)
    lines = results(*command, "--worst", "1")
    assert lines[:2] == ["source     b", "reference  o p q r s"]
    assert lines[2] == "hypothesis " + "x" * 90
    low, high = report["bleu_interval"]
    assert lines[-4] == f"BLEU: {report['bleu']:.2f} (95 % interval {low:.2f} to {high:.2f})"
    assert lines[-1] == "exact match: 50.0 %"
    assert any(line.startswith(f"BLEU of {second}: ") and "p = " in line for line in lines)
    assert f"signatures: {report['signature']}" in lines and "tok:none|" in report["signature"]
    lines = results(*command, "--n-bootstrap", "0")
    assert lines[-4] == f"BLEU: {report['bleu']:.2f}"
    assert not lines[0].startswith("source"), "what is wrong is shown when asked for"


def test_evaluate_warns_of_references_that_cannot_be_written(tmp_path):
    pairs = write_pairs(tmp_path / "pairs.tsv", ["A", "", "½", ""])
    command = ["evaluate", FIXTURES / "format-1" / "run", "--source", pairs]
    said = succeeds(*command, "--n-bootstrap", "0").stderr.decode()
    assert "references that its target vocabulary can write: 1 of 4 lines cannot be written" in said
    assert "'½' 1" in said
