"""Python bindings of the simulator's C++ runtime library."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpuexec.devices.kernels.code_files import load_library
from gpuexec.devices.simulator.compilation import build_runtime
from gpuexec.errors import KernelError, OutOfMemoryError

Order = Literal["forward", "reverse", "random"]
Extent = tuple[int, int, int]

_ORDERS = {"forward": 0, "reverse": 1, "random": 2}
_MESSAGE_BYTES = 2048
_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which blocks, and threads within a block, run; and the number of OS threads for blocks.

    Every order is legal on a GPU, so a result that depends on it shows a missing barrier or a race.
    """

    order: Order = "forward"
    seed: int = 0
    workers: int = 2


class LaunchStruct(ctypes.Structure):
    """``gpuexec::Launch`` of runtime.h."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("parameter_count", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared_bytes", ctypes.c_uint),
        ("shared_limit_bytes", ctypes.c_uint),
        ("order", ctypes.c_int),
        ("workers", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("is_cooperative", ctypes.c_int),
        ("is_dependent", ctypes.c_int),
        ("withheld", ctypes.c_void_p),
        ("withheld_count", ctypes.c_int),
        ("is_checked", ctypes.c_int),
        ("ranges", ctypes.c_void_p),
        ("range_count", ctypes.c_int),
        ("message", ctypes.c_void_p),
        ("message_capacity", ctypes.c_size_t),
        ("findings", ctypes.c_void_p),
        ("finding_capacity", ctypes.c_int),
        ("finding_count", ctypes.c_int),
        ("fault_address", ctypes.c_size_t),
        ("switches", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint),
        ("counts", ctypes.c_void_p),
    )


class _RangeStruct(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_size_t), ("end", ctypes.c_size_t), ("argument", ctypes.c_int), ("is_written", ctypes.c_int),
    )  # fmt: skip


class _WithheldStruct(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_size_t), ("end", ctypes.c_size_t), ("is_hidden", ctypes.c_int), ("is_watched", ctypes.c_int),
    )  # fmt: skip


class RawFinding(ctypes.Structure):
    """``gpuexec::Finding`` of runtime.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("other_flags", ctypes.c_uint),
        ("place", ctypes.c_uint32),
        ("other_place", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("other_block", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32),
        ("has_other", ctypes.c_int),
        ("line", ctypes.c_int),
        ("other_line", ctypes.c_int),
        ("file", ctypes.c_char * 64),
        ("other_file", ctypes.c_char * 64),
        ("detail", ctypes.c_char * 192),
    )


class CountStruct(ctypes.Structure):
    """``gpuexec::Count`` of runtime.h."""

    _fields_ = (
        ("place", ctypes.c_uint32),
        ("flags", ctypes.c_uint),
        ("is_shared", ctypes.c_uint),
        ("nbytes", ctypes.c_uint),
        ("requests", ctypes.c_uint64),
        ("lanes", ctypes.c_uint64),
        ("nbytes_asked", ctypes.c_uint64),
        ("transactions", ctypes.c_uint64),
        ("least", ctypes.c_uint64),
    )


class OperationCountStruct(ctypes.Structure):
    """``gpuexec::OperationCount`` of runtime.h."""

    _fields_ = (
        ("place", ctypes.c_uint32),
        ("unit", ctypes.c_int),
        ("operations", ctypes.c_uint),
        ("calls", ctypes.c_uint64),
        ("lanes", ctypes.c_uint64),
    )


class CountsStruct(ctypes.Structure):
    """``gpuexec::Counts`` of runtime.h."""

    _fields_ = (
        ("l2_bytes", ctypes.c_size_t),
        ("rows", ctypes.c_void_p),
        ("operations", ctypes.c_void_p),
        ("capacity", ctypes.c_int),
        ("operation_capacity", ctypes.c_int),
        ("row_count", ctypes.c_int),
        ("operation_count", ctypes.c_int),
        ("missing_count", ctypes.c_int),
        ("l2_read_bytes", ctypes.c_uint64),
        ("l2_written_bytes", ctypes.c_uint64),
        ("dram_read_bytes", ctypes.c_uint64),
        ("dram_written_bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class AllowedRange:
    """Bytes ``[first, end)`` that a launch may touch: of the pointer argument ``argument``."""

    first: int
    end: int
    argument: int
    is_written: bool = True


@dataclass(frozen=True, slots=True)
class WithheldRange:
    """Bytes ``[first, end)`` that a dependent launch must not use before its wait.

    ``is_hidden``: what they hold can't be seen, since a launch before it may not have written them yet. ``is_watched``:
    the launch writes them itself.
    """

    first: int
    end: int
    is_hidden: bool
    is_watched: bool


class Grid(NamedTuple):
    """A launch as the runtime library takes it: a tuple, since one is made for every launch.

    Args:
        entry: Address of the kernel's entry point.
        arguments: Address of an array with the address of each argument.
        parameters: Address of the kernel's ``gpuexec::Parameter`` table.
        parameter_count: How many there are.
        grid: Blocks, all at least 1.
        block: Threads of a block, all at least 1.
        shared_bytes: Dynamic shared memory.
        shared_limit: The most shared memory a block may have.
        is_cooperative: Whether blocks may wait at a barrier of the grid.
        is_checked: Whether the kernel was compiled for check mode.
        ranges: In check mode, what the kernel may touch; None: all memory of the device.
        counts: In count mode, what takes the figures.
        withheld: Of a dependent launch, the bytes that it must wait for; None: all before it is complete.
    """

    entry: int
    arguments: int
    parameters: int
    parameter_count: int
    grid: Extent
    block: Extent
    shared_bytes: int
    shared_limit: int
    is_cooperative: bool = False
    is_checked: bool = False
    ranges: tuple[AllowedRange, ...] | None = None
    counts: CountsStruct | None = None
    withheld: tuple[WithheldRange, ...] | None = None


_MAX_FINDINGS = 64
_FUNCTIONS = (
    ("gpuexec_launch", ctypes.c_int, (ctypes.POINTER(LaunchStruct),)),
    ("gpuexec_copy_arguments", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)),
    ("gpuexec_free_arguments", None, (ctypes.c_void_p,)),
    ("gpuexec_allocate", ctypes.c_void_p, (ctypes.c_size_t,)),
    ("gpuexec_release", None, (ctypes.c_void_p,)),
    ("gpuexec_fill", None, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t)),
)


