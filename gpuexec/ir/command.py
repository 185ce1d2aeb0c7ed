"""Commands of a device: Launch, Copy, Fill, LibraryCall and HostCall over slots, as plain data without pointers.

command  = Launch | Copy | Fill | LibraryCall | HostCall
argument = Slot | None | NumPy scalar | bytes      (a pointer; a null pointer; a scalar by value; a struct by value)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from gpuexec.ir.geometry import find_rows
from gpuexec.ir.kernel_values import SymbolicBytes, SymbolicScalar
from gpuexec.ir.library_problem import Problem
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import memoize

# The address that every buffer starts at a multiple of, wherever it is bound, in bytes: the longest word that a kernel
# reads or writes at once. Lowerings choose words by the offsets of slots alone, so what callers give is copied where it
# starts elsewhere (`gpuexec.execution.resources.aligned_copy`). On a device without kernels an element is the longest
# word.
BUFFER_ALIGNMENT = 16
_KEPT = 1 << 12  # shapes and strides whose geometry is remembered


@dataclass(frozen=True, slots=True)
class Slot:
    """A typed window on a buffer: byte offset of the first element, spec, and strides in elements.

    Strides may be 0 (broadcast) or negative (reversed).
    """

    buffer: int
    offset_bytes: int
    spec: TensorSpec
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the window."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.spec.dtype

    @property
    def is_contiguous(self) -> bool:
        """True if the elements lie dense in row-major order (axes of extent 1 don't count)."""
        return _is_dense(self.spec.shape, self.strides)

    @property
    def order(self) -> tuple[tuple[int, ...], ...] | None:
        """Shape and strides where the elements lie dense in the order of a permutation of the axes, else None.

        ``()`` is row-major. Windows of one order and place pair equal bytes with equal elements.
        """
        return _find_order(self.spec.shape, self.strides)

    def byte_range(self) -> tuple[int, int]:
        """Return the half-open range of bytes within the buffer that the window can touch."""
        low, high = _find_reach(self.spec.shape, self.strides)
        itemsize = self.spec.dtype.itemsize
        return self.offset_bytes + low * itemsize, self.offset_bytes + high * itemsize

    def byte_rows(self) -> tuple[int, int]:
        """Return the bytes of a row, and from one row to the next, where the window is rows with gaps between them.

        Both are those of `byte_range` where it is not.
        """
        rows = _find_rows(self.spec.shape, self.strides)
        if rows is None or rows[1] == rows[2]:
            low, high = self.byte_range()
            return high - low, high - low
        _, width, pitch = rows
        return width * self.spec.dtype.itemsize, pitch * self.spec.dtype.itemsize

    def __str__(self) -> str:
        where = f"%{self.buffer}" + (f"+{self.offset_bytes}" if self.offset_bytes else "")
        layout = "" if self.is_contiguous else f" strides {self.strides}"
        return f"{where}:{self.spec}{layout}"


# Plans ask for each slot several times, and most slots are of few shapes.
_find_rows = memoize(_KEPT)(find_rows)


@memoize(_KEPT)
def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


@memoize(_KEPT)
def _find_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    if _is_dense(shape, strides):
        return ()
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    expected = 1
    for axis in sorted(axes, key=strides.__getitem__):
        if strides[axis] != expected:
            return None
        expected *= shape[axis]
    return shape, strides


@memoize(_KEPT)
def _find_reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the half-open range of elements that a window can touch, relative to its first."""
    if prod(shape) == 0:
        return 0, 0
    low = high = 0
    for extent, stride in zip(shape, strides, strict=True):
        if stride > 0:
            high += (extent - 1) * stride
        else:
            low += (extent - 1) * stride
    return low, high + 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by name: the file it stands in and the C++ name expression of the instance.

    ``text`` is C++ that was generated for it (`gpuexec.ops.elementwise.flat`) and is compiled behind the file; the
    expression names a type of it that no other text defines, so two kernels of one name have one text.
    """

    source: str
    expression: str
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.source}:{self.expression}"


Argument = Slot | None | np.generic | bytes | SymbolicBytes | SymbolicScalar


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Launch configuration of a kernel: blocks, threads of a block, dynamic shared memory in bytes.

    ``cooperative``: see `Launch`.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Run a kernel over ``grid`` blocks of ``block`` threads.

    ``writes`` are the positions in ``arguments`` of the slots that are written; other slots are read. The blocks of a
    ``cooperative`` launch are all under way together and may wait for each other (``grid_sync`` of grid.cuh); a device
    refuses one whose grid it can't hold.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    writes: tuple[int, ...]
    shared_bytes: int = 0
    cooperative: bool = False

    @property
    def config(self) -> LaunchConfig:
        """The launch configuration, made anew at each call."""
        return LaunchConfig(self.grid, self.block, self.shared_bytes, self.cooperative)

    def reads_from(self) -> list[Slot]:
        """Return the slots read."""
        return [a for position, a in enumerate(self.arguments) if isinstance(a, Slot) and position not in self.writes]

    def writes_to(self) -> list[Slot]:
        """Return the slots written."""
        written: list[Slot] = []
        for position in self.writes:
            argument = self.arguments[position]
            assert isinstance(argument, Slot)
            written.append(argument)
        return written


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the bytes of a contiguous slot to another of the same number of bytes."""

    destination: Slot
    source: Slot

    def reads_from(self) -> list[Slot]:
        """Return the slot read."""
        return [self.source]

    def writes_to(self) -> list[Slot]:
        """Return the slot written."""
        return [self.destination]


@dataclass(frozen=True, slots=True)
class Fill:
    """Set every element of a contiguous slot to the element whose bytes are ``pattern`` (1, 2, 4 or 8)."""

    destination: Slot
    pattern: bytes

    def reads_from(self) -> list[Slot]:
        """Return nothing."""
        return []

    def writes_to(self) -> list[Slot]:
        """Return the slot written."""
        return [self.destination]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Have a library solve a problem on the device.

    ``arguments`` are the slots of `gpuexec.ir.provider.ProblemSlots` in order, then the workspace; None: there is none.
    The last two are written. A device without the library refuses the command, and no file holds it
    (`gpuexec.ir.plan_json`).
    """

    library: str
    problem: Problem
    arguments: tuple[Slot | None, ...]

    def reads_from(self) -> list[Slot]:
        """Return the slots read."""
        return [slot for slot in self.arguments[:-2] if slot is not None]

    def writes_to(self) -> list[Slot]:
        """Return the slots written."""
        return [slot for slot in self.arguments[-2:] if slot is not None]


@dataclass(frozen=True, slots=True)
class HostCall:
    """Run an operator's ``compute`` on the host, or what its ``prepare`` returns, which works in ``scratch``.

    The operator is given by name, its attributes as JSON values.
    """

    operator: str
    attributes: tuple[tuple[str, Any], ...]
    inputs: tuple[Slot | None, ...]
    outputs: tuple[Slot | None, ...]
    scratch: tuple[Slot, ...] = ()

    def reads_from(self) -> list[Slot]:
        """Return the slots read."""
        return [slot for slot in self.inputs if slot is not None]

    def writes_to(self) -> list[Slot]:
        """Return the slots written, scratch last."""
        return [slot for slot in (*self.outputs, *self.scratch) if slot is not None]


Command = Launch | Copy | Fill | LibraryCall | HostCall
