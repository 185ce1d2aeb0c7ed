"""Integer matrix products: MatMulInteger, QLinearMatMul.

The same kernels serve both, signed and unsigned bytes alike, and what is built on them in other domains: tiles of
tensor cores from sm_80 on, where the inner extent is 32 bytes or more, tiles of ``simt_tile.cuh`` over words of four
bytes (`gpuexec.ops.quant.integer_words`), or up to eight rows at once; which, is decided for a size class
(`gpuexec.ops.lib.slices`), and all give the same bits. Those of extents that 32 bits don't hold are summed by teams of
threads, from bytes as they lie. Scales and zero points are of a whole operand, or of each row of
the left and each column of the right one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import broadcast, broadcast_strides, ceil_div, coalesce, contiguous_strides, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.shared_products import prepare_matmul
from gpuexec.ops.lib.slices import (
    MMA_TILES,
    SLAB_DEPTH,
    TILES,
    Slices,
    choose_mma_tile,
    choose_tile,
    least_blocks,
    slice_mma_tiles,
    slice_tiles,
)
from gpuexec.ops.lib.strided import join
from gpuexec.ops.lib.team import BLOCK_THREADS, choose_team
from gpuexec.ops.linalg.exact_product import drop_axes, multiply_exactly
from gpuexec.ops.linalg.float8_matmul import has_float8, infer_float8, launch_float8, multiply_float8
from gpuexec.ops.linalg.mma_launch import has_tensor_cores
from gpuexec.ops.linalg.mma_work import AROUND, LOOP_INSTRUCTIONS, describe_mma_tiles, find_mma_tile
from gpuexec.ops.linalg.simt_work import SlicedTiles, find_tile_code
from gpuexec.ops.quant.integer import (
    BYTES,
    FLOAT,
    INT32,
    LARGEST_PRODUCT,
    SCALES,
    Quantized,
    check_bytes,
    multiply_scales,
    offset_of,
    pack_finish,
    prepare_rounding,
    requantize,
)
from gpuexec.ops.quant.integer_quants import add_axes, align_quant, check_quant, quant_strides, view_quant
from gpuexec.ops.quant.integer_words import (
    MAX_STRIDE,
    MMA_DEPTH,
    WORD_BYTES,
    count_words,
    find_pitch,
    lay_columns,
    lay_lines,
    lay_rows,
)
from gpuexec.ops.tensor.layout import window

ROWS = (1, 8)  # that instances of integer_gemv make at once; a product of more takes tiles
MAX_BATCH_AXES = 8  # kMaxBatchAxes of integer_product.cuh
# Products of bytes whose sum a float holds exactly; and elements of all matrices of a product that is prepared.
_EXACT_LENGTH, _MOST_PREPARED = (2**24 - 1) // LARGEST_PRODUCT, 1 << 22
_KEPT_NBYTES = 1 << 14  # of a wide operand that prepared calls keep from run to run: no larger than a table
_Calls = list[Callable[[], object]]
_SOURCE, _MMA_SOURCE = "integer_matmul.cu", "integer_mma.cu"
_MAX_MMA_BYTES = 2**30  # of the inner extent, which integer_mma counts in 32 bits
# Rows of all products, in 32-bit numbers that a block adds its own places to; and columns, and words of a row, whose
# bytes tiles step over in 32 bits.
_MAX_ROWS, _MAX_WORDS = 2**31 - 2**16, MAX_STRIDE - 2**16
_GEMV_THREADS, _GEMV_BLOCKS = 256, 2  # of a block of integer_gemv, and blocks of a multiprocessor
_LANES = (32, 16, 8)  # threads of such a block along the columns, four columns each
HALF: np.dtype[Any] = np.dtype(np.float16)
_STORED = {np.dtype(np.int8): "u8", np.dtype(np.uint8): "u8", INT32: "i32", FLOAT: "float", HALF: "half"}

_RESULTS = tuple(dict.fromkeys(_STORED.values()))
_KINDS = ("i32", "float", "half", "u8")  # y_kind of ``IntegerGemm``

instantiate(_SOURCE, [f"integer_gemm<{tile.name}, {cuda}>" for tile in TILES for cuda in _RESULTS])
instantiate(_SOURCE, [f"integer_gemv<{rows}, {cuda}>" for rows in ROWS for cuda in _RESULTS])
instantiate(_SOURCE, [f"integer_contract<{cuda}>" for cuda in _RESULTS])
instantiate(_MMA_SOURCE, [f"integer_mma<{tile.name}>" for tile in MMA_TILES])


@operator("MatMulInteger")
@dataclass(frozen=True, slots=True)
class MatMulInteger(Operator):
    """``(A - a_zero_point) @ (B - b_zero_point)`` in int32; batches and 1-D operands as in MatMul."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    uses_all_cores: ClassVar[bool] = True
    flops_per_output = None
    has_blits = False

    def infer(
        self,
        a: TensorSpec | None,
        b: TensorSpec | None,
        a_zero: TensorSpec | None = None,
        b_zero: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the product's spec.

        Raises:
            InputError: Types, extents or zero points do not fit.
        """
        return (TensorSpec(check_product(self.name, Quantized(a, None, a_zero), Quantized(b, None, b_zero)), INT32),)

    def compute(
        self, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None, *, out: Out = None
    ) -> tuple[Array, ...]:
        """Multiply exactly; sums wrap."""
        return (multiply_integers(Quantized(a, None, a_zero), Quantized(b, None, b_zero)),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count operands and product as floats, a piece of the inner extent at a time."""
        return _count_product(inputs[0], inputs[1], outputs[0])

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply exactly in scratch, in floats, and add pieces as integers."""
        (a, b, a_zero, b_zero), y = (*inputs, None, None)[:4], out[0]
        is_known = constant[1] and (b_zero is None or constant[3])
        if a is None or b is None or y is None:
            return None
        summed = _prepare_product(Quantized(a, None, a_zero), Quantized(b, None, b_zero), y, is_known, scratch)
        if summed is None:
            return None
        calls, products = summed
        return calls if products is None else [*calls, partial(np.copyto, y, products, casting="unsafe")]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once, over all batches."""
        a, b, a_zero, b_zero = (*inputs, None, None)[:4]
        launch_integer_gemm(emit, Quantized(a, None, a_zero), Quantized(b, None, b_zero), Quantized(outputs[0]))


@operator("QLinearMatMul")
@dataclass(frozen=True, slots=True)
class QLinearMatMul(Operator):
    """A product of quantised matrices, quantised again: ``round(sum * (a_scale * b_scale / y_scale)) + y_zero_point``.

    The sum is of ``(a - a_zero_point) * (b - b_zero_point)``; halves are rounded to even, the result saturates. With
    floats of 8 bits among the three it is DequantizeLinear, MatMul and QuantizeLinear.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION  # of 8-bit floats; integers are exact anyway
    uses_all_cores: ClassVar[bool] = True
    example = (
        "uint8[9] float32[] uint8[] int8[9] float32[] int8[] float32[] uint8[] | float8e5m2[9] float32[] float8e5m2[] "
        "float8e5m2[9] float32[] float8e5m2[] float32[] float8e5m2[]"
    )
    flops_per_output = None
    has_blits = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the product's spec, of the type of y_zero_point.

        Raises:
            InputError: Types, extents, scales or zero points do not fit.
        """
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            return (infer_float8(self.name, a, b, y),)
        shape = check_product(self.name, a, b, needs_scales=True)
        zero = check_bytes(self.name, y.zero, "y_zero_point")
        check_dtype(self.name, y.scale, SCALES, "y_scale")
        check_quant(self.name, "y", (y.scale, zero), add_axes(shape, a.values.rank, b.values.rank), is_row=True)
        for role, spec in (("b_scale", b.scale), ("y_scale", y.scale)):
            if spec.dtype != a.scale.dtype:
                raise InputError(f"{self.name} expects {role} of the type of a_scale {a.scale}, got {spec}.")
        return (TensorSpec(shape, zero.dtype),)

    def compute(self, *inputs: Array, out: Out = None) -> tuple[Array, ...]:
        """Multiply exactly, scale, round."""
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            return (multiply_float8(a, b, y),)
        rows, columns = a.values.ndim > 1, b.values.ndim > 1
        y_scale, y_zero = (drop_axes(view_quant(each, is_row=True), rows, columns) for each in (y.scale, y.zero))
        return (requantize(multiply_integers(a, b), scale_product(a, b), y_scale, y_zero, y.zero.dtype),)

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the sums, which of the scaled ones are no numbers, and what sums are made of."""
        y = outputs[0]
        counted = () if y is None else _count_product(inputs[0], inputs[3], y)
        return (y.size * INT32.itemsize, y.size, *counted) if counted and y is not None else ()

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Multiply exactly in scratch, scale and round there: where scales are constant."""
        a, b, made = _split(inputs)
        y = out[0]
        if y is None or y.dtype not in BYTES or not (constant[1] and constant[4] and constant[6] and constant[7]):
            return None
        if not has_scratch(scratch, (y.size * INT32.itemsize, y.size)):
            return None
        sums = view_bytes(scratch[0], y.shape, INT32)
        summed = _prepare_product(a, b, sums, constant[3] and constant[5], scratch[2:])
        if summed is None:
            return None
        calls, values = summed
        if values is None:
            values = view_bytes(scratch[4], y.shape, FLOAT)
            calls.append(partial(np.copyto, values, sums, casting="same_kind"))
        y_scale, y_zero = (view_quant(each, is_row=True).astype(FLOAT) for each in (made.scale, made.zero))
        calls.append(partial(np.multiply, values, scale_product(a, b) / y_scale, out=values))
        is_nan = view_bytes(scratch[1], y.shape, np.dtype(np.bool_))
        return [*calls, *prepare_rounding(values, y_zero, y, is_nan)]

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch the tile kernel once, over all batches."""
        a, b, y = _split(inputs)
        if has_float8(a, b, y):
            launch_float8(emit, a, b, Quantized(outputs[0], y.scale, y.zero))
        else:
            launch_integer_gemm(emit, a, b, Quantized(outputs[0], y.scale, y.zero))


def launch_integer_gemm(
    emit: Emitter,
    a: Quantized,
    b: Quantized,
    y: Quantized,
    *,
    alpha: float = 1.0,
    addend: Slot | None = None,
    bias: Slot | None = None,
) -> None:
    """Launch the product of two tensors of matrices.

    Args:
        emit: Emitter of the launch.
        a: The left operand; scale and zero point of it all, or of each row.
        b: The right operand; scale and zero point of it all, or of each column.
        y: The result: int32 without a scale, a float type, or bytes.
        alpha: A factor of the scales.
        addend: int32 that is added to the sums; broadcasts to the last two axes of y.
        bias: Of a float y: added to each row of what was scaled.

    Raises:
        InputError: More batch axes than the kernel's table holds.
    """
    a, b, y = (align_quant(emit, given) for given in (a, b, y))
    a = replace(a, values=_as_matrix(a.values, is_row=True))
    b = replace(b, values=_as_matrix(b.values, is_row=False))
    quants: list[Argument] = [a.zero, b.zero, a.scale, b.scale, y.scale, y.zero, bias]
    scale = next((slot.dtype for slot in (a.scale, b.scale) if slot is not None), None)
    finish = pack_struct("<2i", offset_of(a.values.dtype), offset_of(b.values.dtype))
    finish += pack_finish(alpha, y.values.dtype, scale)
    if not emit.choose(int(_fits_words(a.values, b.values))):
        _launch_long(emit, a, b, y, addend, quants, finish)
        return
    product = _IntegerProduct.of(emit, a, b, y, is_mma=bool(emit.choose(_has_mma(emit, a.values, b.values))))
    arguments: list[Argument] = [product.left, product.right, addend, y.values]
    added = (0, 0) if addend is None else broadcast_strides(addend.shape, addend.strides, product.extents[:2])
    tail = pack_struct("<3q", *added, 0 if bias is None else bias.strides[-1]) + finish
    form = product.choose_form(emit)
    stored = _STORED[y.values.dtype]
    packed = product.pack(form.lanes, _KINDS.index(stored), tail)
    arguments += [packed, form.slices.scratch, form.slices.counters, *quants]
    kernel = Kernel(_SOURCE, f"{form.name}, {stored}>")
    if product.is_mma:  # one instance makes results of all types
        kernel = Kernel(_MMA_SOURCE, f"{form.name}>")
    writes = form.slices.writes(3, 5, form.grid[0] * form.grid[2])
    emit.launch(kernel, form.grid, (form.threads, 1, 1), arguments, writes, shared_bytes=form.ring_nbytes)


def _has_mma(emit: Emitter, a: Slot, b: Slot) -> bool:
    """Return whether a product is made on tensor cores: of more rows than there are kernels for few."""
    rows = a.shape[-2] if prod(b.shape[:-2]) > 1 else prod(a.shape[:-1])
    is_large = rows > ROWS[-1] and a.shape[-1] >= MMA_DEPTH
    return is_large and a.shape[-1] < _MAX_MMA_BYTES and has_tensor_cores(emit.target)


def _fits_words(a: Slot, b: Slot) -> bool:
    """Return whether 32-bit numbers hold what kernels over words count: else bytes are summed as they lie."""
    *outer, rows, depth = a.shape
    count = prod(broadcast(tuple(outer), b.shape[:-2]))
    return max(count, count * rows) < _MAX_ROWS and max(b.shape[-1], ceil_div(depth, WORD_BYTES)) < _MAX_WORDS


def _launch_long(
    emit: Emitter, a: Quantized, b: Quantized, y: Quantized, addend: Slot | None, quants: list[Argument], finish: bytes
) -> None:
    """Launch a product whose extents or strides 32 bits don't hold, from the bytes as they lie."""
    *a_outer, rows, depth = a.values.shape
    *b_outer, _, columns = b.values.shape
    batch = broadcast(tuple(a_outer), tuple(b_outer))
    shape, bias = (*batch, rows, columns), quants[-1]
    *a_batch, a_row, a_step = a.values.strides
    *b_batch, b_step, b_column = b.values.strides
    a_quant, y_quant = (quant_strides(each, (*batch, rows, 1), is_row=True) for each in (a, y))
    b_quant = quant_strides(b, (*batch, 1, columns), is_row=False)
    walks = (
        (*broadcast_strides(a_outer, a_batch, batch), a_row, 0),
        (*broadcast_strides(b_outer, b_batch, batch), 0, b_column),
        (*a_quant[:-1], 0),
        (*b_quant[:-2], 0, b_quant[-1]),
        (*y_quant[:-1], 0),
        (0,) * len(shape) if addend is None else broadcast_strides(addend.shape, addend.strides, shape),
        (*(0,) * (len(shape) - 1), bias.strides[-1] if isinstance(bias, Slot) else 0),
        contiguous_strides(shape),
    )
    team = choose_team(depth, prod(shape))
    arguments: list[Argument] = [a.values, b.values, addend, y.values, join(shape, walks).pack()]
    arguments += [pack_struct("<3q", depth, a_step, b_step) + finish, *quants, *team.arguments()]
    kernel = Kernel(_SOURCE, f"integer_contract<{_STORED[y.values.dtype]}>")
    emit.launch(kernel, team.grid(prod(shape)), (BLOCK_THREADS, 1, 1), arguments, writes=[3])


@dataclass(frozen=True, slots=True)
class _ChosenKernel:
    """The kernel of a product up to its first template argument, its grid, and its slices."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    slices: Slices
    lanes: int = 0
    ring_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class _IntegerProduct:
    """Batches of products of words of four bytes, each ``[rows, inner] @ [inner, columns]``.

    Attributes:
        left: The left operand, as words.
        right: The right one, and the sums of its columns: words, or for tensor cores lines.
        extents: Rows, columns, the inner extent in words, and in bytes.
        strides: Of a by row and b by inner (of lines by column), in words, and of y by row.
        quant_strides: Of scales and zero points of a by row, of b by column and of y by row.
        batch: Extents of the batch axes.
        walks: Strides along them of a, b, y, and of the scales and zero points of each.
        has_fours: Whether y can be stored four columns at a time.
        is_mma: Whether tensor cores make it.
    """

    left: Slot
    right: Slot
    extents: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    quant_strides: tuple[int, int, int]
    batch: tuple[int, ...]
    walks: tuple[tuple[int, ...], ...]
    has_fours: bool
    is_mma: bool

    @staticmethod
    def of(emit: Emitter, a: Quantized, b: Quantized, y: Quantized, *, is_mma: bool) -> _IntegerProduct:
        """Return the product of two tensors of matrices, which are packed where they must be.

        Raises:
            InputError: More batch axes than the kernel's table holds.
        """
        a_values, b_values = a.values, b.values
        batch = broadcast(a_values.shape[:-2], b_values.shape[:-2])
        rows, columns, depth = a_values.shape[-2], b_values.shape[-1], a_values.shape[-1]
        if is_mma:
            right, is_weight = lay_lines(emit, b_values)
            b_batch = tuple([step // WORD_BYTES for step in right.strides[:-1]])
            b_step = find_pitch(depth) // WORD_BYTES
        else:
            right, is_weight = lay_columns(emit, b_values)
            *b_outer, b_step, _ = right.strides
            b_batch = tuple(b_outer)
        left, left_strides = lay_rows(emit, a_values, has_weight=is_weight)
        a_quant = quant_strides(a, (*batch, rows, 1), is_row=True)
        b_quant = quant_strides(b, (*batch, 1, columns), is_row=False)
        y_quant = quant_strides(y, (*batch, rows, 1), is_row=True)
        extents, walks = coalesce(
            (*batch, rows),
            (
                (*broadcast_strides(a_values.shape[:-2], left_strides[:-1], batch), left_strides[-1]),
                (*broadcast_strides(b_values.shape[:-2], b_batch, batch), 0),
                contiguous_strides((*batch, rows, columns))[:-1],
                a_quant[:-1],
                (*b_quant[:-2], 0),
                y_quant[:-1],
            ),
        )
        # The last axis is the rows if the right operand does not walk it; batch axes may have joined it.
        is_row_axis = bool(extents) and walks[1][-1] == 0 and walks[4][-1] == 0
        split = len(extents) - 1 if is_row_axis else len(extents)
        a_row, _, y_row, a_step, _, y_step = (walk[split] if is_row_axis else 0 for walk in walks)
        if split > MAX_BATCH_AXES:
            raise InputError(f"batch axes must join to at most {MAX_BATCH_AXES}, got {split}.")
        return _IntegerProduct(
            left=left,
            right=right,
            extents=(extents[split] if is_row_axis else 1, columns, count_words(depth), depth),
            strides=(a_row, b_step, y_row),
            quant_strides=(a_step, b_quant[-1], y_step),
            batch=tuple(extents[:split]),
            walks=tuple(tuple(walk[:split]) for walk in walks),
            has_fours=columns % 4 == 0 and y.values.offset_bytes % (4 * y.values.dtype.itemsize) == 0,
            is_mma=is_mma,
        )

    @property
    def count(self) -> int:
        """The number of products."""
        return prod(self.batch)

    def choose_form(self, emit: Emitter) -> _ChosenKernel:
        """Return tiles, of tensor cores or not, or for few rows at the upper end of the class `integer_gemv`."""
        rows, columns, inner, _ = self.extents
        if self.is_mma:
            nbytes = inner * WORD_BYTES
            ours = choose_mma_tile(emit, rows, columns, nbytes, self.count)
            tiles = self.count * ours.count(rows, columns)
            slices = slice_mma_tiles(emit, ours, tiles, nbytes)
            grid = (tiles, slices.count, 1)
            return _ChosenKernel(f"integer_mma<{ours.name}", grid, ours.threads, slices, ring_nbytes=ours.ring_nbytes)
        form = emit.choose(sum(rows > each for each in ROWS))
        if form == len(ROWS):
            tile = choose_tile(emit, rows, columns, inner, self.count)
            tiles = self.count * tile.count(rows, columns)
            slices = slice_tiles(emit, tiles, ceil_div(inner, SLAB_DEPTH), tile.size)
            return _ChosenKernel(f"integer_gemm<{tile.name}", (tiles, slices.count, 1), tile.threads, slices)
        together, lanes = ROWS[form], _LANES[emit.choose(self._find_lanes(emit))]
        row_blocks, blocks = ceil_div(rows, together), self.count * ceil_div(columns, 4 * lanes)
        steps, size = ceil_div(inner * lanes, 2 * _GEMV_THREADS), together * 4 * lanes
        slices = slice_tiles(emit, blocks * row_blocks, steps, size, _GEMV_BLOCKS)
        grid = (blocks, slices.count, row_blocks)
        return _ChosenKernel(f"integer_gemv<{together}", grid, _GEMV_THREADS, slices, lanes)

    def _find_lanes(self, emit: Emitter) -> int:
        """Return the number of the widest block of `integer_gemv` that fills the standard device, else the last's."""
        least = least_blocks(emit.target, _GEMV_BLOCKS)
        filled = [self.count * ceil_div(self.extents[1], 4 * lanes) >= least for lanes in _LANES]
        return filled.index(True) if True in filled else len(_LANES) - 1

    def pack(self, lanes: int, kind: int, tail: bytes) -> bytes:
        """Return the bytes of ``IntegerGemm``, whose middle is strides of the addend, offsets and ``Finish``."""
        pad = (0,) * (MAX_BATCH_AXES - len(self.batch))
        tables = [entry for walk in self.walks for entry in (*walk, *pad)]
        head = pack_struct("<8i", *self.extents, len(self.batch), self.has_fours, lanes, kind)
        strides = pack_struct("<6q", *self.strides, *self.quant_strides)
        extents = pack_struct(f"<{MAX_BATCH_AXES}i", *self.batch, *pad)
        return head + strides + tail + extents + pack_struct(f"<{len(tables)}q", *tables)


def multiply_integers(a: Quantized, b: Quantized) -> Array:
    """Return the product in int32, 1-D operands as in matmul."""
    zeros = (view_quant(a.zero, is_row=True), view_quant(b.zero, is_row=False))
    return multiply_exactly(a.values, b.values, INT32, *zeros)


def _count_product(a: TensorSpec | None, b: TensorSpec | None, y: TensorSpec | None) -> tuple[int, ...]:
    """Return the bytes of each array that the calls of `_prepare_product` work in."""
    if a is None or b is None or y is None or a.dtype not in BYTES or b.dtype not in BYTES or min(a.rank, b.rank) < 2:
        return ()
    length = min(a.shape[-1], _EXACT_LENGTH)
    whole = [y.size] if a.shape[-1] > length else []
    sizes = [prod(a.shape[:-1]) * length, prod(b.shape[:-2]) * length * b.shape[-1], y.size, *whole]
    return tuple([FLOAT.itemsize * size for size in sizes])


def _prepare_product(
    a: Quantized, b: Quantized, y: Array, is_known: bool, scratch: Sequence[Array]
) -> tuple[_Calls, Array | None] | None:
    """Return calls that make the product of `multiply_integers`, and where; None where it does more.

    Args:
        a: The left matrices.
        b: The right matrices.
        y: Where sums of several pieces of the inner extent go, in int32; those of a single piece stay floats, which are
            returned.
        is_known: Whether the right matrices never change; they are widened once then, where they are small.
        scratch: Arrays of what `_count_product` returned, or more.
    """
    specs = [TensorSpec(each.shape, each.dtype) for each in (a.values, b.values, y)]
    needed = _count_product(*specs)
    inner, is_large = a.values.shape[-1], sum(spec.size for spec in specs) > _MOST_PREPARED
    if not needed or not inner or is_large or not y.size or not has_scratch(scratch, needed):
        return None
    zeros = [None if each.zero is None else view_quant(each.zero, is_row=each is a) for each in (a, b)]
    if not all(zero is None or _fits(zero, each.values) for zero, each in zip(zeros, (a, b), strict=True)):
        return None
    is_kept = is_known and b.values.size * FLOAT.itemsize <= _KEPT_NBYTES
    products = view_bytes(scratch[2], y.shape, FLOAT)
    calls: _Calls = []
    for first in range(0, inner, _EXACT_LENGTH):
        piece = slice(first, first + _EXACT_LENGTH)
        left, right = a.values[..., piece], b.values[..., piece, :]
        wide_left = view_bytes(scratch[0], left.shape, FLOAT)
        wide_right = np.empty(right.shape, FLOAT) if is_kept else view_bytes(scratch[1], right.shape, FLOAT)
        widened = _prepare_difference(right, zeros[1], wide_right)
        if is_kept:
            for call in widened:
                call()
            widened = []
        calls += [*_prepare_difference(left, zeros[0], wide_left), *widened]
        calls.append(prepare_matmul(wide_left, wide_right, products))
        if inner <= _EXACT_LENGTH:
            return calls, products
        if first:
            whole = view_bytes(scratch[3], y.shape, INT32)
            calls += [partial(np.copyto, whole, products, casting="unsafe"), partial(np.add, y, whole, out=y)]
        else:
            calls.append(partial(np.copyto, y, products, casting="unsafe"))
    return calls, None


def _fits(zero: Array, values: Array) -> bool:
    """Return whether zero points are in place, and leave the matrices' shape when they are taken off."""
    return zero.flags.c_contiguous and broadcast(zero.shape, values.shape) == values.shape


def _prepare_difference(values: Array, zero: Array | None, wide: Array) -> _Calls:
    """Return calls that write ``values - zero`` as floats."""
    calls: _Calls = [partial(np.copyto, wide, values)]
    return calls if zero is None else [*calls, partial(np.subtract, wide, zero, out=wide)]


def scale_product(a: Quantized, b: Quantized) -> Array:
    """Return ``a_scale * b_scale`` in float so that it broadcasts with the product."""
    scale = multiply_scales(1.0, view_quant(a.scale, is_row=True), view_quant(b.scale, is_row=False))
    return drop_axes(scale, a.values.ndim > 1, b.values.ndim > 1)


def check_product(name: str, a: Quantized, b: Quantized, *, needs_scales: bool = False) -> tuple[int, ...]:
    """Return the shape of a product.

    Raises:
        InputError: Types, extents, scales or zero points do not fit.
    """
    left, right = check_bytes(name, a.values, "A"), check_bytes(name, b.values, "B")
    if not left.shape or not right.shape or left.shape[-1] != right.shape[max(right.rank - 2, 0)]:
        raise InputError(f"{name} expects as many columns on the left as rows on the right, got {left} and {right}.")
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    shape = (*batch, *left.shape[-2:-1], *(right.shape[-1:] if right.rank > 1 else ()))
    for role, given, spec, is_row in (("a", a, left, True), ("b", b, right, False)):
        if needs_scales:
            check_dtype(name, given.scale, SCALES, f"{role}_scale")
        if given.zero is not None:
            check_dtype(name, given.zero, (spec.dtype,), f"{role}_zero_point")
        check_quant(name, role, (given.scale, given.zero), add_axes(shape, left.rank, right.rank), is_row=is_row)
    return shape


def _split(inputs: Sequence[Any]) -> tuple[Quantized, Quantized, Quantized]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    return Quantized(a, a_scale, a_zero), Quantized(b, b_scale, b_zero), Quantized(None, y_scale, y_zero)


def _as_matrix(slot: Slot, *, is_row: bool) -> Slot:
    if slot.spec.rank > 1:
        return slot
    shape, strides = (((1, *each), (each[0], 1)) for each in (slot.shape, slot.strides))
    return window(slot, shape[0] if is_row else shape[1], strides[0] if is_row else strides[1])


_A_OFFSET, _B_OFFSET, _EXTENTS = 104, 108, 128  # of a_offset, b_offset and batch_extents in ``IntegerGemm``
_GEMV_AROUND, _JOIN_ROUNDS = 700, 3  # as of products of float (`gpuexec.ops.linalg.simt_work`)
_EACH_ROW_SLAB = 15  # instructions of a thread for a slab whose rows are summed
# Instructions of a lane of integer_gemv for a word of weights: of one row, and for each row more.
_EACH_WORD, _EACH_ROW = 3.0, 2.0


def _read(launch: Launch) -> tuple[int, int, int, int, int, bool, int]:
    """Return rows, columns, inner words, depth, batch, has_fours and lanes of ``IntegerGemm``."""
    packed = launch.arguments[4]
    assert isinstance(packed, bytes)
    rows, columns, inner, depth, axes, has_fours, lanes = struct.unpack_from("<7i", packed)
    return rows, columns, inner, depth, prod(struct.unpack_from(f"<{axes}i", packed, _EXTENTS)), bool(has_fours), lanes


def _has_offset(launch: Launch, at: int = _B_OFFSET) -> bool:
    """Return whether bytes of an operand, the right one if not said, are unsigned, which gives them a zero point."""
    packed = launch.arguments[4]
    assert isinstance(packed, bytes)
    return bool(struct.unpack_from("<i", packed, at)[0])


@work_of(_SOURCE, "integer_gemm")
def _count_integer_gemm(launch: Launch) -> Work:
    rows, columns, inner, depth, batch, has_fours, _ = _read(launch)
    code, slabs = find_tile_code(launch), ceil_div(inner, SLAB_DEPTH)
    column_tiles, sums_rows = ceil_div(columns, code.columns), launch.arguments[8] is not None or _has_offset(launch)
    asked = rows * column_tiles * (2 if sums_rows else 1) + round_up(columns, 4) * ceil_div(rows, code.rows)
    work = SlicedTiles(code, launch.grid[0], launch.grid[1], launch.grid[0] * slabs, slabs).describe(
        launch, batch * rows * columns * depth, WORD_BYTES * batch * inner * asked,
        more=_EACH_ROW_SLAB if sums_rows else 0, is_wide=has_fours,
    )  # fmt: skip
    parked = launch.grid[0] * code.rows * code.columns // WARP  # sums wait in shared memory
    return replace(work, wavefronts=work.wavefronts + 2 * parked, integer_multiply_adds=work.multiply_adds)


# Of integer_mma: instructions of a warp for a slab that centre a fragment of the left operand.
_EACH_FRAGMENT = 4


@work_of(_MMA_SOURCE, "integer_mma")
def _count_integer_mma(launch: Launch) -> Work:
    rows, columns, inner, depth, batch, has_fours, _ = _read(launch)
    a_zero, b_zero = launch.arguments[7:9]
    tile, nbytes = find_mma_tile(launch), inner * WORD_BYTES
    row_tiles, column_tiles = ceil_div(rows, tile.rows), ceil_div(columns, tile.columns)
    # Rows are summed where a column's zero point is not 0. That of signed weights is one most often; without any, it is
    # 0 before unsigned ones are centred, and so not behind that.
    sums_rows = b_zero is None and _has_offset(launch)
    asked = nbytes * (round_up(rows, tile.rows) * column_tiles + round_up(columns, tile.columns) * row_tiles)
    asked += nbytes * rows * column_tiles * sums_rows
    # Each warp of a column asks for the sums of columns, by four requests.
    asked += (
        4
        * WORD_BYTES
        * round_up(columns, 8)
        * row_tiles
        * tile.warps_down
        * (a_zero is not None or _has_offset(launch, _A_OFFSET))
    )
    steps, blocks, warps = tile.slab_nbytes // MMA_DEPTH, launch.grid[0] * launch.grid[1], tile.threads // WARP
    read = tile.columns // tile.warps_across // 32 * (8 + tile.rows // tile.warps_down // 8)
    walked = blocks * (tile.columns // WARP + tile.rows // 4 + warps * read) * sums_rows
    loop = LOOP_INSTRUCTIONS[tile.name][0] + _EACH_FRAGMENT * tile.rows // tile.warps_down // 16 * steps
    sizes = (batch * rows * columns, depth, nbytes)
    work = describe_mma_tiles(launch, sizes, loop, batch * asked, AROUND, written=1 if has_fours else 4)
    return replace(work, wavefronts=work.wavefronts + walked)


@work_of(_SOURCE, "integer_gemv")
def _count_integer_gemv(launch: Launch) -> Work:
    rows, columns, inner, depth, batch, _, lanes = _read(launch)
    together = next(each for each in ROWS if f"<{each}," in launch.kernel.expression)
    slices, row_blocks, blocks = launch.grid[1], launch.grid[2], prod(launch.grid)
    words = batch * round_up(columns, 4) * inner * row_blocks
    rows_nbytes = blocks // slices * together * inner * WORD_BYTES  # L1 answers lanes that read the same word
    joined = 4 * blocks * together * 4 * lanes if slices > 1 else 0
    y = launch.arguments[3]
    assert isinstance(y, Slot)
    slots = [slot for i, slot in enumerate(launch.arguments) if isinstance(slot, Slot) and i not in (0, 1, 3, 5, 6)]
    return Work(
        flops=2 * batch * rows * columns * depth,
        needed_multiply_adds=batch * rows * columns * depth,
        instructions=words / WARP * (_EACH_WORD + _EACH_ROW * (together - 1)) + count_warps(launch) * _GEMV_AROUND,
        multiply_adds=words / WARP * together,
        integer_multiply_adds=words / WARP * together,
        l2_nbytes=words * WORD_BYTES + rows_nbytes + y.spec.nbytes + 2 * joined + sum(map(count_slot_bytes, slots)),
        rounds=ceil_div(inner * lanes, _GEMV_THREADS * slices * (8 if together == 1 else 4))
        + 1
        + (slices / 4 + _JOIN_ROUNDS if joined else 0),
        barriers=1,
        registers=72 if together == 1 else 128,
        shared_nbytes=_GEMV_THREADS // WARP * together * 128 * 4,
        operand_nbytes={5: 0, 6: 0},  # no other command has anything of scratch memory and counters
    )


# Of integer_contract: instructions of a thread in all and for a term, and terms whose loads are under way together.
_LONG_AROUND, _EACH_TERM, _TERMS_TOGETHER = 250, 14, 4


@work_of(_SOURCE, "integer_contract")
def _count_integer_contract(launch: Launch) -> Work:
    y, packed = launch.arguments[3], launch.arguments[5]
    assert isinstance(y, Slot) and isinstance(packed, bytes)
    (depth,), lanes = struct.unpack_from("<q", packed), read_int(launch.arguments[-2])
    own, warps = ceil_div(depth, lanes), count_warps(launch)
    return Work(
        flops=2 * y.spec.size * depth,
        needed_multiply_adds=y.spec.size * depth,
        instructions=warps * (_LONG_AROUND + own * _EACH_TERM),
        multiply_adds=warps * own,
        integer_multiply_adds=warps * own,
        l2_nbytes=sum(count_slot_bytes(each) for each in launch.arguments if isinstance(each, Slot)),
        rounds=1 + ceil_div(own, _TERMS_TOGETHER),
        barriers=2 if lanes > WARP else 0,
        shared_nbytes=4 * BLOCK_THREADS,
    )
