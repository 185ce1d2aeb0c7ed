"""Einsum: sums of products over labelled axes, contracted in pairs.

Diagonals and transposes are strides. Labels of one operand alone are reduced first; then operands are contracted in
pairs, in the order `einsum_equation` finds. A pair that sums over a label and keeps one of a single operand is a matrix
product: it launches the kernel of MatMul once, with as many of its axes as batches as don't merge into rows, columns
and inner extent. Other pairs (and integers of 8 and 16 bits) take the kernel of ``einsum.cu``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import Shape, broadcast, ceil_div, coalesce
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    build,
    operator,
)
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, UNSIGNED_BY_SIZE
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.lib.strided import join
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.linalg.einsum_equation import Contraction, Equation, Labels, measure, order_contractions, parse
from gpuexec.ops.linalg.matmul import multiply, prepare_product
from gpuexec.ops.linalg.matmul_launch import DTYPES as PRODUCT_TYPES
from gpuexec.ops.linalg.matmul_launch import launch_gemm
from gpuexec.ops.reduce.reduce import ROWS as REDUCTIONS
from gpuexec.ops.reduce.reduce import lower_reduction
from gpuexec.ops.tensor.layout import window

DTYPES = (*FLOATS, *dtypes_of("int", "uint"))
_SOURCE = "einsum.cu"
_SUM = next(row for row in REDUCTIONS if row.name == "ReduceSum")
instantiate(_SOURCE, [f"contract<{dtype_row(dtype).cuda}>" for dtype in FLOATS])
instantiate(_SOURCE, [f"contract<{unsigned}>" for unsigned in UNSIGNED_BY_SIZE.values()])


@operator("Einsum")
@dataclass(frozen=True, slots=True)
class Einsum(Operator):
    """Sum of products over the indices of ``equation`` that its output does not name."""

    equation: str
    precision: str = ""  # of `ir.precision`; operands are of float, perhaps rounded to it
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    example = "float32[2,3] float32[3,4] equation='ij,jk'"
    flops_per_output = None
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the extents of the output's labels.

        Raises:
            InputError: The equation is malformed or does not fit the operands, or types differ.
        """
        if not inputs:
            raise InputError(f"Einsum expects operands, got none for equation {self.equation!r}.")
        first = check_dtype("Einsum", inputs[0], DTYPES, "operand 0")
        specs = [check_dtype("Einsum", spec, (first.dtype,), f"operand {i}") for i, spec in enumerate(inputs)]
        equation, extents, _ = self._plan([spec.shape for spec in specs])
        return (TensorSpec(tuple(extents[label] for label in equation.output), first.dtype),)

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the last axis whose label the output has and no other operand, where no ellipsis hides it."""
        terms = self.equation.replace(" ", "").partition("->")[0].split(",")
        if "." in self.equation:
            return None
        output = parse(self.equation, tuple(map(len, terms))).output
        others = {label for term in (*terms[:factor], *terms[factor + 1 :]) for label in term}
        axes = [axis for axis, label in enumerate(terms[factor]) if label in output and label not in others]
        return axes[-1] if axes else None

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Contract pair by pair, by NumPy's matrix product where it is one; halves in float, rounded once."""
        arrays = [x for x in inputs if x is not None]
        dtype = arrays[0].dtype
        equation, _, steps = self._plan([x.shape for x in arrays])
        with np.errstate(all="ignore"):
            found: list[tuple[Array, Labels]] = []
            for index, (x, term) in enumerate(zip(arrays, equation.terms, strict=True)):
                kept = _kept_labels(equation, index)
                view, labels = _diagonal(x.astype(accumulator(dtype), copy=False), term)
                found.append((_sum_to(view, labels, kept), kept))
            for step in steps:
                right, left = found.pop(step.right), found.pop(step.left)
                found.append((_contract(*left, *right, step.labels), step.labels))
            result = found[0][0].astype(dtype, copy=False)
            return (np.array(result) if len(arrays) == 1 else result,)  # not a view: an epilogue works in it

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count copies of two operands, and their product."""
        specs, y = [spec for spec in inputs if spec is not None], outputs[0]
        if len(specs) != 2 or y is None:
            return []
        _, extents, _ = self._plan([spec.shape for spec in specs])
        terms = parse(self.equation, tuple([spec.rank for spec in specs])).terms
        sizes = [prod([extents[label] for label in term]) * y.dtype.itemsize for term in terms]
        return [*sizes, y.nbytes]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply two operands, whose labels the output or the other has, by one call."""
        arrays, y = [x for x in inputs if x is not None], out[0]
        if len(arrays) != 2 or not is_plain(y, arrays[0].dtype) or not all(x.size for x in arrays) or len(scratch) < 3:
            return None
        equation, _, steps = self._plan([x.shape for x in arrays])
        if any(_kept_labels(equation, index) != term for index, term in enumerate(equation.terms)):
            return None
        a, b = arrays[steps[0].left], arrays[steps[0].right]
        a_labels, b_labels = equation.terms[steps[0].left], equation.terms[steps[0].right]
        sides = _Sides.of(a_labels, b_labels, steps[0].labels)
        if not sides.inner:
            spread = [_spread(x, term, sides.labels) for x, term in ((a, a_labels), (b, b_labels))]
            if not all(np.may_share_memory(x, view) for x, view in zip((a, b), spread, strict=True)):
                return None
            return [partial(np.multiply, *spread, out=y)]
        return _prepare_contraction((a, b), (a_labels, b_labels), sides, y, scratch)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a sum for each operand that needs one, then a product for each pair; alias views."""
        slots, y = [slot for slot in inputs if slot is not None], outputs[0]
        assert y is not None
        equation, _, steps = self._plan([slot.shape for slot in slots])
        sums = sum(len(set(term)) != len(_kept_labels(equation, i)) for i, term in enumerate(equation.terms))
        if sums + len(steps) > 1 and accumulator(y.dtype) != y.dtype:  # intermediate results are not rounded
            result = emit.temp(y.shape, accumulator(y.dtype))
            slots = [_cast(emit, slot, emit.temp(slot.shape, result.dtype)) for slot in slots]
        else:
            result = y
        _Contracting(emit, equation, steps, result, precision=self.precision).lower(slots)
        if result is not y:
            _cast(emit, result, y)

    def _plan(self, shapes: Sequence[Shape]) -> tuple[Equation, dict[str, int], tuple[Contraction, ...]]:
        equation = parse(self.equation, tuple(map(len, shapes)))
        extents = measure(equation, shapes, self.equation)
        terms = tuple(_kept_labels(equation, index) for index in range(len(shapes)))
        return equation, extents, order_contractions(terms, equation.output, extents)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A slot and the label of each of its axes; no label twice."""

    slot: Slot
    labels: Labels

    def extent(self, label: str) -> int:
        """Return the extent along a label; 1 where it has none."""
        return self.slot.shape[self.labels.index(label)] if label in self.labels else 1

    def strides(self, labels: Labels, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the strides along labels of common extents: 0 where the operand stretches."""
        return tuple(
            self.slot.strides[self.labels.index(label)] if self.extent(label) == extent and label in self.labels else 0
            for label, extent in zip(labels, extents, strict=True)
        )

    def arranged(self, labels: Labels, extents: Sequence[int]) -> Slot:
        """Return a view with these axes, stretched to their extents."""
        return window(self.slot, extents, self.strides(labels, extents))


@dataclass(frozen=True, slots=True)
class _Contracting:
    """The launches of one Einsum, which end in ``result``."""

    emit: Emitter
    equation: Equation
    steps: tuple[Contraction, ...]
    result: Slot
    precision: str

    def lower(self, slots: Sequence[Slot]) -> None:
        """Launch all of it."""
        operands = []
        for index, (slot, term) in enumerate(zip(slots, self.equation.terms, strict=True)):
            kept = _kept_labels(self.equation, index)
            operands.append(self._sum(_take_diagonal(slot, term), kept))
        for step in self.steps:
            right, left = operands.pop(step.right), operands.pop(step.left)
            shape = _stretch(left, right, step.labels)
            made = _Operand(self._target(shape, not operands), step.labels)
            self._contract(left, right, made)
            operands.append(made)

    def _target(self, shape: Shape, is_last: bool) -> Slot:
        return self.result if is_last else self.emit.temp(shape, self.result.dtype)

    def _sum(self, x: _Operand, kept: Labels) -> _Operand:
        """Sum over the labels that are not kept; one operand alone ends in the result."""
        is_last = len(self.equation.terms) == 1
        summed = tuple(label for label in x.labels if label not in kept)
        shape = tuple(map(x.extent, kept))
        if not summed:
            view = x.arranged(kept, shape)
            if is_last:
                self.emit.alias(self.result, view)
            return _Operand(view, kept)
        y = self._target(shape, is_last)
        order = (*kept, *summed)
        view = x.arranged(order, tuple(map(x.extent, order)))
        if view.dtype in PRODUCT_TYPES:
            lower_reduction(self.emit, _SUM, view, y, tuple(range(len(kept), len(order))))
        else:
            self._walk(_Operand(view, order), None, _Operand(y, kept))
        return _Operand(y, kept)

    def _contract(self, a: _Operand, b: _Operand, y: _Operand) -> None:
        """Multiply two operands and sum over the labels that ``y`` lacks."""
        rows = tuple(label for label in y.labels if label not in b.labels)
        columns = tuple(label for label in y.labels if label not in a.labels)
        inner = tuple(label for label in a.labels if label not in y.labels)
        if not inner or not (rows or columns) or y.slot.dtype not in PRODUCT_TYPES:
            self._walk(a, b, y)
            return
        if not columns or (rows and y.labels.index(rows[-1]) > y.labels.index(columns[-1])):
            a, b, rows, columns = b, a, columns, rows  # columns are what lies dense in the output
        self._multiply(a, b, y, rows, columns)

    def _multiply(self, a: _Operand, b: _Operand, y: _Operand, rows: Labels, columns: Labels) -> None:
        """Launch the kernel of matrix products once."""
        a, b, (inner, a_inner, b_inner) = self._merge_inner(a, b, y)
        batch = tuple(label for label in y.labels if label in a.labels and label in b.labels)

        def walk(labels: Labels) -> tuple[Shape, tuple[tuple[int, ...], ...]]:
            extents = tuple(map(y.extent, labels))
            return coalesce(extents, [x.strides(labels, extents) for x in (a, b, y)])

        row_extent, (a_row, _, y_row), row_rest = _take_longest(*walk(rows))
        column_extent, (_, b_column, y_column), column_rest = _take_longest(*walk(columns))
        extents, walks = walk(batch)
        axes = [*zip(extents, *walks, strict=True), *row_rest, *column_rest]
        merged, strides = coalesce([axis[0] for axis in axes], [[axis[i] for axis in axes] for i in (1, 2, 3)])
        launch_gemm(
            self.emit,
            (a.slot, b.slot, None, y.slot),
            (row_extent, column_extent, inner),
            (a_row, a_inner, b_inner, b_column, 0, 0, y_row),
            batch=(merged, strides),
            y_column=y_column,
            precision=self.precision,
        )

    def _merge_inner(self, a: _Operand, b: _Operand, y: _Operand) -> tuple[_Operand, _Operand, tuple[int, int, int]]:
        """Return the operands with the summed axes walked as one, copied if need be, and its extent and strides."""
        inner = tuple(label for label in a.labels if label not in y.labels)
        if len(inner) > 1:
            if not _is_run(inner, a.labels):
                inner = tuple(label for label in b.labels if label not in y.labels)
            extents = _stretch(a, b, inner)
            a, b = self._arrange_inner(a, inner, extents), self._arrange_inner(b, inner, extents)
        extents = _stretch(a, b, inner)
        if 0 in extents:
            return a, b, (0, 0, 0)
        merged, strides = coalesce(extents, [x.strides(inner, extents) for x in (a, b)])
        assert len(merged) < 2, f"{inner} are not walked as one"
        return a, b, (merged[0], strides[0][0], strides[1][0]) if merged else (1, 0, 0)

    def _arrange_inner(self, x: _Operand, inner: Labels, extents: Shape) -> _Operand:
        """Return the operand with these labels as a run of dense memory."""
        if _is_run(inner, x.labels) and all(x.extent(label) == extent for label, extent in zip(inner, extents)):
            return _Operand(self.emit.contiguous(x.slot), x.labels)
        labels = (*(label for label in x.labels if label not in inner), *inner)
        wanted = dict(zip(inner, extents))
        view = x.arranged(labels, tuple(wanted.get(label, x.extent(label)) for label in labels))
        return _Operand(self.emit.contiguous(view), labels)

    def _walk(self, a: _Operand, b: _Operand | None, y: _Operand) -> None:
        """Launch the kernel of contractions that are no matrix product."""
        second = a if b is None else b
        inner = tuple(label for label in a.labels if label not in y.labels)
        extents = _stretch(a, second, inner)
        kept = join(y.slot.shape, [x.strides(y.labels, y.slot.shape) for x in (a, second, y)])
        reduced = join(extents, [x.strides(inner, extents) for x in (a, second)])
        near, far = abs(kept.inner_strides[0]), abs(reduced.inner_strides[0])
        team = choose_team(reduced.count, kept.count, kept.shape[-1] if kept.shape and 0 < near < far else 1)
        dtype = y.slot.dtype
        name = dtype_row(dtype).cuda if dtype in FLOATS else UNSIGNED_BY_SIZE[dtype.itemsize]
        arguments: list[Argument] = [a.slot, None if b is None else b.slot, y.slot, kept.pack(), reduced.pack()]
        kernel = Kernel(_SOURCE, f"contract<{name}>")
        grid = team.grid(kept.count)
        self.emit.launch(kernel, grid, (BLOCK_THREADS, 1, 1), [*arguments, *team.arguments()], writes=[2])


def _kept_labels(equation: Equation, index: int) -> Labels:
    """Return the labels of an operand that the output or another operand has; of one alone in the output's order."""
    terms = equation.terms
    if len(terms) == 1:
        return equation.output
    others = frozenset(equation.output).union(*(term for i, term in enumerate(terms) if i != index))
    return tuple(label for label in dict.fromkeys(terms[index]) if label in others)


def _take_diagonal(slot: Slot, term: Labels) -> _Operand:
    """Return the view in which each label has one axis."""
    strides: dict[str, int] = {}
    for label, stride in zip(term, slot.strides, strict=True):
        strides[label] = strides.get(label, 0) + stride
    extents = dict(zip(term, slot.shape, strict=True))
    return _Operand(window(slot, tuple(extents.values()), tuple(strides.values())), tuple(strides))


def _stretch(a: _Operand, b: _Operand, labels: Labels) -> Shape:
    """Return the common extents along labels."""
    return broadcast(tuple(map(a.extent, labels)), tuple(map(b.extent, labels)))


def _take_longest(extents: Shape, walks: Sequence[Sequence[int]]) -> tuple[int, tuple[int, ...], list[tuple[int, ...]]]:
    """Split off the longest axis: its extent and strides, and the other axes as (extent, *strides)."""
    axes = list(zip(extents, *walks, strict=True))
    if not axes:
        return 1, (0,) * len(walks), []
    longest = axes.pop(max(range(len(axes)), key=lambda axis: (extents[axis], axis)))
    return longest[0], longest[1:], axes


def _is_run(part: Labels, labels: Labels) -> bool:
    """Return whether labels are adjacent, in this order."""
    first = labels.index(part[0])
    return labels[first : first + len(part)] == part


def _cast(emit: Emitter, x: Slot, y: Slot) -> Slot:
    """Launch a conversion, and return where it ends."""
    lower: Any = build("Cast", {"to": dtype_row(y.dtype).code}).lower
    lower(emit, (x,), (y,))
    return y


def _diagonal(x: Array, term: Labels) -> tuple[Array, Labels]:
    """Return a view in which each label has one axis, and these labels."""
    labels = tuple(dict.fromkeys(term))
    if len(labels) == len(term):
        return x, labels
    strides = [sum(x.strides[axis] for axis, each in enumerate(term) if each == label) for label in labels]
    shape = [x.shape[term.index(label)] for label in labels]
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False), labels


