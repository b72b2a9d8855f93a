"""translate is killed while its input comes in, and resumed: the output of one never stopped."""

import signal
import subprocess
import sys
import time

import pytest

from keras_transformer.cli import text
from keras_transformer.cli.rows import make_rows, open_output
from keras_transformer.runs import opening
from keras_transformer.translation import sentences
from tests.support import child_process
from tests.support.command_line import refused, run
from tests.support.toy_translator import toy_pairs

LINES = [source for source, _ in toy_pairs(14, seed=3)]
LINES[4] = ""
STDIN = "".join(f"{line}\n" for line in LINES).encode()
N_BEST = ["--beam-size", "3", "--n-best", "2"]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    monkeypatch.setattr(sentences, "FIRST_WINDOW", 2)
    monkeypatch.setattr(sentences, "WINDOW", 5)
    monkeypatch.setattr(opening, "EAGER_SENTENCES", 100)  # graphs would take longer to make


def translated(random_run, *options, stdin=STDIN):
    result = run("translate", random_run, *options, stdin=stdin)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout


@pytest.fixture(scope="module")
def whole(random_run):
    return translated(random_run)


@pytest.fixture(scope="module")
def whole_n_best(random_run):
    return translated(random_run, *N_BEST)


def rows(output):
    """Numbers, translations and scores, which differ in the last digit from batch to batch."""
    lines = [line.split(" ||| ") for line in output.decode().splitlines()]
    return [(int(line[0]), line[1]) for line in lines], [float(line[2]) for line in lines]


def test_numbers_go_on_from_window_to_window(whole_n_best):
    numbers = [number for number, _ in rows(whole_n_best)[0]]
    assert numbers == [i for i in range(14) for _ in range(2)], "also of line 4, which is empty"


@pytest.mark.parametrize("share", [None, 0.0, 0.6, 1.0])
def test_resumed_as_if_it_had_never_stopped(random_run, whole, share, tmp_path):
    if share is not None:
        (tmp_path / "out").write_bytes(whole[: round(share * len(whole))])
    assert translated(random_run, "--resume", tmp_path / "out") == b""
    assert (tmp_path / "out").read_bytes() == whole


def test_translations_of_a_line_are_whole_or_written_anew(random_run, whole_n_best, tmp_path):
    (tmp_path / "out").write_bytes(whole_n_best[: round(0.55 * len(whole_n_best))])
    assert translated(random_run, *N_BEST, "--resume", tmp_path / "out") == b""
    found, expected = rows((tmp_path / "out").read_bytes()), rows(whole_n_best)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=1e-4)


def test_prefixes_and_draws_go_on_too(random_run, tmp_path):
    (tmp_path / "prefix").write_text(
        "".join(f"{'ABCDEFGH'[i % 8 : i % 8 + i % 3]}\n" for i in range(14))
    )
    options = ["--sample", "--seed", "4", "--prefix", tmp_path / "prefix"]
    expected = translated(random_run, *options)
    (tmp_path / "out").write_bytes(b"".join(expected.splitlines(keepends=True)[:6]) + b"A")
    translated(random_run, *options, "--resume", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == expected


def test_killed_while_it_waits_for_lines(random_run, whole, tmp_path):
    """The first lines come out before the last are there; what was killed is resumed."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "keras_transformer", "translate", random_run, "--resume", out]
    with child_process.running(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
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
    translated(random_run, "--resume", out)
    assert out.read_bytes() == whole


MISTAKES = {
    "too long": (b"A\n" * 15, (), "out has no translation of line 15 of stdin:"),
    "not n-best": (b"A\nB\n", N_BEST, "out has no translation of line 1 of stdin"),
    "more of each": (b"0 ||| A ||| -1\n" * 4, N_BEST, "out has no translation of line 2 of"),
    "a gap": (b"0 ||| A ||| -1\n" * 2 + b"2 ||| A ||| -1\n" * 2, N_BEST, "of line 2 of stdin"),
}


@pytest.mark.parametrize("options", [[], N_BEST])
def test_text_of_other_lines_or_options_is_refused(options, random_run, tmp_path):
    """The last lines of a text are translated again: nothing else shows what it was made from."""
    out = tmp_path / "out"
    kept = b"".join(translated(random_run, *options).splitlines(keepends=True)[:8])
    shifted = b"\n" + STDIN
    cases = [([], shifted)] if options else [([], shifted), (["--sample", "--seed", "4"], STDIN)]
    for other, stdin in cases:
        out.write_bytes(kept)
        command = ["translate", random_run, *options, *other, "--resume", out]
        refused(command, "are not those of the same lines of stdin: give the same input", stdin)
        assert out.read_bytes() == kept


def test_one_translation_may_differ(random_run, whole, tmp_path):
    """As rounding in another batch may make it."""
    kept = whole.splitlines(keepends=True)[:8]
    kept[2] = b"by rounding\n"
    (tmp_path / "out").write_bytes(b"".join(kept))
    translated(random_run, "--resume", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"".join(kept + whole.splitlines(keepends=True)[8:])


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_resumed_stays_as_it_is(name, random_run, tmp_path):
    content, options, message = MISTAKES[name]
    (tmp_path / "out").write_bytes(content + b"torn")
    refused(["translate", random_run, *options, "--resume", tmp_path / "out"], message, STDIN)
    assert (tmp_path / "out").read_bytes() == content + b"torn"


def test_what_cannot_be_written_is_one_sentence(random_run, tmp_path, monkeypatch):
    refused(
        ["translate", random_run, "--resume", tmp_path],
        "is not a file, so it cannot be resumed",
        STDIN,
    )
    refused(
        ["translate", random_run, "--resume", tmp_path / "a" / "b"],
        "cannot be written: No such",
        STDIN,
    )
    monkeypatch.setattr(text, "open_output", lambda *_: (open("/dev/full", "w"), 0, []))
    refused(["translate", random_run, "--resume", "full"], "written: No space left", STDIN)


# The file alone.

PLAIN = ["eins ||| zwei", "", "drei", "vier ü"]
# Two translations of each line; line 1 is empty.
GROUPS = ["0 ||| a ||| -1.0\n0 ||| b ||| -2.0\n", "1 |||  ||| 0.0\n1 |||  ||| -1e9\n"]
GROUPS += [f"{i} ||| a ||| b ||| -1.0\n{i} ||| ü ||| -2.0\n" for i in (2, 3)]


@pytest.mark.parametrize("n_best", [None, 2])
def test_cut_off_at_every_byte(n_best, tmp_path):
    parts = GROUPS if n_best else [f"{line}\n" for line in PLAIN]
    parts = [part.encode() for part in parts]
    whole = b"".join(parts)
    for size in range(len(whole) + 1):
        (tmp_path / "out").write_bytes(whole[:size])
        blocks = iter([b"a\n" * 9])
        lines = sentences.IncomingLines(lambda _, blocks=blocks: next(blocks, b""))
        rows = make_rows("text", None, None, n_best)
        file, done, _ = open_output(tmp_path / "out", lines, rows)
        assert done == max(i for i in range(5) if len(b"".join(parts[:i])) <= size), whole[:size]
        assert len(lines.take(99)) == 9 - done
        with file:
            file.write("neu\n")
        assert (tmp_path / "out").read_bytes() == b"".join(parts[:done]) + b"neu\n"
