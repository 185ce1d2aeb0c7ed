"""Placement of layers: the device, kernels and bytes of each, as rows and as metadata of a model's nodes.

Viewers such as Netron show the metadata of a node, and tools of ONNX keep it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuexec.errors import InputError
from gpuexec.execution.profiling.layers import describe_command
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.profiling.rows import HOST
from gpuexec.execution.resources.syncs import CallRow
from gpuexec.ir.command import Command, HostCall
from gpuexec.ir.graphs import Graph, Node, bodies, walk, with_bodies
from gpuexec.ir.plan import Plan
from gpuexec.model.model import Model
from gpuexec.system.records import Record

_PREFIX = "gpuexec."
_GONE = "none"
_NO_LAYER = "no command: folded, removed, or another node's commands do it"


@dataclass(frozen=True, slots=True)
class LayerPlacement(Record):
    """A layer and where it runs.

    Attributes:
        layer: Its name: that of its node, or of all that run as one, with ``+`` between them.
        device: Name of the device; ``"host"`` where the device has no kernel.
        kernels: What is launched, in order; ``"NumPy"`` on the CPU.
        nbytes: Bytes read and written.
        us: Microseconds of a run, where they are known.
        timing: What ``us`` is: ``"measured"`` or ``"predicted"``.
        reason: Why the host computes it; empty where it does not.
    """

    layer: str
    device: str
    kernels: tuple[str, ...]
    nbytes: int
    us: float | None = None
    timing: str = ""
    reason: str = ""

    def encode_metadata(self, *, is_region: bool) -> dict[str, str]:
        """Return the row as metadata of a node; ``is_region``: it is not the only one of the layer."""
        rows = {
            "device": self.device,
            "kernel": "; ".join(self.kernels),
            "region": self.layer if is_region else "",
            "us": "" if self.us is None else f"{self.us:.3f}",
            "us_is": "" if self.us is None else self.timing,
            "bytes": str(self.nbytes),
            "host_reason": self.reason,
        }
        return {_PREFIX + key: text for key, text in rows.items() if text}


def list_placements(plans: Iterable[Plan], device: str, calls: Iterable[CallRow] = ()) -> tuple[LayerPlacement, ...]:
    """Return the layers of plans and the nodes that the host computed, each once: of several plans the first counts.

    Args:
        plans: Whose commands run on the device.
        device: Its name.
        calls: Nodes that the host computed, timed.
    """
    rows: dict[str, LayerPlacement] = {}
    for call in calls:
        us = call.computed_ms * 1e3 / call.times
        rows[call.node] = LayerPlacement(call.node, HOST, ("NumPy",), 0, us, "measured", call.why)
    for plan in plans:
        commands: dict[str, list[Command]] = {}
        for origin, command in zip(plan.segment.origins, plan.segment.commands, strict=True):
            commands.setdefault(origin, []).append(command)
        for origin, group in commands.items():
            if origin not in rows:
                described = [describe_command(each) for each in group]
                names = ["NumPy" if isinstance(each, HostCall) else "" for each in group]
                kernels = [name or row.kernel or row.kind for name, row in zip(names, described, strict=True)]
                nbytes = sum(row.bytes_read + row.bytes_written for row in described)
                rows[origin] = LayerPlacement(origin, device, tuple(dict.fromkeys(kernels)), nbytes)
    return tuple(rows.values())


def time_placements(
    rows: Iterable[LayerPlacement], times_us: Mapping[str, float], timing: str
) -> tuple[LayerPlacement, ...]:
    """Return rows with microseconds by name of the layer, where there are such."""
    return tuple([
        replace(row, us=times_us[row.layer], timing=timing) if row.layer in times_us else row for row in rows
    ])  # fmt: skip


def list_measured(profiler: Profiler, skip: int = 0) -> dict[str, float]:
    """Wait for all runs of a profiler, and return the median microseconds of a run by name of the layer."""
    return {row.name: row.p50_ms * 1e3 for row in profiler.summarise(skip=skip)}


def annotate(model: Model, rows: Sequence[LayerPlacement]) -> Model:
    """Return a model whose nodes have their placements as metadata, for `Model.save`.

    Nodes are those of the file. One without a layer of its own says so: passes folded, removed or replaced it. A name
    that two graphs of the model share is left alone.

    Raises:
        InputError: No layer is of a node of the model.
    """
    by_node = {name: (row, len(names) > 1) for row in rows for names in [_list_nodes(row)] for name in names}
    counts = Counter(node.name for graph in walk(model.info.graph) for node in graph.nodes)
    if by_node.keys().isdisjoint(counts):
        layers = ", ".join(repr(row.layer) for row in rows[:3]) or "none"
        raise InputError(f"No layer is of a node of {model.info.graph.name!r}: the layers are {layers}, ...")

    def write(node: Node) -> Node:
        if counts[node.name] > 1:
            return node
        found = by_node.get(node.name)
        if found is None:
            ours = {f"{_PREFIX}device": _GONE, f"{_PREFIX}reason": _NO_LAYER}
        else:
            ours = found[0].encode_metadata(is_region=found[1])
        kept = {key: text for key, text in node.metadata.items() if not key.startswith(_PREFIX)}
        return replace(node, metadata={**kept, **ours})

    made = copy.copy(model)
    made.info = replace(model.info, graph=_map_nodes(model.info.graph, write))
    return made


def _list_nodes(row: LayerPlacement) -> list[str]:
    return row.layer.split("+") if "+" in row.layer else [row.layer]


def _map_nodes(graph: Graph, write: Callable[[Node], Node]) -> Graph:
    """Return a graph with other nodes, in bodies too."""
    nodes = []
    for node in graph.nodes:
        inner = bodies(node.operator)
        if inner:
            operator = with_bodies(node.operator, [_map_nodes(each, write) for each in inner])
            node = replace(node, operator=operator)
        nodes.append(write(node))
    return replace(graph, nodes=tuple(nodes))
