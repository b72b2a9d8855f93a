"""The command line as a user types it: results on stdout, one sentence for a mistake, status 2."""

import json
import re
import sys

import pytest

from keras_transformer.presets import PRESETS
from keras_transformer.runs.run import from_yaml
from tests.support import child_process
from tests.support.command_line import python, refused, run, run_process


def test_progress_goes_to_stderr(reverse_run):
    _, result = reverse_run
    assert result.stdout == b""
    assert b"epoch 2 of 2: " in result.stderr and b"val_loss" in result.stderr
    table = re.findall(rb"^(\w+) +\S", result.stderr, flags=re.MULTILINE)
    assert {b"pairs", b"vocabulary", b"precision", b"options", b"output"} <= set(table)
    assert b"built-in" not in result.stderr and b"2 epochs of 5 steps" in result.stderr


def test_curves_are_drawn(reverse_run):
    folder, _ = reverse_run
    assert (folder / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_translate_gives_a_line_per_line(reverse_run):
    folder, _ = reverse_run
    result = run_process(
        "translate", folder / "run", stdin=b"ba gu\n\nx\n\xff\xfe\n" + b"a" * 10_000
    )
    assert result.returncode == 0, result.stderr.decode()
    lines = result.stdout.decode().split("\n")
    assert len(lines) == 6 and lines[1] == "" and lines[5] == ""
    assert run("translate", folder / "run").stdout == b""


def test_export_and_evaluate(reverse_run):
    folder, _ = reverse_run
    result = run("export", folder / "run", folder / "models", "--signatures", "beam")
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().strip() == str(folder / "models" / "1")
    reports = []
    for path in (folder / "run", folder / "models" / "1"):
        result = run("evaluate", path, "--source", folder / "pairs.tsv", "--json")
        assert result.returncode == 0, result.stderr.decode()
        reports.append(json.loads(result.stdout))
    assert all(report.pop("lines_per_second") > 0 for report in reports)
    assert reports[0] == reports[1]
    assert {"bleu", "chrf", "exact_match", "signature", "sentences"} <= reports[0].keys()
    assert reports[0]["sentences"] == 60
    text = run("evaluate", folder / "run", "--source", folder / "pairs.tsv").stdout.decode()
    assert text.splitlines()[-1] == f"exact match: {reports[0]['exact_match']:.1f} %"
    result = run("translate", folder / "models" / "1", "--beam-size", "2", stdin=b"ba gu\n")
    assert result.returncode == 2 and b"a SavedModel, which fixes beam_size of" in result.stderr


def test_evaluate_translations_that_are_there(tmp_path):
    """Without a model; the numbers are those of the sacrebleu command."""
    source, target, first, second = [tmp_path / name for name in ("s", "t", "first", "second")]
    source.write_text("".join(f"source {i}\n" for i in range(4)))
    target.write_text("a b c d e .\nf g h i j\nk l m n\no p q r s\n")
    first.write_text("a b c d e .\nf g h i\nk l m n\no q p r s\n")
    second.write_text("a b c d .\nf g h i\nk l n m\no q p r s\n")
    command = [sys.executable, "-m", "sacrebleu", target, "-i", first, "-m", "bleu", "chrf"]
    command += ["-tok", "none", "--force", "--confidence", "-w", "2"]
    bleu, chrf = json.loads(child_process.run(command, capture_output=True, check=True).stdout)

    command = ["evaluate", first, "--source", source, "--target", target]
    command += ["--bleu-tokenize", "none", "--compare", second]
    result = run(*command, "--json")
    assert result.returncode == 0, result.stderr.decode()
    report = json.loads(result.stdout)
    assert (round(report["bleu"], 2), round(report["chrf"], 2)) == (bleu["score"], chrf["score"])
    assert report["signature"] == f"{bleu['signature']} {chrf['signature']}"
    assert report["exact_match"] == 50 and report["comparison"]["exact_match"] == 0
    assert report["comparison"]["system"] == str(second)
    lines = run(*command).stdout.decode().splitlines()
    low, high = report["bleu_interval"]
    assert lines[-3] == f"BLEU: {bleu['score']:.2f} (95 % interval {low:.2f} to {high:.2f})"
    assert lines[-1] == "exact match: 50.0 %"
    assert any(line.startswith(f"BLEU of {second}: ") and "p = 0." in line for line in lines)
    assert f"signatures: {report['signature']}" in lines
    lines = run(*command, "--n-bootstrap", "0").stdout.decode().splitlines()
    assert lines[-3] == f"BLEU: {bleu['score']:.2f}"
    assert not any("source" in line for line in lines)  # what is wrong is shown when asked for
    first.write_text("a b c d e .\nf g h i\nk l m n\n" + "x" * 200 + "\n")
    lines = run(*command, "--n-bootstrap", "0", "--worst", "1").stdout.decode().splitlines()
    hypothesis = "hypothesis " + "x" * 90
    assert lines[:3] == ["source     source 3", "reference  o p q r s", hypothesis]
    assert not any("source" in line for line in lines[3:])


def test_plot_of_two_runs(tmp_path):
    columns = "step,target_tokens,minutes,learning_rate,loss,val_loss,val_bleu,val_chrf\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "history.csv").write_text(columns + "10,500,0.1,0.01,4.5,4.75,,\n")
    output = tmp_path / "picture.png"
    result = run("plot", tmp_path / "one", tmp_path / "two", "--output", output)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode() == f"{output}\n"
    assert output.read_bytes().startswith(b"\x89PNG")


def test_help_loads_no_large_module():
    code = """
import sys
sys.argv = ["keras-transformer"]
from keras_transformer.cli.main import COMMANDS, run
for words in [[], *([name] for name in COMMANDS)]:
    run([*words, "--help"])
    assert not {"tensorflow", "keras", "numpy", "yaml"} & set(sys.modules), words
"""
    assert "--epochs" in python("-c", code)


def test_config_is_what_train_takes(tmp_path):
    result = run("config", "--preset", "tiny")
    assert result.returncode == 0 and not result.stderr
    path = tmp_path / "tiny.yaml"
    path.write_bytes(result.stdout)
    assert from_yaml(path) == PRESETS["tiny"]
    assert run("config", "--preset", "huge").returncode == 2


# Command lines that are wrong, and what the sentence must name; {run}: the folder with a run.
# What is wrong with the options of a training: tests/runs/test_checks.py.
TRAIN = "train --preset tiny --output {run}/out --valid-source {run}/one --valid-target {run}/one"
MISTAKES = {
    "unequal": (
        f"{TRAIN} --train-source {{run}}/two --train-target {{run}}/one",
        "two has 2 lines and {run}/one has 1",
    ),
    "no run": ("translate /none", "/none is not a directory"),
    "no model": ("translate {run}", "saved_model.pb"),
    "no model or precision": ("translate {run} --precision float32", "neither a run directory"),
    "no dates": ("evaluate {run}/run", "was not trained on the built-in dates"),
    "half": ("evaluate {run}/run --target {run}/one", "--source is missing"),
    "both of score": (
        "score {run}/run --source {run}/pairs.tsv --target {run}/one",
        "has both source and target: omit --target",
    ),
    "both of export": (
        "export {run}/run {run}/base --examples {run}/pairs.tsv --examples-target {run}/one",
        "has both source and target: omit --examples-target",
    ),
    "lengths": (
        "evaluate {run}/one --source {run}/two --target {run}/two",
        "Received 1 hypothesis but 2 references",
    ),
    "compared": (
        "evaluate {run}/two --source {run}/two --target {run}/two --compare /none",
        "/none is not a directory",
    ),
    "searched": (
        "evaluate {run}/two --source {run}/two --target {run}/two --beam-size 5",
        "two is a file of translations: leave out the search options",
    ),
    "export": ("export {run} {run}/base", "is neither a run directory"),
    "no checkpoint": ("average {run} {run}/mean", "has no checkpoints"),
    "no place": (
        "average {run}/run {run}/one/mean --number 1",
        "cannot be created: Not a directory",
    ),
    "no history": ("plot {run} --output {run}/x.png", "has no history.csv"),
    "nothing to plot": ("plot --output {run}/x.png", "RUN is missing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_gets_one_sentence(name, reverse_run):
    folder, _ = reverse_run
    (folder / "one").write_text("a\n")
    (folder / "two").write_text("a\nb\n")
    line, message = (text.format(run=folder) for text in MISTAKES[name])
    before = sorted(folder.rglob("*"))
    refused(line.split(), message, b"a\n")
    assert sorted(folder.rglob("*")) == before, "something was written"


def test_mistake_in_a_process_of_its_own(reverse_run):
    """Nothing but the sentence: no traceback, no warning of TensorFlow."""
    folder, _ = reverse_run
    result = run_process(
        "evaluate", folder / "run", "--source", folder / "pairs.tsv", "--worst", "x"
    )
    assert result.returncode == 2 and result.stderr.count(b"\n") == 1 and result.stdout == b""
    result = run_process("translate", folder, stdin=b"a\n")
    assert result.returncode == 2 and result.stderr.count(b"\n") == 1 and result.stdout == b""
