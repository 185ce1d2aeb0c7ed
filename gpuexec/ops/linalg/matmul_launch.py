"""Launches of matrix products: strided and batched operands, alpha, beta and an addend.

A product of float takes tiles of ``simt_gemm.cu``, or up to eight rows at once of ``gemv.cu``; which, is decided for
a size class (`gpuexec.ops.lib.slices`); so does one of float with narrow weights. One of half or bf16 takes tiles of
``mma_gemm.cu``, on tensor cores, from sm_80 on, be its result of that type or float; so does one of float whose
operands are rounded to tf32, where they lie along the inner extent or can be packed so, and one of half or bf16 with
weights of int8 (``mma_narrow.cu``). Other types, older architectures, extents that 32 bits don't hold, and narrow
weights with scales along the inner extent take ``matmul.cu``, where a block makes a tile of 64 x 64, or of 4 x 8
where there are few rows. A product with few columns is made as that of the transposed, but for narrow weights, which
are always the right operand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import InputError, PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Emitter
from gpuexec.ir.precision import REFERENCE, TF32
from gpuexec.ir.provider import Posed
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row, dtypes_of
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import Array, Converted, WeightForm, weight_form
from gpuexec.ops.elementwise.elementwise_cast import convert_commands
from gpuexec.ops.elementwise.epilogue import STORED, instantiate_finished
from gpuexec.ops.lib.posing import pose_product
from gpuexec.ops.lib.slices import (
    MMA_TILES,
    ONE_SLICE,
    SLAB_DEPTH,
    SMALL_MMA,
    TILES,
    MmaTile,
    choose_mma_tile,
    choose_tile,
    least_blocks,
    slice_mma_tiles,
    slice_tiles,
)
from gpuexec.ops.quant import narrow_weight
from gpuexec.ops.quant.narrow_weight import INT8, NARROW_TYPES, NarrowWeight, name_stored, name_types

DTYPES = (*dtypes_of("float"), *(np.dtype(t) for t in (np.int32, np.int64, np.uint32, np.uint64)))
TILE = 64  # rows and columns of a block; kTile of tile.cuh
FEW_ROWS, FEW_COLUMNS = 4, 8  # kFewRows and kFewColumns of matmul.cu
MAX_BATCH_AXES = 8  # kMaxBatchAxes of matmul.cu and simt_product.cuh
GEMV_ROWS = (1, 2, 4, 8)  # of the instances of gemv.cu
_FLOAT = np.dtype(np.float32)
_VECTOR_NBYTES, _EIGHT = 16, 8  # of an operand; elements of a result on tensor cores, kEight of mma_tile.cuh
# Strides in elements that the loaders of simt_tile.cuh step by.
_MAX_OUTER_STRIDE, _MAX_INNER_STRIDE = 2**23, 2**27
# Extents of SimtGemm, 32-bit numbers that a block adds its own places to.
_MAX_EXTENT = 2**31 - 2**16
_MAX_ROW_BLOCKS = 65535  # of a grid, along its z axis
# Types of products on tensor cores, the first architecture that has them, and up to how many columns the transposed is
# made.
_MMA_DTYPES, MMA_ARCHITECTURE, _MMA_FEW = (np.dtype(np.float16), BFLOAT16), 80, 16
# How an operand of such a product lies: dense along the inner extent, or across it. C++ names of Lie in mma_tile.cuh.
_LIES = ALONG_K, ACROSS = "Lie::kAlongK", "Lie::kAcross"
_GEMV_THREADS, _GEMV_BLOCKS = 256, 2  # of a block of gemv.cu, and blocks of a multiprocessor
# Forms of a product of float, as a size class chooses one.
_TILED, _ALONG_K, _ALONG_COLUMNS, _LONG = range(4)

instantiate("matmul.cu", [f"gemm<{dtype_row(dtype).cuda}>" for dtype in DTYPES])
instantiate("matmul.cu", [f"gemm_narrow<{types}>" for types in NARROW_TYPES])
instantiate_finished(_FLOAT, [Kernel("simt_gemm.cu", f"simt_gemm<{tile.name}>") for tile in TILES], stored=STORED)
instantiate_finished(
    _FLOAT,
    [
        Kernel("simt_gemm.cu", f"simt_gemm_narrow<{tile.name}, {name_stored(stored)}>")
        for tile in TILES
        for stored in narrow_weight.STORED
    ],
)
instantiate_finished(
    _FLOAT,
    [Kernel("gemv.cu", f"gemv_along_{way}<{rows}>") for way in ("k", "columns") for rows in GEMV_ROWS],
    stored=STORED,
)
instantiate_finished(
    _FLOAT,
    [
        Kernel("gemv.cu", f"gemv_along_{way}_narrow<{rows}, {name_stored(stored)}>")
        for way in ("k", "columns")
        for rows in GEMV_ROWS
        for stored in narrow_weight.STORED
    ],
)


def name_mma(dtypes: tuple[np.dtype[Any], np.dtype[Any]], tile: MmaTile, lies: tuple[str, str]) -> Kernel:
    """Return the kernel of a product on tensor cores.

    Args:
        dtypes: Of operands and result.
        tile: What a block makes.
        lies: How operands lie.
    """
    types = ", ".join([dtype_row(dtype).cuda for dtype in dtypes])
    return Kernel("mma_gemm.cu", f"mma_gemm<{types}, {tile.name}, {', '.join(lies)}>")


_MMA_FORMS = [(tile, (ALONG_K, right)) for tile in MMA_TILES for right in _LIES]
_MMA_FORMS += [(SMALL_MMA, (ACROSS, right)) for right in _LIES]
for _dtype in _MMA_DTYPES:
    instantiate_finished(_dtype, [name_mma((_dtype, _dtype), *form) for form in _MMA_FORMS])
    instantiate_finished(_FLOAT, [name_mma((_dtype, _FLOAT), *form) for form in _MMA_FORMS], stored=[_dtype])
instantiate_finished(_FLOAT, [name_mma((_FLOAT, _FLOAT), tile, (ALONG_K, ALONG_K)) for tile in MMA_TILES])
instantiate("mma_narrow.cu", [f"mma_narrow<{dtype_row(dtype).cuda}, {SMALL_MMA.name}>" for dtype in _MMA_DTYPES])


@weight_form("padded_rows")
@dataclass(frozen=True, slots=True)
class PaddedRows(WeightForm):
    """A matrix ``[rows, columns]``, dense, its columns padded by zeros to a multiple of ``step``."""

    step: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        """Return the spec with more columns."""
        rows, columns = source.shape
        return source.with_shape((rows, round_up(columns, self.step)))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        """Copy a block to its place."""
        packed[tuple([slice(start, start + extent) for start, extent in zip(at, block.shape, strict=True)])] = block


@dataclass(frozen=True, slots=True)
class Product:
    """Batches of ``y = alpha * a @ b + beta * c``: slots, extents, and strides in elements.

    Attributes:
        slots: a, b, c (or None), y; only their first elements and types count.
        extents: Rows, columns and the inner extent of one product.
        a: Strides by row and inner.
        b: Strides by inner and column.
        c: Strides by row and column.
        y: Strides by row and column.
        scale: alpha, beta.
        batch: Extents of the batch axes.
        walks: Strides of a, b and y along them.
    """

    slots: tuple[Slot, Slot, Slot | None, Slot]
    extents: tuple[int, int, int]
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    y: tuple[int, int]
    scale: tuple[float, float]
    batch: tuple[int, ...]
    walks: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of products."""
        return prod(self.batch)

    @property
    def transposed(self) -> Product:
        """The product of the transposed operands, which is the transposed."""
        (a, b, c, y), (rows, columns, inner) = self.slots, self.extents
        return replace(
            self,
            slots=(b, a, c, y),
            extents=(columns, rows, inner),
            a=self.b[::-1],
            b=self.a[::-1],
            c=self.c[::-1],
            y=self.y[::-1],
            walks=(self.walks[1], self.walks[0], self.walks[2]),
        )

    @property
    def fits_tiles(self) -> bool:
        """Whether the loaders of tiles step so far; kernels for few rows step anywhere."""
        outer = max(abs(self.a[0]), abs(self.b[1]))
        return outer < _MAX_OUTER_STRIDE and max(abs(self.a[1]), abs(self.b[0])) < _MAX_INNER_STRIDE

    @property
    def fits_simt(self) -> bool:
        """Whether the numbers of ``SimtGemm`` hold its extents, and a grid the rows of kernels for few."""
        has_row_blocks = ceil_div(self.extents[0], GEMV_ROWS[-1]) <= _MAX_ROW_BLOCKS or self.fits_tiles
        return has_row_blocks and self.fits_mma

    @property
    def fits_mma(self) -> bool:
        """Whether the numbers of ``SimtGemm`` hold its extents."""
        return max(*self.extents, *self.batch) < _MAX_EXTENT

    def is_wide(
        self, slot: Slot, unit: int, pitch: int, walk: tuple[int, ...], extent: int = 0, width: int = 0
    ) -> bool:
        """Return whether an operand is read by vectors: dense along one axis, and all else aligned.

        Args:
            slot: The operand.
            unit: Its stride along that axis.
            pitch: Its stride along the other one.
            walk: Its strides along the batch axes.
            extent: Its extent along that axis; 0 where the kernel takes those that are no multiple, too.
            width: Elements of a vector; 0: those of 16 bytes.
        """
        width = width or _VECTOR_NBYTES // slot.dtype.itemsize
        is_aligned = slot.offset_bytes % (width * slot.dtype.itemsize) == 0
        return is_aligned and unit == 1 and all(each % width == 0 for each in (extent, pitch, *walk))

    def pack(self) -> bytes:
        """Return the bytes of ``Gemm`` of ``matmul.cu``."""
        return pack_gemm(self.extents, (*self.a, *self.b, *self.c, *self.y), self.scale, (self.batch, self.walks))

    def pack_simt(self, *, is_b_along_k: bool = False, lanes: int = 0, width: int = 0) -> bytes:
        """Return the bytes of ``SimtGemm`` of ``simt_product.cuh``.

        Args:
            is_b_along_k: Whether the kernel reads b along the inner extent.
            lanes: Of ``gemv.cu``.
            width: Elements of a vector of b; 0: those of 16 bytes.
        """
        (a, b, _, y), (_, columns, inner) = self.slots, self.extents
        has_rows = self.is_wide(b, self.b[1], self.b[0], self.walks[1], columns, width)
        has_lines = self.is_wide(b, self.b[0], self.b[1], self.walks[1], inner, width)
        is_narrow = b.dtype != _FLOAT and not lanes
        wide = (
            self.is_wide(a, self.a[1], self.a[0], self.walks[0], inner)
            + 2 * ((has_rows or has_lines) if is_narrow else has_lines if is_b_along_k else has_rows)
            + 4 * self.is_wide(y, self.y[1], self.y[0], self.walks[2], columns)
            + 8 * (is_narrow and has_lines and not has_rows)
        )
        return self._pack_tables(wide, lanes)

    def pack_mma(self, left: str, right: str) -> bytes:
        """Return the bytes of ``SimtGemm`` for ``mma_gemm.cu``.

        Args:
            left: How a lies.
            right: How b lies.
        """
        a, b, _, y = self.slots
        wide = (
            self.is_wide(a, *_sort(self.a[::-1], left), self.walks[0])
            + 2 * self.is_wide(b, *_sort(self.b, right), self.walks[1])
            + 4 * self.is_wide(y, self.y[1], self.y[0], self.walks[2], width=_EIGHT)
        )
        return self._pack_tables(wide, 0)

    def _pack_tables(self, wide: int, lanes: int) -> bytes:
        tables = [entry for row in self.walks for entry in _pad(row, 0)]
        with np.errstate(over="ignore"):
            factors = np.array(self.scale, np.float32).tobytes()
        strides = (*self.a, *self.b, *self.c, *self.y)
        head = struct.pack("<4i8q", *self.extents, len(self.batch), *strides)
        return head + factors + struct.pack(f"<2i8i{len(tables)}q", wide, lanes, *_pad(self.batch, 1), *tables)


