"""Launches of matrix products of float on ordinary units: tiles of ``simt_gemm.cu``, few rows of ``gemv.cu``.

Which of them runs, and with how many slices of the inner extent, is decided for a size class
(`gpuexec.ops.lib.slices`). Narrow weights are widened while they are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Emitter
from gpuexec.ops.elementwise.epilogue import STORED, instantiate_finished
from gpuexec.ops.lib.slices import ONE_SLICE, SLAB_DEPTH, TILES, Tile, choose_tile, least_blocks, slice_tiles
from gpuexec.ops.linalg.product import ADDEND, GEMV_ROWS, Product, is_known, turn_few
from gpuexec.ops.quant import narrow_weight
from gpuexec.ops.quant.narrow_weight import NarrowWeight, name_stored

_FLOAT = np.dtype(np.float32)
_GEMV_THREADS, _GEMV_BLOCKS = 256, 2  # of a block of gemv.cu, and blocks of a multiprocessor
# Forms of a product of float, as a size class chooses one.
_TILED, _ALONG_K, _ALONG_COLUMNS, _LONG = range(4)


def _name_tiled(tile: Tile, *, has_vectors: bool) -> Kernel:
    """Return the kernel of a product by tiles, whose operands are copied by vectors, or as they lie."""
    return Kernel("simt_gemm.cu", f"simt_gemm<{tile.name}, Copies::{'kVectors' if has_vectors else 'kAny'}>")


instantiate_finished(
    _FLOAT,
    [_name_tiled(tile, has_vectors=each) for tile in TILES for each in (True, False)],
    stored=STORED,
    addend=ADDEND,
)
instantiate_finished(
    _FLOAT,
    [
        Kernel("simt_gemm.cu", f"simt_gemm_narrow<{tile.name}, {name_stored(stored)}>")
        for tile in TILES
        for stored in narrow_weight.STORED
    ],
    addend=ADDEND,
)
instantiate_finished(
    _FLOAT,
    [Kernel("gemv.cu", f"gemv_along_{way}<{rows}>") for way in ("k", "columns") for rows in GEMV_ROWS],
    stored=STORED,
    addend=ADDEND,
)
instantiate_finished(
    _FLOAT,
    [
        Kernel("gemv.cu", f"gemv_along_{way}_narrow<{rows}, {name_stored(stored)}>")
        for way in ("k", "columns")
        for rows in GEMV_ROWS
        for stored in narrow_weight.STORED
    ],
    addend=ADDEND,
)


def launch_simt(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_step: int, *, keeps_order: bool
) -> Product | None:
    """Launch a product of float in the form that its size class has chosen; return one that no form's numbers hold.

    Args:
        emit: Emitter of the launch.
        product: The product.
        narrow: The scales of b, where it is narrow.
        scale_step: Their stride along the columns.
        keeps_order: Whether sums are added in the order of the inner extent.
    """
    if keeps_order and emit.choose(product.fits_tiles and _find_form(product) != _LONG):
        _launch_tiles(emit, product, narrow, scale_step, keeps_order=True)
        return None
    turned = turn_few(product, GEMV_ROWS[-1]) if narrow is None else product
    form, is_turned = divmod(emit.choose(2 * _find_form(turned) + (turned is not product)), 2)
    product = product.transposed if is_turned else product
    if form == _LONG:
        return product
    if form == _TILED:
        _launch_tiles(emit, product, narrow, scale_step)
    else:
        _launch_gemv(emit, product, narrow, scale_step, is_along_k=form == _ALONG_K)
    return None


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
    if narrow is None:
        kernel = _name_tiled(tile, has_vectors=_takes_vectors(emit, product))
    else:
        kernel = Kernel("simt_gemm.cu", f"simt_gemm_narrow<{tile.name}, {name_stored(product.slots[1].dtype)}>")
        arguments += [*narrow.dense(emit), int64(scale_step)]
    emit.launch(kernel, (tiles, slices.count, 1), (tile.threads, 1, 1), arguments, slices.writes(3, 5, tiles))


def _takes_vectors(emit: Emitter, product: Product) -> bool:
    """Return whether a product takes the kernel that copies vectors alone.

    Raises:
        PlanError: Operands of this size are not copied so, as those of the upper end are.
    """
    takes = bool(emit.choose(product.has_vectors and is_known(emit, product)))
    if takes and not product.has_vectors:
        raise PlanError("Operands of a product are not copied by vectors, as those of the upper end are.")
    return takes


def _launch_gemv(
    emit: Emitter, product: Product, narrow: NarrowWeight | None, scale_step: int, *, is_along_k: bool
) -> None:
    """Launch a product of few rows: as many at once as there are at the upper end of the size class."""
    (rows, columns, inner), b = product.extents, product.slots[1]
    together = GEMV_ROWS[emit.choose(sum(rows > each for each in GEMV_ROWS[:-1]))]
    width = find_gemv_width(b.dtype.itemsize, together, is_along_k=is_along_k)
    shapes = _list_shapes(width, is_along_k=is_along_k)
    shape = shapes[emit.choose(find_shape(emit, product, shapes))]
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
        arguments += [*narrow.dense(emit), int64(scale_step)]
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
class RowsShape:
    """What a block of a product of few rows makes.

    Attributes:
        lanes: As in its struct: lanes that are neighbours along the columns, or warps that share columns.
        columns: Of a block.
        depth: Steps of the inner extent, of which a slice has four at least: enough for all threads.
    """

    lanes: int
    columns: int
    depth: int


def _list_shapes(width: int, *, is_along_k: bool) -> list[RowsShape]:
    """Return what blocks may make, the most columns first; neighbouring lanes read a sector at least."""
    if is_along_k:
        return [RowsShape(warps, 32 // warps, 8 * width * warps) for warps in (1, 2, 4, 8)]
    return [RowsShape(lanes, width * lanes, 512 // lanes) for lanes in (32, 16, 8, 4) if width * lanes >= 32]


def find_shape(emit: Emitter, product: Product, shapes: list[RowsShape]) -> int:
    """Return the number of the shape with most columns that fills the standard device with blocks, else the last's.

    Args:
        emit: Emitter of the launch.
        product: The product.
        shapes: Those to choose from, the one with most columns first.
    """
    filled = [
        product.count * ceil_div(product.extents[1], shape.columns) >= least_blocks(emit.target, _GEMV_BLOCKS)
        for shape in shapes
    ]
    return filled.index(True) if True in filled else len(shapes) - 1


def _find_form(product: Product) -> int:
    """Return the form of a product of float."""
    if not product.fits_simt:
        return _LONG
    if product.extents[0] > GEMV_ROWS[-1] and product.fits_tiles:
        return _TILED
    is_along_k = product.b[0] == 1 and (product.b[1] != 1 or product.extents[1] == 1)
    return _ALONG_K if is_along_k else _ALONG_COLUMNS
