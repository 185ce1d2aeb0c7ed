"""Parametrization of operator cases: host, simulator with check mode, and blits; with ``-m gpu`` a GPU."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that take ``checks``, for `tests.ops.harness.run_case`, once for each choice."""
    if "checks" not in metafunc.fixturenames:
        return
    choices: list[Any] = ["host", "simulator", "pixel"]
    if metafunc.config.option.markexpr == "gpu":
        choices.append(pytest.param("gpu", marks=pytest.mark.gpu))
    if metafunc.config.getoption("launches", None):  # of tests/devices/launches.py
        choices = ["plan"]
    metafunc.parametrize("checks", choices)
