"""Emitter of the planner, which operators' ``lower`` calls and which records commands and aliases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from gpuexec.errors import KernelError, PlanError
from gpuexec.ir.command import (
    BUFFER_ALIGNMENT,
    Argument,
    Command,
    Copy,
    Fill,
    HostCall,
    Kernel,
    Launch,
    LibraryCall,
    Slot,
)
from gpuexec.ir.geometry import channels_last_strides, is_contiguous, max_offset
from gpuexec.ir.graphs import Node
from gpuexec.ir.library_problem import Problem
from gpuexec.ir.operator import Join, describe
from gpuexec.ir.plan import Role
from gpuexec.ir.provider import OURS, BitsClass, Offer, Posed, ProblemSlots
from gpuexec.ir.spec import HostValue, SymbolicValue, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import PackedForm, WeightForm
from gpuexec.ops.lib.pixel import TEXEL_BYTES, draw, draw_copy, draw_fill
from gpuexec.ops.tensor.copy import copy_commands
from gpuexec.ops.tensor.shape import store_commands, to_literal
from gpuexec.planner.memory_format import is_image
from gpuexec.planner.providers import (
    NO_PROVIDERS,
    OwnKernels,
    Providers,
    emit_library,
    predict_commands_us,
    weigh,
)
from gpuexec.planner.unpacked_plan import Array, Effects, UnpackedBuffer, UnpackedPlan, dense
from gpuexec.system.mapped import read_content

_LARGEST_INT = 2**31 - 1


class CommandEmitter:
    """Emitter of commands over the buffers of an unpacked plan.

    Args:
        choices: Decisions made at the upper end of the size class, to be made again; None: decide now.
        fixes_division: Whether work is divided at all sizes of the class as at its upper end.
        providers: What products and convolutions may be emitted by.
        has_one_size: Whether the plan is for one size alone.
    """

    def __init__(
        self,
        target: Target,
        unpacked: UnpackedPlan,
        choices: Sequence[int] | None = None,
        *,
        fixes_division: bool = False,
        providers: Providers = NO_PROVIDERS,
        has_one_size: bool = False,
    ) -> None:
        self.target, self.has_one_size = target, has_one_size
        self.effects = Effects(len(unpacked.buffers))
        self._unpacked = unpacked
        self._given = None if choices is None else iter(choices)
        self._fixes_division = fixes_division
        self._providers = providers
        self._launched = False

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Add a launch, or note on a target without kernels that there was one."""
        self._launched = True
        if not self.target.has_kernels:
            return
        command = Launch(kernel, grid, block, tuple(arguments), tuple(writes), shared_bytes, cooperative)
        for each in draw(command) if self.target.has_textures else (command,):
            if any(slot.spec.size for slot in each.writes_to()):
                _check_limits(each, self.target)
                self.effects.commands.append(each)

    def leaves_to_host(self) -> bool:
        """Return whether there are no kernels, and note that the host is to compute the operator then."""
        if self.target.has_kernels:
            return False
        self._launched = True
        return True

    def alias(self, output: Slot, view: Slot) -> None:
        """Make an output a window on other bytes."""
        index = next(i for i, slot in enumerate(self.effects.outputs) if slot is output)
        self.effects.outputs[index] = Slot(
            view.buffer, view.offset_bytes, TensorSpec(view.shape, view.dtype), view.strides
        )

    def in_place(self, output: Slot, source: Slot) -> None:
        """Note that an output may take an input's bytes; other readers are known later.

        Not on a target with textures: a blit reads no texel that it writes.
        """
        if self.target.has_textures:
            return
        is_alike = output.order is not None and output.order == source.order
        if is_alike and output.spec.nbytes == source.spec.nbytes:
            self.effects.in_place.append((output.buffer, source.buffer))

    def place(self, source: Slot, window: Slot) -> bool:
        """Place the whole buffer of an input in a dense window of an output, where no constraint forbids it.

        One that was made in the window is there already.
        """
        is_there = _lies_at(source, window)
        able = is_there or self._can_place(source, window)
        chosen = bool(self._repeat(able))
        if chosen and not able:
            raise PlanError(f"{source} can't be placed at {window}, as it is at the upper end.")
        if chosen and not is_there:
            self.effects.placed[source.buffer] = (window.buffer, window.offset_bytes)
        return chosen

    def grow(self, output: Slot, source: Slot) -> bool:
        """Make an output the bytes of a memory and those behind them, where its buffer has its capacity."""
        is_able = self._unpacked.buffers[source.buffer].role is Role.STATE
        if is_able:
            self.alias(output, Slot(source.buffer, source.offset_bytes, output.spec, source.strides))
        return is_able

    def contiguous(self, slot: Slot) -> Slot:
        """Return the slot, or a dense copy; a copy at all sizes of a class where the upper end needs one."""
        if self._choose_dense(slot):
            return slot
        copy = dense(self._new_buffer(UnpackedBuffer(Role.TEMP, slot.spec.nbytes)), slot.spec)
        self.copy(copy, slot)
        return copy

    def copy(self, destination: Slot, source: Slot) -> None:
        """Copy bytes where both sides are dense, else elements; all sizes of a class copy as the upper end does."""
        is_dense = self._choose_dense(destination, source)
        if destination.spec.size == 0:
            return
        if self.target.has_textures:
            draw_copy(self, destination, source)
        elif is_dense:
            self.effects.commands.append(Copy(destination, source))
        elif self.target.has_kernels:
            copy_commands(self, destination, source)
        else:
            self.effects.commands.append(HostCall("Identity", (), (source,), (destination,)))

    def fill(self, destination: Slot, value: Any) -> None:
        """Set every element of a dense slot."""
        if destination.spec.size:
            pattern = np.asarray(value).astype(destination.dtype).tobytes()
            if self.target.has_textures:
                draw_fill(self, destination, pattern)
            else:
                self.effects.commands.append(Fill(destination, pattern))

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return scratch memory."""
        spec = TensorSpec(tuple(shape), np.dtype(dtype))
        return dense(self._new_buffer(UnpackedBuffer(Role.TEMP, spec.nbytes)), spec)

    def constant(self, array: Array) -> Slot:
        """Return a table made while planning."""
        spec = TensorSpec(array.shape, array.dtype)
        data = np.ascontiguousarray(read_content(array)).tobytes()
        return dense(self._new_buffer(UnpackedBuffer(Role.CONSTANT, spec.nbytes, data=data)), spec)

    def is_weight(self, slot: Slot) -> bool:
        """Return whether a slot lies in a weight, packed or not."""
        return self._find_buffer(slot).role is Role.CONSTANT

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a weight in another layout, dense; None where the slot is not a whole weight."""
        axes = self._find_weight_axes(slot, form)
        chosen = bool(self._repeat(axes is not None))
        if chosen and axes is None:
            raise PlanError(f"{slot} is not a whole weight, as it is at the upper end.")
        if not chosen or axes is None:
            return None
        source = slot.spec.with_shape(tuple([slot.shape[axis] for axis in axes]))
        data = PackedForm.of(form, source, tuple(np.argsort(axes).tolist()), self._unpacked.buffers[slot.buffer].form)
        buffer = UnpackedBuffer(Role.CONSTANT, data.spec.nbytes, packed=(slot.buffer, data))
        return dense(self._new_buffer(buffer), data.spec)

    def index_type(self, *slots: Slot) -> str:
        """Return the type of offsets; the same for all sizes of a class."""
        wide = any(max_offset(slot.shape, slot.strides) > _LARGEST_INT for slot in slots)
        return "long long" if self._repeat(wide) else "int"

    def counters(self, count: int) -> Slot:
        """Return numbers that are 0 when a run begins, and that kernels leave at 0."""
        spec = TensorSpec((count,), np.dtype(np.uint32))
        return dense(self._new_buffer(UnpackedBuffer(Role.TEMP, spec.nbytes, is_zeroed=True)), spec)

    def choose(self, now: int | Callable[[], int]) -> int:
        """Return ``now``, or what it returns, at the upper end of a size class, and the same at its other sizes."""
        chosen = self._repeat(now)
        self.effects.chosen.append(chosen)
        return chosen

    def divide(self, now: int) -> int:
        """Return ``now``; where divisions are fixed, that of the upper end of the size class."""
        return self.choose(now) if self._fixes_division else now

    def provide(self, pose: Callable[[], Posed], launch: Callable[[], None], *, keeps_order: bool = False) -> bool:
        """Emit a product or convolution by the cheapest of its providers; return whether that is a library."""
        names = (OURS, *self._providers.names)
        if len(names) == 1 or self.target.kind != "cuda":
            launch()
            return False
        posed, now = pose(), 0
        if self._given is None:
            offer = self._weigh(posed, launch, keeps_order=keeps_order)
            self.effects.offers.append(offer)
            now = names.index(offer.chosen)
        chosen = names[self.choose(now)]
        if chosen == OURS:
            launch()
            return False
        why = emit_library(chosen, posed, self.target, self)
        if why:
            raise PlanError(f"{chosen} was chosen at the upper end, and not for this size: {why}.")
        return True

    def join(self, launch: Callable[[], None], join: Join) -> None:
        """Emit commands, or those that are cheapest of all that do the same."""
        first = len(self.effects.commands)
        launch()
        apart = self.effects.commands[first:]
        can_join = self.target.has_kernels and not self.target.has_textures
        ways = [apart, *(map(list, join(apart)) if can_join else ())]
        chosen = self.choose(lambda: _find_cheapest(ways, self.target))
        if not apart:
            return  # all that they write is empty
        if chosen >= len(ways):
            raise PlanError("Launches can't be joined, as they are at the upper end.")
        self.effects.commands[first:] = ways[chosen]

    def call(self, library: str, problem: Problem, slots: ProblemSlots, workspace_nbytes: int) -> None:
        """Add a call of a library, with scratch memory of so many bytes."""
        workspace = self.temp((workspace_nbytes,), np.uint8) if workspace_nbytes else None
        arguments = (slots.a, slots.b, slots.c, slots.bias, slots.y, workspace)
        if slots.y.spec.size:
            self.effects.commands.append(LibraryCall(library, problem, arguments))

    def _weigh(self, posed: Posed, launch: Callable[[], None], *, keeps_order: bool) -> Offer:
        """Return the offer for a problem: our kernels are emitted for their cost, and dropped."""
        kept, self.effects = self.effects, self.effects.copy()
        try:
            launch()
            commands = self.effects.commands[len(kept.commands) :]
        finally:
            self.effects = kept
        limit = BitsClass.SIZE_CLASS if self._fixes_division else BitsClass.LIBRARY
        bits = BitsClass.SIZE_CLASS if self._fixes_division else BitsClass.EXTENTS
        if keeps_order:
            limit = bits = BitsClass.ORDERED
        return weigh(OwnKernels(launch, commands, bits), posed, self.target, self._providers, limit)

    def _repeat(self, now: int | Callable[[], int]) -> int:
        """Return what was decided at the upper end; that does not tell size classes apart."""
        chosen = None if self._given is None else next(self._given, None)
        if chosen is None:
            chosen = now() if callable(now) else now
        self.effects.choices.append(chosen)
        return chosen

    def _new_buffer(self, buffer: UnpackedBuffer) -> int:
        self.effects.buffers.append(buffer)
        return self.effects.first_buffer + len(self.effects.buffers) - 1

    def _choose_dense(self, *slots: Slot) -> bool:
        """Return whether slots are taken as dense: with extents of 1, slots may be that are not at the upper end."""
        able = all(slot.is_contiguous for slot in slots)
        chosen = bool(self._repeat(able))
        if chosen and not able:
            raise PlanError(f"{', '.join(map(str, slots))} are not dense, as they are at the upper end.")
        return chosen

    def _find_buffer(self, slot: Slot) -> UnpackedBuffer:
        own = slot.buffer - self.effects.first_buffer
        return self.effects.buffers[own] if own >= 0 else self._unpacked.buffers[slot.buffer]

    def _find_weight_axes(self, slot: Slot, form: WeightForm) -> tuple[int, ...] | None:
        """Return the axes of a slot in the order in which it lies dense, where it is a whole weight; else None."""
        is_packed = self.target.has_kernels or form.is_for_host
        if not is_packed or self.target.has_textures or slot.buffer >= self.effects.first_buffer:
            return None
        held = self._unpacked.buffers[slot.buffer]
        if (
            not (held.is_weight or held.form)
            or slot.offset_bytes
            or not slot.spec.size
            or held.nbytes != slot.spec.nbytes
        ):
            return None
        axes = tuple(range(slot.spec.rank))
        if not slot.is_contiguous:
            axes = tuple(sorted(axes, key=lambda axis: (slot.shape[axis] > 1, -slot.strides[axis])))
        shape, strides = (tuple([items[axis] for axis in axes]) for items in (slot.shape, slot.strides))
        return axes if is_contiguous(shape, strides) else None

    def _can_place(self, source: Slot, window: Slot) -> bool:
        buffer = source.buffer
        if buffer >= self.effects.first_buffer or buffer in self._unpacked.placed or buffer in self.effects.placed:
            return False
        held = self._unpacked.buffers[buffer]
        steps = zip(source.shape, source.strides, window.strides, strict=True)
        is_laid = window.order is not None and all(extent == 1 or own == other for extent, own, other in steps)
        is_alike = is_laid or not source.spec.size
        is_whole = source.offset_bytes == 0 and is_alike and held.nbytes == source.spec.nbytes
        is_free = held.role is Role.TEMP and held.content is None
        # Lowered as a buffer of its own, it has to start as one does.
        is_aligned = source.spec.size == 0 or window.offset_bytes % BUFFER_ALIGNMENT == 0
        if self.target.has_textures:  # a copy beside it must read no texel that it writes
            is_aligned = is_aligned and source.spec.nbytes % TEXEL_BYTES == 0
        return is_whole and is_free and is_aligned


