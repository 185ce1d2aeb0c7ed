"""Trilu: the upper or lower triangle of each matrix; zero elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel
from gpuexec.ir.containers import make_blank
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.strided import join, pack_fast_div64

_THREADS = 256  # kThreads of trilu.cu
_TABLE = 1 << 14  # elements of a table that is made once for arrays that stay, at most
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
instantiate("trilu.cu", [f"trilu<{bits}>" for bits in _BITS.values()])


@operator("Trilu")
@dataclass(frozen=True, slots=True)
class Trilu(Operator):
    """``y[..., i, j] = x[..., i, j]`` where ``j - i >= k`` (``upper``) or ``j - i <= k``, else 0.

    ``k`` is 0 unless given. No shape depends on it, so the kernel reads it on the device without a wait.
    """

    upper: int = 1
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True

    def infer(self, x: TensorSpec, k: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        if x.rank < 2:
            raise InputError(f"Trilu expects an input of rank 2 or more, got {x}.")
        if k is not None and (k.size != 1 or k.dtype != np.int64):
            raise InputError(f"Trilu expects k to be one int64, got {k}.")
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, k: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Choose by the distance from the main diagonal."""
        rows, columns = x.shape[-2:]
        # Beyond the corners nothing changes; the limit keeps the comparison within int64.
        diagonal = 0 if k is None else max(-rows, min(int(k.reshape(())), columns))
        distance = np.arange(columns) - np.arange(rows)[:, None]  # [rows, columns]
        is_kept = distance >= diagonal if self.upper else distance <= diagonal
        return (np.where(is_kept, x, make_blank((), x.dtype)),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Copy all, and clear what goes, where the diagonal never changes."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1,))
        if by_content is not None:
            return by_content
        (x, k), y = (*inputs, None)[:2], out[0]
        if x is None or y is None or not y.size or (k is not None and not constant[1]):
            return None
        rows, columns = x.shape[-2:]
        if rows * columns > _TABLE:
            return None
        diagonal = 0 if k is None else max(-rows, min(int(k.reshape(())), columns))
        distance = np.arange(columns) - np.arange(rows)[:, None]
        goes = distance < diagonal if self.upper else distance > diagonal
        return [partial(np.copyto, y, x), partial(np.copyto, y, make_blank((), x.dtype), "no", goes)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element."""
        x, k = (*inputs, None)[:2]
        y = outputs[0]
        assert x is not None and y is not None
        emit.in_place(y, x)
        walk = join(y.shape, (x.strides, y.strides))
        rows, columns = (pack_fast_div64(max(1, extent)) for extent in y.shape[-2:])
        emit.launch(
            Kernel("trilu.cu", f"trilu<{_BITS[x.dtype.itemsize]}>"),
            (ceil_div(walk.count, _THREADS), 1, 1),
            (_THREADS, 1, 1),
            [x, k, y, walk.pack(), rows, columns, int32(bool(self.upper))],
            writes=[2],
        )