def launch_gemm(
    emit: Emitter,
    slots: tuple[Slot, Slot, Slot | None, Slot],
    extents: tuple[int, int, int],
    strides: tuple[int, ...],
    *,
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
    y_column: int = 1,
    narrow: NarrowWeight | None = None,
    scale_steps: tuple[int, int] = (0, 0),
    precision: str = "",
) -> None:
    """Launch ``y = alpha * a @ b + beta * c`` over batches.

    Args:
        emit: Emitter of the launch.
        slots: a, b, c (or None), y; only their first elements and types count.
        extents: Rows, columns and the inner extent of one product.
        strides: a by row and inner, b by inner and column, c by row and column, y by row.
        scale: alpha, beta.
        batch: Extents of the batch axes, and the strides of a, b and y along them.
        y_column: The stride of y by column.
        narrow: The scales of b, where it is narrow.
        scale_steps: Their strides along the inner extent and the columns.
        precision: Of products of float: ``"reference"``, added in the order of the inner extent, by one thread each;
            ``"tf32"``, whose operands are rounded to that; any other.

    Raises:
        InputError: More batch axes than the kernel's table holds.
    """
    batch_extents, walks = batch
    if len(batch_extents) > MAX_BATCH_AXES:
        raise InputError(f"MatMul expects batch axes that join to at most {MAX_BATCH_AXES}, got {len(batch_extents)}.")
    a_row, a_inner, b_inner, b_column, c_row, c_column, y_row = strides
    product = Product(
        slots, extents, (a_row, a_inner), (b_inner, b_column), (c_row, c_column), (y_row, y_column), scale,
        batch_extents, walks,
    )  # fmt: skip
    if narrow is not None:
        _launch_kernels(emit, product, narrow, scale_steps, precision)
        return
    emit.provide(
        lambda: _pose(emit, product, precision),
        lambda: _launch_kernels(emit, product, None, scale_steps, precision),
        keeps_order=precision == REFERENCE,
    )


