"""TopK: the largest or smallest elements along an axis with their indices, one block per line.

A line of up to 1024 elements is sorted in shared memory. In a longer one the key of the k-th element is found digit by
digit, what comes before it is collected in order, and only that is sorted. One launch, whatever the sizes; one very
long line leaves a large device idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, normalize_axis
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator, upgrade
from gpuexec.ir.row_form import RowForm, RowLine
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row, dtypes_of
from gpuexec.ir.work import Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.lib.by_content import prepare_by_content
from gpuexec.ops.lib.checks import check_dtype, require_ints
from gpuexec.ops.reduce.sort import TILE, count_sort, sort_keys
from gpuexec.ops.tensor.layout import read_ints

TOPK_DTYPES = dtypes_of("float", "int", "uint")
_INDEX = np.dtype(np.int64)
_ONE = np.ones(1, np.int64)
_MAX_THREADS = 1024  # kMaxThreads of topk.cu
_LONGEST = 2**32
_LONG = 1024  # on the host, the least length at which searching for the bound pays
instantiate("topk.cu", [f"topk<{dtype_row(dtype).cuda}>" for dtype in TOPK_DTYPES])


@operator("TopK")
@dataclass(frozen=True, slots=True)
class TopK(Operator):
    """First ``K`` elements along ``axis`` in falling order (rising, if not ``largest``), and their places.

    Equal elements stand by place, NaN counts as the largest, and the result is sorted whatever ``sorted`` says.
    """

    axis: int = -1
    largest: int = 1
    sorted: int = 1
    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(self, x: TensorSpec, k: TensorSpec) -> tuple[TensorSpec, ...]:
        """Shorten the axis to K."""
        check_dtype(self.name, x, TOPK_DTYPES)
        axis = normalize_axis(self.axis, x.rank)
        count = _check_k(require_ints(k, "K", 1), x.shape[axis])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return x.with_shape(shape), TensorSpec(shape, _INDEX)

    def compute(self, x: Array, k: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Sort keys with NumPy, stably; of long lines only those that are among the first."""
        axis = normalize_axis(self.axis, x.ndim)
        count = _check_k(read_ints(k), x.shape[axis])
        keys = np.moveaxis(sort_keys(x), axis, -1)
        places = np.moveaxis(find_first(~keys if self.largest else keys, count), -1, axis)
        return np.take_along_axis(x, places, axis), places

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Sort by the elements themselves where none is NaN."""
        by_content = prepare_by_content(self, inputs, out, constant, scratch, (1,))
        if by_content is not None:
            return by_content
        (x, k), (values, indices) = inputs, (*out, None)[:2]
        if x is None or k is None or not x.size or not constant[1] or accumulator(x.dtype) != x.dtype:
            return None
        axis = normalize_axis(self.axis, x.ndim)
        count, rows = _check_k(read_ints(k), x.shape[axis]), np.moveaxis(x, axis, -1)
        targets = [None if y is None else np.moveaxis(y, axis, -1) for y in (values, indices)]
        reverse, is_float = np.negative if x.dtype.kind == "f" else np.invert, x.dtype.kind == "f"

        def find() -> None:
            if is_float and np.isnan(rows).any():
                keys = sort_keys(rows)
                keys = ~keys if self.largest else keys
            else:
                keys = reverse(rows) if self.largest else rows
            places = find_first(keys, count)
            if targets[0] is not None:
                targets[0][...] = rows[places] if rows.ndim == 1 else np.take_along_axis(rows, places, -1)
            if targets[1] is not None:
                targets[1][...] = places

        return [find]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a block per line."""
        x, k = inputs
        assert x is not None and k is not None
        axis = normalize_axis(self.axis, x.spec.rank)
        count = _check_k(require_ints(k.spec, "K", 1), x.shape[axis])
        _launch(emit, x, axis, count, outputs, is_largest=bool(self.largest))


class _First(Operator):
    """The first element of each row as TopK orders them, along an axis of extent 1."""

    __slots__ = ()
    axis: int
    largest: int
    output: ClassVar[int]  # that of TopK
    tolerance = Tolerance.EXACT
    flops_per_input = 1
    has_blits = False
    example = "float32[2,3]"

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the spec of the output of TopK.

        Raises:
            InputError: As of TopK.
        """
        return (TopK(self.axis, self.largest).infer(x, TensorSpec.of(_ONE))[self.output],)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Find the first of the largest or smallest keys."""
        find, axis = np.argmax if self.largest else np.argmin, normalize_axis(self.axis, x.ndim)
        place = find(sort_keys(x), axis=axis, keepdims=True).astype(_INDEX, copy=False)
        return (place if self.output else np.take_along_axis(x, place, axis),)

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return the search for it along the last axis."""
        x = inputs[0]
        if x is None or normalize_axis(self.axis, x.rank) != x.rank - 1:
            return None
        work = dtype_row(accumulator(x.dtype)).cuda
        fold = f"First<{work}, {'true' if self.largest else 'false'}>"
        finish, dtype = (("{p}.value", x.dtype), ("{p}.place", _INDEX))[self.output]
        return RowForm(x.rank - 1, (RowLine(f"Placed<{work}>{{{{{{0}}, {{column}}}}}}", fold, finish),), work, dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch a block per line."""
        x, wanted = inputs[0], (outputs[0], None)
        assert x is not None
        axis = normalize_axis(self.axis, x.spec.rank)
        _launch(emit, x, axis, 1, wanted[:: -1 if self.output else 1], is_largest=bool(self.largest))


