"""Kernel library of a device: kernels compiled in parallel into the cache, loaded through CuPy, found by name."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.code_files import cache_folder
from gpuexec.devices.kernels.compile_once import OnceEach
from gpuexec.devices.kernels.kernel_cache import CachedCubin, KernelCache, make_key
from gpuexec.devices.kernels.kernel_source import (
    WAITING_ARCHITECTURE,
    find_source,
    flatten,
    read_text,
    waits_for_predecessors,
)
from gpuexec.devices.kernels.nvrtc import CompiledKernel, Cubin
from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.ir.command import Kernel
from gpuexec.system import knobs
from gpuexec.system.mapped import read_view
from gpuexec.system.progress import Progress, ProgressCallback
from gpuexec.system.threads import in_threads

_UNROLLED = re.compile(r"#pragma unroll\n( *)")  # and the indentation of the loop


def default_cache() -> KernelCache:
    """Return the user's cache, see `code_files.cache_folder`."""
    return KernelCache(cache_folder("cubins"))


class KernelLibrary:
    """Kernels for one architecture. Compiling needs no device; loading acts on CuPy's current device.

    ``compile_count`` and ``compile_seconds`` say how many kernels neither memory nor disk had, and how long callers of
    ``compile`` waited. Thread-safe.

    Args:
        architecture: ``"sm_90"``.
        cache: None: the user's cache.
    """

    def __init__(self, architecture: str, cache: KernelCache | None = None) -> None:
        self.architecture = architecture
        self.compile_count = 0
        self.compile_seconds = 0.0
        self._cache = default_cache() if cache is None else cache
        self._cubins: OnceEach[Kernel, CachedCubin] = OnceEach()
        self._functions: dict[Kernel, Any] = {}
        self._made_for: dict[Kernel, str] = {}  # the architecture of stored code
        self._guard = threading.Lock()

    def compile(
        self,
        kernels: Sequence[Kernel],
        code: StoredCode | None = None,
        *,
        apart: bool = False,
        report: ProgressCallback | None = None,
    ) -> dict[Kernel, CachedCubin]:
        """Return the cubin of each kernel; missing ones are compiled by ``GPUEXEC_BUILD_JOBS`` threads.

        Those with text of their own are compiled together, a group for each thread, since the file in front of their
        text takes time with each program. A kernel that another thread is compiling is waited for.

        Args:
            kernels: Which.
            code: Compiled beforehand; looked at before the cache, so that neither a compiler nor a cache is needed for
                what is there.
            apart: Whether each kernel gets a cubin of its own.
            report: Called in this thread whenever some are done.

        Raises:
            DeviceNotFoundError: NVRTC is not installed.
            KernelError: A kernel does not compile, or its source is missing.
        """

        def make(missing: Sequence[Kernel]) -> Iterator[tuple[Kernel, CachedCubin]]:
            stored = {kernel: found for kernel in missing if (found := self._find_stored(kernel, code)) is not None}
            yield from stored.items()
            jobs, done = knobs.build_jobs(), len(stored)
            groups = _group([kernel for kernel in missing if kernel not in stored], 0 if apart else jobs)
            _tell(report, missing[0], done, len(missing))
            for number, entry in in_threads(groups, self._compile_group, jobs, "gpuexec-nvrtc"):
                with self._guard:
                    self.compile_count += len(groups[number]) if entry.was_compiled else 0
                yield from [(kernel, entry) for kernel in groups[number]]
                done += len(groups[number])
                _tell(report, groups[number][0], done, len(missing))

        if all(kernel in self._cubins for kernel in kernels):
            return self._cubins.get(kernels, make)
        started = time.perf_counter()
        compiled = self._cubins.get(kernels, make)
        with self._guard:
            self.compile_seconds += time.perf_counter() - started
        return compiled

    def list_uncompiled(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> list[Kernel]:
        """Return the kernels that `compile` would give to the compiler, or wait for; nothing is compiled.

        Raises:
            DeviceNotFoundError: NVRTC is not installed, and some are in no stored code.
        """
        unknown = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._cubins]
        unknown = [kernel for kernel in unknown if self._find_stored(kernel, code) is None]
        groups = _group(unknown, knobs.build_jobs())
        return [kernel for group in groups if self._cache.find(self._describe(group)[0]) is None for kernel in group]

    def load(self, kernels: Sequence[Kernel], code: StoredCode | None = None) -> None:
        """Load the functions of kernels on the current device, so that no launch compiles or loads.

        Args:
            kernels: Which.
            code: As for `compile`.

        Raises:
            KernelError: A kernel does not compile.
        """
        import cupy

        for kernel, entry in self.compile(kernels, code).items():
            if kernel not in self._functions:
                module = cupy.RawModule(path=str(self._cache.file_of(entry)))
                function = module.get_function(entry.cubin.find(kernel.expression).lowered_name)
                function.compile()
                self._functions[kernel] = function

    def function(self, kernel: Kernel) -> Any:
        """Return the `cupy.RawKernel` of a kernel; loads it if ``load`` has not."""
        if kernel not in self._functions:
            self.load([kernel])
        return self._functions[kernel]

    def waits(self, kernel: Kernel) -> bool:
        """Return whether the code of a kernel waits for the launches it depends on; code for older GPUs doesn't."""
        made_for = self._made_for.get(kernel, self.architecture)
        return waits_for_predecessors(kernel) and int(made_for.partition("_")[2].rstrip("af")) >= WAITING_ARCHITECTURE

    def close(self) -> None:
        """Forget all kernels; modules are unloaded once nothing holds their functions."""
        with self._guard:
            self._functions.clear()
            self._cubins.clear()
        self._cache.close()

    def _find_stored(self, kernel: Kernel, code: StoredCode | None) -> CachedCubin | None:
        if code is None or not code.kernels:
            return None
        found = code.find(
            kernel, read_text(find_source(kernel.source), [kernel.text]), self.architecture, nvrtc.OPTIONS
        )
        if found is None:
            return None
        self._made_for[kernel] = found.architecture
        compiled = CompiledKernel(
            kernel.expression, found.lowered_name, found.registers, 0, found.shared_bytes, found.max_threads
        )
        cubin = Cubin(kernel.source, bytes(read_view(found.image)), (compiled,), "")
        return CachedCubin(found.key, cubin, None, was_compiled=False)

    def _compile_group(self, kernels: Sequence[Kernel]) -> CachedCubin:
        """Compile kernels of one file in one program."""
        source, expressions = kernels[0].source, tuple([kernel.expression for kernel in kernels])
        key, text = self._describe(kernels)
        return self._cache.get(
            key, lambda: nvrtc.compile_cubin(text, expressions, self.architecture, nvrtc.OPTIONS, source=source)
        )

    def _describe(self, kernels: Sequence[Kernel]) -> tuple[str, str]:
        """Return the cache key of a program of kernels of one file, and its text."""
        text = read_text(find_source(kernels[0].source), [kernel.text for kernel in kernels])
        expressions = tuple([kernel.expression for kernel in kernels])
        return make_key(text, expressions, self.architecture, nvrtc.OPTIONS, nvrtc.compiler_version()), text


