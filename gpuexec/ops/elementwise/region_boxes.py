"""Regions with index maps in NumPy: block after block of the results, each step over the box of it that is asked for.

A step that is made of windows asks its parts for what lies in the block, and a step that picks slices takes those that
the block needs; so any axis may be cut. Blocks are shared by the cores.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.index_map import Assembled, Picked, Reshaped, Viewed
from gpuexec.ir.operator import Array, Out, PreparedCalls
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.spec import accumulator
from gpuexec.ops.elementwise.region_blocks import SMALL_NBYTES, give_buffers, take_buffer
from gpuexec.ops.elementwise.region_steps import (
    Given,
    RegionStep,
    SpecKey,
    StepForms,
    StepKind,
    StepRow,
    read_steps,
    step_of,
    widen_number,
)
from gpuexec.ops.tensor.gather import resolve_indices
from gpuexec.system.threads import share_work

# Elements of a block, and what one register takes of them at most.
BLOCK = 1 << 17
BUFFER_NBYTES = 8 * BLOCK
_DType = np.dtype[Any]
# First element and the one behind the last, along each axis of a value.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BoxProgram:
    """Steps prepared for inputs of certain shapes and types.

    Attributes:
        steps: The steps.
        kinds: What each does.
        shapes: Of what each makes.
        dtypes: Of what each makes.
        results: The steps that make the outputs, all of one shape.
        shared: Sources that are read more than once.
    """

    steps: tuple[RegionStep, ...]
    kinds: tuple[StepKind, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[_DType, ...]
    results: tuple[int, ...]
    shared: frozenset[int]

    @classmethod
    def of(
        cls, rows: tuple[StepRow, ...], forms: StepForms, results: tuple[int, ...], inputs: tuple[SpecKey | None, ...]
    ) -> BoxProgram:
        """Return steps prepared for inputs of certain shapes and types.

        Args:
            rows: The steps.
            forms: What they make of these inputs; all have a kind, and all results one shape.
            results: The steps that make the outputs.
            inputs: Shapes and types; None: absent.
        """
        assert forms.kinds is not None
        read = [-1 - step for step in results]
        read += [given for _, _, row in rows for given in row if isinstance(given, int)]
        return cls(
            read_steps(rows),
            forms.kinds,
            tuple([spec.shape for spec in forms.specs]),
            tuple([spec.dtype for spec in forms.specs]),
            results,
            frozenset([source for source in read if read.count(source) > 1]),
        )

    def count_scratch(self) -> list[int]:
        """Return nothing: blocks take what they work in from what other blocks left."""
        return []

    def prepare(
        self, inputs: Sequence[Array | None], out: Sequence[Array], scratch: Sequence[Array]
    ) -> PreparedCalls | None:
        """Return `run` over these arrays."""
        return [functools.partial(self.run, inputs, out)]

    def run(self, inputs: Sequence[Array | None], out: Out) -> tuple[Array, ...]:
        """Return the results of a region, in the arrays of ``out`` where there are some.

        Args:
            inputs: The inputs; None: absent.
            out: As of `Operator.compute`: an array may be the memory of an input of the same shape and type that is
                read at the places of the results alone.

        Raises:
            InputError: An index is out of range.
        """
        shape = self.shapes[self.results[0]]
        dtypes = [self.dtypes[step] for step in self.results]
        given = out or (None,) * len(dtypes)
        made = [np.empty(shape, dtype) if y is None else y for y, dtype in zip(given, dtypes, strict=True)]
        picked = self._resolve(inputs)
        # Blocks are whole along the axes behind the divided one, and one element of those before it.
        inner = list(itertools.accumulate(shape[:0:-1], int.__mul__, initial=1))[::-1]
        axis = next((axis for axis, size in enumerate(inner) if size <= BLOCK), 0)
        length = max(1, BLOCK // max(1, inner[axis]))
        pieces = -(-shape[axis] // length) if shape else 1

        def compute(number: int) -> None:
            outer, piece = divmod(number, pieces)
            first = piece * length
            before = np.unravel_index(outer, shape[:axis]) if axis else ()
            box = [(int(at), int(at) + 1) for at in before]
            if shape:
                box.append((first, min(first + length, shape[axis])))
                box += [(0, extent) for extent in shape[axis + 1 :]]
            _BoxRun(self, inputs, picked).run(tuple(box), made)

        if not prod(shape):
            return tuple(made)
        count = prod(shape[:axis]) * pieces
        with np.errstate(all="ignore"):
            if count == 1:
                compute(0)
            else:
                share_work(count, compute)
        return tuple(made)

    def _resolve(self, inputs: Sequence[Array | None]) -> dict[int, Array]:
        """Return the places that each picking step takes, counted from the front."""
        found = {}
        for number, (step, kind) in enumerate(zip(self.steps, self.kinds, strict=True)):
            if isinstance(kind, Picked):
                data, indices = (inputs[each] if isinstance(each, int) else None for each in step.inputs)
                assert data is not None and indices is not None
                found[number] = resolve_indices(indices, data.shape[kind.axis], kind.axis)
        return found


class _BoxRun:
    """The values of one block of the results, by source and box."""

    def __init__(self, program: BoxProgram, inputs: Sequence[Array | None], picked: dict[int, Array]) -> None:
        self._program, self._inputs, self._picked = program, inputs, picked
        self._known: dict[tuple[int, Box], Array] = {}
        self._free: list[Array] = []
        self._held: dict[int, tuple[Array, Array]] = {}  # scratch arrays and their memory, by identity

    def run(self, box: Box, outputs: Sequence[Array]) -> None:
        """Compute the block; nothing is written before all that it needs of inputs is read."""
        *others, last = self._program.results
        window = _index(box)
        made = [self._find(-1 - step, box) for step in others]
        is_wide = accumulator(self._program.dtypes[last]) == self._program.dtypes[last]
        target = outputs[-1][window] if is_wide and not others else None
        if target is None:
            made.append(self._find(-1 - last, box))
            for y, array in zip(outputs, made, strict=True):
                y[window] = array
        else:
            self._make(last, box, target)
        give_buffers([*self._free, *[buffer for _, buffer in self._held.values()]])

    def _find(self, given: Given, box: Box) -> Any:
        """Return a source over a box of its own coordinates, as the accumulator of its type."""
        if given is None:
            return None
        if isinstance(given, str):
            return widen_number(given)
        known = self._known.get((given, box))
        if known is None:
            known = self._read(given, box) if given >= 0 else self._make(step_of(given), box)
            if given in self._program.shared:
                self._known[given, box] = known
        return known

    def _read(self, position: int, box: Box) -> Array:
        x = self._inputs[position]
        assert x is not None
        view: Array = x[_index(box)]
        return self._widen(view)

    def _widen(self, array: Array) -> Array:
        wide = accumulator(array.dtype)
        if wide == array.dtype:
            return array
        made = self._take(array.shape, wide)
        made[...] = array
        return made

    def _make(self, step: int, box: Box, target: Array | None = None) -> Array:
        """Return what a step makes over a box, in an array for it where there is one."""
        kind, dtype = self._program.kinds[step], self._program.dtypes[step]
        shape = tuple([last - first for first, last in box])
        if isinstance(kind, Picked):
            made = self._pick(step, kind, box, shape)
        elif isinstance(kind, Viewed):
            made = self._show(step, kind, box, shape)
        elif isinstance(kind, Reshaped):
            made = self._divide(step, box, shape)
        if isinstance(kind, Picked | Viewed | Reshaped):
            if target is not None:
                target[...] = made
            return made if target is None else target
        wide = accumulator(dtype)
        if isinstance(kind, Assembled):
            result = self._take(shape, wide) if target is None else target
            self._assemble(step, kind, box, result)
            return result
        given = [self._find_for(each, step, box) for each in self._program.steps[step].inputs]
        result = self._take(shape, wide) if target is None else target
        assert isinstance(kind, Pointwise)
        kind.function(*given, out=result)
        if wide != kind.dtype:
            result[...] = result.astype(kind.dtype)
        for source, array in zip(self._program.steps[step].inputs, given, strict=True):
            self._drop(source, array)
        return result

    def _find_for(self, given: Given, step: int, box: Box) -> Any:
        """Return an input of a step on elements for a box of its result."""
        if not isinstance(given, int):
            return self._find(given, box)
        shape, made = self._find_shape(given), self._program.shapes[step]
        if prod(shape) == 1:
            return self._find(given, ((0, 1),) * len(shape)).reshape(())
        own = zip(shape, made[len(made) - len(shape) :], box[len(box) - len(shape) :], strict=True)
        return self._find(given, tuple([(0, 1) if have == 1 and want != 1 else part for have, want, part in own]))

    def _assemble(self, step: int, kind: Assembled, box: Box, result: Array) -> None:
        """Write the windows that a box meets."""
        sources = self._program.steps[step].inputs
        if not kind.is_whole:
            filler = None if kind.filler is None else sources[kind.filler]
            shape = self._find_shape(filler) if isinstance(filler, int) else ()
            value = 0 if filler is None else self._find(filler, ((0, 1),) * len(shape))
            result[...] = np.reshape(value, ())
        for part in kind.parts:
            source = sources[part.source]
            shape = self._find_shape(source)
            own = tuple([
                (max(first - start, 0), min(last - start, extent))
                for (first, last), start, extent in zip(box, part.starts, shape, strict=True)
            ])  # fmt: skip
            if any(first >= last for first, last in own):
                continue
            array = self._find(source, own)
            place: list[Any] = [
                slice(a + s - b[0], z + s - b[0]) for (a, z), s, b in zip(own, part.starts, box, strict=True)
            ]
            result[(*place, ...)] = array
            self._drop(source, array)

    def _pick(self, step: int, kind: Picked, box: Box, shape: tuple[int, ...]) -> Array:
        """Return the slices that a box needs."""
        source, _ = self._program.steps[step].inputs
        data = self._inputs[source] if isinstance(source, int) else None
        assert data is not None
        windows: list[Any] = [slice(*each) for each in box]
        indices = self._picked[step][(*windows[kind.axis : kind.axis + kind.rank], ...)]
        seen = data[(*windows[: kind.axis], slice(None), *windows[kind.axis + kind.rank :])]
        made = self._take(shape, data.dtype)
        # In mode "raise" NumPy would buffer the output; the indices are checked already.
        np.take(seen, indices, kind.axis, out=made, mode="clip")
        wide = self._widen(made)
        if wide is not made:
            self._release(made)
        return wide

    def _show(self, step: int, kind: Viewed, box: Box, shape: tuple[int, ...]) -> Array:
        """Return a view of the smallest box that holds what a box shows."""
        source = self._program.steps[step].inputs[0]
        own, firsts = [], []
        for axis in kind.axes:
            first = axis.offset + sum(by * box[n][0] for n, by in axis.moves)
            spans = [by * (box[n][1] - box[n][0] - 1) for n, by in axis.moves]
            low, high = first + sum(min(0, each) for each in spans), first + sum(max(0, each) for each in spans)
            own.append((low, high + 1))
            firsts.append(first - low)
        array = self._find(source, tuple(own))
        strides = [0] * len(shape)
        for axis, stride in zip(kind.axes, array.strides, strict=True):
            for n, by in axis.moves:
                strides[n] += by * stride
        corner: tuple[Any, ...] = (..., *[slice(first, None) for first in firsts])
        return np.lib.stride_tricks.as_strided(array[corner], shape, strides, writeable=False)

    def _divide(self, step: int, box: Box, shape: tuple[int, ...]) -> Array:
        """Return what a box shows of elements under another shape, of which all between its first and last are made."""
        source = self._program.steps[step].inputs[0]
        inner, made = self._find_shape(source), self._program.shapes[step]
        strides = contiguous_strides(made)
        first = sum(at * stride for (at, _), stride in zip(box, strides, strict=True))
        last = sum((end - 1) * stride for (_, end), stride in zip(box, strides, strict=True))
        own, is_whole = [], False
        for extent, low, high in zip(inner, _unravel(first, inner), _unravel(last, inner), strict=True):
            own.append((0, extent) if is_whole else (low, high + 1))
            is_whole = is_whole or low != high
        array = np.ascontiguousarray(self._find(source, tuple(own)))
        begin = sum(at * stride for (at, _), stride in zip(own, contiguous_strides(inner), strict=True))
        by_bytes = [stride * array.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(array.reshape(-1)[first - begin :], shape, by_bytes, writeable=False)

    def _find_shape(self, given: Given) -> tuple[int, ...]:
        assert isinstance(given, int)
        if given < 0:
            return self._program.shapes[step_of(given)]
        x = self._inputs[given]
        assert x is not None
        shape: tuple[int, ...] = x.shape
        return shape

    def _take(self, shape: tuple[int, ...], dtype: _DType) -> Array:
        """Return a scratch array."""
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < SMALL_NBYTES or nbytes > BUFFER_NBYTES:
            return np.empty(shape, dtype)
        buffer = self._free.pop() if self._free else take_buffer(BUFFER_NBYTES)
        array: Array = buffer[:nbytes].view(dtype).reshape(shape)
        self._held[id(array)] = (array, buffer)
        return array

    def _drop(self, source: Given, array: Any) -> None:
        """Let go of a value, unless others read it."""
        if isinstance(source, int) and source not in self._program.shared and array is not None:
            self._release(array)

    def _release(self, array: Array) -> None:
        held = self._held.pop(id(array), None)
        if held is not None:
            self._free.append(held[1])


def _index(box: Box) -> tuple[Any, ...]:
    """Return the index of a box, by which arrays without axes stay arrays."""
    return (*[slice(*each) for each in box], ...)


def _unravel(place: int, shape: tuple[int, ...]) -> list[int]:
    """Return the coordinates of an element by its place in row-major order."""
    found = []
    for extent in reversed(shape):
        place, own = divmod(place, extent)
        found.append(own)
    return found[::-1]
