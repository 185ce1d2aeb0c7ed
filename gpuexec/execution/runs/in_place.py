"""Memories that runs append to where they lie: the same bytes from run to run, bound without a look at each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuexec.devices.device import Region
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.plan import Plan, Port
from gpuexec.ir.spec import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class BoundPorts:
    """Inputs and outputs of a plan.

    Attributes:
        bindings: The bytes of buffers that are known.
        inputs: The other inputs, with their buffers.
        outputs: The other outputs, with their places among all.
    """

    bindings: Mapping[int, Region]
    inputs: tuple[tuple[Value, int], ...]
    outputs: tuple[tuple[int, Value, Port], ...]

    @classmethod
    def of(cls, graph: Graph, plan: Plan, regions: Mapping[Value, Region]) -> BoundPorts:
        """Return those of a graph's plan, where some values lie in these bytes."""
        bindings: dict[int, Region] = {}
        inputs: list[tuple[Value, int]] = []
        outputs: list[tuple[int, Value, Port]] = []
        for value, port in zip(graph.inputs, plan.inputs, strict=True):
            if port.buffer is None:
                continue
            if value in regions:
                bindings[port.buffer] = regions[value]
            else:
                inputs.append((value, port.buffer))
        for place, (value, port) in enumerate(zip(graph.outputs, plan.outputs, strict=True)):
            assert port.buffer is not None
            if value in regions:
                bindings[port.buffer] = regions[value]
            else:
                outputs.append((place, value, port))
        return cls(bindings, tuple(inputs), tuple(outputs))


@dataclass(frozen=True, slots=True, eq=False)
class GrownMemories:
    """Memories of one spec that lie with room behind their rows, for whoever goes on from them.

    Attributes:
        inputs: As values of the graph.
        outputs: Their next values.
        spec: Of each, with the rows there are.
        regions: The bytes of each, the room included: the same tuple as long as they are the same.
        held: What the state holds them as.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    spec: TensorSpec
    regions: tuple[Region, ...]
    held: object


class InPlaceMemories:
    """Memories that a run appends to where they lie.

    Args:
        rows: The input and the output of each, and its bytes.
    """

    def __init__(self, rows: Iterable[tuple[Value, Value, Region]] = ()) -> None:
        self._regions: dict[Value, Region] = {}
        for held, left, region in rows:
            self._regions[held] = self._regions[left] = region
        # By the plan's identity, which is kept with them.
        self._ports: dict[int, tuple[Plan, BoundPorts]] = {}

    def find_ports(self, graph: Graph, plan: Plan) -> BoundPorts:
        """Return the inputs and outputs of a graph's plan, these memories bound."""
        known = self._ports.get(id(plan))
        if known is None:
            known = self._ports[id(plan)] = plan, BoundPorts.of(graph, plan, self._regions)
        return known[1]
