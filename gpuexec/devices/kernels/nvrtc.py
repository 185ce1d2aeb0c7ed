"""NVRTC compilation of CUDA C++ to cubins, through ``cuda.bindings``, without a driver, a GPU or CuPy.

Contraction, denormals and rounding are fixed here, because a result must not depend on how a kernel was compiled:
``--fmad=false`` (an fma is written where it is wanted), no ``-ftz``, and NVRTC's exact division and square root, which
are its defaults.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gpuexec.devices.kernels.cubin_file import Usage, read_usage
from gpuexec.errors import DeviceNotFoundError, KernelError

OPTIONS: tuple[str, ...] = ("--std=c++17", "--fmad=false", "-default-device")
INSTALL = "pip install 'gpuexec[kernels]'"

# ptxas writes one group of lines per entry function; the cubin has the rest of what they say.
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# PTX has the launch bounds of an entry, after its parameters; the log has not.
_BOUNDS = re.compile(r"\.entry\s+([\w$]+)\s*\([^)]*\)\s*\.maxntid\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
# Machine code with the instructions that an architecture alone has: wgmma. It runs where that without them does.
_OWN = {"sm_90": "sm_90a"}
# The first NVRTC with an architecture, where it is newer than the oldest that this package works with (12.0).
_SINCE = {100: "12.8", 101: "12.8", 120: "12.8", 103: "12.9", 121: "12.9", 110: "13.0"}


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel of a cubin: its C++ name expression, symbol, and resource usage.

    ``spill_bytes`` are those that the compiler's log tells, or the stack frame, which holds them, where it tells none;
    ``shared_bytes`` is static shared memory; ``max_threads`` are the threads of its ``__launch_bounds__``, 0 without.
    """

    expression: str
    lowered_name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    max_threads: int


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code for one architecture, or PTX, and the requested kernels of ``source`` in order."""

    source: str
    image: bytes
    kernels: tuple[CompiledKernel, ...]
    log: str

    def find(self, expression: str) -> CompiledKernel:
        """Return the kernel of a name expression, which is one of those asked for."""
        return next(kernel for kernel in self.kernels if kernel.expression == expression)


def compile_cubin(
    text: str,
    expressions: Sequence[str],
    architecture: str,
    options: Sequence[str] = OPTIONS,
    *,
    source: str = "kernel.cu",
) -> Cubin:
    """Compile kernels of one flattened source.

    Args:
        text: CUDA C++ without local includes.
        expressions: Name expressions to instantiate, like ``"unary<Exp, float>"``, or plain kernel names.
        architecture: ``"sm_90"`` or ``"sm_90a"``; ``"compute_90"`` gives PTX in place of machine code, which the
            driver of any later device translates.
        options: NVRTC options beside architecture and include folder.
        source: File name, for messages and for the debug information of the cubin.

    Raises:
        DeviceNotFoundError: NVRTC is not installed; the message has the command.
        KernelError: The source does not compile; the message holds the compiler's log. Or this NVRTC does not know the
            architecture; the message says which one does.
    """
    nvrtc = load_nvrtc()
    is_ptx = architecture.startswith("compute_")
    check_architecture(architecture)
    program = _call(nvrtc, nvrtc.nvrtcCreateProgram, text.encode(), source.encode(), 0, [], [])
    try:
        for expression in expressions:
            _call(nvrtc, nvrtc.nvrtcAddNameExpression, program, expression.encode())
        verbose = [] if is_ptx else ["--ptxas-options=-v"]
        arguments = [*options, f"-arch={_OWN.get(architecture, architecture)}", *verbose, *_include_options()]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [a.encode() for a in arguments])
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            names = ", ".join(expressions[:3]) + (", ..." if len(expressions) > 3 else "")
            raise KernelError(
                f"{source}:{names} does not compile for {architecture} ({result.name}):\n{log}{_header_hint()}"
            )
        text_image = _read(nvrtc, program, "PTX")
        image = text_image if is_ptx else _read(nvrtc, program, "CUBIN")
        ptx = text_image.decode(errors="replace")
        lowered = [_call(nvrtc, nvrtc.nvrtcGetLoweredName, program, e.encode()).decode() for e in expressions]
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    # Registers of PTX are not known yet.
    usage = dict.fromkeys(lowered, Usage(0, 0, 0)) if is_ptx else read_usage(image)
    spills, bounds = parse_spills(log), parse_bounds(ptx)
    kernels = tuple(
        CompiledKernel(
            expression,
            name,
            usage[name].registers,
            spills.get(name, usage[name].frame_bytes),
            usage[name].shared_bytes,
            bounds.get(name, 0),
        )
        for expression, name in zip(expressions, lowered, strict=True)
    )
    return Cubin(source, image, kernels, log)


def parse_spills(log: str) -> dict[str, int]:
    """Return the bytes of spill stores plus loads by symbol, from the lines of ``--ptxas-options=-v``.

    Either says that registers did not suffice. A log may lack entries (`gpuexec.devices.kernels.cubin_file`).
    """
    spills: dict[str, int] = {}
    name = ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
        elif name and (spill := _SPILLS.search(line)):
            spills[name] = int(spill[1]) + int(spill[2])
            name = ""
    return spills


def parse_bounds(ptx: str) -> dict[str, int]:
    """Return the most threads of a block by symbol, for the entries of a PTX text that have launch bounds."""
    return {match[1]: math.prod(int(extent or 1) for extent in match.groups()[1:]) for match in _BOUNDS.finditer(ptx)}


@functools.cache
def check_architecture(name: str) -> None:
    """Check that the installed NVRTC supports an architecture like ``"sm_90a"``.

    Raises:
        DeviceNotFoundError: NVRTC is not installed.
        KernelError: It does not know the architecture.
    """
    nvrtc = load_nvrtc()
    result, known = nvrtc.nvrtcGetSupportedArchs()
    _check(nvrtc, result)
    number = re.sub(r"\D", "", name)
    if number in map(str, known):
        return
    since = _SINCE.get(int(number or 0))
    cure = f" It takes NVRTC {since} or newer. Run: pip install -U 'gpuexec[kernels]'" if since else ""
    rest = ", ".join(f"sm_{each}" for each in known)
    raise KernelError(f"{compiler_version()} can't compile for {name}; it knows {rest}.{cure}")


@functools.cache
def load_nvrtc() -> ModuleType:
    """Return ``cuda.bindings.nvrtc`` with its library loaded.

    Raises:
        DeviceNotFoundError: The bindings or the library are missing.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceNotFoundError(
            f"Compiling kernels needs the package cuda-bindings, which is not here. Run: {INSTALL}"
        ) from error
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # DynamicLibNotFoundError of cuda.pathfinder, which lists search paths alone
        raise DeviceNotFoundError(
            f"Compiling kernels needs the NVRTC library, which was not found. Run: {INSTALL}"
        ) from error
    module: ModuleType = nvrtc
    return module


