"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Both are one kernel loop: the softmax of the second enters as the largest and the sum of exponentials of each row, so
its logarithms are written only where they are wanted. A label that is no class is an error on the host; on a device,
where the host does not wait for labels, its loss is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64, pack_struct
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team

_SOURCE = "loss.cu"
_FLOATS = dtypes_of("float")
_LABELS = tuple(np.dtype(t) for t in (np.int32, np.int64))
_CHUNK = 16384
_KERNELS = ("sum_exponentials", "write_losses", "sum_losses", "finish_losses")
REDUCTIONS = ("none", "sum", "mean")

instantiate(_SOURCE, [f"{kernel}<{dtype_row(dtype).cuda}>" for kernel in _KERNELS for dtype in _FLOATS])


@dataclass(frozen=True, slots=True)
class _Loss(Operator):
    """Base of the two: labels ``[n, ...]`` pick of ``[n, classes, ...]``; ``ignore_index`` counts for nothing."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    has_softmax: ClassVar[bool] = False
    ignore_index: int | None = None
    reduction: str = "mean"
    flops_per_output = None
    keeps_dtype = True
    derivative = Derivative.PARTS
    has_blits = False

    def _infer(self, x: TensorSpec | None, labels: TensorSpec | None, weights: TensorSpec | None) -> TensorSpec:
        x = check_dtype(self.name, x, _FLOATS, "scores" if self.has_softmax else "input")
        labels = check_dtype(self.name, labels, _LABELS, "labels")
        if x.rank < 2 or labels.shape != (*x.shape[:1], *x.shape[2:]):
            raise InputError(
                f"{self.name} expects scores [n, classes, ...] and labels [n, ...], got {x} and labels {labels}."
            )
        if weights is not None and check_dtype(self.name, weights, (x.dtype,), "weights").shape != x.shape[1:2]:
            raise InputError(f"{self.name} expects a weight for each of {x.shape[1]} classes, got {weights}.")
        if self.reduction not in REDUCTIONS:
            raise InputError(f"{self.name} expects reduction to be none, sum or mean, got {self.reduction!r}.")
        return x.with_shape(labels.shape if self.reduction == "none" else ())

    def _reduce(self, logarithms: Array, labels: Array, weights: Array | None, dtype: np.dtype[Any]) -> Array:
        """Return the loss of ``[n, classes, ...]`` logarithms in the accumulator's type."""
        ignored = np.zeros(labels.shape, bool) if self.ignore_index is None else labels == self.ignore_index
        classes = logarithms.shape[1]
        outside = ~ignored & ((labels < 0) | (labels >= classes))
        if outside.any():
            worst = int(labels[outside].flat[0])
            raise InputError(f"{self.name} expects labels from 0 to {classes - 1}, got {worst}.")
        factors = np.zeros(labels.shape, logarithms.dtype)
        losses = np.zeros(labels.shape, logarithms.dtype)
        if classes and labels.size:
            places = np.where(ignored, 0, labels)
            picked = np.take_along_axis(logarithms, np.expand_dims(places, 1), 1).squeeze(1)
            factors = np.ones_like(losses) if weights is None else weights.astype(losses.dtype)[places]
            factors = np.where(ignored, 0, factors)
            losses = np.where(ignored, 0, -picked * factors)
        if self.reduction == "none":
            return losses.astype(dtype, copy=False)
        total = losses.sum()
        return np.asarray(total / factors.sum() if self.reduction == "mean" else total).astype(dtype)

    def _launch(self, emit: Emitter, slots: Sequence[Slot | None], y: Slot) -> None:
        x, labels, weights = slots
        assert x is not None and labels is not None
        inner, rows = prod(x.shape[2:]), prod(labels.shape)
        x, labels = emit.contiguous(x), emit.contiguous(labels)
        weights = None if weights is None else emit.contiguous(weights)
        has_ignored = self.ignore_index is not None
        plan = pack_struct(
            "<4q2i", rows, x.shape[1], max(1, inner), self.ignore_index or 0, labels.dtype.itemsize == 8, has_ignored
        )
        acc, cuda = accumulator(x.dtype), dtype_row(x.dtype).cuda
        states = None
        if self.has_softmax:
            states = emit.temp((rows, 2), acc)
            team = choose_team(x.shape[1], rows, inner)
            kernel = Kernel(_SOURCE, f"sum_exponentials<{cuda}>")
            arguments: list[Argument] = [x, states, plan, *team.arguments()]
            emit.launch(kernel, team.grid(max(1, rows)), (BLOCK_THREADS, 1, 1), arguments, writes=[1])
        read: list[Argument] = [x, labels, weights, states]
        if self.reduction == "none":
            grid = (max(1, ceil_div(rows, BLOCK_THREADS)), 1, 1)
            kernel = Kernel(_SOURCE, f"write_losses<{cuda}>")
            emit.launch(kernel, grid, (BLOCK_THREADS, 1, 1), [*read, y, plan], writes=[4])
            return
        chunks = max(1, ceil_div(rows, _CHUNK))
        partials = emit.temp((chunks, 2), acc)
        kernel = Kernel(_SOURCE, f"sum_losses<{cuda}>")
        arguments = [*read, partials, plan, int64(_CHUNK)]
        emit.launch(kernel, (chunks, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[4])
        arguments = [partials, y, int64(chunks), int32(self.reduction == "mean")]
        emit.launch(Kernel(_SOURCE, f"finish_losses<{cuda}>"), (1, 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes=[1])


@operator("NegativeLogLikelihoodLoss")
@dataclass(frozen=True, slots=True)
class NegativeLogLikelihoodLoss(_Loss):
    """``-input[n, label, ...] * weight[label]``, its sum, or its mean over the sum of weights."""

    example = "float32[4,5] int64[4]"

    def infer(
        self, x: TensorSpec | None, labels: TensorSpec | None, weights: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the loss's spec.

        Raises:
            InputError: Types or shapes don't fit, or the reduction is unknown.
        """
        return (self._infer(x, labels, weights),)

    def compute(self, x: Array, labels: Array, weights: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Pick with NumPy; half and bfloat16 in float, rounded once.

        Raises:
            InputError: A label is no class.
        """
        with np.errstate(all="ignore"):
            return (self._reduce(x.astype(accumulator(x.dtype), copy=False), labels, weights, x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once, twice where losses are summed."""
        assert outputs[0] is not None
        self._launch(emit, (*inputs, None)[:3], outputs[0])


@operator("SoftmaxCrossEntropyLoss")
@dataclass(frozen=True, slots=True)
class SoftmaxCrossEntropyLoss(_Loss):
    """The loss of NegativeLogLikelihoodLoss for ``log_softmax(scores)`` over axis 1, and these logarithms."""

    has_softmax: ClassVar[bool] = True
    example = "float32[4,5] int64[4]"

    def infer(
        self, x: TensorSpec | None, labels: TensorSpec | None, weights: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of the loss and of the logarithms.

        Raises:
            InputError: Types or shapes don't fit, or the reduction is unknown.
        """
        loss = self._infer(x, labels, weights)
        assert x is not None
        return loss, x.with_shape(x.shape)

    def compute(self, x: Array, labels: Array, weights: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Compute with NumPy; half and bfloat16 in float, rounded once.

        Raises:
            InputError: A label is no class.
        """
        wide = x.astype(accumulator(x.dtype), copy=False)
        with np.errstate(all="ignore"):
            logarithms = wide - wide.max(axis=1, keepdims=True, initial=-np.inf)
            logarithms -= np.log(np.exp(logarithms).sum(axis=1, keepdims=True))
            return self._reduce(logarithms, labels, weights, x.dtype), logarithms.astype(x.dtype, copy=False)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the sums of rows and the losses, and the logarithms where they are wanted."""
        loss, logarithms = (*outputs, None)[:2]
        if loss is not None:
            self._launch(emit, (*inputs, None)[:3], loss)
        if logarithms is not None:
            lower: Any = build("LogSoftmax", {"axis": 1}).lower
            lower(emit, inputs[:1], (logarithms,))
