"""Tries an exported version before anyone relies on it: what a server would answer, and to what.

Everything here goes through TensorFlow's C++ loader in a process of its own (`ServerProcess`), the
way TF Serving runs a model. `check` is what `export` and `keras-transformer check` call.
"""

import json
import math
import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from keras_transformer.inspection.files import FILES
from keras_transformer.inspection.model_config import MOST
from keras_transformer.serving.acceptance.opening import check_checksums
from keras_transformer.serving.acceptance.server_process import ServerProcess, is_supported
from keras_transformer.serving.acceptance.structure import check_structure
from keras_transformer.serving.signatures import SIGNATURES, make_inputs
from keras_transformer.serving.versions import CARD, DEFAULT, read_card
from keras_transformer.serving.warm_up import read_warm_up
from keras_transformer.typing import Path
from keras_transformer.wording import counted

# They need not make sense in the model's language: empty, short, long, another script, unknown
# symbols, control characters, not even UTF-8.
HOSTILE_ROWS = (
    b"",
    b"   \t\n",
    b"a",
    b"The quick brown fox jumps over the lazy dog. " * 4,
    "Zwölf Boxkämpfer — 東京 🙂".encode(),
    "\u202e\u0301\u200b\ufeff".encode(),
    b"\xff\xfe\x00",
    b"\xed\xa0\x80",
    b"\x00",
    b"</s><s><pad>",
    b"x" * 10_000,
)
LOG_PROB_TOLERANCE = 1e-3
LONGEST_TRIED = 4096  # of longer sources, attention alone would take gigabytes
LONGEST_PIECE = 40  # characters that a token stands for, at most, on average
NOT_TRIED = "left out: TensorFlow's C library is tried on Linux only, so check it there"


class Finding(NamedTuple):
    """One row of a report."""

    check: str  # what was looked at
    problems: list[str]  # sentences; empty when all is well
    detail: str = ""  # what was seen
    left_out: bool = False  # not looked at, for the reason that the detail gives


class Answer(NamedTuple):
    """An answer that a signature has to give."""

    signature: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


def check(
    version_dir: Path, answers: Sequence[Answer] = (), allow_ops: Collection[str] = ()
) -> list[Finding]:
    """Tries whether a version is fit to be served.

    Args:
        version_dir: path of the directory that holds `saved_model.pb`.
        answers: `Answer`s of the model in memory. Those that the model card holds are always
            compared: texts to the letter, unless the card says that the model computes in half
            precision, which may decide a tie differently in a larger batch.
        allow_ops: As `check_structure` has them.

    Returns:
        List of `Finding`s. On another system than Linux, of the structure alone, and one that says
        that the rest was left out.

    Example:

    >>> findings = check("export/models/dates/1")
    >>> [finding.check for finding in findings if finding.problems]
    []
    """
    findings = [_files(version_dir), Finding("structure", check_structure(version_dir, allow_ops))]
    if any(finding.problems for finding in findings):  # what is not sound is not loaded
        return findings
    if not is_supported():
        return [*findings, Finding("trial as a server", [], NOT_TRIED, left_out=True)]
    try:
        with ServerProcess(version_dir) as server:
            detail = f"in {server.load_seconds:.2f} s, XLA off, ops of text only"
            findings.append(Finding("loads", [], detail))
            return findings + _Trial(server, version_dir).findings(answers)
    except (ValueError, RuntimeError) as error:
        return [*findings, Finding("loads and runs", [str(error)])]


def _files(version_dir):
    """The row on the files: they are what was written."""
    if not os.path.exists(os.path.join(version_dir, CARD)):
        return Finding("files", [f"There is no {CARD}, by which damage would show: export anew."])
    try:
        check_checksums(version_dir)
        count = len(read_card(version_dir).get(FILES, ()))
    except ValueError as error:
        return Finding("files", [str(error)])
    if not count:
        return Finding("files", [], f"left out: {CARD} is an older one, without checksums", True)
    return Finding("files", [], f"{count} by their checksums")


