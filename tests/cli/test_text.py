"""translate, evaluate, score and align as a user types them, with a run of random weights."""

import json

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.runs import opening
from keras_transformer.runs.opening import load
from keras_transformer.translation.text_model import TextModel
from tests.support.command_line import run, succeeds
from tests.support.paths import FIXTURES

LINES = ["abc", "", "hgf", "b"]
STDIN = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture(autouse=True)
def without_graphs(monkeypatch):
    """They would take longer to make."""
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)
    monkeypatch.setattr(TextModel, "run_eagerly", True)


@pytest.fixture(scope="module")
def folder(random_run):
    folder = random_run
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "target.txt").write_text("AB\nA\nHGF\n\n")
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    translator = load(folder)
    translator.run_eagerly = True
    return translator


def results(*arguments, stdin=STDIN):
    *lines, end = succeeds(*arguments, stdin=stdin).stdout.decode().split("\n")
    assert not end
    return lines


def one_line(text):
    return " ".join(text.splitlines())


def test_score_and_align(folder, translator):
    targets = ["AB", "A", "HGF", ""]
    files = ["--source", folder / "source.txt", "--target", folder / "target.txt"]
    expected = np.array(translator.score(LINES, targets))
    rows = [line.split("\t") for line in results("score", folder, *files)]
    assert np.array(rows, float) == pytest.approx(expected, abs=1e-4)

    aligned = translator.align(LINES, targets)
    pairs = [" ".join(f"{i}-{j}" for j, i in enumerate(row[2])) for row in aligned]
    assert pairs[0].endswith("-2") and pairs[1] == pairs[3] == ""
    assert results("align", folder, *files) == pairs
    options = ["--layers", "1", "2", "--heads", "2", "--tokens"]
    aligned = translator.align(LINES, targets, layers=[1, 2], heads=[2])
    assert results("align", folder, *files, *options) == [
        f"{' '.join(a)} ||| {' '.join(b)} ||| " + " ".join(f"{i}-{j}" for j, i in enumerate(where))
        for a, b, where in aligned
    ]


# evaluate: the scores themselves are tested in tests/test_evaluate.py.


def test_evaluate_searches_with_the_tokenizer_of_the_run(folder, translator, monkeypatch):
    found = translator.translate(LINES, search=SearchConfig(sample=True, seed=5))
    (folder / "drawn.txt").write_text("".join(f"{one_line(text)}\n" for text in found))
    files = ["--source", folder / "source.txt", "--target", folder / "drawn.txt", "--n-bootstrap=0"]
    command = ["evaluate", folder, *files, "--json"]
    recipe = {"recipe": {"bleu_tokenize": "char"}}
    monkeypatch.setattr(opening, "inspect_run", lambda run: recipe)
    report = json.loads(results(*command, "--sample", "--seed", "5")[0])
    assert report["exact_match"] == 100 and "tok:char|" in report["signature"]
    report = json.loads(results(*command, "--bleu-tokenize", "13a")[0])
    assert report["exact_match"] < 100 and "tok:13a|" in report["signature"]


def test_evaluate_translations_that_are_there(tmp_path):
    """Without a model."""
    source, target, first, second = [tmp_path / name for name in ("s", "t", "first", "second")]
    source.write_text("".join(f"source {i}\n" for i in range(4)))
    target.write_text("a b c d e .\nf g h i j\nk l m n\no p q r s\n")
    first.write_text("a b c d e .\nf g h i\nk l m n\n" + "x" * 200 + "\n")
    second.write_text("a b c d .\nf g h i\nk l n m\no q p r s\n")
    command = ["evaluate", first, "--source", source, "--target", target]
    command += ["--bleu-tokenize", "none", "--compare", second]
    report = json.loads(results(*command, "--json")[0])
    assert report["exact_match"] == 50 and report["comparison"]["exact_match"] == 0
    assert report["comparison"]["system"] == str(second)
    lines = results(*command, "--worst", "1")
    assert lines[:2] == ["source     source 3", "reference  o p q r s"]
    assert lines[2] == "hypothesis " + "x" * 90
    low, high = report["bleu_interval"]
    assert lines[-3] == f"BLEU: {report['bleu']:.2f} (95 % interval {low:.2f} to {high:.2f})"
    assert lines[-2].startswith(f"chrF: {report['chrf']:.2f} (95 % ")
    assert lines[-1] == "exact match: 50.0 %"
    assert any(line.startswith(f"BLEU of {second}: ") and "p = " in line for line in lines)
    assert f"signatures: {report['signature']}" in lines and "tok:none|" in report["signature"]
    lines = results(*command, "--n-bootstrap", "0")
    assert lines[-3] == f"BLEU: {report['bleu']:.2f}"
    assert not any("source" in line for line in lines)  # what is wrong is shown when asked for


def test_evaluate_warns_of_references_that_cannot_be_written(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\ta\nb\t½\n")
    command = ["evaluate", FIXTURES / "format-1" / "run", "--source", tmp_path / "pairs.tsv"]
    said = run(*command, "--n-bootstrap", "0").stderr.decode()
    assert "references that its target vocabulary can write: 1 of 2 lines cannot be written" in said
    assert "'½' 1" in said
