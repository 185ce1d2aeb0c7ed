"""Lowering of a graph with specs to an unpacked plan of commands over unplaced buffers.

A value known to the host is not computed by its node: it gets a buffer with content, which a store command writes if a
command reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gpuexec.errors import GpuexecError, KernelError, OutOfMemoryError, PlanError, UnsupportedError, locate
from gpuexec.ir.apply import host_failure
from gpuexec.ir.command import BUFFER_ALIGNMENT, Slot
from gpuexec.ir.content_key import content_key, is_same_spec
from gpuexec.ir.geometry import channels_last_strides, contiguous_strides, round_up
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import FormatUse
from gpuexec.ir.plan import Role
from gpuexec.ir.provider import Offer
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import MemoTable
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.layout import window
from gpuexec.planner.analyse import Analysis
from gpuexec.planner.caches import Caches
from gpuexec.planner.classes import has_fixed_inputs
from gpuexec.planner.concat_windows import ConcatWindows, choose_windows, list_windows
from gpuexec.planner.emitter import NodeEmitter, emit_copy
from gpuexec.planner.host_fallback import lacks_kernel
from gpuexec.planner.join_appends import join_appends
from gpuexec.planner.memory_format import assign_formats, find_use, is_image, list_images
from gpuexec.planner.own_rounding import leave_out_roundings
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.unpacked_plan import Effects, UnpackedBuffer, UnpackedPlan, dense, move_effects


@dataclass(frozen=True, slots=True)
class CachedLowering:
    """Node as it was lowered last: its slots, the outputs wanted, and the effects."""

    inputs: tuple[Slot | None, ...]
    specs: list[TensorSpec | None]
    windows: tuple[Slot | None, ...]
    effects: Effects


@dataclass(frozen=True, slots=True)
class Lowered:
    """Unpacked plan with the slots of the graph inputs that have readers, and of the graph outputs.

    ``grown`` are the positions of outputs that memories become where they lie.
    """

    unpacked: UnpackedPlan
    inputs: dict[str, Slot]
    outputs: list[Slot]
    grown: frozenset[int] = frozenset()


class Lowering:
    """Repeated lowering of one graph for one target; nodes whose slots did not change keep their commands.

    The first call, for the upper end of a size class, decides what the class has in common: index widths, and which
    inputs are placed in an output. Later calls repeat those decisions.

    Args:
        caches: Inputs that are memories with room for more rows.
        fixes_division: As of `gpuexec.planner.emitter.CommandEmitter`.
        providers: As of that.

    Raises:
        UnsupportedError: Operators without a lowering for this target; lists all of them.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        caches: Caches | None = None,
        *,
        fixes_division: bool = False,
        providers: Providers = NO_PROVIDERS,
    ) -> None:
        self._graph, self._target, self._caches = graph, target, caches or {}
        self._fixes_division, self._providers = fixes_division, providers
        # The providers that nodes could choose from at the upper end, by the node's name.
        self.offers: list[tuple[str, Offer]] = []
        self._cached: list[CachedLowering | None] = [None] * len(graph.nodes)
        self._given: dict[Value, tuple[UnpackedBuffer, Slot]] = {}
        self._needed: list[int] | None = None
        self._channels_last: frozenset[int] = frozenset()
        self._windows: ConcatWindows = {}
        self._transposes: dict[tuple[Value, bool], list[int]] = {}
        self._choices: list[list[int]] = []
        self._chosen: list[tuple[int, ...]] = []

    @property
    def chosen(self) -> tuple[tuple[int, ...], ...]:
        """What lowerings decided by extents at the upper end, node by node; empty where no kernel depends on any."""
        return tuple(self._chosen) if any(self._chosen) and self._target.has_kernels else ()

    def run(self, analysis: Analysis, *, is_symbolic: bool = False) -> Lowered:
        """Lower every node that is needed and has outputs the host does not know.

        Args:
            analysis: Of the sizes to lower for.
            is_symbolic: Whether extents are symbolic: the last lowering is not compared with, nor this one kept.

        Raises:
            PlanError: A decision of the upper end can't be repeated at this size.
            GpuexecError: The operator's error, with the node's name.
        """
        is_first = self._needed is None
        if self._needed is None:
            if not self._providers.names:  # libraries take operands as they are
                self._graph = leave_out_roundings(self._graph, analysis.specs, self._target)
            self._graph = join_appends(self._graph, analysis, self._caches, self._target)
            self._cached = [None] * len(self._graph.nodes)
            self._needed = _find_needed(self._graph, analysis)
            _refuse_unsupported([self._graph.nodes[i] for i in self._needed], analysis, self._target)
            _check_sizes([self._graph.nodes[i] for i in self._needed], analysis, self._target)
            self._channels_last = assign_formats(self._graph, self._needed, analysis.specs, self._target)
            self._windows = self._assign_windows(analysis, self._needed)
        given, cached = (self._given, self._cached) if not is_symbolic else ({}, [None] * len(self._cached))
        walk = self._start_walk(analysis, self._windows, self._transposes, given)
        for number, position in enumerate(self._needed):
            node = self._graph.nodes[position]
            analysis.reader = node.name
            choices = None if is_first else self._choices[number]
            effects = walk.lower(position, node, cached, choices)
            if is_first:
                self._choices.append(effects.choices)
                self._chosen.append(tuple(effects.chosen))
                self.offers += [(node.name, offer) for offer in effects.offers]
        return walk.finish()

    def _start_walk(
        self,
        analysis: Analysis,
        windows: ConcatWindows,
        transposes: dict[tuple[Value, bool], list[int]],
        given: dict[Value, tuple[UnpackedBuffer, Slot]],
    ) -> _Walk:
        return _Walk(
            self._graph, self._target, analysis, given, self._caches, self._fixes_division, self._channels_last,
            transposes, self._providers, windows,
        )  # fmt: skip

    def _assign_windows(self, analysis: Analysis, needed: Sequence[int]) -> ConcatWindows:
        """Return the windows that values are made in: those of what could be, by what nodes cost with and without."""
        able = list_windows(self._graph, needed, analysis.specs, analysis.known, self._target, self._channels_last)
        if not able:
            return able
        plans = []
        seen: MemoTable[Hashable, tuple[list[int], Effects]] = MemoTable()
        for windows in ({}, able):
            walk = self._start_walk(analysis, windows, {}, {})
            walk.seen = seen
            cached: list[CachedLowering | None] = [None] * len(self._graph.nodes)
            for position in needed:
                analysis.reader = self._graph.nodes[position].name
                walk.lower(position, self._graph.nodes[position], cached, None)
            plans.append(walk.unpacked)
        return choose_windows(self._graph, able, plans[0], plans[1], analysis.specs, self._target)


