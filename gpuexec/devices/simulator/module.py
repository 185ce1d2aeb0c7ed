"""Loaded kernel modules: functions with the signatures C++ deduced, and checks of each launch.

A loader that finds a symbol missing undoes half a load, which has crashed processes of many threads. So objects are
checked first, and only one that will load is given to the loader.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.kernels.code_files import load_library
from gpuexec.devices.kernels.kernel_source import find_source
from gpuexec.devices.residency import check_residency, count_resident
from gpuexec.devices.simulator.compilation import BuiltObject, KernelTable, ObjectSource, build_files
from gpuexec.devices.simulator.counts import CountBuffer, LaunchCounts, read_counts
from gpuexec.devices.simulator.elf import list_undefined
from gpuexec.devices.simulator.findings import Finding, Place, describe, locate, read_findings
from gpuexec.devices.simulator.library import (
    AllowedRange,
    ArgumentCopy,
    Extent,
    Grid,
    GridError,
    LaunchStruct,
    Schedule,
    WithheldRange,
    load_runtime,
    run_grid,
)
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.errors import AccessError, KernelError
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.ir.target import Target

# A small GPU: each thread of a cooperative grid keeps a stack of its own until the grid has ended.
_WORDS = {"P": "a pointer", "f": "a float", "i": "an integer", "u": "an integer", "b": "a bool", "s": "a struct"}


class _Parameter(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("nbytes", ctypes.c_uint))


class _FunctionRow(ctypes.Structure):
    _fields_ = (("run", ctypes.c_void_p), ("parameters", ctypes.POINTER(_Parameter)), ("count", ctypes.c_int))


class FindingsError(GridError):
    """Check mode found mistakes of a kernel: ``findings``, listed in the message."""

    def __init__(self, message: str, findings: Sequence[Finding], fault_address: int = 0) -> None:
        super().__init__(message, fault_address)
        self.findings = tuple(findings)


class SimulatorFunction:
    """A kernel instance that can be launched.

    ``signature`` has kind and size of each parameter: P pointer, f float (half and bfloat16 too), i signed, u unsigned,
    b bool, s struct. ``max_threads`` is its ``__launch_bounds__`` where these are a constant, else None.
    ``mode`` says what it was compiled for, ``waits`` that it waits for the launches it depends on. In check mode a
    launch that goes wrong raises FindingsError.
    """

    __slots__ = (
        *("_module", "_parameters", "entry", "expression", "max_threads", "mode", "signature", "source", "waits"),
    )

    def __init__(
        self,
        module: KernelModule,
        row: _FunctionRow,
        source: str,
        expression: str,
        max_threads: int | None,
        waits: bool = False,
    ) -> None:
        self._module = module  # unloaded with its last function
        self.mode = module.mode
        self._parameters = ctypes.addressof(row.parameters.contents)
        self.entry = int(row.run)
        self.source = source
        self.expression = expression
        self.max_threads, self.waits = max_threads, waits
        self.signature = tuple(f"{row.parameters[i].kind.decode()}{row.parameters[i].nbytes}" for i in range(row.count))

    def __str__(self) -> str:
        return f"{self.source}:{self.expression}"

    def check_arguments(self, kinds: Sequence[str]) -> None:
        """Check kind and size of each argument against the C++ signature; signedness is free.

        Raises:
            KernelError: Count, kind or size differ; the message names the first argument that does.
        """
        if len(kinds) != len(self.signature):
            raise KernelError(f"{self}: expected {len(self.signature)} arguments, got {len(kinds)}.")
        for index, (expected, got) in enumerate(zip(self.signature, kinds, strict=True)):
            if expected != got and expected.replace("u", "i") != got.replace("u", "i"):
                raise KernelError(f"{self}: argument {index} must be {_spell(expected)}, got {_spell(got)}.")

    def check_launch(self, config: LaunchConfig, target: Target) -> None:
        """Check a launch against the limits of the target and the kernel's launch bounds.

        Raises:
            KernelError: A limit is exceeded, or an extent is not positive.
        """
        grid, block, shared_bytes = config.grid, config.block, config.shared_bytes
        threads = block[0] * block[1] * block[2]
        if min(*grid, *block) < 1:
            raise KernelError(f"{self}: grid {grid} and block {block} must be positive.")
        if threads > target.max_threads_per_block or max(block[0], block[1]) > 1024 or block[2] > 64:
            raise KernelError(
                f"{self}: block {block} exceeds the device limit {target.max_threads_per_block} ({target.name})."
            )
        if self.max_threads is not None and threads > self.max_threads:
            raise KernelError(
                f"{self}: block {block} has {threads} threads, its __launch_bounds__ are {self.max_threads}."
            )
        if any(extent > limit for extent, limit in zip(grid, target.max_grid, strict=True)):
            raise KernelError(f"{self}: grid {grid} exceeds the device limit {target.max_grid} ({target.name}).")
        if shared_bytes > target.shared_bytes_per_block:
            raise KernelError(
                f"{self}: {shared_bytes} bytes of shared memory exceed the device limit"
                f" {target.shared_bytes_per_block} ({target.name})."
            )

    def check_residency(self, config: LaunchConfig, target: Target) -> None:
        """Check that all blocks of a cooperative launch fit on the simulated multiprocessors.

        Raises:
            KernelError: They have not.
        """
        check_residency(str(self), config.grid, count_resident(config, target), target.multiprocessors)

    def copy_arguments(self, arguments: PackedArguments | NodeArguments) -> ArgumentCopy:
        """Return a copy of the arguments, independent of later changes.

        Raises:
            KernelError: They do not fit the signature.
        """
        self.check_arguments(arguments.kinds())
        return ArgumentCopy(arguments.address, self._parameters, len(self.signature))

    def run(
        self,
        config: LaunchConfig,
        arguments: int,
        schedule: Schedule,
        target: Target,
        *,
        ranges: Sequence[AllowedRange] | None = None,
        counts: list[LaunchCounts] | None = None,
        withheld: Sequence[WithheldRange] | None = None,
    ) -> LaunchStruct:
        """Run a launch that passed `check_launch` to its end.

        Args:
            config: Its launch configuration.
            arguments: Address of the argument addresses.
            schedule: The order of turns.
            target: Architecture whose limits apply.
            ranges: In check mode, what the kernel may touch; None: all memory of the device.
            counts: In count mode, the list that the figures are added to.
            withheld: Of a dependent launch, the bytes that it must wait for; None: all before it is complete.

        Raises:
            GridError: The kernel broke a rule.
        """
        buffer = CountBuffer(target) if self.mode == "count" else None
        launch = Grid(
            self.entry, arguments, self._parameters, len(self.signature), config.grid, config.block,
            config.shared_bytes, target.shared_bytes_per_block, config.cooperative, self.mode == "check",
            None if ranges is None else tuple(ranges), None if buffer is None else buffer.struct,
            None if withheld is None else tuple(withheld),
        )  # fmt: skip
        try:
            done = run_grid(launch, schedule)
        except GridError as error:
            if not error.raw_findings:
                raise GridError(f"{self}: {error}", error.fault_address) from None
            findings = read_findings(error.raw_findings, self._module.path, config.grid, config.block)
            raise FindingsError(f"{self}: {describe(findings)}", findings, error.fault_address) from None
        if buffer is not None and counts is not None:
            places = self._module.locate(buffer.places)
            counts.append(read_counts(buffer, places, str(self), config.grid, config.block))
        return done

    def launch_arrays(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
        shared_bytes: int = 0,
        schedule: Schedule | None = None,
        target: Target | None = None,
        is_cooperative: bool = False,
        counts: list[LaunchCounts] | None = None,
        memory: Sequence[Any] | None = None,
    ) -> LaunchStruct:
        """Run the kernel on NumPy arrays in place and wait: for tests of kernels on their own.

        Args:
            grid: Blocks; missing extents are 1.
            block: Threads of a block; missing extents are 1.
            arguments: Arrays (or None for a null pointer) for pointers, NumPy scalars, bytes for structs.
            shared_bytes: Dynamic shared memory.
            schedule: None: forward.
            target: Architecture whose limits apply; None: sm_90.
            is_cooperative: Whether blocks may wait at a barrier of the grid.
            counts: In count mode, the list that the figures are added to.
            memory: In check mode, the arrays that the kernel may touch, one for each argument; None: the arguments.

        Raises:
            KernelError: The launch does not fit the kernel, or the kernel broke a rule.
        """
        packed = _pack(str(self), arguments)
        target = target or Target.named("sm_90")
        config = LaunchConfig(_extent(grid), _extent(block), shared_bytes, is_cooperative)
        self.check_arguments(packed.kinds())
        self.check_launch(config, target)
        if is_cooperative:
            self.check_residency(config, target)
        ranges = _find_ranges(arguments if memory is None else memory) if self.mode == "check" else None
        return self.run(config, packed.address, schedule or Schedule(), target, ranges=ranges, counts=counts)


class KernelModule:
    """A loaded shared object: its functions by their kernels."""

    def __init__(self, built: BuiltObject) -> None:
        load_runtime()
        self.path, self.mode = built.path, built.mode
        self._places: dict[int, tuple[Place, ...]] = {}
        missing = find_missing(built.path)
        if missing:
            raise KernelError(f"{built} can't be loaded for the simulator: nothing defines {', '.join(missing)}.")
        self.functions: dict[Kernel, SimulatorFunction] = {}
        try:
            self._library = load_library(built.path)
            for table in built.tables:
                self.functions |= self._read(table)
        except (OSError, ValueError, AccessError) as error:
            raise KernelError(f"{built} can't be loaded for the simulator: {error}.") from error

    def _read(self, table: KernelTable) -> dict[Kernel, SimulatorFunction]:
        rows = (_FunctionRow * len(table.expressions)).in_dll(self._library, table.symbol)
        file = find_source(table.source).name
        functions = {}
        for expression, row in zip(table.expressions, rows, strict=True):
            name = _base_name(expression)
            bound, waits = table.launch_bounds.get(name), name in table.waiting
            functions[Kernel(table.source, expression)] = SimulatorFunction(self, row, file, expression, bound, waits)
        return functions

    def locate(self, offsets: Iterable[int]) -> Mapping[int, tuple[Place, ...]]:
        """Return the source lines of instructions, as `findings.locate`; each is looked up once."""
        self._places |= locate(self.path, set(offsets) - self._places.keys())
        return self._places


def load_files(
    files: Mapping[Path, Sequence[str]], mode: Mode = "plain"
) -> dict[Path, Mapping[str, SimulatorFunction]]:
    """Compile (or find) and load several kernel files, in parallel, each in a shared object of its own.

    Args:
        files: The name expressions of each.
        mode: What to compile for.

    Raises:
        KernelError: One does not compile, or there is no compiler.
    """
    built = build_files([[ObjectSource(str(path), tuple(files[path]))] for path in files], mode=mode)
    return {
        path: {kernel.expression: function for kernel, function in KernelModule(each).functions.items()}
        for path, each in zip(files, built, strict=True)
    }


def load_generated(kernels: Sequence[Kernel], mode: Mode = "plain") -> Mapping[Kernel, SimulatorFunction]:
    """Compile (or find) and load kernels that have text of their own, all in one shared object.

    Raises:
        KernelError: One does not compile, or there is no compiler.
    """
    return KernelModule(build_files([list_generated(kernels)], mode=mode)[0]).functions


def list_generated(kernels: Iterable[Kernel]) -> dict[ObjectSource, list[Kernel]]:
    """Return what the shared object of kernels is built of: each file with their texts, and the kernels in it."""
    files: dict[str, list[Kernel]] = {}
    for kernel in sorted(kernels, key=str):
        files.setdefault(kernel.source, []).append(kernel)
    sources = {}
    for source, members in files.items():
        texts = dict.fromkeys(kernel.text for kernel in members)
        sources[ObjectSource(source, tuple(each.expression for each in members), "".join(texts))] = members
    return sources


def load_file(path: Path | str, expressions: Sequence[str], mode: Mode = "plain") -> Mapping[str, SimulatorFunction]:
    """Compile (or find) and load one kernel file.

    Args:
        path: A path, or the name of a file among the package's kernels (``"softmax.cu"``).
        expressions: C++ name expressions, or names of ``extern "C"`` kernels.
        mode: What to compile for.

    Raises:
        KernelError: It does not compile, or there is no compiler.
    """
    full = find_source(str(path))
    return load_files({full: expressions}, mode)[full]


def find_missing(path: Path) -> list[str]:
    """Return the symbols that a shared object needs and this process lacks, in the order of its table.

    Symbols of the object's libraries are loaded with the runtime library, which is linked with the same ones.
    """
    process = ctypes.CDLL(None)
    return [name for name in list_undefined(path.read_bytes()) if not hasattr(process, name)]


def _pack(name: str, arguments: Sequence[Any]) -> PackedArguments:
    pointers = {}
    values: list[np.generic | bytes | None] = []
    for index, argument in enumerate(arguments):
        if argument is None or isinstance(argument, np.ndarray):
            pointers[index] = 0 if argument is None else argument.ctypes.data
            values.append(None)
        elif isinstance(argument, bytes | np.generic):
            values.append(argument.tobytes() if isinstance(argument, np.void) else argument)
        else:
            raise KernelError(
                f"{name}: argument {index} must be an array, a NumPy scalar, bytes or None,"
                f" got {type(argument).__name__}; its width would be a guess."
            )
    packed = PackedArguments(values)
    for index, address in pointers.items():
        packed.set_pointer(index, address)
    return packed


def _find_ranges(arguments: Sequence[Any]) -> list[AllowedRange]:
    return [
        AllowedRange(each.ctypes.data, each.ctypes.data + each.nbytes, index, each.flags.writeable)
        for index, each in enumerate(arguments)
        if isinstance(each, np.ndarray)
    ]


def _extent(value: int | Sequence[int]) -> Extent:
    extents = (value,) if isinstance(value, int) else tuple(value)
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _base_name(expression: str) -> str:
    return expression.partition("<")[0].strip()


def _spell(kind: str) -> str:
    return f"{_WORDS[kind[0]]} of {kind[1:]} bytes" if kind[0] != "P" else "a pointer"
