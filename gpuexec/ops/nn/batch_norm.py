"""BatchNormalization for inference (elementwise) and training (statistics first)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, work_of
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import allow_for_floats
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.team import BLOCK_THREADS, RowLoop, count_rows
from gpuexec.ops.tensor.layout import in_order_of

_KEPT_NBYTES = 1 << 14  # of factors that prepared calls keep from run to run: no larger than a table
_SOURCE = "batch_norm.cu"
_BLOCK = (BLOCK_THREADS, 1, 1)
_ELEMENTS_PER_BLOCK = 4 * BLOCK_THREADS
_FLOATS = dtypes_of("float")
_CUDA = tuple(dtype_row(dtype).cuda for dtype in _FLOATS)
_ROLES = ("scale", "B", "input_mean", "input_var")

# Types of x, of scale and bias, of the statistics. Other mixtures are converted to the accumulator first.
instantiate(_SOURCE, [f"normalize_channels<{t}, {t}, {t}>" for t in _CUDA])
instantiate(_SOURCE, [f"normalize_channels<{t}, {p}, float>" for t in ("half", "bf16") for p in (t, "float")])
allow_for_floats(_SOURCE, "normalize_channels<{t}, {t}, {t}>", stores_others=False)
instantiate(_SOURCE, [f"measure_channels<{t}, {s}>" for t in _CUDA for s in _CUDA])


@operator("BatchNormalization")
@dataclass(frozen=True, slots=True)
class BatchNormalization(Operator):
    """``scale * (x - mean) / sqrt(variance + epsilon) + bias`` with parameters per channel.

    With ``training_mode`` mean and variance are those of the batch, and the running ones are moved towards them by
    ``1 - momentum``; without it they are the inputs and stay as they are. ``per_activation`` is the form before opset 9
    with ``spatial=0``: each element of an image has its own parameters. It comes from the upgrade.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    epsilon: float = 1e-5
    momentum: float = 0.9
    training_mode: int = 0
    per_activation: int = 0
    example = "float32[2,3,4] float32[3] float32[3] float32[3] float32[3]"
    flops_per_output = 2  # scale and shift, worked out beforehand
    keeps_dtype = True
    derivative = Derivative.PARTS
    has_blits = True
    takes_epilogue = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self, x: TensorSpec, scale: TensorSpec, bias: TensorSpec, mean: TensorSpec, variance: TensorSpec
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of y, running mean and running variance.

        Raises:
            InputError: Not float types, types that differ within scale and B or within mean and variance, or not one
                entry per channel.
        """
        x = check_dtype(self.name, x, _FLOATS)
        if not x.rank:
            raise InputError(f"{self.name} expects an input of rank 1 or more, [n, channels, ...], got {x}.")
        _, channels, _ = self._split(x.shape)
        parameters = [
            check_dtype(self.name, spec, _FLOATS, role)
            for role, spec in zip(_ROLES, (scale, bias, mean, variance), strict=True)
        ]
        for role, spec in zip(_ROLES, parameters, strict=True):
            if spec.size != channels or (spec.rank != 1 and not self.per_activation):
                raise InputError(f"{self.name} expects {role} of shape [{channels}] for input {x}, got {spec}.")
        scale, bias, mean, variance = parameters
        if scale.dtype != bias.dtype or mean.dtype != variance.dtype:
            raise InputError(
                f"{self.name} expects scale and B of one type, and input_mean and input_var of one type, "
                f"got {', '.join(map(str, parameters))}."
            )
        return x.with_shape(x.shape), mean.with_shape(mean.shape), mean.with_shape(mean.shape)

    def compute(
        self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, out: Out = None
    ) -> tuple[Array | None, ...]:
        """Normalise with NumPy; half and bfloat16 in float, rounded once."""
        wide = x.astype(accumulator(x.dtype), copy=False)
        kind = wide.dtype.type
        running = mean, variance
        n, channels, inner = self._split(x.shape)
        with np.errstate(all="ignore"):
            used = [p.astype(kind, copy=False) for p in (scale, bias, mean, variance)]
            if self.training_mode:
                statistics = _measure(wide.reshape(n, channels, inner))
                running = tuple(
                    (old * kind(self.momentum) + new.reshape(old.shape) * kind(1 - self.momentum)).astype(like.dtype)
                    for old, new, like in zip(used[2:], statistics, (mean, variance), strict=True)
                )
                used[2:] = statistics
            spread = self._spread(x.shape)
            scale, bias, mean, variance = (p.reshape(spread) for p in used)
            buffer = out[0] if out and wide.dtype == x.dtype else None
            y = np.asarray(np.subtract(wide, mean, out=buffer))
            y *= scale / np.sqrt(variance + kind(self.epsilon))
            y += bias
            return (y.astype(x.dtype, copy=False), *running)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the factors by which elements are scaled."""
        x, scale = inputs[0], inputs[1]
        return () if x is None or scale is None else (scale.size * accumulator(x.dtype).itemsize,)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Subtract, scale and add in the output, where all is of one type, that of the arithmetic."""
        x, scale, bias, mean, variance = inputs
        y = out[0]
        if x is None or scale is None or bias is None or mean is None or variance is None or y is None:
            return None
        if self.training_mode or any(running is not None for running in out[1:]) or not y.size:
            return None
        given = (scale, bias, mean, variance)
        if any(p.dtype != y.dtype or not p.flags.c_contiguous for p in given) or accumulator(y.dtype) != y.dtype:
            return None
        if not has_scratch(scratch, (scale.nbytes,)):
            return None
        is_known = constant[1] and constant[4] and scale.nbytes <= _KEPT_NBYTES
        factor = np.empty(scale.shape, y.dtype) if is_known else view_bytes(scratch[0], scale.shape, y.dtype)
        calls: list[Callable[[], object]] = [
            partial(np.add, variance, y.dtype.type(self.epsilon), out=factor),
            partial(np.sqrt, factor, out=factor),
            partial(np.divide, scale, factor, out=factor),
        ]
        if is_known:
            for call in calls:
                call()
            calls = []
        spread = self._spread(x.shape)
        return [
            *calls,
            partial(np.subtract, x, mean.reshape(spread), out=y),
            partial(np.multiply, y, factor.reshape(spread), out=y),
            partial(np.add, y, bias.reshape(spread), out=y),
        ]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the elementwise map; in training a block per channel measures first."""
        (y, *running), given = (*outputs, None, None)[:3], [slot for slot in inputs if slot is not None]
        order = None if y is None or y.is_contiguous else y  # channels last
        if order is not None and self.training_mode:  # measured of row-major ones
            made = emit.temp(order.shape, order.dtype)
            self.lower(emit, inputs, (made, *running))
            emit.copy(order, made)
            return
        x, scale, bias, mean, variance = (
            emit.contiguous(slot) if order is None or slot is not inputs[0] else in_order_of(emit, slot, order)
            for slot in given
        )
        if self.training_mode:
            mean, variance = self._lower_measuring(emit, x, mean, variance, running)
        else:
            for slot, source in zip(running, (inputs[3], inputs[4]), strict=True):
                if slot is not None and source is not None:
                    emit.alias(slot, source)
        if y is None:
            return
        parameters = [scale, bias, mean, variance]
        expression = f"normalize_channels<{', '.join(dtype_row(s.dtype).cuda for s in (x, scale, mean))}>"
        if expression not in _MAPS:
            parameters = [_widen(emit, slot, accumulator(x.dtype)) for slot in parameters]
            expression = (
                f"normalize_channels<{', '.join(dtype_row(s.dtype).cuda for s in (x, parameters[0], parameters[2]))}>"
            )
        _, channels, inner = self._split(x.shape)
        inner = inner if order is None else 1
        arguments: list[Argument] = [x, *parameters, y, int64(x.spec.size)]
        arguments += [pack_fast_div64(max(1, inner)), pack_fast_div64(max(1, channels)), np.float64(self.epsilon)]
        grid = (ceil_div(x.spec.size, _ELEMENTS_PER_BLOCK), 1, 1)
        emit.launch(Kernel(_SOURCE, expression), grid, _BLOCK, arguments, writes=[5])

    def _lower_measuring(
        self, emit: Emitter, x: Slot, mean: Slot, variance: Slot, running: Sequence[Slot | None]
    ) -> tuple[Slot, Slot]:
        n, channels, inner = self._split(x.shape)
        batch = emit.temp((channels,), accumulator(x.dtype)), emit.temp((channels,), accumulator(x.dtype))
        moved = [emit.temp((channels,), mean.dtype) if slot is None else slot for slot in running]
        arguments: list[Argument] = [x, mean, variance, *batch, *moved]
        arguments += [int64(n if inner else 0), int64(channels), pack_fast_div64(max(1, inner))]
        arguments += [np.float64(self.momentum), np.float64(1 - self.momentum)]
        expression = f"measure_channels<{dtype_row(x.dtype).cuda}, {dtype_row(mean.dtype).cuda}>"
        emit.launch(Kernel(_SOURCE, expression), (channels, 1, 1), _BLOCK, arguments, writes=[3, 4, 5, 6])
        return batch

    def _spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of parameters that broadcast with an image."""
        # [channels] against [n, channels, ...]; per activation [channels, ...] is [1, ...] of the image.
        if self.per_activation:
            return (1, *shape[1:])
        return (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else (1,)

    def _split(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the input as ``[n, channels, inner]``; a vector is one channel."""
        if self.per_activation:
            return shape[0], prod(shape[1:]), 1
        return shape[0], shape[1] if len(shape) > 1 else 1, prod(shape[2:])


