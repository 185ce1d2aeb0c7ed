"""Queries, keys and values with their bias, in all input layouts of com.microsoft attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import Shape, Strides, contiguous_strides
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec, accumulator
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.microsoft.mask import FLOATS
from gpuexec.ops.nn.heads import split_shape
from gpuexec.ops.tensor.layout import window

_QUERIES, _VALUES = 0, 2


@operator("ProjectedHeads", "gpuexec")
@dataclass(frozen=True, slots=True)
class ProjectedHeads(Operator):
    """Queries, keys or values (``part`` 0, 1, 2) plus their part of a bias, as ``[batch, heads, rows, size]``.

    The first input is ``[batch, rows, heads * size]``; or, of several ``parts``, ``[batch, rows, heads, parts, size]``,
    of which the slice ``packed`` counts; or has the four axes already, and then takes no bias. The bias, input 1, holds
    those of queries, keys and values, one behind the other; further inputs are the heads of the other two, to check its
    size. With ``joined`` the output is ``[batch, rows, heads * size]``.
    """

    heads: int
    part: int
    packed: int = 0
    parts: int = 1
    joined: int = 0
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the spec of the heads.

        Raises:
            InputError: Types or shapes don't fit.
        """
        x, bias, *others = (*inputs, None, None)[: max(2, len(inputs))]
        x = check_dtype(self.name, x, FLOATS, "queries")
        if self.parts > 1 and (x.rank != 5 or x.shape[2:4] != (self.heads, self.parts)):
            wanted = f"{self.heads} heads, {self.parts} parts"
            raise InputError(f"{self.name} expects [batch, rows, {wanted}, size], got {x}.")
        if self.parts == 1 and x.rank == 5:
            raise InputError(f"{self.name} expects [batch, rows, heads * size], got {x}.")
        if x.rank == 4 and x.shape[1] != self.heads:
            raise InputError(f"{self.name} expects {self.heads} heads as the second of four axes, got {x}.")
        shape, _, _ = self._view(x.shape, (0,) * x.rank)
        if bias is not None:
            check_dtype(self.name, bias, (x.dtype,), "bias")
            first, width = self._first(bias.size, shape), shape[1] * shape[3]
            widths = [width, *(spec.shape[1] * spec.shape[3] for spec in others if spec is not None)]
            if bias.rank != 1 or not 0 <= first <= bias.size - width or (others and bias.size != sum(widths)):
                wanted = " + ".join(map(str, widths)) if others else "queries + keys + values"
                raise InputError(f"{self.name} expects a bias [{wanted}], got {bias} for heads {list(shape)}.")
        return (x.with_shape(self._result(shape)),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array, ...]:
        """View and add with NumPy; half and bfloat16 in float, rounded once."""
        x, bias = (*inputs, None)[:2]
        assert x is not None
        shape, _, _ = self._view(x.shape, (0,) * x.ndim)
        heads = self._show(x)
        if bias is not None and x.ndim != 4:
            first = self._first(bias.size, shape)
            added = bias[first : first + shape[1] * shape[3]].reshape(shape[1], 1, shape[3])
            acc = accumulator(x.dtype)
            with np.errstate(all="ignore"):
                heads = (heads.astype(acc, copy=False) + added.astype(acc, copy=False)).astype(x.dtype, copy=False)
        return (heads.transpose(0, 2, 1, 3).reshape(self._result(shape)) if self.joined else heads,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes, or launch the sum."""
        x, bias = (*inputs, None)[:2]
        y = outputs[0]
        assert x is not None and y is not None
        shape, strides, offset = self._view(x.shape, x.strides)
        heads = window(x, shape, strides, offset)
        batch, count, rows, size = shape
        if bias is not None and x.spec.rank != 4:
            first = self._first(bias.spec.size, shape)
            step = bias.strides[0]
            added = window(bias, (1, count, 1, size), (0, size * step, 0, step), first * step)
            order = (0, 2, 1, 3) if self.joined else (0, 1, 2, 3)
            given = [_reorder(slot, order) for slot in (heads, added)]
            dense = _reorder(heads, order).shape
            target = window(y, dense, contiguous_strides(dense))
            add = build("Add", {})
            assert add.lower is not None
            add.lower(emit, tuple(given), (target,))
        elif not self.joined:
            emit.alias(y, heads)
        elif x.spec.rank == 3:
            emit.alias(y, x)
        else:
            emit.copy(
                window(y, (batch, rows, count, size), contiguous_strides((batch, rows, count, size))),
                _reorder(heads, (0, 2, 1, 3)),
            )

    def _show(self, x: Array) -> Array:
        if x.ndim == 4:
            return x
        if x.ndim == 5:
            return x[:, :, :, self.packed].transpose(0, 2, 1, 3)
        batch, rows, columns = x.shape
        return x.reshape(batch, rows, self.heads, columns // self.heads).transpose(0, 2, 1, 3)

    def _view(self, shape: Shape, strides: Strides) -> tuple[tuple[int, int, int, int], Strides, int]:
        """Return shape and strides of the heads, and where they begin, in elements."""
        if len(shape) == 5:
            of_batch, of_row, of_head, of_part, of_column = strides
            found = (shape[0], shape[2], shape[1], shape[4])
            return found, (of_batch, of_head, of_row, of_column), self.packed * of_part
        found = split_shape(self.name, "its input", shape, self.heads)
        if len(shape) == 4:
            return found, strides, 0
        of_batch, of_row, of_column = strides
        return found, (of_batch, found[3] * of_column, of_row, of_column), 0

    def _first(self, size: int, shape: tuple[int, int, int, int]) -> int:
        """Return where this part of the bias begins: queries first, values last, and keys have the queries' size."""
        width = shape[1] * shape[3]
        if self.part == _VALUES:
            return size - width
        return 0 if self.part == _QUERIES else width

    def _result(self, shape: tuple[int, int, int, int]) -> Shape:
        batch, heads, rows, size = shape
        return (batch, rows, heads * size) if self.joined else shape


def _reorder(slot: Slot, order: Sequence[int]) -> Slot:
    return window(slot, [slot.shape[axis] for axis in order], [slot.strides[axis] for axis in order])
