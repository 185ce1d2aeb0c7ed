"""Skips of tests whose optional package (extra ``test``) or C++ compiler is missing, with the reason."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from gpuexec.errors import GpuexecError

# By module, the package to install.
_PACKAGES = {"onnxruntime": "onnxruntime", "PIL": "pillow", "pdoc": "pdoc", "polygraphy": "polygraphy"}
# What the simulator says where it finds none.
_NO_COMPILER = "neither g++ nor clang++ is there"
_TOLD = re.compile(r"No module named '(\w+)|import of (\w+) halted")


def explain(text: str) -> str:
    """Return why a package is missing, where a text says that its module could not be imported; else nothing."""
    for match in _TOLD.finditer(text):
        name = match[1] or match[2]
        if name in _PACKAGES and not _is_installed(name):
            return f"{_PACKAGES[name]} is not installed: pip install 'gpuexec[test]'."
    return ""


def skip_collected(report: pytest.CollectReport) -> pytest.CollectReport:
    """Return a report of collection that is a skip where a package was missing."""
    reason = explain(str(report.longrepr)) if report.outcome == "failed" else ""
    if reason:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: {reason}")
    return report


def skip_run(report: pytest.TestReport, error: BaseException | None) -> pytest.TestReport:
    """Return a report of a test that is a skip where a package was missing."""
    while error is not None and report.outcome == "failed":
        reason = explain(str(error)) if isinstance(error, ModuleNotFoundError) else ""
        if isinstance(error, GpuexecError) and _NO_COMPILER in str(error):
            reason = f"The simulator needs a C++ compiler: {_NO_COMPILER}."
        if reason:
            report.outcome, report.longrepr = "skipped", (*report.location[:1], report.location[1] or 0, reason)
        error = error.__cause__
    return report


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # blocked: None in sys.modules
        return False
