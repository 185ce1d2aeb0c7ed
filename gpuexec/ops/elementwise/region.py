"""Regions: graphs of operators as one operator, on elements (Region), or on rows and their elements (RowRegion).

Their results are, to the bit, what the operators would give one after the other: `infer` is just that, `compute` is
that over blocks that stay in cache (`region_blocks`, with index maps `region_boxes`, of rows `row_blocks`), and on a
device with kernels one launch does it (`flat`, with index maps `flat_maps`, `tiled` where operands lie across,
`row_kernel` for rows), over textures one for each result (`region_blits`, `row_blits` for rows), or where that can't
be, a launch for each step. The passes `gpuexec.passes.fuse_regions` and `gpuexec.passes.fuse_rows` make regions; no
file has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import close_gaps, contiguous_strides, memory_axes
from gpuexec.ir.index_map import Assembled
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
)
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import distinct
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import FUSED_DOMAIN, StepEmitter
from gpuexec.ops.elementwise.flat import JoinedWalk, can_walk, launch_flat
from gpuexec.ops.elementwise.flat_maps import can_map, launch_mapped
from gpuexec.ops.elementwise.region_blits import can_draw, draw_mapped, draw_region, list_undrawn
from gpuexec.ops.elementwise.region_blocks import BlockProgram, prepare_blocks
from gpuexec.ops.elementwise.region_boxes import BoxProgram
from gpuexec.ops.elementwise.region_steps import (
    SpecKey,
    StepForms,
    find_forms,
    list_keys,
    list_moved,
    read_steps,
)
from gpuexec.ops.elementwise.row_blits import draw_rows, list_unordered
from gpuexec.ops.elementwise.row_blocks import RowProgram, prepare_row_blocks
from gpuexec.ops.elementwise.row_kernel import can_launch, can_walk_rows, launch_rows
from gpuexec.ops.elementwise.row_layout import RowLayout, find_row_layout
from gpuexec.ops.elementwise.tiled import choose_tiling, launch_tiled
from gpuexec.ops.tensor.copy import Concat
from gpuexec.ops.tensor.layout import window

_PROGRAMS_KEPT = 64
_Program = BlockProgram | BoxProgram | RowProgram


class Steps(Operator):
    """Base of the operators here: steps in an order in which each finds its inputs.

    Attributes:
        steps: Rows of (name, attributes, inputs), see `gpuexec.ops.elementwise.region_steps`.
        results: The positions of those that make the outputs.
        rounds: Whether floats that pass between steps are rounded to their type.
    """

    __slots__ = ("_programs",)
    steps: tuple  # type: ignore[type-arg]
    results: tuple[int, ...]
    rounds: bool
    _programs: dict[tuple[SpecKey | None, ...], _Program | None]
    tolerance = Tolerance.REDUCTION
    uses_all_cores = True
    derivative = Derivative.REFUSED
    has_blits = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Infer one operator after the other.

        Raises:
            InputError: As they do.
        """
        if not self.results or not all(0 <= step < len(self.steps) for step in self.results):
            raise InputError(f"{self.name} expects results among its {len(self.steps)} steps, got {self.results}.")
        specs = self._find_forms(inputs).specs
        return tuple([specs[step] for step in self.results])

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the type that the steps give, one after the other."""
        made: list[np.dtype[Any] | None] = []
        for step in read_steps(self.steps):
            made.append(step.operator.find_dtype(step.pick(dtypes, made, lambda array: array.dtype)))
        return made[self.results[0]]

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Add up what the steps do."""
        specs, total = self._find_forms(inputs).specs, 0
        for place, step in enumerate(read_steps(self.steps)):
            count = step.operator.count_flops(step.pick(inputs, specs, TensorSpec.of), (specs[place],))
            total += count or 0
        return total

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Compute block by block; where that can't be, one operator after the other."""
        program = self._find_program(list_keys(inputs))
        if program is not None and (not isinstance(program, RowProgram) or program.can_run(inputs)):
            return program.run(inputs, out)
        made: list[Array] = []
        for step in read_steps(self.steps):
            (result, *_) = step.operator.compute(*step.pick(inputs, made, np.asarray))
            assert result is not None
            made.append(np.asarray(result, order="C"))  # as a device stores it, for sums in the order of memory
        return tuple([made[step] for step in self.results])

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what steps work in that are computed in one block."""
        program = self._find_program(list_keys(inputs))
        return () if program is None else program.count_scratch()

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Call the functions of the steps one after the other, or compute the blocks."""
        program, wanted = self._find_program(list_keys(inputs)), [y for y in out if y is not None]
        if program is None or len(wanted) < len(out):
            return None
        if isinstance(program, BoxProgram):
            return program.prepare(inputs, wanted, scratch, constant)
        return program.prepare(inputs, wanted, scratch)

    def _find_forms(self, inputs: Sequence[Any]) -> StepForms:
        return find_forms(self.steps, list_keys(inputs), self.rounds)

    def _find_program(self, keys: tuple[SpecKey | None, ...]) -> _Program | None:
        """Return the steps prepared for inputs, kept with the operator; None where they can't be."""
        try:
            known = self._programs
        except AttributeError:  # new, or out of a pickle, which has fields alone
            known = {}
            object.__setattr__(self, "_programs", known)
        if keys not in known:
            if len(known) > _PROGRAMS_KEPT:
                known.clear()
            known[keys] = self._prepare(find_forms(self.steps, keys, self.rounds), keys)
        return known[keys]

    def _prepare(self, forms: StepForms, keys: tuple[SpecKey | None, ...]) -> _Program | None:
        """Return the steps prepared for inputs, or None."""
        raise NotImplementedError

    def refuse_blits(self, inputs: Sequence[TensorSpec | None]) -> str:
        """Return why a device whose memory is textures runs it step by step, for dense inputs; empty: it does not."""
        forms = self._find_forms(inputs)
        made = [forms.specs[step] for step in self.results]
        undrawn = list_undrawn([spec.dtype for spec in (*inputs, *made) if spec is not None])
        return f"its blits would read or write {', '.join(undrawn)}" if undrawn else self._refuse_map(forms, inputs)

    def _refuse_map(self, forms: StepForms, inputs: Sequence[TensorSpec | None]) -> str:
        """Return why what its blits need of inputs and rows does not follow from the places of results."""
        raise NotImplementedError

    def _list_kept(self, outputs: Slots) -> list[tuple[int, Slot]]:
        """Return the results that are wanted, each with its step."""
        return [(step, slot) for step, slot in zip(self.results, outputs, strict=True) if slot is not None]

    def _allow_in_place(
        self, emit: Emitter, inputs: Slots, kept: Sequence[tuple[int, Slot]], is_safe: Callable[[int, int], bool]
    ) -> None:
        """Let results take the bytes of inputs that no step reads once they are made.

        Args:
            emit: Emitter of the launch.
            inputs: The inputs.
            kept: The step of each result that is wanted, and its slot.
            is_safe: Says of a step and the position of an input whether the kernel allows it.
        """
        last: dict[int, int] = {}
        for place, step in enumerate(read_steps(self.steps)):
            last.update({given: place for given in step.inputs if isinstance(given, int) and given >= 0})
        for place, y in kept:
            for position, x in enumerate(inputs):
                if x is None or x.shape != y.shape or x.dtype != y.dtype or last.get(position, 0) > place:
                    continue
                others = [each for k, each in enumerate(inputs) if k != position and each is not None]
                is_alone = all(each.buffer != x.buffer for each in others)
                if x.strides == y.strides and is_alone and is_safe(place, position):
                    emit.in_place(y, x)

    def _lower_apart(self, emit: Emitter, forms: StepForms, inputs: Slots, outputs: Slots) -> None:
        """Launch each step by itself."""
        wanted = dict(zip(self.results, outputs, strict=True))
        made: list[Slot] = []

        def wrap(array: Array) -> Slot:
            slot = emit.constant(array)
            return Slot(slot.buffer, slot.offset_bytes, TensorSpec.of(array), slot.strides)  # axes are read

        for place, (step, spec) in enumerate(zip(read_steps(self.steps), forms.specs, strict=True)):
            y = wanted.get(place)
            y = emit.temp(spec.shape, spec.dtype) if y is None else y
            lower = step.operator.lower
            assert lower is not None
            lower(StepEmitter(emit, y), step.pick(inputs, made, wrap), (y,))
            made.append(y)


