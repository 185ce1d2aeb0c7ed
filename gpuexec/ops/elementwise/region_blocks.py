"""Regions in NumPy: all steps over one block after the other, so that what passes between steps stays in the cache.

Blocks are shared by the cores. What a step makes is kept as the accumulator of its type, rounded to the type, as the
operators would round it where they store it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array, Out
from gpuexec.ir.spec import accumulator
from gpuexec.ops.elementwise.region_steps import SpecKey, StepForms, StepRow, read_steps, step_of, widen_number
from gpuexec.system.threads import share_work

# Elements: what a core keeps in its cache, and fewer calls than would wait for each other.
BLOCK = 1 << 17
_DType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class _StepCall:
    """One step: its function over values by number, and where the result goes.

    Attributes:
        function: As of `gpuexec.ir.pointwise.Pointwise`.
        sources: Numbers of the values that it reads; -1: absent.
        shape: Of the result, as many axes as results of the region have.
        register: The scratch register of the result; -1: it is written to an output.
        output: The output that it is; -1: none.
        dtype: The type that the result is rounded to, where that is not the one it is computed in.
        is_whole: Whether no input is absent.
    """

    function: Callable[..., Any]
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    register: int
    output: int
    dtype: _DType | None
    is_whole: bool

    def pick(self, values: Sequence[Any]) -> list[Any]:
        """Return the inputs, some of which are absent."""
        return [values[source] if source >= 0 else None for source in self.sources]


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """Steps prepared for inputs of certain shapes and types.

    Values are numbered: inputs, then numbers, then what steps make.

    Attributes:
        shape: Of the results.
        dtypes: Of the results.
        shapes: Of the inputs with as many axes; None: absent.
        widened: The register of an input that is computed in another type; -1: it is read as it is.
        numbers: The numbers, as 0-d arrays.
        calls: The steps in order.
        registers: Type of each scratch register.
        is_even: Whether all inputs have the shape of the results or one element.
    """

    shape: tuple[int, ...]
    dtypes: tuple[_DType, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    widened: tuple[int, ...]
    numbers: tuple[Array, ...]
    calls: tuple[_StepCall, ...]
    registers: tuple[_DType, ...]
    is_even: bool

    def run(self, inputs: Sequence[Array | None], out: Out) -> tuple[Array, ...]:
        """Return the results of a region, in the arrays of ``out`` where there are some.

        Args:
            inputs: The inputs; None: absent.
            out: As of `Operator.compute`: an array may be the memory of an input of the same shape and type, which no
                step reads once that output is made.
        """
        given = out or (None,) * len(self.dtypes)
        made = [np.empty(self.shape, d) if y is None else y for y, d in zip(given, self.dtypes, strict=True)]
        size = made[0].size
        if size > BLOCK:
            _SharedBlocks(self, inputs, made).run()
        elif size:
            values = [
                x if x is None or shape is None or x.shape == shape else x.reshape(shape)
                for x, shape in zip(inputs, self.shapes, strict=True)
            ]
            spare = _Spare.of(self.registers)
            self.run_block(values, made, self.make_scratch(spare.find, values, None))
            spare.give_back()
        return tuple(made)

    def run_block(self, inputs: Sequence[Array | None], targets: Sequence[Array], scratch: BlockScratch) -> None:
        """Compute one block.

        Args:
            inputs: Their parts of it; None: absent.
            targets: Of the results.
            scratch: For what is neither.
        """
        values: list[Any] = [*inputs]
        with np.errstate(all="ignore"):
            for number, wide in scratch.widened:
                wide[...] = values[number]
                values[number] = wide
            values += self.numbers
            for call, result in zip(self.calls, scratch.made, strict=True):
                given = [values[source] for source in call.sources] if call.is_whole else call.pick(values)
                if result is None:
                    result = targets[call.output]
                    call.function(*given, out=result)
                else:
                    call.function(*given, out=result)
                    if call.output >= 0:
                        targets[call.output][...] = result
                    if call.dtype is not None:
                        result[...] = result.astype(call.dtype) if call.output < 0 else targets[call.output]
                values.append(result)

    def make_scratch(
        self, find: Callable[[int, tuple[int, ...]], Array], block: Sequence[Array | None], measure: _Measure | None
    ) -> BlockScratch:
        """Return scratch arrays for blocks of one shape.

        Args:
            find: Returns a register as an array of some shape.
            block: The inputs' parts of it.
            measure: Returns the extents in the block of a value of some shape; None: the block is the whole.
        """
        widened = [
            (number, find(register, view.shape))
            for number, (register, view) in enumerate(zip(self.widened, block, strict=True))
            if register >= 0 and view is not None
        ]
        made = [
            None if call.register < 0 else find(call.register, call.shape if measure is None else measure(call.shape))
            for call in self.calls
        ]
        return BlockScratch(widened, made)


_Measure = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class BlockScratch:
    """Arrays for blocks of one shape: of widened inputs by number, and of each call; None: an output takes it."""

    widened: list[tuple[int, Array]]
    made: list[Array | None]


class _SharedBlocks:
    """The blocks of one call."""

    def __init__(self, program: BlockProgram, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        self._program = program
        arrays = [
            None if x is None or shape is None else x.reshape(shape)
            for x, shape in zip(inputs, program.shapes, strict=True)
        ]
        shape = program.shape
        is_flat = program.is_even and all(x.flags.c_contiguous for x in (*outputs, *arrays) if x is not None)
        if is_flat:
            shape = (prod(shape),)
            arrays = [None if x is None else x.reshape(-1) for x in arrays]
            outputs = [y.reshape(-1) for y in outputs]
        self._arrays, self._outputs, self._is_flat = arrays, outputs, is_flat
        # Blocks are whole along the axes behind the divided one, and one element of those before it.
        inner = list(itertools.accumulate(shape[:0:-1], int.__mul__, initial=1))[::-1]
        self._axis = next((axis for axis, size in enumerate(inner) if size <= BLOCK), 0)
        self._length = max(1, BLOCK // inner[self._axis]) if inner else 1
        self._outer = shape[: self._axis]
        self._pieces = -(-shape[self._axis] // self._length) if shape else 1
        self._shape = shape
        self._spare: list[_Spare] = []  # that no thread uses at present

    def run(self) -> None:
        """Compute all blocks."""
        count = prod(self._outer) * self._pieces
        if count == 1:
            self._compute(0)
        else:
            share_work(count, self._compute)
        for spare in self._spare:
            spare.give_back()

    def _compute(self, number: int) -> None:
        """Compute one block."""
        try:
            spare = self._spare.pop()
        except IndexError:
            spare = _Spare.of(self._program.registers)
        place = self._find_place(number)
        targets = [y[place] for y in self._outputs]
        block = [None if array is None else self._window(array, place) for array in self._arrays]
        shape = targets[0].shape
        if shape not in spare.scratch:
            measure = functools.partial(self._measure, shape)
            spare.scratch[shape] = self._program.make_scratch(spare.find, block, measure)
        self._program.run_block(block, targets, spare.scratch[shape])
        self._spare.append(spare)

    def _find_place(self, number: int) -> tuple[Any, ...]:
        """Return the index of a block."""
        if not self._shape:
            return (...,)
        outer, piece = divmod(number, self._pieces)
        first = piece * self._length
        before = np.unravel_index(outer, self._outer) if self._outer else ()
        return (*[slice(at, at + 1) for at in before], slice(first, first + self._length))

    def _window(self, array: Array, place: tuple[Any, ...]) -> Array:
        """Return the elements of an input that go with a block."""
        if array.size == 1:
            return array.reshape(())
        if not self._is_flat:
            place = tuple([part if extent > 1 else slice(None) for part, extent in zip(place, array.shape)])
        view: Array = array[place]
        return view

    def _measure(self, block: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of a value of some shape in a block."""
        if self._is_flat:
            return block if prod(shape) > 1 else (1,)
        return tuple([extent if have > 1 else 1 for have, extent in zip(shape, block, strict=True)])


