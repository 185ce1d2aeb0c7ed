"""DFT and STFT: Fourier transforms along one axis, each in one launch.

A frame of a signal is a line of a view, so STFT is a DFT of a view.

The host transforms in the input's precision (half and bfloat16 in float), as NumPy does; a device in double.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.geometry import Shape, normalize_axis
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator, upgrade
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of
from gpuexec.ops.lib.checks import check_dtype, require_scalar
from gpuexec.ops.signal.fourier_lines import Lines
from gpuexec.ops.tensor.layout import window

_FLOATS = dtypes_of("float")
_COUNTS = tuple(np.dtype(t) for t in (np.int32, np.int64))


@operator("DFT")
@dataclass(frozen=True, slots=True)
class DFT(Operator):
    """The discrete Fourier transform of lines of ``[..., 1]`` (real) or ``[..., 2]`` (complex) numbers.

    ``onesided`` keeps the ``length // 2 + 1`` first of a real signal's spectrum; with ``inverse`` it takes them and
    gives the signal.
    """

    inverse: int = 0
    onesided: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[1,8,2] int64[]=8"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self, x: TensorSpec | None, dft_length: TensorSpec | None = None, axis: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the spectrum's spec, or the signal's.

        Raises:
            InputError: No float type, a last axis that is neither 1 nor 2, an axis or a length out of range, or a
                one-sided transform of what has no such form.
            NeedsHostValue: Length or axis are not known.
        """
        x = _check_signal("DFT", x)
        lines = self._lines(x, dft_length, axis)
        if self.onesided and (x.shape[-1] == 2) != bool(self.inverse):
            wanted = "a complex spectrum (last axis 2)" if self.inverse else "a real signal (last axis 1)"
            raise InputError(f"DFT with onesided=1, inverse={self.inverse} expects {wanted}, got {x}.")
        kept = lines.length // 2 + 1 if self.onesided and not self.inverse else lines.length
        parts = 1 if lines.is_hermitian else 2
        return (x.with_shape((*x.shape[: lines.axis], kept, *x.shape[lines.axis + 1 : -1], parts)),)

    def compute(self, x: Array, dft_length: Array | None = None, axis: Array | None = None, *, out: Out = None) -> Any:
        """Transform with NumPy."""
        specs = [None if each is None else TensorSpec.of(each) for each in (x, dft_length, axis)]
        assert specs[0] is not None
        lines = self._lines(*specs)  # type: ignore[arg-type]
        values = x.astype(accumulator(x.dtype), copy=False)
        with np.errstate(all="ignore"):
            if x.shape[-1] == 1:
                signal = values[..., 0]
            else:
                signal = np.ascontiguousarray(values).view(np.result_type(values.dtype, np.complex64))[..., 0]
            if not signal.size:
                return (np.zeros(self.infer(*specs)[0].shape, x.dtype),)
            if lines.is_hermitian:
                made = np.fft.irfft(signal, lines.length, lines.axis)[..., np.newaxis]
                return (made.astype(x.dtype, copy=False),)
            transform = np.fft.ifft if self.inverse else np.fft.rfft if self.onesided else np.fft.fft
            return (_to_parts(transform(signal, lines.length, lines.axis), x.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once, all lines."""
        (x, dft_length, axis), y = (*inputs, None, None)[:3], outputs[0]
        assert x is not None and y is not None
        specs = [None if slot is None else slot.spec for slot in (dft_length, axis)]
        self._lines(x.spec, *specs).launch(emit, x, y)

    def _lines(self, x: TensorSpec, dft_length: TensorSpec | None, axis: TensorSpec | None) -> Lines:
        given = -2 if axis is None else int(require_scalar(check_dtype("DFT", axis, _COUNTS, "axis"), "axis", 2))
        place = normalize_axis(given, x.rank)
        if place == x.rank - 1:
            raise InputError(f"DFT expects a signal axis, not the last one (real and imaginary parts), got {given}.")
        is_hermitian = bool(self.inverse and self.onesided)
        extent = x.shape[place]
        length = 2 * (extent - 1) if is_hermitian else extent
        if dft_length is not None:
            length = int(require_scalar(check_dtype("DFT", dft_length, _COUNTS, "dft_length"), "dft_length", 1))
        if length < 1:
            raise InputError(f"DFT expects a length of 1 or more, got {length} for {x} along axis {given}.")
        return Lines(length, place, bool(self.inverse), is_hermitian)


@operator("STFT")
@dataclass(frozen=True, slots=True)
class STFT(Operator):
    """The spectra of frames of signals ``[batch, length, 1 or 2]``, or of ``[batch, length]``, weighed by a window."""

    onesided: int = 1
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[2,40,1] int64[]=7 - int64[]=8"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self,
        signal: TensorSpec | None,
        frame_step: TensorSpec | None,
        weights: TensorSpec | None = None,
        frame_length: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return ``[batch, frames, bins, 2]``.

        Raises:
            InputError: Types or ranks don't fit, a frame is too long, or a complex signal is to be one-sided.
            NeedsHostValue: Step or length of frames are not known.
        """
        signal = _check_signal("STFT", _as_real(signal))
        if weights is not None:
            check_dtype("STFT", weights, (signal.dtype,), "window")
        frames, _, length = self._frames(signal, frame_step, weights, frame_length)
        if self.onesided and signal.shape[-1] == 2:
            raise InputError(f"STFT with onesided=1 expects a real signal (last axis 1), got {signal}.")
        return (signal.with_shape((signal.shape[0], frames, length // 2 + 1 if self.onesided else length, 2)),)

    def compute(
        self,
        signal: Array,
        frame_step: Array,
        weights: Array | None = None,
        frame_length: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Transform with NumPy, all frames at once."""
        signal = signal if signal.ndim > 2 else signal[..., np.newaxis]
        specs = [None if x is None else TensorSpec.of(x) for x in (signal, frame_step, weights, frame_length)]
        assert specs[0] is not None
        frames, step, length = self._frames(*specs)  # type: ignore[arg-type]
        wide = np.ascontiguousarray(signal.astype(accumulator(signal.dtype), copy=False))
        if not signal.shape[0]:
            return (np.zeros(self.infer(*specs)[0].shape, signal.dtype),)
        batch_stride, item, part = wide.strides
        shape = (wide.shape[0], frames, length, wide.shape[2])
        view = np.lib.stride_tricks.as_strided(wide, shape, (batch_stride, step * item, item, part), writeable=False)
        with np.errstate(all="ignore"):
            if weights is not None:
                view = view * weights.astype(wide.dtype)[:, np.newaxis]
            if shape[-1] == 1:
                transformed = (np.fft.rfft if self.onesided else np.fft.fft)(view[..., 0])
            else:
                transformed = np.fft.fft(view[..., 0] + 1j * view[..., 1])
            return (_to_parts(transformed, signal.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch once: frames are lines of a view of the signal."""
        (signal, *others), y = (*inputs, None, None)[:4], outputs[0]
        assert signal is not None and y is not None
        spec = _as_real(signal.spec)
        assert spec is not None
        frames, step, length = self._frames(spec, *(None if slot is None else slot.spec for slot in others))
        batch_stride, item, part = (*signal.strides, 0)[:3]
        shape: Shape = (signal.shape[0], frames, length, spec.shape[2])
        view = window(signal, shape, (batch_stride, step * item, item, part))
        weights = others[1]
        Lines(length, 2).launch(emit, view, y, None if weights is None else emit.contiguous(weights))

    def _frames(
        self,
        signal: TensorSpec,
        frame_step: TensorSpec | None,
        weights: TensorSpec | None,
        frame_length: TensorSpec | None,
    ) -> tuple[int, int, int]:
        """Return the number of frames, the step between them and their length."""
        if signal.rank != 3:
            raise InputError(f"STFT expects a signal of rank 3, [batch, length, 1 or 2], got {signal}.")
        step = int(require_scalar(check_dtype("STFT", frame_step, _COUNTS, "frame_step"), "frame_step", 1))
        length = signal.shape[1] if weights is None else weights.size
        if frame_length is not None:
            length = int(require_scalar(check_dtype("STFT", frame_length, _COUNTS, "frame_length"), "frame_length", 3))
        if weights is not None and weights.shape != (length,):
            raise InputError(f"STFT expects a window of shape [{length}], the length of a frame, got {weights}.")
        if not 1 <= length <= signal.shape[1] or step < 1:
            raise InputError(
                f"STFT expects frames of 1 to {signal.shape[1]} samples of {signal} and a step of 1 or more, "
                f"got frame_length {length}, frame_step {step}."
            )
        return (signal.shape[1] - length) // step + 1, step, length


@upgrade("DFT", below=20)
def _take_axis_as_input(node: RawNode) -> RawNode:
    """Move the axis, an attribute until opset 19 with default 1, to an input."""
    return node.with_input(2, np.array(node.attributes.get("axis", 1), np.int64)).without("axis")


def _check_signal(name: str, x: TensorSpec | None) -> TensorSpec:
    x = check_dtype(name, x, _FLOATS, "signal")
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise InputError(f"{name} expects a last axis of 1 (real) or 2 (complex) behind signal axes, got {x}.")
    return x


def _as_real(signal: TensorSpec | None) -> TensorSpec | None:
    """Return a signal of rank 2, which exporters write for ``[batch, length]`` real numbers, with its last axis."""
    return signal.with_shape((*signal.shape, 1)) if signal is not None and signal.rank == 2 else signal


def _to_parts(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return complex numbers as pairs of another type."""
    parts = np.ascontiguousarray(values).view(values.real.dtype).reshape((*values.shape, 2))
    return parts.astype(dtype, copy=False)
