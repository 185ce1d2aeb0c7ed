"""Weights rounded to a lower precision, once for all runs: operator, and packed forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.command import Slot
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
    """Floats rounded to float8e4m3fn times a scale, kept as floats, or those of 8 bits; see `find_scales`.

    Attributes:
        axis: Each place along it has a scale; -1: there is one scale.
        is_stored: Whether they are of 8 bits.
    """

    axis: int
    is_stored: int = 0
    is_for_host: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec, of another type where it is stored in that."""
        return TensorSpec(source.shape, FLOAT8 if self.is_stored else _FLOAT)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Round the whole."""
        packed[...] = round_to_scaled(block, None if self.axis < 0 else self.axis, is_stored=bool(self.is_stored))


@weight_form("fp8_scales")
@dataclass(frozen=True, slots=True)
class Float8Scales(WeightForm):
    """Scales of floats that are rounded to float8e4m3fn; see `find_scales`.

    Attributes:
        axis: Each place along it has one; -1: there is one scale.
    """

    axis: int
    is_for_host: ClassVar[bool] = True
    is_whole: ClassVar[bool] = True

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec of the scales."""
        return TensorSpec((source.shape[self.axis],) if self.axis >= 0 else (), _FLOAT)

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Find the scales of the whole."""
        packed[...] = find_scales(block, None if self.axis < 0 else self.axis).reshape(packed.shape)


def find_scales(x: Array, axis: int | None = None) -> Array:
    """Return scales by which the largest magnitude becomes the largest number of float8e4m3fn; all axes of ``x`` stay.

    Args:
        x: The floats.
        axis: Each place along it has a scale; None: there is one scale.
    """
    axes = None if axis is None else tuple([each for each in range(x.ndim) if each != axis])
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
        return np.asarray(np.maximum(largest / LARGEST_FP8, SMALLEST_SCALE))


def round_to_scaled(x: Array, axis: int | None = None, *, is_stored: bool = False) -> Array:
    """Return floats rounded to float8e4m3fn times a scale.

    Args:
        x: The floats.
        axis: As of `find_scales`.
        is_stored: Whether they are returned without the scale, in 8 bits.
    """
    with np.errstate(all="ignore"):
        scale = find_scales(x, axis)
        narrow = to_narrow_float(x / scale, FLOAT8)
        return narrow if is_stored else np.asarray(narrow.astype(_FLOAT) * scale)


@operator("RoundWeight", DOMAIN)
@dataclass(frozen=True, slots=True)
class RoundWeight(Operator):
    """A weight rounded to ``to``; ``is_stored``: in its type, else as floats.

    A device has it in that form alone, and the host too: whoever puts it there rounds it. In fp8 each place along
    ``axis`` has a scale, or all of it has one; what is stored is without it, and the scales are a second output.
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
        """Return the spec of what is rounded, and of its scales.

        Raises:
            InputError: It is not of float or has no such axis, or there is no such precision.
        """
        if w is None or w.dtype != _FLOAT or (self.axis is not None and not 0 <= self.axis < w.rank):
            beside = "" if self.axis is None else f" with axis {self.axis}"
            raise InputError(f"{self.name} expects a weight of float32{beside}, got {w}.")
        _find_dtype(self.to, is_stored=bool(self.is_stored))
        return tuple([form.infer(w) for form in self._list_forms()])

    def find_dtype(self, dtypes: Sequence[np.dtype[np.generic] | None]) -> np.dtype[np.generic] | None:
        """Return the type that it is stored in."""
        return _find_dtype(self.to, is_stored=bool(self.is_stored))

    def compute(self, w: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Round."""
        if self.to != FP8:
            dtype = _find_dtype(self.to, is_stored=bool(self.is_stored))
            return (round_to(w, self.to).astype(dtype, copy=False),)
        rounded = round_to_scaled(w, self.axis, is_stored=bool(self.is_stored))
        if not self.is_stored:
            return (rounded,)
        return rounded, find_scales(w, self.axis).reshape(() if self.axis is None else w.shape[self.axis])

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Take the weight as it was packed; what is none of the model's is rounded by a launch.

        Raises:
            UnsupportedError: It was to be of fp8, and is none of the model's.
        """
        (w,) = inputs
        if w is None:
            return
        for y, form in zip(outputs, self._list_forms(), strict=True):
            packed = None if y is None else emit.packed(w, form)
            if y is not None and packed is not None:
                emit.alias(y, packed)
            elif y is not None:
                self._round(emit, w, y)

    def _list_forms(self) -> list[WeightForm]:
        """Return the packed forms of the outputs."""
        if self.to != FP8:
            return [Rounded(ROUNDED.index(self.to), self.is_stored)]
        axis = -1 if self.axis is None else self.axis
        return [ScaledFloat8(axis, self.is_stored), *([Float8Scales(axis)] if self.is_stored else [])]

    def _round(self, emit: Emitter, w: Slot, y: Slot) -> None:
        if self.to == FP8 and w.spec.size:
            raise UnsupportedError(f"{self.name}: weights are scaled for fp8 where they can be packed, and not here.")
        if self.to == FP8:
            emit.fill(y, SMALLEST_SCALE)  # scales of nothing, if anything
            return
        operator = build(f"{DOMAIN}.RoundOperand", {"to": self.to})
        if self.is_stored:
            operator = build("Cast", {"to": dtype_row(y.dtype).code})
        assert operator.lower is not None
        operator.lower(emit, (w,), (y,))


def _find_dtype(precision: str, *, is_stored: bool) -> np.dtype[np.generic]:
    """Return the type of rounded numbers.

    Raises:
        InputError: There is no such precision, or it has no type.
    """
    if precision not in ROUNDED or (is_stored and precision not in (*STORED, FP8)):
        raise InputError(f"Weights are rounded to one of {', '.join(ROUNDED)}, got {precision!r}.")
    if not is_stored:
        return _FLOAT
    return FLOAT8 if precision == FP8 else dtype_row(STORED[precision]).numpy