class _Walk:
    """One lowering of the graph.

    Args:
        given: Buffer and slot, when last lowered, of values that no node makes; used again where they are the same.
        channels_last: Positions of the nodes that run channels last.
        transposes: Choices of the copies of values in their other format, made at the upper end.
        providers: What products and convolutions may be emitted by.
        windows: Of values that are made in the result of a Concat.
    """

    def __init__(
        self,
        graph: Graph,
        target: Target,
        analysis: Analysis,
        given: dict[Value, tuple[UnpackedBuffer, Slot]],
        caches: Caches,
        fixes_division: bool,
        channels_last: frozenset[int],
        transposes: dict[tuple[Value, bool], list[int]],
        providers: Providers,
        windows: ConcatWindows,
    ) -> None:
        self._graph, self._target, self._analysis, self._given = graph, target, analysis, given
        self._caches, self._fixes_division = caches, fixes_division
        self._channels_last, self._transposes, self._providers = channels_last, transposes, providers
        self._has_one_size = has_fixed_inputs(graph)
        self._transposed: dict[tuple[Value, bool], Slot] = {}
        self._laid_last: set[Value] = set()  # images that their nodes made so
        self._windows, self._joined = windows, {each.whole for each in windows.values()}
        self._places: dict[Value, Slot] = {}  # of values in windows, and of what these are windows of
        self.unpacked = UnpackedPlan()
        self._slots: dict[Value, Slot] = {}
        # Layers repeat: equal operators on slots alike are lowered once in a walk.
        self.seen: MemoTable[Hashable, tuple[list[int], Effects]] = MemoTable()

    def lower(
        self, position: int, node: Node, cached: list[CachedLowering | None], choices: Sequence[int] | None
    ) -> Effects:
        """Add a node's effects to the unpacked plan."""
        specs = self._analysis.specs
        is_last = position in self._channels_last
        inputs = tuple([None if value is None else self._slot(value) for value in node.inputs])
        if self._channels_last and find_use(node, specs) is not FormatUse.ANY:
            inputs = self._convert_formats(node, inputs, is_last)
        wanted = [None if value is None else specs[value] for value in node.outputs]
        windows = self._find_windows(node, is_last) if self._windows else ()
        last = cached[position]
        if (
            last is None
            or last.effects.first_buffer != len(self.unpacked.buffers)
            or last.windows != windows
            or not _is_same(last, inputs, wanted)
        ):
            last = cached[position] = CachedLowering(
                inputs, wanted, windows, self._find_effects(node, inputs, wanted, choices, is_last, windows)
            )
        self.unpacked.apply(last.effects, ("node", position), node.name)
        for value, slot, spec in zip(node.outputs, last.effects.outputs, wanted, strict=False):
            if value is not None and slot is not None and spec is not None:
                # The slot keeps content that a shape demanded, for the lowering of its readers.
                content = spec.value is not None and slot.spec is not spec
                self._slots[value] = Slot(slot.buffer, slot.offset_bytes, spec, slot.strides) if content else slot
                if is_last and is_image(spec) and _is_channels_last(slot):
                    self._laid_last.add(value)
        return last.effects

    def _find_effects(
        self,
        node: Node,
        inputs: tuple[Slot | None, ...],
        wanted: list[TensorSpec | None],
        choices: Sequence[int] | None,
        is_channels_last: bool,
        windows: tuple[Slot | None, ...],
    ) -> Effects:
        """Return a node's effects: those of an equal node on its own buffers, or of its operator's lowering."""
        numbers, described = self._describe(node, inputs, wanted, choices, windows)
        key = (described, is_channels_last)
        seen = self.seen.get(key)
        if seen is not None:
            like, effects = seen
            return move_effects(effects, dict(zip(like, numbers, strict=True)), len(self.unpacked.buffers))
        emitter = NodeEmitter(
            self._target,
            self.unpacked,
            choices,
            fixes_division=self._fixes_division,
            providers=self._providers,
            has_one_size=self._has_one_size,
        )
        try:
            effects = emitter.lower(node, inputs, wanted, is_channels_last=is_channels_last, windows=windows)
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        except (struct.error, OverflowError) as error:
            given = ", ".join("-" if slot is None else str(slot.spec) for slot in inputs)
            raise KernelError(
                f"{node} ({given}): an extent, stride or attribute is too large for the kernel, which counts in 32 "
                f"bits: {error}.",
                node=node.name,
            ) from error
        except Exception as error:
            raise locate(host_failure("lowering", error), node, node.name) from error
        self.seen.keep(key, (numbers, effects))
        return effects

    def _describe(
        self,
        node: Node,
        inputs: tuple[Slot | None, ...],
        wanted: list[TensorSpec | None],
        choices: Sequence[int] | None,
        windows: tuple[Slot | None, ...],
    ) -> tuple[list[int], Hashable]:
        """Return the buffers of the inputs, each once, and all that lowering may depend on but their numbers.

        Those that outputs are windows of are among them.
        """
        numbers: list[int] = []
        rows: list[Hashable] = []
        for slot in (*inputs, *windows):
            if slot is None:
                rows.append(None)
                continue
            if slot.buffer not in numbers:
                numbers.append(slot.buffer)
                held = self.unpacked.buffers[slot.buffer]
                is_placed = slot.buffer in self.unpacked.placed
                rows.append((held.role, held.nbytes, held.content is None, is_placed, held.is_weight, held.form))
            rows.append((numbers.index(slot.buffer), slot.offset_bytes, slot.strides))
        content = content_key([None if slot is None else slot.spec for slot in inputs])
        decided = None if choices is None else tuple(choices)
        return numbers, (node.operator, tuple(rows), content, tuple(wanted), decided)

    def _find_windows(self, node: Node, is_channels_last: bool) -> tuple[Slot | None, ...]:
        """Return where outputs of a node are to lie that are windows, or have some; empty: none is either."""
        own = [value is not None and (value in self._windows or value in self._joined) for value in node.outputs]
        if not any(own):
            return ()
        return tuple([
            self._find_place(value, is_channels_last) if is_placed and value is not None else None
            for value, is_placed in zip(node.outputs, own, strict=True)
        ])  # fmt: skip

    def _find_place(self, value: Value, is_channels_last: bool) -> Slot:
        """Return where a value lies that is a window of another, or has some; its buffer is made at the first use."""
        place = self._places.get(value)
        if place is None:
            spec, inner = self._analysis.specs[value], self._windows.get(value)
            spec = TensorSpec(spec.shape, spec.dtype)
            if inner is not None:
                whole = self._find_place(inner.whole, is_channels_last)
                start = inner.find_start(self._analysis.specs)
                if not 0 <= start <= whole.shape[inner.axis] - spec.shape[inner.axis]:
                    raise PlanError(f"{value} reaches beyond the Concat that it is made in, as not at the upper end.")
                place = window(whole, spec.shape, whole.strides, start * whole.strides[inner.axis])
            else:
                buffer = self.unpacked.new_buffer(UnpackedBuffer(Role.TEMP, spec.nbytes))
                is_last = is_channels_last and is_image(spec)
                strides = channels_last_strides(spec.shape) if is_last else contiguous_strides(spec.shape)
                place = Slot(buffer, 0, spec, strides)
            self._places[value] = place
        return place

    def _convert_formats(
        self, node: Node, inputs: tuple[Slot | None, ...], is_channels_last: bool
    ) -> tuple[Slot | None, ...]:
        """Return the inputs of a node with its images as the node wants them."""
        images = list_images(node, self._analysis.specs, self._graph.constants)
        laid = list(inputs)
        for position, (value, slot) in enumerate(zip(node.inputs, inputs, strict=True)):
            if value is None or slot is None or value not in images:
                continue
            # Other views are what operators read as they lie.
            if not _is_channels_last(slot) if is_channels_last else value in self._laid_last:
                laid[position] = self._transpose(value, slot, is_channels_last)
        return tuple(laid)

    def _transpose(self, value: Value, slot: Slot, is_channels_last: bool) -> Slot:
        """Return a copy of a value in its other format, made once for all readers."""
        key = (value, is_channels_last)
        if key not in self._transposed:
            spec = TensorSpec(slot.shape, slot.dtype)
            made = dense(self.unpacked.new_buffer(UnpackedBuffer(Role.TEMP, spec.nbytes, value.name)), spec)
            if is_channels_last:
                made = Slot(made.buffer, 0, spec, channels_last_strides(spec.shape))
            effects = emit_copy(self._target, self.unpacked, made, slot, self._transposes.get(key))
            self._transposes.setdefault(key, effects.choices)
            self.unpacked.apply(effects, ("format", made.buffer), value.name)
            self._transposed[key] = made
        return self._transposed[key]

    def finish(self) -> Lowered:
        """Return the unpacked plan."""
        outputs = [self._slot(value) for value in self._graph.outputs]
        inputs = {value.name: self._slots[value] for value in self._graph.inputs if value in self._slots}
        grown = {cache.output for cache in self._caches.values()}
        positions = frozenset([n for n, value in enumerate(self._graph.outputs) if value in grown])
        self._gather_counters()
        return Lowered(self.unpacked, inputs, outputs, positions)

    def _gather_counters(self) -> None:
        """Place all counters in one buffer."""
        end = 0
        unpacked = self.unpacked
        whole = len(unpacked.buffers)
        for number, buffer in enumerate(unpacked.buffers):
            if buffer.is_zeroed and self._target.has_kernels:
                unpacked.placed[number] = (whole, end)
                end += round_up(buffer.nbytes, BUFFER_ALIGNMENT)
        if end:
            unpacked.new_buffer(UnpackedBuffer(Role.COUNTERS, end, "counters"))

    def _slot(self, value: Value) -> Slot:
        """Return a value's slot; an input, constant or host value gets a buffer at its first use."""
        slot = self._slots.get(value)
        if slot is None:
            spec = self._analysis.specs[value]
            last = self._given.get(value)
            if last is None or last[1].spec is not spec or last[1].buffer != len(self.unpacked.buffers):
                last = self._given[value] = self._give(value, spec)
            self.unpacked.buffers.append(last[0])
            slot = self._slots[value] = last[1]
        return slot

    def _give(self, value: Value, spec: TensorSpec) -> tuple[UnpackedBuffer, Slot]:
        """Return the next buffer, for a value that no node makes, and its slot."""
        if value in self._graph.constants:
            buffer = UnpackedBuffer(Role.CONSTANT, spec.nbytes, value.name)
        elif value in self._analysis.known:
            assert spec.value is not None
            buffer = UnpackedBuffer(Role.TEMP, spec.nbytes, value.name, content=spec.value)
        elif value in self._caches:
            cache, bare = self._caches[value], TensorSpec(spec.shape, spec.dtype)
            buffer = UnpackedBuffer(Role.STATE, cache.whole(bare).nbytes, value.name)
            return buffer, Slot(len(self.unpacked.buffers), 0, spec, cache.strides(bare))
        else:
            buffer = UnpackedBuffer(Role.INPUT, spec.nbytes, value.name)
        return buffer, dense(len(self.unpacked.buffers), spec)


