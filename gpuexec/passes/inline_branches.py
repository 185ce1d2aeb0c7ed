"""Inlining of If branches whose condition is constant at load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuexec.ir.graphs import Array, Graph
from gpuexec.ops.control.control import If, inline_branch
from gpuexec.passes.fold_constants import fold_node, room_for


def inline_branches(graph: Graph) -> Graph:
    """Replace each If whose condition is a constant by the nodes of its branch.

    Constants in there are folded at once, so that a branch within a branch is decided too.
    """
    constants, names = dict(graph.constants), {value.name for value in graph.values()}
    nodes, room = [], room_for(graph)
    left = [(node, False) for node in reversed(graph.nodes)]  # the next one last; whether it comes from a branch
    while left:
        node, is_inlined = left.pop()
        known = [None if value is None else constants.get(value) for value in node.inputs]
        condition = known[0] if known else None
        if isinstance(node.operator, If) and condition is not None and _is_flag(condition):
            inner, content = inline_branch(node, node.operator.choose(condition), names)
            constants.update(content)
            names.update(value.name for each in inner for value in each.outputs if value is not None)
            names.update(value.name for value in content)
            left += [(each, True) for each in reversed(inner)]
            continue
        is_constant = all(value is None or value in constants for value in node.inputs)
        folded = fold_node(node, known, room) if is_inlined and is_constant else None
        if folded is None:
            nodes.append(node)
        else:
            constants.update(folded)
            room -= sum(array.nbytes for array in folded.values())
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _is_flag(condition: Array) -> bool:
    """Return whether this is a valid condition; planning reports others."""
    return condition.size == 1 and condition.dtype == np.bool_