@functools.cache
def compiler_version() -> str:
    """Return NVRTC's version, like ``"nvrtc-13.5"``."""
    nvrtc = load_nvrtc()
    result, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, result)
    return f"nvrtc-{major}.{minor}"


@functools.cache
def _include_options() -> tuple[str, ...]:
    """Return the option for the folder of cuda_fp16.h; none where the runtime headers are missing."""
    from cuda import pathfinder

    folder = pathfinder.find_nvidia_header_directory("cudart")
    return (f"-I{folder}",) if folder else ()


def _header_hint() -> str:
    return "" if _include_options() else f"\nThe CUDA runtime headers (cuda_fp16.h) were not found. Run: {INSTALL}"


def _read(nvrtc: ModuleType, program: Any, what: str) -> bytes:
    buffer = bytes(_call(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size"), program))
    _call(nvrtc, getattr(nvrtc, f"nvrtcGet{what}"), program, buffer)  # writes into the bytes object it is given
    return buffer


def _call(nvrtc: ModuleType, function: Any, *arguments: Any) -> Any:
    result, *values = function(*arguments)
    _check(nvrtc, result)
    return values[0] if values else None


def _check(nvrtc: ModuleType, result: Any) -> None:
    if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise KernelError(f"NVRTC refused a call with {result.name}.")
