"""Launches of products of few rows of half and bf16 on tensor cores, ``mma_few.cu``, and their work in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, round_up
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import WARP, Work, count_slot_bytes, work_of
from gpuexec.ops.elementwise.epilogue import STEP_INSTRUCTIONS, count_epilogue_steps, instantiate_finished
from gpuexec.ops.elementwise.prologue import (
    MORE_ARGUMENTS,
    OWN_ARGUMENTS,
    ProductSizes,
    PrologueForm,
    allow_prologue,
)
from gpuexec.ops.elementwise.prologue_text import count_read_bytes, describe_work, find_prologue, read_walk
from gpuexec.ops.elementwise.region_text import count_steps
from gpuexec.ops.lib.slices import SliceCosts, slice_tiles
from gpuexec.ops.linalg.product import ACROSS, ADDEND, ALONG_K, VECTOR_NBYTES, Product, is_known, read_sizes
from gpuexec.ops.linalg.simt_launch import RowsShape, find_shape
from gpuexec.ops.linalg.simt_work import JOIN_ROUNDS, find_itemsize, find_scratch, list_beside, read_gemm

MOST_ROWS = 8  # kFewRows of mma_few.cuh
_FLOAT, _DTYPES = np.dtype(np.float32), (np.dtype(np.float16), BFLOAT16)
_THREADS, _WARPS, _BLOCKS = 256, 8, 1  # of a block, and blocks of a multiprocessor
# In steps of a block, of 64 columns of a warp across. To join slices takes some four waits for L2, as long as a dozen.
_COSTS = SliceCosts(fixed=4.0, each_slice=0.75, min_slabs=2, slack=(1.0,), least_tenths=0, join=12.0)
_NARROW_COSTS = replace(_COSTS, fixed=8.0, each_slice=1.5, join=24.0)
_AROUND, _EACH_SUM, _EACH_SLICE = 350, 4, 1.5  # of a thread: in all, to scale and store a sum, to add up one of a slice
_REGISTERS = 216
_WAVEFRONT_NBYTES = 128
_MMA_PRODUCTS, _MMA_COLUMNS, _MMA_K = 2048, 8, 16


@dataclass(frozen=True, slots=True)
class FewForm:
    """How a warp reads its columns of the matrix: ``FewColumns`` of ``mma_few.cuh``.

    Attributes:
        right: How the matrix lies.
        own: Columns of a lane.
        step: k of a step.
        together: Steps that are under way at once.
        folds: Warps that may share columns: a block has as many threads as fours of results.
        instructions: Of a warp and step.
        row_wavefronts: Of a warp that reads a step of rows that its block has made.
        stored: Wavefronts of a warp that stores the sums of so many rows.
        costs: Of slices.
    """

    right: str
    own: int
    step: int
    together: int
    folds: tuple[int, ...]
    instructions: int
    row_wavefronts: int
    stored: tuple[int, int]
    costs: SliceCosts = _COSTS

    @property
    def columns(self) -> int:
        """Columns of a warp."""
        return 8 * self.own

    @property
    def name(self) -> str:
        """Arguments of a kernel's template."""
        return f"{self.right}, {self.own}"

    def list_shapes(self) -> list[RowsShape]:
        """Return what blocks may make, the most columns first."""
        return [RowsShape(folds, _WARPS // folds * self.columns, self.step * folds) for folds in self.folds]


# Of what lies alike, the one with most columns first.
FORMS = (
    FewForm(ALONG_K, 4, 32, 4, (2, 4, 8), 54, 4, (8, 4)),
    FewForm(ACROSS, 8, 16, 6, (4, 8), 68, 2, (8, 2)),
    FewForm(ACROSS, 4, 16, 12, (8,), 42, 2, (2, 2), _NARROW_COSTS),
)


def _name_few(dtype: np.dtype[np.generic], result: np.dtype[np.generic], form: FewForm) -> Kernel:
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])
    return Kernel("mma_few.cu", f"mma_few<{types}, {form.name}>")


for _dtype in _DTYPES:
    instantiate_finished(_dtype, [_name_few(_dtype, _dtype, form) for form in FORMS], addend=ADDEND)
    instantiate_finished(_FLOAT, [_name_few(_dtype, _FLOAT, form) for form in FORMS], stored=[_dtype], addend=ADDEND)


def _name_made(dtype: np.dtype[np.generic], result: np.dtype[np.generic], form: FewForm) -> PrologueForm:
    """Return the kernel of a product whose blocks make its rows."""
    types = ", ".join([dtype_row(each).cuda for each in (dtype, result)])

    def read_few(arguments: Sequence[Argument], grid: tuple[int, int, int]) -> ProductSizes:
        own = read_sizes(arguments[4])
        kept = count_kept(own.inner, grid[1], own.lanes, form.step)
        is_able = own.batch == 1 and min(own.rows, own.inner, own.columns) > 0
        return ProductSizes(own.rows, own.inner, kept, is_able, own.rows)

    return PrologueForm("mma_rows.cu", f"mma_of_rows<{types}, {form.name}", dtype, _REGISTERS, read_few)