def _pose(emit: Emitter, product: Product, precision: str) -> Posed:
    """Return the problem that a product is to a library."""
    is_bias = bool(emit.choose(product.slots[2] is not None and product.c[0] == 0))
    strides = (product.a, product.b, product.c, product.y)
    return pose_product(
        product.slots, product.extents, strides, product.scale, product.batch, product.walks, precision, is_bias=is_bias
    )


def _launch_kernels(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_steps: tuple[int, int], precision: str
) -> None:
    """Launch a product by our kernels."""
    has_kernels = emit.target.has_kernels and not emit.target.has_textures
    if narrow is None and _has_mma(emit, product):
        _launch_mma(emit, product)
    elif narrow is None and precision == TF32 and (along_k := _take_tf32(emit, product)) is not None:
        _launch_mma(emit, along_k)
    elif has_kernels and product.slots[3].dtype == _FLOAT and not scale_steps[0]:
        _launch_simt(emit, product, narrow, scale_steps, keeps_order=precision == REFERENCE)
    elif narrow is not None and (lines := _take_lines(emit, product, scale_steps[0])) is not None:
        _launch_mma_narrow(emit, lines, narrow, scale_steps[1])
    elif narrow is not None:
        _launch_any(emit, product, narrow, scale_steps)
    else:
        _launch_any(emit, _turn(product, FEW_ROWS))


