"""Work of a kernel launch in closed form: operations, instructions, memory traffic and the chain of dependent steps.

Beside the code that launches a kernel stands a function that reads a launch and says what it does, from its grid, its
slots and the structs among its arguments:

    @work_of("matmul.cu", "gemm")
    def count_gemm(launch: Launch) -> Work: ...

Nothing asks for it while plans are made, so plans and their files are the same with and without. Kernels that have no
such function are described by their slots (`gpuexec.planner.launch_work`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div, memory_axes

SECTOR_BYTES = 32  # of L2 and device memory
WARP = 32
LAUNCH_NBYTES = 1 << 22  # what device memory moves while a launch begins and ends, about: 2 us at 2 TB/s
_REGISTERS = 40  # of a thread, where a form says nothing: more blocks fit then than most grids have


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch does on any GPU, all blocks together where nothing else is said.

    Attributes:
        flops: Operations on numbers; a multiplication and an addition are two.
        instructions: Issued by warps.
        multiply_adds: Fused multiply-adds among them, which take longer where a multiprocessor has few lanes.
        needed_multiply_adds: Multiply-adds of numbers that the results need, which are among the operations.
        doubles: Arithmetic on doubles among them.
        integer_multiply_adds: Those of integers among the multiply-adds, which fewer lanes take; one of words of four
            bytes adds up the products of all.
        matrix_products: Multiply-adds of tensor cores, those of absent rows and columns too. One of tf32 is two, as it
            takes twice the time.
        is_by_groups: Whether groups of warps begin those (wgmma), which are faster.
        wavefronts: Of shared memory, as machine code accesses it: a word that several lanes read is served once.
        l2_nbytes: Whole sectors that multiprocessors ask L2 for and write to it; what L1 answers is left out.
        rounds: Times in a row that a thread waits for global memory, in one block.
        fetches: The same of what is asked for ahead, so that only what L2 lacks is waited for.
        cycles: That the warps of a block wait for each other and for results of their own, one after the other.
        barriers: Barriers in a row, in one block.
        registers: Of a thread.
        shared_nbytes: Static shared memory of a block.
        operand_nbytes: Bytes that are touched of an argument, by its position; of those left out, each element once.
        behind: What the last blocks of the grid do once the others have done the rest; its operations count there too.
        blocks: Of what is behind, how many blocks do it.
        again_nbytes: Of what is behind, the bytes that it reads of what those before wrote.
    """

    flops: int = 0
    instructions: float = 0.0
    multiply_adds: float = 0.0
    needed_multiply_adds: int = 0
    doubles: float = 0.0
    integer_multiply_adds: float = 0.0
    matrix_products: float = 0.0
    is_by_groups: bool = False
    wavefronts: float = 0.0
    l2_nbytes: float = 0.0
    rounds: float = 1.0
    fetches: float = 0.0
    cycles: float = 0.0
    barriers: float = 0.0
    registers: int = _REGISTERS
    shared_nbytes: int = 0
    operand_nbytes: Mapping[int, int] = field(default_factory=dict)
    behind: Work | None = None
    blocks: int = 0
    again_nbytes: int = 0


Form = Callable[[Launch], Work]
_FORMS: dict[tuple[str, str], Form] = {}


def work_of(source: str, *kernels: str) -> Callable[[Form], Form]:
    """Register a function as the closed form of kernels of a file, whatever their template arguments."""

    def register(form: Form) -> Form:
        _FORMS.update({(source, kernel): form for kernel in kernels})
        return form

    return register


def find_form(kernel: Kernel) -> Form | None:
    """Return the closed form of a kernel, or None. All are known once `gpuexec.ops` is imported."""
    return _FORMS.get((kernel.source, kernel.expression.partition("<")[0]))


def list_forms() -> tuple[tuple[str, str], ...]:
    """Return the file and name of each kernel that has a closed form."""
    return tuple(_FORMS)


def read_int(argument: Argument) -> int:
    """Return a launch scalar that is an integer."""
    assert isinstance(argument, np.integer)
    return int(argument)


def count_slot_bytes(slot: Slot) -> int:
    """Return the bytes of a slot's elements, those that a stride of 0 repeats once."""
    shape = [extent for extent, stride in zip(slot.shape, slot.strides, strict=True) if stride]
    low, high = slot.byte_range()
    return min(prod(shape) * slot.dtype.itemsize, high - low) if slot.spec.size else 0


def count_run_bytes(elements: int, stride: int, itemsize: int) -> int:
    """Return the bytes of the sectors that a run of elements lies in, the first of which begins one."""
    if not stride:
        return SECTOR_BYTES
    span = ((elements - 1) * abs(stride) + 1) * itemsize
    return min(ceil_div(span, SECTOR_BYTES), elements) * SECTOR_BYTES if elements else 0


def count_apart_bytes(slot: Slot, result: Slot, threads: int) -> int:
    """Return the bytes of the sectors that blocks ask for where they read a slot in the order in which a result lies.

    Args:
        slot: What is read; it stretches to the result's shape.
        result: What is made of it.
        threads: Of a block, each with an element; the rows that one has find what they share in L1.
    """
    whole = count_slot_bytes(slot)
    lead = len(result.shape) - len(slot.shape)
    if not whole or lead < 0 or not result.shape:
        return whole
    inner = memory_axes(result.shape, result.strides)[-1]
    stride = abs(slot.strides[inner - lead]) if inner >= lead and slot.shape[inner - lead] > 1 else 0
    if stride <= 1:
        return whole
    run, rows = min(WARP, result.shape[inner]), max(1, threads // result.shape[inner])
    apart = count_run_bytes(run, stride, slot.dtype.itemsize) / run / rows
    return max(whole, int(prod(slot.shape) * apart))


def count_warps(launch: Launch) -> int:
    """Return the warps of all blocks."""
    return prod(launch.grid) * ceil_div(prod(launch.block), WARP)
