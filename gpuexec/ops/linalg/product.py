"""Matrix products as kernels take them: operands by strides, batches, and the structs that are packed for kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from gpuexec.ir.command import Argument, Slot
from gpuexec.ir.geometry import ceil_div, coalesce
from gpuexec.ir.kernel_values import SymbolicBytes, join_bytes, pack_struct, unpack_struct
from gpuexec.ir.operator import Emitter

MAX_BATCH_AXES = 8  # kMaxBatchAxes of matmul.cu and simt_product.cuh
GEMV_ROWS = (1, 2, 4, 8)  # of the instances of gemv.cu
VECTOR_NBYTES = 16  # of an operand
# How an operand of a product on tensor cores lies: dense along the inner extent, or across it. C++ names of Lie in
# mma.cuh.
LIES = ALONG_K, ACROSS = "Lie::kAlongK", "Lie::kAcross"
ADDEND = 2  # the argument of kernels of products that is added to what they multiply, or None
WIDE_A, WIDE_B, WIDE_Y = 1, 2, 4  # Wide of simt_product.cuh
_SIZES = "<4i8q2f2i8i"  # of SimtGemm, in front of the strides of batches
_FLOAT, _EIGHT = np.dtype(np.float32), 8  # elements of a result on tensor cores, kEight of mma_tile.cuh
# Strides in elements that the loaders of simt_tile.cuh step by.
_MAX_OUTER_STRIDE, _MAX_INNER_STRIDE = 2**23, 2**27
# Extents of SimtGemm, 32-bit numbers that a block adds its own places to.
_MAX_EXTENT = 2**31 - 2**16
_HEAD, _HEAD_NBYTES = "<4i8q", 80  # of SimtGemm: extents and strides; then scales, and which operands are wide
_MAX_ROW_BLOCKS = 65535  # of a grid, along its z axis


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
        return fits_extents(*self.extents, *self.batch)

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
        width = width or VECTOR_NBYTES // slot.dtype.itemsize
        is_aligned = slot.offset_bytes % (width * slot.dtype.itemsize) == 0
        return is_aligned and unit == 1 and all(each % width == 0 for each in (extent, pitch, *walk))

    @property
    def has_vectors(self) -> bool:
        """Whether vectors of floats copy both operands: a along the inner extent, b along the columns."""
        (a, b, *_), (_, columns, inner) = self.slots, self.extents
        return self.is_wide(a, self.a[1], self.a[0], self.walks[0], inner) and self.is_wide(
            b, self.b[1], self.b[0], self.walks[1], columns
        )

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

    def pack_mma(self, left: str, right: str, lanes: int = 0) -> bytes:
        """Return the bytes of ``SimtGemm`` for ``mma_gemm.cu`` and ``mma_few.cu``.

        Args:
            left: How a lies.
            right: How b lies.
            lanes: Of ``mma_few.cu``.
        """
        y = self.slots[3]
        is_wide = self._are_wide(left, right)
        wide = is_wide[0] + 2 * is_wide[1] + 4 * self.is_wide(y, self.y[1], self.y[0], self.walks[2], width=_EIGHT)
        return self._pack_tables(wide, lanes)

    def has_lines(self, right: str) -> bool:
        """Return whether both operands consist of whole vectors, a along the inner extent, wherever they begin.

        Args:
            right: How b lies.
        """
        _, columns, inner = self.extents
        ways = (_sort(self.a[::-1], ALONG_K), _sort(self.b, right))
        extents = (inner, columns if right == ACROSS else inner)
        return all(
            unit == 1 and not any(each % _EIGHT for each in (extent, pitch, *walk))
            for (unit, pitch), extent, walk in zip(ways, extents, self.walks, strict=False)
        )

    def has_chunks(self, left: str, right: str) -> bool:
        """Return whether vectors copy both operands, the last lines of one that lies across among them.

        Args:
            left: How a lies.
            right: How b lies.
        """
        (a, b, *_), (rows, columns, _) = self.slots, self.extents
        return all(self._are_wide(left, right)) and all(
            lie == ALONG_K or step != 0 or lines % (VECTOR_NBYTES // slot.dtype.itemsize) == 0
            for slot, lie, step, lines in ((a, left, self.a[1], rows), (b, right, self.b[0], columns))
        )

    def _are_wide(self, left: str, right: str) -> tuple[bool, bool]:
        a, b, *_ = self.slots
        return (
            self.is_wide(a, *_sort(self.a[::-1], left), self.walks[0]),
            self.is_wide(b, *_sort(self.b, right), self.walks[1]),
        )

    def _pack_tables(self, wide: int, lanes: int) -> bytes:
        tables = [entry for row in self.walks for entry in _pad(row, 0)]
        with np.errstate(over="ignore"):
            factors = np.array(self.scale, np.float32).tobytes()
        strides = (*self.a, *self.b, *self.c, *self.y)
        head = pack_struct(_HEAD, *self.extents, len(self.batch), *strides)
        return head + factors + pack_struct(f"<2i8i{len(tables)}q", wide, lanes, *_pad(self.batch, 1), *tables)


def transpose_mma(packed: bytes, y: Slot) -> bytes:
    """Return the bytes of ``SimtGemm`` for ``mma_gemm.cu`` of the transposed product, whose result is the transposed.

    Args:
        packed: Those of a product without batches.
        y: Its result.
    """
    factors, rest = packed[_HEAD_NBYTES : _HEAD_NBYTES + 8], packed[_HEAD_NBYTES + 12 :]
    rows, columns, inner, axes, a_row, a_inner, b_inner, b_column, *strides = unpack_struct(_HEAD, packed)
    (wide,) = unpack_struct("<i", packed[_HEAD_NBYTES + 8 :])
    assert not axes, "a product without batches"
    c_row, c_column, y_row, y_column = strides
    is_wide = y_row == 1 and y_column % _EIGHT == 0 and y.offset_bytes % (_EIGHT * y.dtype.itemsize) == 0
    turned = (b_column, b_inner, a_inner, a_row, c_column, c_row, y_column, y_row)
    flags = (wide & 1) << 1 | wide >> 1 & 1 | 4 * is_wide
    return join_bytes((
        pack_struct(_HEAD, columns, rows, inner, axes, *turned), factors, pack_struct("<i", flags), rest
    ))  # fmt: skip


def read_left(packed: bytes) -> tuple[tuple[int, int, int], int, tuple[int, int], int]:
    """Return extents, batch axes, strides of the left operand and flags of operands that are wide of ``SimtGemm``."""
    rows, columns, inner, axes, a_row, a_inner, *_ = unpack_struct(_HEAD, packed)
    (wide,) = unpack_struct("<i", packed[_HEAD_NBYTES + 8 :])
    return (rows, columns, inner), axes, (a_row, a_inner), wide


@dataclass(frozen=True, slots=True)
class PackedSizes:
    """What the bytes of ``SimtGemm`` say of a product.

    Attributes:
        rows: Of one product.
        columns: The same.
        inner: The terms of a sum.
        batch: The number of products.
        wide: Operands that are read, and results that are stored, by vectors.
        lanes: Of ``gemv.cu``.
    """

    rows: int
    columns: int
    inner: int
    batch: int
    wide: int
    lanes: int


def read_sizes(packed: Argument) -> PackedSizes:
    """Return the sizes in the bytes of ``SimtGemm``, as they were packed."""
    assert isinstance(packed, bytes | SymbolicBytes)
    rows, columns, inner, _, *numbers = unpack_struct(_SIZES, packed)
    wide, lanes, *batch = numbers[10:]
    return PackedSizes(rows, columns, inner, prod(batch), wide, lanes)


def fits_extents(*extents: int) -> bool:
    """Return whether the numbers of ``SimtGemm`` hold extents."""
    return max(extents) < _MAX_EXTENT


def join_rows(
    extents: tuple[int, ...], walks: tuple[tuple[int, ...], ...]
) -> tuple[int, tuple[int, ...], tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """Return rows that share a right operand as one axis: its extent, its strides, and the batch axes that are left.

    Args:
        extents: Of the batch axes and the rows.
        walks: Strides along them, those of the right operand second.
    """
    joined, steps = coalesce(extents, walks)
    # The last axis is the rows if the right operand does not walk it; batch axes may have joined it.
    split = len(joined) - 1 if joined and steps[1][-1] == 0 else len(joined)
    has_rows = split < len(joined)
    rows, row_steps = (joined[split], tuple([each[split] for each in steps])) if has_rows else (1, (0,) * len(steps))
    return rows, row_steps, (joined[:split], tuple([each[:split] for each in steps]))


def is_known(emit: Emitter, product: Product) -> bool:
    """Return whether operands of a product, which vectors copy at this size, are likely to be at others of its class.

    A weight has the extents that it has, and gives the left operand its pitch, as a rule.

    Args:
        emit: Emitter of its launch.
        product: The product.
    """
    b = product.slots[1]
    assert b is not None
    return emit.has_one_size or emit.is_weight(b)


def turn_few(product: Product, few: int) -> Product:
    """Return the product, or that of the transposed where it has few rows in place of few columns."""
    rows, columns, _ = product.extents
    return product.transposed if columns <= few < rows else product


def pack_gemm(
    extents: tuple[int, int, int],
    walk: tuple[int, ...],
    scale: tuple[float, float] = (1.0, 1.0),
    batch: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]] = ((), ((), (), ())),
) -> bytes:
    """Return the bytes of ``Gemm`` of ``matmul.cu``; arguments as of `launch_gemm`, y by column behind its strides."""
    batch_extents, walks = batch
    tables = [entry for row in (batch_extents, *walks) for entry in _pad(row, 0)]
    return pack_struct(f"<11q2dq{4 * MAX_BATCH_AXES}q", *extents, *walk, *scale, len(batch_extents), *tables)


def _sort(strides: tuple[int, int], lie: str) -> tuple[int, int]:
    """Return the stride that is 1 where an operand lies so, and the other one; given are those along k and across."""
    return strides if lie == ALONG_K else strides[::-1]


def _pad(row: tuple[int, ...], filler: int) -> tuple[int, ...]:
    return (*row, *(filler,) * (MAX_BATCH_AXES - len(row)))
