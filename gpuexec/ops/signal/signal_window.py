"""HannWindow, HammingWindow and BlackmanWindow: one kernel with a table of coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_engine import FLOATS, NUMBERS, UNSIGNED_BY_SIZE
from gpuexec.ops.lib.checks import check_dtype, require_scalar

_SOURCE = "signal_window.cu"
_THREADS = 256
_SIZES = tuple(np.dtype(t) for t in (np.int32, np.int64))

instantiate(_SOURCE, [f"cosine_window<{dtype_row(dtype).cuda}>" for dtype in FLOATS])
instantiate(_SOURCE, [f"cosine_window<{unsigned}>" for unsigned in UNSIGNED_BY_SIZE.values()])


@dataclass(frozen=True, slots=True)
class CosineWindow(Operator):
    """``a0 - a1 cos(2 pi i / n) + a2 cos(4 pi i / n)``, n the size, or one less for a symmetric window."""

    coefficients: ClassVar[tuple[float, float, float]]
    output_datatype: int = 1
    periodic: int = 1
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    flops_per_output = None
    has_blits = True

    def infer(self, size: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return ``[size]``.

        Raises:
            InputError: The size is not one integer of 0 or more, or the output's type is no number.
            NeedsHostValue: The size is not known.
        """
        count = int(require_scalar(check_dtype(self.name, size, _SIZES, "size"), "size", 0))
        dtype = dtype_row(self.output_datatype).numpy
        if count < 0 or dtype not in NUMBERS:
            raise InputError(
                f"{self.name} expects a size of 0 or more and a number as output, got {count} and {dtype.name}."
            )
        return (TensorSpec((count,), dtype),)

    def compute(self, size: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Compute in double; integers truncate, and NaN is 0 in them."""
        (spec,) = self.infer(TensorSpec.of(size))
        a0, a1, a2 = self.coefficients
        with np.errstate(all="ignore"):
            turn = np.arange(spec.size, dtype=np.float64) / self._period(spec.size)
            y = a2 * np.cos(4 * np.pi * turn) - a1 * np.cos(2 * np.pi * turn) + a0
            return ((y if spec.dtype in FLOATS else np.nan_to_num(y)).astype(spec.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element."""
        y = outputs[0]
        assert y is not None
        count = y.spec.size
        name = dtype_row(y.dtype).cuda if y.dtype in FLOATS else UNSIGNED_BY_SIZE[y.dtype.itemsize]
        scalars: list[Argument] = [int64(count), int64(self._period(count)), *map(np.float64, self.coefficients)]
        grid = (max(1, ceil_div(count, _THREADS)), 1, 1)
        emit.launch(Kernel(_SOURCE, f"cosine_window<{name}>"), grid, (_THREADS, 1, 1), [y, *scalars], writes=[0])

    def _period(self, count: int) -> int:
        return count if self.periodic else count - 1


COEFFICIENTS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 1 - 25 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


def _register(name: str, coefficients: tuple[float, float, float]) -> type[CosineWindow]:
    body = {
        "__slots__": (),
        "__doc__": f"{name}: see `CosineWindow`.",
        "__module__": __name__,
        "coefficients": coefficients,
    }
    return operator(name)(type(name, (CosineWindow,), body))


WINDOWS = {name: _register(name, coefficients) for name, coefficients in COEFFICIENTS.items()}
globals().update(WINDOWS)  # so that each class is found where its __module__ says
