"""MelWeightMatrix: a table of triangular mel filters, made on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, NUMBERS
from gpuexec.ops.lib.checks import check_dtype, require_scalar

_COUNTS = tuple(np.dtype(t) for t in (np.int32, np.int64))
_ROLES = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")


@operator("MelWeightMatrix")
@dataclass(frozen=True, slots=True)
class MelWeightMatrix(Operator):
    """``[dft_length // 2 + 1, num_mel_bins]``: a triangle in each column, its peak 1, bands of equal width in mel."""

    output_datatype: int = 1
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "int64[]=8 int64[]=16 int64[]=8192 float32[]=0 float32[]=4096"
    flops_per_output = None
    has_blits = True

    def infer(
        self, bands: TensorSpec, length: TensorSpec, rate: TensorSpec, lower: TensorSpec, upper: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        """Return the matrix's spec.

        Raises:
            InputError: Types don't fit, a count is below 1, edges are no interval of frequencies from 0 to half the
                sample rate, or the output's type is no number.
            NeedsHostValue: One of the numbers is not known.
        """
        columns, points, *_ = self._read((bands, length, rate, lower, upper))
        return (TensorSpec((points // 2 + 1, columns), dtype_row(self.output_datatype).numpy),)

    def compute(
        self, bands: Array, length: Array, rate: Array, lower: Array, upper: Array, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Fill the triangles."""
        numbers = self._read([TensorSpec.of(x) for x in (bands, length, rate, lower, upper)])
        return (make_matrix(*numbers).astype(dtype_row(self.output_datatype).numpy),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Copy the table, whose numbers are known."""
        y = outputs[0]
        assert y is not None
        table = make_matrix(*self._read([None if slot is None else slot.spec for slot in inputs]))
        emit.copy(y, emit.constant(table.astype(y.dtype)))

    def _read(self, inputs: Any) -> tuple[int, int, int, float, float]:
        numbers = []
        for index, (role, spec) in enumerate(zip(_ROLES, inputs, strict=True)):
            check_dtype("MelWeightMatrix", spec, _COUNTS if index < 3 else FLOATS, role)
            numbers.append(require_scalar(spec, role, index))
        bands, length, rate = (int(x) for x in numbers[:3])
        lower, upper = (float(x) for x in numbers[3:])
        if min(bands, length, rate) < 1:
            raise InputError(
                f"MelWeightMatrix expects num_mel_bins, dft_length and sample_rate of 1 or more, "
                f"got {bands}, {length} and {rate}."
            )
        if not 0 <= lower < upper <= rate / 2:
            raise InputError(
                f"MelWeightMatrix expects edges with 0 <= lower < upper <= {rate / 2} hertz, half the sample rate, "
                f"got {lower} and {upper}."
            )
        if dtype_row(self.output_datatype).numpy not in NUMBERS:
            name = dtype_row(self.output_datatype).name
            raise InputError(f"MelWeightMatrix expects a number as output, got output_datatype {name}.")
        return bands, length, rate, lower, upper


def make_matrix(bands: int, length: int, rate: int, lower: float, upper: float) -> Array:
    """Return the matrix in double. Edges of bands are equally far apart in mel, each at the bin below it."""
    low, high = (2595 / math.log(10) * math.log1p(hertz / 700) for hertz in (lower, upper))
    mels = low + np.arange(bands + 2) * ((high - low) / (bands + 2))
    bins = ((length + 1) * 700 * np.expm1(mels * (math.log(10) / 2595)) // rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bands))
    for band, (left, peak, right) in enumerate(zip(bins, bins[1:], bins[2:])):
        rise, fall = np.arange(left, peak + 1), np.arange(peak, right)
        if peak > left:
            matrix[rise, band] = (rise - left) / (peak - left)
        else:
            matrix[peak, band] = 1
        if right > peak:
            matrix[fall, band] = (right - fall) / (right - peak)
    return matrix
