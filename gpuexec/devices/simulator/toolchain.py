"""The host's C++ compiler and its command lines."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuexec.errors import KernelError
from gpuexec.system import knobs

# No contraction and no assumptions that the device does not make: results are to be the device's bits.
_COMMON = (
    *("-std=c++17", "-fPIC", "-shared", "-pthread", "-w", "-fvisibility=hidden", "-U_FORTIFY_SOURCE"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fwrapv"),
)
# Guards of static variables would cost an atomic read at each use of a __shared__ variable.
# No kernel throws, and a launch that is given up leaves its threads where they stand: nothing needs to be unwound.
KERNEL_FLAGS = ("-O1", "-fno-threadsafe-statics", "-fno-exceptions", "-fno-asynchronous-unwind-tables")
RUNTIME_FLAGS = ("-O2",)
# Loops over a thread's own elements become vectors, each lane with the same operations in the same order, in files
# whose threads make tiles: their kernels run twice as fast for a third more of the compiler's time. In the other modes
# every access is a call of its own.
PLAIN_FLAGS = ("-ftree-vectorize", "-fpeel-loops", "-funroll-loops")
# Line numbers, in the form of DWARF that addr2line of binutils 2.40 reads right, without the places of variables, which
# nobody asks for.
_LINE_FLAGS = ("-g1", "-gdwarf-4", "-fno-var-tracking")
# Check mode: a call before each access, and checks of alignment and of constant extents. The calls take the time of a
# run, so less is optimized: -Og takes two thirds of the compiler's time, and runs take a twentieth longer. Functions
# are inlined all the same, so that an access is known by the kernel's line, too. Unless told to be strict, g++ takes an
# array at the end of a struct for one that may go on.
CHECK_FLAGS = (
    *_LINE_FLAGS,
    *("-Og", "-finline-small-functions", "-finline-functions-called-once"),
    "-fsanitize=thread,alignment,bounds",
    "-fsanitize-recover=alignment,bounds",
    *("-fsanitize=bounds-strict", "-fsanitize-recover=bounds-strict"),
    "-DGPUEXEC_CHECK=1",
)
# Count mode: the same calls, and copies of vectors stay one access (of g++; clang++ takes them apart all the same).
# Functions of libm that are counted are called, not made an instruction of the host's.
COUNT_FLAGS = (
    *(*_LINE_FLAGS, "-fsanitize=thread", "-fno-tree-sra", "-DGPUEXEC_CHECK=1", "-DGPUEXEC_COUNT=1"),
    *("-fno-builtin-fmaf", "-fno-builtin-fma", "-fno-builtin-sqrtf", "-fno-optimize-sibling-calls"),
)
Mode = Literal["plain", "check", "count"]
_MODE_FLAGS: dict[Mode, tuple[str, ...]] = {"plain": PLAIN_FLAGS, "check": CHECK_FLAGS, "count": COUNT_FLAGS}
_GNU_FLAGS = (
    *("-fno-tree-sra", "-fno-var-tracking", "-fpeel-loops"),
    *("-fsanitize=bounds-strict", "-fsanitize-recover=bounds-strict"),
)
# Instructions in place of library calls: conversions of half, and fmaf. Both ways give the same bits.
_EXTENSIONS = {"f16c": "-mf16c", "fma": "-mfma"}
_WITHOUT = {"-mfma": "-mno-fma"}  # in count mode
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++17 compiler: its path, version line, and the flags for this machine's CPU."""

    path: str
    version: str
    machine_flags: tuple[str, ...]

    def flags(self, kind: Sequence[str]) -> tuple[str, ...]:
        """Return all flags of a compile of the given kind."""
        return (*_COMMON, *self.machine_flags, *kind)

    def mode_flags(self, mode: Mode, *, has_tiles: bool = True) -> tuple[str, ...]:
        """Return the flags that a kernel file compiled for a mode of the simulator has besides.

        Args:
            mode: The mode.
            has_tiles: Whether threads of the file make several results each, in loops.
        """
        if mode == "plain" and not has_tiles:
            return ()
        unknown = _GNU_FLAGS if "clang" in self.version else ()
        without = [_WITHOUT[flag] for flag in self.machine_flags if flag in _WITHOUT] if mode == "count" else []
        return (*(flag for flag in _MODE_FLAGS[mode] if flag not in unknown), *without)

    def build(
        self,
        name: str,
        sources: Sequence[Path],
        output: Path,
        flags: Sequence[str],
        objects: Sequence[Path] = (),
        language: Literal["c++", "c++-header"] = "c++",
    ) -> None:
        """Compile and link a shared object, or, with ``-c`` among the flags, compile one source alone.

        A header becomes a precompiled one.

        Raises:
            KernelError: It does not compile; the compiler's first lines are in the message.
        """
        command = [self.path, *flags, "-x", language, *map(str, sources), "-x", "none", *map(str, objects)]
        command += ["-o", str(output)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise KernelError(f"The C++ compiler {self.path} can't be run: {error.strerror}.") from error
        if done.returncode:
            raise KernelError(
                f"{name} does not compile for the simulator ({self.version}):\n{_first_errors(done.stderr)}"
            )


def find_compiler() -> Compiler:
    """Return the compiler GPUEXEC_CXX names, else g++, else clang++.

    Raises:
        KernelError: There is none; the message says what to install.
    """
    chosen = knobs.cxx()
    for name in (chosen,) if chosen else ("g++", "clang++"):
        path = shutil.which(name)
        if path:
            return _describe(path)
    missing = f"GPUEXEC_CXX names {chosen!r}, which is not there" if chosen else "neither g++ nor clang++ is there"
    raise KernelError(f"The simulator needs a C++17 compiler and {missing}: apt-get install g++")


@functools.cache
def _describe(path: str) -> Compiler:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise KernelError(f"The C++ compiler {path} can't be run: {error}.") from error
    return Compiler(path, answer.partition("\n")[0].strip(), _machine_flags())


def _machine_flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    has = set(line.partition(":")[2].split())
    return tuple(flag for name, flag in _EXTENSIONS.items() if {name, "avx"} <= has)


def _first_errors(messages: str) -> str:
    lines = messages.splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + _SHOWN_LINES])
