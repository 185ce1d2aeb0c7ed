"""Windows of Concats: which values are made where a Concat wants them, in rows with gaps between them.

A window that is dense is placed when the Concat is lowered (`Emitter.place`). Others have a pitch, as those along the
channels of images that lie channels last do: what makes the value must write it so, and its readers read it so. Some
kernels do at no cost, and others need a copy; so the graph is lowered with windows and without, and each Concat keeps
its windows where its neighbours together take less time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from gpuexec.ir.command import Command
from gpuexec.ir.geometry import normalize_axis
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import Region
from gpuexec.ops.elementwise.region_steps import read_steps
from gpuexec.ops.tensor.copy import Concat
from gpuexec.ops.tensor.slice import Split
from gpuexec.planner.memory_format import is_image
from gpuexec.planner.providers import predict_commands_us
from gpuexec.planner.unpacked_plan import UnpackedPlan, find_root, slots_of

_VECTOR_NBYTES = 16
_Specs = Mapping[Value, TensorSpec]


@dataclass(frozen=True, slots=True)
class ConcatWindow:
    """The part of a Concat's result that a value is made in.

    Attributes:
        whole: The result.
        axis: That of the Concat.
        before: The values in front of it.
        hidden: Where a Split of it makes one of the inputs of the Concat, its parts in front of that.
        inner: Elements of a place of the axis in a row, at the upper end of the size class.
    """

    whole: Value
    axis: int
    before: tuple[Value, ...]
    inner: int
    hidden: tuple[Value, ...] = ()

    def find_start(self, specs: _Specs) -> int:
        """Return where it begins along the axis."""
        start = sum(specs[value].shape[self.axis] for value in self.before)
        return start - sum(specs[value].shape[self.axis] for value in self.hidden)


ConcatWindows = Mapping[Value, ConcatWindow]


def list_windows(
    graph: Graph,
    positions: Sequence[int],
    specs: _Specs,
    known: Collection[Value],
    target: Target,
    channels_last: Collection[int],
) -> ConcatWindows:
    """Return the values that could be made in windows with a pitch.

    Args:
        graph: The graph.
        positions: Of the nodes that are lowered.
        specs: Specs of all values, at the upper end of the size class.
        known: Values that the host knows.
        target: What they are lowered for.
        channels_last: Positions of the nodes that run channels last.
    """
    if not target.has_kernels or target.has_textures:
        return {}
    listing = _Listing(graph, positions, specs, known, target, channels_last)
    for position in positions:
        listing.visit(position)
    return listing.found


class _Listing:
    """Windows as they are found, Concat by Concat."""

    def __init__(
        self,
        graph: Graph,
        positions: Sequence[int],
        specs: _Specs,
        known: Collection[Value],
        target: Target,
        channels_last: Collection[int],
    ) -> None:
        self.found: dict[Value, ConcatWindow] = {}
        self._graph, self._specs, self._known, self._target = graph, specs, known, target
        self._channels_last, self._readers = channels_last, graph.consumers()
        self._makers = {value: n for n in positions for value in graph.nodes[n].outputs if value is not None}
        self._places = {id(graph.nodes[n]): n for n in positions}

    def visit(self, position: int) -> None:
        """Find the windows of a Concat."""
        node = self._graph.nodes[position]
        (axis, values), whole = _read_concat(node), node.outputs[0]
        if not values or whole is None or whole in self._known or not self._specs[whole].size:
            return
        axis = normalize_axis(axis, self._specs[whole].rank)
        is_last = position in self._channels_last and is_image(self._specs[whole])
        rows, inner = _divide(self._specs[whole], axis, is_last=is_last)
        if rows == 1:
            return
        for place, value in enumerate(values):
            if values.count(value) == 1 and self._is_able(value, is_last=is_last):
                self.found[value] = ConcatWindow(whole, axis, tuple(values[:place]), inner)
        for place, value in enumerate(values):
            if values.count(value) == 1 and value not in self.found:
                window = ConcatWindow(whole, axis, tuple(values[:place]), inner)
                if self._visit_part(position, value, window, values):
                    break  # a second one could lie where the first does

    def _is_able(self, value: Value, *, is_last: bool) -> bool:
        """Return whether a value may be made in a window."""
        is_taken = value in self.found or value in self._known or value in self._graph.outputs
        maker = self._makers.get(value, -1)
        if is_taken or maker < 0 or (maker in self._channels_last) != is_last or not self._specs[value].size:
            return False
        return _writes_windows(self._graph.nodes[maker], self._specs, self._target)

    def _visit_part(self, position: int, value: Value, window: ConcatWindow, values: Sequence[Value]) -> bool:
        """Find the window of what a Split divides, a part of which the Concat takes; return whether it has one.

        The other parts lie where other inputs come to lie, which are made behind the last reader of those.
        """
        split = self._graph.nodes[self._makers[value]] if value in self._makers else None
        if split is None or not isinstance(split.operator, Split):
            return False
        source, parts = split.inputs[0], [part for part in split.outputs if part is not None]
        if source is None or len(parts) < len(split.outputs) or self._readers.get(source) != [split]:
            return False
        is_last = position in self._channels_last and is_image(self._specs[window.whole])
        axis = normalize_axis(split.operator.axis, self._specs[source].rank)
        if axis != window.axis or not self._is_able(source, is_last=is_last):
            return False
        window = replace(window, hidden=tuple(parts[: parts.index(value)]))
        start, end = window.find_start(self._specs), self._specs[window.whole].shape[axis]
        if start < 0 or start + self._specs[source].shape[axis] > end:
            return False
        is_free = all(part is value or self._is_free(part, parts, start, position, values, axis) for part in parts)
        if is_free:
            self.found[source] = window
        return is_free

    def _is_free(
        self, part: Value, parts: Sequence[Value], start: int, position: int, values: Sequence[Value], axis: int
    ) -> bool:
        """Return whether inputs of a Concat that lie where a part does are made when nothing reads that any more."""
        first = start + sum(self._specs[each].shape[axis] for each in parts[: parts.index(part)])
        last, place = max(self._find_last_reader(part), self._makers[part]), 0
        for value in values:
            behind = place + self._specs[value].shape[axis]
            meets = place < first + self._specs[part].shape[axis] and first < behind
            made = self._find_first_writer(value) if value in self.found else position
            if meets and not (value is part and place == first) and last >= made:
                return False
            place = behind
        return True

    def _find_first_writer(self, value: Value) -> int:
        """Return the position of the first node that writes in the window of a value, which may have windows, too."""
        inner = [each for each, window in self.found.items() if window.whole is value]
        return min([self._makers[value], *map(self._find_first_writer, inner)])

    def _find_last_reader(self, value: Value) -> int:
        """Return the position of the last node that reads a value, also through views; a large one of an output."""
        if value in self._graph.outputs:
            return len(self._graph.nodes)
        last = -1
        for node in self._readers.get(value, []):
            last = max(last, self._places.get(id(node), -1))
            if node.operator.makes_views:
                last = max([last, *[self._find_last_reader(made) for made in node.outputs if made is not None]])
        return last


def choose_windows(
    graph: Graph, able: ConcatWindows, apart: UnpackedPlan, inside: UnpackedPlan, specs: _Specs, target: Target
) -> ConcatWindows:
    """Return the windows of the Concats that are worth it.

    Args:
        graph: The graph.
        able: All windows that there could be.
        apart: The graph lowered without windows.
        inside: The graph lowered with all of them.
        specs: Specs of all values.
        target: What it is lowered for.
    """
    concats: dict[Value, list[Value]] = {}
    for value in able:
        concats.setdefault(_find_outermost(value, able), []).append(value)
    costs = _Costs(graph, apart, target), _Costs(graph, inside, target)
    chosen: set[Value] = set()
    for whole, values in concats.items():
        neighbours = _list_neighbours(graph, {whole, *values})
        before, after = (each.add_up(neighbours) for each in costs)
        after += sum(_count_unaligned_us(able[value], value, specs, target) for value in values)
        if after < before:
            chosen.update(values)
    return {value: window for value, window in able.items() if value in chosen}


class _Costs:
    """Predicted times of the nodes of a graph that was lowered."""

    def __init__(self, graph: Graph, unpacked: UnpackedPlan, target: Target) -> None:
        self._graph, self._unpacked, self._target = graph, unpacked, target
        self._groups: dict[object, list[int]] = {}
        for number, group in enumerate(unpacked.groups):
            key = group.key[1] if group.key[0] == "node" else group.origin
            self._groups.setdefault(key, []).append(number)
        self._known: dict[int, float] = {}

    def add_up(self, positions: Collection[int]) -> float:
        """Return what nodes cost, in us, and transposes of what they make."""
        keys: set[object] = set(positions)
        keys |= {value.name for position in positions for value in self._graph.nodes[position].outputs if value}
        return sum(self._predict(number) for key in keys for number in self._groups.get(key, ()))

    def _predict(self, number: int) -> float:
        if number not in self._known:
            commands = self._unpacked.groups[number].commands
            is_mixed = any(map(self._is_mixed, commands))
            self._known[number] = float("inf") if is_mixed else predict_commands_us(commands, self._target)
        return self._known[number]

    def _is_mixed(self, command: Command) -> bool:
        """Return whether a command writes a window of a buffer that it reads through other strides."""
        slots = [(find_root(slot.buffer, self._unpacked.placed)[0], slot, own) for slot, own in slots_of(command)]
        written = {root: slot.strides for root, slot, is_written in slots if is_written and slot.order is None}
        return any(written.get(root, slot.strides) != slot.strides for root, slot, _ in slots)


def _writes_windows(node: Node, specs: _Specs, target: Target) -> bool:
    inputs, outputs = ([None if v is None else specs[v] for v in row] for row in (node.inputs, node.outputs))
    return node.operator.lower is not None and node.operator.writes_windows(inputs, outputs, target)


def _read_concat(node: Node) -> tuple[int, list[Value]]:
    """Return the axis and the inputs of a node that does nothing but concatenate; no inputs: it is another one."""
    operator, given = node.operator, list(node.inputs)
    if isinstance(operator, Region) and len(operator.steps) == 1:
        step = read_steps(operator.steps)[0]
        given = [node.inputs[each] if isinstance(each, int) and each >= 0 else None for each in step.inputs]
        operator = step.operator
    values = [value for value in given if value is not None]
    if not isinstance(operator, Concat) or len(values) < max(2, len(given)):
        return 0, []
    return operator.axis, values


def _divide(spec: TensorSpec, axis: int, *, is_last: bool) -> tuple[int, int]:
    """Return how many rows a window along an axis has, and the elements of one of its places in a row."""
    order = [0, *range(2, spec.rank), 1] if is_last else list(range(spec.rank))
    place = order.index(axis)
    return prod([spec.shape[each] for each in order[:place]]), prod([spec.shape[each] for each in order[place + 1 :]])


def _find_outermost(value: Value, able: ConcatWindows) -> Value:
    while value in able:
        value = able[value].whole
    return value


def _list_neighbours(graph: Graph, values: set[Value]) -> set[int]:
    """Return the positions of nodes that make or read values, also through views."""
    seen, found = set(values), set()
    for position, node in enumerate(graph.nodes):
        reads = not seen.isdisjoint(node.inputs)
        if reads and node.operator.makes_views:
            seen.update(value for value in node.outputs if value is not None)
        if reads or not values.isdisjoint(node.outputs):
            found.add(position)
    return found


def _count_unaligned_us(window: ConcatWindow, value: Value, specs: _Specs, target: Target) -> float:
    """Return what it costs that rows of a window can't be stored by vectors: about as if its bytes moved once more."""
    whole, part = specs[window.whole], specs[value]
    places = (window.find_start(specs), whole.shape[window.axis])
    if all(place * window.inner * part.dtype.itemsize % _VECTOR_NBYTES == 0 for place in places):
        return 0.0
    return 1e6 * part.nbytes / find_gpu(target.architecture).dram_bytes_per_second