class GridError(KernelError):
    """A kernel violated a rule while it ran.

    ``fault_address`` is the address it could not touch, or 0; ``raw_findings`` is what check mode found.
    """

    def __init__(self, message: str, fault_address: int = 0, raw_findings: Sequence[RawFinding] = ()) -> None:
        super().__init__(message)
        self.fault_address = fault_address
        self.raw_findings = tuple(raw_findings)


def load_runtime(defines: Sequence[str] = ()) -> ctypes.CDLL:
    """Return the runtime library; the first call of the process decides which build it is.

    Its symbols are global: kernel files link to them when they are loaded.

    Raises:
        KernelError: There is no compiler to build it with.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            library = load_library(build_runtime(defines=defines), mode=ctypes.RTLD_GLOBAL)
            for name, result, arguments in _FUNCTIONS:
                function = library[name]
                function.restype, function.argtypes = result, arguments
                setattr(library, name, function)
            _loaded = library
        return _loaded


class ArgumentCopy:
    """A private copy of launch arguments: the originals may change. ``address`` is as `PackedArguments.address`.

    Args:
        arguments: Address of the argument addresses.
        parameters: Address of the kernel's ``gpuexec::Parameter`` table.
        count: Number of parameters.
    """

    __slots__ = ("_free", "address")

    def __init__(self, arguments: int, parameters: int, count: int) -> None:
        runtime = load_runtime()
        self._free = runtime.gpuexec_free_arguments
        self.address: int = runtime.gpuexec_copy_arguments(arguments, parameters, count)
        if not self.address:
            raise OutOfMemoryError("The host has no memory left for launch arguments.")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._free(self.address)


def run_grid(grid: Grid, schedule: Schedule) -> LaunchStruct:
    """Run a grid to its end on this thread (and spare ones, when it is large), with the GIL released.

    Raises:
        GridError: The kernel broke a rule; the message names the line where one is known.
    """
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    launch = LaunchStruct(
        grid.entry, grid.arguments, grid.parameters, grid.parameter_count, grid.grid, grid.block, grid.shared_bytes,
        grid.shared_limit, _ORDERS[schedule.order], schedule.workers, schedule.seed, grid.is_cooperative,
    )  # fmt: skip
    launch.is_checked = grid.is_checked
    if grid.withheld is not None:
        withheld = (_WithheldStruct * max(len(grid.withheld), 1))(
            *[_WithheldStruct(row.first, row.end, row.is_hidden, row.is_watched) for row in grid.withheld]
        )
        launch.is_dependent = 1
        launch.withheld, launch.withheld_count = ctypes.addressof(withheld), len(grid.withheld)
    launch.message, launch.message_capacity = ctypes.addressof(message), _MESSAGE_BYTES
    if grid.counts is not None:
        launch.counts = ctypes.addressof(grid.counts)
    if not grid.is_checked:
        if load_runtime().gpuexec_launch(ctypes.byref(launch)):
            raise GridError(message.value.decode(errors="replace"), launch.fault_address)
        return launch
    findings = (RawFinding * _MAX_FINDINGS)()
    launch.findings, launch.finding_capacity = ctypes.addressof(findings), _MAX_FINDINGS
    if grid.ranges is not None:
        rows = [_RangeStruct(row.first, row.end, row.argument, row.is_written) for row in grid.ranges]
        ranges = (_RangeStruct * max(len(rows), 1))(*rows)
        launch.ranges, launch.range_count = ctypes.addressof(ranges), len(rows)
    if load_runtime().gpuexec_launch(ctypes.byref(launch)):
        found = [RawFinding.from_buffer_copy(each) for each in findings[: launch.finding_count]]
        raise GridError(message.value.decode(errors="replace"), launch.fault_address, found)
    return launch
