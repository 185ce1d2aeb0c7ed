"""Compilation of kernel files in parallel, and groups of them as shared objects, both cached by content."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.devices.kernels.code_files import cache_folder
from gpuexec.devices.kernels.kernel_source import (
    find_source,
    find_waiting_kernels,
    flatten,
    kernels_dir,
    strip_comments,
)
from gpuexec.devices.simulator.elf import rename_defined
from gpuexec.devices.simulator.object_cache import ObjectCache, make_key
from gpuexec.devices.simulator.rewrite import ROWS, find_launch_bounds, rewrite_shared, write_rows
from gpuexec.devices.simulator.toolchain import KERNEL_FLAGS, RUNTIME_FLAGS, Mode, find_compiler
from gpuexec.errors import KernelError
from gpuexec.system import knobs
from gpuexec.system.atomic_file import write_file
from gpuexec.system.threads import in_threads

_RUNTIME_SOURCES = (
    *("fibers.cpp", "block.cpp", "synchronize.cpp", "launch.cpp", "memory.cpp"),
    *("check.cpp", "order.cpp", "findings.cpp", "explain.cpp", "count.cpp"),
)

_OBJECT = ".o"
_HOOKS: Mapping[Mode, tuple[str, ...]] = {
    "plain": (),
    "check": ("hooks.cpp",),
    "count": ("hooks.cpp", "operations.cpp", "operations.h"),
}
# Families whose threads make an element, a row or a texel each: vectors gain them little and cost the compiler as much.
WITHOUT_TILES = frozenset({"elementwise", "reduce", "tensor", "random", "vision", "ml", "pixel"})
_WRAPPED = re.compile(r"\b(?:ONE|TWO|FUSED)\((?:float, |double, )?([a-z]\w*), \w+\)")


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """What an object file is compiled of: a kernel file, the instances of its kernels, and text behind the file.

    ``source`` is its name, as `kernel_source.find_source` takes it. ``expressions`` are C++ name expressions
    (``"unary<Exp, float>"``) or names of ``extern "C"`` kernels.
    """

    source: str
    expressions: tuple[str, ...]
    generated: str = ""

    @property
    def path(self) -> Path:
        """The ``.cu`` file."""
        return find_source(self.source)


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The kernels of a file in a shared object: the symbol of the table that has them, and the kernels in its order.

    ``waiting`` are the kernels that wait for the launches they depend on.
    """

    source: str
    symbol: str
    expressions: tuple[str, ...]
    launch_bounds: Mapping[str, int]
    waiting: frozenset[str]


@dataclass(frozen=True, slots=True)
class BuiltObject:
    """A shared object: its path, the tables of the kernel files in it, and its mode."""

    path: Path
    tables: tuple[KernelTable, ...]
    mode: Mode

    def __str__(self) -> str:
        return _name_files(table.source for table in self.tables)


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


def build_files(
    groups: Sequence[Collection[ObjectSource]], cache: ObjectCache | None = None, mode: Mode = "plain"
) -> list[BuiltObject]:
    """Build the shared object of each group of kernel files, as `build_each` does."""
    built = {number: each for number, _, each in build_each(groups, cache, mode) if each is not None}
    return [built[number] for number in range(len(groups))]


def build_each(
    groups: Sequence[Collection[ObjectSource]], cache: ObjectCache | None = None, mode: Mode = "plain"
) -> Iterator[tuple[int, ObjectSource, BuiltObject | None]]:
    """Compile kernel files, with ``GPUEXEC_BUILD_JOBS`` compilers at once, and link each group to one shared object.

    Files of a group share no names, so they may define the same ones differently. What the cache has of a file is not
    compiled again, whichever group it is in.

    Args:
        groups: None of them is empty.
        cache: None: the user's.
        mode: For check and count mode the same code reports every access to the runtime library.

    Yields:
        The number of a group and a file of it, as they are done; with the last of a group, its shared object.

    Raises:
        KernelError: There is no compiler, or a file does not compile; the message has the compiler's first lines.
    """
    cache = cache or default_cache()
    listed = [(number, source) for number, group in enumerate(groups) for source in group]
    done: list[dict[ObjectSource, _CompileUnit]] = [{} for _ in groups]

    def compile_file(item: tuple[int, ObjectSource]) -> _CompileUnit:
        unit = _CompileUnit(item[1], mode)
        unit.find(cache)
        return unit

    for position, unit in in_threads(listed, compile_file, knobs.build_jobs(), "gpuexec-build"):
        number, source = listed[position]
        done[number][source] = unit
        is_whole = len(done[number]) == len(groups[number])
        yield number, source, _link([done[number][each] for each in groups[number]], cache, mode) if is_whole else None


