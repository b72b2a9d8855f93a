"""Formats of `translate`, and outputs that are completed as if it had never been stopped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.cli import text
from keras_transformer.presets import SearchConfig
from keras_transformer.runs import opening
from keras_transformer.translation import sentences
from keras_transformer.translation.sentences import Hypothesis
from tests.support.command_line import refused, succeeds

JSON = ("--format", "jsonl")
N_BEST = ("--beam-size", "3", "--n-best", "2")
SEARCHES = []


class Upper:
    """Instead of a model: the text in capitals, or two answers; an empty one for an empty line."""

    def __init__(self, path, options, *others):
        self.run, self.search = None, SearchConfig(**options)
        SEARCHES.append(self.search)


def translator_of(opened, n_best=None, prefixes=False):
    is_drawn = opened.search.sample  # which depends on the number of the line

    def translate(texts, prefixes=None, first=0):
        rows = zip(prefixes or [b""] * len(texts), texts, strict=True)
        answers = [begin.decode() + text.decode(errors="replace").upper() for begin, text in rows]
        if is_drawn:
            answers = [f"{answer}{i}" for i, answer in enumerate(answers, first)]
        if n_best is None:
            return answers
        ends = [("!" * k, -k - 0.5, -k - 0.25) for k in range(n_best)]
        return [[Hypothesis(answer + end, *scores) for end, *scores in ends] for answer in answers]

    return translate


@pytest.fixture(scope="module", autouse=True)
def instead_of_a_model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "FIRST_WINDOW", 2)
        patch.setattr(sentences, "WINDOW", 5)
        patch.setattr(opening, "Opened", Upper)
        patch.setattr(opening, "SentenceTranslator", translator_of)
        yield


def translated(*options, stdin):
    return succeeds("translate", "run", *options, stdin=stdin).stdout


def test_lines_by_hand():
    assert translated(stdin=b"abc\n\n d\xc3\xa9\r\nlast").decode() == "ABC\n\n DÉ\nLAST\n"
    assert translated(*N_BEST, "--length-penalty", "0.5", stdin=b"abc\n\n").decode() == (
        "0 ||| ABC ||| -0.250000\n0 ||| ABC! ||| -1.250000\n"
        "1 |||  ||| -0.250000\n1 ||| ! ||| -1.250000\n"
    )
    assert SEARCHES[-1] == SearchConfig(beam_size=3, length_penalty=0.5)
    # One line for a line, whatever is translated to what looks like the end of one.
    assert translated(stdin="a\u2028b\x85c\n".encode()).decode() == "A B C\n"


def test_objects_by_hand():
    """Other fields are copied as they are: an exponent, a repeated name, an escape."""
    line = '{ "n": 1E400, "n": 2, "s": "\\u00e9", "text": "abc" } '
    found = translated(*JSON, stdin=f'{line}\n\n{{"text": "\\ud800"}}'.encode()).decode()
    assert found == (
        '{ "n": 1E400, "n": 2, "s": "\\u00e9", "text": "abc", "translation": "ABC"}\n\n'
        '{"text": "\\ud800", "translation": "?"}\n'
    )
    options = ["--field", "en", "--output-field", "de"]
    found = translated(*JSON, *options, *N_BEST, stdin='{"en": "é"}'.encode()).decode()
    answers = [{"text": "É", "log_prob": -0.5, "score": -0.25}]
    answers.append({"text": "É!", "log_prob": -1.5, "score": -1.25})
    assert json.loads(found) == {"en": "é", "de": answers} and "É" in found


plain = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))


@given(st.lists(plain, min_size=1), st.sampled_from([(), N_BEST, JSON]), st.data())
def test_completed_from_any_byte(tmp_path_factory, lines, options, data):
    if options == JSON:
        lines = [json.dumps({"text": line}) for line in lines]
    stdin, out = "".join(f"{x}\n" for x in lines).encode(), tmp_path_factory.mktemp("out") / "out"
    whole = translated(*options, stdin=stdin)
    first = b"".join(whole.splitlines(keepends=True)[: 1 + (options == N_BEST)])
    out.write_bytes(whole[: data.draw(st.just(0) | st.integers(len(first), len(whole)))])
    assert translated(*options, "--resume", out, stdin=stdin) == b""
    assert out.read_bytes() == whole


LINES = [f"line {i}" * (i != 4) for i in range(14)]
STDIN = "".join(f"{line}\n" for line in LINES).encode()


def test_prefixes_and_draws_go_on_too(tmp_path):
    (tmp_path / "prefix").write_text("".join(f"{i}:\n" for i in range(14)))
    options = ["--sample", "--seed", "4", "--prefix", tmp_path / "prefix"]
    options += "--temperature 0.9 --top-k 9 --top-p 0.8 --max-output-length 6".split()
    whole = translated(*options, stdin=STDIN)
    limits = dict(temperature=0.9, top_k=9, top_p=0.8, max_output_length=6)
    assert SEARCHES[-1] == SearchConfig(sample=True, seed=4, **limits)
    assert whole == "".join(f"{i}:{x.upper()}{i}\n" for i, x in enumerate(LINES)).encode()
    (tmp_path / "out").write_bytes(b"".join(whole.splitlines(keepends=True)[:6]) + b"A")
    translated(*options, "--resume", tmp_path / "out", stdin=STDIN)
    assert (tmp_path / "out").read_bytes() == whole


def test_output_of_other_objects_is_refused(tmp_path):
    """What was copied into the output is compared with the input, and the last answers."""
    rows = [json.dumps({"id": i, "text": line}) for i, line in enumerate(LINES)]
    whole = translated(*JSON, stdin="\n".join(rows).encode())
    kept = b"".join(whole.splitlines(keepends=True)[:3]) + b"torn"
    (tmp_path / "out").write_bytes(kept)
    message = "has no translation of line 3 of stdin: give the same input"
    for other in (rows[2].replace("line", "lime"), ""):
        stdin = "\n".join([*rows[:2], other, *rows[2:]]).encode()
        refused(["translate", "run", *JSON, "--resume", tmp_path / "out"], message, stdin)
        assert (tmp_path / "out").read_bytes() == kept
    command = ["translate", "run", *JSON, *N_BEST, "--resume", tmp_path / "out"]
    refused(command, "are not those of the same", "\n".join(rows).encode())
    (tmp_path / "out").write_bytes(kept.replace(b'"}', b'"', 1))
    refused(command, "output has a line that is not JSON: '{", "\n".join(rows).encode())


def test_what_cannot_be_completed_stays_as_it_is(tmp_path):
    for content, options, line in (
        (b"A\n" * 15, (), 15),  # too long
        (b"0 ||| A ||| -1\n" * 4, N_BEST, 2),  # more of each
        (b"", (), None),  # something else
        (b"A\n", N_BEST, None),
        (b"0 ||| A ||| -1\n" * 2 + b"2 ||| A ||| -1\n" * 2, N_BEST, 2),
    ):
        (tmp_path / "out").write_bytes(content + b"torn")
        message = f"translation of line {line} of stdin" if line else "no whole translation"
        refused(["translate", "run", *options, "--resume", tmp_path / "out"], message, STDIN)
        assert (tmp_path / "out").read_bytes() == content + b"torn"


@pytest.mark.parametrize("options", [(), N_BEST])
def test_text_of_other_lines_is_refused(options, tmp_path):
    """The last lines of a text are translated again: nothing else shows what it was made from."""
    out = tmp_path / "out"
    whole = translated(*options, stdin=STDIN).splitlines(keepends=True)
    out.write_bytes(kept := b"".join(whole[:10]) + b"torn")
    message = "are not those of the same lines of stdin: give the same input"
    refused(["translate", "run", *options, "--resume", out], message, b"x\n" + STDIN)
    assert out.read_bytes() == kept
    # Rounding in another batch may change one, and all scores.
    changed = [line.replace(b"-0.25", b"-0.24") for line in whole[:10]]
    changed[2:4] = [line.replace(b"LINE", b"LIME") for line in changed[2:4]]
    out.write_bytes(b"".join(changed))
    translated(*options, "--resume", out, stdin=STDIN)
    assert out.read_bytes() == b"".join(changed + whole[10:])


def test_windows_before_an_invalid_line_are_translated(tmp_path):
    command = ["translate", "run", *JSON, "--resume", tmp_path / "out"]
    lines = [json.dumps({"text": line}) for line in "abc"] + ['{"text": 3}']
    refused(command, "Line 4 of stdin is not an object with a string", "\n".join(lines).encode())
    found = (tmp_path / "out").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["translation"] for line in found] == ["A", "B"]


def test_objects_that_are_refused():
    taken = b'{"text": "A", "translation": 1}'
    refused(["translate", "run", *JSON], "1 of stdin has 'translation'", taken)
    refused(["translate", "run", *JSON], "Line 1 of stdin is not valid JSON", b"[" * 100_000)


def test_a_full_disk_is_one_sentence(monkeypatch):
    monkeypatch.setattr(text, "open_output", lambda *_: (open("/dev/full", "w"), 0, []))
    refused(["translate", "run", "--resume", "full"], "written: No space left", STDIN)
