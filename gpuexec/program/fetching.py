"""Checked reads from a data loader: sizes are verified, errors of the loader are named.

Whoever implements a loader (`gpuexec.program.data_loader`) need check nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from gpuexec.errors import AccessError, GpuexecError, InputError
from gpuexec.program.data_loader import BufferDataLoader, FileLikeDataLoader, MmapDataLoader


def open_loader(source: Any) -> tuple[Any, bool]:
    """Return a loader for a loader, path, bytes or binary file, and whether it was made here and is to be closed.

    Raises:
        InputError: The source is none of these.
        AccessError: It can't be opened.
    """
    if all(callable(getattr(source, name, None)) for name in ("load", "load_into", "size")):
        return source, False
    if isinstance(source, str | os.PathLike):
        return MmapDataLoader(source), True
    if hasattr(source, "read"):
        return FileLikeDataLoader(source), True
    try:
        return BufferDataLoader(source), True
    except InputError:
        raise InputError(
            "Expected a path, bytes, a binary file, or a loader with load, load_into and size; "
            f"got {type(source).__name__}."
        ) from None


def measure(loader: Any) -> int:
    """Return the size that a loader gives.

    Raises:
        AccessError: It fails, or gives no size.
    """
    with _calling(loader, "size"):
        size = loader.size()
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise AccessError(f"{type(loader).__name__}.size() gave {size!r}, expected a number of bytes.")
    return size


def fetch(loader: Any, offset: int, size: int) -> memoryview:
    """Return bytes of a loader, read-only and exactly as many as asked for.

    Raises:
        AccessError: The loader fails, or gives something else.
    """
    with _calling(loader, f"load({offset}, {size})"):
        content = loader.load(offset, size)
    try:
        view = memoryview(content).cast("B").toreadonly()
    except (TypeError, ValueError) as error:
        raise AccessError(
            f"{type(loader).__name__}.load({offset}, {size}) gave {type(content).__name__}, expected bytes."
        ) from error
    if view.nbytes != size:
        raise AccessError(f"{type(loader).__name__}.load({offset}, {size}) gave {view.nbytes} bytes.")
    return view


@contextlib.contextmanager
def _calling(loader: Any, call: str) -> Iterator[None]:
    """Turn what a loader of the user's raises into an error of ours."""
    try:
        yield
    except GpuexecError:
        raise
    except Exception as error:
        raise AccessError(f"{type(loader).__name__}.{call} failed: {type(error).__name__}: {error}.") from error
