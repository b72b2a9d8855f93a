"""Checks that a SavedModel holds only what a stock TF Serving server can load and run.

TF Serving links TensorFlow's core ops and tensorflow-text's, runs with XLA switched off, has no
Python, and never sees the machine that wrote the model. A graph that breaks one of these rules
often loads, and fails on the first request; so the rules are checked in the file before it is
published, and before a version made by others is loaded, which runs parts of its graph. Nothing is
executed here, and TensorFlow is not imported.
"""

import os
import re
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

from keras_transformer.serving.versions import CARD, DEFAULT, GRAPH, SIGNATURES, read_card
from keras_transformer.utils import Path, check_files, read_bytes

# Of that file, in which an export of all signatures has five to ten million bytes.
MAX_BYTES, MAX_NODES = 128 << 20, 1_000_000
META_GRAPHS = 2  # the field of the protocol buffer SavedModel
LOADED = ("variables", "assets", "assets.extra")  # directories that a loader reads
# Those of TensorFlow itself, and one of earlier exports.
OTHER_SIGNATURES = frozenset({"__saved_model_init_op", "__saved_model_train_op", "explore"})
OTHER_FORMATS = ("saved_model.cpb", "saved_model.pbtxt")
TYPES = {1: "float32", 3: "int32", 7: "string", 9: "int64"}  # of TF_DataType, those in use
MAX_NAMES = 20  # of ops, in a sentence

# The ops that exports of this package consist of: `python -m tests.support.exported_operations`
# writes them here, from exports. None of them reads or writes a file, opens a connection or runs
# Python, except those of `SAVER`, by which a loader restores the weights. Older servers have older
# tensorflow-text kernels; those of SentencePiece and WordPiece used here are in all of them,
# unchanged.
SAVER = frozenset({"MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"})
OURS = frozenset(
    """
    Abs AddV2 All ArgMax Assert AssignVariableOp BatchMatMulV2 BatchMatMulV3 BiasAdd BroadcastTo
    Case Cast ConcatV2 Const Cos Cumsum DisableCopyOnRead Einsum Elu EnsureShape Equal Erfc Exp
    ExpandDims Expm1 FastWordpieceTokenizeWithOffsets Fill Floor FloorDiv FloorMod GatherV2 Greater
    GreaterEqual Identity IdentityN If IsFinite IsNan LeakyRelu Less LessEqual Log LogSoftmax
    LogicalAnd LogicalNot LogicalOr MatMul Max Maximum Mean Minimum Mul Neg NoOp NormalizeUTF8
    NotEqual OneHot Pack Pad PadV2 PartitionedCall Placeholder Pow Prod RaggedGather RaggedRange
    RaggedTensorToTensor Range ReadVariableOp RealDiv ReduceJoin Relu Relu6 Reshape ReverseV2 Round
    Rsqrt Select SelectV2 Selu SentencepieceDetokenizeOp SentencepieceIdToStringOp SentencepieceOp
    SentencepieceTokenizeOp Shape Sigmoid Sin Size Softmax Softplus Softsign Split SplitV Sqrt
    Square Squeeze StatefulPartitionedCall StatelessCase StatelessRandomGetKeyCounter
    StatelessRandomUniformV2 StatelessWhile StaticRegexFullMatch StaticRegexReplace StopGradient
    StridedSlice StringJoin StringLower Sub Substr Sum Tanh TensorListFromTensor TensorListGetItem
    TensorListReserve TensorListSetItem TensorListStack TensorScatterMin TensorScatterUpdate Tile
    TopKV2 Transpose UnicodeTranscode Unpack VarHandleOp Where While ZerosLike
    """.split()
)

XLA_ATTRIBUTES = ("_XlaMustCompile", "_XlaCompile")
# Labels that no kernel opens as a file, though they may hold slashes.
LABEL_ATTRIBUTES = frozenset({"shared_name", "container", "debug_name"})
# "/srv/vocabulary.txt", "C:\\vocabulary.txt", "gs://bucket/vocabulary.txt": whole strings only,
# so that a regular expression or a sentence with a slash does not count as a file.
ABSOLUTE_PATH = re.compile(rb"(/[^/\s]+)+/?|[A-Za-z]:[\\/].+|[a-z][a-z0-9+.-]*://\S+")
MAX_PATH_BYTES = 4096  # PATH_MAX on Linux; longer strings are models and tables
DEVICE = re.compile(
    r"(/job:localhost)?(/replica:0)?(/task:0)?(/(device:)?CPU:[0*])?", flags=re.IGNORECASE
)

