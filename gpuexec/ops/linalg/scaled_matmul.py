"""ScaledMatMul: products of operands of float8e4m3fn with scales, in float.

What MatMul, Gemm and FusedMatMul are in fp8 (`gpuexec.passes.lower_precision`); no file has it. From sm_80 on tensor
cores multiply the bytes (``mma_float8.cu``) and scale their sums. Elsewhere operands are widened to float, weights once
for all, the float kernels multiply, and launches behind them scale what they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import broadcast, broadcast_strides, contiguous_strides
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, count_elements, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.broadcast import launch_broadcast
from gpuexec.ops.linalg.matmul import MatMul, multiply
from gpuexec.ops.linalg.matmul_launch import widen_operand
from gpuexec.ops.linalg.mma_launch import LineScale, has_tensor_cores, launch_mma_float8
from gpuexec.ops.linalg.product import MAX_BATCH_AXES, Product, join_rows
from gpuexec.ops.tensor.layout import reshaped, window

DOMAIN = "gpuexec"
_FLOAT: np.dtype[Any] = np.dtype(np.float32)
_FLOAT8 = dtype_row("float8e4m3fn").numpy


@operator("ScaledMatMul", DOMAIN)
@dataclass(frozen=True, slots=True)
class ScaledMatMul(Operator):
    """``alpha * (A' @ B') * a_scale * b_scale + beta * C``: A and B of float8e4m3fn, all else float.

    Axes are those of MatMul; ``transA`` exchanges the last two of A, where it has two. A has one scale, or one for each
    row of A', B one, or one for each column of B'. C broadcasts to the product of two matrices.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0  # noqa: N815 (as of Gemm)
    transB: int = 0  # noqa: N815
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    example = "float8e4m3fn[4,4] float8e4m3fn[4,4] float32[1] float32[1]"
    has_blits = True
    takes_epilogue = True
    multiplied = (0, 1)

    def infer(
        self,
        a: TensorSpec,
        b: TensorSpec,
        a_scale: TensorSpec,
        b_scale: TensorSpec,
        c: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: Types or extents do not fit, or scales are not as many as rows or columns.
        """
        for spec, dtype in ((a, _FLOAT8), (b, _FLOAT8), (a_scale, _FLOAT), (b_scale, _FLOAT)):
            if spec is None or spec.dtype != dtype:
                raise InputError(f"{self.name} expects operands of {_FLOAT8.name} and scales of float32, got {spec}.")
        shown = [
            spec.with_shape(tuple([spec.shape[axis] for axis in self._order(factor, spec.rank)]))
            for factor, spec in enumerate((a, b))
        ]
        (product,) = MatMul().infer(*[TensorSpec(spec.shape, _FLOAT) for spec in shown])
        lines = (shown[0].shape[-2:-1], shown[1].shape[-1:] if b.rank > 1 else ())
        for scale, wanted, role in zip((a_scale, b_scale), lines, ("row of A'", "column of B'"), strict=True):
            if scale.rank > 1 or (scale.size != 1 and scale.shape != wanted):
                raise InputError(f"{self.name} expects one scale or one for each {role}, got {scale}.")
        if c is not None:
            if c.dtype != _FLOAT or (a.rank, b.rank) != (2, 2):
                raise InputError(f"{self.name} expects C of float32 beside two matrices, got {c} beside {a} and {b}.")
            broadcast_strides(c.shape, (0,) * c.rank, product.shape)
        return (product,)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return float."""
        return _FLOAT

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return the rows of A', the columns of B'."""
        return self._order(factor, rank)[rank - 2 + factor] if rank > 1 else None

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count a product and a sum for each element of the output and of the axis summed over, and a sum with C."""
        a = inputs[0]
        depth = 0 if a is None else a.shape[self._order(0, a.rank)[-1]]
        return count_elements(outputs, 0) * (2 * depth + (len(inputs) > 4 and inputs[4] is not None))

    def compute(
        self, a: Array, b: Array, a_scale: Array, b_scale: Array, c: Array | None = None, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Multiply widened operands in float, then scale, then add."""
        a, b = (x.astype(_FLOAT).transpose(self._order(i, x.ndim)) for i, x in enumerate((a, b)))
        rows, columns = _view_scale(a_scale, (-1, 1) if b.ndim > 1 else (-1,)), _view_scale(b_scale, (-1,))
        with np.errstate(all="ignore"):
            result = multiply(a, b, out[0] if out else None)
            result *= rows * columns
            if self.alpha != 1:
                result *= np.float32(self.alpha)
            if c is not None and self.beta != 0:
                result += c * np.float32(self.beta)
            return (result,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once on tensor cores; else widen, multiply and scale."""
        a, b, a_scale, b_scale, c = (*inputs, None)[:5]
        (y,) = outputs
        assert a is not None and b is not None and a_scale is not None and b_scale is not None and y is not None
        a, b = _show(a, self._order(0, a.spec.rank)), _show(b, self._order(1, b.spec.rank))
        c = None if self.beta == 0 else c
        steps = [int(scale.spec.size != 1) for scale in (a_scale, b_scale)]
        product, row_step = self._pose((a, b, c, y), steps[0])
        is_able = has_tensor_cores(emit.target) and product.fits_mma and len(product.batch) <= MAX_BATCH_AXES
        if emit.choose(is_able):
            scales = [emit.contiguous(scale) for scale in (a_scale, b_scale)]
            launch_mma_float8(emit, product, (LineScale(scales[0], row_step), LineScale(scales[1], steps[1])))
            return
        self._lower_widened(emit, (a, b, a_scale, b_scale, c), y)

    def _pose(self, slots: tuple[Slot, Slot, Slot | None, Slot], row_step: int) -> tuple[Product, int]:
        """Return the product of operands as they are multiplied, and the stride of the scales of its rows."""
        a, b, c, y = slots
        a_shape, a_strides = (a.shape, a.strides) if a.spec.rank > 1 else ((1, *a.shape), (0, *a.strides))
        b_shape, b_strides = (b.shape, b.strides) if b.spec.rank > 1 else ((*b.shape, 1), (*b.strides, 0))
        batch, rows, columns = broadcast(a_shape[:-2], b_shape[:-2]), a_shape[-2], b_shape[-1]
        y_shape = (*batch, rows, columns)
        y_strides = y.strides if y.shape == y_shape else contiguous_strides(y_shape)
        walks = (
            (*broadcast_strides(a_shape[:-2], a_strides[:-2], batch), a_strides[-2]),
            (*broadcast_strides(b_shape[:-2], b_strides[:-2], batch), 0),
            y_strides[:-1],
            (*(0 for _ in batch), row_step),
        )
        extent, (a_row, _, y_row, row_step), (extents, steps) = join_rows((*batch, rows), walks)
        product = Product(
            slots,
            (extent, columns, a_shape[-1]),
            (a_row, a_strides[-1]),
            (b_strides[-2], b_strides[-1]),
            (0, 0) if c is None else broadcast_strides(c.shape, c.strides, y_shape),  # type: ignore[arg-type]
            (y_row, y_strides[-1]),
            (self.alpha, self.beta),
            extents,
            steps[:3],
        )
        return product, row_step

    def _lower_widened(self, emit: Emitter, inputs: Slots, y: Slot) -> None:
        """Launch the product of operands widened to float, and what scales it and adds to it."""
        a, b, a_scale, b_scale, c = inputs
        assert a is not None and b is not None and a_scale is not None and b_scale is not None
        made = emit.temp(y.shape, _FLOAT)
        MatMul().lower_with(emit, (widen_operand(emit, a, y), widen_operand(emit, b, y)), (made,), alpha=self.alpha)
        beside = [1] if b.spec.rank > 1 else []
        rows = reshaped(emit, a_scale, [a_scale.spec.size, *beside] if a_scale.spec.size != 1 else [])
        columns = reshaped(emit, b_scale, [b_scale.spec.size] if b_scale.spec.size != 1 else [])
        scale = emit.temp(broadcast(rows.shape, columns.shape), _FLOAT)
        _launch_binary(emit, "Mul", (rows, columns), scale)
        steps = [("Mul", scale)]
        if c is not None and self.beta != 1:
            scaled = emit.temp(c.shape, _FLOAT)
            _launch_binary(emit, "Mul", (c, emit.constant(np.array(self.beta, np.float32))), scaled)
            c = scaled
        if c is not None:
            steps.append(("Add", c))
        for place, (functor, operand) in enumerate(steps):
            target = y if place == len(steps) - 1 else emit.temp(y.shape, _FLOAT)
            _launch_binary(emit, functor, (made, operand), target)
            made = target

    def _order(self, factor: int, rank: int) -> tuple[int, ...]:
        """Return the order in which the axes of an operand are multiplied."""
        axes = list(range(rank))
        if rank > 1 and (self.transA, self.transB)[factor]:
            axes[-2:] = axes[:-3:-1]
        return tuple(axes)


def _view_scale(scale: Array, shape: tuple[int, ...]) -> Array:
    """Return scales as they broadcast to a product."""
    return scale.reshape(() if scale.size == 1 else shape)


def _show(slot: Slot, order: tuple[int, ...]) -> Slot:
    return window(slot, [slot.shape[axis] for axis in order], [slot.strides[axis] for axis in order])


def _launch_binary(emit: Emitter, functor: str, operands: tuple[Slot, Slot], result: Slot) -> None:
    """Launch a step; never in place, since the host's `compute` reads its inputs late."""
    kernel = Kernel("elementwise_binary.cu", f"binary<{functor}, float, float>")
    launch_broadcast(emit, kernel, operands, result, in_place=False)
