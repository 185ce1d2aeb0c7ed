"""Weights rounded to a lower precision, once for all runs: operator, and packed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, build, operator
from gpuexec.ir.precision import FP8, ROUNDED, STORED
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.weight_forms import WeightForm, find_window, weight_form
from gpuexec.ops.lib.rounding import round_to
from gpuexec.ops.quant.narrow_types import to_narrow_float

DOMAIN = "gpuexec"
FLOAT8 = dtype_row("float8e4m3fn").numpy
# The largest number of that type, and a scale for what is all zeros.
LARGEST_FP8, SMALLEST_SCALE = np.float32(448), np.float32(2.0**-100)
_FLOAT = np.dtype(np.float32)


@weight_form("rounded")
@dataclass(frozen=True, slots=True)
class Rounded(WeightForm):
    """Floats rounded to a precision, where they lie: as floats, or in its type.

    Attributes:
        precision: Its place in `ROUNDED`.
        is_stored: Whether they are of its type.
    """

    precision: int
    is_stored: int
    is_for_host: ClassVar[bool] = True

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec, of another type where it is stored in that."""
        dtype = _find_dtype(ROUNDED[self.precision], is_stored=bool(self.is_stored))
        return TensorSpec(source.shape, dtype)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Round a block."""
        packed[find_window(block, at)] = round_to(block, ROUNDED[self.precision]).astype(packed.dtype)


@weight_form("scaled_fp8")
@dataclass(frozen=True, slots=True)
class ScaledFloat8(WeightForm):
    """Floats rounded to float8e4m3fn times a scale, kept as floats; see `round_to_scaled`.

    Attributes:
        axis: Each place along it has a scale; -1: there is one scale.
    """

    axis: int
    is_for_host: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the same spec."""
        return TensorSpec(source.shape, _FLOAT)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Round the whole."""
        packed[...] = round_to_scaled(block, None if self.axis < 0 else self.axis)


def round_to_scaled(x: Array, axis: int | None = None) -> Array:
    """Return floats rounded to float8e4m3fn times a scale, by which the largest magnitude is its largest number.

    Args:
        x: The floats.
        axis: Each place along it has a scale; None: there is one scale.
    """
    if not x.size:
        return x
    axes = None if axis is None else tuple([each for each in range(x.ndim) if each != axis])
    with np.errstate(all="ignore"):
        scale = np.maximum(np.max(np.abs(x), axis=axes, keepdims=True) / LARGEST_FP8, SMALLEST_SCALE)
        return np.asarray(to_narrow_float(x / scale, FLOAT8).astype(_FLOAT) * scale)


@operator("RoundWeight", DOMAIN)
@dataclass(frozen=True, slots=True)
class RoundWeight(Operator):
    """A weight rounded to ``to``; ``is_stored``: in its type, else as floats.

    A device has it in that form alone, and the host too: whoever puts it there rounds it. In fp8 each place along
    ``axis`` has a scale, or all of it has one.
    """

    to: str
    is_stored: int = 0
    axis: int | None = None
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[2,3] to='bf16'"
    flops_per_output = 0
    has_blits = True
    is_foldable = False  # weights are exchanged under plans, which would keep what was made of the ones before

    def infer(self, w: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the input's shape.

        Raises:
            InputError: It is not of float, or there is no such precision.
        """
        if w is None or w.dtype != _FLOAT:
            raise InputError(f"{self.name} expects a weight of float32, got {w}.")
        return (TensorSpec(w.shape, _find_dtype(self.to, is_stored=bool(self.is_stored))),)

    def find_dtype(self, dtypes: Sequence[np.dtype[np.generic] | None]) -> np.dtype[np.generic] | None:
        """Return the type that it is stored in."""
        return _find_dtype(self.to, is_stored=bool(self.is_stored))

    def compute(self, w: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Round."""
        if self.to == FP8:
            return (round_to_scaled(w, self.axis),)
        return (round_to(w, self.to).astype(_find_dtype(self.to, is_stored=bool(self.is_stored)), copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Take the weight as it was packed; what is none of the model's is rounded by a launch.

        Raises:
            UnsupportedError: It was to be of fp8, and is none of the model's.
        """
        (w,), (y,) = inputs, outputs
        if w is None or y is None:
            return
        form: WeightForm = Rounded(ROUNDED.index(self.to), self.is_stored)
        if self.to == FP8:
            form = ScaledFloat8(-1 if self.axis is None else self.axis)
        packed = emit.packed(w, form)
        if packed is not None:
            emit.alias(y, packed)
            return
        if self.to == FP8 and w.spec.size:
            raise UnsupportedError(f"{self.name}: weights are scaled for fp8 where they can be packed, and not here.")
        if self.to == FP8:
            emit.copy(y, w)
            return
        operator = build(f"{DOMAIN}.RoundOperand", {"to": self.to})
        if self.is_stored:
            operator = build("Cast", {"to": dtype_row(y.dtype).code})
        assert operator.lower is not None
        operator.lower(emit, inputs, outputs)


def _find_dtype(precision: str, *, is_stored: bool) -> np.dtype[np.generic]:
    """Return the type of rounded numbers.

    Raises:
        InputError: There is no such precision, or it has no type.
    """
    if precision not in ROUNDED or (is_stored and precision not in STORED):
        raise InputError(f"Weights are rounded to one of {', '.join(ROUNDED)}, got {precision!r}.")
    return dtype_row(STORED[precision]).numpy if is_stored else _FLOAT
