"""Kernel sources as one string each: local includes are inlined, so that a cache key over the text sees every edit.

``#line`` directives keep file names and numbers of messages true. System headers (``<cuda_fp16.h>``) stay as they are.
"""

from __future__ import annotations

import functools
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
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_kernels", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise KernelError(
        f"The kernel sources are missing: neither {package / '_kernels'} nor {package.parent / 'kernels'} exists."
    )


@functools.cache
def flatten(path: Path) -> str:
    """Return the source at ``path`` with each local include inlined once, in the order met.

    Raises:
        KernelError: The file, or a file it includes, does not exist.
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
        text = path.read_text()
    except OSError as error:
        raise KernelError(f"Kernel source {path.name} can't be read: {error.strerror}.") from error
    # The file name alone, so that the text (and the key made of it) is the same wherever the package lies.
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            lines += [*_inline(path.parent / include[1], seen), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("" if _ONCE.match(line) else line)
    return lines