@operator("Region", FUSED_DOMAIN)
@dataclass(frozen=True, slots=True)
class Region(Steps):
    """Operators on elements, or with index maps. Inputs and outputs may be of any type that kernels compute with."""

    steps: tuple  # type: ignore[type-arg]
    results: tuple[int, ...]
    rounds: bool = True
    example = "float32[2] float32[2] steps=(('Add',(),(0,1)),('Relu',(),(-1,))) results=(1,)"
    format_use = FormatUse.FOLLOWS

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once; where that can't be, once for each step."""
        forms = self._find_forms(inputs)
        kept = self._list_kept(outputs)
        if not kept:
            return
        if self._place(emit, forms, inputs, kept[0][1]):
            return
        has_gaps = bool(emit.choose(any(y.order is None for _, y in kept)))
        laid = distinct(memory_axes(y.shape, y.strides) if has_gaps else y.strides for _, y in kept)
        wanted = [step for step, _ in kept]
        is_flat = self._is_flat(forms) and can_walk(kept[0][1].shape) and len(laid) == 1
        if is_flat and forms.pointwise is None:
            is_flat = can_map(self.steps, forms, wanted, inputs)
        if has_gaps and not emit.choose(is_flat and forms.pointwise is not None):
            self._lower_beside(emit, inputs, outputs)
            return
        slots = [slot for slot in (*inputs, *outputs) if slot is not None]
        if not emit.choose(is_flat and not (emit.target.has_textures and not can_draw(slots))):
            self._lower_apart(emit, forms, inputs, outputs)
            return
        if not is_flat:
            raise PlanError("A region has results of several shapes, which have one at the upper end.")
        moved = list_moved(self.steps, forms)
        self._allow_in_place(emit, inputs, kept, lambda step, position: position not in moved)
        if emit.leaves_to_host():
            return
        used, results = [x for x in inputs if x is not None], [y for _, y in kept]
        if emit.target.has_textures:
            draw = draw_mapped if forms.pointwise is None else draw_region
            draw(emit, self.steps, forms, wanted, inputs, results)
            return
        if forms.pointwise is None:
            launch_mapped(emit, self.steps, forms, wanted, inputs, results)
            return
        walk = JoinedWalk.of(emit, [*used, *results] if has_gaps else used, results[0])
        tiling = None if has_gaps else choose_tiling(emit, walk, used, results)
        if tiling is None:
            launch_flat(emit, walk, self.steps, forms, wanted, inputs, results)
        else:
            launch_tiled(emit, walk, tiling, self.steps, forms, wanted, inputs, results)

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether it is a Concat by itself, or flat."""
        is_concat = len(self.steps) == 1 and isinstance(read_steps(self.steps)[0].operator, Concat)
        forms = self._find_forms(inputs)
        return is_concat or (self._is_flat(forms) and forms.pointwise is not None)

    def _prepare(self, forms: StepForms, keys: tuple[SpecKey | None, ...]) -> BlockProgram | BoxProgram | None:
        if not self._is_flat(forms):
            return None
        if forms.pointwise is None:
            return BoxProgram.of(self.steps, forms, self.results, keys)
        return prepare_blocks(self.steps, forms, self.results, keys)

    def _refuse_map(self, forms: StepForms, inputs: Sequence[TensorSpec | None]) -> str:
        if not self._is_flat(forms):
            return "its results are of several shapes, or what a Gather picks of is computed in it"
        slots = [None if x is None else Slot(n, 0, x, contiguous_strides(x.shape)) for n, x in enumerate(inputs)]
        if forms.pointwise is None and not can_map(self.steps, forms, self.results, slots):
            return "no sums of coordinates say where its elements come from"
        return ""

    def _lower_beside(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch results to dense memory of their own, and copy them to windows."""
        made: list[Slot | None] = []
        for y in outputs:
            own = None if y is None else emit.temp(y.shape, y.dtype)
            made.append(own and y and Slot(own.buffer, own.offset_bytes, own.spec, close_gaps(y.shape, y.strides)))
        self.lower(emit, inputs, tuple(made))
        for y, own in zip(outputs, made, strict=True):
            if y is not None and own is not None:
                emit.copy(y, own)

    def _place(self, emit: Emitter, forms: StepForms, inputs: Slots, y: Slot) -> bool:
        """Let the parts of a Concat by itself be made where they are wanted; return whether that is done.

        Those that can't be are copied; where none can, one launch moves all.
        """
        kind = forms.kinds[0] if forms.kinds is not None and len(self.steps) == 1 else None
        if not isinstance(kind, Assembled) or not kind.is_whole:
            return False
        sources = self.steps[0][2]
        rows = []
        for part in kind.parts:
            x = inputs[sources[part.source]]
            assert x is not None
            offset = sum(start * stride for start, stride in zip(part.starts, y.strides, strict=True))
            rows.append((x, window(y, x.shape, y.strides, offset)))
        left = [(x, shown) for x, shown in rows if not emit.place(x, shown)]
        if len(left) == len(rows):
            return False
        for x, shown in left:
            emit.copy(shown, x)
        return True

    def _is_flat(self, forms: StepForms) -> bool:
        """Return whether all results are of one shape, which that of no step goes beyond."""
        shapes = distinct(forms.specs[step].shape for step in self.results)
        return forms.kinds is not None and len(shapes) == 1


