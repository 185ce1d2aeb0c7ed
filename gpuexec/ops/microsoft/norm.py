"""SkipLayerNormalization, SkipSimplifiedLayerNormalization and SimplifiedLayerNormalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.graphs import Value
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import prepare_elementwise, view_bytes
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.lib.plain import is_plain
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.mask import FLOATS
from gpuexec.ops.nn.norm import (
    Affine,
    count_statistics,
    has_statistics,
    inverse_deviation,
    mean_over,
    prepare_inverse_deviation,
    prepare_mean,
)

_SOURCE = "norm.cu"
_FLOAT = np.dtype(np.float32)
_EPSILON = 9.999999960041972e-13
instantiate(_SOURCE, [f"normalize_summed_rows<{dtype_row(t).cuda}>" for t in FLOATS])


@dataclass(frozen=True, slots=True)
class _NormalizedSum(Operator):
    """Normalisation of rows of ``x + skip + bias`` along the last axis, in one launch.

    Outputs: the result, mean and inverse deviation in float, and the sum.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    is_centered: ClassVar[bool] = True
    epsilon: float = _EPSILON
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def _read(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Return x, skip, scale, the addend behind, and the addend before."""
        return (*inputs, None, None, None)[:5]

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of the result, the statistics and the sum.

        Raises:
            InputError: Types differ, or shapes don't fit.
        """
        x, skip, scale, beta, bias = self._read(inputs)
        x = check_dtype(self.name, x, FLOATS)
        if x.rank < 1:
            raise InputError(f"{self.name} expects rows, got {x}.")
        if skip is not None:
            check_dtype(self.name, skip, (x.dtype,), "skip")
            shape = (1,) * (x.rank - skip.rank) + skip.shape
            split = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
            if shape[split:] != x.shape[split:] or skip.shape[-1:] != x.shape[-1:]:
                raise InputError(f"{self.name} expects skip of the input's last axes, for {x}, got {skip}.")
        for role, spec in (("gamma", scale), ("beta", beta), ("bias", bias)):
            if (spec is not None or role == "gamma") and check_dtype(
                self.name, spec, (x.dtype,), role
            ).shape != x.shape[-1:]:
                raise InputError(f"{self.name} expects {role} {list(x.shape[-1:])}, got {spec}.")
        statistics = TensorSpec((*x.shape[:-1], 1), _FLOAT)
        return x.with_shape(x.shape), statistics, statistics, x.with_shape(x.shape)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Add and normalise with NumPy, in float, rounded once."""
        x, skip, scale, beta, bias = self._read(inputs)
        total: Array = x.astype(_FLOAT)
        with np.errstate(all="ignore"):
            for added in (skip, bias):
                if added is not None:
                    total += added
            mean = mean_over(total, (-1,)) if self.is_centered else np.zeros((*total.shape[:-1], 1), _FLOAT)
            centered = total - mean
            inverse = inverse_deviation(centered, (-1,), self.epsilon)
            y = centered * inverse * scale.astype(_FLOAT, copy=False)
            if beta is not None:
                y += beta
            return y.astype(x.dtype, copy=False), mean, inverse, total.astype(x.dtype, copy=False)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count statistics of the rows, and the sum."""
        x = inputs[0]
        return [] if x is None else [*count_statistics(x, prod(x.shape[:-1])), x.nbytes]

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Add and normalise in the memory of the outputs, where nothing is to be rounded."""
        x, skip, scale, beta, bias = self._read(inputs)
        y, *statistics, summed = (*out, None, None, None)[:4]
        if x is None or scale is None or not is_plain(y, _FLOAT) or len(scratch) < 4:
            return None
        if summed is not None and not is_plain(summed, _FLOAT):
            return None
        rows = (*x.shape[:-1], 1)
        if not has_statistics(scratch, x, prod(rows)) or scratch[3].nbytes < x.nbytes:
            return None
        mean, inverse = (view_bytes(each, rows, _FLOAT) for each in scratch[:2])
        memory = view_bytes(scratch[3], x.shape, _FLOAT)
        total = memory if summed is None else summed
        added = [each for each in (skip, bias) if each is not None]
        calls: list[Callable[[], object]] = []
        for place, each in enumerate(added):
            calls.append(prepare_elementwise(np.add, (total if place else x, each), total))
        if not added:
            calls.append(partial(np.copyto, total, x))
        centered = total
        if self.is_centered:
            calls += [*prepare_mean(total, (-1,), mean), prepare_elementwise(np.subtract, (total, mean), y)]
            centered = y
        elif statistics[0] is not None:
            calls.append(partial(mean.fill, 0))
        calls += [
            *prepare_inverse_deviation(centered, (-1,), self.epsilon, inverse, scratch[2]),
            prepare_elementwise(np.multiply, (centered, inverse), y),
            prepare_elementwise(np.multiply, (y, scale), y),
        ]
        if beta is not None:
            calls.append(prepare_elementwise(np.add, (y, beta), y))
        for made, given in zip((mean, inverse), statistics, strict=True):
            if given is not None:
                calls.append(partial(np.copyto, given, made))
        return calls

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a team of threads per row."""
        x, skip, scale, beta, bias = self._read(inputs)
        y, mean, inverse, total = (*outputs, None, None, None)[:4]
        y = emit.temp(x.shape, x.dtype) if y is None else y
        count, columns = prod(x.shape[:-1]), x.shape[-1]
        team = choose_team(columns, count)
        x, skip, scale, beta, bias = (
            None if slot is None else emit.contiguous(slot) for slot in (x, skip, scale, beta, bias)
        )
        period = count if skip is None else prod(skip.shape[:-1])
        arguments: list[Argument] = [x, skip, bias, scale, scale if beta is None else beta, y, mean, inverse, total]
        sizes = (int64(count), int64(columns), int32(team.lanes), pack_fast_div64(max(1, period)))
        rule = (Affine(1, 0, 0, 1).pack(beta is not None), np.float64(self.epsilon), int32(self.is_centered))
        writes = [5 + index for index, slot in enumerate((y, mean, inverse, total)) if slot is not None]
        kernel = Kernel(_SOURCE, f"normalize_summed_rows<{dtype_row(y.dtype).cuda}>")
        emit.launch(kernel, team.grid(count), (BLOCK_THREADS, 1, 1), [*arguments, *sizes, *rule], writes=writes)


@operator("SkipLayerNormalization", DOMAIN)
@dataclass(frozen=True, slots=True)
class SkipLayerNormalization(_NormalizedSum):
    """LayerNormalization of ``x + skip + bias``, which is an output too. Inputs: x, skip, gamma, beta, bias."""


@operator("SkipSimplifiedLayerNormalization", DOMAIN)
@dataclass(frozen=True, slots=True)
class SkipSimplifiedLayerNormalization(_NormalizedSum):
    """RMSNormalization of ``x + skip + bias``, which is an output too. Inputs: x, skip, gamma, bias."""

    is_centered: ClassVar[bool] = False

    def _read(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        x, skip, scale, bias = (*inputs, None)[:4]
        return x, skip, scale, None, bias


@operator("NormalizeRootMeanSquare", "gpuexec")
@dataclass(frozen=True, slots=True)
class NormalizeRootMeanSquare(_NormalizedSum):
    """RMSNormalization of rows, and its statistics. Inputs: x, gamma."""

    is_centered: ClassVar[bool] = False

    def _read(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any, Any, Any]:
        x, scale = inputs
        return x, None, scale, None, None


@composite("SimplifiedLayerNormalization", "")
@dataclass(frozen=True, slots=True)
class SimplifiedLayerNormalization(Composite):
    """RMSNormalization, as ONNX Runtime put it into ONNX's domain before ONNX had it; and the inverse deviation."""

    inputs: ClassVar[int] = 2
    axis: int = -1
    epsilon: float = 1e-5
    stash_type: int = 1

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Normalise; with statistics along the last axis alone."""
        if sketch.wants(1) and self.axis == -1:
            y, _, inverse = sketch.add_all(NormalizeRootMeanSquare(self.epsilon), 3, *inputs)
            return y, inverse
        op = {"axis": self.axis, "epsilon": self.epsilon, "stash_type": self.stash_type}
        return (sketch.add("RMSNormalization", *inputs, **op),)
