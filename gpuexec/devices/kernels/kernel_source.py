"""Kernel sources: files found by name, and local includes inlined, so that a cache key covers every header.

``#line`` directives keep file names and numbers of messages true. System headers (``<cuda_fp16.h>``) stay as they are.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuexec.errors import KernelError
from gpuexec.ir.command import Kernel

_INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once")
_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\[^\n]|[^'\\\n])'""", re.S)
_KERNEL = re.compile(
    r"(?P<template>\btemplate\s*<[^;{}()]*>\s*)?(?:\bextern\s*\"C\"\s*)?(?:\bstatic\s+|\binline\s+)*"
    r"\b__global__\s+(?:(?:void|static|inline|__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\))\s+)*"
    r"(?P<name>\w+)\s*\([^;{]*\{"
)
_BRACE = re.compile(r"""[{}]|"(?:\\.|[^"\\\n])*"|'(?:\\[^\n]|[^'\\\n])'""")
_WAIT = re.compile(r"\bwait_for_predecessors\s*\(")
# The first architecture with programmatic dependent launch: code made for older ones waits for nothing.
WAITING_ARCHITECTURE = 90

# The folder whose files bear its name: a blit is in a file of the same name as its kernel.
_PIXEL = "pixel"
# In front of kernels of other packages: half and bf16 are CUDA's, see types.cuh.
_CUDA_TYPES = "#define GPUEXEC_CUDA_HALF\n"


@functools.cache
def kernels_dir() -> Path:
    """Return the folder of kernel sources: inside an installed package, beside it in a checkout.

    Raises:
        KernelError: Neither is there.
    """
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_kernels", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise KernelError(
        f"The kernel sources are missing: neither {package / '_kernels'} nor {package.parent / 'kernels'} exists."
    )


@functools.cache
def index_sources(folder: Path) -> Mapping[str, Path]:
    """Return the CUDA sources and headers of a folder of kernels by name.

    A name is that of the file, in whichever folder it lies: ``"softmax.cu"``, ``"types.cuh"``; for textures it is
    ``"pixel/softmax.cu"``. Plans, caches and program files hold names, and nothing else knows of folders.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix in (".cu", ".cuh"))
    return {_name_within(path, folder): path for path in found}


def find_source(source: str) -> Path:
    """Return the file of a kernel's source.

    Args:
        source: The name of a file among the package's kernels (``"softmax.cu"``, see `index_sources`);
            ``"module:file.cu"`` for one that lies beside a module of another package (``__name__ + ":file.cu"`` where
            it is written); or an absolute path.

    Raises:
        KernelError: There is no such module, or it is no file.
    """
    module, separator, name = source.partition(":")
    if not separator or Path(source).is_absolute():
        return _find_named(source)
    try:
        file = getattr(importlib.import_module(module), "__file__", None)
    except ImportError as error:
        raise KernelError(f"Kernel source {source}: module {module!r} can't be imported: {error}.") from error
    if file is None:
        raise KernelError(f"Kernel source {source}: module {module!r} is no file, so nothing lies beside it.")
    return Path(file).parent / name


@functools.cache
def flatten(path: Path) -> str:
    """Return the source at ``path`` with each local include inlined once, in order of first inclusion.

    An include is looked for beside the file that asks for it, then by its name among the package's kernels, in
    whichever folder it lies.

    Raises:
        KernelError: The file, or a file it includes, does not exist or is no text.
    """
    return "\n".join(_inline(path, set())) + "\n"


def read_text(path: Path, generated: Iterable[str] = ()) -> str:
    """Return all that kernels are compiled from: the flattened file, then the text generated for each, once.

    Raises:
        KernelError: The file, or one it includes, does not exist or is no text.
    """
    texts = dict.fromkeys(text for text in generated if text)
    types = "" if path.is_relative_to(kernels_dir()) else _CUDA_TYPES
    return "".join([types, flatten(path), *(f'#line 1 "generated"\n{text}' for text in texts)])


def list_files(path: Path) -> tuple[Path, ...]:
    """Return the source at ``path`` and all files it includes.

    Raises:
        KernelError: One does not exist.
    """
    seen: set[Path] = set()
    _inline(path, seen)
    return tuple(sorted(seen))


def strip_comments(text: str) -> str:
    """Return the source without comments; lines keep their numbers and literals their content."""

    def replace(match: re.Match[str]) -> str:
        token = match[0]
        return re.sub(r"[^\n]+", " ", token) if token.startswith("/") else token

    return _TOKEN.sub(replace, text)


def find_kernels(path: Path) -> Mapping[str, bool]:
    """Return the kernels a file defines, in order, and whether each is a template.

    Raises:
        KernelError: The file, or one it includes, does not exist.
    """
    text = strip_comments(flatten(path))
    return {match["name"]: match["template"] is not None for match in _KERNEL.finditer(text)}


@functools.cache
def find_waiting_kernels(path: Path) -> frozenset[str]:
    """Return the kernels of a file that wait for the launches they depend on, and so may begin before these complete.

    They call ``wait_for_predecessors`` of dependent_launch.cuh in their own bodies.

    Raises:
        KernelError: The file, or one it includes, does not exist.
    """
    text = strip_comments(flatten(path))
    found = set()
    for match in _KERNEL.finditer(text):
        if _WAIT.search(text, match.end(), _find_end(text, match.end())):
            found.add(match["name"])
    return frozenset(found)


def waits_for_predecessors(kernel: Kernel) -> bool:
    """Return whether a kernel waits for the launches it depends on; see `find_waiting_kernels`.

    Raises:
        KernelError: Its source does not exist.
    """
    return kernel.expression.partition("<")[0].strip() in find_waiting_kernels(find_source(kernel.source))


def _find_end(text: str, start: int) -> int:
    """Return the end of the body that begins behind a brace at ``start``; braces in literals count for nothing."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return len(text)


def _find_named(name: str) -> Path:
    """Return the file of a name; for one that there is none of, a path that can't be read."""
    folder = kernels_dir()
    return index_sources(folder).get(name, folder / name)


def _name_within(path: Path, folder: Path) -> str:
    """Return the name of a source: its file's, behind that of the folder where it is for textures."""
    return f"{_PIXEL}/{path.name}" if path.relative_to(folder).parts[0] == _PIXEL else path.name


def _inline(path: Path, seen: set[Path]) -> list[str]:
    path = path.resolve()
    if path in seen:
        return []
    seen.add(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KernelError(f"Kernel source {path.name} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise KernelError(f"Kernel source {path.name} is no text in UTF-8.") from error
    # The file name alone, so that the text (and the key made of it) is the same wherever the package lies.
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            beside = path.parent / include[1]
            found = beside if beside.is_file() else _find_named(include[1])
            lines += [*_inline(found, seen), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("" if _ONCE.match(line) else line)
    return lines
