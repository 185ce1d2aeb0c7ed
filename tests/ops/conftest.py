"""Parametrization of operator cases: host, simulator with check mode, and blits; with ``-m gpu`` a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from gpuexec.ir.operator import find_operator, qualified
from tests.ops.case import Case


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the blits of cases whose operator says that it has none.

    That no call of such an operator is drawn is asked once for each, in test_facts.py.
    """
    items[:] = [item for item in items if not _lacks_blits(item)]


def _lacks_blits(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    if params.get("checks") != "pixel":
        return False
    case = next((value for value in params.values() if isinstance(value, Case)), None)
    operator = None if case is None else find_operator(qualified(case.op, case.domain))
    return operator is not None and not operator.has_blits
