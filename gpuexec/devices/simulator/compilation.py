"""Compilation of kernel files to shared objects, one per file, cached by content and built in parallel."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.devices.kernels.code_files import cache_folder
from gpuexec.devices.kernels.kernel_source import find_waiting_kernels, flatten, kernels_dir, strip_comments
from gpuexec.devices.simulator.object_cache import ObjectCache, make_key
from gpuexec.devices.simulator.rewrite import find_launch_bounds, rewrite_shared, write_rows
from gpuexec.devices.simulator.toolchain import KERNEL_FLAGS, RUNTIME_FLAGS, Mode, find_compiler
from gpuexec.system import knobs
from gpuexec.system.atomic_file import write_file
from gpuexec.system.threads import in_threads

_RUNTIME_SOURCES = (
    *("fibers.cpp", "block.cpp", "synchronize.cpp", "launch.cpp", "memory.cpp"),
    *("check.cpp", "order.cpp", "findings.cpp", "explain.cpp", "count.cpp"),
)

_HOOKS: Mapping[Mode, tuple[str, ...]] = {
    "plain": (),
    "check": ("hooks.cpp",),
    "count": ("hooks.cpp", "operations.cpp", "operations.h"),
}
# Families whose threads make an element, a row or a texel each: vectors gain them little and cost the compiler as much.
WITHOUT_TILES = frozenset({"elementwise", "reduce", "tensor", "random", "vision", "ml", "pixel"})
_WRAPPED = re.compile(r"\b(?:ONE|TWO|FUSED)\((?:float, |double, )?([a-z]\w*), \w+\)")


@dataclass(frozen=True, slots=True)
class BuiltObject:
    """A compiled kernel file: the shared object, its kernels in the order of its table, and its mode.

    ``waiting`` are the kernels that wait for the launches they depend on.
    """

    source: str
    path: Path
    expressions: tuple[str, ...]
    launch_bounds: Mapping[str, int]
    mode: Mode = "plain"
    waiting: frozenset[str] = frozenset()


def default_cache() -> ObjectCache:
    """Return the user's cache, see `code_files.cache_folder`."""
    return _cache_at(cache_folder("simulator"))


def build_runtime(cache: ObjectCache | None = None, defines: Sequence[str] = ()) -> Path:
    """Build the simulator's runtime library.

    Args:
        cache: None: the user's.
        defines: Macros; ``GPUEXEC_UCONTEXT`` builds the fibers of other CPUs on x86-64 too.

    Raises:
        KernelError: There is no compiler.
    """
    compiler = find_compiler()
    flags = (*compiler.flags(RUNTIME_FLAGS), *(f"-D{define}" for define in defines))
    folder = kernels_dir() / "simulator"
    key = make_key("runtime", _hash(sorted(folder.glob("*.*"))), flags, compiler.version)

    def build(output: Path) -> None:
        # As one source: headers of the standard library take half of the compiler's time where each is read ten times.
        source = output.with_suffix(".cpp")
        write_file(source, "".join(f'#include "{folder / name}"\n' for name in _RUNTIME_SOURCES), sync=False)
        compiler.build("The simulator's runtime", [source], output, flags)

    return (cache or default_cache()).get(key, build)


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """What a shared object is built of: a kernel file, the instances of its kernels, and text behind the file.

    ``expressions`` are C++ name expressions (``"unary<Exp, float>"``) or names of ``extern "C"`` kernels.
    """

    path: Path
    expressions: tuple[str, ...]
    generated: str = ""


def build_file(
    path: Path,
    expressions: Sequence[str],
    cache: ObjectCache | None = None,
    mode: Mode = "plain",
    *,
    generated: str = "",
) -> BuiltObject:
    """Build the shared object of a kernel file with the instances named.

    Args:
        path: The ``.cu`` file.
        expressions: As `ObjectSource` has them.
        cache: None: the user's.
        mode: For check and count mode the same code reports every access to the runtime library.
        generated: Text that is compiled behind the file.

    Raises:
        KernelError: There is no compiler, or the source does not compile; the message has the compiler's first lines.
    """
    cache = cache or default_cache()
    unit = _CompileUnit(ObjectSource(path, tuple(expressions), generated), mode)
    found = cache.get(unit.key, lambda output: unit.build(output, cache))
    return BuiltObject(path.name, found, unit.names, unit.launch_bounds, mode, find_waiting_kernels(path))


def is_built(source: ObjectSource, mode: Mode = "plain", cache: ObjectCache | None = None) -> bool:
    """Return whether the cache has the shared object of a kernel file.

    Raises:
        KernelError: There is no compiler, by which it is known.
    """
    return (cache or default_cache()).has(_CompileUnit(source, mode).key)


def build_files(
    files: Mapping[Path, Sequence[str]], cache: ObjectCache | None = None, mode: Mode = "plain"
) -> dict[Path, BuiltObject]:
    """Build the shared objects of several files, with ``GPUEXEC_BUILD_JOBS`` compilers at once."""
    sources = [ObjectSource(path, tuple(expressions)) for path, expressions in files.items()]
    return {sources[number].path: built for number, built in build_each(sources, cache, mode)}


