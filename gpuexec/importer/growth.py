"""Node count of a model after its functions are expanded, bounded before any expansion.

A function that calls the next one twice, and so on, is a few hundred bytes in a file and any number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import onnx

from gpuexec.errors import ModelError
from gpuexec.importer.order import describe_node, list_nodes

# The largest known models have some ten thousand nodes.
MAX_NODES = 1 << 17
Key = tuple[str, str, str]


def check_growth(nodes: Sequence[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]) -> None:
    """Check that these functions can be expanded in these nodes, and that this ends, and ends soon enough.

    Raises:
        ModelError: A function calls itself, through others perhaps, is given more than it takes, or there would be too
            many nodes; names it.
    """
    functions = list(functions)
    if not functions:
        return
    _check_calls(nodes, functions)
    calls = {key_of(function): [key_of_call(node) for node in list_nodes(function.node)] for function in functions}
    sizes: dict[Key, int] = {}
    for key in calls:
        _measure(key, calls, sizes)
    total = 0
    for node in list_nodes(nodes):
        size = sizes.get(key_of_call(node), 1)
        total += size
        if size > 1 and total > MAX_NODES:
            raise ModelError(
                f"{describe_node(node)}: with its function of {size} nodes the model has more than {MAX_NODES}, the"
                " most that is expanded.",
                node=node.name or None,
            )


def _check_calls(nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]) -> None:
    formals = {key_of(function): (len(function.input), len(function.output)) for function in functions}
    for node in chain(list_nodes(nodes), *(list_nodes(function.node) for function in functions)):
        takes, gives = formals.get(key_of_call(node), (len(node.input), len(node.output)))
        if len(node.input) > takes or len(node.output) > gives:
            raise ModelError(
                f"{describe_node(node)}: the function takes at most {takes} inputs and {gives} outputs, got"
                f" {len(node.input)} and {len(node.output)}.",
                node=node.name,
            )


def _measure(first: Key, calls: Mapping[Key, list[Key]], sizes: dict[Key, int]) -> None:
    """Enter the sizes of a function and of all it calls, deepest first."""
    stack = [first]
    while stack:
        key = stack[-1]
        callee = next((inner for inner in calls[key] if inner in calls and inner not in sizes), None)
        if callee is None:
            sizes[key] = sum(sizes.get(inner, 1) for inner in calls[key])
            stack.pop()
        elif callee in stack:
            names = " calls ".join(repr(name) for _, name, _ in (*stack[stack.index(callee) :], callee))
            raise ModelError(f"A function of the model calls itself: {names}.", node=callee[1])
        else:
            stack.append(callee)


def key_of(function: onnx.FunctionProto) -> Key:
    """Return the key by which calls name a function."""
    return function.domain, function.name, function.overload


def key_of_call(node: onnx.NodeProto) -> Key:
    """Return the key of the function that a node calls, if it calls one."""
    return node.domain, node.op_type, node.overload
