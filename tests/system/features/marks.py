"""Marks of features: the rows of the feature list that a test proves, and the devices it ran on.

``@pytest.mark.feature("B24", "S20")`` stands on a test function, wherever it lies, that proves rows B24 and S20.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

MARK = "pytest.mark.feature"
DEVICES = ("cpu", "simulator")


def rows_of(test: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Return the rows that a test's mark names; none if it has none."""
    calls = [each for each in test.decorator_list if isinstance(each, ast.Call) and ast.unparse(each.func) == MARK]
    return tuple(ast.literal_eval(row) for call in calls for row in call.args)


def find_tests(folder: Path) -> dict[str, list[str]]:
    """Return the marked tests of a folder and those in it by row, as ``path::name``, read from their sources."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text()
        if MARK in text:
            for test in _functions(text):
                for row in rows_of(test):
                    found.setdefault(row, []).append(f"{path.relative_to(folder).as_posix()}::{test.name}")
    return found


def device_of(params: Mapping[str, object]) -> str:
    """Return the column that a test of these parameters counts in: that of the only device in them, or ``other``."""
    named = {name for value in params.values() for name in _names(value)}
    return named.pop() if len(named) == 1 else "other"


def _functions(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module, outside of classes and other functions."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _names(value: object) -> list[str]:
    """Return the devices that a parameter names, by text or BackendType, alone or in a tuple."""
    if isinstance(value, tuple):
        return [name for each in value for name in _names(each)]
    name = value.value if isinstance(value, Enum) else value
    return [name] if isinstance(name, str) and name in DEVICES else []
