"""The structure check: silent on a sound export, one sentence on each way to break one."""

import os
import re
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.kernels import backend
from keras_transformer.serving import structure
from keras_transformer.serving.saved_model import CORE_OPS
from keras_transformer.serving.structure import OURS, SAVER, check_structure, read_signatures
from tests.support import stand_in_translator as stand_ins
from tests.support.exported_operations import exported_operations
from tests.support.sealing import reseal


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return stand_ins.save(stand_ins.StandIn(), tmp_path_factory.mktemp("sound"))


@pytest.fixture
def tamper(sound, tmp_path):
    def tampered(change):
        path = shutil.copytree(sound, tmp_path / "tampered") / "saved_model.pb"
        saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
        change(saved_model)
        path.write_bytes(saved_model.SerializeToString())
        return check_structure(tmp_path / "tampered", CORE_OPS)

    return tampered


def check_one(problems, message):
    """One problem with this message, or none when there is no message."""
    assert len(problems) == (message is not None), problems
    assert message is None or message in problems[0]


def test_sound_exports_have_no_problems(sound, toy_version):
    assert check_structure(toy_version) == []
    assert check_structure(sound, CORE_OPS) == []
    check_one(check_structure(sound), "holds the ops ResourceGather")  # which no export of ours has
    assert check_structure(sound, structure.operations(*structure.read_meta_graphs(sound))) == []


def test_every_mark_of_xla_is_told(tmp_path):
    """Of functions and calls, as TensorFlow writes it; and nothing else is wrong."""
    problems = check_structure(stand_ins.save(stand_ins.CompiledByXla(), tmp_path), CORE_OPS)
    assert problems and all("is to be compiled by XLA" in problem for problem in problems)


def add_node(op, device="", **attributes):
    """A change that adds a node to the first function of the library."""

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
SOUND = ("/", "either / or", "/home and away", "^s3://.*", "variables/variables", "/" + "x" * 5000)
NODES = [
    *((add_node("NoOp", device), None) for device in ("/device:CPU:*", f"{HERE}0/device:CPU:0")),
    *((add_node("NoOp", device), TIED) for device in ("/device:GPU:0", "/device:CPU:1")),
    *((add_node("NoOp", device), TIED) for device in (f"{HERE}1", "somewhere")),
    (add_node("SentencepieceDetokenizeOp"), None),
    (add_node("TFText>FastSentencepieceTokenize"), UNKNOWN),
    *((add_node(op), UNKNOWN) for op in ("EagerPyFunc", "XlaLaunch", "NoSuchOp")),
    (add_node("Const", value=constant("/data/résumés/".encode())), PATH),
    (add_node("Const", value=constant(b"gs://bucket/vocabulary.txt")), PATH),
    (add_node("Const", value=constant(b"C:\\vocabulary.txt")), PATH),
    *((add_node("Const", value=constant(string.encode())), None) for string in SOUND),
    (add_node("Const", value=constant(b"\n\x05/home/me")), None),  # as in a SentencePiece model
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


def test_files_that_cannot_be_read(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    (copy / "saved_model.pbtxt").touch()
    check_one(check_structure(copy, CORE_OPS), "There is a saved_model.pbtxt beside saved_model.pb")
    os.truncate(copy / "saved_model.pb", 3000)
    check_one(check_structure(copy), "is not a SavedModel")
    os.remove(copy / "saved_model.pb")
    check_one(check_structure(copy), "saved_model.pb cannot be read")


def test_sizes_have_a_limit(sound, monkeypatch):
    monkeypatch.setattr(structure, "MAX_NODES", 50)
    (problem,) = check_structure(sound)
    assert re.search(r"has \d+ nodes, at most 50 are read", problem)
    monkeypatch.setattr(structure, "MAX_BYTES", 50)
    assert "saved_model.pb" in check_structure(sound)[0]


def test_signatures_are_read_as_tensorflow_reads_them(toy_version):
    with open(f"{toy_version}/saved_model.pb", "rb") as file:
        (meta_graph,) = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    found = read_signatures(toy_version)
    assert set(found) == set(meta_graph.signature_def) >= {"serving_default", "score"}
    for name, one in meta_graph.signature_def.items():
        inputs, outputs = found[name]
        assert inputs == {k: (t.name, t.dtype) for k, t in one.inputs.items()}
        assert outputs == {k: (t.name, t.dtype) for k, t in one.outputs.items()}


def test_versions_are_inspected_before_they_are_opened(sound, tmp_path):
    copy = shutil.copytree(sound, tmp_path / "copy")
    reseal(copy)
    with pytest.raises(ValueError, match="copy cannot be opened: The graph holds the ops"):
        structure.inspect_version(copy)
    assert structure.inspect_version(copy, CORE_OPS) == read_signatures(copy)
    (copy / "variables" / "more").touch()
    with pytest.raises(ValueError, match="variables/more is not among the files"):
        structure.inspect_version(copy, CORE_OPS)


# The ops that are allowed are those of our own exports, and none that reaches out.
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
