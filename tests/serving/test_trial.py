"""The trial of a version: silent on a sound one, and one sentence on each way to break one."""

import json
import pathlib
import shutil
import struct
import types

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from keras_transformer.cli.models import print_report
from keras_transformer.serving import server_process, trial
from keras_transformer.serving.saved_model import CORE_OPS, export
from keras_transformer.serving.trial import (
    WARM_UP,
    Answer,
    read_warm_up,
    write_warm_up,
)
from keras_transformer.serving.versions import CARD, SIGNATURES
from tests.support import stand_in_translator as stand_ins
from tests.support.sealing import reseal
from tests.support.toy_translator import toy_pairs

CHECKS = [
    "files",
    "structure",
    "loads",
    "same outputs as in memory",
    "adversarial inputs",
    "single = batch",
    "empty batch",
    "wrong shapes are rejected",
    "warm-up",
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return export(stand_ins.StandIn(), tmp_path_factory.mktemp("sound"))


@pytest.fixture
def copy(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "1")


def check(version_dir, answers=()):
    """The stand-ins are made of other ops than exports of ours."""
    return trial.check(version_dir, answers, CORE_OPS)


def problems_of(version_dir, *arguments):
    """{check: problems}, of those that found any."""
    return {f.check: f.problems for f in check(version_dir, *arguments) if f.problems}


def test_sound_version_passes_every_check(sound):
    assert [finding.check for finding in check(sound)] == CHECKS
    assert problems_of(sound) == {}


def test_another_answer_than_in_memory(copy):
    card = json.loads((copy / CARD).read_text())
    outputs = card["signatures"]["serving_default"]["example"]["outputs"]
    outputs["text"][0] += "x"
    reseal(copy, lambda fields: fields.update(card))
    ((name, problems),) = problems_of(copy).items()
    assert name == "same outputs as in memory" and len(problems) == 1
    assert "an answer must depend on its row and the weights only" in problems[0]
    card["precision"] = {"computation": "bfloat16", "weights": "float32"}
    reseal(copy, lambda fields: fields.update(card))
    assert problems_of(copy) == {}, "of half precision, texts may differ"


def test_log_probs_may_differ_a_little(sound):
    def answers(difference):
        card = json.loads((pathlib.Path(sound) / CARD).read_text())
        example = card["signatures"]["serving_default"]["example"]
        example["outputs"]["log_prob"][0] += difference
        return [Answer("serving_default", **example)]

    assert problems_of(sound, answers(1e-4)) == {}
    assert list(problems_of(sound, answers(1e-1))) == ["same outputs as in memory"]


def test_version_without_a_card(copy):
    (copy / CARD).unlink()
    assert problems_of(copy) == {
        "files": ["model.json is missing, which has the checksums: export the run again."]
    }


def test_nothing_else_is_tried_where_the_structure_is_wrong(tmp_path):
    assert [finding.check for finding in check(tmp_path)] == ["files", "structure"]


def test_elsewhere_than_on_linux_the_structure_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(server_process, "sys", types.SimpleNamespace(platform="darwin"))
    reports = []
    path = export(stand_ins.StandIn(), tmp_path, report=reports.append)
    assert reports == [check(path)]
    files, structure, trial_row = reports[0]
    assert files.problems == []
    assert structure == ("structure", [], "", False)
    assert trial_row.skipped and trial_row.problems == []
    assert "skipped" in trial_row.detail and "Linux" in trial_row.detail
    print_report(reports[0])
    assert capsys.readouterr().err.count(" skipped ") == 1


def test_variables_that_are_no_weights(copy):
    (copy / "variables" / "variables.data-00000-of-00001").write_bytes(b"")
    assert "is corrupted: it is not what was written" in problems_of(copy)["files"][0]
    reseal(copy)
    assert "loading and running" in problems_of(copy)


@pytest.mark.parametrize(
    "twin, name, message",
    [
        (stand_ins.NotANumber, "adversarial inputs", "which JSON cannot hold"),
        (stand_ins.NotUtf8, "adversarial inputs", "which is not UTF-8"),
        (stand_ins.DropsRows, "adversarial inputs", "expected as many"),
        (stand_ins.RaisesOnContent, "adversarial inputs", "with an error"),
        (stand_ins.Random, "single = batch", "must depend on its row and the weights only"),
    ],
)
def test_unfit_answers(tmp_path, twin, name, message):
    translator = twin()
    signatures = {"serving_default": translator.serve.get_concrete_function()}
    tf.saved_model.save(translator, str(tmp_path), signatures=signatures)
    reseal(tmp_path)
    assert message in problems_of(tmp_path)[name][0]


def test_warm_up_that_would_fail(copy):
    write_warm_up(copy, [("serving_default", {"texts": tf.constant(["a"])})])
    reseal(copy)
    assert "Expected the inputs ['text'], got ['texts']" in problems_of(copy)["warm-up"][0]
    write_warm_up(copy, [("beam", {"text": tf.constant(["a"])})])
    reseal(copy)
    assert "Unknown signature beam" in problems_of(copy)["warm-up"][0]


def test_damaged_warm_up(copy):
    (copy / WARM_UP).write_bytes(b"\x00" * 100)
    reseal(copy)
    (problems,) = problems_of(copy).values()
    assert "is corrupted" in problems[0]


# Warm-up requests: where a server looks for them, and as it reads them.


def test_batchable_signatures_have_a_small_and_a_large_request(toy_version):
    requests = read_warm_up(toy_version)
    names = ["serving_default", "beam", "sample", "score"]
    assert [name for name, _ in requests] == [name for name in names for _ in range(2)]
    assert [{len(x) for x in inputs.values()} for _, inputs in requests] == [{1}, {32}] * 4
    for name, inputs in requests:
        assert inputs.keys() == SIGNATURES[name].inputs.keys()
    assert requests[0][1]["text"] == [toy_pairs(40)[0][0].encode()]


def test_file_is_an_uncompressed_record_file_of_prediction_logs(toy_version):
    with open(f"{toy_version}/{WARM_UP}", "rb") as file:
        content = file.read()
    # TFRecord: length, its checksum, the record, its checksum.
    (length,) = struct.unpack("<Q", content[:8])
    log = prediction_log_pb2.PredictionLog.FromString(content[12 : 12 + length])
    assert log.WhichOneof("log_type") == "predict_log"
    request = log.predict_log.request
    assert request.model_spec.signature_name == "serving_default"
    assert request.inputs["text"].dtype == tf.string.as_datatype_enum
