"""Selection of other outputs than a file declares, with only the nodes they need."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from gpuexec.errors import InputError
from gpuexec.importer.order import list_graphs, list_nodes

_NAMES_SHOWN = 8
_CHARACTERS_SHOWN = 100


def choose_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Return a copy of the model with these values as outputs, in this order, without nodes that none of them needs.

    A value that is an input or a weight may be an output too. Types come from the file where it has them, and are
    inferred otherwise.

    Raises:
        InputError: No value has one of the names, one is listed twice, or there is none.
    """
    graph = model.graph
    origins = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    known = {*origins, *(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)}
    if not names or isinstance(names, str):
        raise InputError(f"outputs takes a list of names, at least one; got {names!r}.")
    for position, name in enumerate(names):
        if name not in known:
            raise InputError(
                f"outputs: the model has no value {name!r}; its outputs are"
                f" {shorten([info.name for info in graph.output])}; its last nodes make"
                f" {shorten(list(origins)[::-1])}.",
                value=name,
            )
        if name in names[:position]:
            raise InputError(f"outputs: {name!r} is listed twice.", value=name)
    declared = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    chosen = onnx.ModelProto()
    chosen.CopyFrom(model)
    needed = _find_needed(graph, origins, names)
    del chosen.graph.node[:], chosen.graph.output[:]
    chosen.graph.node.extend(node for index, node in enumerate(graph.node) if index in needed)
    chosen.graph.output.extend(declared.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    return chosen


def _find_needed(graph: onnx.GraphProto, origins: dict[str, int], names: Sequence[str]) -> set[int]:
    """Return the indices of the nodes that these values need; captures of bodies count as read."""
    needed: set[int] = set()
    waiting = [origins[name] for name in names if name in origins]
    while waiting:
        index = waiting.pop()
        if index in needed:
            continue
        needed.add(index)
        for node in list_nodes([graph.node[index]]):
            waiting += [origins[name] for name in node.input if name in origins]
        for body in list_graphs([graph.node[index]]):
            waiting += [origins[info.name] for info in body.output if info.name in origins]
    return needed


def shorten(names: list[str]) -> str:
    """Return the first names, for a message; of long ones the beginning."""
    return ", ".join(f"{name:.{_CHARACTERS_SHOWN}}" for name in names[:_NAMES_SHOWN]) + (
        ", ..." if len(names) > _NAMES_SHOWN else ""
    )