def is_compiled(source: ObjectSource, mode: Mode = "plain", cache: ObjectCache | None = None) -> bool:
    """Return whether the cache has the object file of a kernel file, so that it takes the linker alone.

    Raises:
        KernelError: There is no compiler, by which it is known.
    """
    return (cache or default_cache()).has(_CompileUnit(source, mode).key, _OBJECT)


class _CompileUnit:
    """The text of an object file, its cache key, and how the compiler is called for it.

    All names that the object defines end with its key, so no other object has them.
    """

    def __init__(self, source: ObjectSource, mode: Mode) -> None:
        self._mode, self._compiler, path = mode, find_compiler(), source.path
        self._name = path.name
        mode_flags = self._compiler.mode_flags(mode, has_tiles=not _is_without_tiles(path))
        self._flags = self._compiler.flags((*KERNEL_FLAGS, *mode_flags))
        names = tuple(dict.fromkeys(source.expressions))
        stripped = strip_comments(flatten(path) + source.generated)
        self._text = rewrite_shared(stripped, self._name) + write_rows(names)
        self.key = make_key(self._text, _hash_headers(mode), self._flags, self._compiler.version)
        bounds, waiting = find_launch_bounds(stripped), find_waiting_kernels(path)
        self._suffix = f".{self.key}"
        self.table = KernelTable(source.source, ROWS + self._suffix, names, bounds, waiting)

    def find(self, cache: ObjectCache) -> Path:
        """Return the object file, compiled where the cache lacks it."""
        return cache.get(self.key, lambda output: self._compile(output, cache), _OBJECT)

    def _compile(self, output: Path, cache: ObjectCache) -> None:
        include = f"-I{kernels_dir() / 'simulator' / 'include'}"
        header = _precompile_header(self._mode, (*self._flags, include), cache)
        source = output.with_suffix(".cpp")
        write_file(source, self._text, sync=False)
        self._compiler.build(self._name, [source], output, (*self._flags, include, "-include", str(header), "-c"))
        try:
            write_file(output, rename_defined(output.read_bytes(), self._suffix), sync=False)
        except ValueError as error:
            raise KernelError(f"{self._name} can't be linked for the simulator: {error}, got another file.") from error


def _link(units: Sequence[_CompileUnit], cache: ObjectCache, mode: Mode) -> BuiltObject:
    """Link object files to a shared object, with what all of a mode share."""
    tables = tuple(unit.table for unit in units)

    def link(output: Path) -> None:
        # The sanitizers are flags of the compile alone: linked with them, the object would ask for their libraries.
        compiler = find_compiler()
        objects = dict.fromkeys(unit.find(cache) for unit in units)  # files of equal text are one object
        wrapped = [f"-Wl,--wrap={each}" for each in list_wrapped()] if mode == "count" else []
        flags = (*compiler.flags(KERNEL_FLAGS), *wrapped)
        name = f"The shared object of {_name_files(table.source for table in tables)}"
        compiler.build(name, [], output, flags, [*objects, *_build_hooks(mode, cache)])

    return BuiltObject(cache.get(make_key("linked", [unit.key for unit in units]), link), tables, mode)


def _name_files(sources: Iterable[str]) -> str:
    return ", ".join(find_source(source).name for source in sources)


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
    """Build what every kernel file of a mode is linked with, as object files."""
    compiler, folder = find_compiler(), kernels_dir() / "simulator"
    flags = (*compiler.flags(KERNEL_FLAGS), "-c")

    def build(name: str) -> Path:
        key = make_key("hooks", name, _hash(sorted(folder.glob("*.*"))), flags, compiler.version)
        return cache.get(key, lambda output: compiler.build(name, [folder / name], output, flags), _OBJECT)

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
