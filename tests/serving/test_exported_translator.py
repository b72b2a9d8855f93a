"""What the commands ask an export: the answers of the translator in memory, or one sentence."""

import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tensorflow.core.protobuf import saved_model_pb2

import keras_transformer as kt
from keras_transformer.presets import SearchConfig
from keras_transformer.runs.opening import Opened, SentenceTranslator
from keras_transformer.serving import exported_translator
from keras_transformer.serving.exported_translator import ExportedTranslator
from keras_transformer.serving.saved_model import load_saved_model
from keras_transformer.serving.server_process import ServerProcess
from keras_transformer.serving.structure import read_signatures
from keras_transformer.serving.versions import read_card
from tests.support import child_process
from tests.support.command_line import python, run
from tests.support.paths import FIXTURES
from tests.support.toy_translator import SOURCES, trained_translator

BEAM = SearchConfig(beam_size=5)
SAMPLING = SearchConfig(sample=True, temperature=1.5, top_k=20, top_p=0.9, seed=7)
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


@pytest.mark.parametrize(
    "search", [SearchConfig(), BEAM, SAMPLING], ids=["greedy", "beam", "sampling"]
)
def test_translations_are_those_in_memory(exported, translator, search):
    n_best = 2 if search in (BEAM, SAMPLING) else 1
    found = exported.translate_n_best(SOURCES, 4, search, n_best=n_best)
    check_hypotheses(found, translator.translate_n_best(SOURCES, search=search, n_best=n_best))
    if search is BEAM:
        empty = exported.translate_n_best([""], search=BEAM)[0]
        assert empty == [("", 0.0, 0.0)] + [("", -1e9, -1e9)] * 4


def test_a_path_that_looks_like_a_pattern(toy_version, translator, tmp_path, monkeypatch):
    """TensorFlow takes the prefix of the weights' files for one."""
    path = shutil.copytree(toy_version, tmp_path / "[v2] *? \\ {a,b}" / "1")
    expected = translator.translate(SOURCES)
    assert ExportedTranslator(path.parent).translate(SOURCES) == expected
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
    message = f"a target for each source, received {len(targets)} for 1"
    for model in (exported, translator):
        with pytest.raises(ValueError, match=message):
            model.score(["a"], targets)


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