def take_operands(emit: Emitter, y: Slot, a: Slot, b: Slot, *, is_narrow: bool = False) -> tuple[Slot, Slot]:
    """Return operands in a type that a kernel multiplies into ``y``: narrower ones are widened, a weight once for all.

    Tensor cores multiply what is narrow as it is.

    Args:
        emit: Emitter of the launches.
        y: The product.
        a: Left operand.
        b: Right operand.
        is_narrow: Whether b is widened while it is read.
    """
    if not emit.target.has_kernels:
        return a, b
    if multiplies(emit.target, y.dtype, a.dtype, b.dtype) and emit.choose(
        max(each.spec.size for each in (a, b, y)) < _MAX_EXTENT
    ):
        return a, b
    return widen_operand(emit, a, y), b if is_narrow else widen_operand(emit, b, y)


def _has_mma(emit: Emitter, product: Product) -> bool:
    """Return whether a product runs on tensor cores, whose kernel counts extents in 32 bits."""
    a, b, _, y = product.slots
    return multiplies(emit.target, y.dtype, a.dtype, b.dtype) and bool(emit.choose(product.fits_mma))


def _take_tf32(emit: Emitter, product: Product) -> Product | None:
    """Return a product of floats with operands that lie along the inner extent, as tensor cores take tf32.

    None where one does not and is no weight that could be packed so, and where few rows or columns take other kernels.
    """
    rows, columns, _ = product.extents
    is_able = has_tensor_cores(emit.target) and product.slots[3].dtype == _FLOAT and product.fits_mma
    if not emit.choose(is_able and min(rows, columns) > GEMV_ROWS[-1]):
        return None
    packed = _pack_operand(emit, product, 1, only_along_k=True)
    packed = packed if packed.b[0] != 1 else _pack_operand(emit, packed, 0, only_along_k=True)
    return packed if emit.choose(packed.a[1] == packed.b[0] == 1) else None