allow_prologue(
    (_name_few(dtype, result, form), _name_made(dtype, result, form))
    for dtype in _DTYPES
    for result in (dtype, _FLOAT)
    for form in FORMS
)


def takes_few(emit: Emitter, product: Product, right: str) -> bool:
    """Return whether a product of half or bf16 has few rows, and operands that vectors copy.

    Args:
        emit: Emitter of the launch.
        product: The product.
        right: How b lies.

    Raises:
        PlanError: Operands of this size are not copied so, as those of the upper end are.
    """
    has_few = product.slots[0].dtype in _DTYPES and product.has_lines(right)
    takes = emit.choose(product.extents[0] <= MOST_ROWS and has_few and is_known(emit, product))
    if takes and not has_few:
        raise PlanError("Operands of a product of few rows are not copied by vectors, as those of the upper end are.")
    return bool(takes)


def launch_few(emit: Emitter, product: Product, right: str) -> None:
    """Launch a product that `takes_few` has found right.

    Args:
        emit: Emitter of the launch.
        product: The product.
        right: How b lies.
    """
    product = _align(emit, _align(emit, product, 0), 1)
    (rows, columns, inner), (a, _, _, y) = product.extents, product.slots
    choices = [(form, shape) for form in FORMS if form.right == right for shape in form.list_shapes()]
    form, shape = choices[emit.choose(find_shape(emit, product, [shape for _, shape in choices]))]
    blocks = product.count * ceil_div(columns, shape.columns)
    slices = slice_tiles(emit, blocks, ceil_div(inner, shape.depth), rows * shape.columns, _BLOCKS, form.costs)
    packed = product.pack_mma(ALONG_K, right, lanes=shape.lanes)
    emit.launch(
        _name_few(a.dtype, y.dtype, form),
        (blocks, slices.count, 1),
        (_THREADS, 1, 1),
        [*product.slots, packed, slices.scratch, slices.counters],
        slices.writes(3, 5, blocks),
    )


def _align(emit: Emitter, product: Product, index: int) -> Product:
    """Return the product with operand 0 or 1 where vectors read it: a copy of one that does not begin there.

    So sums have one order wherever operands begin, which another kernel's would not be.
    """
    slot, walk = product.slots[index], product.walks[index]
    assert slot is not None
    if not emit.choose(slot.offset_bytes % VECTOR_NBYTES != 0):
        return product
    rows, columns, inner = product.extents
    shape, strides = ((rows, inner), product.a) if index == 0 else ((inner, columns), product.b)
    # Batches that read the same bytes share a copy, and lines lie as they did.
    batch = tuple([extent if step else 1 for extent, step in zip(product.batch, walk, strict=True)])
    is_turned = strides[0] == 1 != strides[1]
    lines = shape[::-1] if is_turned else shape
    whole = emit.temp((*batch, *lines), slot.dtype)
    order = (*walk, *(strides[::-1] if is_turned else strides))
    emit.copy(whole, Slot(slot.buffer, slot.offset_bytes, whole.spec, order))
    *steps, line, unit = whole.strides
    own = tuple([own if step else 0 for own, step in zip(steps, walk, strict=True)])
    laid = (unit, line) if is_turned else (line, unit)
    a, b, c, y = product.slots
    a_walk, b_walk, y_walk = product.walks
    if index == 0:
        return replace(product, slots=(whole, b, c, y), a=laid, walks=(own, b_walk, y_walk))
    return replace(product, slots=(a, whole, c, y), b=laid, walks=(a_walk, own, y_walk))