def test_lines_come_out_before_the_last_one_is_read(toy_version):
    """And nothing is printed when the reader has left."""
    expected = trained_translator().translate(SOURCES)
    command = [sys.executable, "-m", "keras_transformer", "translate", toy_version]
    pipe = subprocess.PIPE
    with child_process.running(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        for start, end in ((0, 1), (1, 4), (4, 5)):
            process.stdin.write("".join(f"{line}\n" for line in SOURCES[start:end]).encode())
            process.stdin.flush()
            for line in expected[start:end]:
                assert process.stdout.readline().decode() == f"{line}\n"
        process.stdout.close()
        process.stdin.write(b"abc\n")
        process.stdin.flush()  # and left open
        assert process.wait() == 0 and process.stderr.read() == b""


def test_samples_depend_on_the_numbers_of_lines(toy_version):
    exported = ExportedTranslator(toy_version)
    whole = trained_translator().translate(SOURCES, search=SAMPLING)
    parts = [(0, 3), (3, 4), (4, 10)]
    found = [exported.translate(SOURCES[i:j], search=SAMPLING, first=i) for i, j in parts]
    assert sum(found, []) == whole


def test_a_process_that_has_died_is_replaced(toy_version):
    exported = ExportedTranslator(toy_version)
    expected = exported.translate(SOURCES)
    os.kill(exported._run.__self__._process.pid, signal.SIGKILL)
    with pytest.raises(ValueError, match="ended with status -9"):
        exported.translate(SOURCES)
    assert exported.translate(SOURCES) == expected
    process = exported._run.__self__._process
    del exported
    assert process.poll() == 0  # has ended


# Without waiting for TensorFlow's import.


PLAIN = FIXTURES / "format-1" / "export" / "1"  # of serving_default alone
ANSWERS = json.loads((FIXTURES / "format-1" / "translations.json").read_text())


def without_tensorflow(code, *arguments):
    code = f"import sys; sys.argv[0] = 'keras-transformer'\n{code}"
    code += "\nassert not {'tensorflow', 'keras'} & set(sys.modules)"
    return python("-c", code, *arguments)


def test_an_export_translates_without_tensorflow():
    code = f"""
from keras_transformer.runs.opening import Opened, SentenceTranslator
print(SentenceTranslator(Opened(sys.argv[1]))({SOURCES!r}))
"""
    answers = [ANSWERS[source] for source in SOURCES]
    assert without_tensorflow(code, PLAIN) == f"{answers}\n"
    assert SentenceTranslator(Opened(PLAIN))([]) == []


def test_a_process_that_ends_within_a_reply():
    """Its own end is named, not the JSON that it left."""
    with ServerProcess(PLAIN) as server:
        server._process.kill()
        server._replies.close()
        server._replies = io.BytesIO(b'{"outputs": {"te')
        with pytest.raises(RuntimeError, match="ended with status -9 .killed, perhaps for its mem"):
            server.predict(["a"])


def test_many_sentences_have_their_graph_rewritten(monkeypatch):
    monkeypatch.setattr(exported_translator, "OPTIMIZE_THRESHOLD", 2)
    optimized = []

    class Observed(exported_translator.ServerProcess):
        def __init__(self, *args, optimize, **options):
            super().__init__(*args, optimize=optimize, **options)
            optimized.append(optimize)

    monkeypatch.setattr(exported_translator, "ServerProcess", Observed)
    translator = ExportedTranslator(PLAIN)
    found = [translator.translate(SOURCES[i:j]) for i, j in [(0, 0), (0, 1), (1, 2), (2, 3)]]
    found.append(translator.translate(SOURCES[3:]))
    assert sum(found, []) == [ANSWERS[source] for source in SOURCES]
    assert optimized == [False, True]  # one process for the first two, one for all others


def test_a_signature_that_is_not_there_is_named_at_once():
    """Before anything is loaded."""
    code = """
from keras_transformer.runs.opening import Opened, SentenceTranslator
for use in (
    lambda version: SentenceTranslator(Opened(version, {"beam_size": 2})),
    lambda version: SentenceTranslator(Opened(version, {"sample": True})),
    lambda version: Opened(version).model.score(["abc"], ["a"]),
):
    try:
        use(sys.argv[1])
    except ValueError as error:
        print(error)
"""
    said = without_tensorflow(code, PLAIN).splitlines()
    for name, line in zip(("beam", "sample", "score"), said, strict=True):
        assert f"has no signature {name}: export it with --signatures {name}." in line


def test_signatures_are_read_as_tensorflow_reads_them(toy_version, tmp_path):
    with open(f"{toy_version}/saved_model.pb", "rb") as file:
        content = file.read()
    (meta_graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    found = read_signatures(toy_version)
    assert set(found) == set(meta_graph.signature_def) >= {"serving_default", "score"}
    for name, signature in meta_graph.signature_def.items():
        inputs, outputs = found[name]
        assert inputs == {k: (t.name, t.dtype) for k, t in signature.inputs.items()}
        assert outputs == {k: (t.name, t.dtype) for k, t in signature.outputs.items()}
    for broken in (content[:-5], content[: len(content) // 2], b"\xff" * 20):
        (tmp_path / "saved_model.pb").write_bytes(broken)
        with pytest.raises(ValueError, match="its bytes cannot be parsed"):
            read_signatures(tmp_path)


# Mistakes.

MISTAKES = {
    "another beam": ("translate {} --beam-size 4", "fixes beam_size of its signature beam at 5"),
    "another α": ("translate {} --beam-size 5 --length-penalty 2", "fixes length_penalty of"),
    "too many": ("translate {} --beam-size 5 --n-best 6", "from 1 to 5, unless you sample"),
    "length": (
        "translate {} --max-output-length 5",
        "fixes max_output_length of its signature serving_default at none, received 5",
    ),
    "prefixes": ("translate {} --prefix {}/model.json", "which takes no prefixes"),
    "precision": (
        "score {} --source x.tsv --precision float32",
        "--precision is for run directories",
    ),
    "alignments": ("align {} --source x.tsv", "is a SavedModel: give the run directory it was"),
    "map": ("attention {} a --output x.png", "is a SavedModel: give the run directory it was"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_an_export_cannot_do_is_one_sentence(name, toy_version, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("a\tb\n")
    arguments, message = MISTAKES[name]
    result = run(*(word.replace("{}", toy_version) for word in arguments.split()), stdin=b"a\n")
    error = result.stderr.decode()
    assert result.returncode == 2 and message in error, error
    assert error.startswith("keras-transformer: ") and error.count("\n") == 1


def test_an_export_without_a_card(toy_version, tmp_path):
    copy = shutil.copytree(toy_version, tmp_path / "copy")
    (copy / "model.json").unlink()
    with pytest.raises(ValueError, match="fixes beam_size of its signature beam at 1, received 5"):
        ExportedTranslator(copy).check_search(BEAM)
    assert ExportedTranslator(copy).check_search(dataclasses.replace(SAMPLING, seed=1)) == "sample"


def test_an_export_has_its_own_search(translator, tmp_path):
    """Its limit and its beam are those of its card, unless options differ."""
    own = {"beam_size": 3, "length_penalty": 0.5, "length_norm": "length", "max_output_length": 4}
    path = kt.export(translator, tmp_path, config=kt.ExportConfig(signatures=("beam",), **own))
    assert Opened(path).search == SearchConfig(max_output_length=4)
    assert Opened(path, {"beam_size": 3}).search == SearchConfig(**own)
    exported = ExportedTranslator(path)
    expected = translator.translate_n_best(SOURCES, search=SearchConfig(**own), n_best=2)
    check_hypotheses(exported.translate_n_best(SOURCES, beam_size=3, n_best=2), expected)
    assert exported.translate(SOURCES, seed=2) == translator.translate(SOURCES, max_output_length=4)
    with pytest.raises(ValueError, match="fixes length_penalty .* beam at 0.5, received 1.0"):
        exported.translate(SOURCES, beam_size=3, length_penalty=1.0)
    assert read_card(path)["max_output_length"] == 4