# {name of a signature: [inputs, outputs]}, both {key: (name of the tensor, its type's number)}
Signatures: TypeAlias = dict[str, list[dict[str, tuple[str, int]]]]


def inspect_version(version_dir: Path, allow_ops: Collection[str] = ()) -> Signatures:
    """Raises an error for a version that is corrupted, or does more than translate.

    Its files are compared with the checksums in its card, and `check_structure` reads its graph.

    Returns:
        See `read_signatures`.
    """
    check_checksums(version_dir)
    if problems := check_structure(version_dir, allow_ops):
        raise ValueError(f"{version_dir} cannot be opened: {problems[0]}")
    return read_signatures(version_dir)


def check_checksums(version_dir: Path) -> None:
    """Raises an error if files of a version have changed; warns if it has no checksums."""
    names = [GRAPH]
    for folder in LOADED:
        for place, _, found in os.walk(os.path.join(version_dir, folder)):
            inner = os.path.relpath(place, version_dir).replace(os.sep, "/")
            names += [f"{inner}/{name}" for name in found]
    check_files(version_dir, read_card(version_dir), CARD, names)


def read_meta_graphs(version_dir: Path) -> list[MetaGraphDef]:
    """Reads the graphs of a version directory."""
    path = os.path.join(version_dir, GRAPH)
    content = read_bytes(path, MAX_BYTES)
    try:
        # Only TensorFlow has the message SavedModel, and importing it takes seconds.
        fields = UnknownFieldSet(Empty.FromString(content))
        parts = [field.data for field in fields if field.field_number == META_GRAPHS]
        meta_graphs = [MetaGraphDef.FromString(part) for part in parts]
    except (DecodeError, TypeError):
        raise ValueError(f"{path} is not a SavedModel: its bytes cannot be parsed.") from None
    count = sum(len(nodes) for graph in meta_graphs for _, nodes in scopes(graph))
    if count > MAX_NODES:
        raise ValueError(f"{path} has {count:,} nodes, at most {MAX_NODES:,} are read.")
    return meta_graphs


def read_signatures(version_dir: Path) -> Signatures:
    """{name: [inputs, outputs]}, both {key: (name of the tensor, its type's number)}."""
    (meta_graph,) = read_meta_graphs(version_dir)
    return {
        name: [
            {key: (tensor.name, tensor.dtype) for key, tensor in tensors.items()}
            for tensors in (signature.inputs, signature.outputs)
        ]
        for name, signature in meta_graph.signature_def.items()
    }


def check_structure(version_dir: Path, allow_ops: Collection[str] = ()) -> list[str]:
    """Lists what keeps a version directory from being served by a stock TF Serving, or opened.

    It checks that `saved_model.pb` holds one MetaGraph, tagged `serve`; that `serving_default` has
    the inputs and outputs of the contract; that the ops in the graph and in every function of its
    library are those of this package's exports, none of them Python's or XLA's, that XLA compiles
    no function or call, devices are the CPU or none, and no string constant or string attribute is
    an absolute path or a URL; and that asset names are relative and the assets are there.

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
    try:
        meta_graphs = read_meta_graphs(version_dir)
    except ValueError as error:
        return [str(error)]
    problems = [
        f"There is a {name} beside saved_model.pb, which a server may load instead."
        for name in OTHER_FORMATS
        if os.path.lexists(os.path.join(version_dir, name))
    ]
    tags = [sorted(meta_graph.meta_info_def.tags) for meta_graph in meta_graphs]
    if tags != [["serve"]]:
        problems.append(f"Expected one MetaGraph with the tag 'serve', got the tags {tags}.")
    for meta_graph in meta_graphs:
        problems += _signature_problems(meta_graph)
        problems += _asset_problems(meta_graph, os.path.join(version_dir, "assets"))
        problems += _graph_problems(meta_graph, allow_ops)
    return problems


def _signature_problems(meta_graph):
    names = sorted(set(meta_graph.signature_def) - OTHER_SIGNATURES)
    if DEFAULT not in names:
        yield f"Expected a signature named {DEFAULT!r}, got {names}."
    for name in names:
        if name not in SIGNATURES:
            yield f"The signature {name!r} is none of {', '.join(SIGNATURES)}."
            continue
        signature = meta_graph.signature_def[name]
        for kind, tensors, specs in (
            ("inputs", signature.inputs, SIGNATURES[name].inputs_with(signature.inputs)),
            ("outputs", signature.outputs, SIGNATURES[name].outputs),
        ):
            found = {
                key: ([dim.size for dim in info.tensor_shape.dim], TYPES.get(info.dtype, "other"))
                for key, info in tensors.items()
            }
            if found.keys() != specs.keys() or not all(
                _fits(*found[key], *spec) for key, spec in specs.items()
            ):
                yield f"The {kind} of {name!r} are {_describe(found)}, expected {_describe(specs)}."


def _fits(sizes, dtype, shape, expected_dtype):
    """Whether a tensor meets the contract; the beam size is the export's choice."""
    return dtype == expected_dtype and len(sizes) == len(shape) and sizes[:1] == [-1]


