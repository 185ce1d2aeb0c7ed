"""Kernel sources -> shared objects: one per file, cached by content, built in parallel."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpuexec import knobs
from gpuexec.runtime.kernel_source import flatten, kernels_dir
from gpuexec.runtime.simulator.cache import ObjectCache, make_key
from gpuexec.runtime.simulator.rewrite import find_launch_bounds, rewrite_shared, strip_comments, write_rows
from gpuexec.runtime.simulator.toolchain import KERNEL_FLAGS, RUNTIME_FLAGS, find_compiler

_RUNTIME_SOURCES = ("fibers.cpp", "block.cpp", "synchronize.cpp", "launch.cpp", "memory.cpp")


@dataclass(frozen=True, slots=True)
class BuiltObject:
    """A compiled kernel file: the shared object, and its kernels in the order of its table."""

    source: str
    path: Path
    expressions: tuple[str, ...]
    launch_bounds: Mapping[str, int]


def default_cache() -> ObjectCache:
    """Return the cache in the folder that `knobs.kernel_cache_dir` names."""
    return _cache_at(knobs.kernel_cache_dir() / "simulator")


def build_runtime(cache: ObjectCache | None = None, defines: Sequence[str] = ()) -> Path:
    """Return the simulator's runtime library.

    Args:
        cache: None: the user's.
        defines: Macros; ``GPUEXEC_UCONTEXT`` builds the fibers of other CPUs on x86-64 too.

    Raises:
        KernelError: There is no compiler.
    """
    compiler = find_compiler()
    flags = (*compiler.flags(RUNTIME_FLAGS), *(f"-D{define}" for define in defines))
    sources = [kernels_dir() / "simulator" / name for name in _RUNTIME_SOURCES]
    key = make_key("runtime", _hash_simulator(), flags, compiler.version)
    return (cache or default_cache()).get(
        key, lambda output: compiler.build("The simulator's runtime", sources, output, flags)
    )


def build_file(path: Path, expressions: Sequence[str], cache: ObjectCache | None = None) -> BuiltObject:
    """Return the shared object of a kernel file with the instances named.

    Args:
        path: The ``.cu`` file.
        expressions: C++ name expressions (``"unary<Exp, float>"``) or names of ``extern "C"`` kernels.
        cache: None: the user's.

    Raises:
        KernelError: There is no compiler, or the source does not compile; the message has the compiler's first lines.
    """
    compiler = find_compiler()
    folder = kernels_dir() / "simulator"
    flags = (*compiler.flags(KERNEL_FLAGS), f"-I{folder / 'include'}", "-include", str(folder / "cuda.h"))
    names = tuple(dict.fromkeys(expressions))
    stripped = strip_comments(flatten(path))
    text = rewrite_shared(stripped, path.name) + write_rows(names)

    def build(output: Path) -> None:
        source = output.with_suffix(".cpp")
        source.write_text(text)
        compiler.build(path.name, [source], output, flags)

    key = make_key(text, _hash_simulator(), compiler.flags(KERNEL_FLAGS), compiler.version)
    return BuiltObject(path.name, (cache or default_cache()).get(key, build), names, find_launch_bounds(stripped))


def build_files(files: Mapping[Path, Sequence[str]], cache: ObjectCache | None = None) -> dict[Path, BuiltObject]:
    """Return the shared objects of several files, as many compilers at once as ``GPUEXEC_BUILD_JOBS``."""
    if not files:
        return {}
    with ThreadPoolExecutor(min(len(files), knobs.build_jobs()), "gpuexec-build") as pool:
        built = pool.map(lambda item: build_file(item[0], item[1], cache), files.items())
        return dict(zip(files, built, strict=True))


@functools.cache
def _cache_at(folder: Path) -> ObjectCache:
    return ObjectCache(folder)


@functools.cache
def _hash_simulator() -> str:
    """The content of all of the simulator's C++: kernels and runtime must be of one version."""
    digest = hashlib.sha256()
    for path in sorted((kernels_dir() / "simulator").rglob("*")):
        if path.suffix in (".h", ".cpp"):
            digest.update(f"{path.name}\n{path.read_text()}".encode())
    return digest.hexdigest()
