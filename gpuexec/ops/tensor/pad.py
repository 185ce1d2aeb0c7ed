"""Pad: padding by constant, edge, reflect or wrap; negative pads crop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.containers import make_blank
from gpuexec.ir.geometry import ceil_div, memory_axes, normalize_axes
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.host_values import require_const
from gpuexec.ir.index_map import Assembled, IndexMap, Window
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, dtypes_of
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import require_ints
from gpuexec.ops.lib.strided import MAX_RANK, pack_fast_div64
from gpuexec.ops.tensor.layout import attributes_to_inputs, read_ints, window
from gpuexec.system.mapped import read_content

_MANY = 4096  # elements from which on it pays to fill borders alone, not all
_MODES = ("constant", "reflect", "edge", "wrap")  # PadMode of pad.cu
_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_THREADS = 256  # kThreads of pad.cu
_FLOATS = dtypes_of("float")
instantiate("pad.cu", [f"pad<{bits}>" for bits in _TYPES.values()])


@dataclass(frozen=True, slots=True)
class PadAxis:
    """Padding of one axis: the part of the input that is shown, its place in the output, and the output's extent."""

    first: int
    extent: int
    begin: int
    output: int

    @property
    def is_plain(self) -> bool:
        """Return whether the part shown fills the output."""
        return self.begin == 0 and self.extent == self.output


