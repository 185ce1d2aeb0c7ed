"""Pytest plugin that collects once and forks a process for each mutant, in which its tests run.

A fork, since a mutant may loop for ever, write where it must not, and lose its device. The child has its own folder of
kernel sources with the mutant's line changed, opens its own devices, and stops at the first test that fails.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuexec.devices.kernels import kernel_source
from gpuexec.devices.simulator import compilation
from gpuexec.devices.simulator.library import Schedule
from gpuexec.ir import instances
from gpuexec.ir.moving_arguments import STORE_SIZES
from tests.devices import opening
from tests.devices.launches import ROOT

PROCESSES = 2
_MESSAGE_LENGTH = 200
CPU_SECONDS = 30  # of a test without the compilers it starts: one that takes more hangs


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a mutant, and its reason in one line.

    ``"caught"``, ``"survived"``, ``"refused"`` by the compiler, or ``"broken"`` where it was not tried at all.
    """

    outcome: str
    by: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mutants", type=Path, help="rows of file, line, changed line, tests, instances")
    parser.addoption("--reports", type=Path, help="where to write what came of each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {test for row in _rows(config) for test in row["tests"]}
    items[:] = [item for item in items if wanted & {item.nodeid, _path_of(item)}]


def pytest_runtestloop(session: pytest.Session) -> bool:
    items: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        items.setdefault(item.nodeid, []).append(item)
        if _runs_kernels(item):
            items.setdefault(_path_of(item), []).append(item)
    rows = _rows(session.config)
    running: dict[int, tuple[int, Path]] = {}
    reports: dict[int, Report] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(rows):
            if len(running) == PROCESSES:
                _wait(running, reports)
            path = Path(folder) / f"{number}.json"
            child = os.fork()
            if child == 0:
                _live(row, [item for test in row["tests"] for item in items[test]], path)
            running[child] = number, path
        while running:
            _wait(running, reports)
    found = [(reports[number].outcome, reports[number].by) for number in range(len(rows))]
    session.config.getoption("reports").write_text(json.dumps(found))
    return True


def _path_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _runs_kernels(item: pytest.Item) -> bool:
    """Return whether a test that a path stands for has to run: an operator case that runs nothing does not."""
    callspec = getattr(item, "callspec", None)
    return callspec is None or callspec.params.get("checks") not in ("plan", "host")


def _rows(config: pytest.Config) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(config.getoption("mutants").read_text())
    return rows


def _wait(running: dict[int, tuple[int, Path]], reports: dict[int, Report]) -> None:
    """Wait for one child and enter its report."""
    child, status = os.wait()
    number, path = running.pop(child)
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    if path.exists():
        reports[number] = Report(*json.loads(path.read_text()))
    else:
        ended = -os.waitstatus_to_exitcode(status)
        name = signal.Signals(ended).name if ended > 0 else f"status {-ended}"
        reports[number] = Report("caught", "hangs" if ended == signal.SIGXCPU else f"ends the process with {name}")


def _live(row: Mapping[str, Any], items: Sequence[pytest.Item], path: Path) -> None:
    """Be the child: run the tests, write the report, and end without what the parent has to do at its end."""
    try:
        os.setpgid(0, 0)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        _change_kernels(row, path.with_suffix(""))
        _shuffle_threads()
        report = _run(items)
    except BaseException:
        report = Report("broken", traceback.format_exc())
    try:
        written = path.with_suffix(".part")
        written.write_text(json.dumps((report.outcome, report.by)))
        written.rename(path)
    finally:
        os._exit(0)


def _change_kernels(row: Mapping[str, Any], folder: Path) -> None:
    """Let every module find kernels in a folder where one line is another, and compile no instance but those named.

    The simulator's own headers stay where they are: precompiled, they are found by their path.
    """
    shutil.copytree(kernel_source.kernels_dir(), folder)
    if row["line"]:
        changed = kernel_source.index_sources(folder)[row["file"]]
        lines = changed.read_text().splitlines()
        lines[row["line"] - 1] = row["after"]
        changed.write_text("\n".join(lines) + "\n")
    original = kernel_source.kernels_dir
    for module in [module for name, module in sys.modules.items() if name.startswith(("gpuexec.", "tests."))]:
        if module is not compilation and getattr(module, "kernels_dir", None) is original:
            vars(module)["kernels_dir"] = lambda: folder
    if row["instances"] is None:
        return
    instances._INSTANCES.clear()
    for source, expressions in row["instances"].items():
        instances.instantiate(source, expressions)
    # Plans name it that don't launch it.
    instances.instantiate(STORE_SIZES.source, [STORE_SIZES.expression])


def _shuffle_threads() -> None:
    """Let threads of the simulator take turns in random order: every order is legal on a GPU."""
    opening.make_simulator = functools.partial(opening.make_simulator, schedule=Schedule("random", 1))


def _run(items: Sequence[pytest.Item]) -> Report:
    """Run tests up to the first that fails."""
    for item, following in zip(items, (*items[1:], None), strict=True):
        _limit_time()
        failures = _Failures()
        item.config.pluginmanager.register(failures)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item.config.pluginmanager.unregister(failures)
        if failures.text:
            by = f"{item.nodeid.partition('::')[2]}: {failures.text}"
            return Report("refused" if "does not compile" in failures.text else "caught", by)
    return Report("survived")


def _limit_time() -> None:
    """End the process if what comes next hangs."""
    soft = math.ceil(time.process_time()) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def shorten(text: str) -> str:
    """Return a message as one line, without what differs from run to run."""
    text = " ".join(text.split()).replace(f"{ROOT}/", "")
    return re.sub(r"0x[0-9a-f]{5,}", "0x...", text)[:_MESSAGE_LENGTH]


class _Failures:
    """The first failure of a test, as its last line."""

    def __init__(self) -> None:
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.text:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.text = shorten(crash.message if crash else str(report.longrepr))
