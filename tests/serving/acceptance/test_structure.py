"""The structure check: silent on a sound export, one sentence on each way to break one."""

import os
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.acceptance import structure
from keras_transformer.serving.saved_model import CORE_OPS
from tests.support import stand_in_translator as stand_ins


def check_structure(directory):
    """The stand-ins are made of other ops than exports of ours."""
    return structure.check_structure(directory, CORE_OPS)


def save(translator, directory):
    """Saves as the export does, without its checks."""
    signatures = {"serving_default": translator.serve.get_concrete_function()}
    tf.saved_model.save(translator, str(directory), signatures=signatures)
    return directory


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return save(stand_ins.StandIn(), tmp_path_factory.mktemp("sound"))


@pytest.fixture
def tamper(sound, tmp_path):
    """Copies the sound directory with a change to its protobuf."""

    def tampered(change):
        path = shutil.copytree(sound, tmp_path / "tampered") / "saved_model.pb"
        saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
        change(saved_model)
        path.write_bytes(saved_model.SerializeToString())
        return check_structure(tmp_path / "tampered")

    return tampered


def serving_default(saved_model):
    return saved_model.meta_graphs[0].signature_def["serving_default"]


def add_node(op, device="", **attributes):
    """A change that adds a node to the first function of the library."""

    def change(saved_model):
        function = saved_model.meta_graphs[0].graph_def.library.function[0]
        node = function.node_def.add(name="added", op=op, device=device)
        for name, value in attributes.items():
            node.attr[name].CopyFrom(value)

    return change


def check_one(problems, message):
    """One problem with this message, or none when there is no message."""
    assert len(problems) == (message is not None), problems
    assert message is None or message in problems[0]


def test_sound_export_has_no_problems(sound):
    assert check_structure(sound) == []
    assert check_structure(str(sound)) == []


@pytest.mark.parametrize("twin", [stand_ins.CountingByHand, stand_ins.HoldsKerasVariables])
def test_sound_twin_has_no_problems(tmp_path, twin):
    assert check_structure(save(twin(), tmp_path)) == []


@pytest.mark.parametrize(
    "twin, message",
    [
        (stand_ins.CompiledByXla, "is to be compiled by XLA"),
        (stand_ins.CallsPython, "calls Python"),
        (stand_ins.NeverEnding, "is a loop without a bound"),
        (stand_ins.MovingBound, "is a loop without a bound"),
        (stand_ins.StandingStill, "is a loop without a bound"),
        (stand_ins.CountingDown, "is a loop without a bound"),
        (stand_ins.OtherOps, "is neither an op of this package's exports"),
        (stand_ins.OnGpu, "is tied to the device '/device:GPU:0'"),
        (stand_ins.ReadsFile, "holds the absolute path '/etc/passwd'"),
        (stand_ins.HoldsKerasLayer, "embeddings' is read but not restored"),
        (stand_ins.OtherNames, "{log_prob: float32 [-1], translation: string [-1]}, expected"),
        (stand_ins.OneOutput, "{text: string [-1]}, expected"),
        (stand_ins.Padded, "{log_prob: float32 [-1, 1], text: string [-1]}, expected"),
    ],
)
def test_broken_twin_is_told(tmp_path, twin, message):
    problems = check_structure(save(twin(), tmp_path))
    # A twin breaks one rule, if in several nodes: no other problem may be named.
    assert problems and all(message in problem for problem in problems)


def test_xla_that_is_switched_on_for_the_process_is_told(tmp_path):
    before = tf.config.optimizer.get_jit()
    tf.config.optimizer.set_jit("autoclustering")
    try:
        problems = check_structure(save(stand_ins.StandIn(), tmp_path))
    finally:
        tf.config.optimizer.set_jit(before)
    assert problems and all("switches XLA on" in problem for problem in problems)


@pytest.mark.parametrize(
    "device, message",
    [
        ("", None),
        ("/device:CPU:0", None),
        ("/device:CPU:*", None),
        ("/job:localhost/replica:0/task:0/device:CPU:0", None),
        ("/device:GPU:0", "is tied to the device"),
        ("/device:TPU:*", "is tied to the device"),
        ("/device:CPU:1", "is tied to the device"),
        ("/job:worker/replica:0/task:0/device:CPU:0", "is tied to the device"),
        ("/job:localhost/replica:0/task:1", "is tied to the device"),
        ("somewhere", "cannot be parsed"),
    ],
)
def test_devices(tamper, device, message):
    check_one(tamper(add_node("NoOp", device)), message)


@pytest.mark.parametrize(
    "op, message",
    [
        ("MatMul", None),
        ("SentencepieceOp", None),
        ("SentencepieceTokenizeOp", None),
        ("SentencepieceDetokenizeOp", None),
        ("SentencepieceVocabSizeOp", "is neither an op of this package's"),
        ("TFText>FastSentencepieceTokenize", "is neither an op of this package's"),
        ("NoSuchOp", "is neither an op of this package's"),
        ("PyFunc", "calls Python"),
        ("PyFuncStateless", "calls Python"),
        ("EagerPyFunc", "calls Python"),
        ("XlaLaunch", "is an XLA op"),
        ("XlaCallModule", "is an XLA op"),
        ("NextIteration", "is a TensorFlow 1 loop"),
        ("While", "is a loop without a bound"),
        ("StatelessWhile", "is a loop without a bound"),
    ],
)
def test_ops(tamper, op, message):
    check_one(tamper(add_node(op)), message)


