"""The graph of a SavedModel, read without TensorFlow: only ops that compute, on any machine."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import (
    config_pb2,
    function_pb2,
    meta_graph_pb2,
    node_def_pb2,
    tensor_pb2,
)

from keras_transformer.utils import Path, read_bytes

NAME = "saved_model.pb"
MAX_BYTES = 256 << 20  # of that file; an export of all signatures has five to ten million
META_GRAPHS = 2  # the field of the protocol buffer SavedModel

# The ops that exports of this package consist of: `python -m tests.support.exported_operations`
# writes them here, from exports. None of them reads or writes a file, opens a connection or runs
# Python, except those of `SAVER`, which belong in the functions that a SavedModel's saver names,
# and nowhere else. Older servers have older tensorflow-text kernels; those of SentencePiece and
# WordPiece used here are in all of them, unchanged.
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
    SentencepieceTokenizeOp Shape Sigmoid Sin Size Softmax Softplus Softsign Split Sqrt Square
    Squeeze StatefulPartitionedCall StatelessRandomGetKeyCounter StatelessRandomUniformV2
    StatelessWhile StaticRegexFullMatch StaticRegexReplace StopGradient StridedSlice StringJoin
    StringLower Sub Substr Sum Tanh TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack TensorScatterUpdate Tile TopKV2 Transpose UnicodeTranscode
    VarHandleOp Where While ZerosLike
    """.split()
)
PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
WHILE_OPS = frozenset({"While", "StatelessWhile"})
# TensorFlow 1 wrote loops as cycles in the graph, which do not show a bound.
CYCLE_OPS = frozenset({"NextIteration", "RefNextIteration"})

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
DEVICE_PARTS = re.compile(r"(/(job|replica|task|device|cpu|gpu)(:[\w*]+)+)*", flags=re.IGNORECASE)
INTEGERS = {3: "<i4", 9: "<i8"}  # DT_INT32, DT_INT64: NumPy's types


def read_meta_graphs(version_dir: Path) -> list[meta_graph_pb2.MetaGraphDef]:
    """Reads the graphs of a version directory."""
    path = os.path.join(version_dir, NAME)
    content = read_bytes(path, MAX_BYTES)
    try:
        contents = list(_fields(content, META_GRAPHS))
        return [meta_graph_pb2.MetaGraphDef.FromString(one) for one in contents]
    except (DecodeError, IndexError, ValueError):
        raise ValueError(f"{path} is not a SavedModel: its bytes cannot be parsed.") from None


def _fields(message, number):
    """Yields the contents of a field that holds messages, of a message of numbers and messages."""

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position, value, shift = position + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    position = 0
    while position < len(message):
        tag, value = varint(), varint()
        if tag & 7 == 2:
            position += value
            if tag >> 3 == number:
                yield message[position - value : position]
        elif tag & 7:
            raise ValueError(f"The field {tag >> 3} is neither a number nor a message.")


def scopes(meta_graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, Iterable[Any]]]:
    """The graph and each function of its library: a name for it, and its nodes."""
    yield "the graph", meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield f"function {function.signature.name!r}", function.node_def


def unknown_ops(meta_graph: meta_graph_pb2.MetaGraphDef, allow_ops: Collection[str]) -> list[str]:
    """Names of the ops that are neither those of this package's exports nor allowed."""
    ops = {node.op for _, nodes in scopes(meta_graph) for node in nodes}
    found = {op for op in ops if "Xla" not in op}  # which cannot be allowed
    return sorted(found - OURS - SAVER - PYTHON_OPS - set(allow_ops))


def graph_problems(
    meta_graph: meta_graph_pb2.MetaGraphDef, allow_ops: Collection[str]
) -> Iterator[str]:
    """The problems of the graph and of every function in its library, a sentence each.

    Args:
        meta_graph: A MetaGraphDef.
        allow_ops: Names of ops besides those of this package's exports.
    """
    functions = {one.signature.name: one for one in meta_graph.graph_def.library.function}
    allowed = OURS | SAVER | set(allow_ops)
    for name, function in functions.items():
        yield from _xla_problems(f"Function {name!r}", function.attr)
    for scope, nodes in scopes(meta_graph):
        for node in nodes:
            where = f"Node {node.name!r} ({node.op}) in {scope}"
            yield from _op_problems(node, where, allowed)
            yield from _device_problems(node, where)
            yield from _path_problems(node, where)
            yield from _xla_problems(where, node.attr)
            if node.op in WHILE_OPS and not is_bounded(node, functions):
                yield f"{where} is a loop without a bound; give it maximum_iterations."


def _op_problems(node, where, allowed):
    if node.op in PYTHON_OPS:
        return [f"{where} calls Python, which a server does not have."]
    if "Xla" in node.op:
        return [f"{where} is an XLA op, and a server runs with XLA switched off."]
    if node.op in CYCLE_OPS:
        return [f"{where} is a TensorFlow 1 loop, whose bound cannot be shown; use tf.while_loop."]
    if node.op not in allowed:
        return [f"{where} is neither an op of this package's exports nor among allow_ops."]
    return []


def _device_problems(node, where):
    """A server has one task, and the model must run on any machine: '' or the CPU only."""
    if DEVICE.fullmatch(node.device):
        return []
    if not DEVICE_PARTS.fullmatch(node.device):
        return [f"{where} has the device {node.device!r}, which cannot be parsed."]
    return [f"{where} is tied to the device {node.device!r}; trace it outside tf.device."]