class NodeEmitter(CommandEmitter):
    """The emitter of one node."""

    def lower(
        self,
        node: Node,
        inputs: tuple[Slot | None, ...],
        specs: Sequence[TensorSpec | None],
        *,
        is_channels_last: bool = False,
        windows: Sequence[Slot | None] = (),
    ) -> Effects:
        """Lower a node and return the effects.

        Args:
            node: The node.
            inputs: Where its inputs lie.
            specs: Of its outputs; None: it has no reader.
            is_channels_last: Whether outputs that are images lie channels last.
            windows: For each output where it is to lie, in a buffer that is there already; None: in one of its own.
        """
        given = windows or (None,) * len(specs)
        fresh = tuple([
            None if spec is None else place or self._make_output(spec, is_channels_last)
            for spec, place in zip(specs, given, strict=True)
        ])  # fmt: skip
        self.effects.outputs = list(fresh)
        if node.operator.lower is not None:
            node.operator.lower(self, inputs, fresh)
        if not self.target.has_kernels and (self._launched or node.operator.lower is None):
            self._call_host(node, inputs, fresh)
        return self.effects

    def _make_output(self, spec: TensorSpec, is_channels_last: bool) -> Slot:
        slot = self.temp(spec.shape, spec.dtype)
        if is_channels_last and is_image(spec):
            return Slot(slot.buffer, 0, slot.spec, channels_last_strides(spec.shape))
        return slot

    def _call_host(self, node: Node, inputs: tuple[Slot | None, ...], fresh: tuple[Slot | None, ...]) -> None:
        """Replace everything but aliases of inputs by one call of ``compute``."""
        effects = self.effects
        for index, slot in enumerate(effects.outputs):
            if slot is not None and slot.buffer >= effects.first_buffer:
                effects.outputs[index] = fresh[index]
        outputs = tuple([s if s is not None and s.buffer >= effects.first_buffer else None for s in effects.outputs])
        effects.commands.clear()
        effects.placed.clear()
        if any(slot is not None and slot.spec.size for slot in outputs):
            effects.commands.append(
                HostCall(*describe(node.operator), inputs, outputs, self._take_scratch(node, inputs, outputs))
            )

    def _take_scratch(
        self, node: Node, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]
    ) -> tuple[Slot, ...]:
        """Return what prepared calls of a node work in: as much at all sizes of a class as at its upper end."""

        @cache
        def list_sizes() -> Sequence[int]:
            given, made = ([None if slot is None else slot.spec for slot in slots] for slots in (inputs, outputs))
            return node.operator.count_scratch(given, made)

        def count_bytes(place: int) -> int:
            return list_sizes()[place]

        places = range(self.choose(lambda: len(list_sizes())))
        return tuple([self.temp((self.choose(partial(count_bytes, place)),), np.uint8) for place in places])


