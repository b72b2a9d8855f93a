"""Checks that a SavedModel holds only what a stock TF Serving server can load and run.

TF Serving links TensorFlow's core ops and tensorflow-text's, runs with XLA switched off, has no
Python, and never sees the machine that wrote the model. A graph that breaks one of these rules
often loads, and fails on the first request; so the rules are read off the file before it is
published. Nothing is executed here, and no op library has to be loaded.
"""

import os
import re

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import config_pb2, saved_model_pb2

from keras_transformer.serving.acceptance.loops import is_bounded
from keras_transformer.serving.signatures import DEFAULT, SIGNATURES
from keras_transformer.typing import Path

NOT_FOR_REQUESTS = frozenset({"__saved_model_init_op", "__saved_model_train_op"})

# `tf.raw_ops` is the list of TensorFlow's own ops. The op registry is not: it also holds
# whatever libraries this process happens to have loaded.
CORE_OPS = frozenset(vars(tf.raw_ops))
# Older servers carry older tensorflow-text kernels; these are in all of them, unchanged: of
# SentencePiece, and of WordPiece.
CUSTOM_OPS = frozenset(
    f"Sentencepiece{name}Op" for name in ("", "Tokenize", "Detokenize", "IdToString")
) | {"FastWordpieceTokenizeWithOffsets", "NormalizeUTF8"}
PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
WHILE_OPS = frozenset({"While", "StatelessWhile"})
# TensorFlow 1 wrote loops as cycles in the graph, where a bound cannot be read off.
CYCLE_OPS = frozenset({"NextIteration", "RefNextIteration"})

XLA_ATTRIBUTES = ("_XlaMustCompile", "_XlaCompile")
# Labels that no kernel opens as a file, though they may hold slashes.
LABEL_ATTRIBUTES = frozenset({"shared_name", "container", "debug_name"})
# "/srv/vocabulary.txt", "C:\\vocabulary.txt", "gs://bucket/vocabulary.txt": whole strings only,
# so that a regular expression or a sentence that holds a slash is not taken for a file.
ABSOLUTE_PATH = re.compile(rb"(/[^/\s]+)+/?|[A-Za-z]:[\\/].+|[a-z][a-z0-9+.-]*://\S+")
LONGEST_PATH = 4096  # bytes, PATH_MAX on Linux; longer strings are models and tables


def check_structure(version_dir: Path) -> list[str]:
    """Lists what keeps a version directory from being served by a stock TF Serving.

    What is looked at: `saved_model.pb` holds one MetaGraph, tagged `serve`; `serving_default` has
    the inputs and outputs of the contract; in the graph and in every function of its library the
    ops are TensorFlow's own or of SentencePiece or WordPiece, none of them Python's or XLA's, no
    function or call is to be compiled by XLA, devices are the CPU or none, loops are bounded, and
    no string constant or string attribute is an absolute path or a URL; asset names are relative
    and the assets are there; the variables' index and all its shards are there, and every variable
    that `serving_default` reads is among those that a server restores.

    Args:
        version_dir: path of the directory that holds `saved_model.pb`.

    Returns:
        A list of sentences, one per problem; empty when the directory is sound.
    """
    version_dir = os.fspath(version_dir)
    path = os.path.join(version_dir, "saved_model.pb")
    if not os.path.isfile(path):
        return [f"There is no saved_model.pb in {version_dir}."]
    with open(path, "rb") as file:
        content = file.read()
    try:
        meta_graphs = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except DecodeError:
        return [f"{path} is not a SavedModel: its bytes cannot be parsed."]

    problems = _variables_problems(os.path.join(version_dir, "variables"))
    tags = [sorted(meta_graph.meta_info_def.tags) for meta_graph in meta_graphs]
    if tags != [["serve"]]:
        problems.append(f"Expected one MetaGraph with the tag 'serve', got the tags {tags}.")
    for meta_graph in meta_graphs:
        problems += _signature_problems(meta_graph)
        problems += _asset_problems(meta_graph, os.path.join(version_dir, "assets"))
        problems += _graph_problems(meta_graph.graph_def)
        problems += _restore_problems(meta_graph)
    return problems


def _variables_problems(directory):
    problems = []
    if not os.path.isfile(os.path.join(directory, "variables.index")):
        problems.append("variables/variables.index is missing, so the weights cannot be restored.")
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    shards = [name for name in names if name.startswith("variables.data-")]
    count = max(len(shards), 1)
    expected = [f"variables.data-{i:05d}-of-{count:05d}" for i in range(count)]
    if shards != expected:
        problems.append(f"The weights are incomplete: found {shards}, expected {expected}.")
    return problems


def _signature_problems(meta_graph):
    names = sorted(set(meta_graph.signature_def) - NOT_FOR_REQUESTS)
    if DEFAULT not in names:
        return [f"Expected a signature named {DEFAULT!r}, got {names}."]
    problems = []
    for name in names:
        if name not in SIGNATURES:
            problems.append(f"The signature {name!r} is none of {', '.join(SIGNATURES)}.")
            continue
        signature = meta_graph.signature_def[name]
        for kind, tensors, specs in (
            ("inputs", signature.inputs, SIGNATURES[name].inputs),
            ("outputs", signature.outputs, SIGNATURES[name].outputs),
        ):
            tensors = {
                key: (tf.dtypes.as_dtype(info.dtype), _shape(info)) for key, info in tensors.items()
            }
            if tensors.keys() != specs.keys() or not all(
                _fits(*tensors[key], spec) for key, spec in specs.items()
            ):
                expected = {
                    key: (spec.dtype, [-1 if size is None else size for size in spec.shape])
                    for key, spec in specs.items()
                }
                problems.append(
                    f"The {kind} of {name!r} are {_describe(tensors)}, "
                    f"expected {_describe(expected)}."
                )
        if signature.method_name != "tensorflow/serving/predict":
            problems.append(
                f"The method of {name!r} is {signature.method_name!r}, "
                "expected 'tensorflow/serving/predict'."
            )
    return problems


