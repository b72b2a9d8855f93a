"""The checks of a version: silent on a sound one, and one sentence on each way to break one."""

import json
import os
import pathlib
import re
import shutil
import types
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.cli.models import print_report
from keras_transformer.kernels import backend
from keras_transformer.serving import server_process, structure, trial
from keras_transformer.serving.saved_model import CORE_OPS, export
from keras_transformer.serving.structure import OURS, SAVER, check_structure, read_signatures
from keras_transformer.serving.trial import WARM_UP, Answer, read_warm_up, write_warm_up
from keras_transformer.serving.versions import CARD, SIGNATURES
from tests.support.exported_operations import exported_operations
from tests.support.sealing import reseal
from tests.support.toy_translator import toy_pairs


@pytest.fixture
def copy(stand_in_version, tmp_path):
    return shutil.copytree(stand_in_version, tmp_path / "1")


@pytest.fixture
def tamper(copy):
    def tampered(change):
        path = copy / "saved_model.pb"
        saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
        change(saved_model)
        path.write_bytes(saved_model.SerializeToString())
        return check_structure(copy, CORE_OPS)

    return tampered


def check_one(problems, message):
    assert len(problems) == (message is not None), problems
    assert message is None or message in problems[0]


def test_sound_exports_have_no_problems(stand_in_version, toy_version):
    assert check_structure(toy_version) == check_structure(stand_in_version, CORE_OPS) == []
    problems = check_structure(stand_in_version)
    check_one(problems, "holds the ops ResourceGather")  # which no export of ours has
    meta_graphs = structure.read_meta_graphs(stand_in_version)
    assert check_structure(stand_in_version, structure.operations(*meta_graphs)) == []


def add_node(op, device="", **attributes):
    def change(saved_model):
        function = saved_model.meta_graphs[0].graph_def.library.function[0]
        node = function.node_def.add(name="added", op=op, device=device)
        for name, value in attributes.items():
            node.attr[name].CopyFrom(value)

    return change


def attribute(call=None, **fields):
    """An AttrValue; `call`: of a function whose own attribute _XlaMustCompile this is."""
    value = tf.compat.v1.AttrValue(**fields)
    if call is not None:
        value.func.attr["_XlaMustCompile"].b = call
    return value


def constant(string):
    return attribute(tensor=tf.make_tensor_proto([b"first", string]))


TIED, PATH = "is tied to the device", "holds the absolute path"
UNKNOWN, XLA = "which exports of this package do not contain", "compiled by XLA"
HERE = "/job:localhost/replica:0/task:"
PATHS = ("/data/résumés/", "gs://bucket/vocabulary.txt", "C:\\vocabulary.txt")
SOUND = ("/", "either / or", "/home and away", "^s3://.*", "variables/variables", "/" + "x" * 5000)
SOUND += ("\n\x05/home/me",)  # as in a SentencePiece model
NODES = [
    *((add_node("NoOp", device), None) for device in ("/device:CPU:*", f"{HERE}0/device:CPU:0")),
    *((add_node("NoOp", device), TIED) for device in ("/device:GPU:0", "/device:CPU:1")),
    *((add_node("NoOp", device), TIED) for device in (f"{HERE}1", "somewhere")),
    (add_node("SentencepieceDetokenizeOp"), None),
    (add_node("EagerPyFunc"), UNKNOWN),
    *((add_node("Const", value=constant(string.encode())), PATH) for string in PATHS),
    *((add_node("Const", value=constant(string.encode())), None) for string in SOUND),
    (add_node("NoOp", filename=attribute(s=b"/home/me"), shared_name=attribute(s=b"/a/b")), PATH),
    (add_node("NoOp", names=attribute(list={"s": [b"a", b"/home/me"]})), PATH),
    (add_node("NoOp", _XlaMustCompile=attribute(b=True)), XLA),
    (add_node("PartitionedCall", f=attribute(call=True)), XLA),
    (add_node("NoOp", _XlaMustCompile=attribute(b=False), f=attribute(call=False)), None),
]


@pytest.mark.parametrize("change, message", NODES)
def test_nodes(tamper, change, message):
    check_one(tamper(change), message)


# The rest of the graph's file.
def signatures(model):
    return model.meta_graphs[0].signature_def


def signature(model):
    return signatures(model)["serving_default"]


def shape_of(model):
    return signature(model).inputs["text"].tensor_shape.dim


def asset(name):
    return lambda model: model.meta_graphs[0].asset_file_def.add(filename=name)


