"""Source locations in user code: ``file.py:12``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np

# Folders without user code: this package and NumPy.
_FOREIGN = tuple(str(folder) + os.sep for folder in (Path(__file__).parents[2], Path(np.__file__).parent))


def find_line() -> str:
    """Return the innermost line of user code that is being executed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    return "program" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def find_raised(traceback: TracebackType | None) -> str:
    """Return the innermost line of user code in an error's traceback; empty where there is none."""
    where = ""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(_FOREIGN):
            where = f"{Path(path).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where


def find_definition(function: Callable[..., Any]) -> str:
    """Return the line on which a function begins."""
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"