def _tell(report: ProgressCallback | None, kernel: Kernel, done: int, total: int) -> None:
    if report is not None:
        report(Progress("compile", str(kernel), done_count=done, total_count=total))


def _group(kernels: Sequence[Kernel], count: int) -> list[tuple[Kernel, ...]]:
    """Return the programs that kernels are compiled in, those that are likely to take longest first.

    Each is one of its own, but those with text of their own are in up to ``count`` for each file.
    """
    groups: list[tuple[Kernel, ...]] = [(kernel,) for kernel in kernels if not kernel.text or not count]
    generated = sorted((each for each in kernels if each.text and count), key=str)
    for source in dict.fromkeys(kernel.source for kernel in generated):
        own = [kernel for kernel in generated if kernel.source == source]
        groups += [tuple(own[first::count]) for first in range(min(count, len(own)))]
    return sorted(groups, key=lambda group: -len(group) * _weigh_loops(group[0].source))


@functools.cache
def _weigh_loops(source: str) -> int:
    """Return about how long a kernel of a file compiles: by the loops written out there, and how deep they stand.

    A unit is about a millisecond, as measured for sm_90: mma_gemm.cu 458, attention_mma.cu 718, flat.cu 80.
    """
    return sum(2 ** (len(loop[1]) // 2) for loop in _UNROLLED.finditer(flatten(find_source(source))))
