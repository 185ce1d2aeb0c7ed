"""LRU cache of recorded graphs, bounded by bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Protocol

from gpuexec.devices.revision import Revision
from gpuexec.system import knobs

# A cautious estimate of the device memory that a node of an executable graph takes: CUDA does not report it, and
# drivers differ.
NODE_NBYTES = 64 << 10


class GraphHolder(Protocol):
    """A graph that can be evicted."""

    def close(self) -> None:
        """Release the graph."""


class GraphCache:
    """LRU cache of graphs; beyond ``capacity_bytes``, the least recently used are closed.

    A closed graph may come back: its recording makes it again once that pays.

    Args:
        capacity_bytes: None: as GPUEXEC_GRAPH_BYTES says. 0: no graphs.
        revision: Changes with `nbytes`.

    Attributes:
        refused: How many graphs the device had no memory for; their recordings stay streams of launches.
        launched: How many times graphs were launched.
        updated: How many nodes were updated before that, by the kernel and whether the size was another.
    """

    def __init__(self, capacity_bytes: int | None = None, revision: Revision | None = None) -> None:
        self._revision = revision or Revision()
        self.capacity_bytes = knobs.graph_bytes() if capacity_bytes is None else capacity_bytes
        self.refused = 0
        self.launched = 0
        self.updated: Counter[tuple[str, bool]] = Counter()
        # In order of use, the most recent last.
        self._held: OrderedDict[GraphHolder, int] = OrderedDict()

    @property
    def count(self) -> int:
        """Graphs held now."""
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """An estimate of the bytes they take."""
        return sum(list(self._held.values()))

    def has_room(self, nodes: int) -> bool:
        """Return whether there is room for a graph of so many nodes beside those held."""
        return self.nbytes + nodes * NODE_NBYTES <= self.capacity_bytes

    def make_room(self, nodes: int) -> bool:
        """Close what it takes for a graph of so many nodes; return False where it exceeds the capacity."""
        if nodes * NODE_NBYTES > self.capacity_bytes:
            return False
        while self._held and not self.has_room(nodes):
            oldest = next(iter(self._held))
            self.drop(oldest)
            oldest.close()
        return True

    def admit(self, holder: GraphHolder, nodes: int) -> None:
        """Count a graph of so many nodes, which there is room for."""
        self._held[holder] = nodes * NODE_NBYTES
        self._revision.number += 1

    def touch(self, holder: GraphHolder) -> None:
        """Count a launch of a graph, which is the most recently used now."""
        self.launched += 1
        self._held.move_to_end(holder)

    def drop(self, holder: GraphHolder) -> None:
        """Remove a graph from the count; one that is not counted is ignored."""
        self._held.pop(holder, None)
        self._revision.number += 1

    def clear(self) -> None:
        """Close all graphs."""
        self._revision.number += 1
        while self._held:
            holder, _ = self._held.popitem()
            holder.close()
