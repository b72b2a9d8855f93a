"""What Python would make of a SavedModel's object graph: modules, variables and functions, no more.

`tf.saved_model.load` looks identifiers and registered names up and makes what it finds.
"""

from collections.abc import Iterator
from typing import Any

# Those of tf.Module, of containers that hold its parts, and of TensorFlow's signatures.
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


def object_problems(meta_graph: Any) -> Iterator[str]:
    """The problems of the object graph, a sentence each.

    Args:
        meta_graph: A MetaGraphDef.
    """
    for number, node in enumerate(meta_graph.object_graph_def.nodes):
        name = node.user_object.identifier
        if node.WhichOneof("kind") == "user_object" and name not in IDENTIFIERS:
            yield f"Object {number} is a {name!r}, which TensorFlow would look up by that name."
        if node.registered_name not in REGISTERED or node.registered_saver:
            name = node.registered_saver or node.registered_name
            yield f"Object {number} names the registered class {name!r}."