def _describe(tensors):
    described = []
    for key, (shape, dtype) in sorted(tensors.items()):
        sizes = [-1 if size is None else size for size in shape]
        described.append(f"{key}: {dtype} {sizes}")
    return "{" + ", ".join(described) + "}"


def _asset_problems(meta_graph, directory):
    for asset in meta_graph.asset_file_def:
        name = asset.filename
        if os.path.isabs(name) or ".." in name.split("/"):
            yield f"The asset {name!r} lies outside the directory assets."
        elif not os.path.isfile(os.path.join(directory, name)):
            yield f"The asset {name!r} is missing from the directory assets."


def _graph_problems(meta_graph, allow_ops):
    """The problems of the graph and of every function in its library."""
    if others := sorted(operations(meta_graph) - OURS - SAVER - set(allow_ops)):
        named = ", ".join(others[:MAX_NAMES]) + (" …" if len(others) > MAX_NAMES else "")
        yield (
            f"The graph holds the ops {named}, which exports of this package do not contain: "
            "if you know who made it, and why, name them by --allow-ops, in a program by allow_ops."
        )
    for function in meta_graph.graph_def.library.function:
        yield from _xla_problems(f"Function {function.signature.name!r}", function.attr)
    for scope, nodes in scopes(meta_graph):
        for node in nodes:
            where = f"Node {node.name!r} ({node.op}) in {scope}"
            # A server has one task, and the model must run on any machine.
            if not DEVICE.fullmatch(node.device):
                yield f"{where} is tied to the device {node.device!r}; trace it outside tf.device."
            yield from _path_problems(node, where)
            yield from _xla_problems(where, node.attr)


def scopes(meta_graph: MetaGraphDef) -> Iterator[tuple[str, Collection[Any]]]:
    """The graph and each function of its library: a name for it, and its nodes."""
    yield "the graph", meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield f"function {function.signature.name!r}", function.node_def


def operations(meta_graph: MetaGraphDef) -> set[str]:
    """The names of all ops."""
    return {node.op for _, nodes in scopes(meta_graph) for node in nodes}


def _path_problems(node, where):
    for name, attribute in node.attr.items():
        if name not in LABEL_ATTRIBUTES:
            for string in (attribute.s, *attribute.list.s, *attribute.tensor.string_val):
                if len(string) <= MAX_PATH_BYTES and ABSOLUTE_PATH.fullmatch(string):
                    yield f"{where} holds the absolute path {string.decode(errors='replace')!r}."


def _xla_problems(where, attributes):
    """`jit_compile=True` marks functions and calls."""
    for name, attribute in attributes.items():
        # A call may also pass the mark on to the function it calls. `in` comes first, because
        # looking up a missing key would add it to the proto.
        passed = attribute.func.attr
        marked = [name in XLA_ATTRIBUTES and attribute.b]
        marked += [passed[key].b for key in XLA_ATTRIBUTES if key in passed]
        if any(marked):
            yield f"{where} is to be compiled by XLA; export without jit_compile."
