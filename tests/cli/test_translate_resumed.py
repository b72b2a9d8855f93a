"""translate while its input comes in, killed, and resumed: the output of one that never stopped."""

import signal
import subprocess
import sys
import time

import pytest

from keras_transformer.cli.text import _write
from keras_transformer.runs import models
from keras_transformer.translation import translate_stream
from tests.support.command_line import run
from tests.support.toy_translator import random_translator, toy_pairs

LINES = [source for source, _ in toy_pairs(14, seed=3)]
LINES[4] = ""
STDIN = "".join(f"{line}\n" for line in LINES).encode()
N_BEST = ["--beam-size", "3", "--n-best", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    translator = random_translator()
    translator.model.save(folder / "model.keras")
    for side in ("source", "target"):
        translator.source_tokenizer.save(folder / f"{side}.spm")
    return folder


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(translate_stream, "FIRST", 2)
    monkeypatch.setattr(translate_stream, "WINDOW", 5)
    monkeypatch.setattr(models, "EAGER_SENTENCES", 100)  # graphs would take longer to make


def translated(folder, *options, stdin=STDIN):
    result = run("translate", folder, *options, stdin=stdin)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


@pytest.fixture(scope="module")
def whole(folder):
    return translated(folder)


@pytest.fixture(scope="module")
def whole_n_best(folder):
    return translated(folder, *N_BEST)


def rows(output):
    """Numbers, translations and scores, which differ in the last digit from batch to batch."""
    lines = [line.split(" ||| ") for line in output.decode().splitlines()]
    return [(int(line[0]), line[1]) for line in lines], [float(line[2]) for line in lines]


def test_numbers_go_on_from_window_to_window(whole_n_best):
    numbers = [number for number, _ in rows(whole_n_best)[0]]
    assert numbers == [i for i in range(14) for _ in range(2)], "also of line 4, which is empty"


@pytest.mark.parametrize("share", [None, 0.0, 0.6, 1.0])
def test_resumed_as_if_it_had_never_stopped(folder, whole, share, tmp_path):
    if share is not None:
        (tmp_path / "out").write_bytes(whole[: round(share * len(whole))])
    assert translated(folder, "--resume", tmp_path / "out") == b""
    assert (tmp_path / "out").read_bytes() == whole


def test_translations_of_a_line_are_whole_or_written_anew(folder, whole_n_best, tmp_path):
    (tmp_path / "out").write_bytes(whole_n_best[: round(0.55 * len(whole_n_best))])
    assert translated(folder, *N_BEST, "--resume", tmp_path / "out") == b""
    found, expected = rows((tmp_path / "out").read_bytes()), rows(whole_n_best)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-4)


def test_prefixes_and_draws_go_on_too(folder, tmp_path):
    (tmp_path / "prefix").write_text(
        "".join(f"{'ABCDEFGH'[i % 8 : i % 8 + i % 3]}\n" for i in range(14))
    )
    options = ["--sample", "--seed", "4", "--prefix", tmp_path / "prefix"]
    expected = translated(folder, *options)
    (tmp_path / "out").write_bytes(b"".join(expected.splitlines(keepends=True)[:6]) + b"A")
    translated(folder, *options, "--resume", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == expected


def test_killed_while_it_waits_for_lines(folder, whole, tmp_path):
    """The first lines come out before the last are there; what was killed is resumed."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "keras_transformer", "translate", folder, "--resume", out]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for start, end in ((0, 1), (1, 7)):
            process.stdin.write(b"".join(STDIN.splitlines(keepends=True)[start:end]))
            process.stdin.flush()
            until = time.monotonic() + 300
            while not out.exists() or out.read_bytes().count(b"\n") < end:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with open(out, "ab") as file:
        file.write("halb geschrieben: ü".encode()[:-1])
    translated(folder, "--resume", out)
    assert out.read_bytes() == whole


MISTAKES = {
    "too long": (b"A\n" * 15, (), "has the translations of 15 lines, but stdin has only 14:"),
    "not n-best": (b"A\nB\n", N_BEST, "out line 1 is no translation of line 0 as --n-best 2"),
    "more of each": (b"0 ||| A ||| -1\n" * 3, N_BEST, "out line 3 is no translation of line 1 as"),
    "a gap": (b"0 ||| A ||| -1\n2 ||| A ||| -1\n", N_BEST, "out line 2 is no translation of line"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_resumed_stays_as_it_is(name, folder, tmp_path):
    content, options, message = MISTAKES[name]
    (tmp_path / "out").write_bytes(content + b"torn")
    refused(["translate", folder, *options, "--resume", tmp_path / "out"], message)
    assert (tmp_path / "out").read_bytes() == content + b"torn"


def test_what_cannot_be_written_is_one_sentence(folder, tmp_path):
    refused(["translate", folder, "--resume", tmp_path], "is no file that could be resumed")
    refused(["translate", folder, "--resume", tmp_path / "a" / "b"], "cannot be written: No such")
    with (
        open("/dev/full", "w") as full,
        pytest.raises(ValueError, match="No space left .* --resume"),
    ):
        _write(full, ["A"], 0, None)


def refused(arguments, message):
    result = run(*arguments, stdin=STDIN)
    error = result.stderr.decode()
    assert result.returncode == 2 and message in error and error.count("\n") == 1, error
    assert result.stdout == b""