def _take_lines(emit: Emitter, product: Product, inner_step: int) -> Product | None:
    """Return a product of half or bf16 with weights of int8 whose operands lie along the inner extent, aligned.

    None where one does not, and is no weight that could be packed so, and of scales along that extent.

    Raises:
        PlanError: Operands of this size don't lie so, as those of the upper end do.
    """
    a, b, _, y = product.slots
    is_able = has_tensor_cores(emit.target) and y.dtype == a.dtype and a.dtype in _MMA_DTYPES and b.dtype == INT8
    if inner_step or not emit.choose(is_able and not product.batch and product.fits_mma):
        return None
    packed = _pack_operand(emit, product, 1, only_along_k=True)
    a, b, _, _ = packed.slots
    lies = packed.is_wide(a, *packed.a[::-1], ()) and packed.is_wide(b, *packed.b, ())
    if not emit.choose(lies):
        return None
    if not lies:
        raise PlanError("Operands of a product with narrow weights don't lie as those of the upper end do.")
    return packed


def _launch_mma_narrow(emit: Emitter, product: Product, narrow: NarrowWeight, scale_step: int) -> None:
    """Launch a product with weights of int8 on tensor cores."""
    rows, columns, inner = product.extents
    dtype, tiles = product.slots[0].dtype, SMALL_MMA.count(rows, columns)
    slices = slice_mma_tiles(emit, SMALL_MMA, tiles, inner * dtype.itemsize)
    arguments: list[Argument] = [*product.slots, product.pack_mma(ALONG_K, ALONG_K), slices.scratch, slices.counters]
    arguments += [*narrow.dense(emit), np.int64(scale_step)]
    kernel = Kernel("mma_narrow.cu", f"mma_narrow<{dtype_row(dtype).cuda}, {SMALL_MMA.name}>")
    writes, grid, threads = slices.writes(3, 5, tiles), (tiles, slices.count, 1), (SMALL_MMA.threads, 1, 1)
    emit.launch(kernel, grid, threads, arguments, writes, shared_bytes=SMALL_MMA.ring_nbytes)


def has_tensor_cores(target: Target) -> bool:
    """Return whether our kernels of products on tensor cores run on a target."""
    return target.has_kernels and not target.has_textures and target.architecture >= MMA_ARCHITECTURE


