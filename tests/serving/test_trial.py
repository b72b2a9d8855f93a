"""The trial of a version: silent on a sound one, and one sentence on each way to break one."""

import json
import pathlib
import shutil
import types

import pytest
import tensorflow as tf

from keras_transformer.cli.models import print_report
from keras_transformer.serving import server_process, trial
from keras_transformer.serving.saved_model import CORE_OPS, export
from keras_transformer.serving.trial import WARM_UP, Answer, read_warm_up, write_warm_up
from keras_transformer.serving.versions import CARD, SIGNATURES
from tests.support.sealing import reseal
from tests.support.toy_translator import toy_pairs

ON_ITS_ROW = "an answer must depend on its row and the weights only"
CHECKS = ["files", "structure", "loads", "same outputs as in memory", "adversarial inputs"]
CHECKS += ["single = batch", "empty batch", "wrong shapes are rejected", "warm-up"]


def problems_of(findings):
    return {f.check: f.problems for f in findings if f.problems}


def test_sound_version_passes_every_check(toy_version):
    """When it was exported."""
    findings = json.loads(pathlib.Path(toy_version).with_name("findings.json").read_text())
    assert [check for check, *_ in findings] == CHECKS
    assert not any(problems or skipped for _, problems, _, skipped in findings)
    details = [detail for *_, detail, _ in findings]
    assert details[3:] == ["12 requests", *["6 signatures"] * 4, "8 requests"]


@pytest.fixture
def copy(stand_in_version, tmp_path):
    return shutil.copytree(stand_in_version, tmp_path / "1")


def trial_of(copy, answer):
    """A trial in which `answer(number of rows)` is what a process answers."""
    predict = lambda inputs, _: answer(len(inputs["text"]))  # noqa: E731
    process = types.SimpleNamespace(signatures=("serving_default",), predict=predict)
    return trial._Trial(process, copy)


def tried(copy, answer, **card):
    """{check: problems} of such a trial."""
    reseal(copy, lambda fields: fields.update(card))
    return problems_of(trial_of(copy, answer).findings([]))


def test_unfit_answers(copy):
    for text, log_prob, message in (
        (["x"], [-float("inf")], "which JSON cannot hold"),
        ([b"\xff"], [-1.0], "which is not UTF-8"),
        ([], [-1.0], "answers 11 rows with 0 of text; expected as many"),
    ):
        answer = {"text": text, "log_prob": log_prob}
        found = tried(copy, lambda rows, answer=answer: {k: x * rows for k, x in answer.items()})
        assert message in found["adversarial inputs"][0]
        assert "answers inputs of a wrong shape with" in found["wrong shapes are rejected"][0]


def test_an_error_is_told_where_there_should_be_an_answer(copy):
    found = tried(copy, lambda _: {"error": "of this shape"})
    assert set(found) == {*CHECKS[3:5], "empty batch", "warm-up"}
    assert "serving_default answers {" in (told := found["empty batch"][0])
    assert told.endswith("with an error: of this shape")


def test_answers_that_depend_on_their_batch(copy):
    def answer(rows):
        return {"text": ["x"] * rows, "log_prob": [-0.01 * rows] * rows}

    (problem,) = tried(copy, answer)["single = batch"]
    assert ON_ITS_ROW in problem
    half = {"computation": "bfloat16", "weights": "float32"}
    assert set(tried(copy, answer, precision=half)) == {"wrong shapes are rejected"}


def test_another_answer_than_in_memory(copy):
    outputs = {"text": ["ab", ""], "log_prob": [-1.0, 0.0]}
    run = trial_of(copy, lambda _: outputs)

    def found(**expected):
        return run._compare(Answer("serving_default", {"text": ["a", ""]}, outputs | expected))

    assert found() == found(log_prob=[-1.0009, 0.0009]) == []
    for expected in ({"text": ["abx", ""]}, {"log_prob": [-1.01, 0.0]}, {"log_prob": [-1, 0.01]}):
        (told,) = found(**expected)
        assert ON_ITS_ROW in told
    (told,) = found(score=[1.0])
    assert "answers with ['log_prob', 'text'], expected ['log_prob', 'score', 'text']" in told


def check(version_dir):
    """The stand-ins are made of other ops than exports of ours."""
    return problems_of(trial.check(version_dir, (), CORE_OPS))


def test_nothing_is_loaded_where_files_or_structure_are_wrong(copy, tmp_path):
    none = trial.check(tmp_path / "none")
    assert [finding.check for finding in none] == ["files", "structure"]
    data = copy / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(b"")
    assert "is corrupted: it is not what was written" in check(copy)["files"][0]
    reseal(copy)
    assert "loading and running" in check(copy)
    (copy / CARD).unlink()
    (problem,) = check(copy)["files"]
    assert "model.json is missing" in problem


def test_elsewhere_than_on_linux_the_structure_alone(stand_in, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(server_process, "sys", types.SimpleNamespace(platform="darwin"))
    reports = []
    path = export(stand_in, tmp_path, report=reports.append)
    assert reports == [trial.check(path, (), CORE_OPS)] and not problems_of(reports[0])
    files, structure, skipped = reports[0]
    assert (structure.check, files.skipped, structure.skipped) == ("structure", False, False)
    assert skipped.skipped and "Linux" in skipped.detail
    print_report(reports[0])
    assert capsys.readouterr().err.count(" skipped ") == 1


# Warm-up requests: where a server looks for them, and as it reads them.
def test_warm_up_that_would_fail(copy):
    one = tf.constant(["a"])
    write_warm_up(copy, [("serving_default", {"texts": one}), ("beam", {"text": one})])
    reseal(copy)
    names, signature = check(copy)["warm-up"]
    assert "Expected the inputs ['text'], got ['texts']" in names
    assert "Unknown signature beam" in signature
    (copy / WARM_UP).write_bytes(b"\x00" * 100)
    with pytest.raises(ValueError, match="is corrupted"):
        read_warm_up(copy)
    (copy / WARM_UP).unlink()
    assert read_warm_up(copy) == []


def test_batchable_signatures_have_a_small_and_a_large_request(toy_version):
    requests = read_warm_up(toy_version)
    names = ["serving_default", "beam", "sample", "score"]
    assert [name for name, _ in requests] == [name for name in names for _ in range(2)]
    assert [{len(x) for x in inputs.values()} for _, inputs in requests] == [{1}, {32}] * 4
    for name, inputs in requests:
        assert inputs.keys() == SIGNATURES[name].inputs.keys()
    sources, targets = zip(*toy_pairs(40)[:32], strict=True)
    assert requests[1][1]["text"] == [source.encode() for source in sources]
    assert requests[7][1]["target"] == [target.encode() for target in targets]
