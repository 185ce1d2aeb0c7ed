"""Partition of a graph: the boundary between what can be planned now and what needs content read by the host.

    find_partition(graph, inputs, target) -> Partition(ready, reads, host_nodes, repeat, rest)

``ready`` runs on the device. Then the content of ``reads`` is fetched, ``host_nodes`` are computed by NumPy, the loop
``repeat`` is run, and ``rest`` is cut in its turn, with all of that known. A graph that needs nothing of the kind is
ready as it stands. An If whose condition is on the host is replaced by the branch it takes. Strings and containers are
never in ``ready``: nodes that touch them are host nodes on every target.

Placement is by cost: a light producer of a small value runs on the host, from content read further up; a heavy one
stays on the device and its result is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import TensorSpec


@dataclass(frozen=True, slots=True)
class HostRead:
    """Content that the host must read: the value, the node that needs it, and the purpose."""

    value: Value
    reader: str
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """One step through a graph; see the module docstring.

    Attributes:
        ready: Graph to plan and run now; None where nothing is.
        reads: Content to fetch after that.
        host_nodes: Nodes to compute on the host after that, in order.
        host_calls: Those among them that the device has no kernel for, or of host objects, each with why; the others
            are light.
        repeat: A Loop, Scan or SequenceMap to run after that.
        rest: Graph of what is left then; None where nothing is.
        foreseen: Specs of the graph's outputs that will not differ, though they may not be made yet.
        bounds: Largest specs of outputs whose extents depend on data, where they are known.
        decided_by: Names of inputs whose content decided which branch is taken.
        is_by_shape: Whether extents decided one, beyond dtypes and ranks.
        constants: Content of constants that host nodes and the loop take, or that a body gives.
        branches: The Ifs that were decided, each with whether its condition held.
    """

    ready: Graph | None
    reads: tuple[HostRead, ...] = ()
    host_nodes: tuple[Node, ...] = ()
    host_calls: Mapping[Node, str] = field(default_factory=dict)
    repeat: Node | None = None
    rest: Graph | None = None
    foreseen: Mapping[Value, TensorSpec] | None = None
    bounds: Mapping[Value, TensorSpec] | None = None
    decided_by: tuple[str, ...] = ()
    is_by_shape: bool = False
    constants: Mapping[Value, Array] | None = None
    branches: tuple[tuple[Node, bool], ...] = ()
