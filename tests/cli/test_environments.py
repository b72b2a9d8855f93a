"""Closed streams, lost readers, signals, other programs' settings, odd paths: all works."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

from keras_transformer import LIGHT
from keras_transformer.runs.run import Run
from tests.support import child_process
from tests.support.command_line import python, run, shell_environment
from tests.support.paths import FIXTURES, ROOT

SIZES = "--preset tiny --num-layers 1 --d-model 8 --num-heads 2 --d-ff 8 --max-length 16".split()
SIZES += "--steps-per-epoch 2 --vocabulary-size 280 --tokens-per-batch 64".split()
# Several commands in one process, which loads TensorFlow once: into a file, how each ended.
PROGRAM = """
import json, sys, traceback
from keras_transformer.cli.main import main
commands, name = json.loads(sys.argv[1]), sys.argv[2]
ends = []
for command in commands:
    sys.argv = ["keras-transformer", *command]
    try:
        main()
        ends.append(0)
    except SystemExit as end:
        ends.append(end.code or 0)
    except BaseException:
        ends.append(traceback.format_exc())
with open(name, "w") as file:
    json.dump(ends, file)
"""
PRINTING = ("config", "translate", "evaluate", "score", "align")


def shell(redirection, *command, **options):
    """Runs a command as a shell does that closes or redirects its streams."""
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", *map(str, command)]
    return child_process.run(command, cwd=ROOT, env=shell_environment(), **options)


def commands(folder, made):
    """One of each, in an order in which each finds what it needs."""
    run, pairs = folder / "run", folder / "pairs.tsv"
    text = ["--train-source", pairs, "--valid-source", pairs]
    return {
        "train": ["--output", made / "run", "--epochs", "1", *SIZES, *text, "--plot"],
        "prepare": ["--output", made / "corpus", *text, "--vocabulary-size", "280"],
        "config": [],
        "translate": [run],
        "evaluate": [run, "--source", pairs],
        "score": [run, "--source", pairs],
        "align": [run, "--source", pairs],
        "average": [run, made / "mean", "--number", "1"],
        "export": [run, made / "models"],
        "check": [made / "models"],
        "attention": [run, "ba gu", "--output", made / "map.png"],
        "plot": [run, "--output", made / "curves.png"],
    }


@pytest.mark.slow
def test_every_command_works_without_input_and_output(reverse_run, tmp_path):
    named = commands(reverse_run[0], tmp_path)
    lines = json.dumps([[name, *map(str, rest)] for name, rest in named.items()])
    program = [sys.executable, "-c", PROGRAM, lines, tmp_path / "ends"]
    assert shell(f"<&- >&- 2> {tmp_path}/err", *program).returncode == 0
    ends = dict(zip(named, json.loads((tmp_path / "ends").read_text()), strict=True))
    assert ends == {name: 2 if name in PRINTING else 0 for name in named}
    for name in ("run/model.keras", "corpus", "mean/model.keras", "models/1", "map.png"):
        assert (tmp_path / name).exists()
    said = (tmp_path / "err").read_text()
    assert "stdout is closed" in said and "Traceback" not in said


def test_translate_needs_input(reverse_run):
    command = [sys.executable, "-m", "keras_transformer", "translate", reverse_run[0] / "run"]
    result = shell("<&-", *command, capture_output=True)
    assert result.returncode == 2 and not result.stdout
    assert b"stdin is closed" in result.stderr and b"Traceback" not in result.stderr


def test_a_file_does_not_take_the_place_of_a_closed_stream(tmp_path):
    """What native code and other processes write to stderr would go into it."""
    code = f"import os; os.environ[{LIGHT!r}] = '1'\n"
    code += "from keras_transformer.utils import *; open_standard_streams()\n"
    code += f"os._exit(open({str(tmp_path / 'file')!r}, 'w').fileno())"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(closed, sys.executable, "-c", code).returncode > 2


def test_the_explorer_without_stderr():
    command = ["explore", FIXTURES / "format-1" / "run", "--no-browser"]
    program = [sys.executable, "-m", "keras_transformer", *map(str, command)]
    closing = ["bash", "-c", 'exec "$@" 2>&-', "bash", *program]
    with child_process.running(closing, stdout=subprocess.PIPE, cwd=ROOT) as process:
        address = process.stdout.readline().decode().strip()
        assert urllib.request.urlopen(address).status == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def train(folder, made, *options):
    pairs = folder / "pairs.tsv"
    text = ["--train-source", pairs, "--valid-source", pairs, "--strategy", "one"]
    command = ["train", "--output", made, *SIZES, *text, *options]
    return [sys.executable, "-m", "keras_transformer", *map(str, command)]


@pytest.fixture(scope="module")
def unread(reverse_run, tmp_path_factory):
    """A training whose progress nobody reads: `train … 2>&1 | head -3`."""
    output = tmp_path_factory.mktemp("unread") / "run"
    command = train(reverse_run[0], output, "--epochs", "2")
    pipe = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with child_process.running(command, **pipe, cwd=ROOT) as process:
        for _ in range(3):
            assert process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 0
    return output


def test_a_training_goes_on_whose_progress_nobody_reads(unread):
    assert Run(unread).read_state()["epoch"] == 2 and (unread / "model.keras").exists()


def test_who_is_hung_up_on_saves_and_ends(reverse_run, tmp_path):
    """As by SIGTERM, with the status of SIGHUP; the terminal is gone with it."""
    command = train(reverse_run[0], tmp_path / "run", "--epochs", "100000", "--log-every", "0.1")
    with child_process.running(command, stderr=subprocess.PIPE, cwd=ROOT) as process:
        while not process.stderr.readline().startswith(b"epoch 1 of"):
            assert process.poll() is None
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # the shell's and the system's
        assert process.wait() == 128 + signal.SIGHUP
    state = Run(tmp_path / "run").read_state()
    points = json.loads((tmp_path / "run" / "checkpoints" / "resume.json").read_text())[
        "checkpoints"
    ]
    assert state["epoch"] < 100000 and points


def test_a_full_disk_is_one_sentence():
    """Not the traceback of what Python had kept for the end."""
    program = [sys.executable, "-m", "keras_transformer", "config"]
    result = shell("> /dev/full", *program, stderr=subprocess.PIPE)
    assert result.returncode == 2 and result.stderr.count(b"\n") == 1
    assert b"stdout cannot be written (No space left on device)" in result.stderr


def test_whoever_has_read_enough_of_the_translations_ends_them(reverse_run):
    command = ["translate", reverse_run[0] / "run"]
    program = [sys.executable, "-m", "keras_transformer", *map(str, command)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with child_process.running(program, **pipes, cwd=ROOT) as process:
        process.stdin.write(b"ba gu\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"ba gu\n")
        process.stdin.flush()  # but not closed: it ends by itself
        assert process.wait(timeout=300) == 0
        assert b"Traceback" not in process.stderr.read()


def test_a_lost_reader_does_not_make_an_unfit_export_fit(tmp_path):
    """`check … | true` had status 0."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"")
    program = [sys.executable, "-m", "keras_transformer", "check", tmp_path]
    assert run("check", tmp_path).returncode == 1
    read, write = os.pipe()
    os.close(read)
    result = child_process.run(list(map(str, program)), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert result.returncode == 1 and b"Traceback" not in result.stderr


@pytest.mark.slow
def test_every_command_takes_paths_that_look_like_patterns(reverse_run, tmp_path):
    """TensorFlow's reader of weights takes its prefix for one; so does rich `[v2]` for a style.

    And all work without stderr.
    """
    made = tmp_path / "models [v2] *? \\ {a,b} [/b]" / "made"
    made.mkdir(parents=True)
    (tmp_path / "in").write_text("ba gu\n")
    shutil.copytree(reverse_run[0] / "run", made.parent / "run")
    shutil.copy(reverse_run[0] / "pairs.tsv", made.parent)
    named = commands(made.parent, made)
    lines = [[name, *map(str, rest)] for name, rest in named.items()]
    lines.append(["train", "--corpus", str(made / "corpus"), "--output", str(made / "second")])
    lines[-1] += ["--epochs", "1", *SIZES[:-4], *SIZES[-2:]]
    lines.append(["train", "--output", str(made / "run"), "--resume", "--epochs", "2"])
    lines.append(["translate", str(made / "models"), "--resume", str(made / "out [1]")])
    lines.append(["evaluate", str(made / "models"), "--source", str(made.parent / "pairs.tsv")])
    program = [sys.executable, "-c", PROGRAM, json.dumps(lines), tmp_path / "ends"]
    printed = shell(f"2>&- < {tmp_path}/in", *program, stdout=subprocess.PIPE).stdout.decode()
    assert json.loads((tmp_path / "ends").read_text()) == [0] * len(lines)
    assert f"{made}/models/1\n" in printed and "exact match: " in printed
    for name in ("run/model.keras", "corpus", "mean/model.keras", "models/1", "map.png"):
        assert (made / name).exists()
    assert list((made / "run" / "logs" / "train").glob("events*"))
    assert sorted(os.listdir(made / "models")) == ["1"]


def test_settings_of_other_programs_are_not_inherited(reverse_run, unread, tmp_path):
    """Neither precision nor backend; TF_USE_LEGACY_KERAS is for those who have tf_keras."""
    settings = {"floatx": "float16", "image_data_format": "channels_first", "backend": "jax"}
    (tmp_path / "keras.json").write_text(json.dumps(settings | {"epsilon": 0.1}))
    others = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    command = train(reverse_run[0], tmp_path / "run", "--epochs", "2")
    python(*command[1:], **others)
    found, expected = (
        [row | {"minutes": 0} for row in Run(run).read_history()]
        for run in (tmp_path / "run", unread)
    )
    assert found == expected
    assert json.loads((tmp_path / "keras.json").read_text())["floatx"] == "float16"


def test_a_script_tokenizes_though_legacy_keras_is_asked_for():
    code = "import os, keras_transformer as kt\n"
    code += "tokenizer = kt.SubwordTokenizer.train(['ab'], model_type='char')\n"
    code += "text = tokenizer.detokenize(tokenizer('ab')).numpy()\n"
    code += "print(text, os.environ['TF_USE_LEGACY_KERAS'])"
    assert python("-c", code, TF_USE_LEGACY_KERAS="1") == "b'ab' 1\n"
