"""Parametrization of operator cases: host, simulator with check mode, and blits; with ``-m gpu`` a GPU.

Cases of one test whose kernels have text of their own are compiled some at a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuexec.ir.operator import find_operator, qualified
from tests.ops.case import Case
from tests.ops.harness import GENERATING, IN_CHECK_MODE, compile_together

# Cases that are compiled together: neighbours, which one process runs for the most part.
_TOGETHER = 24
_Group = list[Case]
_GROUP = pytest.StashKey[_Group]()


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
    """Leave out the blits of cases whose operator says that it has none, and group what is compiled together.

    That no call of such an operator is drawn is asked once for each, in test_facts.py.
    """
    items[:] = [item for item in items if not _lacks_blits(item)]
    groups: dict[tuple[str, str], _Group] = {}
    for item in items:
        checks, case = _params(item).get("checks"), _find_case(item)
        if case is not None and checks in IN_CHECK_MODE and GENERATING & case.attributes.keys():
            key = (item.nodeid.partition("[")[0], checks)
            if len(groups.get(key, ())) in (0, _TOGETHER):
                groups[key] = []
            groups[key].append(case)
            item.stash[_GROUP] = groups[key]


def pytest_runtest_setup(item: pytest.Item) -> None:
    group = item.stash.get(_GROUP, None)
    if group:
        compile_together(group, _params(item)["checks"])
        group.clear()


def _lacks_blits(item: pytest.Item) -> bool:
    case = _find_case(item) if _params(item).get("checks") == "pixel" else None
    operator = None if case is None else find_operator(qualified(case.op, case.domain))
    return operator is not None and not operator.has_blits


def _find_case(item: pytest.Item) -> Case | None:
    return next((value for value in _params(item).values() if isinstance(value, Case)), None)


def _params(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params
