"""Launches of matrix products on tensor cores, ``mma_gemm.cu``, ``mma_narrow.cu`` and ``mma_float8.cu``.

Operands are half or bf16, or floats that are rounded to tf32; those that are weights and not aligned as they lie are
packed once. Weights of int8 are widened between global and shared memory; beside operands that a precision rounds,
where the result is float, they are multiplied as integers, and sums are scaled. Operands of float8e4m3fn are multiplied
as they are where an architecture has an instruction for that, else widened to half in registers; since nothing turns
bytes on their way there, those that don't lie along the inner extent are copied so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Slot
from gpuexec.ir.geometry import round_up
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import Array, WeightForm, weight_form
from gpuexec.ops.elementwise.epilogue import instantiate_finished
from gpuexec.ops.lib.slices import (
    DEEP_MMA_TILES,
    FLAT_DEEP_MMA,
    GROUP_ARCHITECTURE,
    GROUP_TILES,
    MMA_TILES,
    SMALL_GROUP,
    SMALL_MMA,
    MmaTile,
    choose_mma_tile,
    slice_mma_tiles,
)
from gpuexec.ops.linalg.few_launch import launch_few, takes_few
from gpuexec.ops.linalg.product import (
    ACROSS,
    ADDEND,
    ALONG_K,
    GEMV_ROWS,
    LIES,
    VECTOR_NBYTES,
    Product,
    is_known,
    turn_few,
)
from gpuexec.ops.quant.narrow_weight import INT8, NarrowWeight

# Types of products on tensor cores, the first architecture that has them, and up to how many columns the transposed is
# made.
_MMA_DTYPES, MMA_ARCHITECTURE, _MMA_FEW = (np.dtype(np.float16), BFLOAT16), 80, 16
_FLOAT = np.dtype(np.float32)
# Weights of int8 beside so few rows are read faster by gemv.cu than widened for as many rows as a tile has, where they
# are more than this, so that to widen the rows counts for little.
_NARROW_FEW, _NARROW_SMALL = 4, 2**24
# Those with an instruction for products of float8 (PTX ISA 9.0, mma: sm_89 and up; assembled for sm_90 and sm_100 it is
# a sequence that widens to half and spills).
FLOAT8_ARCHITECTURES = (89, 120, 121)
_FLOAT8_TYPES = ("E4m3", "WidenedE4m3")


def name_mma(dtypes: tuple[np.dtype[Any], np.dtype[Any]], tile: MmaTile, lies: tuple[str, str]) -> Kernel:
    """Return the kernel of a product on tensor cores.

    Args:
        dtypes: Of operands and result.
        tile: What a block makes.
        lies: How operands lie.
    """
    types = ", ".join([dtype_row(dtype).cuda for dtype in dtypes])
    return Kernel("mma_gemm.cu", f"mma_gemm<{types}, {tile.name}, {', '.join(lies)}>")


_MMA_FORMS = [(tile, (ALONG_K, right)) for tile in DEEP_MMA_TILES for right in LIES]
_MMA_FORMS += [(tile, (ALONG_K, right)) for tile in GROUP_TILES for right in LIES]
_MMA_FORMS += [(tile, (ACROSS, right)) for tile in (SMALL_MMA, SMALL_GROUP) for right in LIES]
for _dtype in _MMA_DTYPES:
    instantiate_finished(_dtype, [name_mma((_dtype, _dtype), *form) for form in _MMA_FORMS], addend=ADDEND)
    instantiate_finished(
        _FLOAT, [name_mma((_dtype, _FLOAT), *form) for form in _MMA_FORMS], stored=[_dtype], addend=ADDEND
    )
instantiate_finished(
    _FLOAT, [name_mma((_FLOAT, _FLOAT), tile, (ALONG_K, ALONG_K)) for tile in DEEP_MMA_TILES], addend=ADDEND
)


def _name_narrow(dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel of a product with weights of int8, by the types of the other operand and the result."""
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])
    return Kernel("mma_narrow.cu", f"mma_narrow<{types}, {SMALL_MMA.name}>")


instantiate("mma_narrow.cu", [_name_narrow(dtype, dtype).expression for dtype in _MMA_DTYPES])
for _dtype in _MMA_DTYPES:
    instantiate_finished(_FLOAT, [_name_narrow(_dtype, _FLOAT)], stored=[_dtype])
instantiate_finished(
    _FLOAT,
    [Kernel("mma_float8.cu", f"mma_float8<{each}, {tile.name}>") for each in _FLOAT8_TYPES for tile in MMA_TILES],
)


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


def has_tensor_cores(target: Target) -> bool:
    """Return whether our kernels of products on tensor cores run on a target."""
    return target.has_kernels and not target.has_textures and target.architecture >= MMA_ARCHITECTURE


