"""Regions with index maps in NumPy: block after block of the results, each step over the box of it that is asked for.

A step that is made of windows asks its parts for what lies in the block, and a step that picks slices takes those that
the block needs; so any axis may be cut. Blocks are shared by the cores. Where one block is all, the calls that make it
are listed once for arrays that stay.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.command import BUFFER_ALIGNMENT
from gpuexec.ir.geometry import contiguous_strides, round_up
from gpuexec.ir.index_map import Assembled, Picked, Reshaped, Viewed
from gpuexec.ir.operator import Array, Out, PreparedCalls
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.prepared_calls import prepare_step, view_bytes
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
_Calls = list[Callable[[], object]]
_Places = Array | int
_INT64 = np.dtype(np.int64)
_MOST_PREPARED_NBYTES = 1 << 20  # of what listed calls work in
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
        most_nbytes: What a block of all may work in, where sources are read whole.
    """

    steps: tuple[RegionStep, ...]
    kinds: tuple[StepKind, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[_DType, ...]
    results: tuple[int, ...]
    shared: frozenset[int]
    most_nbytes: int

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
        made: list[SpecKey] = [(spec.shape, spec.dtype) for spec in forms.specs]
        keys = [inputs[given] if given >= 0 else made[step_of(given)] for given in read]
        keys += [(key[0], _INT64) for key in inputs if key is not None and key[1].kind in "iu"]  # indices
        return cls(
            read_steps(rows),
            forms.kinds,
            tuple([shape for shape, _ in made]),
            tuple([dtype for _, dtype in made]),
            results,
            frozenset([source for source in read if read.count(source) > 1]),
            sum([_count_nbytes(key) for key in (*made, *keys) if key is not None]),
        )

    def count_scratch(self) -> list[int]:
        """Return what the calls of `prepare` work in; several blocks take that from what other blocks left."""
        return [self.most_nbytes] if self._is_one_block() and self.most_nbytes <= _MOST_PREPARED_NBYTES else []

    def prepare(
        self, inputs: Sequence[Array | None], out: Sequence[Array], scratch: Sequence[Array], constant: Sequence[bool]
    ) -> PreparedCalls:
        """Return the calls that make one block of all, or that of `run` over these arrays.

        Args:
            inputs: As for `run`.
            out: Where all results go.
            scratch: Arrays of what `count_scratch` returned.
            constant: Which of the inputs never change.
        """
        if scratch and self._is_one_block() and scratch[0].nbytes >= self.most_nbytes:
            calls: _Calls = []
            memory = _PlannedScratch(scratch[0][: self.most_nbytes])
            box = tuple([(0, extent) for extent in self.shapes[self.results[0]]])
            try:
                picked = self._prepare_picked(inputs, constant, memory, calls)
                _BoxRun(self, inputs, picked, memory, calls).run(box, out)
            except MemoryError:  # a source is read over more boxes than one of all
                pass
            else:
                return calls
        return [functools.partial(self.run, inputs, out)]

    def _is_one_block(self) -> bool:
        return 0 < prod(self.shapes[self.results[0]]) <= BLOCK

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
        picked = {
            number: _find_places(indices, extent, axis) for number, indices, extent, axis in self._list_picking(inputs)
        }
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
            memory = _Buffers()
            _BoxRun(self, inputs, picked, memory).run(tuple(box), made)
            memory.give_back()

        if not prod(shape):
            return tuple(made)
        count = prod(shape[:axis]) * pieces
        with np.errstate(all="ignore"):
            if count == 1:
                compute(0)
            else:
                share_work(count, compute)
        return tuple(made)

    def _list_picking(self, inputs: Sequence[Array | None]) -> list[tuple[int, Array, int, int]]:
        """Return of each picking step the number, the indices, and the axis that it picks along, after its extent."""
        found = []
        for number, (step, kind) in enumerate(zip(self.steps, self.kinds, strict=True)):
            if isinstance(kind, Picked):
                data, indices = (inputs[each] if isinstance(each, int) else None for each in step.inputs)
                assert data is not None and indices is not None
                found.append((number, indices, data.shape[kind.axis], kind.axis))
        return found

    def _prepare_picked(
        self, inputs: Sequence[Array | None], constant: Sequence[bool], memory: _PlannedScratch, calls: _Calls
    ) -> dict[int, _Places]:
        """Return the places that picking steps take, of indices that change in memory that calls fill."""
        unchanging = [id(x) for x, never in zip(inputs, constant, strict=True) if never]
        picked: dict[int, _Places] = {}
        for number, indices, extent, axis in self._list_picking(inputs):
            if id(indices) in unchanging:
                picked[number] = _find_places(indices, extent, axis)
            else:
                picked[number] = places = memory.take(indices.shape, _INT64)
                calls.append(functools.partial(_resolve_into, places, indices, extent, axis))
        return picked


class _Buffers:
    """Memory of a block that is computed now: small arrays of their own, others in what earlier blocks left."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._held: dict[int, tuple[Array, Array]] = {}  # arrays and their memory, by identity

    def take(self, shape: tuple[int, ...], dtype: _DType) -> Array:
        """Return an array."""
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < SMALL_NBYTES or nbytes > BUFFER_NBYTES:
            return np.empty(shape, dtype)
        buffer = self._free.pop() if self._free else take_buffer(BUFFER_NBYTES)
        array: Array = buffer[:nbytes].view(dtype).reshape(shape)
        self._held[id(array)] = (array, buffer)
        return array

    def release(self, array: Array) -> None:
        """Let another array take its place, if it was taken here."""
        held = self._held.pop(id(array), None)
        if held is not None:
            self._free.append(held[1])

    def give_back(self) -> None:
        """Leave all memory to other blocks."""
        give_buffers([*self._free, *[buffer for _, buffer in self._held.values()]])


class _PlannedScratch:
    """Memory of a block whose calls are listed: one array after the other, since all stay."""

    def __init__(self, scratch: Array) -> None:
        self._left = scratch

    def take(self, shape: tuple[int, ...], dtype: _DType) -> Array:
        """Return an array.

        Raises:
            MemoryError: It does not fit into what is left.
        """
        nbytes = _count_nbytes((shape, dtype))
        if nbytes > self._left.nbytes:
            raise MemoryError
        array = view_bytes(self._left, shape, dtype)
        self._left = self._left[nbytes:]
        return array

    def release(self, array: Array) -> None:
        """Keep it: each call has arrays of its own."""


class _BoxRun:
    """The values of one block of the results, by source and box.

    Args:
        program: Whose block it is.
        inputs: The inputs of the region.
        picked: Of each picking step, the places from the front.
        memory: Of what is made on the way.
        calls: Takes the calls that compute the block; None: they are made now.
    """

    def __init__(
        self,
        program: BoxProgram,
        inputs: Sequence[Array | None],
        picked: dict[int, _Places],
        memory: _Buffers | _PlannedScratch,
        calls: _Calls | None = None,
    ) -> None:
        self._program, self._inputs, self._picked = program, inputs, picked
        self._known: dict[tuple[int, Box], Array] = {}
        self._memory, self._calls = memory, calls

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
                self._call(_copy, y[window], array)
        else:
            self._make(last, box, target)

    def _call(self, function: Callable[..., object], *arguments: Any, **named: Any) -> None:
        if self._calls is None:
            function(*arguments, **named)
        else:
            self._calls.append(functools.partial(function, *arguments, **named))

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
        made = self._memory.take(array.shape, wide)
        self._call(_copy, made, array)
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
                self._call(_copy, target, made)
            return made if target is None else target
        wide = accumulator(dtype)
        if isinstance(kind, Assembled):
            result = self._memory.take(shape, wide) if target is None else target
            self._assemble(step, kind, box, result)
            return result
        given = [self._find_for(each, step, box) for each in self._program.steps[step].inputs]
        result = self._memory.take(shape, wide) if target is None else target
        assert isinstance(kind, Pointwise)
        if self._calls is None:
            kind.function(*given, out=result)
        else:
            self._calls += prepare_step(kind.function, given, result)
        if wide != kind.dtype:
            self._call(_round, result, kind.dtype)
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
            self._call(_copy, result, np.reshape(value, ()))
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
            self._call(_copy, result[(*place, ...)], array)
            self._drop(source, array)

    def _pick(self, step: int, kind: Picked, box: Box, shape: tuple[int, ...]) -> Array:
        """Return the slices that a box needs."""
        source, _ = self._program.steps[step].inputs
        data = self._inputs[source] if isinstance(source, int) else None
        assert data is not None
        windows: list[Any] = [slice(*each) for each in box]
        places = self._picked[step]
        before, behind = windows[: kind.axis], windows[kind.axis + kind.rank :]
        if isinstance(places, int):
            view: Array = data[(*before, places, *behind, ...)]
            return self._widen(view)
        indices = places[(*windows[kind.axis : kind.axis + kind.rank], ...)]
        seen = data[(*before, slice(None), *behind)]
        made = self._memory.take(shape, data.dtype)
        # In mode "raise" NumPy would buffer the output; the indices are checked already.
        self._call(np.take, seen, indices, kind.axis, made, "clip")
        wide = self._widen(made)
        if wide is not made:
            self._memory.release(made)
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
        array = self._find(source, tuple(own))
        if not array.flags.c_contiguous:
            dense = self._memory.take(array.shape, array.dtype)
            self._call(_copy, dense, array)
            array = dense
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

    def _drop(self, source: Given, array: Any) -> None:
        """Let go of a value, unless others read it."""
        if isinstance(source, int) and source not in self._program.shared and array is not None:
            self._memory.release(array)


def _index(box: Box) -> tuple[Any, ...]:
    """Return the index of a box, by which arrays without axes stay arrays."""
    return (*[slice(*each) for each in box], ...)


def _copy(target: Array, source: Any) -> None:
    """Write values as of another type, such as a result's sums."""
    np.copyto(target, source, casting="unsafe")


def _find_places(indices: Array, extent: int, axis: int) -> _Places:
    """Return where indices point along an axis, counted from the front; of one without axes as a number."""
    places = resolve_indices(indices, extent, axis)
    return places if places.ndim else int(places)


def _resolve_into(places: Array, indices: Array, extent: int, axis: int) -> None:
    np.copyto(places, resolve_indices(indices, extent, axis))


def _round(array: Array, dtype: _DType) -> None:
    array[...] = array.astype(dtype)


def _count_nbytes(key: SpecKey) -> int:
    """Return the bytes of an array as the accumulator of its type, or of its type, aligned."""
    shape, dtype = key
    return round_up(prod(shape) * max(dtype.itemsize, accumulator(dtype).itemsize), BUFFER_ALIGNMENT)


def _unravel(place: int, shape: tuple[int, ...]) -> list[int]:
    """Return the coordinates of an element by its place in row-major order."""
    found = []
    for extent in reversed(shape):
        place, own = divmod(place, extent)
        found.append(own)
    return found[::-1]
