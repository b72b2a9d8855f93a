"""The structure check: silent on a sound export, one sentence on each way to break one."""

import os
import re
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving import structure
from keras_transformer.serving.saved_model import CORE_OPS
from keras_transformer.serving.structure import OURS, SAVER
from tests.support import stand_in_translator as stand_ins
from tests.support.exported_operations import exported_operations, operations_of


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


def test_sound_twin_has_no_problems(tmp_path):
    assert check_structure(save(stand_ins.HoldsKerasVariables(), tmp_path)) == []


@pytest.mark.parametrize(
    "twin, message",
    [
        (stand_ins.CompiledByXla, "is to be compiled by XLA"),
        (stand_ins.CallsPython, "holds the ops PyFunc"),
        (stand_ins.OtherOps, "holds the ops"),
        (stand_ins.OnGpu, "is tied to the device '/device:GPU:0'"),
        (stand_ins.ReadsFile, "holds the absolute path '/etc/passwd'"),
        (stand_ins.OtherNames, "{log_prob: float32 [-1], translation: string [-1]}, expected"),
        (stand_ins.OneOutput, "{text: string [-1]}, expected"),
        (stand_ins.Padded, "{log_prob: float32 [-1, 1], text: string [-1]}, expected"),
    ],
)
def test_broken_twin_is_told(tmp_path, twin, message):
    problems = check_structure(save(twin(), tmp_path))
    # A twin breaks one rule, if in several nodes: no other problem may be named.
    assert problems and all(message in problem for problem in problems)


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
NODES = [
    *((add_node("NoOp", device), None) for device in ("", "/device:CPU:0", "/device:CPU:*")),
    (add_node("NoOp", "/job:localhost/replica:0/task:0/device:CPU:0"), None),
    (add_node("NoOp", "/device:GPU:0"), TIED),
    (add_node("NoOp", "/device:TPU:*"), TIED),
    (add_node("NoOp", "/device:CPU:1"), TIED),
    (add_node("NoOp", "/job:worker/replica:0/task:0/device:CPU:0"), TIED),
    (add_node("NoOp", "/job:localhost/replica:0/task:1"), TIED),
    (add_node("NoOp", "somewhere"), TIED),
    *((add_node(f"Sentencepiece{name}Op"), None) for name in ("", "Tokenize", "Detokenize")),
    (add_node("SentencepieceVocabSizeOp"), UNKNOWN),
    (add_node("TFText>FastSentencepieceTokenize"), UNKNOWN),
    (add_node("NoSuchOp"), UNKNOWN),
    *((add_node(op), UNKNOWN) for op in ("PyFunc", "PyFuncStateless", "EagerPyFunc")),
    *((add_node(op), UNKNOWN) for op in ("XlaLaunch", "XlaCallModule")),
    (add_node("Const", value=constant(b"/home/me/vocabulary.txt")), PATH),
    (add_node("Const", value=constant(b"/vocabulary")), PATH),
    (add_node("Const", value=constant("/data/résumés/".encode())), PATH),
    (add_node("Const", value=constant(b"gs://bucket/vocabulary.txt")), PATH),
    (add_node("Const", value=constant(b"C:\\vocabulary.txt")), PATH),
    *(
        (add_node("Const", value=constant(string)), None)
        for string in (b"/", b"either / or", b"/home and away", b"^s3://.*", b"variables/variables")
    ),
    (add_node("Const", value=constant(b"\n\x05/home/me")), None),  # as in a SentencePiece model
    (add_node("Const", value=constant(b"/" + b"x" * 5000)), None),
    (add_node("NoOp", filename=attribute(s=b"/home/me"), shared_name=attribute(s=b"/a/b")), PATH),
    (add_node("NoOp", _XlaMustCompile=attribute(b=True)), XLA),
    (add_node("PartitionedCall", f=attribute(call=True)), XLA),
    (add_node("NoOp", _XlaMustCompile=attribute(b=False), f=attribute(call=False)), None),
]


@pytest.mark.parametrize("change, message", NODES)
def test_nodes(tamper, change, message):
    check_one(tamper(change), message)


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
            "log_prob: float32 []",
        ),
        (
            lambda model: setattr(serving_default(model).outputs["log_prob"], "dtype", 2),
            "log_prob: other [-1]",
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

    check_one(tamper(change), "The graph holds the ops EagerPyFunc, which exports of this")


def test_a_missing_graph_is_told(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    os.remove(copy / "saved_model.pb")
    check_one(check_structure(copy), "saved_model.pb cannot be read")


def test_broken_protobuf_is_told(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    os.truncate(copy / "saved_model.pb", 3000)
    check_one(check_structure(copy), "is not a SavedModel")


# The ops that are allowed are those of our own exports, and none that reaches out.

# Whatever files, connections, other programs and Python are reached by.
OUTWARD = re.compile(
    "File|Save|Restore|Checkpoint|Print|Py|Xla|Dataset|Iterator|Reader|Summary|Socket|Rpc|Remote"
    "|Queue|Table|Debug|Plugin|Send|Recv|Kafka|Sql|Decode(?!rs)|Stage|Barrier|Mutex"
)


def test_an_export_of_all_signatures_holds_no_others(toy_version):
    assert operations_of(toy_version) <= OURS | SAVER


def test_none_reaches_out():
    assert [name for name in sorted(OURS) if OUTWARD.search(name)] == []
    assert all(OUTWARD.search(name) or name == "ShardedFilename" for name in SAVER)


@pytest.mark.ordeal
def test_the_list_is_what_exports_hold():
    assert exported_operations() == OURS | SAVER
