"""Tests an exported version before it is published: what a server would answer.

Everything here goes through TensorFlow's C++ loader in a separate process (`ServerProcess`), the
way TF Serving runs a model.

The first requests that a server runs are those of the version itself, its warm-up: TF Serving reads
them from `assets.extra/tf_serving_warmup_requests`, an uncompressed TFRecord file of
`PredictionLog`s, after loading and before it offers the version. If one fails, the load fails.
"""

import itertools
import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.serving.server_process import ServerProcess, is_supported
from keras_transformer.serving.structure import check_checksums, check_structure
from keras_transformer.serving.versions import CARD, DEFAULT, SIGNATURES, make_inputs, read_card
from keras_transformer.utils import FILES, Path, Tensor, counted

WARM_UP = os.path.join("assets.extra", "tf_serving_warmup_requests")
# Empty, short, long, in another script, with unknown symbols and control characters, and invalid
# UTF-8: the translations may be nonsense, but must be finite and valid.
ADVERSARIAL_INPUTS = (
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
TOLERANCE = 1e-3  # of floats, absolute and relative
NOT_TRIED = "skipped: TensorFlow's C library is tried on Linux only, so check it there"


class Finding(NamedTuple):
    """One row of a report."""

    check: str  # what was checked
    problems: list[str]  # sentences; empty if there are none
    detail: str = ""  # what was found
    skipped: bool = False  # not checked, for the reason in `detail`


class Answer(NamedTuple):
    """The expected outputs of a request."""

    signature: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


def write_warm_up(version_dir: Path, requests: Sequence[tuple[str, Mapping[str, Tensor]]]) -> None:
    """Writes warm-up requests, (signature's name, {input's name: tensor})."""
    path = os.path.join(version_dir, WARM_UP)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tf.io.TFRecordWriter(path) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "model"  # any: a server knows it by its directory
            request.model_spec.signature_name = signature
            for name, tensor in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
            log = prediction_log_pb2.PredictLog(request=request)
            record = prediction_log_pb2.PredictionLog(predict_log=log)
            writer.write(record.SerializeToString())


def read_warm_up(version_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads the warm-up requests of a version, with nested lists; none without such a file."""
    path = os.path.join(version_dir, WARM_UP)
    if not os.path.exists(path):
        return []
    requests = []
    try:
        for record in tf.data.TFRecordDataset(path):
            log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
            request = log.predict_log.request
            inputs = {key: tf.make_ndarray(x).tolist() for key, x in request.inputs.items()}
            requests.append((request.model_spec.signature_name, inputs))
    except (tf.errors.OpError, DecodeError) as error:
        raise ValueError(f"{WARM_UP} is corrupted.") from error
    return requests


def check(
    version_dir: Path, answers: Sequence[Answer] = (), allow_ops: Collection[str] = ()
) -> list[Finding]:
    """Checks whether a version can be served, by running it.

    Args:
        version_dir: path of the directory that holds `saved_model.pb`.
        answers: `Answer`s of the model in memory. Those in the model card are always compared:
            texts must be equal, unless the card says that the model computes in half precision,
            which may decide a tie differently in a larger batch.
        allow_ops: See `check_structure`.

    Returns:
        List of `Finding`s. On systems other than Linux, of the structure alone, and one that says
        that the rest was skipped.

    Example:

    >>> findings = check("export/models/dates/1")
    >>> [finding.check for finding in findings if finding.problems]
    []
    """
    findings = [_check_files(version_dir)]
    findings.append(Finding("structure", check_structure(version_dir, allow_ops)))
    if any(finding.problems for finding in findings):  # then it is not loaded
        return findings
    if not is_supported():
        return [*findings, Finding("trial as a server", [], NOT_TRIED, skipped=True)]
    try:
        with ServerProcess(version_dir, limited=True) as server:
            detail = f"in {server.load_seconds:.2f} s, without XLA, with text ops only"
            findings.append(Finding("loads", [], detail))
            return findings + _Trial(server, version_dir).findings(answers)
    except (ValueError, RuntimeError) as error:
        return [*findings, Finding("loading and running", [str(error)])]


def _check_files(version_dir):
    """Compares the files with their checksums."""
    if not os.path.exists(os.path.join(version_dir, CARD)):
        problem = f"{CARD} is missing, which has the checksums: export the run again."
        return Finding("files", [problem])
    try:
        check_checksums(version_dir)
    except ValueError as error:
        return Finding("files", [str(error)])
    if not (files := read_card(version_dir).get(FILES)):
        return Finding("files", [], f"skipped: {CARD} is an older one, without checksums", True)
    return Finding("files", [], f"{counted(len(files), 'file')}, checksums match")


class _Trial:
    """Requests to one server process."""

    def __init__(self, server: Any, version_dir: Path) -> None:
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
            ("same outputs as in memory", self._compare, [*recorded, *answers]),
            ("adversarial inputs", self._adversarial, self.names),
            ("single = batch", self._alone, self.names),
            ("empty batch", self._no_rows, self.names),
            ("wrong shapes are rejected", self._wrong_shapes, self.names),
            ("warm-up", self._warm_up, read_warm_up(self.version_dir)),
        ]
        findings = []
        for title, function, items in rows:
            problems = [problem for item in items for problem in function(item)]
            what = "signatures" if items is self.names else "requests"
            if function in (self._compare, self._alone) and not self.precise:
                what += ", number of rows only: half precision"
            findings.append(Finding(title, problems, f"{len(items)} {what}"))
        return findings

    def _run(self, name, inputs):
        """Runs one request; returns (outputs, problems)."""
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
        """Lists differences: other texts, or numbers out of tolerance."""
        name, inputs, expected = answer
        outputs, problems = self._run(name, inputs)
        if problems:
            return problems
        if set(expected) != set(outputs):
            return [f"{name} answers with {sorted(outputs)}, expected {sorted(expected)}."]
        if not self.precise or all(_is_close(expected[key], outputs[key]) for key in expected):
            return []
        return [
            f"To {_short(inputs)} {name} answers {_short(outputs)}, expected {_short(expected)}; "
            "an answer must depend on its row and the weights only."
        ]

    def _adversarial(self, name):
        return self._run(name, make_inputs(name, ADVERSARIAL_INPUTS, card=self.card))[1]

    def _alone(self, name):
        if not SIGNATURES[name].batchable:
            return []
        inputs = make_inputs(name, ADVERSARIAL_INPUTS, card=self.card)
        if "top_k" in inputs:  # batches round differently, which would reorder equal probabilities
            inputs["top_k"] = [1] * len(ADVERSARIAL_INPUTS)
        together, problems = self._run(name, inputs)
        if problems:
            return []  # reported already
        for row in range(len(ADVERSARIAL_INPUTS)):
            own, expected = (
                {key: values[row : row + 1] for key, values in tensors.items()}
                for tensors in (inputs, together)
            )
            if problems := self._compare(Answer(name, own, expected)):
                return problems
        return []

    def _no_rows(self, name):
        if any(len(shape) > 1 for shape, _ in SIGNATURES[name].inputs.values()):
            return []  # lists cannot express the width of a table without rows
        return self._run(name, make_inputs(name, (), card=self.card))[1]

    def _wrong_shapes(self, name):
        """Checks that a scalar and a matrix raise an error that names the shape."""
        problems = []
        inputs = make_inputs(name, [b"a", b"b"], card=self.card)
        for nest in (lambda rows: rows[0], lambda rows: [rows]):
            wrong = {key: nest(rows) for key, rows in inputs.items()}
            outputs = self.server.predict(wrong, name)
            if "shape" not in outputs.get("error", ""):
                problems.append(f"{name} answers inputs of a wrong shape with {_short(outputs)}.")
        return problems

    def _warm_up(self, request):
        name, inputs = request
        return self._run(name or DEFAULT, inputs)[1]


def _is_close(one, other):
    """Whether nested lists have the same shape, equal texts and close numbers."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_close, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return one == other


def _leaves(value):
    return itertools.chain(*map(_leaves, value)) if isinstance(value, list) else [value]


def _short(value):
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 200 else f"{text[:200]}…"
