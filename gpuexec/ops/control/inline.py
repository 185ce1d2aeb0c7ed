"""Inlining of an If's taken branch into the graph around it."""

from __future__ import annotations

from collections.abc import Container

from gpuexec.ir.graphs import Array, Graph, Node, Value, find_free, list_needed
from gpuexec.ir.operator import build


def inline_branch(
    node: Node, branch: Graph, taken: Container[str] = frozenset()
) -> tuple[tuple[Node, ...], dict[Value, Array]]:
    """Return a branch as nodes that read the inputs of the If and make its outputs.

    Values inside are made anew by every call, so a branch may be inlined twice. Names of nodes and values begin with
    the If's, so that errors tell where they stood. Bodies further in stay as they are, and nodes that no wanted output
    depends on are left out.

    Args:
        node: The If.
        branch: The one it takes.
        taken: Names that values of the graph have already.

    Returns:
        The nodes, and the branch's constants.
    """
    stands_for: dict[Value, Value] = dict(zip(branch.inputs, _given(node), strict=True))
    made = {value for each in branch.nodes for value in each.outputs if value is not None}
    identities, used = [], set[str]()
    for index, (inner, wanted) in enumerate(zip(branch.outputs, node.outputs, strict=True)):
        if wanted is None:
            continue
        if inner in made and inner not in stands_for:
            stands_for[inner] = wanted
        else:  # a capture, a constant, or given before under another name
            identities.append((index, inner, wanted))

    def name_value(value: Value) -> Value:
        if value not in stands_for:
            free = find_free(f"{node.name}/{value.name}", taken, used)
            used.add(free)
            stands_for[value] = Value(free, value.declared)
        return stands_for[value]

    nodes = [
        Node(
            each.operator,
            tuple(None if value is None else name_value(value) for value in each.inputs),
            tuple(None if value is None else name_value(value) for value in each.outputs),
            f"{node.name}/{each.name}",
        )
        for each in branch.nodes
    ]
    nodes += [
        Node(build("Identity", {}), (name_value(inner),), (wanted,), f"{node.name}/output{index}")
        for index, inner, wanted in identities
    ]
    kept, needed = list_needed(nodes, [value for value in node.outputs if value is not None])
    constants = {name_value(value): array for value, array in branch.constants.items()}
    return tuple(kept), {value: array for value, array in constants.items() if value in needed}


def _given(node: Node) -> tuple[Value, ...]:
    captures = tuple(value for value in node.inputs[1:] if value is not None)
    assert len(captures) == len(node.inputs) - 1, f"{node}: a capture is absent"
    return captures