def _fits(dtype, shape, spec):
    """Tells whether a tensor is what the contract says; the width of a beam is the export's."""
    same_rank = shape is not None and len(shape) == len(spec.shape)
    return dtype == spec.dtype and same_rank and shape[0] == -1


def _shape(tensor_info):
    """The sizes of a TensorInfo, -1 for an open one; None when even the rank is open."""
    shape = tensor_info.tensor_shape
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


def _describe(tensors):
    described = [f"{key}: {dtype.name} {shape}" for key, (dtype, shape) in sorted(tensors.items())]
    return "{" + ", ".join(described) + "}"


def _asset_problems(meta_graph, directory):
    problems = []
    for asset in meta_graph.asset_file_def:
        name = asset.filename
        if os.path.isabs(name) or ".." in name.split("/"):
            problems.append(f"The asset {name!r} lies outside the directory assets.")
        elif not os.path.isfile(os.path.join(directory, name)):
            problems.append(f"The asset {name!r} is missing from the directory assets.")
    return problems


def _graph_problems(graph_def):
    """The problems of the graph and of every function in its library."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    problems = []
    scopes = [("the graph", graph_def.node)]
    for name, function in functions.items():
        scopes.append((f"function {name!r}", function.node_def))
        problems += _xla_problems(f"Function {name!r}", function.attr)
    for scope, nodes in scopes:
        for node in nodes:
            where = f"Node {node.name!r} ({node.op}) in {scope}"
            problems += _op_problems(node, where)
            problems += _device_problems(node, where)
            problems += _path_problems(node, where)
            problems += _xla_problems(where, node.attr)
            if node.op in WHILE_OPS and not is_bounded(node, functions):
                problems.append(f"{where} is a loop without a bound; give it maximum_iterations.")
    return problems


def _op_problems(node, where):
    if node.op in PYTHON_OPS:
        return [f"{where} calls Python, which a server does not have."]
    if "Xla" in node.op:
        return [f"{where} is an XLA op, and a server runs with XLA switched off."]
    if node.op in CYCLE_OPS:
        return [f"{where} is a TensorFlow 1 loop, whose bound cannot be shown; use tf.while_loop."]
    if node.op not in CORE_OPS | CUSTOM_OPS:
        return [f"{where} is neither a core op nor one of {sorted(CUSTOM_OPS)}."]
    return []


def _device_problems(node, where):
    """A server has one task, and this model is to run on any: '' or the CPU, nothing else."""
    try:
        device = tf.DeviceSpec.from_string(node.device)
    except ValueError:
        return [f"{where} has the device {node.device!r}, which cannot be parsed."]
    elsewhere = (device.job not in (None, "localhost")) or device.replica or device.task
    if elsewhere or device.device_type not in (None, "CPU") or device.device_index:
        return [f"{where} is tied to the device {node.device!r}; trace it outside tf.device."]
    return []


def _path_problems(node, where):
    strings = []
    for name, attribute in node.attr.items():
        if name not in LABEL_ATTRIBUTES:
            strings += [attribute.s, *attribute.list.s, *attribute.tensor.string_val]
    return [
        f"{where} holds the absolute path {string.decode(errors='replace')!r}."
        for string in strings
        if len(string) <= LONGEST_PATH and ABSOLUTE_PATH.fullmatch(string)
    ]


def _xla_problems(where, attributes):
    """`jit_compile=True` marks functions and calls; `tf.config.optimizer.set_jit` marks calls."""
    problems = []
    for name, attribute in attributes.items():
        # A call may also pass the mark on to the function it calls. `in` comes first, for looking
        # up a key that is not there would add it to the proto.
        passed = attribute.func.attr
        marked = [name in XLA_ATTRIBUTES and attribute.b]
        marked += [passed[key].b for key in XLA_ATTRIBUTES if key in passed]
        if any(marked):
            problems.append(f"{where} is to be compiled by XLA; export without jit_compile.")
        if name == "config_proto":
            options = config_pb2.ConfigProto.FromString(attribute.s).graph_options
            if options.optimizer_options.global_jit_level > 0:
                problems.append(f"{where} switches XLA on; export without tf.config's set_jit.")
    return problems


def _restore_problems(meta_graph):
    """A server restores the variables that the saver lists, and no others.

    tf.saved_model.save gives a Keras 3 variable that it meets in the object graph a second handle
    and has the saver restore that one; the functions read the first (keras issue 20095).
    `tf.saved_model.load` works nevertheless.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    signatures = meta_graph.signature_def.values()
    outputs = [info for signature in signatures for info in signature.outputs.values()]
    restored = _ancestors(nodes, [meta_graph.saver_def.restore_op_name])
    read = _ancestors(nodes, [info.name for info in outputs])
    return [
        f"The variable {name!r} is read but not restored by a server; let the module track "
        "tf.Variables instead of a Keras model, as in [v.value for v in model.variables]."
        for name in sorted(read - restored)
        if nodes[name].op == "VarHandleOp"
    ]


def _ancestors(nodes, names):
    """The names of all nodes that the named tensors depend on."""
    reached, pending = set(), list(names)
    while pending:
        name = pending.pop().lstrip("^").partition(":")[0]
        if name in nodes and name not in reached:
            reached.add(name)
            pending += nodes[name].input
    return reached
