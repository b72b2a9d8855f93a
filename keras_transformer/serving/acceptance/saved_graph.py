"""The graph of a SavedModel as protocol buffers, read without TensorFlow."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import meta_graph_pb2

from keras_transformer.inspection.files import read_bytes
from keras_transformer.typing import Path

NAME = "saved_model.pb"
MOST_BYTES = 256 << 20  # of that file; an export of all signatures has five to ten million
META_GRAPHS = 2  # the field of the protocol buffer SavedModel


def read_meta_graphs(version_dir: Path) -> list[meta_graph_pb2.MetaGraphDef]:
    """Reads the graphs of a version directory.

    Raises:
        ValueError: If `saved_model.pb` is not there, too large, or cannot be parsed.
    """
    path = os.path.join(version_dir, NAME)
    content = read_bytes(path, MOST_BYTES)
    try:
        contents = list(_fields(content, META_GRAPHS))
        return [meta_graph_pb2.MetaGraphDef.FromString(one) for one in contents]
    except (DecodeError, IndexError, ValueError):
        raise ValueError(f"{path} is not a SavedModel: its bytes cannot be parsed.") from None


def scopes(meta_graph: meta_graph_pb2.MetaGraphDef) -> Iterator[tuple[str, Iterable[Any]]]:
    """The graph and each function of its library: a name for it, and its nodes."""
    yield "the graph", meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield f"function {function.signature.name!r}", function.node_def


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