META_GRAPHS = {
    "[['serve'], ['train']]": lambda x: x.meta_graphs.add().meta_info_def.tags.append("train"),
    "named 'serving_default', got [].": lambda x: signatures(x).pop("serving_default"),
    "'other' is none of serving_default": lambda x: signatures(x)["other"].CopyFrom(signature(x)),
    "are {text: string [-1, 1]}, expected {text: string [-": lambda x: shape_of(x).add(size=1),
    "are {log_prob: float32 [-1]}, ex": lambda x: signature(x).outputs.pop("text"),
    "{text: string [8]}, expected": lambda x: setattr(shape_of(x)[0], "size", 8),
    "log_prob: other [-1]": lambda x: setattr(signature(x).outputs["log_prob"], "dtype", 2),
    # Outside of all functions.
    "the ops EagerPyFunc": lambda x: x.meta_graphs[0].graph_def.node.add(op="EagerPyFunc"),
    "'vocabulary.txt' is missing": asset("vocabulary.txt"),
    "'/etc/passwd' lies outside": asset("/etc/passwd"),
    "'../saved_model.pb' lies outside": asset("../saved_model.pb"),
}


@pytest.mark.parametrize("message", META_GRAPHS)
def test_meta_graph(tamper, message):
    assert any(message in problem for problem in tamper(META_GRAPHS[message]))


def test_files_that_cannot_be_read(copy, stand_in_version, monkeypatch):
    (copy / "saved_model.pbtxt").touch()
    check_one(check_structure(copy, CORE_OPS), "There is a saved_model.pbtxt beside saved_model.pb")
    os.truncate(copy / "saved_model.pb", 3000)
    check_one(check_structure(copy), "is not a SavedModel")
    os.remove(copy / "saved_model.pb")
    check_one(check_structure(copy), "saved_model.pb cannot be read")
    monkeypatch.setattr(structure, "MAX_NODES", 50)
    check_one(check_structure(stand_in_version), " nodes, at most 50 are read")
    monkeypatch.setattr(structure, "MAX_BYTES", 50)
    check_one(check_structure(stand_in_version), "saved_model.pb has more than 50 bytes")


def test_versions_are_inspected_before_they_are_opened(copy):
    assert structure.inspect_version(copy, CORE_OPS) == read_signatures(copy)
    (copy / "variables" / "more").touch()
    with pytest.raises(ValueError, match="variables/more is not among the files"):
        structure.inspect_version(copy, CORE_OPS)


# Whatever files, connections, other programs and Python are reached by.
OUTWARD = re.compile(
    "File|Save|Restore|Checkpoint|Print|Py|Xla|Dataset|Iterator|Reader|Summary|Socket|Rpc|Remote"
    "|Queue|Table|Debug|Plugin|Send|Recv|Kafka|Sql|Decode(?!rs)|Stage|Barrier|Mutex"
)


def test_none_reaches_out():
    assert [name for name in sorted(OURS) if OUTWARD.search(name)] == []
    assert all(OUTWARD.search(name) or name == "ShardedFilename" for name in SAVER)


def test_products_in_parts_take_none_of_their_own(monkeypatch):
    monkeypatch.setattr(backend, "PART_SIZE", 16)
    assert exported_operations([({}, {"signatures": ("beam",)})]) <= OURS | SAVER


@pytest.mark.ordeal
def test_the_list_is_what_exports_hold():
    assert exported_operations() == OURS | SAVER


# The trial.
ON_ITS_ROW = "an answer must depend on its row and the weights only"
CHECKS = ["files", "structure", "loads", "same outputs as in memory", "adversarial inputs"]
CHECKS += ["single = batch", "empty batch", "wrong shapes are rejected", "warm-up"]


def problems_of(findings):
    return {f.check: f.problems for f in findings if f.problems}


def test_sound_version_passed_every_check_when_it_was_exported(toy_version):
    findings = json.loads(pathlib.Path(toy_version).with_name("findings.json").read_text())
    assert [check for check, *_ in findings] == CHECKS
    assert not any(problems or skipped for _, problems, _, skipped in findings)
    details = [detail for *_, detail, _ in findings]
    assert details[3:] == ["12 requests", *["6 signatures"] * 4, "8 requests"]


def trial_of(copy, answer):
    """A trial in which `answer(number of rows)` is what a process answers."""
    process = mock.Mock(signatures=("serving_default",))
    process.predict = lambda inputs, _: answer(len(inputs["text"]))
    return trial._Trial(process, copy)


def tried(copy, answer, **card):
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
    half = tried(copy, answer, precision={"computation": "bfloat16", "weights": "float32"})
    assert set(half) == {"wrong shapes are rejected"}


def test_another_answer_than_in_memory(copy):
    outputs = {"text": ["ab", ""], "log_prob": [-1.0, 0.0]}

    def found(**expected):
        answer = Answer("serving_default", {"text": ["a", ""]}, outputs | expected)
        return trial_of(copy, lambda _: outputs)._compare(answer)

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
    assert [x.check for x in trial.check(tmp_path / "none")] == ["files", "structure"]
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
