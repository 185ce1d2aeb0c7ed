"""Pytest plugin that logs each test's start and end, and ends a process whose GPU is lost.

What the journal names already is not run again, so a run that a fault, a crash or a hang cut short goes on with the
next test when it is started anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuexec.errors import DeviceLostError

EXIT_LOST = 75


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--journal", type=Path, required=True, help="file to write to; tests in it are left out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = {row["test"] for row in read(config.option.journal)}
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logstart(nodeid: str) -> None:
    Journal.current.write(test=nodeid, state="started")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.excinfo is not None and _is_lost(call.excinfo.value):
        Journal.current.is_lost = True
    if report.failed:
        Journal.current.write(test=item.nodeid, state="failed", message=str(report.longreprtext).strip()[-2000:])
    elif report.skipped:
        Journal.current.write(test=item.nodeid, state="skipped", message=str(report.longrepr[-1]))
    elif report.when == "call":
        Journal.current.write(test=item.nodeid, state="passed", seconds=round(report.duration, 3))
    return report


def pytest_runtest_logfinish() -> None:
    if Journal.current.is_lost:
        pytest.exit("The GPU is lost to this process.", EXIT_LOST)


def pytest_configure(config: pytest.Config) -> None:
    Journal.current = Journal(config.option.journal)


class Journal:
    """The file, one JSON object a line."""

    current: Journal

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_lost = False

    def write(self, **row: Any) -> None:
        """Append a row."""
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a journal."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _is_lost(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, DeviceLostError):
            return True
        error = error.__cause__ or error.__context__
    return False
