"""Docstrings of the public names, and what their examples begin with."""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import gpuexec as gx

# Names that are no class, function or module have their docstrings behind them, as pdoc reads it.
_ALIASES = {"ArrayLike", "Inputs"}


def read_docstring(name: str) -> str:
    """Return the docstring of a public name."""
    item: Any = getattr(gx, name)
    if name not in _ALIASES:
        return inspect.cleandoc(item.__doc__ or "")
    body = ast.parse(inspect.getsource(_find_home(name))).body
    for statement, behind in pairwise(body):
        is_it = isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name
        if is_it and isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            return inspect.cleandoc(str(behind.value.value))
    return ""


def make_names(root: Path) -> dict[str, Any]:
    """Return the names that examples begin with, in a folder that has ``digits.onnx``; see `gpuexec.__doc__`."""
    import numpy as np

    with np.load(root / "examples/data/digits.npz") as data:
        x = data["images"][-8:, None].astype(np.float32)
    return {"np": np, "gx": gx, "model": gx.load("digits.onnx"), "x": x}


def _find_home(name: str) -> ModuleType:
    (home,) = (home for home, names in gx._HOMES.items() if name in names)
    return sys.modules[home]
