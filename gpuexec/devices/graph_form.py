"""The graph form of a recording: when it is made, and when it costs the host less than a stream of launches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from gpuexec.devices.dependent_launch import find_programmatic
from gpuexec.devices.device import Stream
from gpuexec.devices.device_sizes import DeviceSizes, find_device_sizes
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.devices.prepared import (
    CommandGraph,
    GraphDevice,
    PreparedCommand,
    PreparedFill,
    PreparedLaunch,
    PreparedLibraryCall,
    PreparedSegment,
)
from gpuexec.errors import OutOfMemoryError

# Whole submissions as a stream of launches before a graph is made.
USES_BEFORE = 3


class GraphForm:
    """The commands of a segment as a graph, which alone runs branches side by side.

    Which form a submission takes follows from the device's `LaunchCosts`. Launches that can take what moves with the
    sizes from device memory do so in the graph (`DeviceSizes`), and keep their nodes.

    Args:
        device: Where it runs.
        segment: Its prepared commands.
        edges: Pairs (before, after) of positions.
        origins: The node of the model that each command stems from.
        graphs: The cache that evicts the graph. None: it is never evicted, and used from the first submission on,
            whatever patching it costs.
    """

    def __init__(
        self,
        device: GraphDevice,
        segment: PreparedSegment,
        edges: Sequence[tuple[int, int]],
        origins: Sequence[str],
        graphs: GraphCache | None,
    ) -> None:
        self._device, self._segment, self._edges, self._origins = device, segment, edges, origins
        commands = self._commands = segment.commands
        self._graphs = graphs
        self._graph: CommandGraph | None = None
        self._programmatic: frozenset[tuple[int, int]] = frozenset()  # edges of the graph
        # Commands that differ from the graph's nodes, and those among them whose size changed since the last launch.
        self._stale: set[int] = set()
        self._resized: frozenset[int] = frozenset()
        # Of the stale ones, those that are so by their size.
        self._outgrown: set[int] = set()
        self._sizes: DeviceSizes | None = None
        # For each number of a row, the commands to update for another one.
        self._users: list[set[int]] = []
        self._rigid = _find_rigid(commands)
        self._costs = device.launch_costs
        self._worth = self._costs.find_worth(len(commands))
        self._uses = 0
        self._lost_us = 0.0
        self._is_refused = False

    @property
    def is_made(self) -> bool:
        """True if there is a graph now."""
        return self._graph is not None

    def note_bound(self, touched: AbstractSet[int]) -> None:
        """Mark commands whose addresses changed for update."""
        if touched and self._graph is not None:
            self._stale |= touched
            if self._sizes is not None:
                self._sizes.note_bound(touched)

    def note_patched(self, changed: Collection[int]) -> None:
        """Mark commands replaced by those of another size for update; the layout of sizes may be another."""
        self._change_sizes()
        if changed:
            self._rigid = _find_rigid(self._commands)
            self._resized = self._resized.union(changed)
            if self._graph is not None:
                self._note_outgrown(changed)
                # An update leaves edges as they are, and another kernel may wait where this one did not, or not wait.
                # A library may take other kernels for another size, and a child node is updated to the same alone.
                is_called = any(isinstance(self._commands[position], PreparedLibraryCall) for position in changed)
                if is_called or self._find_programmatic() != self._programmatic:
                    self.close()

    def note_resized(self, before: Sequence[int]) -> None:
        """Mark commands for update of which a row that took another's place has other numbers.

        Those that launches take from device memory are left out.
        """
        pairs = zip(before, self._segment.row, self._users, strict=True)
        changed = frozenset[int]().union(*[users for old, new, users in pairs if old != new])
        self._resized = self._resized.union(changed)
        if self._graph is not None:
            self._note_outgrown(changed)

    def launch(self, stream: Stream, touched: AbstractSet[int]) -> bool:
        """Launch all commands as a graph, if that costs less now; ``touched`` are those just bound anew."""
        graph = self._graph
        if self._resized:
            touched, self._resized = self._resized | touched, frozenset()
        if graph is None:
            if not self._is_due(touched) or not self.make():
                return False
            graph = self._graph
            assert graph is not None
        elif self._stale:
            if self._graphs is not None and not self._is_worth(touched):
                return False
            if not self._rigid.isdisjoint(self._stale):
                self.close()
                return self.make() and self.launch(stream, touched)
            graph.update(sorted(self._stale), self._commands)
            if self._graphs is not None:
                self._graphs.updated.update([(_name(self._commands[i]), i in self._outgrown) for i in self._stale])
            self._clear_stale()
            self._lost_us = 0.0
        if self._sizes is not None:
            self._sizes.store(stream)
        graph.launch(stream)
        if self._graphs is not None:
            self._graphs.touch(self)
        return True

    def make(self) -> bool:
        """Make the graph with every address set; return False where there is no room for it.

        Raises:
            OutOfMemoryError: There is none, and no cache that could refuse the graph.
        """
        graphs = self._graphs
        if graphs is None:
            self._graph = self._create()
            return True
        if self._is_refused or not graphs.admit(self, len(self._commands)):
            return False
        try:
            try:
                self._graph = self._create()
            except OutOfMemoryError:
                graphs.drop(self)
                graphs.clear()
                graphs.admit(self, len(self._commands))
                self._graph = self._create()
        except BaseException as error:
            graphs.drop(self)
            if not isinstance(error, OutOfMemoryError):
                raise
            # The stream form needs no such memory, and is used instead.
            self._is_refused = True
            graphs.refused += 1
            return False
        return True

    def close(self) -> None:
        """Release the graph; runs under way finish. It is made again after enough submissions without it."""
        graph, self._graph = self._graph, None
        self._clear_stale()
        self._uses, self._lost_us = 0, 0.0
        if self._graphs is not None:
            self._graphs.drop(self)
        if graph is not None:
            graph.close()
        if self._sizes is not None:
            self._sizes.close()

    def _create(self) -> CommandGraph:
        self._programmatic = self._find_programmatic()
        self._open_sizes()
        try:
            return self._device.create_graph(self._commands, self._edges, self._origins, self._programmatic)
        except BaseException:
            if self._sizes is not None:
                self._sizes.close()
            raise

    def _change_sizes(self) -> None:
        """Find which launches take sizes of the present layout from device memory; mark what changes for update."""
        before, self._sizes = self._sizes, find_device_sizes(self._device, self._segment)
        if before is not None and before.is_open:
            before.close()
            self._note_outgrown(before.positions)
        if self._graph is not None and self._sizes is not None:
            self._note_outgrown(self._sizes.positions)
            self._open_sizes()
        self._users = self._find_users()

    def _open_sizes(self) -> None:
        """Give launches the memory; where there is none, another size updates their nodes."""
        if self._sizes is not None:
            try:
                self._sizes.open()
            except OutOfMemoryError:
                self._sizes = None
                self._users = self._find_users()

    def _find_users(self) -> list[set[int]]:
        layout, sizes = self._segment.layout, self._sizes
        users: list[set[int]] = [set() for _ in self._segment.row]
        for field in () if layout is None else layout.fields:
            if sizes is None or not sizes.holds(field):
                users[field.entry].add(field.command)
        return users

    def _note_outgrown(self, changed: Collection[int]) -> None:
        """Mark commands for update for their size."""
        self._stale.update(changed)
        self._outgrown.update(changed)

    def _clear_stale(self) -> None:
        self._stale.clear()
        self._outgrown.clear()

    def _find_programmatic(self) -> frozenset[tuple[int, int]]:
        return find_programmatic(self._device.target, self._commands, self._edges)

    def _is_due(self, touched: AbstractSet[int]) -> bool:
        """Return whether to make the graph: after a few uses, if it is likely to cost less from now on."""
        if self._graphs is None:
            return True
        self._uses += 1
        return self._uses > USES_BEFORE and len(touched) <= self._worth and self._rigid.isdisjoint(touched)

    def _is_worth(self, touched: AbstractSet[int]) -> bool:
        """Return whether updating and launching the graph costs less than launches.

        Stale nodes of earlier submissions are updated once the launches made instead have cost as much: one change of
        size is followed by many runs, or by another change.
        """
        if len(touched) > self._worth or not self._rigid.isdisjoint(touched):
            return False
        if self._rigid.isdisjoint(self._stale):
            if len(self._stale) <= self._worth:
                return True
            cost_us = self._costs.patch_us * (len(self._stale) - len(touched))
        else:
            cost_us = self._costs.node_us * len(self._commands)
        self._lost_us += self._costs.patch_us * (self._worth - len(touched))
        return self._lost_us >= cost_us


def _find_rigid(commands: Sequence[PreparedCommand]) -> frozenset[int]:
    """Return commands that a graph can't update: fills of two columns, since CUDA updates one dimension only."""
    return frozenset([i for i, c in enumerate(commands) if isinstance(c, PreparedFill) and len(c.pattern) == 8])


def _name(command: PreparedCommand) -> str:
    """Return the kernel of a command, or what else it is."""
    launch = command.arguments.command if isinstance(command, PreparedLaunch) else None
    if launch is not None:
        return launch.kernel.expression.partition("<")[0]
    return type(command).__name__.removeprefix("Prepared").lower()