def _sum_to(x: Array, labels: Labels, kept: Labels) -> Array:
    """Sum over the labels that are not kept; the result's axes are in the order of ``kept``."""
    summed = tuple(label for label in labels if label not in kept)
    arranged = x.transpose([labels.index(label) for label in (*kept, *summed)])
    if not summed:
        return arranged
    return np.asarray(arranged.sum(axis=tuple(range(len(kept), len(labels))), dtype=x.dtype))


@dataclass(frozen=True, slots=True)
class _Sides:
    """The labels of a contraction, and among them those of both operands, of one alone, and those summed over."""

    labels: Labels
    batch: Labels
    rows: Labels
    columns: Labels
    inner: Labels

    @staticmethod
    def of(a_labels: Labels, b_labels: Labels, labels: Labels) -> _Sides:
        """Return the sides of two operands."""
        return _Sides(
            labels,
            tuple(label for label in labels if label in a_labels and label in b_labels),
            tuple(label for label in labels if label not in b_labels),
            tuple(label for label in labels if label not in a_labels),
            tuple(label for label in a_labels if label not in labels),
        )


def _prepare_contraction(
    arrays: tuple[Array, Array], terms: tuple[Labels, Labels], sides: _Sides, y: Array, scratch: Sequence[Array]
) -> PreparedCalls | None:
    """Return the calls of `_contract` where it sums; None: there are none."""
    inner = np.broadcast_shapes(*(_extents(x, term, sides.inner) for x, term in zip(arrays, terms, strict=True)))
    calls: list[Callable[[], object]] = []
    factors = []
    for x, term, own, memory in zip(arrays, terms, (sides.rows, sides.columns), scratch[:2], strict=True):
        arranged = x.transpose([term.index(label) for label in (*sides.batch, *own, *sides.inner)])
        stretched = np.broadcast_to(arranged, (*arranged.shape[: -len(sides.inner)], *inner))
        factor = _arrange(x, term, sides.batch, own, sides.inner, inner)
        if not np.may_share_memory(factor, x):
            dense = view_bytes(memory, stretched.shape, x.dtype)
            calls.append(partial(np.copyto, dense, stretched))
            factor = dense.reshape(factor.shape)
        factors.append(factor)
    left, right = factors[0], factors[1].swapaxes(-1, -2)
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
    result = y.transpose([sides.labels.index(label) for label in (*sides.batch, *sides.rows, *sides.columns)])
    made = result.reshape(shape) if result.flags.c_contiguous else view_bytes(scratch[2], shape, y.dtype)
    product = prepare_product(left, right, made)
    if product is None:
        return None
    calls += product
    if not result.flags.c_contiguous:
        calls.append(partial(np.copyto, result, made.reshape(result.shape)))
    return calls


