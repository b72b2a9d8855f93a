"""What the nodes of a saved graph may be: of ops that only compute, on any machine."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import config_pb2

from keras_transformer.serving.acceptance.loops import is_bounded
from keras_transformer.serving.acceptance.operations import OURS, SAVER
from keras_transformer.serving.acceptance.saved_graph import scopes

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
DEVICE = re.compile(
    r"(/job:localhost)?(/replica:0)?(/task:0)?(/(device:)?CPU:[0*])?", flags=re.IGNORECASE
)
DEVICE_PARTS = re.compile(r"(/(job|replica|task|device|cpu|gpu)(:[\w*]+)+)*", flags=re.IGNORECASE)


def unknown_ops(meta_graph: Any, allow_ops: Collection[str]) -> list[str]:
    """Names of the ops that are neither those of this package's exports nor allowed.

    Args:
        meta_graph: A MetaGraphDef.
        allow_ops: Names of further ops.
    """
    ops = {node.op for _, nodes in scopes(meta_graph) for node in nodes}
    found = {op for op in ops if "Xla" not in op}  # which nothing allows
    return sorted(found - OURS - SAVER - CUSTOM_OPS - PYTHON_OPS - set(allow_ops))


def graph_problems(meta_graph: Any, allow_ops: Collection[str]) -> Iterator[str]:
    """The problems of the graph and of every function in its library, a sentence each.

    Args:
        meta_graph: A MetaGraphDef.
        allow_ops: Names of ops besides those of this package's exports.
    """
    functions = {one.signature.name: one for one in meta_graph.graph_def.library.function}
    allowed = OURS | SAVER | CUSTOM_OPS | set(allow_ops)
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
    """A server has one task, and this model is to run on any: '' or the CPU, nothing else."""
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
            try:
                options = config_pb2.ConfigProto.FromString(attribute.s).graph_options
            except DecodeError:
                problems.append(f"{where} has a config_proto that cannot be parsed.")
                continue
            if options.optimizer_options.global_jit_level > 0:
                problems.append(f"{where} switches XLA on; export without tf.config's set_jit.")
    return problems
