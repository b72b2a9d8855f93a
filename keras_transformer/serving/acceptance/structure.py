"""Checks that a SavedModel holds only what a stock TF Serving server can load and run, and safely.

TF Serving links TensorFlow's core ops and tensorflow-text's, runs with XLA switched off, has no
Python, and never sees the machine that wrote the model. A graph that breaks one of these rules
often loads, and fails on the first request; so the rules are checked in the file before it is
published. And loading runs parts of a graph, its initializers and its saver: so the same rules are
checked before a version made by others is loaded. Nothing is executed here, TensorFlow is not
imported, and needs no op library.

usage: python -m keras_transformer.serving.acceptance.structure [--allow=OP,OP] saved_model.pb

prints, for `probe`, {"signatures": …, "problems": [sentences], "ops": [names of those
that are not allowed]}: `inspect_version` runs it in a process with limited memory and time.
"""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import types_pb2

from keras_transformer.serving.acceptance.graph import (
    NAME,
    SAVER,
    graph_problems,
    read_meta_graphs,
    unknown_ops,
)
from keras_transformer.serving.acceptance.probing import answer, probe
from keras_transformer.serving.acceptance.server_process import Signatures, read_signatures
from keras_transformer.serving.signatures import SIGNATURES
from keras_transformer.serving.versions import CARD, DEFAULT, read_card
from keras_transformer.utils import Path, check_files

PROGRAM = "keras_transformer.serving.acceptance.structure"
MAX_PROBLEMS = 1000
MAX_NAMES = 20  # of ops, in a sentence
LOADED = ("variables", "assets", "assets.extra")  # directories that a loader reads
NOT_FOR_REQUESTS = frozenset({"__saved_model_init_op", "__saved_model_train_op"})
INITIALIZERS = ("saved_model_main_op", "legacy_init_op")  # collections that a loader runs
OTHER_FORMATS = ("saved_model.cpb", "saved_model.pbtxt")
# Types that protocol buffers name differently from NumPy.
TYPES = {"float": "float32", "double": "float64", "half": "float16"}
# The object graph: `tf.saved_model.load` looks these names up, and creates what it finds. Those of
# tf.Module, of containers that hold its parts, and of TensorFlow's signatures.
IDENTIFIERS = frozenset(
    {
        "_generic_user_object",
        "signature_map",
        "trackable_dict_wrapper",
        "trackable_list_wrapper",
        "trackable_tuple_wrapper",
    }
)
# What TensorFlow itself registers and saves: tables and constants, such as a tokenizer's.
REGISTERED = frozenset({"", "tf.StaticHashTable", "tf.TrackableConstant"})


def inspect_version(version_dir: Path, allow_ops: Collection[str] = ()) -> Signatures:
    """Raises an error for a version that is corrupted, or does more than translate.

    Its files are compared with the checksums in its card; `check_structure` reads its graph in a
    process of its own. TensorFlow is not imported.

    Args:
        version_dir: Path of the directory that holds `saved_model.pb`.
        allow_ops: See `check_structure`.

    Returns:
        See `read_signatures`.
    """
    check_checksums(version_dir)
    allow = [f"--allow={','.join(allow_ops)}"] if allow_ops else []
    found = probe(os.path.join(version_dir, NAME), PROGRAM, *allow)
    signatures, problems = found["signatures"], found["problems"]
    if DEFAULT in signatures and set(signatures[DEFAULT][1]) != {"text", "log_prob"}:
        raise ValueError(
            f"{version_dir} is not an exported translator: its signature {DEFAULT!r} should "
            "return text and log_prob; export one with keras_transformer.export."
        )
    if ops := found.get("ops"):
        named = ", ".join(ops[:MAX_NAMES]) + (" …" if len(ops) > MAX_NAMES else "")
        raise ValueError(
            f"{version_dir} holds the ops {named}, which exports of this package do not contain: "
            "if you know who made it, and why, name them by --allow-ops, in a program by allow_ops."
        )
    if problems:
        more = f" And {len(problems) - 1} more." if len(problems) > 1 else ""
        raise ValueError(
            f"{version_dir} is not a SavedModel that can be opened here: {problems[0]}{more} "
            "keras-transformer check names them all."
        )
    return signatures


