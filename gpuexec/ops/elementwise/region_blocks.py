"""Regions in NumPy: all steps over one block after the other, so that what passes between steps stays in the cache.

Blocks are shared by the cores. What a step makes is kept as the accumulator of its type, rounded to the type, as the
operators would round it where they store it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuexec.ir.operator import Array, Out, PreparedCalls
from gpuexec.ir.prepared_calls import prepare_step, view_bytes
from gpuexec.ir.spec import accumulator
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.elementwise_engine import ROW
from gpuexec.ops.elementwise.region_steps import SpecKey, StepForms, StepRow, read_steps, step_of, widen_number
from gpuexec.system.threads import count_sharing, share_work

# What inputs and scratch arrays of a block take together where one thread computes: as much as stays in the cache of a
# core. (Outputs of a block are written once and left.)
_CACHE_NBYTES = 7 << 18
# What one array takes at least where threads share the blocks, for each of them, but for so many at most. NumPy takes
# the interpreter's lock after each call, and who finds it taken sleeps for some 40 us: calls half as long meet four
# times as often. Yet a block that leaves the cache costs more. Twenty steps over 4,000,000 floats take 25.4 ms of
# processor time in blocks of 2**15, 24.3 of 2**16, 24.0 of 2**17, 25.1 of 2**18 and 27.1 of 2**19 (Xeon, 2 MB of cache
# for each core, November 2026). Where cores shared a larger cache, two threads took 11.6 ms in blocks of 2**16, 7.3 of
# 2**17, 6.0 of 2**18 and 2**19, and one 9.9, 9.9, 10.5 and 11.0 (AMD EPYC, family 26, November 2026).
CALL_NBYTES, _MOST = 1 << 18, 4
# Bytes that all steps write from which on it pays to wake a thread; what is no function of NumPy's own calls some.
_SHARED_NBYTES, _COMPOSED = 1 << 24, 4
_DType = np.dtype[Any]


class _StepCall(NamedTuple):
    """One step: its function over values by number, and where the result goes.

    Attributes:
        function: As of `gpuexec.ir.pointwise.Pointwise`.
        sources: Numbers of the values that it reads.
        target: Number of the value that it writes.
        rounding: How the result is rounded, where it is not of the type that it is computed in.
    """

    function: Callable[..., Any]
    sources: tuple[int, ...]
    target: int
    rounding: _StepRounding | None


class _StepRounding(NamedTuple):
    """How a result is rounded.

    Attributes:
        dtype: The type.
        output: Number of the output that it is; -1: none.
        is_read: Whether another step reads it rounded.
    """

    dtype: _DType
    output: int
    is_read: bool


class _Scratch(NamedTuple):
    """An array that a block needs beside inputs and outputs: a part of a register.

    Attributes:
        register: Which.
        shape: Of the value, as many axes as results of the region have.
    """

    register: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """Steps prepared for inputs of certain shapes and types.

    Values are numbered: inputs, then outputs, then numbers, then None for what is absent, then scratch arrays.

    Attributes:
        shape: Of the results.
        dtypes: Of the results.
        shapes: Of the inputs with as many axes; None: absent.
        widened: Inputs that are computed in another type, each with the value that it is widened to.
        numbers: The numbers, as 0-d arrays, and None.
        calls: The steps in order.
        scratch: What makes the scratch arrays of a block.
        registers: Type of each register, the memory of scratch arrays.
        is_even: Whether all inputs have the shape of the results or one element.
        width: Bytes of an element of the widest type.
        cost: Calls of NumPy, about.
        length: Elements of a block where one thread computes.
        is_divided: Whether there are several blocks.
        is_padded: Whether inputs have fewer axes than results, or more.
        idle: Scratch arrays of runs in one block that no run uses at present, where they are small.
        apart: The program for outputs that share no memory with inputs, if it takes fewer registers.
    """

    shape: tuple[int, ...]
    dtypes: tuple[_DType, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    widened: tuple[tuple[int, int], ...]
    numbers: tuple[Array | None, ...]
    calls: tuple[_StepCall, ...]
    scratch: tuple[_Scratch, ...]
    registers: tuple[_DType, ...]
    is_even: bool
    width: int
    cost: int
    length: int
    is_divided: bool
    is_padded: bool
    idle: list[list[Array]] = field(default_factory=list)
    apart: BlockProgram | None = None

    def run(self, inputs: Sequence[Array | None], out: Out) -> tuple[Array, ...]:
        """Return the results of a region, in the arrays of ``out`` where there are some.

        Args:
            inputs: The inputs; None: absent.
            out: As of `Operator.compute`: an array may be the memory of an input of the same shape and type, which no
                step reads once that output is made.
        """
        given = out or (None,) * len(self.dtypes)
        made = [np.empty(self.shape, d) if y is None else y for y, d in zip(given, self.dtypes)]
        size = made[0].size
        if self.apart is not None and size * self.width > SMALL_NBYTES and not _are_shared(inputs, made):
            return self.apart.run(inputs, made)
        if self.is_divided:
            _SharedBlocks(self, inputs, made).run()
        elif size:
            if self.is_padded:
                inputs = [
                    x if x is None or shape is None else x.reshape(shape) for x, shape in zip(inputs, self.shapes)
                ]
            with np.errstate(all="ignore"):
                self._run_whole(inputs, made, size)
        return tuple(made)

    def count_scratch(self) -> list[int]:
        """Return what the calls of `prepare` work in: bytes of each register, where all is one block."""
        if self.is_divided:
            return []
        size = prod(self.shape)
        others = () if self.apart is None else self.apart.registers
        widths = itertools.zip_longest(*[[dtype.itemsize for dtype in each] for each in (self.registers, others)])
        return [size * max(have or 0, other or 0) for have, other in widths]

    def prepare(
        self, inputs: Sequence[Array | None], out: Sequence[Array], scratch: Sequence[Array]
    ) -> PreparedCalls | None:
        """Return calls that do what `run` does; None: there are none.

        Args:
            inputs: As for `run`.
            out: Where all results go.
            scratch: Arrays of what `count_scratch` returned.
        """
        size = prod(self.shape)
        if not size:
            return None
        if self.apart is not None and size * self.width > SMALL_NBYTES and not _are_shared(inputs, out):
            return self.apart.prepare(inputs, out, scratch)
        if self.is_divided:
            return [_SharedBlocks(self, inputs, out).run]
        if len(scratch) < len(self.registers):
            return None
        shapes = self.shapes
        given = [x if x is None or shape is None else x.reshape(shape) for x, shape in zip(inputs, shapes, strict=True)]
        if any(x is not None and y is not None and not np.may_share_memory(x, y) for x, y in zip(inputs, given)):
            return None  # a copy, of what is not dense
        arrays = self.make_scratch(
            lambda number, shape: view_bytes(scratch[number], shape, self.registers[number]), None
        )
        values: list[Any] = [*given, *out, *self.numbers, *arrays]
        calls: list[Callable[[], object]] = []
        for number, wide in self.widened:
            calls.append(functools.partial(np.copyto, values[wide], values[number]))
        for call in self.calls:
            target, rounding = call.target, call.rounding
            calls += self._prepare_step(call, values)
            if rounding is not None:
                calls.append(functools.partial(_round, values[target], rounding, out))
        return calls

    def _run_whole(self, inputs: Sequence[Array | None], targets: Sequence[Array], size: int) -> None:
        """Compute all in one block."""
        if size * self.width * len(self.registers) <= SMALL_NBYTES:
            try:
                scratch = self.idle.pop()
            except IndexError:
                scratch = self.make_scratch(self._allocate, None)
            self.run_block(inputs, targets, scratch)
            self.idle.append(scratch)
        else:
            spare = _Spare.take(self, self.shape)
            self.run_block(inputs, targets, *spare.bind(self, self.shape, None))
            spare.give_back()

    def run_block(
        self,
        inputs: Sequence[Array | None],
        targets: Sequence[Array],
        scratch: Sequence[Array],
        steps: Sequence[_Bound] | None = None,
    ) -> None:
        """Compute one block; the caller has NumPy warn of nothing.

        NOTE: what happens between the calls of NumPy keeps other threads from the interpreter's lock.

        Args:
            inputs: Their parts of it; None: absent.
            targets: Of the results.
            scratch: For what is neither.
            steps: As of `bind`, with that scratch; None: none are bound.
        """
        values: list[Any] = [*inputs, *targets, *self.numbers, *scratch]
        for number, wide in self.widened:
            values[wide][...] = values[number]
        for step in self.calls if steps is None else steps:
            if isinstance(step, list):
                deque(map(operator.call, step), 0)  # with nothing between them
                continue
            function, sources, target, rounding = step
            if len(sources) == 2:
                first, second = sources
                function(values[first], values[second], out=values[target])
            else:
                function(*[values[source] for source in sources], out=values[target])
            if rounding is not None:
                _round(values[target], rounding, targets)

    def bind(self, scratch: Sequence[Array]) -> list[_Bound]:
        """Return the steps: in place of those that read and write nothing but scratch and numbers their calls."""
        first = len(self.shapes) + len(self.dtypes)
        values: list[Any] = [*[None] * first, *self.numbers, *scratch]
        steps: list[_Bound] = []
        for call in self.calls:
            rounding = call.rounding
            if min((*call.sources, call.target)) < first or (rounding is not None and rounding.output >= 0):
                steps.append(call)
                continue
            if not steps or not isinstance(steps[-1], list):
                steps.append([])
            calls = steps[-1]
            assert isinstance(calls, list)
            calls += self._prepare_step(call, values)
            if rounding is not None:
                calls.append(functools.partial(_round, values[call.target], rounding, ()))
        return steps

    def _prepare_step(self, call: _StepCall, values: Sequence[Any]) -> PreparedCalls:
        first = len(self.shapes) + len(self.dtypes)
        constant = [first <= source < first + len(self.numbers) for source in call.sources]
        return prepare_step(call.function, [values[source] for source in call.sources], values[call.target], constant)

    def _allocate(self, register: int, shape: tuple[int, ...]) -> Array:
        return np.empty(shape, self.registers[register])

    def make_scratch(
        self,
        find: Callable[[int, tuple[int, ...]], Array],
        measure: Callable[[tuple[int, ...]], tuple[int, ...]] | None,
    ) -> list[Array]:
        """Return scratch arrays for blocks of one shape.

        Args:
            find: Returns a register as an array of some shape.
            measure: Returns the extents in the block of a value of some shape; None: the block is the whole.
        """
        return [find(register, shape if measure is None else measure(shape)) for register, shape in self.scratch]


_Measure = Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]
_Bound = _StepCall | list[Callable[[], object]]


class _SharedBlocks:
    """The blocks of a call, which may be made again."""

    def __init__(self, program: BlockProgram, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> None:
        self._program = program
        arrays = [
            None if x is None or shape is None else x.reshape(shape if x.size > 1 else ())
            for x, shape in zip(inputs, program.shapes, strict=True)
        ]
        shape = program.shape
        is_flat = program.is_even and all(x.flags.c_contiguous for x in (*outputs, *arrays) if x is not None)
        if is_flat:
            shape = (prod(shape),)
            arrays = [x if x is None or not x.ndim else x.reshape(-1) for x in arrays]
            outputs = [y.reshape(-1) for y in outputs]
        self._arrays, self._outputs, self._is_flat = arrays, outputs, is_flat
        block, self._is_shared = _choose_length(program)
        # Blocks are whole along the axes behind the divided one, and one element of those before it.
        inner = list(itertools.accumulate(shape[:0:-1], int.__mul__, initial=1))[::-1]
        self._axis = next((axis for axis, size in enumerate(inner) if size <= block), 0)
        self._length = max(1, block // inner[self._axis]) if inner else 1
        self._outer, self._inner = shape[: self._axis], shape[self._axis + 1 :]
        self._pieces = -(-shape[self._axis] // self._length) if shape else 1
        self._shape = shape
        self._spare: list[_Spare] = []  # that no thread uses at present

    def run(self) -> None:
        """Compute all blocks."""
        count = prod(self._outer) * self._pieces
        with np.errstate(all="ignore"):
            if self._is_shared and count > 1:
                share_work(count, self._compute)
            else:
                for number in range(count):
                    self._compute(number)
        while self._spare:
            self._spare.pop().give_back()

    def _compute(self, number: int) -> None:
        """Compute one block."""
        place = self._find_place(number)
        targets = [y[place] for y in self._outputs]
        if self._is_flat:
            block = [x[place] if x is not None and x.ndim else x for x in self._arrays]
        else:
            block = [x if x is None or not x.ndim else self._window(x, place) for x in self._arrays]
        shape = targets[0].shape
        try:
            spare = self._spare.pop()
        except IndexError:
            spare = _Spare.take(self._program, (self._length, *self._inner))
        self._program.run_block(block, targets, *spare.bind(self._program, shape, self._measure))
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
        view: Array = array[tuple([part if extent > 1 else slice(None) for part, extent in zip(place, array.shape)])]
        return view

    def _measure(self, block: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the extents of a value of some shape in a block."""
        if self._is_flat:
            return block if prod(shape) > 1 else (1,)
        return tuple([extent if have > 1 else 1 for have, extent in zip(shape, block, strict=True)])


