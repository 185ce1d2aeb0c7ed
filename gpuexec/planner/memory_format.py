"""Memory formats of images in a plan: which nodes run channels last, by a minimum cut over the bytes of transposes.

Shapes stay ``[batch, channels, ...]``; a memory format is the order in which the elements of a value lie in its buffer.
Values that reach the host, and those of operators that know one format alone, are row-major. Some operators gain where
channels lie last (`Operator.count_format_gain`), as convolutions on tensor cores do; others follow (`FormatUse`). Where
two neighbours differ the value between them is transposed, once for all readers that want it so.

The graph that is cut has a vertex for each node that may run either way. An edge from a row-major side to a
channels-last one is cut at its capacity, in bytes, among which a launch counts as well (`LAUNCH_NBYTES`):

    row-major --gain--> channels last      the node runs row-major and loses its gain
    node --bytes--> gate --inf--> readers   the value is transposed if any reader runs channels last and its maker not
    readers --inf--> gate --bytes--> node   the value is transposed back if any reader runs row-major and its maker not
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from gpuexec.ir.command import Command, Launch, Slot
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import FormatUse
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES

_COPIES = "copy.cu"
_LEAST_RANK, _MOST_RANK = 3, 5
_FREE = 1 << 62  # capacity of an edge that is never cut
_ROW_MAJOR, _CHANNELS_LAST = 0, 1  # vertices


def is_image(spec: TensorSpec) -> bool:
    """Return whether channels that lie last make a difference: there are some, and one to three axes behind them."""
    if not _LEAST_RANK <= spec.rank <= _MOST_RANK or not spec.size:
        return False
    channels = spec.shape[1]
    return channels > 1 and spec.size > spec.shape[0] * channels


def assign_formats(
    graph: Graph, positions: Iterable[int], specs: Mapping[Value, TensorSpec], target: Target
) -> frozenset[int]:
    """Return the positions of the nodes that run channels last.

    Args:
        graph: The graph.
        positions: Of the nodes that are lowered.
        specs: Specs of all values, at the upper end of the size class.
        target: What they are lowered for.
    """
    if not target.has_kernels or target.has_textures:
        return frozenset()
    nodes = {position: graph.nodes[position] for position in positions}
    gains = {position: _count_gain(node, specs, target) for position, node in nodes.items()}
    if not any(gains.values()):
        return frozenset()
    cut = _Cut()
    vertices = {
        position: cut.add_vertex() for position, node in nodes.items() if find_use(node, specs) is FormatUse.FOLLOWS
    }
    makers = {
        value: vertices.get(position, _ROW_MAJOR) for position, node in nodes.items() for value in node.outputs if value
    }
    readers: dict[Value, list[int]] = {value: [_ROW_MAJOR] for value in graph.outputs}
    for position, node in nodes.items():
        if gains[position]:
            cut.add_edge(vertices[position], _CHANNELS_LAST, gains[position])
        if find_use(node, specs) is not FormatUse.ANY:
            for value in list_images(node, specs, graph.constants):
                readers.setdefault(value, []).append(vertices.get(position, _ROW_MAJOR))
    for value, vertex_list in readers.items():
        if is_image(specs[value]):
            nbytes = 2 * specs[value].nbytes + LAUNCH_NBYTES
            _add_transposes(cut, makers.get(value, _ROW_MAJOR), vertex_list, nbytes)
    row_major = cut.find_source_side()
    return frozenset([position for position, vertex in vertices.items() if vertex not in row_major])


def find_use(node: Node, specs: Mapping[Value, TensorSpec]) -> FormatUse:
    """Return what a node makes of images whose channels lie last."""
    inputs, outputs = ([None if v is None else specs[v] for v in row] for row in (node.inputs, node.outputs))
    return node.operator.find_format_use(inputs, outputs)


def list_images(node: Node, specs: Mapping[Value, TensorSpec], constants: Mapping[Value, object]) -> list[Value]:
    """Return the inputs of a node that are images which it wants in a format.

    They are neither weights nor constants, which lie as they are given, nor what it reads as it lies.
    """
    given = [None if value is None else specs[value] for value in node.inputs]
    inputs = [
        value
        for position, value in enumerate(node.inputs)
        if position not in node.operator.not_images and not node.operator.reads_any_format(position, given)
    ]
    return [value for value in inputs if value is not None and value not in constants and is_image(specs[value])]


def count_transposes(commands: Iterable[Command]) -> tuple[int, int]:
    """Return how many commands do nothing but change the format of an image, and the bytes that they read and write."""
    count = nbytes = 0
    for command in commands:
        if not isinstance(command, Launch) or command.kernel.source != _COPIES:
            continue
        slots = [argument for argument in command.arguments if isinstance(argument, Slot)]
        if len(slots) == 2 and slots[0].shape == slots[1].shape and is_image(slots[0].spec):
            orders = {slot.order == () for slot in slots if slot.order is not None}
            if len(orders) == 2:
                count, nbytes = count + 1, nbytes + 2 * slots[0].spec.nbytes
    return count, nbytes


def _count_gain(node: Node, specs: Mapping[Value, TensorSpec], target: Target) -> int:
    if find_use(node, specs) is not FormatUse.FOLLOWS:
        return 0
    inputs, outputs = (
        [None if value is None else specs[value] for value in row] for row in (node.inputs, node.outputs)
    )
    return node.operator.count_format_gain(inputs, outputs, target)


def _add_transposes(cut: _Cut, maker: int, readers: Sequence[int], nbytes: int) -> None:
    """Add the edges of a value, each transpose of which costs as much as to move so many bytes."""
    others = [reader for reader in dict.fromkeys(readers) if reader != maker]
    if not others:
        return
    there, back = cut.add_vertex(), cut.add_vertex()
    cut.add_edge(maker, there, nbytes)
    cut.add_edge(back, maker, nbytes)
    for reader in others:
        cut.add_edge(there, reader, _FREE)
        cut.add_edge(reader, back, _FREE)


class _Cut:
    """A minimum cut between the row-major and the channels-last vertex, by shortest augmenting paths."""

    def __init__(self) -> None:
        # Of each vertex the capacities that are left, by the vertex they lead to.
        self._left: list[dict[int, int]] = [{}, {}]

    def add_vertex(self) -> int:
        """Add a vertex and return its number."""
        self._left.append({})
        return len(self._left) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Add capacity from one vertex to another."""
        self._left[start][end] = self._left[start].get(end, 0) + capacity
        self._left[end].setdefault(start, 0)

    def find_source_side(self) -> set[int]:
        """Return the vertices on the row-major side of the cut: the fewest that a minimum cut has there."""
        while True:
            before = self._search()
            if _CHANNELS_LAST not in before:
                return set(before)
            path = [_CHANNELS_LAST]
            while path[-1] != _ROW_MAJOR:
                path.append(before[path[-1]])
            steps = list(zip(path[1:], path, strict=False))
            flow = min(self._left[start][end] for start, end in steps)
            for start, end in steps:
                self._left[start][end] -= flow
                self._left[end][start] += flow

    def _search(self) -> dict[int, int]:
        """Return for each vertex that can be reached the one before it, up to the channels-last vertex."""
        before = {_ROW_MAJOR: _ROW_MAJOR}
        waiting = deque((_ROW_MAJOR,))
        while waiting and _CHANNELS_LAST not in before:
            start = waiting.popleft()
            for end, capacity in self._left[start].items():
                if capacity and end not in before:
                    before[end] = start
                    waiting.append(end)
        return before
