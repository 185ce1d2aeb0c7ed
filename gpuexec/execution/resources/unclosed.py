"""Warnings for objects that were never closed, with the line that made them."""

from __future__ import annotations

import sys
import warnings
import weakref
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"


def warn_unless_closed(owner: object, what: str, cure: str = "close()") -> weakref.finalize[[str, str, int], object]:
    """Warn (ResourceWarning) if an object is collected before ``detach`` is called on the finalizer returned.

    The warning is one of the line, outside this package, that made the object. At the end of the process all is quiet:
    who ends with things still open need not hear of it.

    Args:
        owner: Calls this as it is made, and ``detach`` as it is closed.
        what: What it is, for the message.
        cure: What ends it.
    """
    file, line = find_caller()
    finalizer = weakref.finalize(
        owner, _warn, f"{what}, made at {file}:{line}, was never closed; call {cure}.", file, line
    )
    finalizer.atexit = False
    return finalizer


def find_caller() -> tuple[str, int]:
    """Return file and line of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _warn(message: str, file: str, line: int) -> None:
    warnings.warn_explicit(message, ResourceWarning, file, line)