def build_each(
    sources: Sequence[ObjectSource], cache: ObjectCache | None = None, mode: Mode = "plain"
) -> Iterator[tuple[int, BuiltObject]]:
    """Yield the number of each source and its shared object as they are done, with several compilers at once.

    Raises:
        KernelError: As `build_file`.
    """

    def build(source: ObjectSource) -> BuiltObject:
        return build_file(source.path, source.expressions, cache, mode, generated=source.generated)

    return in_threads(sources, build, knobs.build_jobs(), "gpuexec-build")


class _CompileUnit:
    """The text of a shared object, its cache key, and how the compiler is called for it."""

    def __init__(self, source: ObjectSource, mode: Mode) -> None:
        self._path, self._mode, self._compiler = source.path, mode, find_compiler()
        mode_flags = self._compiler.mode_flags(mode, has_tiles=not _is_without_tiles(source.path))
        self._flags = self._compiler.flags((*KERNEL_FLAGS, *mode_flags))
        self.names = tuple(dict.fromkeys(source.expressions))
        stripped = strip_comments(flatten(source.path) + source.generated)
        self._text = rewrite_shared(stripped, source.path.name) + write_rows(self.names)
        self.launch_bounds = find_launch_bounds(stripped)
        self.key = make_key(self._text, _hash_headers(mode), self._flags, self._compiler.version)

    def build(self, output: Path, cache: ObjectCache) -> None:
        """Compile and link the object; what all objects share is built too where it is missing."""
        compiler, flags, name = self._compiler, self._flags, self._path.name
        include = f"-I{kernels_dir() / 'simulator' / 'include'}"
        source = output.with_suffix(".cpp")
        write_file(source, self._text, sync=False)
        header = (include, "-include", str(_precompile_header(self._mode, (*flags, include), cache)))
        if self._mode == "plain":
            compiler.build(name, [source], output, (*flags, *header))
            return
        # The sanitizers are flags of the compile alone: linked with them, the object would ask for their libraries.
        compiled = output.with_suffix(".o")
        compiler.build(name, [source], compiled, (*flags, *header, "-c"))
        wrapped = [f"-Wl,--wrap={each}" for each in list_wrapped()] if self._mode == "count" else []
        linked = [compiled, *_build_hooks(self._mode, cache)]
        compiler.build(name, [], output, (*compiler.flags(KERNEL_FLAGS), *wrapped), linked)


def _is_without_tiles(path: Path) -> bool:
    return path.parent.parent == kernels_dir() and path.parent.name in WITHOUT_TILES


def _precompile_header(mode: Mode, flags: Sequence[str], cache: ObjectCache) -> Path:
    """Return a header that includes ``cuda.h`` and has its precompiled form beside it, where compilers look for that.

    A kernel file compiles a tenth of a second sooner with it. A compiler that can't take the precompiled form reads the
    header.
    """
    compiler, text = find_compiler(), f'#include "{kernels_dir() / "simulator" / "cuda.h"}"\n'
    key = make_key("header", text, _hash_headers(mode), flags, compiler.version)

    def build(output: Path) -> None:
        header = cache.folder / f"{key}.h"
        write_file(header, text, sync=False)
        compiler.build("cuda.h", [header], output, flags, language="c++-header")

    return cache.get(key, build, suffix=".h.gch").with_suffix("")


def _build_hooks(mode: Mode, cache: ObjectCache) -> list[Path]:
    """Build what every kernel file of a mode is linked with, as objects that the linker takes by their content."""
    compiler, folder = find_compiler(), kernels_dir() / "simulator"
    flags = (*compiler.flags(KERNEL_FLAGS), "-c")

    def build(name: str) -> Path:
        key = make_key("hooks", name, _hash(sorted(folder.glob("*.*"))), flags, compiler.version)
        return cache.get(key, lambda output: compiler.build(name, [folder / name], output, flags))

    return [build(name) for name in _HOOKS[mode] if name.endswith(".cpp")]


@functools.cache
def _cache_at(folder: Path) -> ObjectCache:
    return ObjectCache(folder)


@functools.cache
def list_wrapped() -> tuple[str, ...]:
    """Return the functions of libm whose calls count mode counts: those of ``operations.h``."""
    text = (kernels_dir() / "simulator" / "operations.h").read_text(encoding="utf-8")
    return tuple(_WRAPPED.findall(text))


@functools.cache
def _hash_headers(mode: Mode) -> str:
    """Hash all headers that a kernel file is compiled with, those shared with the runtime included."""
    folder = kernels_dir() / "simulator"
    hooks = [folder / name for name in _HOOKS[mode]]
    return _hash([*sorted((folder / "include").iterdir()), *hooks], flatten(folder / "cuda.h"))


def _hash(paths: Sequence[Path], text: str = "") -> str:
    digest = hashlib.sha256(text.encode())
    for path in paths:
        digest.update(f"{path.name}\n{path.read_text(encoding='utf-8')}".encode())
    return digest.hexdigest()