class _Trial:
    """A conversation with one server process."""

    def __init__(self, server, version_dir):
        self.server = server
        self.version_dir = version_dir
        self.card = read_card(version_dir)
        computation = self.card.get("precision", {}).get("computation", "float32")
        self.precise = computation == "float32"
        self.names = [name for name in SIGNATURES if name in server.signatures]

    def findings(self, answers):
        """All rows of the report."""
        recorded = [
            Answer(name, **signature["example"])
            for name, signature in self.card.get("signatures", {}).items()
            if "example" in signature
        ]
        rows = [
            ("answers as in memory", self._compare, [*recorded, *answers]),
            ("hostile rows, finite and UTF-8", self._hostile, self.names),
            ("alone as in a batch", self._alone, self.names),
            ("no rows", self._no_rows, self.names),
            ("wrong shapes refused", self._wrong_shapes, self.names),
            ("warm-up", self._warm_up, read_warm_up(self.version_dir)),
        ]
        findings = []
        for title, function, items in rows:
            problems = [problem for item in items for problem in function(item)]
            what = "signatures" if items is self.names else "requests"
            if function in (self._compare, self._alone) and not self.precise:
                what += ", number of rows only: half precision"
            findings.append(Finding(title, problems, f"{len(items)} {what}"))
        return [*findings, self.cut()]

    def cut(self):
        """The row on sources longer than the model reads: answered as what it reads of them is."""
        title, architecture = "long sources are cut", self.card.get("architecture", {})
        longest = architecture.get("max_length")
        if longest is None:
            return Finding(title, [], "left out: the model card names no max_length", left_out=True)
        if not 1 <= longest <= LONGEST_TRIED:
            if 1 <= longest <= MOST["max_length"]:
                return Finding(title, [], f"left out: max_length is {longest}", left_out=True)
            return Finding(title, [f"The model card names a max_length of {longest}."])
        example = self.card["signatures"][DEFAULT]["example"]["inputs"]["text"][0].strip() or "a b"
        text = f"{example} " * (1 + longest * LONGEST_PIECE // len(example))
        ids = [4 + k % (self.card["vocabulary"]["source"]["ids"] - 4) for k in range(2 * longest)]
        trials = {DEFAULT: ("text", text + example[::-1], text)}
        if "tokens" in self.names:
            trials["tokens"] = ("ids", ids, ids[: longest - 1])
        problems = []
        for name, (key, whole, read) in trials.items():
            answers = [self._run(name, {key: [row]}) for row in (whole, read)]
            found = [sentence for _, sentences in answers for sentence in sentences]
            problems += found or _differences(
                name, {key: [whole]}, answers[1][0], answers[0][0], self.precise
            )
        read = f"only the first {longest - 1} tokens of more than that are read"
        return Finding(title, problems, f"{counted(len(trials), 'signature')}: {read}")

    def _run(self, name, inputs):
        """Runs one request: (outputs, sentences that say what is wrong with them)."""
        outputs = self.server.predict(inputs, name)
        if "error" in outputs:
            return None, [f"{name} answers {_short(inputs)} with an error: {outputs['error']}"]
        count = len(next(iter(inputs.values())))
        problems = []
        for key, values in outputs.items():
            if len(values) != count:
                problems.append(
                    f"{name} answers {counted(count, 'row')} with {len(values)} of {key}; expected "
                    "as many."
                )
            for leaf in _leaves(values):
                if isinstance(leaf, bytes):
                    problems.append(f"{name} answers {leaf!r}, which is not UTF-8.")
                elif isinstance(leaf, float) and not math.isfinite(leaf):
                    problems.append(f"{name} answers with {key} {leaf}, which JSON cannot hold.")
        return outputs, problems

    def _compare(self, answer):
        outputs, problems = self._run(answer.signature, answer.inputs)
        if problems:
            return problems
        return _differences(answer.signature, answer.inputs, answer.outputs, outputs, self.precise)

    def _hostile(self, name):
        return self._run(name, make_inputs(name, HOSTILE_ROWS))[1]

    def _alone(self, name):
        if not SIGNATURES[name].batchable:
            return []
        inputs = make_inputs(name, HOSTILE_ROWS)
        together, problems = self._run(name, inputs)
        if problems:
            return []  # said already
        for row in range(len(HOSTILE_ROWS)):
            own = {key: values[row : row + 1] for key, values in inputs.items()}
            alone, problems = self._run(name, own)
            expected = {key: values[row : row + 1] for key, values in together.items()}
            problems = problems or _differences(name, own, expected, alone, self.precise)
            if problems:
                return problems
        return []

    def _no_rows(self, name):
        if any(len(spec.shape) > 1 for spec in SIGNATURES[name].inputs.values()):
            return []  # lists cannot say how wide a table without rows is
        return self._run(name, make_inputs(name, ()))[1]

    def _wrong_shapes(self, name):
        """A scalar and a table instead of rows: an error that names the shape, and no crash."""
        problems = []
        for nest in (lambda rows: rows[0], lambda rows: [rows]):
            inputs = {key: nest(rows) for key, rows in make_inputs(name, [b"a", b"b"]).items()}
            outputs = self.server.predict(inputs, name)
            if "shape" not in outputs.get("error", ""):
                problems.append(f"{name} answers inputs of a wrong shape with {_short(outputs)}.")
        return problems

    def _warm_up(self, request):
        name, inputs = request
        return self._run(name or "serving_default", inputs)[1]


def _differences(name, inputs, expected, received, precise):
    """Sentences on where two answers differ: texts to the letter, numbers a little at most."""
    if set(expected) != set(received):
        return [f"{name} answers with {sorted(received)}, expected {sorted(expected)}."]
    alike = _shapes(expected) == _shapes(received) and all(
        one == other
        if not isinstance(one, float)
        else math.isclose(one, other, rel_tol=LOG_PROB_TOLERANCE, abs_tol=LOG_PROB_TOLERANCE)
        for key in expected
        for one, other in zip(_leaves(expected[key]), _leaves(received[key]), strict=True)
    )
    if alike or not precise:
        return []
    return [
        f"To {_short(inputs)} {name} answers {_short(received)}, expected {_short(expected)}; an "
        "answer has to depend on nothing but its row and the weights."
    ]


def _shapes(outputs):
    def shape(value):
        return [shape(item) for item in value] if isinstance(value, list) else None

    return {key: shape(value) for key, value in outputs.items()}


def _leaves(value):
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _short(value):
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 200 else f"{text[:200]}…"