def multiplies(target: Target, result: np.dtype[Any], *operands: np.dtype[Any]) -> bool:
    """Return whether tensor cores of a target multiply operands of these types into a result of that type."""
    dtype = operands[0]
    is_matrix = dtype in _MMA_DTYPES and all(each == dtype for each in operands) and result in (dtype, _FLOAT)
    return is_matrix and has_tensor_cores(target)


def widen_operand(emit: Emitter, slot: Slot, y: Slot) -> Slot:
    """Return an operand in the type of ``y``: a weight is converted once for all, others by a launch."""
    if slot.dtype == y.dtype:
        return slot
    packed = emit.packed(slot, Converted(dtype_row(y.dtype).code))
    if packed is not None:
        return packed
    wide = emit.temp(slot.shape, y.dtype)
    convert_commands(emit, wide, slot)
    return wide


def _launch_simt(
    emit: Emitter,
    product: Product,
    narrow: NarrowWeight | None,
    scale_steps: tuple[int, int],
    *,
    keeps_order: bool,
) -> None:
    """Launch a product of float, in the form that its size class has chosen."""
    if keeps_order and emit.choose(product.fits_tiles and _find_form(product) != _LONG):
        _launch_tiles(emit, product, narrow, scale_steps[1], keeps_order=True)
        return
    turned = _turn(product, GEMV_ROWS[-1]) if narrow is None else product
    form, is_turned = divmod(emit.choose(2 * _find_form(turned) + (turned is not product)), 2)
    product = product.transposed if is_turned else product
    if form == _LONG:
        _launch_any(emit, product, narrow, scale_steps)
        return
    if form != _TILED:
        _launch_gemv(emit, product, narrow, scale_steps[1], is_along_k=form == _ALONG_K)
        return
    _launch_tiles(emit, product, narrow, scale_steps[1])


def _launch_tiles(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_step: int, *, keeps_order: bool = False
) -> None:
    """Launch a product of float by tiles, whose inner extent is cut into slices unless sums are to keep their order.

    Raises:
        PlanError: Strides of this size are too large for it.
    """
    if not product.fits_tiles:
        raise PlanError("A product has strides too large for tiles, which the upper end has chosen.")
    rows, columns, inner = product.extents
    tile = choose_tile(emit, rows, columns, inner, product.count)
    tiles = product.count * tile.count(rows, columns)
    slices = ONE_SLICE if keeps_order else slice_tiles(emit, tiles, ceil_div(inner, SLAB_DEPTH), tile.size)
    arguments: list[Argument] = [*product.slots, product.pack_simt(), slices.scratch, slices.counters]
    kernel = Kernel("simt_gemm.cu", f"simt_gemm<{tile.name}>")
    if narrow is not None:
        kernel = Kernel("simt_gemm.cu", f"simt_gemm_narrow<{tile.name}, {name_stored(product.slots[1].dtype)}>")
        arguments += [*narrow.dense(emit), np.int64(scale_step)]
    emit.launch(kernel, (tiles, slices.count, 1), (tile.threads, 1, 1), arguments, slices.writes(3, 5, tiles))


def _launch_mma(emit: Emitter, product: Product) -> None:
    """Launch a product on tensor cores, in a form that is right for all operands, and fast for those that lie so."""
    turned = _turn(product, _MMA_FEW)
    product = product.transposed if emit.choose(turned is not product) else product
    product = _pack_operand(emit, _pack_operand(emit, product, 0), 1)
    # Few rows have one tile, which reads them along the inner extent.
    left = _LIES[emit.choose(product.a[0] == 1 != product.a[1] and product.extents[0] > _MMA_FEW)]
    right = _LIES[emit.choose(product.b[1] == 1 != product.b[0])]
    rows, columns, inner = product.extents
    a, _, _, y = product.slots
    nbytes = inner * a.dtype.itemsize
    tile = SMALL_MMA if left == ACROSS else choose_mma_tile(emit, rows, columns, nbytes, product.count)
    tiles = product.count * tile.count(rows, columns)
    slices = slice_mma_tiles(emit, tile, tiles, nbytes)
    arguments = [*product.slots, product.pack_mma(left, right), slices.scratch, slices.counters]
    emit.launch(
        name_mma((a.dtype, y.dtype), tile, (left, right)),
        (tiles, slices.count, 1),
        (tile.threads, 1, 1),
        arguments,
        slices.writes(3, 5, tiles),
        shared_bytes=tile.ring_nbytes,
    )