def multiplies(target: Target, result: np.dtype[Any], *operands: np.dtype[Any]) -> bool:
    """Return whether tensor cores of a target multiply operands of these types into a result of that type."""
    dtype = operands[0]
    is_matrix = dtype in _MMA_DTYPES and all(each == dtype for each in operands) and result in (dtype, _FLOAT)
    return is_matrix and has_tensor_cores(target)


def has_mma(emit: Emitter, product: Product) -> bool:
    """Return whether a product runs on tensor cores as it is, whose kernel counts extents in 32 bits.

    Args:
        emit: Emitter of the launch.
        product: The product.
    """
    a, b, _, y = product.slots
    return multiplies(emit.target, y.dtype, a.dtype, b.dtype) and bool(emit.choose(product.fits_mma))


def launch_mma(emit: Emitter, product: Product) -> None:
    """Launch a product on tensor cores, in a form that is right for all operands, and fast for those that lie so.

    Args:
        emit: Emitter of the launch.
        product: What `has_mma` or `take_tf32` have found right for it.
    """
    turned = turn_few(product, _MMA_FEW)
    product = product.transposed if emit.choose(turned is not product) else product
    product = _pack_operand(emit, _pack_operand(emit, product, 0), 1)
    # Few rows have one tile, which reads them along the inner extent.
    left = LIES[emit.choose(product.a[0] == 1 != product.a[1] and product.extents[0] > _MMA_FEW)]
    right = LIES[emit.choose(product.b[1] == 1 != product.b[0])]
    if takes_few(emit, product, right):
        launch_few(emit, product, right)
        return
    rows, columns, inner = product.extents
    a, _, _, y = product.slots
    nbytes = inner * a.dtype.itemsize
    tile = choose_mma_tile(emit, rows, columns, nbytes, product.count, _list_tiles(emit, product, left, right))
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


def _list_tiles(emit: Emitter, product: Product, left: str, right: str) -> Sequence[MmaTile]:
    """Return the tiles that make a product of operands that lie so.

    Groups of warps take what vectors copy.

    Raises:
        PlanError: Operands of this size are not copied so, as those of the upper end are.
    """
    is_able = emit.target.architecture == GROUP_ARCHITECTURE and product.slots[0].dtype in _MMA_DTYPES
    has_chunks = product.has_chunks(left, right)
    if not emit.choose(is_able and has_chunks and is_known(emit, product)):
        return (SMALL_MMA,) if left == ACROSS else DEEP_MMA_TILES
    if not has_chunks:
        raise PlanError("Operands of a product are not copied by vectors, as those of the upper end are.")
    if left == ACROSS:
        return (SMALL_GROUP,)
    # Of few rows weights are all that is fetched. Of many, flat tiles are as fast at best, and more kernels to compile.
    of_rows = emit.choose((product.extents[0] > FLAT_DEEP_MMA.rows) + (product.extents[0] > SMALL_GROUP.rows))
    return (DEEP_MMA_TILES, (FLAT_DEEP_MMA, *GROUP_TILES), GROUP_TILES)[of_rows]


def take_tf32(emit: Emitter, product: Product) -> Product | None:
    """Return a product of floats with operands that lie along the inner extent, as tensor cores take tf32.

    None where one does not and is no weight that could be packed so, and where few rows or columns take other kernels.

    Args:
        emit: Emitter of the launch.
        product: The product.
    """
    rows, columns, _ = product.extents
    is_able = has_tensor_cores(emit.target) and product.slots[3].dtype == _FLOAT and product.fits_mma
    if not emit.choose(is_able and min(rows, columns) > GEMV_ROWS[-1]):
        return None
    packed = _pack_operand(emit, product, 1, only_along_k=True)
    packed = packed if packed.b[0] != 1 else _pack_operand(emit, packed, 0, only_along_k=True)
    return packed if emit.choose(packed.a[1] == packed.b[0] == 1) else None


def take_lines(emit: Emitter, product: Product, inner_step: int) -> Product | None:
    """Return a product of half or bf16 with weights of int8 whose operands lie along the inner extent, aligned.

    None where one does not, and is no weight that could be packed so, of scales along that extent, and of few rows and
    many weights where the result is float, which `gpuexec.ops.linalg.simt_launch` takes.

    Args:
        emit: Emitter of the launch.
        product: The product.
        inner_step: The stride of scales along the inner extent.

    Raises:
        PlanError: Operands of this size don't lie so, as those of the upper end do.
    """
    a, b, _, y = product.slots
    is_able = has_tensor_cores(emit.target) and a.dtype in _MMA_DTYPES and b.dtype == INT8
    rows, columns, inner = product.extents
    is_tiled = y.dtype == a.dtype or rows > _NARROW_FEW or columns * inner <= _NARROW_SMALL
    has_lines = product.is_wide(a, *product.a[::-1], ())
    if inner_step or not emit.choose(is_able and is_tiled and has_lines and not product.batch and product.fits_mma):
        return None
    packed = _pack_operand(emit, product, 1, only_along_k=True)
    a, b, _, _ = packed.slots
    lies = packed.is_wide(a, *packed.a[::-1], ()) and packed.is_wide(b, *packed.b, ())
    if not emit.choose(lies):
        return None
    if not lies:
        raise PlanError("Operands of a product with narrow weights don't lie as those of the upper end do.")
    return packed