@operator("TopElement", "gpuexec")
@dataclass(frozen=True, slots=True)
class TopElement(_First):
    """The largest (or smallest) element along ``axis``: the first output of TopK with K of 1."""

    axis: int = -1
    largest: int = 1
    output: ClassVar[int] = 0
    keeps_dtype = True


@operator("TopPlace", "gpuexec")
@dataclass(frozen=True, slots=True)
class TopPlace(_First):
    """The place of the largest (or smallest) element along ``axis``: the second output of TopK with K of 1."""

    axis: int = -1
    largest: int = 1
    output: ClassVar[int] = 1


def _launch(emit: Emitter, x: Slot, axis: int, count: int, outputs: Slots, *, is_largest: bool) -> None:
    """Launch a block per line; an output that is not wanted is None."""
    length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    if length >= _LONGEST:
        raise InputError(f"TopK takes lines of fewer than 2**32 elements on a device, got {x.spec}.")
    lines = prod(x.shape[:axis]) * inner
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    values, indices = (
        emit.temp(shape, dtype) if slot is None else slot
        for slot, dtype in zip(outputs, (x.dtype, _INDEX), strict=True)
    )
    scratch = emit.temp((2 * lines * count if count > TILE else 0,), _INDEX)
    # A pair of the bitonic network per thread, and whole warps.
    threads = min(_MAX_THREADS, max(32, 1 << max(0, length - 1).bit_length() >> 1))
    scalars = (int64(length), int64(inner), int64(count), int32(is_largest))
    emit.launch(
        Kernel("topk.cu", f"topk<{dtype_row(x.dtype).cuda}>"),
        (max(1, lines), 1, 1),
        (threads, 1, 1),
        [emit.contiguous(x), values, indices, scratch, *scalars],
        writes=[1, 2, 3],
    )


@upgrade("TopK", below=10)
def take_k_as_input(node: RawNode) -> RawNode:
    """Move k, an attribute until opset 9, to an input."""
    if "k" not in node.attributes:
        raise InputError("TopK lacks its required attribute k.")
    return node.with_input(1, np.array([node.attributes["k"]], np.int64)).without("k")


def find_first(keys: Array, count: int) -> Array:
    """Return the places of the ``count`` smallest keys along the last axis, in order; equal keys by place."""
    length = keys.shape[-1]
    if length < _LONG or count > length // 8 or not count:
        return np.argsort(keys, -1, kind="stable")[..., :count].astype(_INDEX, copy=False)
    lines = keys.reshape(-1, length)
    bounds = np.partition(lines, count - 1)[:, count - 1]
    places = np.empty((len(lines), count), _INDEX)
    for line, bound, found in zip(lines, bounds, places, strict=True):
        candidates = np.flatnonzero(line <= bound)
        found[:] = candidates[np.argsort(line[candidates], kind="stable")[:count]]
    return places.reshape(*keys.shape[:-1], count)


def _check_k(given: tuple[int, ...], extent: int) -> int:
    if len(given) != 1 or not 0 <= given[0] <= extent:
        raise InputError(
            f"TopK expects K to be one number from 0 to {extent}, the extent of its axis, got {list(given)}."
        )
    return given[0]


# Instructions of a thread: to compare two elements, to count one in a digit's bin, and around; scans of a digit wait so
# often for each other.
_COMPARE, _COUNT, _AROUND, _DIGIT_BARRIERS = 40, 31, 150, 6


@work_of("topk.cu", "topk")
def _count_topk(launch: Launch) -> Work:
    x, values, indices = launch.arguments[:3]
    places, _, count, _ = map(read_int, launch.arguments[4:])
    assert isinstance(x, Slot) and isinstance(values, Slot) and isinstance(indices, Slot)
    threads = launch.block[0]
    own = ceil_div(places, threads)
    is_selected = places > TILE  # digit by digit, and once more to collect; then what is chosen is sorted
    digits = x.dtype.itemsize + 1 if is_selected else 0
    steps, compared = count_sort(count if is_selected else places, threads)
    return Work(
        instructions=count_warps(launch) * (_AROUND + digits * own * _COUNT + compared * _COMPARE),
        wavefronts=count_warps(launch) * (digits * own + 8 * compared),
        l2_nbytes=max(1, digits) * count_slot_bytes(x) + values.spec.nbytes + indices.spec.nbytes,
        rounds=1 + digits * ceil_div(own, 4) + steps,
        barriers=digits * _DIGIT_BARRIERS + steps,
        registers=47,
        shared_nbytes=9352,
        operand_nbytes={3: 0 if count <= TILE else 16 * values.spec.size},
    )
