"""CausalConvWithState: a causal depthwise convolution that keeps the last columns between calls."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64

FLOATS: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
_ACTIVATIONS = ("none", "silu", "swish")
_SOURCE = "causal_conv.cu"
_THREADS = 256  # kThreads
instantiate(_SOURCE, [f"causal_conv<{dtype_row(t).cuda}>" for t in FLOATS])


@operator("CausalConvWithState")
@dataclass(frozen=True, slots=True)
class CausalConvWithState(Operator):
    """``f(bias + sum of weight[i] * z[t + i])`` for z, the past state (zeros without one) followed by the input.

    Shapes: input ``[batch, channels, length]``, weight ``[channels, 1, taps]``, states ``[batch, channels, taps - 1]``:
    the second output holds the last columns of z. ``activation`` silu, or swish, is ``a * sigmoid(a)``.
    """

    activation: str = "none"
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[1,2,6] float32[2,1,4]"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self, x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None, past: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of the output and the state it leaves.

        Raises:
            InputError: Types differ, shapes don't fit, or the activation is unknown.
        """
        x = check_dtype(self.name, x, FLOATS)
        weight = check_dtype(self.name, weight, (x.dtype,), "weight")
        if self.activation not in _ACTIVATIONS:
            raise InputError(f"{self.name} expects activation {', '.join(_ACTIVATIONS)}, got {self.activation!r}.")
        if x.rank != 3:
            raise InputError(f"{self.name} expects input [batch, channels, length], got {x}.")
        batch, channels, _ = x.shape
        if weight.rank != 3 or weight.shape[:2] != (channels, 1) or not weight.shape[2]:
            raise InputError(f"{self.name} expects weight [{channels}, 1, taps] for input {x}, got {weight}.")
        state = x.with_shape((batch, channels, weight.shape[2] - 1))
        for role, given, shape in (("bias", bias, (channels,)), ("past_state", past, state.shape)):
            if given is not None and check_dtype(self.name, given, (x.dtype,), role).shape != shape:
                raise InputError(f"{self.name} expects {role} of shape {list(shape)}, got {given}.")
        return x.with_shape(x.shape), state

    def compute(
        self, x: Array, weight: Array, bias: Array | None = None, past: Array | None = None, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Convolve with NumPy, tap by tap, in float; half and bfloat16 rounded once."""
        batch, channels, length = x.shape
        taps = weight.shape[2]
        if past is None:
            past = np.zeros((batch, channels, taps - 1), x.dtype)
        whole = np.concatenate((past, x), axis=2)
        wide, factors = whole.astype(np.float32, copy=False), weight.astype(np.float32, copy=False)
        y = np.zeros(x.shape, np.float32)
        with np.errstate(all="ignore"):
            if bias is not None:
                y += bias.astype(np.float32)[:, np.newaxis]
            for tap in range(taps):
                y += factors[:, :, tap] * wide[:, :, tap : tap + length]
            if self.activation != "none":
                y /= 1 + np.exp(-y)
            return y.astype(x.dtype, copy=False), whole[:, :, length:]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a thread per column of both outputs."""
        x, weight, bias, past = (*inputs, None, None)[:4]
        y, state = (*outputs, None)[:2]
        assert x is not None and weight is not None
        batch, channels, length = x.shape
        taps = weight.shape[2]
        columns = length + taps - 1
        count = batch * channels * columns
        dense: list[Slot | None] = [None if slot is None else emit.contiguous(slot) for slot in (weight, bias)]
        arguments: list[Argument] = [x, *dense, past, y, state]
        past_strides = (0, 0, 0) if past is None else past.strides
        numbers = (count, length, taps, *x.strides, *past_strides, self.activation != "none")
        divisors = pack_fast_div64(max(1, columns)) + pack_fast_div64(max(1, channels))
        arguments.append(divisors + pack_struct("<10q", *numbers))
        kernel, grid = Kernel(_SOURCE, f"causal_conv<{dtype_row(x.dtype).cuda}>"), max(1, ceil_div(count, _THREADS))
        writes = [index for index in (4, 5) if arguments[index] is not None]
        emit.launch(kernel, (grid, 1, 1), (_THREADS, 1, 1), arguments, writes)


# Instructions of a thread: around, for a tap, and for the activation; loads of taps that are under way together.
_AROUND, _EACH_TAP, _ACTIVATION, _TAPS_TOGETHER = 120, 22, 45, 4


@work_of(_SOURCE, "causal_conv")
def _count_causal_conv(launch: Launch) -> Work:
    bias, y, packed = launch.arguments[2], launch.arguments[4], launch.arguments[6]
    assert isinstance(packed, bytes)
    count, _, taps = struct.unpack_from("<3q", packed, 48)
    is_activated = struct.unpack_from("<q", packed, 48 + 9 * 8)[0]
    results = y.spec.size if isinstance(y, Slot) else 0
    slots = [*launch.reads_from(), *launch.writes_to()]
    return Work(
        flops=results * (2 * taps + (bias is not None) + 4 * is_activated),
        instructions=count_warps(launch) * (_AROUND + (taps * _EACH_TAP + is_activated * _ACTIVATION) * bool(results)),
        multiply_adds=ceil_div(count, WARP) * taps * bool(results),
        needed_multiply_adds=results * taps,
        l2_nbytes=sum(map(count_slot_bytes, slots)),  # L1 has the columns that neighbours share
        rounds=1 + ceil_div(taps, _TAPS_TOGETHER),
        registers=64,
    )
