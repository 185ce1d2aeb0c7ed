"""Normalisation of channels: InstanceNormalization and GroupNormalization, on the kernels of ``norm.cu``.

Large channels, and those that lie last, are normalised by `norm_channels_launch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import Shape
from gpuexec.ir.graphs import RawNode
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
    upgrade,
)
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.plain import count_widened, is_plain, prepare_widened
from gpuexec.ops.nn.norm import (
    Affine,
    NormalizedRows,
    count_statistics,
    has_statistics,
    inverse_deviation,
    mean_over,
    prepare_inverse_deviation,
    prepare_mean,
    write_row_form,
)
from gpuexec.ops.nn.norm_channels_launch import LEAST_POSITIONS, launch_large_channels, launch_small_channels

_FLOATS = dtypes_of("float")


@dataclass(frozen=True, slots=True)
class _ChannelNormalization(Operator):
    """Normalisation of ``[n, channels, ...]`` over space, with scale and bias per channel."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = 7  # sum, difference, square, sum, product, scale, shift
    keeps_dtype = True
    derivative = Derivative.PARTS
    has_blits = True
    takes_epilogue = True
    finishes_windows = True

    def _check(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, entries: int | None = None) -> TensorSpec:
        x = check_dtype(self.name, x, _FLOATS)
        if x.rank < 2:
            raise InputError(f"{self.name} expects an input of rank 2 or more, [n, channels, ...], got {x}.")
        expected = x.shape[1:2] if entries is None else (entries,)
        for role, spec in (("scale", scale), ("bias", bias)):
            parameter = check_dtype(self.name, spec, (x.dtype,), role)
            if parameter.shape != expected:
                raise InputError(
                    f"{self.name} expects {role} of shape {list(expected)} for input {x}, got {parameter}."
                )
        return x

    def _compute(
        self, x: Array, scale: Array, bias: Array, rows: Shape, epsilon: float, per_row: int
    ) -> tuple[Array, ...]:
        """Normalise ``x`` seen as ``[n, *rows]`` over the axes from 2 on.

        Parameters have an entry for each element of the first ``per_row`` axes of rows.
        """
        wide = x.astype(accumulator(x.dtype), copy=False).reshape(x.shape[0], *rows)
        spread = (*rows[:per_row], *(1,) * (len(rows) - per_row))
        with np.errstate(all="ignore"):
            axes = tuple(range(2, wide.ndim))
            y = wide - mean_over(wide, axes)
            y *= inverse_deviation(y, axes, epsilon) * scale.reshape(spread)
            y += bias.reshape(spread)
            return (y.astype(x.dtype, copy=False).reshape(x.shape),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count statistics of the rows, and a factor of each: as many as there are channels at most."""
        x = inputs[0]
        widened = count_widened(self, inputs, outputs[0])
        if widened is not None:
            return widened
        rows = 0 if x is None else prod(x.shape[:2])
        return [] if x is None else [*count_statistics(x, rows), rows * x.dtype.itemsize]

    def _prepare(
        self,
        inputs: Sequence[Array | None],
        y: Array | None,
        scratch: Sequence[Array],
        rows: Shape,
        epsilon: float,
        per_row: int,
    ) -> PreparedCalls | None:
        """Return calls that do what `_compute` does."""
        x, scale, bias = inputs
        if scale is None or bias is None or not scratch:
            return None
        if not is_plain(x) or not is_plain(y, x.dtype):
            return prepare_widened(self, inputs, (y,), (False,) * 3, scratch)
        x, y = x.reshape(x.shape[0], *rows), y.reshape(x.shape[0], *rows)
        axes, spread = tuple(range(2, x.ndim)), (*rows[:per_row], *(1,) * (len(rows) - per_row))
        kept, parameters = (*x.shape[:2], *(1,) * len(axes)), (x.shape[0], *spread)
        if len(scratch) < 4 or not has_statistics(scratch, x, prod(kept)):
            return None
        mean, inverse = (view_bytes(each, kept, x.dtype) for each in scratch[:2])
        factor = view_bytes(scratch[3], parameters, x.dtype)
        return [
            *prepare_mean(x, axes, mean),
            partial(np.subtract, x, mean, out=y),
            *prepare_inverse_deviation(y, axes, epsilon, inverse, scratch[2]),
            partial(np.multiply, inverse, scale.reshape(spread), out=factor),
            partial(np.multiply, y, factor, out=y),
            partial(np.add, y, bias.reshape(spread), out=y),
        ]


@operator("InstanceNormalization")
@dataclass(frozen=True, slots=True)
class InstanceNormalization(_ChannelNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the space of each channel of each image."""

    epsilon: float = 1e-5
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Types differ or are not float, a rank below 2, or not one scale and bias per channel.
        """
        x = self._check(x, scale, bias)
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, scale: Array, bias: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Normalise with NumPy; half and bfloat16 in float, rounded once."""
        return self._compute(x, scale, bias, (x.shape[1], prod(x.shape[2:])), self.epsilon, 1)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Normalise in the output's memory."""
        x = inputs[0]
        assert x is not None
        return self._prepare(inputs, out[0], scratch, (x.shape[1], prod(x.shape[2:])), self.epsilon, 1)

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the form of the kernel of small channels, whose rows are the spaces of channels."""
        x, scale, bias = inputs
        if x is None or scale is None or bias is None or x.rank < 3 or prod(x.shape[2:]) > LEAST_POSITIONS:
            return None
        return write_row_form(x, scale.dtype, 2, self.epsilon, has_bias=True, of_rows=(1, 2))

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per channel, blocks for parts of a channel and a map, or a block for eight."""
        (x, scale, bias), y = inputs, outputs[0]
        assert x is not None and scale is not None and bias is not None and y is not None
        if launch_large_channels(emit, x, scale, bias, y, self.epsilon):
            return
        if launch_small_channels(emit, x, scale, bias, y, self.epsilon):
            return
        if not y.is_contiguous:  # channels last
            made = emit.temp(y.shape, y.dtype)
            self.lower(emit, inputs, (made,))
            emit.copy(y, made)
            return
        count, columns = prod(x.shape[:2]), prod(x.shape[2:])
        affine = Affine(x.shape[1], 1, 1, columns)
        parameters = emit.contiguous(scale), emit.contiguous(bias)
        NormalizedRows(count, columns, affine, self.epsilon).launch(emit, x, *parameters, (y, None, None))


@operator("GroupNormalization")
@dataclass(frozen=True, slots=True)
class GroupNormalization(_ChannelNormalization):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over groups of channels and their space.

    ``per_group`` is the form before opset 21: one scale and bias per group. It comes from the upgrade.
    """

    num_groups: int
    epsilon: float = 1e-5
    stash_type: int = 1
    per_group: int = 0
    example = "float32[2,4,3] float32[4] float32[4] num_groups=2"

    def infer(self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Types differ or are not float, a rank below 2, groups that don't divide the channels, or a
                wrong number of scales.
        """
        x = self._check(x, scale, bias, self.num_groups if self.per_group else None)
        if self.num_groups < 1 or x.shape[1] % self.num_groups:
            raise InputError(f"{self.name} expects num_groups to divide the channels of {x}, got {self.num_groups}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, scale: Array, bias: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Normalise with NumPy; half and bfloat16 in float, rounded once."""
        rows = (self.num_groups, x.shape[1] // self.num_groups, prod(x.shape[2:]))
        return self._compute(x, scale, bias, rows, self.epsilon, 1 if self.per_group else 2)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Normalise in the output's memory."""
        x = inputs[0]
        assert x is not None
        rows = (self.num_groups, x.shape[1] // self.num_groups, prod(x.shape[2:]))
        return self._prepare(inputs, out[0], scratch, rows, self.epsilon, 1 if self.per_group else 2)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per group."""
        x, scale, bias = inputs
        assert x is not None and scale is not None and bias is not None
        space = prod(x.shape[2:])
        channels = x.shape[1] // self.num_groups
        count, columns = x.shape[0] * self.num_groups, channels * space
        stride = 1 if self.per_group else channels
        affine = Affine(self.num_groups, stride, stride, columns if self.per_group else space)
        parameters = emit.contiguous(scale), emit.contiguous(bias)
        NormalizedRows(count, columns, affine, self.epsilon).launch(emit, x, *parameters, (outputs[0], None, None))


@upgrade("GroupNormalization", below=21)
def _parameters_per_group(node: RawNode) -> RawNode:
    """Keep the meaning of the old form: scale and bias have an entry per group."""
    return node.with_attributes(per_group=1)