def check_checksums(version_dir: Path) -> None:
    """Raises an error if files of a version have changed; warns if it has no checksums."""
    names = [NAME]
    for folder in LOADED:
        for place, _, found in os.walk(os.path.join(version_dir, folder)):
            inner = os.path.relpath(place, version_dir).replace(os.sep, "/")
            names += [f"{inner}/{name}" for name in found]
    check_files(version_dir, read_card(version_dir), CARD, names)


def check_structure(version_dir: Path, allow_ops: Collection[str] = ()) -> list[str]:
    """Lists what keeps a version directory from being served by a stock TF Serving, or opened.

    It checks that `saved_model.pb` holds one MetaGraph, tagged `serve`; that `serving_default` has
    the inputs and outputs of the contract; that the ops in the graph and in every function of its
    library are those of this package's exports, none of them Python's or XLA's, that XLA compiles
    no function or call, devices are the CPU or none, loops are bounded, and no string constant or
    string attribute is an absolute path or a URL; that only the saver reads and writes
    checkpoints, out of reach of signatures and initializers; that asset names are relative and the
    assets are there; that the variables' index and all its shards are there, and every variable
    that a signature reads is among those that a server restores.

    Args:
        version_dir: path of the directory that holds `saved_model.pb`.
        allow_ops: names of other ops that the graph may hold, such as those of a tokenizer of your
            own. `ReadFile` and `WriteFile` are such, too: allow only ops that you know.

    Returns:
        A list of sentences, one per problem; empty when the directory is sound.

    Example:

    >>> check_structure("export/models/dates/1")
    []
    """
    version_dir = os.fspath(version_dir)
    path = os.path.join(version_dir, NAME)
    if not os.path.isfile(path):
        return [f"{version_dir} has no saved_model.pb."]
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
        problems += _saver_problems(meta_graph)
        problems += _object_problems(meta_graph)
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
            found = {key: (_shape(info), _type(info.dtype)) for key, info in tensors.items()}
            if found.keys() != specs.keys() or not all(
                _fits(*found[key], *spec) for key, spec in specs.items()
            ):
                problems.append(
                    f"The {kind} of {name!r} are {_describe(found)}, expected {_describe(specs)}."
                )
        if signature.method_name != "tensorflow/serving/predict":
            problems.append(
                f"The method of {name!r} is {signature.method_name!r}, "
                "expected 'tensorflow/serving/predict'."
            )
    return problems


def _fits(shape, dtype, expected_shape, expected_dtype):
    """Whether a tensor meets the contract; the beam size is the export's choice."""
    same_rank = shape is not None and len(shape) == len(expected_shape)
    return dtype == expected_dtype and same_rank and shape[0] is None


def _type(number):
    """The name of a type; for an unknown one, its number."""
    if number not in types_pb2.DataType.values():
        return str(number)
    name = types_pb2.DataType.Name(number).removeprefix("DT_").lower()
    return TYPES.get(name, name)


def _shape(tensor_info):
    """The sizes of a TensorInfo, None for an unknown one; None if the rank is unknown."""
    shape = tensor_info.tensor_shape
    if shape.unknown_rank:
        return None
    return [None if dim.size == -1 else dim.size for dim in shape.dim]


def _describe(tensors):
    described = []
    for key, (shape, dtype) in sorted(tensors.items()):
        sizes = shape and [-1 if size is None else size for size in shape]
        described.append(f"{key}: {dtype} {sizes}")
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


def _object_problems(meta_graph):
    """Objects that Python would create besides modules, variables and functions."""
    for number, node in enumerate(meta_graph.object_graph_def.nodes):
        name = node.user_object.identifier
        if node.WhichOneof("kind") == "user_object" and name not in IDENTIFIERS:
            yield f"Object {number} is a {name!r}, which TensorFlow would look up by that name."
        if node.registered_name not in REGISTERED or node.registered_saver:
            name = node.registered_saver or node.registered_name
            yield f"Object {number} names the registered class {name!r}."


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


