"""Matrix products with weights of a few bits: MatMulNBits and MatMulBnb4.

Weights stay packed as the file has them, a scale for each block along the inner extent; kernels widen them where they
read them, the host a part of their rows at a time. Of half and bf16, and blocks of 32 codes or more with whole zero
points, tensor cores multiply the codes from sm_80 on (``mma_nbits.cu``, of few rows ``mma_few_nbits.cu``). Kernels on
tensor cores and those of few rows take an epilogue. A precision rounds the other operand alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.slices import SMALL_MMA, slice_mma_tiles
from gpuexec.ops.linalg.matmul import (
    KEPT_NBYTES,
    count_widened,
    find_narrow,
    find_result,
    multiply,
    prepare_widened_product,
)
from gpuexec.ops.linalg.matmul_launch import count_tiles, widen_operand
from gpuexec.ops.linalg.matmul_work import TileLoop, count_product
from gpuexec.ops.linalg.mma_launch import has_tensor_cores
from gpuexec.ops.linalg.mma_work import AROUND, LOOP_INSTRUCTIONS, describe_mma
from gpuexec.ops.linalg.product import ALONG_K, Product, pack_gemm
from gpuexec.ops.linalg.simt_work import read_gemm
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.few_nbits import MOST_ROWS, launch_few, takes_few
from gpuexec.ops.quant.integer import BYTES, FLOAT, INT32, SCALES, dense

UINT8 = BYTES[0]
_MIN_BLOCK = 16
_PART_NBYTES = 4 << 20  # of the widened weights, this much is on the host at a time
# Values of the 16 codes of bitsandbytes: float of 4 bits, and quantiles of the normal distribution.
_FP4 = (0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
TABLES = (np.array((*_FP4, *(-value for value in _FP4)), FLOAT), np.array(_NF4, FLOAT))

_VECTOR_BYTES, _MMA_BLOCK = 16, 32  # alignment of rows and codes, and codes of the smallest block
_BITS = (2, 4, 8)
_MAX_EXTENT = 2**31 - 2**16  # of what tiles count in 32 bits


def name_mma_nbits(dtype: np.dtype[np.generic], result: np.dtype[np.generic], bits: int) -> Kernel:
    """Return the kernel of a product with codes on tensor cores.

    Args:
        dtype: Of the other operand.
        result: Of the result and the scales.
        bits: Of a code.
    """
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])
    return Kernel("mma_nbits.cu", f"mma_nbits<{types}, {bits}, {SMALL_MMA.name}>")


for _dtype in SCALES[1:]:
    instantiate_finished(_dtype, [name_mma_nbits(_dtype, _dtype, bits) for bits in _BITS])
    instantiate_finished(FLOAT, [name_mma_nbits(_dtype, FLOAT, bits) for bits in _BITS], stored=[_dtype])
instantiate("matmul_nbits.cu", [f"matmul_nbits<{dtype_row(dtype).cuda}>" for dtype in SCALES])


def unpack(packed: Array, bits: int, *, is_high_first: bool = False) -> Array:
    """Return the codes that bytes hold along the last axis, each in a byte of its own."""
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> (shifts[::-1] if is_high_first else shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))


@operator("MatMulNBits", DOMAIN)
@dataclass(frozen=True, slots=True)
class MatMulNBits(Operator):
    """``A @ W' + bias``, where ``W[n, k] = (B[n, k] - zero_point) * scale`` by blocks along k.

    A zero point is half the range of ``bits`` where none is given. A block that g_idx names and that there is not is an
    error on the host; on a device it counts as nothing. ``accuracy_level`` would allow to round A; nothing is here.
    """

    K: int
    N: int
    block_size: int
    accuracy_level: int = 0
    bits: int = 4
    weight_prepacked: int = 0
    precision: str = ""  # of `ir.precision`: what A comes rounded to, and the result is float then
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    example = (
        "float32[5,40] uint8[6,3,16] float32[6,3] float32[6,3] K=40 N=6 block_size=16 bits=8 | "
        "float32[2,40] uint8[6,3,8] float32[6,3] - int32[40] K=40 N=6 block_size=16"
    )
    flops_per_output = None
    has_blits = True
    rounded = (0,)
    takes_narrow = True
    takes_epilogue = True

    def infer(
        self,
        a: TensorSpec,
        b: TensorSpec,
        scales: TensorSpec,
        zeros: TensorSpec | None = None,
        groups: TensorSpec | None = None,
        bias: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Replace the last extent of A.

        Raises:
            InputError: Attributes, types or sizes do not fit.
        """
        if self.bits not in _BITS or self.weight_prepacked:
            got = f"{self.bits} and {self.weight_prepacked}"
            raise InputError(f"{self.name} expects bits 2, 4 or 8 and weight_prepacked 0, got {got}.")
        _check_block(self.name, self.block_size)
        narrow = find_narrow(self.precision)
        a = _check_operand(self.name, a, self.K, "K", SCALES if narrow is None else (narrow,))
        result, blocks = find_result(a.dtype, self.precision), ceil_div(self.K, self.block_size)
        zero_bytes = ceil_div(blocks * self.bits, 8)
        is_packed = zeros is not None and zeros.dtype == UINT8
        for role, spec, dtype, size in (
            ("B", check_dtype(self.name, b, (UINT8,), "B"), UINT8, self.N * blocks * self.block_size * self.bits // 8),
            ("scales", check_dtype(self.name, scales, SCALES, "scales"), result, self.N * blocks),
            ("zero_points", zeros, UINT8 if is_packed else result, self.N * (zero_bytes if is_packed else blocks)),
            ("bias", bias, result, self.N),
        ):
            if spec is not None and (spec.dtype != dtype or spec.size != size):
                raise InputError(f"{self.name} expects {role} to be {size} of {dtype_row(dtype).name}, got {spec}.")
        if groups is not None and (groups.dtype != INT32 or groups.size not in (self.K, blocks * self.block_size)):
            raise InputError(f"{self.name} expects g_idx to be an int32 for each of {self.K} places, got {groups}.")
        return (TensorSpec((*a.shape[:-1], self.N), result),)

    def find_dtype(self, dtypes: Sequence[np.dtype[np.generic] | None]) -> np.dtype[np.generic] | None:
        """Return A's type, or float where a precision says that A is narrow."""
        return dtypes[0] if not dtypes or dtypes[0] is None else find_result(dtypes[0], self.precision)

    def compute(
        self,
        a: Array,
        b: Array,
        scales: Array,
        zeros: Array | None = None,
        groups: Array | None = None,
        bias: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Widen a part of the weights, multiply; half and bfloat16 in float, rounded once.

        Raises:
            InputError: A place of g_idx is no block's.
        """
        codes, scales, wide, places = self._lay_out(b, scales, zeros, groups)
        y = np.empty((*a.shape[:-1], self.N), FLOAT)
        left = a.astype(FLOAT)
        with np.errstate(all="ignore"):
            for part in _parts(self.N, self.K):
                weights = self._widen(codes[part], scales[part], None if wide is None else wide[part], places)
                y[..., part] = multiply(left, weights.T)
            if bias is not None:
                y += bias.reshape(-1).astype(FLOAT)
        return (y.astype(find_result(a.dtype, self.precision), copy=False),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the weights in float, their codes in bytes, and A and the result where they are narrower than float."""
        count = self.N * self.K
        if count * FLOAT.itemsize > _PART_NBYTES:
            return ()
        return (count * FLOAT.itemsize, count, *count_widened(inputs[0], None, outputs[0]))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Widen the weights once where they are small and constant, or else where blocks are whole; then multiply."""
        (a, b, scales, zeros, groups, bias), (y,) = (*inputs, *(None,) * 4)[:6], out
        count = self.N * self.K
        if a is None or b is None or scales is None or y is None or count * FLOAT.itemsize > _PART_NBYTES:
            return None
        if not has_scratch(scratch, (count * FLOAT.itemsize, count)):
            return None
        given = [position for position, x in enumerate(inputs) if x is not None and 0 < position < 5]
        is_kept = all(constant[position] for position in given) and count * FLOAT.itemsize <= KEPT_NBYTES
        calls: list[Callable[[], object]] | None = []
        if is_kept:
            weights = self._widen(*self._lay_out(b, scales, zeros, groups))
        else:
            weights = view_bytes(scratch[0], (self.N, self.K), FLOAT)
            calls = self._prepare_widening((b, scales, zeros, groups), weights, scratch[1])
        product = prepare_widened_product(a, weights.T, y, (constant[0], False), scratch[2:])
        if calls is None or product is None or (bias is not None and not bias.flags.c_contiguous):
            return None
        steps = [] if bias is None else [partial(np.add, product.result, bias.reshape(-1), out=product.result)]
        return [*calls, *product.finish(steps)]

    def _prepare_widening(
        self, weights: tuple[Array, Array, Array | None, Array | None], wide: Array, scratch: Array
    ) -> list[Callable[[], object]] | None:
        """Return calls that do what `_widen` does; None where blocks are not whole, or places are given."""
        (b, scales, zeros, groups), blocks = weights, self.K // self.block_size
        arrays = [x for x in (b, scales, zeros) if x is not None]
        is_packed = zeros is not None and zeros.dtype == UINT8
        if self.K % self.block_size or groups is not None or is_packed or not all(x.flags.c_contiguous for x in arrays):
            return None
        each, mask = 8 // self.bits, np.uint8((1 << self.bits) - 1)
        codes = view_bytes(scratch, (self.N, self.K // each, each), UINT8)
        packed = b.reshape(self.N, self.K // each)
        calls: list[Callable[[], object]] = [
            partial(np.right_shift, packed, np.uint8(self.bits * place), out=codes[..., place]) for place in range(each)
        ]
        shape = (self.N, blocks, self.block_size)
        target, by_block = wide.reshape(shape), (self.N, blocks, 1)
        zero = self._middle if zeros is None else zeros.reshape(by_block)
        return [
            *calls,
            partial(np.bitwise_and, codes, mask, out=codes),
            partial(np.subtract, codes.reshape(shape), zero, out=target, dtype=FLOAT),
            partial(np.multiply, target, scales.reshape(by_block), out=target),
        ]

    @property
    def _middle(self) -> np.float32:
        """Zero point where none is given."""
        return np.float32(1 << (self.bits - 1))

    def _lay_out(
        self, b: Array, scales: Array, zeros: Array | None, groups: Array | None
    ) -> tuple[Array, Array, Array | None, Array]:
        """Return packed codes, scales and zero points by row, and the block of each place.

        Raises:
            InputError: A place of g_idx is no block's.
        """
        blocks = ceil_div(self.K, self.block_size)
        places = np.arange(self.K) // self.block_size if groups is None else groups.reshape(-1)[: self.K]
        outside = places[(places < 0) | (places >= blocks)]
        if outside.size:
            raise InputError(f"{self.name} expects g_idx from 0 to {blocks - 1}, got {outside[0]}.")
        codes, scales = (x.reshape(self.N, x.size // max(1, self.N)) for x in (b, scales))
        wide = None if zeros is None else zeros.reshape(self.N, zeros.size // max(1, self.N))
        if wide is not None and wide.dtype == UINT8:
            wide = unpack(wide, self.bits)[:, :blocks]
        return codes, scales, wide, places

    def _widen(self, codes: Array, scales: Array, zeros: Array | None, places: Array) -> Array:
        """Return rows of weights in float."""
        weights = unpack(codes, self.bits)[:, : self.K].astype(FLOAT)
        weights -= self._middle if zeros is None else np.take(zeros.astype(FLOAT), places, axis=1)
        weights *= np.take(scales.astype(FLOAT), places, axis=1)
        return weights

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel of products over packed weights."""
        a, b, scales, zeros, groups, bias = (*inputs, *(None,) * 4)[:6]
        y = outputs[0]
        assert a is not None and b is not None and scales is not None and y is not None
        blocks = ceil_div(self.K, self.block_size)
        is_packed = zeros is not None and zeros.dtype == UINT8
        zero_row = ceil_div(blocks * self.bits, 8) if is_packed else blocks
        kind = 0 if zeros is None else 1 if is_packed else 2
        shape = pack_shape(blocks * self.block_size, zero_row, blocks, self.block_size, self.bits, kind)
        is_coded = self.block_size >= _MMA_BLOCK and kind < 2 and groups is None
        if is_coded and _launch_coded(emit, (a, bias, y), (b, scales, zeros), (self.K, self.N), shape, self.bits):
            return
        a = widen_operand(emit, a, y) if emit.target.has_kernels else a
        _launch(emit, (a, bias, y), (b, scales, zeros, groups, None), (self.K, self.N), shape)


@operator("MatMulBnb4", DOMAIN)
@dataclass(frozen=True, slots=True)
class MatMulBnb4(Operator):
    """``A @ W'`` (``A @ W`` where ``transB`` is 0) with weights ``[N, K]`` of 4 bits, in blocks that run on over rows.

    A code stands for a number of a table by ``quant_type`` (0: FP4, 1: NF4), times what the block's largest was.
    """

    K: int
    N: int
    block_size: int
    quant_type: int
    training_mode: int = 0
    transB: int = 1  # noqa: N815 (ONNX spelling)
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    example = "float32[5,32] uint8[96] float32[12] K=32 N=6 block_size=16 quant_type=0"
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, a: TensorSpec | None, b: TensorSpec | None, absmax: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Replace the last extent of A.

        Raises:
            InputError: Attributes, types or sizes do not fit.
        """
        if self.quant_type not in (0, 1):
            raise InputError(f"{self.name} expects quant_type 0 (FP4) or 1 (NF4), got {self.quant_type}.")
        _check_block(self.name, self.block_size)
        inner, columns, role = (self.K, self.N, "K") if self.transB else (self.N, self.K, "N")
        a = _check_operand(self.name, a, inner, role)
        count = self.N * self.K
        for name, spec, dtype, size in (
            ("B", check_dtype(self.name, b, (UINT8,), "B"), UINT8, ceil_div(count, 2)),
            ("absmax", check_dtype(self.name, absmax, SCALES, "absmax"), a.dtype, ceil_div(count, self.block_size)),
        ):
            if spec.dtype != dtype or spec.size != size:
                raise InputError(f"{self.name} expects {name} to be {size} of {dtype_row(dtype).name}, got {spec}.")
        return (TensorSpec((*a.shape[:-1], columns), a.dtype),)

    def compute(self, a: Array, b: Array, absmax: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Widen the weights, multiply; half and bfloat16 in float, rounded once."""
        count = self.N * self.K
        codes = unpack(b.reshape(-1), 4, is_high_first=True)[:count]
        with np.errstate(all="ignore"):
            weights = TABLES[self.quant_type][codes]
            weights *= absmax.reshape(-1).astype(FLOAT)[np.arange(count) // self.block_size]
            weights = weights.reshape(self.N, self.K)
            y = multiply(a.astype(FLOAT), weights.T if self.transB else weights)
            return (y.astype(a.dtype, copy=False),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel of products over packed weights."""
        (a, b, absmax), y = inputs, outputs[0]
        assert a is not None and b is not None and absmax is not None and y is not None
        shape = pack_shape(self.K, 0, 0, self.block_size, 4, 0, is_high_first=True)
        extents = (self.K, self.N) if self.transB else (self.N, self.K)
        table = emit.constant(TABLES[self.quant_type])
        _launch(emit, (a, None, y), (b, absmax, None, None, table), extents, shape, is_turned=not self.transB)


def _launch(
    emit: Emitter,
    operands: tuple[Slot, Slot | None, Slot],
    weights: Slots,
    extents: tuple[int, int],
    shape: bytes,
    *,
    is_turned: bool = False,
) -> None:
    """Launch a product of A (with bias, into y) and packed weights: codes, scales, zero points, groups, table."""
    (a, bias, y), (inner, columns) = operands, extents
    rows = prod(a.shape[:-1])
    # The weights have a layout of their own; density along k determines how a few rows divide the work.
    gemm = pack_gemm((rows, columns, inner), (inner, 1, columns if is_turned else 1, 0, 0, 1, columns, 1))
    codes, *rest = (dense(emit, slot) for slot in weights)
    arguments: list[Argument] = [
        emit.contiguous(a),
        codes,
        dense(emit, bias),
        y,
        gemm,
        *rest,
        shape,
        int32(is_turned),
    ]
    kernel = Kernel("matmul_nbits.cu", f"matmul_nbits<{dtype_row(y.dtype).cuda}>")
    emit.launch(kernel, (count_tiles(rows, columns), 1, 1), (256, 1, 1), arguments, writes=[3])


def _launch_coded(
    emit: Emitter,
    operands: tuple[Slot, Slot | None, Slot],
    weights: tuple[Slot, Slot, Slot | None],
    extents: tuple[int, int],
    shape: bytes,
    bits: int,
) -> bool:
    """Launch a product of A (with bias, into y) and codes, scales and zero points: of few rows, or on tensor cores.

    False where rows are no whole vectors, or extents too large, or there are more rows of float.

    Raises:
        PlanError: Operands of this size are not aligned, as those of the upper end are.
    """
    (a, bias, y), (inner, columns), rows = operands, extents, prod(operands[0].shape[:-1])
    is_able = (
        emit.target.has_kernels and not emit.target.has_textures if a.dtype == FLOAT else has_tensor_cores(emit.target)
    )
    if not is_able or inner * a.dtype.itemsize % _VECTOR_BYTES:
        return False
    if not emit.choose(int(max(rows, columns) < _MAX_EXTENT)):
        return False
    if a.dtype == FLOAT and not emit.choose(int(rows <= MOST_ROWS)):
        return False
    a, codes = _align(emit, emit.contiguous(a)), _align(emit, emit.contiguous(weights[0]))
    product = Product(
        (a, codes, bias, y), (rows, columns, inner), (inner, 1), (1, inner), (0, 1), (columns, 1), (1.0, 1.0), (),
        ((), (), ()),
    )  # fmt: skip
    scales, zeros = emit.contiguous(weights[1]), dense(emit, weights[2])
    if takes_few(emit, product, bits):
        product = replace(product, slots=(a, codes, dense(emit, bias), y))
        launch_few(emit, product, (scales, zeros), shape, bits)
        return True
    tiles = SMALL_MMA.count(rows, columns)
    slices = slice_mma_tiles(emit, SMALL_MMA, tiles, inner * a.dtype.itemsize)
    packed = product.pack_mma(ALONG_K, ALONG_K)
    arguments: list[Argument] = [a, codes, dense(emit, bias), y, packed, slices.scratch, slices.counters]
    arguments += [scales, zeros, shape]
    kernel = name_mma_nbits(a.dtype, y.dtype, bits)
    writes, grid = slices.writes(3, 5, tiles), (tiles, slices.count, 1)
    emit.launch(kernel, grid, (SMALL_MMA.threads, 1, 1), arguments, writes, shared_bytes=SMALL_MMA.ring_nbytes)
    return True


def _align(emit: Emitter, slot: Slot) -> Slot:
    """Return an operand where vectors read it: a copy of one that begins elsewhere, so that bits are the same there.

    Raises:
        PlanError: It is not aligned, as that of the upper end is.
    """
    is_apart = slot.offset_bytes % _VECTOR_BYTES != 0
    if emit.choose(int(is_apart)):
        whole = emit.temp(slot.shape, slot.dtype)
        emit.copy(whole, slot)
        return whole
    if is_apart:
        raise PlanError("An operand of a product with codes is not aligned, as that of the upper end is.")
    return slot


def pack_shape(
    row: int, zero_row: int, blocks: int, block: int, bits: int, kind: int, *, is_high_first: bool = False
) -> bytes:
    """Return the bytes of ``PackedShape`` of ``packed_weights.cuh``."""
    return pack_struct(
        "<3q4i", row, zero_row, blocks, block.bit_length() - 1, bits.bit_length() - 1, is_high_first, kind
    )


def _check_block(name: str, block: int) -> None:
    if block < _MIN_BLOCK or block & (block - 1):
        raise InputError(f"{name} expects block_size to be a power of 2, {_MIN_BLOCK} at least, got {block}.")


def _check_operand(
    name: str, a: TensorSpec | None, inner: int, role: str, dtypes: Sequence[np.dtype[np.generic]] = SCALES
) -> TensorSpec:
    a = check_dtype(name, a, tuple(dtypes), "A")
    if not a.rank or a.shape[-1] != inner:
        raise InputError(f"{name} expects the last extent of A to be {role}={inner}, got {a}.")
    return a


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _PART_NBYTES // (max(1, columns) * FLOAT.itemsize))
    return (slice(first, first + step) for first in range(0, rows, step))


# Instructions of a thread for a slab of a tile, and for a weight of a few rows: each code is widened alone.
_LOOP, _EACH_WEIGHT = TileLoop(6172, registers=128), 112


@work_of("matmul_nbits.cu", "matmul_nbits")
def _count_matmul_nbits(launch: Launch) -> Work:
    return count_product(launch, _LOOP, _EACH_WEIGHT, is_packed=True)


# Of mma_nbits: instructions of a thread for eight codes by their bits, more of 8 bits in bf16; and for each sum of a
# block, and for the scale of a column, more of 16 bits.
_EACH_EIGHT, _WIDE_EIGHT = {2: 21, 4: 21, 8: 18}, 11
_EACH_BLOCK_SUM, _EACH_SCALE, _NARROW_SCALE = 2, 6, 1
_MMA_REGISTERS = 216
_SHIFTS_AT = 24  # of block_shift and bits_shift in ``PackedShape``


@work_of("mma_nbits.cu", "mma_nbits")
def _count_mma_nbits(launch: Launch) -> Work:
    rows, columns, inner, *_ = read_gemm(launch)
    a, (scales, zeros, shape) = launch.arguments[0], launch.arguments[7:10]
    assert isinstance(a, Slot) and isinstance(scales, Slot) and isinstance(shape, bytes)
    shift, bits_shift = struct.unpack_from("<2i", shape, _SHIFTS_AT)
    tile, itemsize, bits = SMALL_MMA, a.dtype.itemsize, 1 << bits_shift
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    asked = inner * itemsize * round_up(rows, tile.rows) * column_tiles + inner * columns * row_tiles * bits // 8
    # Blocks are neighbours, so that L1 answers all but one in a sector of them; slots are counted once beside.
    asked += (row_tiles * tile.warps_down - 1) * count_slot_bytes(scales)
    asked += (row_tiles - 1) * count_slot_bytes(zeros) if isinstance(zeros, Slot) else 0
    chunks = tile.columns * tile.slab_nbytes // _VECTOR_BYTES / tile.threads
    blocks_of_slab = tile.slab_nbytes / itemsize / (1 << shift)
    own_columns = tile.columns // tile.warps_across // 4
    each_scale = _EACH_SCALE + (_NARROW_SCALE if scales.dtype != FLOAT else 0)
    scaled = tile.size // tile.threads * _EACH_BLOCK_SUM + own_columns * each_scale
    each_eight = _EACH_EIGHT[bits] + (_WIDE_EIGHT if bits == 8 and a.dtype == BFLOAT16 else 0)
    loop = LOOP_INSTRUCTIONS[tile.name][0] + chunks * each_eight + blocks_of_slab * scaled
    return replace(describe_mma(launch, loop, asked, AROUND), registers=_MMA_REGISTERS)