def _contract(a: Array, a_labels: Labels, b: Array, b_labels: Labels, labels: Labels) -> Array:
    """Multiply two operands and sum over the labels not in ``labels``; axes of extent 1 broadcast."""
    sides = _Sides.of(a_labels, b_labels, labels)
    batch, rows, columns, inner = sides.batch, sides.rows, sides.columns, sides.inner
    if not inner:
        return np.asarray(_spread(a, a_labels, labels) * _spread(b, b_labels, labels))
    extents = np.broadcast_shapes(_extents(a, a_labels, inner), _extents(b, b_labels, inner))
    left = _arrange(a, a_labels, batch, rows, inner, extents)  # [*batch, rows, inner]
    right = _arrange(b, b_labels, batch, columns, inner, extents).swapaxes(-1, -2)  # [*batch, inner, columns]
    product = multiply(left, right)
    made = (*batch, *rows, *columns)
    product = product.reshape((*product.shape[:-2], *_extents(a, a_labels, rows), *_extents(b, b_labels, columns)))
    return product.transpose([made.index(label) for label in labels])


def _extents(x: Array, labels: Labels, wanted: Labels) -> tuple[int, ...]:
    return tuple(x.shape[labels.index(label)] for label in wanted)


def _spread(x: Array, labels: Labels, wanted: Labels) -> Array:
    """Return a view with an axis for each label, of extent 1 where there was none."""
    present = [label for label in wanted if label in labels]
    arranged = x.transpose([labels.index(label) for label in present])
    return arranged.reshape([x.shape[labels.index(label)] if label in labels else 1 for label in wanted])


