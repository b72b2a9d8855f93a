"""translate, score and align as a user types them, with a run whose weights are random."""

import json

import numpy as np
import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import load
from tests.support.command_line import refused, run, sentences_before_tensorflow

LINES = ["abc", "", "hgf", "b"]
STDIN = "".join(f"{line}\n" for line in LINES).encode()


@pytest.fixture(scope="module")
def folder(random_run):
    folder = random_run
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "prefix.txt").write_text("A\n\nBC\n\n")
    (folder / "long.txt").write_text("A\nA\n" + "A" * 12 + "\nA\n")
    (folder / "target.txt").write_text("AB\nA\nHGF\n\n")
    return folder


@pytest.fixture(scope="module")
def translator(folder):
    return load(folder)


def results(*arguments):
    result = run(*arguments, stdin=STDIN)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.endswith(b"\n")
    return result.stdout.decode()[:-1].split("\n")


def test_beam(folder, translator):
    options = ["--beam-size", "3", "--length-penalty", "0.5", "--prefix", folder / "prefix.txt"]
    search = SearchConfig(beam_size=3, length_penalty=0.5)
    n_best = translator.translate_n_best(LINES, search=search, prefixes=["A", "", "BC", ""])
    assert results("translate", folder, *options) == [
        " ".join(found[0][0].splitlines()) for found in n_best
    ]
    rows = [line.split(" ||| ") for line in results("translate", folder, *options, "--n-best", "2")]
    expected = [(i, *found) for i, hypotheses in enumerate(n_best) for found in hypotheses[:2]]
    assert len(rows) == len(expected) == 8, "two of the empty line as well"
    for (number, text, score), wanted in zip(rows, expected, strict=True):
        assert (int(number), text) == (wanted[0], " ".join(wanted[1].splitlines()))
        assert float(score) == pytest.approx(wanted[3], abs=1e-4)


def test_sampling(folder, translator):
    options = "--sample --temperature 0.9 --top-k 9 --top-p 0.8 --seed 5".split()
    options += ["--max-output-length", "6"]
    search = SearchConfig(
        sample=True, temperature=0.9, top_k=9, top_p=0.8, seed=5, max_output_length=6
    )
    expected = translator.translate(LINES, search=search)
    assert results("translate", folder, *options) == [" ".join(t.splitlines()) for t in expected]
    drawn = [row.split(" ||| ") for row in results("translate", folder, *options, "--n-best", "3")]
    assert [row[0] for row in drawn] == [str(i) for i in range(len(LINES)) for _ in range(3)]
    assert [row[1] for row in drawn[::3]] == [" ".join(t.splitlines()) for t in expected]


def test_evaluate_searches_too(folder, translator):
    files = ["--source", folder / "source.txt", "--target", folder / "beam.txt", "--n-bootstrap=0"]
    found = translator.translate(LINES, search=SearchConfig(beam_size=4, length_penalty=0.0))
    (folder / "beam.txt").write_text("".join(" ".join(t.splitlines()) + "\n" for t in found))
    options = "--beam-size 4 --length-penalty 0 --json".split()
    assert json.loads(results("evaluate", folder, *files, *options)[0])["exact_match"] == 100


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


MISTAKES = {
    "empty beam": ("--beam-size 0", "beam_size must be at least 1, received 0"),
    "wide beam": ("--beam-size 278", "A beam of 278 is wider than the vocabulary of 277 ids"),
    "not sampled": ("--temperature 2", "temperature needs sample, received temperature=2.0"),
    "beam and sampling": ("--sample --beam-size 2", "beam_size must be 1 with sample, received 2"),
    "n-best": ("--n-best 3 --beam-size 2", "n_best must be from 1 to 2, unless you sample"),
    "no samples": ("--sample --n-best 0", "unless you sample, received 0"),
    "prefix": ("--prefix {folder}/long.txt", "Prefix 3 has 13 tokens, but the model's max_length"),
    "prefixes": ("--prefix {folder}/model.keras", "not valid UTF-8"),
    "no prefixes": ("--prefix /none", "/none cannot be read"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_search_mistake_gets_one_sentence(name, folder):
    options, message = MISTAKES[name]
    refused(["translate", folder, *options.format(folder=folder).split()], message, STDIN)


def test_pair_mistakes(folder):
    files = ["--source", folder / "source.txt", "--target", folder / "target.txt"]
    refused(["align", folder, *files, "--heads", "3"], "Unknown head 3: choose from 1 to 2")
    refused(["score", folder / "none", *files], "none is not a directory: give a run directory or")
    long = ["--source", folder / "source.txt", "--target", folder / "long.txt"]
    refused(["score", folder, *long], "Target 3 has 14 tokens")


def test_what_needs_no_model_does_not_wait_for_tensorflow(tmp_path):
    """Translations that are there already, and what is no model, take a moment and not seconds."""
    (tmp_path / "text").write_text("one\ntwo\n")
    text, nowhere = tmp_path / "text", tmp_path / "nowhere"
    files = ["--source", text, "--target", text]
    commands = [["evaluate", text, *files], ["translate", nowhere]]
    commands += [[name, nowhere, *files] for name in ("evaluate", "score", "align")]
    sentences = sentences_before_tensorflow(commands)
    assert len(sentences) == 4
    assert all(one.startswith(f"keras-transformer: {nowhere}") for one in sentences)