def _path_problems(node, where):
    strings = []
    for name, attribute in node.attr.items():
        if name not in LABEL_ATTRIBUTES:
            strings += [attribute.s, *attribute.list.s, *attribute.tensor.string_val]
    return [
        f"{where} holds the absolute path {string.decode(errors='replace')!r}."
        for string in strings
        if len(string) <= MAX_PATH_BYTES and ABSOLUTE_PATH.fullmatch(string)
    ]


def _xla_problems(where, attributes):
    """`jit_compile=True` marks functions and calls; `tf.config.optimizer.set_jit` marks calls."""
    problems = []
    for name, attribute in attributes.items():
        # A call may also pass the mark on to the function it calls. `in` comes first, because
        # looking up a missing key would add it to the proto.
        passed = attribute.func.attr
        marked = [name in XLA_ATTRIBUTES and attribute.b]
        marked += [passed[key].b for key in XLA_ATTRIBUTES if key in passed]
        if any(marked):
            problems.append(f"{where} is to be compiled by XLA; export without jit_compile.")
        if name == "config_proto":
            try:
                options = config_pb2.ConfigProto.FromString(attribute.s).graph_options
            except DecodeError:
                problems.append(f"{where} has a config_proto that cannot be parsed.")
                continue
            if options.optimizer_options.global_jit_level > 0:
                problems.append(f"{where} switches XLA on; export without tf.config's set_jit.")
    return problems


# Loops. A server answers each caller when the slowest row of the batch is done, so a decoding loop
# that waits for END needs a bound as well. `tf.while_loop(maximum_iterations=...)` leaves no
# attribute behind: it becomes one more comparison in the loop's condition.


def is_bounded(
    loop: node_def_pb2.NodeDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> bool:
    """Whether a While node stops after a number of iterations that is fixed when it starts.

    It does when its condition is a conjunction, one term of which is `counter < bound`, where the
    body adds a positive constant to the counter and leaves the bound unchanged. This is how
    `maximum_iterations` is written, and `tf.range` in a converted `for`, and a `step < length` by
    hand. Loops that stop for another reason count as unbounded.

    Args:
        loop: The NodeDef of a While or StatelessWhile.
        functions: The FunctionDefs of the graph's library, by name.
    """
    try:
        condition = _Function(functions[loop.attr["cond"].func.name])
        body = _Function(functions[loop.attr["body"].func.name])
        return any(
            _is_counter(condition, body, counter) and _is_constant(condition, body, bound)
            for counter, bound in _comparisons(condition, condition.returned[0])
        )
    except (KeyError, IndexError, ValueError, RecursionError):  # an invalid loop
        return False


def _comparisons(condition, value):
    """Yields (smaller, larger) for each comparison that must hold for the loop to continue."""
    node = condition.node(value)
    if node is None:
        return
    inputs = list(node.input)
    if node.op == "LogicalAnd":
        yield from _comparisons(condition, inputs[0])
        yield from _comparisons(condition, inputs[1])
    elif node.op in ("Less", "LessEqual"):
        yield inputs[0], inputs[1]
    elif node.op in ("Greater", "GreaterEqual"):
        yield inputs[1], inputs[0]


def _is_counter(condition, body, value):
    """Whether `value` is a loop variable to which the body adds a positive constant."""
    index = condition.argument(value)
    if index is None:
        return False
    node = body.node(body.returned[index])
    if node is None or node.op not in ("Add", "AddV2"):
        return False
    first, second = node.input[:2]
    if body.argument(first) != index:
        first, second = second, first
    step = body.constant(second)
    return body.argument(first) == index and step is not None and bool((step > 0).all())


def _is_constant(condition, body, value):
    """Whether `value` is the same in every iteration."""
    if condition.constant(value) is not None:
        return True
    index = condition.argument(value)
    return index is not None and body.argument(body.returned[index]) == index


def _integers(tensor: tensor_pb2.TensorProto) -> np.ndarray | None:
    """The values of an integer tensor, which counters are; None for any other."""
    if tensor.dtype not in INTEGERS:
        return None
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, INTEGERS[tensor.dtype])
    return np.array([*tensor.int_val, *tensor.int64_val] or [0])


class _Function:
    """A FunctionDef, read backwards from the values it returns, through Identity nodes."""

    def __init__(self, function: Any) -> None:
        self._arguments = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
        self._nodes = {node.name: node for node in function.node_def}
        self.returned = [function.ret[arg.name] for arg in function.signature.output_arg]

    def argument(self, value):
        """The position of the argument that `value` is, or None."""
        return self._arguments.get(self._source(value))

    def node(self, value):
        """The node that computes `value`, or None for an argument."""
        return self._nodes.get(self._source(value).partition(":")[0])

    def constant(self, value):
        """`value` as an array if it is a constant, or None."""
        node = self.node(value)
        if node is None or node.op != "Const":
            return None
        return _integers(node.attr["value"].tensor)

    def _source(self, value):
        # A value is named "argument" or "node:output:index".
        for _ in range(len(self._nodes) + 1):  # not forever, if a node is its own source
            node = self._nodes.get(value.partition(":")[0])
            if node is None or node.op != "Identity":
                break
            value = node.input[0]
        return value