def emit_copy(
    target: Target, unpacked: UnpackedPlan, destination: Slot, source: Slot, choices: Sequence[int] | None = None
) -> Effects:
    """Return the effects of a copy between slots of equal shape and dtype; ``choices`` as of `CommandEmitter`."""
    emitter = CommandEmitter(target, unpacked, choices)
    emitter.copy(destination, source)
    return emitter.effects


def emit_store(
    target: Target, unpacked: UnpackedPlan, destination: Slot, content: HostValue, capacity: int
) -> list[Command]:
    """Return the commands that write a host value; as many for every content of up to ``capacity`` bytes."""
    if destination.spec.size == 0:
        return []
    if not target.has_kernels:
        literal = content if isinstance(content, SymbolicValue) else to_literal(content.array)
        return [HostCall("Constant", (("value", literal),), (), (destination,))]
    emitter = CommandEmitter(target, unpacked)
    array = content.symbols if isinstance(content, SymbolicValue) else content.array
    store_commands(emitter, destination, array, capacity)
    return emitter.effects.commands


def _find_cheapest(ways: Sequence[Sequence[Command]], target: Target) -> int:
    """Return the position of the commands that are predicted to take the least time, the first of equals."""
    if len(ways) == 1:
        return 0
    return min(range(len(ways)), key=lambda way: predict_commands_us(ways[way], target))


def _lies_at(source: Slot, window: Slot) -> bool:
    """Return whether two slots of one shape and type are the same bytes; strides of axes of extent 1 don't count."""
    steps = zip(source.shape, source.strides, window.strides, strict=True)
    is_start = (source.buffer, source.offset_bytes) == (window.buffer, window.offset_bytes)
    return is_start and all(extent == 1 or own == other for extent, own, other in steps)


def _check_limits(command: Launch, target: Target) -> None:
    threads = command.block[0] * command.block[1] * command.block[2]
    if not 1 <= threads <= target.max_threads_per_block:
        raise KernelError(
            f"{command.kernel}: block {threads} is outside 1 to {target.max_threads_per_block} ({target.name})."
        )
    if any(not 1 <= n <= limit for n, limit in zip(command.grid, target.max_grid, strict=True)):
        raise KernelError(f"{command.kernel}: grid {command.grid} is outside 1 to {target.max_grid} ({target.name}).")
    if command.shared_bytes > target.shared_bytes_per_block:
        raise KernelError(
            f"{command.kernel}: {command.shared_bytes} bytes of shared memory exceed {target.shared_bytes_per_block} "
            f"({target.name})."
        )
