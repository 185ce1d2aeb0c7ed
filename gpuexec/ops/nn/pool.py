"""Pooling over one to three spatial axes: MaxPool, AveragePool, LpPool."""

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
from gpuexec.ir.kernel_values import int32, pack_struct
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
    count_elements,
    operator,
    upgrade,
)
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.elementwise.epilogue import allow_for_floats
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.lib.windows import MAX_AXES, Windows, pack_strides, resolve_windows, trailing

FLOATS = dtypes_of("float")
MAX_DTYPES = (*FLOATS, np.dtype(np.int8), np.dtype(np.uint8))
_INT64 = np.dtype(np.int64)
_THREADS = 256
_LIMIT = 2**31
_MOST_DIVISORS = 1 << 14  # that prepared calls of means keep, where windows differ

instantiate("pool.cu", [f"max_pool<{dtype_row(t).cuda}>" for t in MAX_DTYPES])
instantiate("pool.cu", [f"{name}<{dtype_row(t).cuda}>" for name in ("average_pool", "lp_pool") for t in FLOATS])
allow_for_floats("pool.cu", "max_pool<{t}>", "average_pool<{t}>", "lp_pool<{t}>", vector=1)


@operator("MaxPool")
@dataclass(frozen=True, slots=True)
class MaxPool(Operator):
    """Largest element of each window, and its position; padding is ignored, a NaN wins.

    An index counts elements of the whole input. With ``storage_order`` 1 the spatial part of it is column-major. A
    window of nothing but padding gives the lowest value and index -1.
    """

    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    storage_order: int = 0
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "float32[1,1,4,4] kernel_shape=(2,2)"
    keeps_dtype = True
    derivative = Derivative.RULE
    has_blits = True
    takes_epilogue = True
    finishes_windows = True
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, windows...]`` for values and int64 indices.

        Raises:
            InputError: Rank, type or attributes do not fit.
        """
        x = _check_input(self, x, MAX_DTYPES)
        shape = (*x.shape[:2], *_windows(self, x.shape).counts)
        return TensorSpec(shape, x.dtype), TensorSpec(shape, _INT64)

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the elements of the window for each output."""
        return count_elements(outputs, 0) * prod(self.kernel_shape)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Take maxima along one axis after the other; tap by tap where indices are wanted."""
        windows = _windows(self, x.shape)
        if out is not None and (len(out) < 2 or out[1] is None):
            return _maxima(x, windows), None
        return _maxima_with_indices(x, windows, bool(self.storage_order))

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what maxima along each axis but the last are."""
        x = inputs[0]
        return () if x is None else _count_maxima(x.shape, _windows(self, x.shape), x.dtype.itemsize)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Take maxima along one axis after the other, the last in the output."""
        x, y = inputs[0], out[0]
        if x is None or y is None or not y.size or any(indices is not None for indices in out[1:]):
            return None
        return _prepare_maxima(x, _windows(self, x.shape), y, scratch)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per window."""
        x, (y, indices) = inputs[0], (*outputs, None)[:2]
        assert x is not None
        if y is None:
            assert indices is not None
            y = emit.temp(indices.shape, x.dtype)
        name = f"max_pool<{dtype_row(x.dtype).cuda}>"
        _launch(emit, name, x, (y, indices), _windows(self, x.shape), self.storage_order)


