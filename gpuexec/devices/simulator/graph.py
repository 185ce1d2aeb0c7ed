"""Explicit graphs of the simulator: prepared commands and edges, launched as one in any order the edges allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from gpuexec.devices.prepared import PreparedCommand, PreparedCopy, PreparedFill, PreparedLaunch
from gpuexec.devices.simulator.commands import make_copy, make_fill, make_launch
from gpuexec.devices.simulator.context import SimulatorContext
from gpuexec.devices.simulator.library import ArgumentCopy
from gpuexec.devices.simulator.module import SimulatorFunction
from gpuexec.devices.simulator.operations import GENERATIONS, Operation, begin_early
from gpuexec.devices.simulator.stream import SimulatorStream
from gpuexec.errors import ClosedError, InputError
from gpuexec.ir.command import LaunchConfig


class SimulatorGraph:
    """An executable graph.

    Args:
        context: Of the device that it will run on.
        commands: Prepared, with every address set; what they hold is copied.
        edges: Pairs (before, after) of positions in ``commands``.
        programmatic: Those of them that join a launch to one that begins early and waits for it itself.

    Raises:
        InputError: The edges form a cycle, or name no command.
    """

    def __init__(
        self,
        context: SimulatorContext,
        commands: Sequence[PreparedCommand],
        edges: Sequence[tuple[int, int]],
        programmatic: AbstractSet[tuple[int, int]] = frozenset(),
    ) -> None:
        self._context = context
        self._under_way = find_under_way(programmatic)
        self._after: list[list[int]] = [[] for _ in commands]
        self._count_before = [0] * len(commands)
        for before, after in dict.fromkeys(edges):
            if not (0 <= before < len(commands) and 0 <= after < len(commands)):
                raise InputError(f"Edge {before} -> {after} names no command of a graph of {len(commands)}.")
            self._after[before].append(after)
            self._count_before[after] += 1
        order = self._arrange(min)
        if len(order) != len(commands):
            raise InputError("The edges of a graph form a cycle.")
        self._before = [0] * len(commands)  # the nodes from which a path leads to each, as bits
        for position in order:
            for after in self._after[position]:
                self._before[after] |= self._before[position] | 1 << position
        # Launches with copies of their arguments in device memory, and how they are launched: what they use depends on
        # the size that is written there by then.
        self._moved: dict[int, tuple[PreparedLaunch, LaunchConfig, ArgumentCopy]] = {}
        self._nodes: list[Operation] | None = []
        self._nodes.extend([self._make_node(position, command) for position, command in enumerate(commands)])

    def update(self, positions: Sequence[int], commands: Sequence[PreparedCommand]) -> None:
        """Update the nodes at ``positions`` to the given ``commands``; runs already launched keep theirs."""
        nodes = self._open_nodes()
        for position in positions:
            nodes[position] = self._make_node(position, commands[position])

    def launch(self, stream: SimulatorStream) -> None:
        """Put the whole graph on a stream, in an order the device chooses among those the edges allow."""
        nodes = self._open_nodes()
        for position, moved in self._moved.items():
            nodes[position] = _make_launch(self._context, *moved)
        if self._under_way:
            early = {
                at: begin_early(nodes[at], [nodes[each] for each in before]) for at, before in self._under_way.items()
            }
            nodes = [early.get(position, node) for position, node in enumerate(nodes)]
        stream.issue_graph(nodes, self._arrange(self._context.next_choice()), self._before)

    def close(self) -> None:
        """Drop the commands; runs under way finish. A second call does nothing."""
        self._nodes = None

    def _make_node(self, position: int, command: PreparedCommand) -> Operation:
        self._moved.pop(position, None)
        match command:
            case PreparedLaunch():
                assert isinstance(command.function, SimulatorFunction)
                launch = command, command.config, command.function.copy_arguments(command.node_arguments)
                if command.moved is not None:
                    self._moved[position] = launch
                return _make_launch(self._context, *launch)
            case PreparedCopy():
                destination, source = command.addresses
                both, origin = (destination, source), command.origin
                return make_copy(self._context, destination, source, command.nbytes, both, origin=origin)
            case PreparedFill():
                return make_fill(self._context, command.address, command.pattern, command.count, command.origin)
        raise InputError(f"A graph has no node for {type(command).__name__}.")

    def _arrange(self, choose: Callable[[list[int]], int]) -> list[int]:
        """Return the positions in a topological order of the edges, chosen among the ready nodes."""
        count_before = list(self._count_before)
        ready = [position for position, count in enumerate(count_before) if count == 0]
        order = []
        while ready:
            position = choose(ready)
            ready.remove(position)
            order.append(position)
            for after in self._after[position]:
                count_before[after] -= 1
                if count_before[after] == 0:
                    ready.append(after)
        return order

    def _open_nodes(self) -> list[Operation]:
        self._context.check_alive()
        if self._nodes is None:
            raise ClosedError("The graph was closed.")
        return self._nodes


def find_under_way(programmatic: AbstractSet[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Return for each dependent launch of a graph the launches that may be under way when it begins."""
    direct: dict[int, list[int]] = {}
    for before, after in sorted(programmatic):
        direct.setdefault(after, []).append(before)
    found = {}
    for after, parents in direct.items():
        known = dict.fromkeys(parents)
        for _ in range(GENERATIONS - 1):
            known |= dict.fromkeys(each for parent in list(known) for each in direct.get(parent, ()))
        found[after] = tuple(known)
    return found


def _make_launch(
    context: SimulatorContext, command: PreparedLaunch, config: LaunchConfig, copied: ArgumentCopy
) -> Operation:
    assert isinstance(command.function, SimulatorFunction)
    return make_launch(context, command.function, config, command.node_arguments, copied)
