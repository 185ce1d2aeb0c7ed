"""Inverse of square matrices and Solve of linear systems, by Gaussian elimination."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator, upgrade
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.renamed import EVERY_VERSION
from gpuexec.ops.tensor.layout import window

_SOURCE = "inverse.cu"
_THREADS = 256  # kThreads of inverse.cu
_FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, np.float64))
_SOLVED = tuple(np.dtype(t) for t in (np.float32, np.float64))
instantiate(_SOURCE, [f"invert<{dtype_row(t).cuda}>" for t in _FLOATS])
instantiate(_SOURCE, [f"solve<{dtype_row(t).cuda}>" for t in _SOLVED])


@operator("Inverse", DOMAIN)
@dataclass(frozen=True, slots=True)
class Inverse(Operator):
    """Inverse of the matrices in the last two axes; one that has none gives infinities and NaN."""

    tolerance = Tolerance.REDUCTION
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's spec.

        Raises:
            InputError: Matrices are not square, or not of floats.
        """
        x = check_dtype(self.name, x, _FLOATS)
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise InputError(f"{self.name} expects square matrices, got {x}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Eliminate with NumPy, all matrices at a time, in the order of the kernel; half in float, rounded once."""
        n, acc = x.shape[-1], accumulator(x.dtype)
        one = np.broadcast_to(np.eye(n, dtype=acc), x.shape)
        return (_eliminate(x.astype(acc, copy=False), one).astype(x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a block per matrix."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        n, count = x.shape[-1], prod(x.shape[:-2])
        work = emit.temp((count, n, 2 * n), accumulator(x.dtype))
        arguments: list[Argument] = [emit.contiguous(x), work, y, int64(n)]
        kernel = Kernel(_SOURCE, f"invert<{dtype_row(x.dtype).cuda}>")
        emit.launch(kernel, (max(1, count), 1, 1), (_THREADS, 1, 1), arguments, writes=[1, 2])


@operator("Solve", DOMAIN)
@dataclass(frozen=True, slots=True)
class Solve(Operator):
    """y of ``a @ y = b``, for each matrix a and the vector or matrix b; with ``transposed``, of ``a.T @ y = b``.

    skl2onnx writes it for Gaussian processes; onnxruntime has no such operator. A matrix without inverse gives
    infinities and NaN.
    """

    transposed: int = 0
    tolerance = Tolerance.REDUCTION
    example = "float32[2,2] float32[2,2]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of b.

        Raises:
            InputError: Matrices are not square, b does not fit them, or the types differ or are no floats.
        """
        a = check_dtype(self.name, a, _SOLVED, "A")
        b = check_dtype(self.name, b, (a.dtype,), "Y")
        if a.rank < 2 or a.shape[-1] != a.shape[-2]:
            raise InputError(f"{self.name} expects square matrices, got {a}.")
        if a.shape[:-1] not in (b.shape, b.shape[:-1]):
            raise InputError(f"{self.name} expects Y {[*a.shape[:-1]]} or {[*a.shape[:-1], 'columns']}, got {b}.")
        return (b.with_shape(b.shape),)

    def compute(self, a: Array, b: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Eliminate with NumPy, all matrices at a time, in the order of the kernel."""
        columns = b.reshape(*a.shape[:-1], prod(b.shape[a.ndim - 1 :]))
        return (_eliminate(a.swapaxes(-1, -2) if self.transposed else a, columns).reshape(b.shape),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a block per matrix."""
        (a, b), y = inputs, outputs[0]
        assert a is not None and b is not None and y is not None
        n, count, columns = a.shape[-1], prod(a.shape[:-2]), prod(y.shape[a.spec.rank - 1 :])
        if self.transposed:
            a = window(a, a.shape, (*a.strides[:-2], a.strides[-1], a.strides[-2]))
        work = emit.temp((count, n, n + columns), y.dtype)
        arguments: list[Argument] = [emit.contiguous(a), emit.contiguous(b), work, y, int64(n), int64(columns)]
        kernel = Kernel(_SOURCE, f"solve<{dtype_row(y.dtype).cuda}>")
        emit.launch(kernel, (max(1, count), 1, 1), (_THREADS, 1, 1), arguments, writes=[2, 3])


@upgrade(f"{DOMAIN}.Solve", below=EVERY_VERSION)
def _drop_triangle(node: RawNode) -> RawNode:
    """Remove ``lower``, by which SciPy reads one triangle of a symmetric matrix; here all of any matrix is read."""
    return node.without("lower")


def _eliminate(a: Array, b: Array) -> Array:
    """Return y of ``a @ y = b``, matrices in the last two axes, all at a time and in the order of the kernel."""
    n, count = a.shape[-1], prod(a.shape[:-2])
    work = np.concatenate((a, b), axis=-1).reshape(count, n, n + b.shape[-1])
    every = np.arange(count)
    with np.errstate(all="ignore"):
        for step in range(n):
            sizes = np.abs(work[:, step:, step])
            pivot = step + np.argmax(np.where(np.isnan(sizes), a.dtype.type(-1), sizes), axis=1)
            row = work[every, pivot] / work[every, pivot, step][:, np.newaxis]
            work[every, pivot] = work[:, step]
            work[:, step] = row
            factors = work[:, :, step].copy()
            factors[:, step] = 0
            change = factors[:, :, np.newaxis] * row[:, np.newaxis, step + 1 :]
            change[:, step] = 0
            work[:, :, step + 1 :] -= change
    return work[:, :, n:].reshape(b.shape)


# Instructions of a warp: of a step, and for an element that a step changes; barriers of a step; times that it waits.
_EACH_STEP, _EACH_ELEMENT, _STEP_BARRIERS, _STEP_ROUNDS = 400, 22, 12, 4


@work_of(_SOURCE, "invert", "solve")
def _count_elimination(launch: Launch) -> Work:
    is_solved = launch.kernel.expression.startswith("solve")
    x, y = launch.arguments[0], launch.arguments[3 if is_solved else 2]
    side = read_int(launch.arguments[4 if is_solved else 3])
    columns = read_int(launch.arguments[5]) if is_solved else side
    assert isinstance(x, Slot) and isinstance(y, Slot)
    width, matrices = side + columns, x.spec.size // max(1, side * side)
    changed = side * sum(width - step - 1 for step in range(side))  # elements of a matrix, over all steps
    own = sum(ceil_div(side * (width - step - 1), _THREADS) for step in range(side))
    work_nbytes = matrices * side * width * (8 if y.dtype.itemsize == 8 else 4)
    return Work(
        flops=2 * matrices * changed,
        instructions=matrices * (_THREADS // 32) * (side * _EACH_STEP + own * _EACH_ELEMENT),
        l2_nbytes=2 * matrices * changed * y.dtype.itemsize + count_slot_bytes(x) + y.spec.nbytes,
        rounds=side * _STEP_ROUNDS + own,
        barriers=side * _STEP_BARRIERS,
        registers=56,
        shared_nbytes=3072,
        operand_nbytes={2 if is_solved else 1: work_nbytes},
    )
