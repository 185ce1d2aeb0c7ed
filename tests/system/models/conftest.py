"""Summary of each model's gap from its reference, printed at the end of a run."""

from __future__ import annotations

import pytest

from tests.system.models.folder import DISTANCES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if DISTANCES:
        terminalreporter.section("models: largest error over what is allowed")
        for name, distance in DISTANCES.items():
            terminalreporter.write_line(f"{distance:10.5f}  {name}")
