"""The command line as a user types it: results on stdout, one sentence for a mistake, status 2."""

import json
import subprocess
import sys

import pytest

from keras_transformer.presets import PRESETS
from keras_transformer.runs.configuration import from_yaml
from tests.support.command_line import run, run_process


def test_progress_goes_to_stderr(reverse_run):
    _, result = reverse_run
    assert result.stdout == b""
    assert b"epoch 2 of 2: 5 updates in " in result.stderr and b"val_loss" in result.stderr
    first = result.stderr.splitlines()[0]
    assert first.startswith(b"data: train_source=") and b"built-in" not in result.stderr
    assert b"epochs=2" in result.stderr, "the recipe"


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
    result = run("export", folder / "run", folder / "models")
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
    bleu, chrf = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

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
    assert report["signature"] in lines
    lines = run(*command, "--n-bootstrap", "0").stdout.decode().splitlines()
    assert lines[-3] == f"BLEU: {bleu['score']:.2f}"
    assert not any("source" in line for line in lines)  # what is wrong is shown when asked for
    first.write_text("a b c d e .\nf g h i\nk l m n\n" + "x" * 200 + "\n")
    lines = run(*command, "--n-bootstrap", "0", "--worst", "1").stdout.decode().splitlines()
    received = "received " + "x" * 89 + "…"
    assert lines[:3] == ["source   source 3", "expected o p q r s", received]
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


def test_help_loads_neither_tensorflow_nor_keras():
    code = "import sys; from keras_transformer.cli.main import run; run(['train', '--help'])\n"
    code += "sys.exit(len({'tensorflow', 'keras', 'numpy', 'yaml'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert result.returncode == 0 and b"--epochs" in result.stdout, result.stderr


def test_config_is_what_train_takes(tmp_path):
    result = run("config", "--preset", "tiny")
    assert result.returncode == 0 and not result.stderr
    path = tmp_path / "tiny.yaml"
    path.write_bytes(result.stdout)
    assert from_yaml(path) == PRESETS["tiny"]
    assert run("config", "--preset", "huge").returncode == 2


def mistakes_in_training(folder):
    """Command lines that are wrong, and what the sentence must say."""
    one, two = folder / "one", folder / "two"
    one.write_text("a\n")
    two.write_text("a\nb\n")
    (folder / "empty").write_text("")
    (folder / "latin1").write_bytes(b"fine\nna\xefve\n")
    files = ["--valid-source", one, "--valid-target", one]
    run_dir, out = folder / "run", ["--output", folder / "out"]
    return {
        "unequal": (
            ["train", *out, "--train-source", two, "--train-target", one, *files],
            f"{two} has 2 lines but {one} has 1: {one} ends where {two} still has line 2",
        ),
        "missing": (["train", *out, "--train-source", "/none", *files], "/none has no target"),
        "empty": (
            ["train", *out, "--train-source", folder / "empty", "--train-target", one, *files],
            "is empty",
        ),
        "not utf-8": (
            ["train", *out, "--train-source", folder / "latin1", "--train-target", two, *files],
            "latin1 line 2 is not valid UTF-8",
        ),
        "other run": (["train", "--output", run_dir], "is not empty"),
        "preset": (["train", *out, "--preset", "huge"], "no preset 'huge'"),
        "strategy": (["train", *out, "--strategy", "all"], "strategy must be one of auto"),
        "heads": (["train", *out, "--num-heads", "3"], "num_heads=3 does not divide d_model"),
        "mean of the weights": (["train", *out, "--ema", "2"], "ema must be at least 0 and below"),
    }


def mistakes_with_a_run(folder):
    """The same for what comes after a training."""
    one, two, run_dir = folder / "one", folder / "two", folder / "run"
    table = folder / "pairs.tsv"
    both = ["--source", table, "--target", one]
    return {
        "no run": (["translate", "/none"], "/none is no directory"),
        "no model": (["translate", folder], "saved_model.pb"),
        "no dates": (["evaluate", run_dir], "was not trained on dates"),
        "half": (["evaluate", run_dir, "--target", one], "--source is missing"),
        "tokenizer": (
            ["evaluate", run_dir, "--source", one, "--target", one, "--bleu-tokenize", "x"],
            "no tokenizer 'x'",
        ),
        "no model or precision": (
            ["translate", folder, "--precision", "float32"],
            f"{folder} is neither a run directory, with model.keras, nor a SavedModel, with ",
        ),
        "both evaluated": (["evaluate", run_dir, *both], "both columns: leave out --target."),
        "both scored": (["score", run_dir, *both], "both columns: leave out --target."),
        "both aligned": (["align", run_dir, *both], "both columns: leave out --target."),
        "both exported": (
            ["export", run_dir, folder / "base", "--examples", table, "--examples-target", one],
            "both columns: leave out --examples-target.",
        ),
        "lengths": (
            ["evaluate", one, "--source", two, "--target", two],
            "Received 1 hypothesis but 2 references",
        ),
        "compared lengths": (
            ["evaluate", run_dir, "--source", two, "--target", two, "--compare", one],
            "Received 1 hypothesis but 2 references",
        ),
        "compared": (
            ["evaluate", two, "--source", two, "--target", two, "--compare", "/none"],
            "/none is no directory",
        ),
        "searched": (
            ["evaluate", two, "--source", two, "--target", two, "--beam-size", "5"],
            "two holds translations: leave out the options of the search",
        ),
        "samples": (
            ["evaluate", two, "--source", two, "--target", two, "--n-bootstrap", "-1"],
            "n_bootstrap=-1 is no number of samples",
        ),
        "export": (["export", folder, folder / "base"], "no run directory"),
        "no checkpoint": (["average", folder, folder / "mean"], "There is no checkpoint in"),
        "too few": (
            ["average", run_dir, folder / "mean", "--number", "99"],
            "checkpoints, received number=99",
        ),
        "no place": (
            ["average", run_dir, one / "mean", "--number", "1"],
            "mean cannot be made: Not a directory",
        ),
        "no history": (["plot", folder, "--output", folder / "x.png"], "has no history.csv"),
        "nothing to plot": (["plot", "--output", folder / "x.png"], "arguments are required: RUN"),
    }


NAMES = [
    *("unequal", "missing", "empty", "not utf-8", "other run", "preset", "strategy"),
    *("heads", "no run", "no model", "no dates", "half", "tokenizer", "export", "lengths"),
    *("compared lengths", "compared", "searched", "samples", "no history", "nothing to plot"),
    *("no checkpoint", "too few", "no place", "mean of the weights", "no model or precision"),
    *("both evaluated", "both scored", "both aligned", "both exported"),
]


@pytest.mark.parametrize("name", NAMES)
def test_mistake_gets_one_sentence(name, reverse_run):
    folder, _ = reverse_run
    mistakes = mistakes_in_training(folder) | mistakes_with_a_run(folder)
    arguments, message = mistakes[name]
    before = sorted(path for path in folder.rglob("*"))
    in_process = name not in ("unequal", "heads", "no model", "tokenizer")
    result = (run if in_process else run_process)(*arguments, stdin=b"a\n")
    error = result.stderr.decode()
    assert result.returncode == 2, error
    assert message in error and "Traceback" not in error
    assert error.startswith("keras-transformer: ") and error.count("\n") == 1
    assert result.stdout == b""
    assert sorted(path for path in folder.rglob("*")) == before, "something was written"
