"""GatherBlockQuantized: Gather from a block-quantised table."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import broadcast_strides, ceil_div, normalize_axis
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.work import SECTOR_BYTES, Work, count_slot_bytes, count_warps, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.strided import pack_fast_div64
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.matmul_nbits import unpack
from gpuexec.ops.quant.integer import BYTES, FLOAT, SCALES, dense
from gpuexec.ops.tensor.layout import window

_SOURCE = "gather_blocks.cu"
_THREADS = 256
_MIN_BLOCK = 16
UINT8 = BYTES[0]
_INTEGERS = tuple(dtype_row(name).numpy for name in ("int4", "uint4"))
_FLOATS = tuple(
    dtype_row(name).numpy for name in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1")
)
_INDICES: tuple[np.dtype[Any], ...] = (np.dtype(np.int32), np.dtype(np.int64))
instantiate(_SOURCE, [f"gather_blocks<{dtype_row(dtype).cuda}>" for dtype in SCALES])


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The table in codes, its axes, and its blocks: the extents of scales, the elements of a block along its axis."""

    shape: tuple[int, ...]
    gather: int
    quantize: int
    scales: tuple[int, ...]
    block: int


@operator("GatherBlockQuantized", DOMAIN)
@dataclass(frozen=True, slots=True)
class GatherBlockQuantized(Operator):
    """``(data - zero_point) * scale`` of the slices that indices name; 0 for an index outside.

    uint8 holds codes of ``bits``, packed along the last axis; a zero point is half their range where none is given, and
    0 for other types. Floats of 8 and 4 bits have none.
    """

    bits: int = 4
    block_size: int = 128
    gather_axis: int = 0
    quantize_axis: int = 1
    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    example = "uint8[5,12] int64[4] float32[5,1] bits=8 block_size=16"
    flops_per_output = None
    has_blits = False

    def infer(
        self,
        data: TensorSpec | None,
        indices: TensorSpec | None,
        scales: TensorSpec | None,
        zeros: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Replace the gathered axis by the indices' shape.

        Raises:
            InputError: Types, sizes or attributes do not fit.
        """
        data = check_dtype(self.name, data, (UINT8, *_INTEGERS, *_FLOATS), "data")
        indices = check_dtype(self.name, indices, _INDICES, "indices")
        scales = check_dtype(self.name, scales, SCALES, "scales")
        found = self._find_blocks(data.shape, data.dtype)
        is_float = data.dtype in _FLOATS
        wanted = zip(scales.shape, found.scales, strict=False)
        if scales.rank != len(found.scales) or any(n != m and not (is_float and n == 1) for n, m in wanted):
            raise InputError(f"{self.name} expects scales of {list(found.scales)} for data {data}, got {scales}.")
        if zeros is not None:
            *rest, last = found.scales
            shape = (*rest, ceil_div(last, self._per_byte(data.dtype)))
            if is_float or zeros.dtype != data.dtype or zeros.shape != shape:
                got = "none of floats" if is_float else str(TensorSpec(shape, data.dtype))
                raise InputError(f"{self.name} expects zero points: {got}; got {zeros}.")
        gather = found.gather
        return (TensorSpec((*found.shape[:gather], *indices.shape, *found.shape[gather + 1 :]), scales.dtype),)

    def compute(
        self, data: Array, indices: Array, scales: Array, zeros: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Gather narrow elements, then widen them."""
        found, per_byte = self._find_blocks(data.shape, data.dtype), self._per_byte(data.dtype)
        extent = found.shape[found.gather]
        made = (*found.shape[: found.gather], *indices.shape, *found.shape[found.gather + 1 :])
        if not extent:
            return (np.zeros(made, scales.dtype),)
        flat = np.where(indices < 0, indices + extent, indices).reshape(-1)
        is_inside = (flat >= 0) & (flat < extent)
        rows = np.where(is_inside, flat, 0)
        table = make_table(data.dtype)
        codes = unpack(np.take(_as_bytes(data), rows, found.gather), 8 // per_byte)
        scales = np.broadcast_to(scales, found.scales)
        places = np.arange(found.shape[found.quantize]) // found.block
        blocks = rows // found.block if found.gather == found.quantize else rows

        def spread(numbers: Array) -> Array:
            picked = np.take(numbers, blocks, found.gather)
            return picked if found.gather == found.quantize else np.take(picked, places, found.quantize)

        with np.errstate(all="ignore"):
            values = table[codes]
            if zeros is not None:
                wide = unpack(_as_bytes(zeros), 8 // per_byte)[..., : found.scales[-1]]
                values -= table[spread(wide)]
            else:
                values -= FLOAT.type(self._default_zero(data.dtype))
            values *= spread(scales).astype(FLOAT)
        shape = [1] * values.ndim
        shape[found.gather] = -1
        values = np.where(is_inside.reshape(shape), values, FLOAT.type(0))
        return (values.reshape(made).astype(scales.dtype),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread per element."""
        data, indices, scales, zeros = (*inputs, None)[:4]
        y = outputs[0]
        assert data is not None and indices is not None and scales is not None and y is not None
        found, per_byte = self._find_blocks(data.shape, data.dtype), self._per_byte(data.dtype)
        if scales.shape != found.scales:
            scales = window(scales, found.scales, broadcast_strides(scales.shape, scales.strides, found.scales))
        gather, quantize = found.gather, found.quantize
        quant_inner = prod(found.shape[quantize + 1 :])
        divisors = (prod(found.shape[gather + 1 :]), indices.spec.size, quant_inner, found.shape[quantize], found.block)
        packed = join_bytes(
            (
                pack_struct("<4q", y.spec.size, found.shape[gather], found.scales[quantize], quant_inner),
                *(pack_fast_div64(max(1, divisor)) for divisor in (*divisors, found.scales[-1])),
                pack_struct("<2q", ceil_div(found.scales[-1], per_byte), per_byte.bit_length() - 1),
                pack_struct("<fi", self._default_zero(data.dtype), indices.dtype == _INDICES[1]),
            )
        )
        arguments: list[Argument] = [emit.contiguous(data), emit.contiguous(indices), emit.contiguous(scales)]
        arguments += [dense(emit, zeros), emit.constant(make_table(data.dtype)), y, packed]
        kernel = Kernel(_SOURCE, f"gather_blocks<{dtype_row(y.dtype).cuda}>")
        emit.launch(kernel, (max(1, ceil_div(y.spec.size, _THREADS)), 1, 1), (_THREADS, 1, 1), arguments, writes=[5])

    def _find_blocks(self, given: tuple[int, ...], dtype: np.dtype[Any]) -> _Blocks:
        is_float, is_packed = dtype in _FLOATS, dtype == UINT8
        size = self.block_size
        if not (is_float and size == 0) and (size < _MIN_BLOCK or size & (size - 1)):
            raise InputError(f"{self.name} expects block_size to be a power of 2, {_MIN_BLOCK} at least, got {size}.")
        if is_packed and self.bits not in (2, 4, 8):
            raise InputError(f"{self.name} expects bits 2, 4 or 8, got {self.bits}.")
        if not given:
            raise InputError(f"{self.name} expects data of rank 1 or more, got {dtype_row(dtype).name}[].")
        gather, quantize = (normalize_axis(axis, len(given)) for axis in (self.gather_axis, self.quantize_axis))
        if is_packed and (gather != 0 or (self.bits < 8 and quantize == 0)):
            raise InputError(
                f"{self.name} expects gather_axis 0 and another quantize_axis of uint8, got {gather}, {quantize}."
            )
        shape = (*given[:-1], given[-1] * self._per_byte(dtype))
        block = size or max(1, shape[quantize])
        scales = (*shape[:quantize], ceil_div(shape[quantize], block), *shape[quantize + 1 :])
        return _Blocks(shape, gather, quantize, scales, block)

    def _per_byte(self, dtype: np.dtype[Any]) -> int:
        return 8 // self.bits if dtype == UINT8 else 1

    def _default_zero(self, dtype: np.dtype[Any]) -> float:
        return float(1 << (self.bits - 1)) if dtype == UINT8 else 0.0


def make_table(dtype: np.dtype[Any]) -> Array:
    """Return the values of all bytes of storage, as floats."""
    codes = np.arange(256, dtype=np.uint8)
    with np.errstate(all="ignore"):
        return np.asarray(codes.view(dtype).astype(FLOAT))


def _as_bytes(array: Array) -> Array:
    return array.view(np.uint8)


_INSTRUCTIONS = 130  # of a thread


@work_of(_SOURCE, "gather_blocks")
def _count_gather_blocks(launch: Launch) -> Work:
    data, indices, scales, zeros, _, y, packed = launch.arguments
    assert isinstance(data, Slot) and isinstance(indices, Slot) and isinstance(scales, Slot) and isinstance(y, Slot)
    assert isinstance(packed, bytes)
    picked = min(1.0, indices.spec.size / max(1, struct.unpack_from("<2q", packed)[1]))  # of the extent gathered along
    read = {
        position: ceil_div(int(count_slot_bytes(each) * picked), SECTOR_BYTES) * SECTOR_BYTES
        for position, each in ((0, data), (2, scales), (3, zeros))
        if isinstance(each, Slot)
    }
    return Work(
        flops=2 * y.spec.size,
        instructions=count_warps(launch) * _INSTRUCTIONS,
        l2_nbytes=sum(read.values()) + indices.spec.nbytes + y.spec.nbytes,
        rounds=3,
        operand_nbytes=read,
    )