@operator("RowRegion", FUSED_DOMAIN)
@dataclass(frozen=True, slots=True)
class RowRegion(Steps):
    """Operators on rows, which are the elements along the trailing axes, and on their elements: one level of reduction.

    Rows are the same for all. Results have an element for each element of a row, or one for each row.
    """

    steps: tuple  # type: ignore[type-arg]
    results: tuple[int, ...]
    rounds: bool = True
    example = "float32[2,3] float32[2,3] steps=(('Add',(),(0,1)),('Softmax',(),(-1,))) results=(1,)"

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once; where that can't be, once for each step."""
        forms, kept = self._find_forms(inputs), self._list_kept(outputs)
        if not kept:
            return
        layout, slots = self.find_layout(list_keys(inputs)), [slot for _, slot in kept]
        if not emit.target.has_textures:
            is_able = layout is not None and can_launch(self.steps, forms, layout, inputs, slots)
        else:
            used = [slot for slot in inputs if slot is not None]
            is_able = layout is not None and can_walk_rows(layout, inputs, slots) and can_draw([*used, *slots])
            is_able = is_able and not list_unordered(self.steps, forms)
        if not emit.choose(is_able):
            self._lower_apart(emit, forms, inputs, outputs)
            return
        if layout is None or not is_able:
            raise PlanError("Rows of a region can't be reduced in one launch, as they are at the upper end.")
        if emit.target.has_textures:
            draw_rows(emit, self.steps, forms, layout, [step for step, _ in kept], inputs, slots)
            return
        allows = launch_rows(emit, self.steps, forms, layout, [step for step, _ in kept], inputs, slots)
        self._allow_in_place(emit, inputs, kept, allows)

    def find_layout(self, keys: tuple[SpecKey | None, ...]) -> RowLayout | None:
        """Return the layout for inputs of these shapes and types; None where steps don't reduce the same rows."""
        forms = find_forms(self.steps, keys, self.rounds)
        return None if forms.forms is None else find_row_layout(self.steps, forms, keys)

    def _refuse_map(self, forms: StepForms, inputs: Sequence[TensorSpec | None]) -> str:
        if self.find_layout(list_keys(inputs)) is None:
            return "its steps reduce different rows"
        others = list_unordered(self.steps, forms)
        return f"rows so long are folded otherwise by the blit of {', '.join(others)}" if others else ""

    def _prepare(self, forms: StepForms, keys: tuple[SpecKey | None, ...]) -> RowProgram | None:
        layout = self.find_layout(keys)
        return None if layout is None else prepare_row_blocks(self.steps, forms, self.results, keys, layout)