@operator("AveragePool")
@dataclass(frozen=True, slots=True)
class AveragePool(Operator):
    """Mean of each window, over the taps inside the input, or inside input and padding (``count_include_pad``).

    Taps beyond the padding, which ``ceil_mode`` lets a window have, never count.
    """

    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    count_include_pad: int = 0
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[1,1,4,4] kernel_shape=(2,2)"
    keeps_dtype = True
    derivative = Derivative.PARTS
    has_blits = True
    takes_epilogue = True
    finishes_windows = True
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, windows...]``.

        Raises:
            InputError: Rank, type or attributes do not fit.
        """
        x = _check_input(self, x, FLOATS)
        return (TensorSpec((*x.shape[:2], *_windows(self, x.shape).counts), x.dtype),)

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the elements of the window for each output."""
        return count_elements(outputs, 0) * prod(self.kernel_shape)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Add the taps one after the other, divide once; half and bfloat16 in float."""
        windows = _windows(self, x.shape)
        divisors = _count_terms(windows, with_padding=bool(self.count_include_pad))
        with np.errstate(all="ignore"):
            sums = _sums(x, windows)
            return ((sums / divisors.astype(sums.dtype)).astype(x.dtype, copy=False),)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Add the taps in the output, and divide there, where it is of the type of the sums."""
        x, y = inputs[0], out[0]
        if x is None or y is None or not y.size or accumulator(y.dtype) != y.dtype:
            return None
        windows = _windows(self, x.shape)
        divisors = _count_terms(windows, with_padding=bool(self.count_include_pad)).astype(y.dtype)
        if divisors.min() == divisors.max():
            divisors = divisors.reshape(-1)[0]
        elif divisors.size > _MOST_DIVISORS:
            return None
        return [*_prepare_sums(x, windows, y), partial(np.divide, y, divisors, out=y)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per window."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        name = f"average_pool<{dtype_row(x.dtype).cuda}>"
        _launch(emit, name, x, (y,), _windows(self, x.shape), self.count_include_pad)


@operator("LpPool")
@dataclass(frozen=True, slots=True)
class LpPool(Operator):
    """``(sum |x| ** p) ** (1 / p)`` over each window; padding adds nothing."""

    kernel_shape: tuple[int, ...]
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: tuple[int, ...] = ()
    p: int = 2
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[1,1,4,4] kernel_shape=(2,2)"
    keeps_dtype = True
    has_blits = True
    takes_epilogue = True
    finishes_windows = True
    format_use = FormatUse.FOLLOWS

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return ``[batch, channels, windows...]``.

        Raises:
            InputError: Rank, type or attributes do not fit, or p is below 1.
        """
        x = _check_input(self, x, FLOATS)
        if self.p < 1:
            raise InputError(f"LpPool expects p of at least 1, got {self.p}.")
        return (TensorSpec((*x.shape[:2], *_windows(self, x.shape).counts), x.dtype),)

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count the elements of the window for each output."""
        return count_elements(outputs, 0) * prod(self.kernel_shape)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array | None, ...]:
        """Add powers tap by tap, take the root once; half and bfloat16 in float."""
        with np.errstate(all="ignore"):
            powers = np.abs(x.astype(accumulator(x.dtype), copy=False))
            powers = powers if self.p == 1 else powers * powers if self.p == 2 else powers**self.p
            sums = _sums(powers, _windows(self, x.shape))
            roots = sums if self.p == 1 else np.sqrt(sums) if self.p == 2 else sums ** sums.dtype.type(1 / self.p)
            return (roots.astype(x.dtype, copy=False),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the powers of the elements."""
        x = inputs[0]
        return () if x is None else (x.nbytes,)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Add powers in the output, and take the root there, where it is of the type of the sums."""
        x, y = inputs[0], out[0]
        if x is None or y is None or not y.size or accumulator(y.dtype) != y.dtype:
            return None
        if not has_scratch(scratch, (x.nbytes,)):
            return None
        powers, kind = view_bytes(scratch[0], x.shape, x.dtype), y.dtype.type
        raise_powers, take_root = [], []
        if self.p == 2:
            raise_powers, take_root = [partial(np.multiply, powers, powers, out=powers)], [partial(np.sqrt, y, out=y)]
        elif self.p > 2:
            raise_powers = [partial(np.power, powers, self.p, out=powers)]
            take_root = [partial(np.power, y, kind(1 / self.p), out=y)]
        sums = _prepare_sums(powers, _windows(self, x.shape), y)
        return [partial(np.abs, x, out=powers), *raise_powers, *sums, *take_root]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per window."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        _launch(emit, f"lp_pool<{dtype_row(x.dtype).cuda}>", x, (y,), _windows(self, x.shape), self.p)


Pool = MaxPool | AveragePool | LpPool


@upgrade("LpPool", below=2)
@upgrade("GlobalLpPool", below=2)
def _round_p(node: RawNode) -> RawNode:
    """Convert p to an integer; in opset 1 it was a float.

    Raises:
        InputError: It is no integer.
    """
    p = node.attributes.get("p", 2.0)
    if not float(p).is_integer():
        raise InputError(f"{node.op_type} expects p to be an integer, got {p}.")
    return node.with_attributes(p=int(p))


def _check_input(op: Pool, x: TensorSpec, dtypes: Sequence[np.dtype[Any]]) -> TensorSpec:
    x = check_dtype(op.name, x, dtypes)
    if not 3 <= x.rank <= MAX_AXES + 2 or len(op.kernel_shape) != x.rank - 2:
        raise InputError(
            f"{op.name} expects 1 to {MAX_AXES} spatial axes and a kernel_shape entry for each, "
            f"got {x} and {list(op.kernel_shape)}."
        )
    return x


def _windows(op: Pool, shape: Sequence[int]) -> Windows:
    return resolve_windows(
        shape[2:], op.kernel_shape, op.strides, op.dilations, op.pads, op.auto_pad, bool(op.ceil_mode)
    )


def _launch(emit: Emitter, name: str, x: Slot, outputs: Slots, windows: Windows, option: int) -> None:
    """Launch a kernel of pool.cu; ``option`` is the one scalar by which the operators differ."""
    windows, positions = windows.drop_taps_behind(), prod(windows.counts)
    if max(positions, prod(windows.extents)) >= _LIMIT:
        raise InputError(
            f"pooling expects channels of fewer than 2**31 elements and windows on a device, got {x} and {positions}."
        )
    divisors = pack_fast_div64(max(1, positions)) + pack_fast_div64(max(1, x.shape[1]))
    is_last = any(output is not None and not output.is_contiguous for output in outputs)
    sizes = divisors + pack_struct("<2q", x.shape[0], is_last)
    arguments: list[Argument] = [x, *outputs, windows.pack(), pack_strides(x.strides), sizes, int32(option)]
    blocks = ceil_div(positions * prod(x.shape[:2]), _THREADS)
    writes = [i for i, output in enumerate(outputs, 1) if output is not None]
    emit.launch(Kernel("pool.cu", name), (blocks, 1, 1), (_THREADS, 1, 1), arguments, writes)


def _lowest(dtype: np.dtype[Any]) -> float:
    """Return the identity of max: -inf for floats."""
    return float("-inf") if dtype not in (np.int8, np.uint8) else float(np.iinfo(dtype).min)


def _maxima(x: Array, windows: Windows) -> Array:
    return _settle_empty(reduce_windows(x, windows, np.maximum, _lowest(x.dtype)), windows)


def reduce_windows(x: Array, windows: Windows, combine: Callable[..., object], identity: float) -> Array:
    """Combine the elements of each window, one axis after the other: as many passes as the kernel's extents add up to.

    The order must not matter to ``combine``, as it does not to a maximum. A tap that all windows of an axis see the
    input through comes first, so that nothing is filled and combined with it.
    """
    with np.errstate(all="ignore"):
        for axis, count in enumerate(windows.counts, 2):
            taps = [(slice(None),) * axis + (where,) for _, where, _ in windows.seen_along(axis - 2)]
            parts = [x[(slice(None),) * axis + (seen,)] for _, _, seen in windows.seen_along(axis - 2)]
            whole = next((i for i, part in enumerate(parts) if part.shape[axis] == count), None)
            if whole is None:
                y = np.full((*x.shape[:axis], count, *x.shape[axis + 1 :]), identity, x.dtype)
            else:
                y = parts.pop(whole).copy()
                taps.pop(whole)
            for where, part in zip(taps, parts, strict=True):
                combine(y[where], part, out=y[where])
            x = y
    return x


def _count_maxima(shape: Sequence[int], windows: Windows, itemsize: int) -> list[int]:
    """Return the bytes of the maxima along the first spatial axis, then along the first two, but not along all."""
    partly = [(*windows.counts[:last], *windows.extents[last:]) for last in range(1, len(windows.counts))]
    return [itemsize * prod((*shape[:2], *extents)) for extents in partly]


def _prepare_maxima(x: Array, windows: Windows, y: Array, scratch: Sequence[Array]) -> PreparedCalls | None:
    """Return the calls of `_maxima`; None where windows see padding alone."""
    rank = len(windows.kernel)
    if any(0 in windows.count_inside(axis, with_padding=False) for axis in range(rank)):
        return None
    if not has_scratch(scratch, _count_maxima(x.shape, windows, x.itemsize)):
        return None
    calls: list[Callable[[], object]] = []
    for axis, count in enumerate(windows.counts):
        before = (slice(None),) * (axis + 2)
        seen = [(windows_seeing, x[(*before, places)]) for _, windows_seeing, places in windows.seen_along(axis)]
        shape = (*x.shape[: axis + 2], count, *x.shape[axis + 3 :])
        made = y if axis == rank - 1 else view_bytes(scratch[axis], shape, x.dtype)
        whole = next((i for i, (_, part) in enumerate(seen) if part.shape == shape), None)
        first = None if whole is None else seen.pop(whole)[1]
        if first is None:
            calls.append(partial(made.fill, _lowest(x.dtype)))
        elif not seen and made is not y:
            x = first
            continue
        elif not seen or seen[0][1].shape != shape:
            calls.append(partial(np.copyto, made, first))
        else:
            calls.append(partial(np.maximum, first, seen.pop(0)[1], out=made))
        for where, part in seen:
            target = made[(*before, where)]
            calls.append(partial(np.maximum, target, part, out=target))
        x = made
    return calls


def _maxima_with_indices(x: Array, windows: Windows, column_major: bool) -> tuple[Array, Array]:
    y = np.full((*x.shape[:2], *windows.counts), _lowest(x.dtype), x.dtype)
    indices = np.full(y.shape, -1, np.int64)
    planes = np.arange(prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *(1,) * len(windows.counts))
    within = np.arange(prod(windows.extents), dtype=np.int64).reshape(
        windows.extents, order="F" if column_major else "C"
    )
    flat = planes * prod(windows.extents) + within
    with np.errstate(all="ignore"):
        for _, positions, seen in windows.seen():
            best, where, candidate = y[trailing(positions)], indices[trailing(positions)], x[trailing(seen)]
            wins = (candidate > best) | (where < 0) | ((candidate != candidate) & (best == best))
            np.copyto(best, candidate, where=wins)
            np.copyto(where, flat[trailing(seen)], where=wins)
    return _settle_empty(y, windows), indices


def _settle_empty(y: Array, windows: Windows) -> Array:
    """Set windows of padding alone to the lowest finite value."""
    if y.dtype.kind in "iu":
        return y
    for axis in range(len(windows.kernel)):
        empty = np.array(windows.count_inside(axis, with_padding=False), np.int64) == 0
        if empty.any():
            row_bits = {2: 0xFBFF if y.dtype == np.float16 else 0xFF7F, 4: 0xFF7FFFFF, 8: 0xFFEFFFFFFFFFFFFF}[
                y.dtype.itemsize
            ]
            lowest = np.array(row_bits, f"u{y.dtype.itemsize}").view(y.dtype)
            y[(..., empty, *(slice(None),) * (len(windows.kernel) - 1 - axis))] = lowest
    return y


def _sums(x: Array, windows: Windows) -> Array:
    # Tap by tap, in the order of the kernels and of onnxruntime: another order rounds otherwise.
    acc = accumulator(x.dtype)
    sums = np.zeros((*x.shape[:2], *windows.counts), acc)
    x = x.astype(acc, copy=False)
    for _, positions, seen in windows.seen():
        sums[trailing(positions)] += x[trailing(seen)]
    return sums


def _prepare_sums(x: Array, windows: Windows, y: Array) -> list[Callable[[], object]]:
    """Return the calls of `_sums`, which add in ``y``."""
    calls: list[Callable[[], object]] = []
    for _, positions, seen in windows.seen():
        target = y[trailing(positions)]
        if not calls and target.shape == y.shape:
            calls.append(partial(np.add, x[trailing(seen)], y.dtype.type(0), out=y))
            continue
        if not calls:
            calls.append(partial(y.fill, 0))
        calls.append(partial(np.add, target, x[trailing(seen)], out=target))
    return calls or [partial(y.fill, 0)]


def _count_terms(windows: Windows, *, with_padding: bool) -> Array:
    """Return how many taps of each window lie inside the input, or inside input and padding."""
    terms = np.ones((), np.int64)
    for axis in range(len(windows.kernel)):
        counts = windows.count_inside(axis, with_padding=with_padding)
        terms = np.multiply.outer(terms, np.array(counts, np.int64))
    return terms


_AROUND, _EACH_TAP, _TAPS_TOGETHER = 150, 27, 4  # instructions of a thread, and taps whose loads are under way together


@work_of("pool.cu", "max_pool", "average_pool", "lp_pool")
def _count_pool(launch: Launch) -> Work:
    x, y, packed = launch.arguments[0], launch.arguments[1], next(a for a in launch.arguments if isinstance(a, bytes))
    assert isinstance(x, Slot) and isinstance(y, Slot)
    windows = Windows.unpack(packed)
    return Work(
        flops=prod(x.shape[:2]) * windows.count_taps_inside(),
        instructions=count_warps(launch) * (_AROUND + windows.taps * _EACH_TAP),
        # Windows that overlap read places that L1 has.
        l2_nbytes=sum(count_slot_bytes(slot) for slot in (*launch.reads_from(), *launch.writes_to())),
        rounds=ceil_div(windows.taps, _TAPS_TOGETHER),
        registers=48,
    )