# Memory of scratch registers that no call uses at present. Fresh memory costs more than what most steps do with it: the
# system clears each page when it is first touched.
_idle: list[Array] = []
_IDLE_COUNT, BUFFER_NBYTES, SMALL_NBYTES = 32, 8 * BLOCK, 1 << 14


@dataclass(frozen=True, slots=True)
class _Spare:
    """Registers that one thread uses at a time, and views of them by the shape of a block."""

    dtypes: Sequence[_DType]
    buffers: list[Array | None]
    scratch: dict[tuple[int, ...], BlockScratch]

    @classmethod
    def of(cls, dtypes: Sequence[_DType]) -> _Spare:
        """Return registers of these types, which have no memory yet."""
        return cls(dtypes, [None] * len(dtypes), {})

    def find(self, register: int, shape: tuple[int, ...]) -> Array:
        """Return a register as an array of some shape, of a block's elements at most."""
        dtype = self.dtypes[register]
        nbytes = prod(shape) * dtype.itemsize
        if nbytes < SMALL_NBYTES or nbytes > BUFFER_NBYTES:
            return np.empty(shape, dtype)
        buffer = self.buffers[register]
        if buffer is None:
            buffer = self.buffers[register] = take_buffer()
        scratch: Array = buffer[:nbytes].view(dtype).reshape(shape)
        return scratch

    def give_back(self) -> None:
        """Leave the memory to other calls."""
        give_buffers([buffer for buffer in self.buffers if buffer is not None])


