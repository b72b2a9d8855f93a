"""Checks that a SavedModel holds only what a stock TF Serving server can load and run, and safely.

TF Serving links TensorFlow's core ops and tensorflow-text's, runs with XLA switched off, has no
Python, and never sees the machine that wrote the model. A graph that breaks one of these rules
often loads, and fails on the first request; so the rules are read off the file before it is
published. And loading runs what a graph says, its initializers and its saver: so the same rules are
read off before one that others have made is loaded. Nothing is executed here, TensorFlow is not
imported, and no op library has to be loaded.
"""

import os
from collections.abc import Collection

from tensorboard.compat.proto import types_pb2

from keras_transformer.serving.acceptance.graph import graph_problems
from keras_transformer.serving.acceptance.objects import object_problems
from keras_transformer.serving.acceptance.saved_graph import read_meta_graphs
from keras_transformer.serving.acceptance.saver import ancestors, saver_problems
from keras_transformer.serving.contract import CONTRACT
from keras_transformer.serving.versions import DEFAULT
from keras_transformer.typing import Path

NOT_FOR_REQUESTS = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
OTHER_FORMATS = ("saved_model.cpb", "saved_model.pbtxt")
# Whose names in protocol buffers are not NumPy's.
TYPES = {"float": "float32", "double": "float64", "half": "float16"}


def check_structure(version_dir: Path, allow_ops: Collection[str] = ()) -> list[str]:
    """Lists what keeps a version directory from being served by a stock TF Serving, or opened.

    What is looked at: `saved_model.pb` holds one MetaGraph, tagged `serve`; `serving_default` has
    the inputs and outputs of the contract; in the graph and in every function of its library the
    ops are those that exports of this package are made of, none of them Python's or XLA's, no
    function or call is to be compiled by XLA, devices are the CPU or none, loops are bounded, and
    no string constant or string attribute is an absolute path or a URL; what reads and writes
    checkpoints stands in the saver and is out of reach of signatures and initializers; asset names
    are relative and the assets are there; the variables' index and all its shards are there, and
    every variable that `serving_default` reads is among those that a server restores.

    Args:
        version_dir: path of the directory that holds `saved_model.pb`.
        allow_ops: names of other ops that the graph may hold, such as those of a tokenizer of your
            own. `ReadFile` and `WriteFile` are such, too: allow what you know.

    Returns:
        A list of sentences, one per problem; empty when the directory is sound.

    Example:

    >>> check_structure("export/models/dates/1")
    []
    """
    version_dir = os.fspath(version_dir)
    path = os.path.join(version_dir, "saved_model.pb")
    if not os.path.isfile(path):
        return [f"There is no saved_model.pb in {version_dir}."]
    try:
        meta_graphs = read_meta_graphs(version_dir)
    except ValueError as error:
        return [str(error)]

    problems = [
        f"There is a {name} beside saved_model.pb, which a server may load instead."
        for name in OTHER_FORMATS
        if os.path.lexists(os.path.join(version_dir, name))
    ]
    problems += _variables_problems(os.path.join(version_dir, "variables"))
    tags = [sorted(meta_graph.meta_info_def.tags) for meta_graph in meta_graphs]
    if tags != [["serve"]]:
        problems.append(f"Expected one MetaGraph with the tag 'serve', got the tags {tags}.")
    for meta_graph in meta_graphs:
        problems += _signature_problems(meta_graph)
        problems += _asset_problems(meta_graph, os.path.join(version_dir, "assets"))
        problems += graph_problems(meta_graph, allow_ops)
        problems += saver_problems(meta_graph)
        problems += object_problems(meta_graph)
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
        if name not in CONTRACT:
            problems.append(f"The signature {name!r} is none of {', '.join(CONTRACT)}.")
            continue
        signature = meta_graph.signature_def[name]
        for kind, tensors, specs in (
            ("inputs", signature.inputs, CONTRACT[name].inputs),
            ("outputs", signature.outputs, CONTRACT[name].outputs),
        ):
            tensors = {key: (_type(info.dtype), _shape(info)) for key, info in tensors.items()}
            if tensors.keys() != specs.keys() or not all(
                _fits(*tensors[key], spec) for key, spec in specs.items()
            ):
                expected = {
                    key: (dtype, [-1 if size is None else size for size in shape])
                    for key, (shape, dtype) in specs.items()
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
    expected, expected_dtype = spec
    same_rank = shape is not None and len(shape) == len(expected)
    return dtype == expected_dtype and same_rank and shape[0] == -1


def _type(number):
    """The name of a type, of one that is none its number."""
    if number not in types_pb2.DataType.values():
        return str(number)
    name = types_pb2.DataType.Name(number).removeprefix("DT_").lower()
    return TYPES.get(name, name)


def _shape(tensor_info):
    """The sizes of a TensorInfo, -1 for an open one; None when even the rank is open."""
    shape = tensor_info.tensor_shape
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


def _describe(tensors):
    described = [f"{key}: {dtype} {shape}" for key, (dtype, shape) in sorted(tensors.items())]
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


def _restore_problems(meta_graph):
    """A server restores the variables that the saver lists, and no others.

    tf.saved_model.save gives a Keras 3 variable that it meets in the object graph a second handle
    and has the saver restore that one; the functions read the first (keras issue 20095).
    `tf.saved_model.load` works nevertheless.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    signatures = meta_graph.signature_def.values()
    outputs = [info for signature in signatures for info in signature.outputs.values()]
    restored = ancestors(nodes, [meta_graph.saver_def.restore_op_name])
    read = ancestors(nodes, [info.name for info in outputs])
    return [
        f"The variable {name!r} is read but not restored by a server; let the module track "
        "tf.Variables instead of a Keras model, as in [v.value for v in model.variables]."
        for name in sorted(read - restored)
        if nodes[name].op == "VarHandleOp"
    ]
