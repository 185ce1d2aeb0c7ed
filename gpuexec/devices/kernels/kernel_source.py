"""Kernel source flattening: local includes are inlined, so that a cache key over the text covers every header.

``#line`` directives keep file names and numbers of messages true. System headers (``<cuda_fp16.h>``) stay as they are.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

from gpuexec.errors import KernelError

_INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
_ONCE = re.compile(r"\s*#\s*pragma\s+once")


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


def find_source(source: str) -> Path:
    """Return the file of a kernel's source.

    Args:
        source: The name of a file among the package's kernels (``"softmax.cu"``); ``"module:file.cu"`` for one that
            lies beside a module of another package (``__name__ + ":file.cu"`` where it is written); or an absolute
            path.

    Raises:
        KernelError: There is no such module, or it is no file.
    """
    module, separator, name = source.partition(":")
    if not separator or Path(source).is_absolute():
        return kernels_dir() / source
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

    An include is looked for beside the file that asks for it, then among the package's kernels.

    Raises:
        KernelError: The file, or a file it includes, does not exist or is no text.
    """
    return "\n".join(_inline(path, set())) + "\n"


def list_files(path: Path) -> tuple[Path, ...]:
    """Return the source at ``path`` and all files it includes.

    Raises:
        KernelError: One does not exist.
    """
    seen: set[Path] = set()
    _inline(path, seen)
    return tuple(sorted(seen))


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
            found = beside if beside.is_file() else kernels_dir() / include[1]
            lines += [*_inline(found, seen), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("" if _ONCE.match(line) else line)
    return lines