def _arrange(
    x: Array, labels: Labels, batch: Labels, own: Labels, inner: Labels, inner_extents: tuple[int, ...]
) -> Array:
    """Return ``[*batch, own, inner]``, the inner axes stretched to their extents."""
    order = (*batch, *own, *inner)
    arranged = x.transpose([labels.index(label) for label in order])
    outer = arranged.shape[: len(batch) + len(own)]
    stretched = np.broadcast_to(arranged, (*outer, *inner_extents))
    sizes = [int(np.prod(outer[len(batch) :], dtype=np.int64)), int(np.prod(inner_extents, dtype=np.int64))]
    return stretched.reshape((*outer[: len(batch)], *sizes))


# Of contract: instructions of a thread around, for a term, and for each axis that terms are walked along.
_AROUND, _EACH_TERM, _EACH_AXIS, _TERMS_TOGETHER = 220, 30, 25, 2


@work_of(_SOURCE, "contract")
def _count_contract(launch: Launch) -> Work:
    a, b, y, kept, reduced = launch.arguments[:5]
    lanes = read_int(launch.arguments[5])
    assert isinstance(a, Slot) and isinstance(y, Slot) and isinstance(kept, bytes) and isinstance(reduced, bytes)
    (rows,), (terms, axes) = struct.unpack_from("<q", kept), struct.unpack_from("<qi", reduced)
    own, operands = ceil_div(terms, lanes), [each for each in (a, b) if isinstance(each, Slot)]
    # Rows of a block read an operand once where they share it: L1 has it then.
    asked = [min(rows * terms * each.dtype.itemsize, launch.grid[0] * count_slot_bytes(each)) for each in operands]
    return Work(
        flops=rows * terms * len(operands),  # no multiply-adds: products are rounded
        instructions=count_warps(launch) * (_AROUND + own * (_EACH_TERM + _EACH_AXIS * axes)),
        l2_nbytes=sum(asked) + y.spec.nbytes,
        rounds=1 + own / _TERMS_TOGETHER,
        barriers=2 if lanes > 32 else 1,
        shared_nbytes=2048 if y.dtype.itemsize == 8 else 1024,
    )