def _is_channels_last(slot: Slot) -> bool:
    """Return whether the channels of an image lie next to each other, all of a position before those of the next."""
    others = [stride for axis, stride in enumerate(slot.strides) if axis != 1 and slot.shape[axis] > 1]
    return slot.strides[1] == 1 and min(others) >= slot.shape[1] and others == sorted(others, reverse=True)


def _find_needed(graph: Graph, analysis: Analysis) -> list[int]:
    """Return the positions of nodes with a needed output that is unknown."""
    wanted: set[Value | None] = {value for value in graph.outputs if value not in analysis.known}
    needed = []
    for position in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[position]
        if not wanted.isdisjoint(node.outputs):
            needed.append(position)
            wanted.update([value for value in node.inputs if value is not None and value not in analysis.known])
    return needed[::-1]


def _refuse_unsupported(nodes: Sequence[Node], analysis: Analysis, target: Target) -> None:
    lacking: dict[str, list[str]] = {}
    for node in nodes:
        if lacks_kernel(node, analysis.specs, target):
            lacking.setdefault(node.operator.name, []).append(node.name)
    if lacking:
        rows = "; ".join(
            f"{op} ({len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for op, names in lacking.items()
        )
        raise UnsupportedError(
            f"No {target.kind.upper()} lowering for {rows}. Run these on the CPU backend, or add `lower` to their "
            "operators."
        )


def _check_sizes(nodes: Iterable[Node], analysis: Analysis, target: Target) -> None:
    """Refuse tensors that the target could not hold, before anything is made for them; views count too."""
    for node in nodes:
        for value in node.outputs:
            if value is not None and analysis.specs[value].nbytes > target.memory_bytes:
                spec = analysis.specs[value]
                raise OutOfMemoryError(
                    f"{node}: output {value} {spec} takes {spec.nbytes} bytes; {target.name} has"
                    f" {target.memory_bytes} bytes of memory.",
                    node=node.name,
                    value=value.name,
                )


def _is_same(last: CachedLowering, inputs: tuple[Slot | None, ...], specs: list[TensorSpec | None]) -> bool:
    """Return whether a node would be lowered as before: slots, known content, and output specs."""
    if last.specs != specs:
        return False
    for a, b in zip(last.inputs, inputs, strict=True):
        if a is not b and (a is None or b is None or a != b or not is_same_spec(a.spec, b.spec)):
            return False
    return True
