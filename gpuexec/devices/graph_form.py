"""The graph form of a recording: when it is made, and when it costs the host less than a stream of launches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

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
# How often the same addresses come again, to nodes that have others, before they get a graph of their own; and the most
# graphs of a recording: frames rotate, so inputs and outputs lie at a few places in turn.
COMES_BACK, MAX_GRAPHS = 2, 4
_MAX_KEYS = 2 * MAX_GRAPHS  # sets of addresses that are counted


@dataclass(slots=True, eq=False)
class BoundGraph:
    """An executable graph of a recording, with what its nodes have.

    Attributes:
        form: Whose graph it is.
        graph: The graph.
        addresses: Of bound buffers.
        outgrown: Commands that have another size by now.
    """

    form: GraphForm
    graph: CommandGraph
    addresses: dict[int, int]
    outgrown: set[int] = field(default_factory=set)

    def close(self) -> None:
        """Release the graph; runs under way finish."""
        self.form.release(self)


class GraphForm:
    """The commands of a segment as a graph, which alone runs branches side by side.

    Which form a submission takes follows from the device's `LaunchCosts`. Launches that can take what moves with the
    sizes from device memory do so in the graph (`DeviceSizes`), and keep their nodes. Sets of addresses that come back
    get a graph each.

    Args:
        device: Where it runs.
        segment: Its prepared commands.
        edges: Pairs (before, after) of positions.
        origins: The node of the model that each command stems from.
        graphs: The cache that evicts graphs. None: there is one, never evicted and used from the first submission on,
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
        self._held: list[BoundGraph] = []
        self._programmatic: frozenset[tuple[int, int]] = frozenset()  # edges of the graphs
        # Commands whose size changed since the last launch.
        self._resized: frozenset[int] = frozenset()
        self._sizes: DeviceSizes | None = None
        self._row: tuple[int, ...] = ()  # noted last
        # For entries of a row, the commands to update for another number; an entry without any is left out.
        self._users: list[tuple[int, frozenset[int]]] = []
        self._rigid = _find_rigid(commands)
        self._costs = device.launch_costs
        self._worth = self._costs.find_worth(len(commands))
        self._uses = 0
        self._lost_us = 0.0
        self._is_refused = False
        # How often sets of addresses came that no graph had, the last ones.
        self._came: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._most = 1 if graphs is None else MAX_GRAPHS

    @property
    def is_made(self) -> bool:
        """True if there is a graph now."""
        return bool(self._held)

    def note_bound(self, touched: AbstractSet[int]) -> None:
        """Note commands whose addresses changed."""
        if touched and self._sizes is not None:
            self._sizes.note_bound(touched)

    def note_patched(self, changed: Collection[int]) -> None:
        """Mark commands replaced by those of another size for update; the layout of sizes may be another."""
        self._change_sizes()
        if changed:
            self._rigid = _find_rigid(self._commands)
            self._resized = self._resized.union(changed)
            if self._held:
                self._note_outgrown(changed)
                # An update leaves edges as they are, and another kernel may wait where this one did not, or not wait.
                # A library may take other kernels for another size, and a child node is updated to the same alone.
                is_called = any(isinstance(self._commands[position], PreparedLibraryCall) for position in changed)
                if is_called or self._find_programmatic() != self._programmatic:
                    self.close()

    def note_resized(self) -> None:
        """Mark commands for update of which the present row has other numbers than the one noted last.

        Those that launches take from device memory are left out.
        """
        before, row, changed = self._row, self._segment.row, frozenset[int]()
        for entry, users in self._users:
            if before[entry] != row[entry]:
                changed |= users
        if changed:
            self._resized |= changed
            self._note_outgrown(changed)
        self._row = row

    def launch(self, stream: Stream, touched: AbstractSet[int]) -> bool:
        """Launch all commands as a graph, if that costs less now; ``touched`` are those just bound anew."""
        resized, self._resized = self._resized, frozenset()
        bound = self._find(touched, resized) if self._held else self._begin(touched, resized)
        if bound is None:
            return False
        if self._sizes is not None:
            self._sizes.store(stream)
        bound.graph.launch(stream)
        if self._graphs is not None:
            self._graphs.touch(bound)
        return True

    def make(self) -> bool:
        """Make a graph with every address set; return False where there is no room for it.

        Raises:
            OutOfMemoryError: There is none, and no cache that could refuse the graph.
        """
        return self._add() is not None

    def close(self) -> None:
        """Release all graphs; runs under way finish. One is made again after enough submissions without it."""
        for bound in list(self._held):
            self.release(bound)

    def release(self, bound: BoundGraph) -> None:
        """Release one of the graphs."""
        if self._graphs is not None:
            self._graphs.drop(bound)
        self._held = [each for each in self._held if each is not bound]
        bound.graph.close()
        if not self._held:
            self._uses, self._lost_us = 0, 0.0
            if self._sizes is not None:
                self._sizes.close()

    def _begin(self, touched: AbstractSet[int], resized: AbstractSet[int]) -> BoundGraph | None:
        """Return the first graph, if it is to be made: after a few uses, if it is likely to cost less from now on."""
        if self._graphs is not None:
            self._uses += 1
            changed = touched | resized
            is_patched = len(changed) <= self._worth and self._rigid.isdisjoint(changed)
            if self._uses <= USES_BEFORE or not (is_patched or self._comes_back(touched, resized)):
                return None
        return self._add()

    def _find(self, touched: AbstractSet[int], resized: AbstractSet[int]) -> BoundGraph | None:
        """Return the graph that differs least, updated, or another one; None where launches cost less.

        Addresses come before sizes: nodes of another size are updated once, those of others' addresses at each turn.
        """
        found = None
        for bound in self._held:
            rebound = self._segment.find_rebound(bound.addresses)
            differs = len(rebound), len(bound.outgrown)
            if found is None or differs < found[0]:
                found = differs, bound, rebound
                if differs == (0, 0):
                    break
        assert found is not None
        _, bound, rebound = found
        # Of those that differ as much, the one that was launched longest ago comes first.
        if bound is not self._held[-1]:
            self._held = [*[each for each in self._held if each is not bound], bound]
        if not rebound and not bound.outgrown:
            return bound
        stale = rebound.union(bound.outgrown)
        if rebound and len(self._held) < self._most and self._comes_back(touched, resized):
            another = self._add_beside()
            if another is not None:
                return another
        if self._graphs is not None and not self._is_worth(touched | resized, stale):
            return None
        self._lost_us = 0.0
        if not self._rigid.isdisjoint(stale):
            self.release(bound)
            return self._add()
        self._segment.write()
        bound.graph.update(sorted(stale), self._commands)
        if self._graphs is not None:
            self._graphs.updated.update([(_name(self._commands[i]), i in bound.outgrown) for i in stale])
        bound.addresses, bound.outgrown = dict(self._segment.addresses), set()
        return bound

    def _comes_back(self, touched: AbstractSet[int], resized: AbstractSet[int]) -> bool:
        """Count the present addresses, which no graph has; return whether they come again and again, after others.

        A graph of their own needs no update then, if sizes don't change it each time.
        """
        if not touched:
            return False
        key = tuple(self._segment.addresses.values())
        count = self._came[key] = self._came.pop(key, -1) + 1
        if len(self._came) > _MAX_KEYS:
            self._came.popitem(last=False)
        return count >= COMES_BACK and len(resized) <= self._worth

    def _add(self) -> BoundGraph | None:
        """Make a graph; close others, where there is no room for it, and return None where there is none even so."""
        graphs = self._graphs
        if graphs is None:
            return self._hold(self._create())
        nodes = len(self._commands)
        if self._is_refused or not graphs.make_room(nodes):
            return None
        try:
            graph = self._create()
        except OutOfMemoryError:
            graphs.clear()
            try:
                graph = self._create()
            except OutOfMemoryError:
                # The stream form needs no such memory, and is used instead.
                self._is_refused = True
                graphs.refused += 1
                return None
        return self._hold(graph)

    def _add_beside(self) -> BoundGraph | None:
        """Make another graph, which no other is closed for."""
        graphs = self._graphs
        assert graphs is not None
        if not graphs.has_room(len(self._commands)):
            return None
        try:
            return self._hold(self._create())
        except OutOfMemoryError:
            self._most = len(self._held)
            return None

    def _create(self) -> CommandGraph:
        self._segment.write()
        self._programmatic = self._find_programmatic()
        if not self._held:
            self._open_sizes()
        try:
            return self._device.create_graph(self._commands, self._edges, self._origins, self._programmatic)
        except BaseException:
            if self._sizes is not None and not self._held:
                self._sizes.close()
            raise

    def _hold(self, graph: CommandGraph) -> BoundGraph:
        bound = BoundGraph(self, graph, dict(self._segment.addresses))
        if self._graphs is not None:
            self._graphs.admit(bound, len(self._commands))
        self._held = [*self._held, bound]
        return bound

    def _change_sizes(self) -> None:
        """Find which launches take sizes of the present layout from device memory; mark what changes for update."""
        before, self._sizes = self._sizes, find_device_sizes(self._device, self._segment)
        if before is not None and before.is_open:
            before.close()
            self._note_outgrown(before.positions)
        if self._held and self._sizes is not None:
            self._note_outgrown(self._sizes.positions)
            self._open_sizes()
        self._users, self._row = self._find_users(), self._segment.row

    def _open_sizes(self) -> None:
        """Give launches the memory; where there is none, another size updates their nodes."""
        if self._sizes is not None:
            try:
                self._sizes.open()
            except OutOfMemoryError:
                self._sizes = None
                self._users = self._find_users()

    def _find_users(self) -> list[tuple[int, frozenset[int]]]:
        layout, sizes = self._segment.layout, self._sizes
        users: dict[int, set[int]] = {}
        for each in () if layout is None else layout.fields:
            if sizes is None or not sizes.holds(each):
                users.setdefault(each.entry, set()).add(each.command)
        return [(entry, frozenset(positions)) for entry, positions in users.items()]

    def _note_outgrown(self, changed: Collection[int]) -> None:
        """Mark commands for update for their size."""
        for bound in self._held:
            bound.outgrown.update(changed)

    def _find_programmatic(self) -> frozenset[tuple[int, int]]:
        return find_programmatic(self._device.target, self._commands, self._edges)

    def _is_worth(self, touched: AbstractSet[int], stale: AbstractSet[int]) -> bool:
        """Return whether updating the stale nodes of a graph and launching it costs less than launches.

        Stale nodes of earlier submissions are updated once the launches made instead have cost as much: one change of
        size is followed by many runs, or by another change.
        """
        if len(touched) > self._worth or not self._rigid.isdisjoint(touched):
            return False
        if self._rigid.isdisjoint(stale):
            if len(stale) <= self._worth:
                return True
            cost_us = self._costs.patch_us * (len(stale) - len(touched))
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