_MAPS = {f"normalize_channels<{t}, {t}, {t}>" for t in _CUDA} | {
    f"normalize_channels<{t}, {p}, float>" for t in ("half", "bf16") for p in (t, "float")
}


@upgrade("BatchNormalization", below=7)
def _replace_is_test(node: RawNode) -> RawNode:
    """Replace ``is_test``, which told inference from training until opset 6, by ``training_mode``."""
    is_test = node.attributes.get("is_test", 0)
    return node.without("is_test") if is_test else node.without("is_test").with_attributes(training_mode=1)


@upgrade("BatchNormalization", below=9)
def _drop_spatial(node: RawNode) -> RawNode:
    """Drop ``spatial``; 0 becomes the form with parameters per activation."""
    per_activation = node.attributes.get("spatial", 1) == 0
    node = node.without("spatial")
    return node.with_attributes(per_activation=1) if per_activation else node


@upgrade("BatchNormalization", below=14)
def _name_training(node: RawNode) -> RawNode:
    """Set ``training_mode``, which followed from the number of outputs before.

    Raises:
        InputError: The statistics of the batch are wanted as outputs, which later forms don't have.
    """
    if any(node.outputs[3:]):
        raise InputError("BatchNormalization below opset 14 with outputs saved_mean or saved_var is not supported.")
    return node.with_attributes(training_mode=1) if any(node.outputs[1:]) else node


def _measure(x: Array) -> tuple[Array, Array]:
    """Return mean and variance of the channels of ``[n, channels, inner]``."""
    terms = x.dtype.type(x.shape[0] * x.shape[2])
    mean = np.add.reduce(x, axis=(0, 2), keepdims=True) / terms
    return mean.reshape(-1), np.add.reduce(np.square(x - mean), axis=(0, 2)) / terms


def _widen(emit: Emitter, slot: Slot, dtype: np.dtype[Any]) -> Slot:
    """Return a dense slot in another float type."""
    if slot.dtype == dtype:
        return slot
    wide = emit.temp(slot.shape, dtype)
    convert_commands(emit, wide, slot)
    return wide


_MEASURE = RowLoop(around=400, each=35, held=0, flops=4, folds=2)


@work_of(_SOURCE, "measure_channels")
def _count_measuring(launch: Launch) -> Work:
    x, channels = launch.arguments[0], launch.grid[0]
    assert isinstance(x, Slot)
    return count_rows(launch, ceil_div(x.spec.size, channels), BLOCK_THREADS, _MEASURE)