def take_buffer() -> Array:
    """Return memory for a block of any type, as bytes."""
    try:
        return _idle.pop()
    except IndexError:
        return np.empty(BUFFER_NBYTES, np.uint8)


def give_buffers(buffers: Sequence[Array]) -> None:
    """Leave memory to other calls."""
    if len(_idle) < _IDLE_COUNT:
        _idle.extend(buffers)


def prepare_blocks(
    rows: tuple[StepRow, ...], forms: StepForms, results: tuple[int, ...], inputs: tuple[SpecKey | None, ...]
) -> BlockProgram:
    """Return steps prepared for inputs of certain shapes and types.

    Args:
        rows: The steps.
        forms: What they make of these inputs; all have a form, and all results one shape.
        results: The steps that make the outputs.
        inputs: Shapes and types; None: absent.
    """
    shape = forms.specs[results[0]].shape
    steps = read_steps(rows)
    texts = list(dict.fromkeys(given for step in steps for given in step.inputs if isinstance(given, str)))
    first = len(inputs) + len(texts)  # number of the first step's result

    def find_value(given: int | str | None) -> int:
        if given is None:
            return -1
        if isinstance(given, str):
            return len(inputs) + texts.index(given)
        return given if given >= 0 else first + step_of(given)

    sources = [tuple([find_value(given) for given in step.inputs]) for step in steps]
    last = {value: place for place, row in enumerate(sources) for value in row}
    registers = _Registers()
    widened = []
    for number, key in enumerate(inputs):
        is_small = key is not None and accumulator(key[1]) != key[1] and number in last
        widened.append(registers.take(number, accumulator(key[1])) if is_small and key is not None else -1)
    calls = []
    assert forms.forms is not None
    for place, (form, row) in enumerate(zip(forms.forms, sources, strict=True)):
        wide, spec = accumulator(form.dtype), forms.specs[place]
        output = results.index(place) if place in results else -1
        is_direct = output >= 0 and wide == spec.dtype
        calls.append(
            _StepCall(
                form.function,
                row,
                (1,) * (len(shape) - spec.rank) + spec.shape[-len(shape) :] if shape else (),
                -1 if is_direct else registers.take(first + place, wide),
                output,
                None if wide == form.dtype else form.dtype,
                min(row, default=0) >= 0,
            )
        )
        registers.free([value for value, end in last.items() if end == place])
    return BlockProgram(
        shape,
        tuple([forms.specs[step].dtype for step in results]),
        tuple([None if key is None else _pad(key[0], len(shape)) for key in inputs]),
        tuple(widened),
        tuple([widen_number(text) for text in texts]),
        tuple(calls),
        tuple(registers.dtypes),
        all(key is None or prod(key[0]) == 1 or key[0] == shape for key in inputs)
        and all(spec.shape == shape or spec.size == 1 for spec in forms.specs),
    )


def _pad(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with as many axes as results have; that of one element may have more."""
    return (1,) * rank if prod(shape) == 1 else (1,) * (rank - len(shape)) + shape


@dataclass(slots=True)
class _Registers:
    """Scratch registers that values share whose lives don't meet."""

    dtypes: list[_DType] = field(default_factory=list)
    _holders: list[int | None] = field(default_factory=list)

    def take(self, value: int, dtype: _DType) -> int:
        """Return a register for a value."""
        for register, holder in enumerate(self._holders):
            if holder is None and self.dtypes[register] == dtype:
                self._holders[register] = value
                return register
        self.dtypes.append(dtype)
        self._holders.append(value)
        return len(self.dtypes) - 1

    def free(self, values: Sequence[int]) -> None:
        """Let go of the registers of values that nothing reads any more."""
        self._holders = [None if holder in values else holder for holder in self._holders]