@work_of("mma_few.cu", "mma_few")
def _count_mma_few(launch: Launch) -> Work:
    rows, columns, inner, batch, _, folds = read_gemm(launch)
    form = _find_form(launch)
    itemsize, blocks, slices = find_itemsize(launch, 0), prod(launch.grid), launch.grid[1]
    block_columns = _WARPS // folds * form.columns
    # Of a warp's columns: parts have as many steps or one more, and warps multiply half turns.
    parts, half = slices * folds, form.together // 2
    each, longer = divmod(ceil_div(inner, form.step), parts)
    own_steps = each + (longer > 0)
    steps = longer * round_up(own_steps, half) + (parts - longer) * round_up(each, half)
    warp_steps = launch.grid[0] * (_WARPS // folds) * steps
    results, own, scratch = batch * rows * columns, count_epilogue_steps(launch), find_scratch(launch)
    joined = 4 * blocks * rows * block_columns if slices > 1 else 0
    finished = launch.grid[0] * rows * block_columns
    beside = sum(count_slot_bytes(each) for each in list_beside(launch, scratch))
    of_sum = _EACH_SUM + own * STEP_INSTRUCTIONS + (slices * _EACH_SLICE if joined else 0)
    products = warp_steps * (form.step // _MMA_K) * (form.columns // _MMA_COLUMNS)
    read = launch.grid[0] * block_columns * inner * itemsize + _count_row_bytes(launch, rows, inner, itemsize)
    partial = form.columns * rows * 4 / _WAVEFRONT_NBYTES  # of a warp
    return Work(
        flops=2 * results * inner + results * own,
        instructions=warp_steps * form.instructions + blocks * _WARPS * _AROUND + finished * of_sum / WARP,
        needed_multiply_adds=results * inner,
        matrix_products=products * _MMA_PRODUCTS,
        wavefronts=blocks * _WARPS * (form.stored[0] * ceil_div(rows, form.stored[1]) + partial),
        l2_nbytes=read + results * find_itemsize(launch, 3) + 2 * joined + beside,
        rounds=ceil_div(own_steps, form.together) + 1 + (slices / 4 + JOIN_ROUNDS if joined else 0),
        barriers=1,
        registers=_REGISTERS,
        shared_nbytes=_WARPS * MOST_ROWS * (form.columns + 4) * 4,
        operand_nbytes={scratch: 0, scratch + 1: 0},  # no other command has anything of it
    )


@work_of("mma_rows.cu", "mma_of_rows")
def _count_mma_of_rows(launch: Launch) -> Work:
    """Count the product, and the rows of each block, which stay in shared memory."""
    rows, _, inner, _, _, folds = read_gemm(launch)
    form, b = _find_form(launch), launch.arguments[1]
    assert isinstance(b, Slot)
    read_steps = launch.grid[0] * (_WARPS // folds) * ceil_div(inner, form.step)
    return count_made_rows(
        launch,
        lambda plain: _count_mma_few(replace(plain, kernel=replace(plain.kernel, source="mma_few.cu"))),
        b.dtype,
        count_kept(inner, launch.grid[1], folds, form.step),
        _count_row_bytes(launch, rows, inner, b.dtype.itemsize),
        read_steps * form.row_wavefronts,
    )


def count_kept(inner: int, slices: int, folds: int, step: int) -> int:
    """Return the terms of the longest slice, whose steps ``folds`` warps share."""
    steps = ceil_div(inner, step)
    return min(steps, ceil_div(steps, slices * folds) * folds) * step


def count_made_rows(
    launch: Launch,
    count_product: Callable[[Launch], Work],
    dtype: np.dtype[Any],
    kept: int,
    row_nbytes: int,
    row_wavefronts: int,
) -> Work:
    """Return the work of a product whose blocks make its rows.

    Args:
        launch: The launch.
        count_product: Counts the same product with a left operand from elsewhere.
        dtype: Of that operand.
        kept: Terms of the longest slice, whose rows a block makes.
        row_nbytes: What is counted of it.
        row_wavefronts: Of shared memory, to read the rows.
    """
    rows, _, inner, *_ = read_gemm(launch)
    blocks, b, made = prod(launch.grid), launch.arguments[1], find_prologue(launch.kernel)
    assert isinstance(b, Slot)
    a = Slot(b.buffer, 0, TensorSpec((rows, inner), dtype), (inner, 1))
    behind = OWN_ARGUMENTS + MORE_ARGUMENTS
    expression = launch.kernel.expression.replace(f", {made.name}", "")
    work = count_product(
        replace(
            launch,
            kernel=Kernel(launch.kernel.source, expression, made.rest),
            arguments=(a, *launch.arguments[1:OWN_ARGUMENTS], *launch.arguments[behind:]),
            writes=tuple([w if w < OWN_ARGUMENTS else w - MORE_ARGUMENTS for w in launch.writes]),
        )
    )
    own = describe_work(made.text, read_walk(made.text, launch.arguments[behind - 2]), kept)
    given = [launch.arguments[0], *launch.arguments[OWN_ARGUMENTS : behind - 2]]
    read = count_read_bytes(made.text, [each for each in given if isinstance(each, Slot)], (inner, kept))
    return replace(
        work,
        flops=work.flops + count_steps(made.text) * rows * inner,
        instructions=work.instructions + blocks * own.instructions,
        wavefronts=work.wavefronts + blocks * own.wavefronts + row_wavefronts,
        l2_nbytes=work.l2_nbytes - row_nbytes + blocks * read,
        rounds=work.rounds + own.rounds - 1,  # weights are under way meanwhile
        barriers=work.barriers + own.barriers,
    )


def _find_form(launch: Launch) -> FewForm:
    return next(form for form in FORMS if form.name in launch.kernel.expression)


def _count_row_bytes(launch: Launch, rows: int, inner: int, itemsize: int) -> int:
    """Return the bytes of rows that all blocks ask for."""
    return prod(launch.grid) * rows * ceil_div(inner, launch.grid[1]) * itemsize