@pytest.mark.parametrize(
    "string, message",
    [
        (b"/home/me/vocabulary.txt", "holds the absolute path"),
        (b"/vocabulary", "holds the absolute path"),
        (b"/data/r\xc3\xa9sum\xc3\xa9s/", "holds the absolute path"),
        (b"gs://bucket/vocabulary.txt", "holds the absolute path"),
        (b"C:\\vocabulary.txt", "holds the absolute path"),
        (b"/", None),
        (b"either / or", None),
        (b"/home and away", None),
        (b"^s3://.*", None),
        (b"variables/variables", None),
        (b"\n\x05/home/me", None),  # as in a serialized SentencePiece model
        (b"/" + b"x" * 5000, None),
    ],
)
def test_paths(tamper, string, message):
    constant = tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto([b"first", string]))
    check_one(tamper(add_node("Const", value=constant)), message)


def test_paths_in_attributes(tamper):
    path = tf.compat.v1.AttrValue(s=b"/home/me/file")
    problems = tamper(add_node("NoOp", filename=path, shared_name=path))
    check_one(problems, "holds the absolute path '/home/me/file'")


def test_xla_marks_on_a_call(tamper):
    marked = tf.compat.v1.AttrValue(b=True)
    check_one(tamper(add_node("NoOp", _XlaMustCompile=marked)), "compiled by XLA")


def test_xla_mark_passed_to_the_called_function(tamper):
    call = tf.compat.v1.AttrValue()
    call.func.attr["_XlaMustCompile"].b = True
    check_one(tamper(add_node("PartitionedCall", f=call)), "compiled by XLA")


def test_xla_marks_that_say_no(tamper):
    call = tf.compat.v1.AttrValue()
    call.func.attr["_XlaMustCompile"].b = False
    unmarked = tf.compat.v1.AttrValue(b=False)
    assert tamper(add_node("PartitionedCall", f=call, _XlaMustCompile=unmarked)) == []


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda model: model.ClearField("meta_graphs"), "the tags []"),
        (
            lambda model: model.meta_graphs.add().meta_info_def.tags.append("train"),
            "the tags [['serve'], ['train']]",
        ),
        (lambda model: model.meta_graphs[0].meta_info_def.tags.append("gpu"), "[['gpu', 'serve']]"),
        (
            lambda model: model.meta_graphs[0].signature_def.pop("serving_default"),
            "Expected a signature named 'serving_default', got [].",
        ),
        (lambda model: setattr(serving_default(model), "method_name", "call"), "is 'call'"),
        (
            lambda model: serving_default(model).inputs["text"].tensor_shape.dim.add(size=1),
            "The inputs of 'serving_default' are {text: string [-1, 1]}, expected {text: string [-",
        ),
        (
            lambda model: setattr(
                serving_default(model).inputs["text"].tensor_shape.dim[0], "size", 8
            ),
            "{text: string [8]}, expected",
        ),
        (
            lambda model: (
                serving_default(model)
                .outputs["log_prob"]
                .tensor_shape.CopyFrom(tf.TensorShape(None).as_proto())
            ),
            "log_prob: float32 None",
        ),
        (
            lambda model: setattr(serving_default(model).outputs["log_prob"], "dtype", 2),
            "log_prob: float64 [-1]",
        ),
        (
            lambda model: model.meta_graphs[0].asset_file_def.add(filename="vocabulary.txt"),
            "'vocabulary.txt' is missing",
        ),
        (
            lambda model: model.meta_graphs[0].asset_file_def.add(filename="/etc/passwd"),
            "'/etc/passwd' lies outside",
        ),
        (
            lambda model: model.meta_graphs[0].asset_file_def.add(filename="../saved_model.pb"),
            "'../saved_model.pb' lies outside",
        ),
    ],
)
def test_meta_graph(tamper, change, message):
    assert any(message in problem for problem in tamper(change))


def test_top_level_graph_is_walked_too(tamper):
    def change(saved_model):
        saved_model.meta_graphs[0].graph_def.node.add(name="added", op="EagerPyFunc")

    check_one(tamper(change), "Node 'added' (EagerPyFunc) in the graph calls Python")


@pytest.mark.parametrize(
    "name, message",
    [
        ("saved_model.pb", "There is no saved_model.pb"),
        ("variables/variables.index", "variables.index is missing"),
        ("variables/variables.data-00000-of-00001", "The weights are incomplete"),
    ],
)
def test_missing_file_is_told(sound, tmp_path, name, message):
    copy = shutil.copytree(sound, tmp_path / "copy")
    os.remove(copy / name)
    check_one(check_structure(copy), message)


def test_missing_variables_are_told(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    shutil.rmtree(copy / "variables")
    assert len(check_structure(copy)) == 2


def test_missing_shard_is_told(sound, tmp_path):
    variables = shutil.copytree(sound, tmp_path / "copy") / "variables"
    os.rename(
        variables / "variables.data-00000-of-00001", variables / "variables.data-00000-of-00002"
    )
    check_one(check_structure(tmp_path / "copy"), "The weights are incomplete")


def test_broken_protobuf_is_told(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    os.truncate(copy / "saved_model.pb", 3000)
    check_one(check_structure(copy), "is not a SavedModel")