# The saver. A loader feeds it the version's own `variables/variables` and runs its restoring half;
# nobody runs the other half, which writes files.


def _saver_problems(meta_graph):
    saver = meta_graph.saver_def
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    functions = {one.signature.name: one for one in meta_graph.graph_def.library.function}
    own = [_node_name(name) for name in (saver.save_tensor_name, saver.restore_op_name)]
    filename = nodes.get(_node_name(saver.filename_tensor_name))
    if any(own) and (filename is None or filename.op != "Placeholder"):
        name = saver.filename_tensor_name
        yield f"The saver's {name!r} is not a placeholder: it names files itself."
    called = {name for node in map(nodes.get, own) if node for name in _called(node)}
    called &= functions.keys()
    for name in sorted(called):
        yield from _prefix_problems(functions[name])
    yield from _place_problems(meta_graph, own, called)
    yield from _reach_problems(meta_graph, nodes, own)


def _place_problems(meta_graph, own, called):
    """Ops of a saver anywhere but in the functions that it calls; others that call these."""
    scopes = [("in the graph", None, meta_graph.graph_def.node)]
    for function in meta_graph.graph_def.library.function:
        name = function.signature.name
        scopes.append((f"in function {name!r}", name, function.node_def))
    for where, function_name, nodes in scopes:
        for node in nodes:
            if node.op in SAVER and function_name not in called:
                yield f"Node {node.name!r} ({node.op}) {where} is outside of the saver."
            is_own = function_name is None and node.name in own
            if not is_own and called & _called(node):
                yield f"Node {node.name!r} ({node.op}) {where} calls the saver."


def _prefix_problems(function):
    """The checkpoint that is read must be the one that the loader names, the argument."""
    arguments = {one.name for one in function.signature.input_arg}
    for node in function.node_def:
        if node.op == "RestoreV2" and not arguments.intersection(node.input[:1]):
            where = f"in function {function.signature.name!r}"
            yield f"Node {node.name!r} (RestoreV2) {where} names the file that it reads itself."


def _reach_problems(meta_graph, nodes, own):
    """Whatever runs for a request, or when the graph is loaded, must not reach the saver."""
    asked = {
        f"signature {name!r}": [info.name for info in signature.outputs.values()]
        for name, signature in meta_graph.signature_def.items()
    }
    for name in INITIALIZERS:
        if name in meta_graph.collection_def:
            asked[f"initializer {name!r}"] = list(meta_graph.collection_def[name].node_list.value)
    for what, names in asked.items():
        if set(own) & _ancestors(nodes, names):
            yield f"The {what} reaches the saver, which reads and writes files."


def _ancestors(nodes: Mapping[str, Any], names: Sequence[str]) -> set[str]:
    """The names of all nodes that the named tensors depend on, of `nodes` {name: NodeDef}."""
    reached, pending = set(), list(names)
    while pending:
        name = _node_name(pending.pop())
        if name in nodes and name not in reached:
            reached.add(name)
            pending += nodes[name].input
    return reached


def _node_name(tensor):
    return tensor.lstrip("^").partition(":")[0]


def _called(node):
    """Names of the functions that a node calls; its op itself may be one."""
    names = {node.op}
    for attribute in node.attr.values():
        names |= {attribute.func.name, *(one.name for one in attribute.list.func)}
    return names - {""}


def main(arguments: Sequence[str]) -> None:
    """Inspects the version that holds a file, in this process, which then is limited."""
    allow = [x for one in arguments if one.startswith("--allow=") for x in one[8:].split(",")]

    def look(path: str) -> dict[str, Any]:
        directory = os.path.dirname(path)
        problems = check_structure(directory, allow)[:MAX_PROBLEMS]
        signatures = read_signatures(directory)
        found: dict[str, Any] = {"signatures": signatures, "problems": problems}
        if problems and signatures:
            graphs = read_meta_graphs(directory)
            found["ops"] = [op for graph in graphs for op in unknown_ops(graph, allow)]
        return found

    answer(arguments[-1], look)


if __name__ == "__main__":
    main(sys.argv[1:])
