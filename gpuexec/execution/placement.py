"""Placement of layers: the device, kernels and bytes of each, as rows and as metadata of a model's nodes.

Viewers such as Netron show the metadata of a node, and tools of ONNX keep it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuexec.errors import InputError
from gpuexec.execution.profiling.layers import describe_command
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.profiling.rows import HOST
from gpuexec.execution.resources.syncs import CallRow
from gpuexec.ir.command import Command, HostCall
from gpuexec.ir.graphs import Graph, Node, bodies, with_bodies
from gpuexec.ir.plan import Plan
from gpuexec.model.model import Model
from gpuexec.system.records import Record

_PREFIX = "gpuexec."
_GONE = "none"
_NO_LAYER = "no command: removed, since nothing is left of it to compute"
_PLANNED = "computed before any run: it follows from shapes and constants"
_OF_SHAPES = ("Shape", "Size")


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


def annotate(model: Model, rows: Sequence[LayerPlacement], made: Mapping[str, tuple[str, ...]]) -> Model:
    """Return a model whose nodes have their placements as metadata, for `Model.save`.

    Nodes are those of the file. One without a layer of its own name belongs to the layer that made of its output what
    other layers read, since passes fused or replaced it; or it says that there is none. Nodes of one name in several
    bodies are left alone where the layer does not say which.

    Args:
        model: The model.
        rows: The layers.
        made: Names of the values that each layer makes.

    Raises:
        InputError: No layer is of a node of the model.
    """
    graph = model.info.graph
    by_name: dict[str, list[str]] = {}
    paths: Counter[str] = Counter()  # two branches may share one
    for path, node in _list_paths(graph):
        by_name.setdefault(node.name, []).append(path)
        paths[path] += 1
    found: dict[str, LayerPlacement] = {}
    for row in rows:
        for name in row.layer.split("+") if "+" in row.layer else [row.layer]:
            places = [name] if name in paths else by_name.get(name, [])
            found.update((place, row) for place in places if len(places) == paths[place] == 1)
    if not found:
        layers = ", ".join(repr(row.layer) for row in rows[:3])
        what = f"the layers are {layers}, ..." if rows else "nothing was planned or run."
        raise InputError(f"No layer is of a node of {graph.name!r}: {what}")
    planned = _list_planned(graph)
    found = {**_follow(graph, rows, made, planned), **found}
    sizes = Counter(id(row) for row in found.values())

    def write(path: str, node: Node) -> Node:
        row = found.get(path)
        if row is None and len(by_name[node.name]) > 1:
            return node
        if row is None:
            ours = {f"{_PREFIX}device": _GONE, f"{_PREFIX}reason": _PLANNED if path in planned else _NO_LAYER}
        else:
            ours = row.encode_metadata(is_region=sizes[id(row)] > 1)
        kept = {key: text for key, text in node.metadata.items() if not key.startswith(_PREFIX)}
        return replace(node, metadata={**kept, **ours})

    annotated = copy.copy(model)
    annotated.info = replace(model.info, graph=_map_nodes(graph, write))
    return annotated


def _list_paths(graph: Graph, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield each node by its name, in bodies behind those of the nodes around it, as passes name what they inline."""
    for node in graph.nodes:
        yield path + node.name, node
        for body in bodies(node.operator):
            yield from _list_paths(body, f"{path}{node.name}/")


def _list_planned(graph: Graph) -> set[str]:
    """Return the names of nodes whose outputs follow from shapes and constants alone: planning computes them."""
    known, names = set(graph.constants), set[str]()
    for node in graph.nodes:
        given = [value for value in node.inputs if value is not None]
        is_free = node.operator.is_random or bodies(node.operator)
        if node.operator.name in _OF_SHAPES or (known.issuperset(given) and not is_free):
            names.add(node.name)
            known.update(value for value in node.outputs if value is not None)
    return names


def _follow(
    graph: Graph, rows: Iterable[LayerPlacement], made: Mapping[str, tuple[str, ...]], planned: Container[str]
) -> dict[str, LayerPlacement]:
    """Return the layer of each node between what other layers make and what this one does, by the node's name."""
    producers = {value.name: node for value, node in graph.producers().items()}
    ends = {name for names in made.values() for name in names}
    found: dict[str, LayerPlacement] = {}
    for row in rows:
        waiting = list(made.get(row.layer, ()))
        while waiting:
            node = producers.get(waiting.pop())
            if node is None or node.name in found or node.name in planned:
                continue
            found[node.name] = row
            waiting += [value.name for value in node.inputs if value is not None and value.name not in ends]
    return found


def _map_nodes(graph: Graph, write: Callable[[str, Node], Node], path: str = "") -> Graph:
    """Return a graph with other nodes, in bodies too."""
    nodes = []
    for node in graph.nodes:
        inner = [_map_nodes(each, write, f"{path}{node.name}/") for each in bodies(node.operator)]
        written = write(path + node.name, node)
        nodes.append(replace(written, operator=with_bodies(node.operator, inner)) if inner else written)
    return replace(graph, nodes=tuple(nodes))