def _choose_length(program: BlockProgram) -> tuple[int, bool]:
    """Return how many elements a block of a program has, and whether threads share the blocks."""
    size, width, threads, longest = prod(program.shape), program.width, 1, program.length
    if size * width * program.cost >= _SHARED_NBYTES:
        threads = max(1, min(count_sharing(), size * width // CALL_NBYTES))
    if threads > 1:
        longest = max(longest, CALL_NBYTES * min(threads, _MOST) // width)
    # As many for each thread, of one size.
    count = -(-size // (longest * threads)) * threads
    length = -(-size // count)
    return -(-length // ROW) * ROW if length >= 8 * ROW else length, threads > 1


def _are_shared(inputs: Sequence[Array | None], outputs: Sequence[Array]) -> bool:
    """Return whether an output may be memory of an input."""
    return any(x is not None and np.may_share_memory(x, y) for x in inputs for y in outputs)


def _round(result: Array, rounding: _StepRounding, targets: Sequence[Array]) -> None:
    """Round a result to a type, and write it to an output, if it is one."""
    if rounding.output < 0:
        rounded = result.astype(rounding.dtype)
    else:
        rounded = targets[rounding.output]
        rounded[...] = result
    if rounding.is_read:
        result[...] = rounded


# Memory of scratch registers that no call uses at present, by its size. Fresh memory costs more than what most steps do
# with it: the system clears each page when it is first touched.
_idle: dict[int, list[Array]] = {}
_idle_spares: dict[int, list[_Spare]] = {}
_IDLE_NBYTES, SMALL_NBYTES = 1 << 25, 1 << 14
_BOUND_KEPT = 16  # programs and shapes of blocks


@dataclass(frozen=True, slots=True)
class _Spare:
    """Memory of registers that one thread uses at a time, with what programs have bound to it."""

    buffer: Array
    _bound: dict[tuple[int, tuple[int, ...]], tuple[BlockProgram, list[Array], list[_Bound]]]

    @classmethod
    def take(cls, program: BlockProgram, block: tuple[int, ...]) -> _Spare:
        """Return memory for blocks of a program up to some shape."""
        size = prod(block)
        nbytes = _round_up(sum([_align(size * dtype.itemsize) for dtype in program.registers]))
        try:
            return _idle_spares[nbytes].pop()
        except (KeyError, IndexError):
            return cls(np.empty(nbytes, np.uint8), {})

    def bind(
        self, program: BlockProgram, block: tuple[int, ...], measure: _Measure | None
    ) -> tuple[list[Array], list[_Bound]]:
        """Return the scratch arrays of a block of some shape, and the calls on those, see `BlockProgram.bind`.

        Args:
            program: Whose.
            block: The shape.
            measure: As of `BlockProgram.make_scratch`.
        """
        try:
            _, scratch, calls = self._bound[id(program), block]
        except KeyError:
            if len(self._bound) > _BOUND_KEPT:
                self._bound.clear()
            size = prod(block)
            firsts = list(
                itertools.accumulate(program.registers, lambda at, d: at + _align(size * d.itemsize), initial=0)
            )

            def find(register: int, shape: tuple[int, ...]) -> Array:
                return view_bytes(self.buffer[firsts[register] :], shape, program.registers[register])

            scratch = program.make_scratch(find, measure and functools.partial(measure, block))
            calls = program.bind(scratch)
            self._bound[id(program), block] = program, scratch, calls
        return scratch, calls

    def give_back(self) -> None:
        """Leave the memory to other calls."""
        idle = _idle_spares.setdefault(self.buffer.nbytes, [])
        if (len(idle) + 1) * self.buffer.nbytes <= _IDLE_NBYTES:
            idle.append(self)


def _align(nbytes: int) -> int:
    return -(-nbytes // 64) * 64  # a line of the cache


def _round_up(nbytes: int) -> int:
    return 1 << (nbytes - 1).bit_length()


def take_buffer(nbytes: int) -> Array:
    """Return memory for a block of any type, of at least so many bytes."""
    size = _round_up(nbytes)
    try:
        return _idle[size].pop()
    except (KeyError, IndexError):
        return np.empty(size, np.uint8)


def give_buffers(buffers: Sequence[Array]) -> None:
    """Leave memory to other calls."""
    for buffer in buffers:
        idle = _idle.setdefault(buffer.nbytes, [])
        if (len(idle) + 1) * buffer.nbytes <= _IDLE_NBYTES:
            idle.append(buffer)


@memoize(1024)
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
    program = _prepare(rows, forms, results, inputs)
    if prod(program.shape) > 2 * program.length:
        return _prepare(rows, forms, results, inputs, is_divided=True)
    apart = _prepare(rows, forms, results, inputs, is_apart=True)
    return replace(program, apart=apart) if len(apart.registers) < len(program.registers) else program


def _prepare(
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: tuple[int, ...],
    inputs: tuple[SpecKey | None, ...],
    *,
    is_apart: bool = False,
    is_divided: bool = False,
) -> BlockProgram:
    """Return the steps prepared.

    Args:
        rows: As of `prepare_blocks`, as are the others.
        forms: See there.
        results: See there.
        inputs: See there.
        is_apart: Whether outputs share no memory with inputs, and may hold what other steps make before.
        is_divided: Whether there are several blocks. Outputs hold nothing but results then: what is between is in
            scratch arrays, where each thread's calls are bound once for all of its blocks.
    """
    shape = forms.specs[results[0]].shape
    steps = read_steps(rows)
    texts = list(dict.fromkeys(given for step in steps for given in step.inputs if isinstance(given, str)))
    absent = len(inputs) + len(texts)
    first = absent + 1  # number of the first step's result

    def find_value(given: int | str | None) -> int:
        if given is None:
            return absent
        if isinstance(given, str):
            return len(inputs) + texts.index(given)
        return given if given >= 0 else first + step_of(given)

    sources = [tuple([find_value(given) for given in step.inputs]) for step in steps]
    last = {value: place for place, row in enumerate(sources) for value in row}
    shapes = {number: _pad(key[0], len(shape)) for number, key in enumerate(inputs) if key is not None}
    assert forms.pointwise is not None
    registers = _Registers({
        output: (step, forms.specs[step].dtype)
        for output, step in enumerate(results)
        if accumulator(forms.specs[step].dtype) == forms.specs[step].dtype and not is_divided
    })  # fmt: skip
    scratch: list[_Scratch] = []
    first_scratch = first + len(results)
    places = {value: value if value < len(inputs) else value + len(results) for value in range(first)}
    widened = []
    for number, key in enumerate(inputs):
        if key is not None and accumulator(key[1]) != key[1] and number in last:
            places[number] = first_scratch + len(scratch)
            widened.append((number, places[number]))
            scratch.append(_Scratch(registers.take(number, accumulator(key[1])), shapes[number]))
    # From this step on outputs may be written, though they be the memory of inputs: these are read no more.
    kept = [last[number] for number in range(len(inputs)) if places[number] == number and number in last]
    read = 0 if is_apart else max(kept, default=0)
    calls = []
    for place, (form, row) in enumerate(zip(forms.pointwise, sources, strict=True)):
        wide, spec, value = accumulator(form.dtype), forms.specs[place], first + place
        own = (1,) * (len(shape) - spec.rank) + spec.shape[-len(shape) :] if shape else ()
        output = results.index(place) if place in results else -1
        target = output
        done = [each for each in row if last[each] == place]
        registers.free([each for each in done if shapes.get(each) == own])  # a result may take an input's memory
        rounded = form.dtype if output < 0 else spec.dtype
        if output < 0 or wide != rounded:
            is_whole = own == shape and output < 0 and wide == rounded and place >= read
            target = registers.take_output(value, wide, place, last.get(value, place)) if is_whole else -1
        if target >= 0:
            places[value] = len(inputs) + target
        else:
            places[value] = first_scratch + len(scratch)
            scratch.append(_Scratch(registers.take(value, wide), own))
        registers.free(done)
        shapes[value] = own
        rounding = None if wide == rounded else _StepRounding(rounded, output, value in last and wide != form.dtype)
        calls.append(_StepCall(form.function, tuple([places[each] for each in row]), places[value], rounding))
    whole = [key[1] for number, key in enumerate(inputs) if key is not None and shapes[number] == shape]
    held = [step for step in results if not is_divided or last.get(first + step, step) > step]
    taken = [dtype.itemsize for dtype in (*whole, *registers.dtypes, *[forms.specs[step].dtype for step in held])]
    widths = [*taken, *[forms.specs[step].dtype.itemsize for step in results]]
    return BlockProgram(
        shape,
        tuple([forms.specs[step].dtype for step in results]),
        tuple([None if key is None else shapes[number] for number, key in enumerate(inputs)]),
        tuple(widened),
        (*[widen_number(text) for text in texts], None),
        tuple(calls),
        tuple(scratch),
        tuple(registers.dtypes),
        all(key is None or prod(key[0]) == 1 or key[0] == shape for key in inputs)
        and all(spec.shape == shape or spec.size == 1 for spec in forms.specs),
        max(widths),
        sum(1 if isinstance(call.function, np.ufunc) else _COMPOSED for call in calls),
        max(1, _CACHE_NBYTES // max(sum(taken), 1)),
        is_divided,
        any(key is not None and key[0] != shapes[number] for number, key in enumerate(inputs)),
    )


def _pad(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with as many axes as results have; that of one element may have more."""
    return (1,) * rank if prod(shape) == 1 else (1,) * (rank - len(shape)) + shape


@dataclass(slots=True)
class _Registers:
    """Scratch registers that values share whose lives don't meet.

    Attributes:
        outputs: The step that makes an output, and its type, where no rounding comes in between.
        dtypes: Types of the registers.
    """

    outputs: dict[int, tuple[int, _DType]]
    dtypes: list[_DType] = field(default_factory=list)
    _holders: list[int | None] = field(default_factory=list)
    _guests: dict[int, int] = field(default_factory=dict)

    def take(self, value: int, dtype: _DType) -> int:
        """Return a register for a value."""
        for register, holder in enumerate(self._holders):
            if holder is None and self.dtypes[register] == dtype:
                self._holders[register] = value
                return register
        self.dtypes.append(dtype)
        self._holders.append(value)
        return len(self.dtypes) - 1

    def take_output(self, value: int, dtype: _DType, place: int, end: int) -> int:
        """Return an output whose memory a value can be in until it is read last; -1: there is none."""
        for output, (step, own) in self.outputs.items():
            if output not in self._guests and own == dtype and place < step and end <= step:
                self._guests[output] = value
                return output
        return -1

    def free(self, values: Sequence[int]) -> None:
        """Let go of the registers of values that nothing reads any more."""
        self._holders = [None if holder in values else holder for holder in self._holders]
        self._guests = {output: value for output, value in self._guests.items() if value not in values}
