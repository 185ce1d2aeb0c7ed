"""Row regions in NumPy: all steps over one block of whole rows after the other, shared by the cores.

Operators on rows compute a block as they compute the whole: NumPy adds up the elements of a dense row in an order that
other rows have no say in. What a step makes is kept as in other regions (`region_blocks`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.operator import Array, Operator, Out, PreparedCalls
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.prepared_calls import prepare_step, view_bytes
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import TensorSpec, accumulator
from gpuexec.ir.symbolic_int import memoize
from gpuexec.ops.elementwise.region_blocks import give_buffers, take_buffer
from gpuexec.ops.elementwise.region_steps import SpecKey, StepForms, StepRow, read_steps, step_of, widen_number
from gpuexec.ops.elementwise.row_layout import RowLayout
from gpuexec.system.threads import share_work

# Elements of a block. Softmax behind a sum of 512 x 768 floats by one thread: 0.95 ms in blocks of 2**15, 0.78 of
# 2**17, 0.60 of 2**18, 0.58 of 2**20; of 4608 x 384: 3.7, 2.9, 2.9, 3.4 (AMD EPYC, November 2026).
BLOCK = 1 << 18
_SHARED = 1 << 22  # elements that all steps make from which on it pays to wake a thread
_DType = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class _RowStep:
    """One step: its function over values by number, and where the result goes.

    Attributes:
        function: As of `gpuexec.ir.pointwise.Pointwise`.
        operator: What is computed on rows; None: elements.
        sources: Numbers of the values that it reads; -1: absent.
        shape: Of the result.
        wide: The type that it is computed in.
        rounded: The type that others see it rounded to.
        output: The output that it is; -1: none.
        is_direct: Whether it is computed in the memory of the output.
        done: Numbers of the values that no later step reads.
    """

    function: Callable[..., Any]
    operator: Operator | None
    sources: tuple[int, ...]
    shape: tuple[int, ...]
    wide: _DType
    rounded: _DType
    output: int
    is_direct: bool
    done: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowProgram:
    """Steps prepared for inputs of certain shapes and types. Values are numbered: inputs, numbers, results of steps.

    Attributes:
        layout: Of the rows.
        outputs: Shapes and types of the results.
        shapes: Of the inputs, with as many axes as they go with; None: absent.
        dtypes: Types of the inputs; None: absent.
        wide: The type that each input is computed in, where that is not its own.
        numbers: The numbers.
        steps: The steps in order.
        folded: Positions of inputs that are reduced as they lie in memory.
    """

    layout: RowLayout
    outputs: tuple[tuple[tuple[int, ...], _DType], ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[_DType | None, ...]
    wide: tuple[_DType | None, ...]
    numbers: tuple[Array, ...]
    steps: tuple[_RowStep, ...]
    folded: tuple[int, ...]

    def can_run(self, inputs: Sequence[Array | None]) -> bool:
        """Return whether rows that are reduced are dense, so that their sums are those of the operators."""
        return all(x is not None and x.flags.c_contiguous for x in (inputs[place] for place in self.folded))

    def count_scratch(self) -> list[int]:
        """Return what the calls of `prepare` work in, where all rows are one block.

        Bytes of each register, then of the scratch of operators on rows, which take turns in it.
        """
        if len(_list_blocks(self.layout)) > 1:
            return []
        needed = [self._count_step(step) for step in self.steps]
        shared = [max(each) for each in itertools.zip_longest(*needed, fillvalue=0)]
        return [*self._find_registers()[1], *shared]

    def prepare(
        self, inputs: Sequence[Array | None], out: Sequence[Array], scratch: Sequence[Array]
    ) -> PreparedCalls | None:
        """Return calls that do what `run` does; None: there are none.

        Args:
            inputs: As for `run`.
            out: Where all results go.
            scratch: Arrays of what `count_scratch` returned.
        """
        is_whole = len(_list_blocks(self.layout)) == 1  # then operators reduce what they would by themselves
        may_fold = self.can_run(inputs) or (is_whole and all(self.wide[place] is None for place in self.folded))
        if not may_fold or not all(y.size and y.flags.c_contiguous for y in out):
            return None
        if not is_whole:
            return [functools.partial(self.run, inputs, out)]
        registers, sizes = self._find_registers()
        if len(scratch) < len(sizes):
            return None
        shared = scratch[len(sizes) :]
        values: list[Any] = [
            None if x is None or shape is None else x.reshape(shape)
            for x, shape in zip(inputs, self.shapes, strict=True)
        ]
        if any(x is not None and y is not None and not np.may_share_memory(x, y) for x, y in zip(inputs, values)):
            return None  # a copy, of what is not dense
        calls: list[Callable[[], object]] = []
        for number, dtype in enumerate(self.wide):
            if dtype is not None:
                wide = view_bytes(scratch[registers[number]], values[number].shape, dtype)
                calls.append(functools.partial(np.copyto, wide, values[number]))
                values[number] = wide
        values += self.numbers
        for step in self.steps:
            register = registers.get(len(values))
            result = out[step.output] if register is None else view_bytes(scratch[register], step.shape, step.wide)
            given = [values[source] if source >= 0 else None for source in step.sources]
            calls += self._prepare_step(step, given, result, shared)
            if step.output >= 0 and not step.is_direct:
                calls.append(functools.partial(np.copyto, out[step.output], result, "unsafe"))
            if step.rounded != step.wide:
                calls.append(functools.partial(_round_to, result, step.rounded))
            values.append(result)
        return calls

    def _prepare_step(
        self, step: _RowStep, given: Sequence[Array | None], result: Array, scratch: Sequence[Array]
    ) -> PreparedCalls:
        """Return the calls of a step: those of an operator on rows, or its function."""
        if step.operator is not None:
            constant = [source >= len(self.shapes) for source in step.sources]  # as numbers of the region are
            prepared = step.operator.prepare(given, (result,), constant, scratch[: len(self._count_step(step))])
            return [functools.partial(step.function, *given, out=result)] if prepared is None else prepared
        return prepare_step(step.function, given, result)

    def _count_step(self, step: _RowStep) -> Sequence[int]:
        """Return the scratch of an operator on rows."""
        if step.operator is None:
            return ()
        inputs = [None if source < 0 else self._find_spec(source) for source in step.sources]
        return step.operator.count_scratch(inputs, (TensorSpec(step.shape, step.wide),))

    def _find_spec(self, value: int) -> TensorSpec | None:
        """Return the spec of a value, in the type that it is computed in."""
        count = len(self.shapes)
        if value >= count + len(self.numbers):
            step = self.steps[value - count - len(self.numbers)]
            return TensorSpec(step.shape, step.wide)
        if value >= count:
            return TensorSpec.of(self.numbers[value - count])
        shape, dtype = self.shapes[value], self.wide[value] or self.dtypes[value]
        return None if shape is None or dtype is None else TensorSpec(shape, dtype)

    def _find_registers(self) -> tuple[dict[int, int], list[int]]:
        """Return the register of each value that is in one, and bytes of each register, of which values take turns."""
        registers: dict[int, int] = {}
        sizes: list[int] = []
        idle: set[int] = set()

        def take(value: int, nbytes: int) -> None:
            fits = [number for number in idle if sizes[number] >= nbytes]
            number = min(fits, key=sizes.__getitem__, default=len(sizes))
            if number == len(sizes):
                sizes.append(nbytes)
            idle.discard(number)
            registers[value] = number

        for number, dtype in enumerate(self.wide):
            shape = self.shapes[number]
            if dtype is not None and shape is not None:
                take(number, prod(shape) * dtype.itemsize)
        value = len(self.shapes) + len(self.numbers)
        for step in self.steps:
            if not step.is_direct:
                take(value, prod(step.shape) * step.wide.itemsize)
            idle |= {registers[done] for done in step.done if done in registers}
            value += 1
        return registers, sizes

    def run(self, inputs: Sequence[Array | None], out: Out) -> tuple[Array, ...]:
        """Return the results of a region, in the arrays of ``out`` where there are dense ones.

        Args:
            inputs: The inputs; None: absent.
            out: As of `Operator.compute`: an array may be the memory of an input of the same shape and type, which no
                step reads once that output is made.
        """
        given = out or (None,) * len(self.outputs)
        made = tuple([
            y if y is not None and y.flags.c_contiguous else np.empty(shape, dtype)
            for y, (shape, dtype) in zip(given, self.outputs, strict=True)
        ])  # fmt: skip
        arrays = [
            None if x is None or shape is None else x.reshape(shape)
            for x, shape in zip(inputs, self.shapes, strict=True)
        ]
        if any(y.size for y in made):
            blocks = _list_blocks(self.layout)
            with np.errstate(all="ignore"):
                if len(blocks) > 1 and prod(self.layout.shape) * len(self.steps) >= _SHARED:
                    share_work(len(blocks), lambda number: self._compute(arrays, made, blocks[number]))
                else:
                    for block in blocks:
                        self._compute(arrays, made, block)
        return made

    def _compute(self, inputs: Sequence[Array | None], outputs: Sequence[Array], block: tuple[slice, ...]) -> None:
        """Compute a block of rows."""
        targets = [_cut(y, block) for y in outputs] if block else outputs
        values: list[Any] = [x if x is None or not block else _cut(x, block) for x in inputs]
        buffers: dict[int, Array] = {}
        for number, dtype in enumerate(self.wide):
            if dtype is not None:
                values[number] = values[number].astype(dtype, order="C")
        values += self.numbers
        extents = _measure(self.layout.shape, block)
        for step in self.steps:
            if step.is_direct:
                result = targets[step.output]
            else:
                shape = step.shape
                if block:
                    shape = tuple([extent if have > 1 else have for have, extent in zip(step.shape, extents)])
                nbytes = prod(shape) * step.wide.itemsize
                buffer = buffers[len(values)] = take_buffer(max(1, nbytes))
                result = buffer[:nbytes].view(step.wide).reshape(shape)
            step.function(*[values[source] if source >= 0 else None for source in step.sources], out=result)
            if step.output >= 0 and not step.is_direct:
                targets[step.output][...] = result
            if step.rounded != step.wide:
                _round_to(result, step.rounded)
            values.append(result)
            give_buffers([buffers.pop(number) for number in step.done if number in buffers])
        give_buffers(list(buffers.values()))


def _round_to(result: Array, dtype: _DType) -> None:
    """Round numbers to what a type has of them."""
    result[...] = result.astype(dtype)


def _list_blocks(layout: RowLayout) -> list[tuple[slice, ...]]:
    """Return the indices of blocks of whole rows, which are dense where the whole is."""
    rows = layout.shape[: layout.axis]
    if not rows or prod(layout.shape) <= 2 * BLOCK:
        return [()]
    inner = [prod(layout.shape[axis + 1 :]) for axis in range(len(rows))]
    axis = next((axis for axis, size in enumerate(inner) if size <= BLOCK), len(rows) - 1)
    length = max(1, BLOCK // max(1, inner[axis]))
    before = itertools.product(*[range(extent) for extent in rows[:axis]])
    pieces = [slice(first, first + length) for first in range(0, rows[axis], length)]
    return [(*[slice(at, at + 1) for at in places], piece) for places in before for piece in pieces]


def _measure(shape: tuple[int, ...], block: tuple[slice, ...]) -> tuple[int, ...]:
    """Return the extents of a block of a shape."""
    divided = [len(range(*part.indices(extent))) for part, extent in zip(block, shape)]
    return (*divided, *shape[len(divided) :])


def _cut(array: Array, block: tuple[slice, ...]) -> Array:
    """Return the part of a value that goes with a block; one row goes with all."""
    place: tuple[Any, ...] = tuple([part if extent > 1 else slice(None) for part, extent in zip(block, array.shape)])
    view: Array = array[(*place, ...)]
    return view


@memoize(1024)
def prepare_row_blocks(
    rows: tuple[StepRow, ...],
    forms: StepForms,
    results: tuple[int, ...],
    inputs: tuple[SpecKey | None, ...],
    layout: RowLayout,
) -> RowProgram:
    """Return steps prepared for inputs of certain shapes and types.

    Args:
        rows: The steps.
        forms: What they make of these inputs; all have a form.
        results: The steps that make the outputs.
        inputs: Shapes and types; None: absent.
        layout: Of the rows.
    """
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
    assert forms.forms is not None
    made = []
    for place, (step, form) in enumerate(zip(steps, forms.forms, strict=True)):
        operator = None if isinstance(form, Pointwise) else step.operator
        function = form.function if isinstance(form, Pointwise) else functools.partial(_compute_rows, step.operator)
        wide, spec = accumulator(form.dtype), forms.specs[place]
        output = results.index(place) if place in results else -1
        is_direct = output >= 0 and wide == spec.dtype
        done = tuple([value for value, end in last.items() if end == place])
        made.append(_RowStep(function, operator, sources[place], spec.shape, wide, form.dtype, output, is_direct, done))
    folded = dict.fromkeys(
        step.inputs[0] for step, form in zip(steps, forms.forms, strict=True) if isinstance(form, RowForm)
    )
    return RowProgram(
        layout,
        tuple([(forms.specs[step].shape, forms.specs[step].dtype) for step in results]),
        tuple([None if key is None else _pad(key[0], rank) for key, rank in zip(inputs, layout.ranks, strict=True)]),
        tuple([None if key is None else key[1] for key in inputs]),
        tuple([
            None if key is None or number not in last or accumulator(key[1]) == key[1] else accumulator(key[1])
            for number, key in enumerate(inputs)
        ]),
        tuple([widen_number(text) for text in texts]),
        tuple(made),
        tuple([given for given in folded if isinstance(given, int) and given >= 0]),
    )  # fmt: skip


def _pad(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return a shape with as many axes as rank says; that of one element may have more."""
    return (1,) * rank if prod(shape) == 1 else (1,) * (rank - len(shape)) + shape


def _compute_rows(operator: Operator, *arrays: Array | None, out: Array) -> None:
    """Compute an operator on rows of accumulators, whose result is rounded behind."""
    (made, *_) = operator.compute(*arrays, out=(out,))
    if made is not out:
        out[...] = made