@operator("Pad")
@dataclass(frozen=True, slots=True)
class Pad(Operator):
    """Tensor padded before and behind some axes: by a constant, or by reflecting, repeating the edge or wrapping.

    A negative pad cuts. Reflecting, edge and wrap see only what is left after cutting.
    """

    mode: str = "constant"
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    fixed_inputs = (2,)
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self,
        x: TensorSpec,
        pads: TensorSpec,
        constant_value: TensorSpec | None = None,
        axes: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Add the pads to the extents."""
        plan = self._read(x.shape, pads, axes)
        if constant_value is not None and constant_value.size != 1:
            raise InputError(f"constant_value must hold one element, got {constant_value}.")
        if constant_value is not None and constant_value.dtype != x.dtype:
            if not {constant_value.dtype, x.dtype} <= set(_FLOATS):
                raise InputError(f"Pad expects a constant_value of the type of {x}, got {constant_value}.")
            require_const(constant_value, "constant_value", 2)
        return (x.with_shape(tuple(axis.output for axis in plan)),)

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether all pads are known to be 0."""
        pads = inputs[1] if len(inputs) > 1 else None
        return pads is not None and pads.content is not None and not read_content(pads.content).any()

    def compute(
        self, x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Copy the inside, or gather by folded coordinates axis by axis."""
        plan = self._resolve(x.shape, read_ints(pads), None if axes is None else read_ints(axes))
        if self.mode == "constant":
            return (_pad_with_constant(x, plan, constant_value),)
        for position, axis in enumerate(plan):
            if axis != PadAxis(0, x.shape[position], 0, x.shape[position]):
                coordinates = _fold(np.arange(axis.output) - axis.begin, axis.extent, self.mode)
                x = np.take(x, axis.first + coordinates, position)
        return (x,)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what is padded along the first of two axes, where no constant is around it."""
        x, pads, y = inputs[0], inputs[1], outputs[0]
        if self.mode == "constant" or x is None or pads is None or y is None:
            return []
        first = next((axis for axis in range(x.rank) if x.shape[axis] != y.shape[axis]), None)
        if first is None:
            return []
        return [y.dtype.itemsize * prod([*x.shape[:first], y.shape[first], *x.shape[first + 1 :]])]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Fill and copy the inside, or gather along up to two axes, where the pads never change."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1, 3))
        if by_content is not None:
            return by_content
        (x, pads, value, axes), (y,) = (*inputs, None, None)[:4], out
        if x is None or pads is None or y is None or not y.size or not constant[1] or y.dtype.hasobject:
            return None
        if axes is not None and not constant[3]:
            return None
        plan = self._resolve(x.shape, read_ints(pads), None if axes is None else read_ints(axes))
        if self.mode == "constant":
            filler = make_blank((), x.dtype) if value is None else value.reshape(())
            if filler.dtype != x.dtype:
                return None
            to, source = _find_inside(plan)
            around = [y] if y.size < _MANY else _list_borders(y, to)
            inside, shown = y[to] if to else y, x[source] if source else x
            return [*[partial(np.copyto, part, filler) for part in around], partial(np.copyto, inside, shown)]
        padded = [place for place, axis in enumerate(plan) if axis != PadAxis(0, x.shape[place], 0, x.shape[place])]
        extents = [axis.output for axis in plan]
        if not padded:
            return [partial(np.copyto, y, x)]
        if len(padded) > 2 or not x.flags.c_contiguous or extents[padded[0]] == x.shape[padded[0]]:
            return None
        if len(padded) > 1 and not scratch:
            return None
        calls: list[Callable[[], object]] = []
        for place in padded:
            axis = plan[place]
            coordinates = axis.first + _fold(np.arange(axis.output) - axis.begin, axis.extent, self.mode)
            shape = (*x.shape[:place], axis.output, *x.shape[place + 1 :])
            target = y if place == padded[-1] else view_bytes(scratch[0], shape, x.dtype)
            calls.append(partial(x.take, coordinates, place, target, "clip"))
            x = target
        return calls

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return the window of the input, where a constant is around it."""
        x, pads, constant, axes = (*inputs, None, None)[:4]
        if self.mode != "constant" or x is None or pads is None or pads.value is None:
            return None
        if axes is not None and axes.value is None:
            return None
        plan = self._read(x.shape, pads, axes)
        padded = tuple([axis for axis, each in enumerate(plan) if not each.is_plain])
        inside = Window(0, tuple([each.begin - each.first for each in plan]))
        filler = None if constant is None else 2
        return Assembled(padded, (inside,), is_whole=False, filler=filler, contents=(1, 3))

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element of the output."""
        x, pads, constant, axes = (*inputs, None, None)[:4]
        y = outputs[0]
        assert x is not None and pads is not None and y is not None
        plan = self._read(x.shape, pads.spec, None if axes is None else axes.spec)
        launch_pad(emit, x, constant, y, plan, self.mode)

    def _read(self, shape: tuple[int, ...], pads: TensorSpec, axes: TensorSpec | None) -> tuple[PadAxis, ...]:
        listed = None if axes is None else require_ints(axes, "axes", 3)
        return self._resolve(shape, require_ints(pads, "pads", 1), listed)

    def _resolve(
        self, shape: tuple[int, ...], pads: tuple[int, ...], axes: tuple[int, ...] | None
    ) -> tuple[PadAxis, ...]:
        if self.mode not in _MODES:
            raise InputError(f"Pad mode must be one of {', '.join(_MODES)}, got {self.mode!r}.")
        axes = normalize_axes(tuple(range(len(shape))) if axes is None else axes, len(shape))
        if len(pads) != 2 * len(axes):
            raise InputError(f"pads must hold a begin and an end for each of {len(axes)} axes, got {list(pads)}.")
        plan = [PadAxis(0, extent, 0, extent) for extent in shape]
        for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            plan[axis] = self._resolve_axis(axis, shape[axis], begin, end)
        return tuple(plan)

    def _resolve_axis(self, axis: int, extent: int, begin: int, end: int) -> PadAxis:
        output = extent + begin + end
        if output < 0:
            raise InputError(f"pads {begin} and {end} cut more than axis {axis} has, got extent {extent}.")
        if self.mode == "constant":
            return PadAxis(0, extent, begin, output)
        left = extent + min(begin, 0) + min(end, 0)
        if left <= 0 < output:
            got = f"extent {max(left, 0)} after cutting"
            raise InputError(f"Pad mode {self.mode} needs an element on axis {axis}, got {got}.")
        return PadAxis(max(-begin, 0), left, max(begin, 0), output)


def launch_pad(emit: Emitter, x: Slot, constant: Slot | None, y: Slot, plan: Sequence[PadAxis], mode: str) -> None:
    """Launch one thread per element of ``y``, which shows ``x`` by the plan, and else the constant (None: 0)."""
    start = sum(axis.first * stride for axis, stride in zip(plan, x.strides, strict=True)) if x.spec.size else 0
    shown = window(x, [axis.extent for axis in plan], x.strides, start)
    axes = range(y.spec.rank) if y.is_contiguous else memory_axes(y.shape, y.strides)
    packed = _pack([plan[axis] for axis in axes], [x.strides[axis] for axis in axes], y.spec.size, mode)
    emit.launch(
        Kernel("pad.cu", f"pad<{_TYPES[x.dtype.itemsize]}>"),
        (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1),
        (_THREADS, 1, 1),
        [shown, _constant_slot(emit, constant, x.dtype), y, packed],
        writes=[2],
    )


@upgrade("Pad", below=2)
def _rename_paddings(node: RawNode) -> RawNode:
    """Rename the pads, which opset 1 called paddings."""
    return node.without("paddings").with_attributes(pads=node.attributes.get("paddings", ()))


@upgrade("Pad", below=11)
def take_pads_as_inputs(node: RawNode) -> RawNode:
    """Move pads and the constant, attributes until opset 10, to inputs."""
    value = node.attributes.get("value", 0.0)
    node = attributes_to_inputs(node.without("value"), "pads")
    # The element type is not known here; `Pad` converts a constant of another type.
    return node.with_input(2, np.array(value, np.float32)) if value else node


def _pack(plan: Sequence[PadAxis], strides: Sequence[int], count: int, mode: str) -> bytes:
    """Return the bytes of PadWalk."""
    rows = _merge(plan, strides)[::-1]
    if len(rows) > MAX_RANK:
        raise InputError(f"Pad on a device takes at most {MAX_RANK} axes that can't be merged, got {len(rows)}.")
    rows += [(PadAxis(0, 1, 0, 1), 0)] * (MAX_RANK - len(rows))
    divisors = join_bytes(pack_fast_div64(max(1, axis.output)) for axis, _ in rows)
    numbers = [axis.begin for axis, _ in rows] + [axis.extent for axis, _ in rows] + [stride for _, stride in rows]
    head = pack_struct("<q2i", count, MAX_RANK, _MODES.index(mode))
    return head + divisors + pack_struct(f"<{3 * MAX_RANK}q", *numbers)


def _merge(plan: Sequence[PadAxis], strides: Sequence[int]) -> list[tuple[PadAxis, int]]:
    """Join neighbouring plain axes that the input walks as one; outermost first."""
    rows: list[tuple[PadAxis, int]] = []
    for axis, stride in zip(plan, strides, strict=True):
        if rows and axis.is_plain and rows[-1][0].is_plain and rows[-1][1] == stride * axis.extent:
            extent = rows[-1][0].extent * axis.extent
            rows[-1] = (PadAxis(0, extent, 0, extent), stride)
        else:
            rows.append((axis, stride))
    return rows


def _constant_slot(emit: Emitter, constant: Slot | None, dtype: np.dtype[Any]) -> Slot:
    if constant is None:
        return emit.constant(np.zeros((), dtype))
    if constant.dtype == dtype:
        return constant
    return emit.constant(_convert(require_const(constant.spec, "constant_value", 2), dtype))


def _convert(constant: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        return constant.reshape(()).astype(dtype)


def _pad_with_constant(x: Array, plan: Sequence[PadAxis], constant: Array | None) -> Array:
    value = make_blank((), x.dtype) if constant is None else _convert(constant, x.dtype)
    y = np.full([axis.output for axis in plan], value, x.dtype)
    to, source = _find_inside(plan)
    y[to] = x[source]
    return y


def _list_borders(y: Array, inside: tuple[slice, ...]) -> list[Array]:
    """Return the parts of an array that are not inside a window."""
    borders = []
    for axis, part in enumerate(inside):
        for outside in (slice(0, part.start), slice(part.stop, y.shape[axis])):
            border = y[(*inside[:axis], outside)]
            if border.size:
                borders.append(border)
    return borders


def _find_inside(plan: Sequence[PadAxis]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where in the output elements of the input stand, and these."""
    to, source = [], []
    for axis in plan:
        first = min(max(axis.begin, 0), axis.output)
        last = max(first, min(axis.begin + axis.extent, axis.output))
        to.append(slice(first, last))
        source.append(slice(first - axis.begin, last - axis.begin) if last > first else slice(0, 0))
    return tuple(to), tuple(source)


def _fold(at: Array, extent: int, mode: str) -> Array:
    """Return the coordinate in [0, extent) that each position shows."""
    if mode == "edge" or extent == 1:
        return np.clip(at, 0, extent - 1)
    if mode == "wrap":
        return at % extent
    folded = at % (2 * (extent - 1)) if extent else at
    return np.where(folded < extent, folded, 2 * (extent - 1) - folded)