def launch_mma_narrow(emit: Emitter, product: Product, narrow: NarrowWeight, scale_step: int) -> None:
    """Launch a product with weights of int8 on tensor cores.

    Args:
        emit: Emitter of the launch.
        product: What `take_lines` has made of it.
        narrow: The scales of the weights.
        scale_step: Their stride along the columns.
    """
    rows, columns, inner = product.extents
    (a, _, _, y), tiles = product.slots, SMALL_MMA.count(rows, columns)
    slices = slice_mma_tiles(emit, SMALL_MMA, tiles, inner * a.dtype.itemsize)
    arguments: list[Argument] = [*product.slots, product.pack_mma(ALONG_K, ALONG_K), slices.scratch, slices.counters]
    arguments += [*narrow.dense(emit), int64(scale_step)]
    kernel = _name_narrow(a.dtype, y.dtype)
    writes, grid, threads = slices.writes(3, 5, tiles), (tiles, slices.count, 1), (SMALL_MMA.threads, 1, 1)
    emit.launch(kernel, grid, threads, arguments, writes, shared_bytes=SMALL_MMA.ring_nbytes)


@dataclass(frozen=True, slots=True)
class LineScale:
    """Scales of the rows or columns of a product, ``step`` elements apart: 0 where all have one."""

    slot: Slot
    step: int


def launch_mma_float8(emit: Emitter, product: Product, scales: tuple[LineScale, LineScale]) -> None:
    """Launch a product of float8e4m3fn on tensor cores.

    Args:
        emit: Emitter of the launch.
        product: The product, whose extents 32 bits hold.
        scales: Of its rows and its columns.
    """
    if emit.choose(turn_few(product, _MMA_FEW) is not product):
        product, scales = product.transposed, (scales[1], scales[0])
    product = _lay_along_k(emit, _lay_along_k(emit, product, 0), 1)
    rows, columns, inner = product.extents
    tile = choose_mma_tile(emit, rows, columns, inner, product.count)
    tiles = product.count * tile.count(rows, columns)
    slices = slice_mma_tiles(emit, tile, tiles, inner)
    arguments: list[Argument] = [*product.slots, product.pack_mma(ALONG_K, ALONG_K), slices.scratch, slices.counters]
    arguments += [*(each.slot for each in scales), *(int32(each.step) for each in scales)]
    multiplied = _FLOAT8_TYPES[emit.target.architecture not in FLOAT8_ARCHITECTURES]
    emit.launch(
        Kernel("mma_float8.cu", f"mma_float8<{multiplied}, {tile.name}>"),
        (tiles, slices.count, 1),
        (tile.threads, 1, 1),
        arguments,
        slices.writes(3, 5, tiles),
        shared_bytes=tile.ring_nbytes,
    )


def _lay_along_k(emit: Emitter, product: Product, index: int) -> Product:
    """Return the product with operand 0 or 1 along the inner extent, lines aligned: a weight packed, else copied."""
    product = _pack_operand(emit, product, index, only_along_k=True)
    slot, walk = product.slots[index], product.walks[index]
    assert slot is not None
    unit, pitch = product.a[::-1] if index == 0 else product.b
    if not emit.choose(not product.is_wide(slot, unit, pitch, walk)):
        return product
    # Batches that read the same bytes share a copy.
    batch = tuple([extent if step else 1 for extent, step in zip(product.batch, walk, strict=True)])
    lines, inner = product.extents[index], product.extents[2]
    whole = emit.temp((*batch, lines, round_up(inner, VECTOR_NBYTES // slot.dtype.itemsize)), slot.dtype)
    spec = slot.spec.with_shape((*batch, lines, inner))
    laid = Slot(whole.buffer, whole.offset_bytes, spec, whole.strides)
    emit.copy(laid, Slot(slot.buffer, slot.offset_bytes, spec, (*walk, pitch, unit)))
    *steps, line, _ = laid.strides
    own = tuple([own if step else 0 for own, step in zip(steps, walk, strict=True)])
    a, b, c, y = product.slots
    a_walk, b_walk, y_walk = product.walks
    if index == 0:
        return replace(product, slots=(laid, b, c, y), a=(line, 1), walks=(own, b_walk, y_walk))
    return replace(product, slots=(a, laid, c, y), b=(1, line), walks=(a_walk, own, y_walk))


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
    packed = emit.packed(slot, PaddedRows(VECTOR_NBYTES // slot.dtype.itemsize))
    if packed is None:
        return product
    a, b, c, y = product.slots
    pitch = packed.shape[1]
    if index == 0:
        return replace(product, slots=(packed, b, c, y), a=(pitch, 1))
    return replace(product, slots=(a, packed, c, y), b=(1, pitch))
