"""What the commands ask an export: the answers of the translator in memory, or one sentence."""

import dataclasses
import json
import shutil

import pytest

from keras_transformer.presets import SearchConfig
from keras_transformer.serving import exported_translator
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import load_saved_model
from tests.support.command_line import run
from tests.support.toy_translator import SOURCES, trained_translator

BEAM = SearchConfig(beam_size=5)
DRAWN = SearchConfig(sample=True, temperature=1.5, top_k=20, top_p=0.9, seed=7)
TARGETS = ["ABC", "HGG", "", "A", "BBBB", "FEDCBA", "x", "HB", "ABCDEFGH", "\u6771"]


@pytest.fixture(scope="module")
def translator():
    return trained_translator()


@pytest.fixture(scope="module")
def exported(toy_version):
    return ExportedTranslator(toy_version)


def check_hypotheses(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.text for one in ours] == [one.text for one in theirs]
        for key in ("log_prob", "score"):
            wanted = [getattr(one, key) for one in theirs]
            assert [getattr(one, key) for one in ours] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("search", [SearchConfig(), BEAM, DRAWN], ids=["greedy", "beam", "drawn"])
def test_translations_are_those_in_memory(exported, translator, search):
    n_best = 2 if search in (BEAM, DRAWN) else 1
    found = exported.translate_n_best(SOURCES, 4, search, n_best=n_best)
    check_hypotheses(found, translator.translate_n_best(SOURCES, search=search, n_best=n_best))


def test_where_the_c_library_is_not_known_tensorflow_answers(toy_version, translator, monkeypatch):
    monkeypatch.setattr(exported_translator, "is_supported", lambda: False)
    exported = ExportedTranslator(toy_version)
    found = exported.translate_n_best(SOURCES, search=BEAM)
    check_hypotheses(found, translator.translate_n_best(SOURCES, search=BEAM))
    assert exported.translate([]) == []


@pytest.mark.parametrize("name", ["a [v2]", "*", "what?", "back\\slash", "{a,b}"])
def test_a_path_that_looks_like_a_pattern(name, toy_version, translator, tmp_path, monkeypatch):
    """TensorFlow takes the prefix of the weights' files for one."""
    path = shutil.copytree(toy_version, tmp_path / name / "1")
    expected = translator.translate(SOURCES)
    assert ExportedTranslator(tmp_path / name).translate(SOURCES) == expected
    assert load_saved_model(path)(SOURCES)[0] == expected
    monkeypatch.chdir(path)
    assert ExportedTranslator(".").translate(SOURCES) == expected


def test_scores_are_those_in_memory(exported, translator):
    found, expected = exported.score(SOURCES, TARGETS), translator.score(SOURCES, TARGETS)
    assert [tokens for _, tokens in found] == [tokens for _, tokens in expected]
    values = [value for value, _ in expected]
    assert [value for value, _ in found] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("targets", [["A", "B"], []])
def test_a_target_for_each_source(exported, translator, targets):
    message = f"a target for each source, received {len(targets)} for 1 source"
    for model in (exported, translator):
        with pytest.raises(ValueError, match=message):
            model.score(["a"], targets)


def test_its_own_translations_are_aligned_as_in_memory(exported, translator):
    own = translator.translate(SOURCES)
    # What was cut at max_length need not be cut into the same tokens again, and has no END.
    whole = [i for i, (_, tokens) in enumerate(exported.score(SOURCES, own)) if tokens < 12]
    assert len(whole) > 6
    found = exported.align(SOURCES)
    expected = translator.align([SOURCES[i] for i in whole], [own[i] for i in whole])
    assert [found[i] for i in whole] == expected
    assert found[SOURCES.index("")] == ([], [], [])


def command(*arguments):
    result = run(*arguments, stdin="".join(f"{line}\n" for line in SOURCES).encode())
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_the_commands_take_an_export(toy_version, translator, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    beam = "--beam-size 5".split()
    n_best = translator.translate_n_best(SOURCES, search=BEAM, n_best=2)
    texts = [" ".join(hypotheses[0].text.splitlines()) for hypotheses in n_best]
    target.write_text("".join(f"{text}\n" for text in texts))
    files = ["--source", source, "--target", target]
    rows = [row.split(" ||| ") for row in command("translate", toy_version, *beam, "--n-best", "2")]
    expected = [(i, one) for i, hypotheses in enumerate(n_best) for one in hypotheses]
    assert [int(row[0]) for row in rows] == [i for i, _ in expected]
    scores = [one.score for _, one in expected]
    assert [float(row[2]) for row in rows] == pytest.approx(scores, abs=1e-4)
    report = command("evaluate", toy_version, *files, *beam, "--json", "--n-bootstrap", "0")
    assert json.loads(report[0])["exact_match"] == 100
    short = [text[:8] for text in texts]  # what decoding cut off has no room for its END
    target.write_text("".join(f"{text}\n" for text in short))
    scored = [row.split("\t") for row in command("score", toy_version, *files)]
    assert [int(tokens) for _, tokens in scored] == [n for _, n in translator.score(SOURCES, short)]
    found = ExportedTranslator(toy_version).align(SOURCES)
    assert command("align", toy_version, "--source", source, "--tokens") == [
        f"{' '.join(a)} ||| {' '.join(b)} ||| " + " ".join(f"{i}-{j}" for j, i in enumerate(where))
        for a, b, where in found
    ]


MISTAKES = {
    "another beam": ("translate {} --beam-size 4", "fixes beam_size of its signature beam at 5"),
    "another α": ("translate {} --beam-size 5 --length-penalty 2", "fixes length_penalty of"),
    "too many": ("translate {} --beam-size 5 --n-best 6", "gives 1 to 5"),
    "length": ("translate {} --longest-output 5", "fixes longest_output of its signature serving"),
    "prefixes": ("translate {} --prefix {}/model.json", "which takes no prefixes"),
    "precision": ("score {} --source x.tsv --precision float32", "leave out --precision"),
    "targets": ("align {} --source x.tsv", "aligns its own translations, not given ones"),
    "heads": ("align {} --source s --heads 0", "fixes layers and heads"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_an_export_cannot_do_is_one_sentence(name, toy_version, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("a\tb\n")
    (tmp_path / "s").write_text("a\n")
    arguments, message = MISTAKES[name]
    result = run(*(word.replace("{}", toy_version) for word in arguments.split()), stdin=b"a\n")
    error = result.stderr.decode()
    assert result.returncode == 2 and message in error, error
    assert error.startswith("keras-transformer: ") and error.count("\n") == 1


def test_an_older_export_and_one_without_a_card(toy_version, tmp_path):
    exported = ExportedTranslator(toy_version)
    signature, outputs = exported.signatures["beam"]
    del outputs["score"]
    with pytest.raises(ValueError, match="returns no scores: export the run anew"):
        exported.translate_n_best(["a"], search=BEAM)
    assert exported.translate(["a"], search=BEAM)  # which needs none
    copy = shutil.copytree(toy_version, tmp_path / "copy")
    (copy / "model.json").unlink()
    with pytest.raises(ValueError, match="has no model.json that says how its signature beam"):
        ExportedTranslator(copy).check_search(BEAM)
    assert ExportedTranslator(copy).check_search(dataclasses.replace(DRAWN, seed=1)) == "sample"
