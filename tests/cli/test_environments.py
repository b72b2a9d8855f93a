"""Closed streams, lost readers, signals, other programs' settings, odd paths: all works."""

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

import keras_transformer as kt
from keras_transformer import LIGHT
from keras_transformer.cli import main
from keras_transformer.runs import opening
from keras_transformer.runs.run import Run
from tests.support import child_process
from tests.support.command_line import python, shell_environment, started, succeeds
from tests.support.paths import ROOT
from tests.support.sealing import sound

PROGRAM = [sys.executable, "-m", "keras_transformer"]
PIPES = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def shell(redirection, *command, **options):
    command = ["bash", "-c", f'exec "$@" {redirection}', "bash", *map(str, command)]
    return child_process.run(command, cwd=ROOT, env=shell_environment(), **options)


STREAMS = f"""
import os, sys
os.environ[{LIGHT!r}] = "1"
from keras_transformer.utils import open_standard_streams
open_standard_streams()
"""


def test_a_file_does_not_take_the_place_of_a_closed_stream(tmp_path):
    """What native code and other processes write to stderr would go into it."""
    code = STREAMS + f"os._exit(open({str(tmp_path / 'file')!r}, 'w').fileno())"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(closed, sys.executable, "-c", code).returncode > 2


def test_a_lost_reader_does_not_change_the_status():
    """`check … | true` had status 0."""
    code = STREAMS + "print('x'); sys.stdout.flush(); print('y', file=sys.stderr); sys.exit(1)"
    read, write = os.pipe()
    os.close(read)
    result = child_process.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (result.returncode, result.stderr) == (1, b"y\n")


def test_what_needs_a_stream_that_is_closed_says_so(trained_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    pairs, translate = ["--source", tmp_path / "pairs.tsv"], ["translate", trained_run]
    commands = [["config"], translate]
    commands += [[name, trained_run, *pairs] for name in ("evaluate", "score", "align")]
    for stream, words in [*(("stdout", words) for words in commands), ("stdin", translate)]:
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="2"):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patch.setattr(sys, stream, None)
            main.run([*map(str, words)])
        assert capsys.readouterr().err.startswith(f"keras-transformer: {stream} is closed: ")
    result = shell(">&-", *PROGRAM, "config", stderr=subprocess.PIPE)
    assert result.returncode == 2 and b"stdout is closed: " in result.stderr


def test_a_full_disk_is_one_sentence():
    result = shell("> /dev/full", *PROGRAM, "config", stderr=subprocess.PIPE)
    assert result.returncode == 2 and result.stderr.count(b"\n") == 1
    assert b"stdout cannot be written (No space left on device)" in result.stderr


def test_a_training_is_that_of_a_script_whatever_is_around_it(trained_run, tmp_path):
    """Nobody reads its progress; a hangup saves and ends it; others' settings are not inherited."""
    settings = {"floatx": "float16", "image_data_format": "channels_first", "backend": "jax"}
    (tmp_path / "keras.json").write_text(json.dumps(settings | {"epsilon": 0.1}))
    others = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    words = "train", "--config", trained_run / "config.yaml", "--output", tmp_path / "run"
    options = "--epochs", "100000", "--log-every", "0.1"
    with started(*words, *options, **PIPES | {"env": shell_environment() | others}) as process:
        printed = b""
        while b"\nepoch 1 of" not in printed:
            printed += process.stderr.readline()
            assert process.poll() is None
        process.stderr.close()
        history = tmp_path / "run" / "history.csv"
        while not history.exists() or history.read_text().count("\n") < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # the shell's and the system's
        assert process.wait() == 128 + signal.SIGHUP
        assert process.stdout.read() == b""
    assert b"100,000 epochs" in printed and Run(tmp_path / "run").read_state()["epoch"] < 100000
    found, expected = (Run(path).read_history()[:2] for path in (tmp_path / "run", trained_run))
    for one, other in zip(found, expected, strict=True):
        assert one["target_tokens"] == other["target_tokens"]
        for name in ("loss", "val_loss"):
            assert one[name] == pytest.approx(other[name], rel=0.01)
    assert kt.load(tmp_path / "run").model.dtype_policy.name == "float32"
    assert json.loads((tmp_path / "keras.json").read_text())["floatx"] == "float16"


def test_translations_come_while_lines_are_awaited(random_run, tmp_path, monkeypatch):
    """What was killed is resumed: the output of one that was never stopped."""
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)  # graphs would take longer to make
    lines = [b"abc\n", b"\n", b"hgf\n", b"b\n"]
    out, command = tmp_path / "out", ["translate", random_run]
    with started(*command, "--resume", out, stdin=subprocess.PIPE) as process:
        for start, end in ((0, 1), (1, 3)):
            process.stdin.write(b"".join(lines[start:end]))
            process.stdin.flush()
            until = time.monotonic() + 300
            while not out.exists() or out.read_bytes().count(b"\n") < end:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with open(out, "ab") as file:
        file.write("halb geschrieben: ü".encode()[:-1])
    whole = succeeds(*command, stdin=b"".join(lines)).stdout
    assert succeeds(*command, "--resume", out, stdin=b"".join(lines)).stdout == b""
    assert out.read_bytes() == whole and whole.count(b"\n") == 4


@pytest.mark.parametrize("kind", ["run", "export"])
def test_whoever_has_read_enough_of_the_translations_ends_them(kind, trained_run, tmp_path):
    model = trained_run if kind == "run" else sound(tmp_path, "export")
    with started("translate", model, **PIPES | {"bufsize": 0}) as process:
        for line in (b"abc\n", b"\n", b"hgf\n"):
            process.stdin.write(line)
            assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        process.stdin.write(b"abc\n")  # stdin is left open: it ends by itself
        assert process.wait(timeout=300) == 0
        assert process.stderr.read() == b"", "nothing of TensorFlow either"


def test_a_script_gets_tokenizers_though_legacy_keras_is_asked_for(tmp_path):
    """Pickled, as those of `multiprocessing` are."""
    subword = kt.SubwordTokenizer.train(["ab"], model_type="char")
    made = subword, kt.WordPieceTokenizer.train(["ab"], 8)
    (tmp_path / "pickled").write_bytes(pickle.dumps(made))
    code = "import os, pickle, sys\n"
    code += "made = pickle.load(open(sys.argv[1], 'rb'))\n"
    code += "found = [one.detokenize(one('ab')).numpy() for one in made]\n"
    code += "print(found, os.environ['TF_USE_LEGACY_KERAS'])"
    found = python("-W", "ignore", "-c", code, tmp_path / "pickled", TF_USE_LEGACY_KERAS="1")
    assert found == "[b'ab', b'ab'] 1\n"
