"""Marks of feature tests: their rows, by test name, and their devices.

``test_b24_s20_inputs_stay_set`` proves rows B24 and S20. A test that asks for the fixture ``backend`` runs on the CPU
and on the simulator; `on` says otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuexec.devices.backend import Backend
from gpuexec.devices.recorder.tracer import TracerDevice

DEVICES = ("cpu", "simulator")
_ROWS = re.compile(r"test_((?:[bset]\d+_)+)")


def on(*names: str) -> Any:
    """Return a mark that runs a test on these devices only: ``cpu``, ``simulator``, ``tracer``."""
    return pytest.mark.parametrize("backend", names, indirect=True)


def is_tracer(backend: Backend) -> bool:
    """Return whether the backend is a tracer, which records calls and runs nothing."""
    return isinstance(backend.device, TracerDevice)


def rows_of(name: str) -> tuple[str, ...]:
    """Return the rows that a test of this name proves; none if it names none."""
    found = _ROWS.match(name)
    return tuple(each.upper() for each in found[1].split("_") if each) if found else ()


def device_of(params: Mapping[str, object]) -> str:
    """Return the column that a test of these parameters counts in: a device's, or ``other``."""
    name = params.get("backend")
    return str(name) if name in DEVICES else "other"


def find_tests(folder: Path) -> dict[str, list[str]]:
    """Return the tests of a folder's files by row, read from their sources."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in rows_of(node.name):
                    found.setdefault(row, []).append(f"{path.name}::{node.name}")
    return found
