"""Parametrization of operator cases: host, simulator, check mode and blits; with ``-m gpu`` a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.ops import harness


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that run cases the parameter ``checks``, which they need not name."""
    if not runs_cases(metafunc.function, set()):
        return
    choices: list[Any] = ["host", "simulator", "check", "pixel"]
    if metafunc.config.option.markexpr == "gpu":
        choices.append(pytest.param("gpu", marks=pytest.mark.gpu))
    if metafunc.config.getoption("launches", None):  # of tests/launches.py
        choices = ["plan"]
    metafunc.fixturenames.append("checks")
    metafunc.parametrize("checks", choices)


@pytest.fixture(autouse=True)
def choose_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let `run_case` do what the test's parameter says."""
    chosen = getattr(request.node, "callspec", None)
    before = list(harness.CHECKS)
    if chosen is not None and "checks" in chosen.params:
        harness.CHECKS[:] = [chosen.params["checks"]]
    yield
    harness.CHECKS[:] = before


def runs_cases(function: Any, seen: set[str]) -> bool:
    """Return whether a function calls `run_case`, itself or through functions of the same file."""
    module = sys.modules[function.__module__]
    for name in _names(function.__code__) - seen:
        seen.add(name)
        called = getattr(module, name, None)
        if called is harness.run_case:
            return True
        if isinstance(called, FunctionType) and called.__module__ == module.__name__ and runs_cases(called, seen):
            return True
    return False


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
