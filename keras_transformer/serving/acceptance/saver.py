"""What writes and reads checkpoints in a saved graph: its saver, and nothing that anyone can ask.

A loader feeds the saver the version's own `variables/variables` and runs its restoring half; the
other half, which writes files, nobody runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.serving.acceptance.operations import SAVER

INITIALIZERS = ("saved_model_main_op", "legacy_init_op")  # collections of what a loader runs


def saver_problems(meta_graph: Any) -> Iterator[str]:
    """The problems of a graph's saver, a sentence each.

    Args:
        meta_graph: A MetaGraphDef.
    """
    saver = meta_graph.saver_def
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    functions = {one.signature.name: one for one in meta_graph.graph_def.library.function}
    own = [_node_name(name) for name in (saver.save_tensor_name, saver.restore_op_name)]
    filename = nodes.get(_node_name(saver.filename_tensor_name))
    if any(own) and (filename is None or filename.op != "Placeholder"):
        name = saver.filename_tensor_name
        yield f"The saver's {name!r} is no placeholder: it names files itself."
    called = {name for node in map(nodes.get, own) if node for name in _called(node)}
    called &= functions.keys()
    for name in sorted(called):
        yield from _prefix_problems(functions[name])
    yield from _place_problems(meta_graph, own, called)
    yield from _reach_problems(meta_graph, nodes, own)


def _place_problems(meta_graph, own, called):
    """Ops of a saver anywhere but in the functions that it calls; others that call these."""
    for node in meta_graph.graph_def.node:
        if node.op in SAVER:
            yield f"Node {node.name!r} ({node.op}) in the graph is outside of the saver."
        if node.name not in own and called & _called(node):
            yield f"Node {node.name!r} ({node.op}) in the graph calls the saver."
    for function in meta_graph.graph_def.library.function:
        where = f"in function {function.signature.name!r}"
        for node in function.node_def:
            if node.op in SAVER and function.signature.name not in called:
                yield f"Node {node.name!r} ({node.op}) {where} is outside of the saver."
            if called & _called(node):
                yield f"Node {node.name!r} ({node.op}) {where} calls the saver."


def _prefix_problems(function):
    """A checkpoint that is read is the one that the loader names, the function's argument."""
    arguments = {one.name for one in function.signature.input_arg}
    for node in function.node_def:
        if node.op == "RestoreV2" and not arguments.intersection(node.input[:1]):
            where = f"in function {function.signature.name!r}"
            yield f"Node {node.name!r} (RestoreV2) {where} names the file that it reads itself."


def _reach_problems(meta_graph, nodes, own):
    """What is run for a request, or when the graph is loaded, has no part in the saver."""
    asked = {
        f"signature {name!r}": [info.name for info in signature.outputs.values()]
        for name, signature in meta_graph.signature_def.items()
    }
    for name in INITIALIZERS:
        if name in meta_graph.collection_def:
            asked[f"initializer {name!r}"] = list(meta_graph.collection_def[name].node_list.value)
    for what, names in asked.items():
        if set(own) & ancestors(nodes, names):
            yield f"The {what} reaches the saver, which reads and writes files."


def ancestors(nodes: Mapping[str, Any], names: Sequence[str]) -> set[str]:
    """The names of all nodes that the named tensors depend on.

    Args:
        nodes: {name: NodeDef}.
        names: Names of tensors or nodes.
    """
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
