"""Can a loop of a saved graph run forever?

A server answers each caller when the slowest row of the batch is done, so a decoding loop that
waits for an end symbol has to have a bound besides. `tf.while_loop(maximum_iterations=...)`
leaves no attribute behind: it becomes one more comparison in the loop's condition. That
comparison is what this file looks for, in the protos of the saved functions.
"""

from collections.abc import Mapping

import numpy as np
from tensorboard.compat.proto import function_pb2, node_def_pb2, tensor_pb2

INTEGERS = {3: "<i4", 9: "<i8"}  # DT_INT32, DT_INT64: NumPy's types


def is_bounded(
    loop: node_def_pb2.NodeDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> bool:
    """Tells whether a While node stops after a number of rounds that is fixed when it starts.

    It does when its condition is a conjunction, one term of which is `counter < bound`, where the
    body adds a positive constant to the counter and leaves the bound as it is. This is how
    `maximum_iterations` is written, and `tf.range` in a converted `for`, and the usual
    `step < length` by hand. Loops that stop for a subtler reason are taken for unbounded.

    Args:
        loop: the NodeDef of a While or StatelessWhile.
        functions: the FunctionDefs of the graph's library, by name.

    Returns:
        True when such a term is found.
    """
    try:
        condition = _Function(functions[loop.attr["cond"].func.name])
        body = _Function(functions[loop.attr["body"].func.name])
        return any(
            _is_counter(condition, body, counter) and _is_constant(condition, body, bound)
            for counter, bound in _comparisons(condition, condition.returned(0))
        )
    except (KeyError, IndexError, ValueError, RecursionError):  # no loop that could run
        return False


def _comparisons(condition, value):
    """Yields (smaller, larger) for each comparison that has to hold for the loop to go on."""
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
    """Is `value` a loop variable that each round of the body raises by a positive constant?"""
    index = condition.argument(value)
    if index is None:
        return False
    node = body.node(body.returned(index))
    if node is None or node.op not in ("Add", "AddV2"):
        return False
    first, second = node.input[:2]
    if body.argument(first) != index:
        first, second = second, first
    step = body.constant(second)
    return body.argument(first) == index and step is not None and bool((step > 0).all())


def _is_constant(condition, body, value):
    """Is `value` the same in every round?"""
    if condition.constant(value) is not None:
        return True
    index = condition.argument(value)
    return index is not None and body.argument(body.returned(index)) == index


def _integers(tensor: tensor_pb2.TensorProto) -> np.ndarray | None:
    """The numbers of a tensor of integers, which counters are; None of any other."""
    if tensor.dtype not in INTEGERS:
        return None
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, INTEGERS[tensor.dtype])
    return np.array([*tensor.int_val, *tensor.int64_val] or [0])


class _Function:
    """A FunctionDef, read backwards from what it returns, through Identity nodes."""

    def __init__(self, function):
        self._arguments = {arg.name: i for i, arg in enumerate(function.signature.input_arg)}
        self._returned = [function.ret[arg.name] for arg in function.signature.output_arg]
        self._nodes = {node.name: node for node in function.node_def}

    def returned(self, index):
        """The name of the value that the function returns at a position."""
        return self._returned[index]

    def argument(self, value):
        """The position of the argument that `value` is, or None."""
        return self._arguments.get(self._source(value))

    def node(self, value):
        """The node that computes `value`, or None when it is an argument."""
        return self._nodes.get(self._source(value).partition(":")[0])

    def constant(self, value):
        """`value` as an array when it is a constant, or None."""
        node = self.node(value)
        if node is None or node.op != "Const":
            return None
        return _integers(node.attr["value"].tensor)

    def _source(self, value):
        # A value is named "argument" or "node:output:index".
        node = self._nodes.get(value.partition(":")[0])
        for _ in self._nodes:  # not for ever, where one is its own source
            if node is None or node.op != "Identity":
                break
            value = node.input[0]
            node = self._nodes.get(value.partition(":")[0])
        return value