def _pack_operand(emit: Emitter, product: Product, index: int, *, only_along_k: bool = False) -> Product:
    """Return the product with operand 0 or 1, where it is a weight that is not aligned as it lies, packed along k.

    So is one that lies across k where ``only_along_k`` is wanted.
    """
    slot, walk = product.slots[index], product.walks[index]
    assert slot is not None
    strides, shape = (product.a if index == 0 else product.b[::-1]), (product.extents[index], product.extents[2])
    if slot.strides == strides[::-1] != strides:
        slot = Slot(slot.buffer, slot.offset_bytes, slot.spec.with_shape(slot.shape[::-1]), slot.strides[::-1])
    is_whole = (slot.shape, slot.strides) == (shape, strides) and not any(walk)
    # Asked for at all sizes alike: a row alone has other strides, and no weight is one at some sizes only.
    known = (strides[::-1],) if only_along_k else (strides, strides[::-1])
    if not emit.choose(is_whole and not any(product.is_wide(slot, *each, ()) for each in known)):
        return product
    packed = emit.packed(slot, PaddedRows(_VECTOR_NBYTES // slot.dtype.itemsize))
    if packed is None:
        return product
    a, b, c, y = product.slots
    pitch = packed.shape[1]
    if index == 0:
        return replace(product, slots=(packed, b, c, y), a=(pitch, 1))
    return replace(product, slots=(a, packed, c, y), b=(1, pitch))


def _sort(strides: tuple[int, int], lie: str) -> tuple[int, int]:
    """Return the stride that is 1 where an operand lies so, and the other one; given are those along k and across."""
    return strides if lie == ALONG_K else strides[::-1]


def _launch_gemv(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_step: int, *, is_along_k: bool
) -> None:
    """Launch a product of few rows: as many at once as there are at the upper end of the size class."""
    (rows, columns, inner), b = product.extents, product.slots[1]
    together = GEMV_ROWS[emit.choose(sum(rows > each for each in GEMV_ROWS[:-1]))]
    width = find_gemv_width(b.dtype.itemsize, together, is_along_k=is_along_k)
    shapes = _list_shapes(width, is_along_k=is_along_k)
    shape = shapes[emit.choose(_find_shape(emit, product, shapes))]
    row_blocks = ceil_div(rows, together)
    blocks = product.count * ceil_div(columns, shape.columns)
    slices = slice_tiles(
        emit, blocks * row_blocks, ceil_div(inner, shape.depth), together * shape.columns, _GEMV_BLOCKS
    )
    packed = product.pack_simt(is_b_along_k=is_along_k, lanes=shape.lanes, width=width)
    arguments: list[Argument] = [*product.slots, packed, slices.scratch, slices.counters]
    name = f"gemv_along_{'k' if is_along_k else 'columns'}"
    kernel = Kernel("gemv.cu", f"{name}<{together}>")
    if narrow is not None:
        kernel = Kernel("gemv.cu", f"{name}_narrow<{together}, {name_stored(b.dtype)}>")
        arguments += [*narrow.dense(emit), np.int64(scale_step)]
    grid = (blocks, slices.count, row_blocks)
    emit.launch(kernel, grid, (_GEMV_THREADS, 1, 1), arguments, slices.writes(3, 5, blocks * row_blocks))


def find_gemv_width(itemsize: int, together: int, *, is_along_k: bool) -> int:
    """Return kLaneWidth or kColumnWidth of ``gemv.cu``.

    Args:
        itemsize: Of the matrix.
        together: Rows of a block.
        is_along_k: Whether lanes are neighbours along the inner extent.
    """
    if is_along_k:
        return 8 if itemsize == 1 and together == GEMV_ROWS[-1] else 16 // itemsize
    return 4 if itemsize == _FLOAT.itemsize or together == GEMV_ROWS[-1] else 8


@dataclass(frozen=True, slots=True)
class _GemvShape:
    """What a block of ``gemv.cu`` makes.

    Attributes:
        lanes: As in its struct: those that are neighbours along the columns, or warps that share columns.
        columns: Of a block.
        depth: Steps of the inner extent, of which a slice has four at least: enough for all threads.
    """

    lanes: int
    columns: int
    depth: int


def _list_shapes(width: int, *, is_along_k: bool) -> list[_GemvShape]:
    """Return what blocks may make, the most columns first; neighbouring lanes read a sector at least."""
    if is_along_k:
        return [_GemvShape(warps, 32 // warps, 8 * width * warps) for warps in (1, 2, 4, 8)]
    return [_GemvShape(lanes, width * lanes, 512 // lanes) for lanes in (32, 16, 8, 4) if width * lanes >= 32]


def _find_shape(emit: Emitter, product: Product, shapes: list[_GemvShape]) -> int:
    """Return the number of the shape with most columns that fills the standard device with blocks, else the last's."""
    filled = [
        product.count * ceil_div(product.extents[1], shape.columns) >= least_blocks(emit.target, _GEMV_BLOCKS)
        for shape in shapes
    ]
    return filled.index(True) if True in filled else len(shapes) - 1


def _launch_any(
    emit: Emitter, product: Product, narrow: NarrowWeight | None = None, scale_steps: tuple[int, int] = (0, 0)
) -> None:
    """Launch a product of any type and strides, b perhaps narrow."""
    b, y = product.slots[1], product.slots[3]
    kernel = Kernel("matmul.cu", f"gemm<{dtype_row(y.dtype).cuda}>")
    arguments: list[Argument] = [*product.slots, product.pack()]
    if narrow is not None:
        kernel = Kernel("matmul.cu", f"gemm_narrow<{name_types(y.dtype, b.dtype)}>")
        arguments += [*narrow.dense(emit), struct.pack("<2q", *scale_steps)]
    grid = (count_tiles(*product.extents[:2]) * product.count, 1, 1)
    emit.launch(kernel, grid, (256, 1, 1), arguments, writes=[3])


def _turn(product: Product, few: int) -> Product:
    """Return the product, or that of the transposed where it has few rows in place of few columns."""
    rows, columns, _ = product.extents
    return product.transposed if columns <= few < rows else product


def _find_form(product: Product) -> int:
    """Return the form of a product of float."""
    if not product.fits_simt:
        return _LONG
    if product.extents[0] > GEMV_ROWS[-1] and product.fits_tiles:
        return _TILED
    is_along_k = product.b[0] == 1 and (product.b[1] != 1 or product.extents[1] == 1)
    return _ALONG_K if is_along_k else _ALONG_COLUMNS


def _pad(row: tuple[int, ...], filler: int) -> tuple[int, ...]:
    return (*row, *(filler,) * (MAX_BATCH_AXES - len(row)))


def pack_gemm(
    extents: tuple[int, int, int],
    walk: tuple[int, ...],
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
) -> bytes:
    """Return the bytes of ``Gemm`` of ``matmul.cu``; arguments as of `launch_gemm`, y by column behind its strides."""
    batch_extents, walks = batch
    tables = [entry for row in (batch_extents, *walks) for entry in _pad(row, 0)]
    return struct.pack(f"<11q2dq{4 * MAX_BATCH_AXES}q", *extents, *walk, *scale, len(batch_extents), *tables)


def count_tiles(rows: int, columns: int) -> int:
    """Return the number of blocks of one product."""
    return ceil_div(rows, TILE) * ceil_div(columns, FEW_COLUMNS if rows <= FEW_ROWS else TILE)
