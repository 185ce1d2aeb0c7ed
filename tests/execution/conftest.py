"""What tests of runs share."""

from __future__ import annotations

import math

import pytest

from gpuexec.devices.cpu import cpu_execution


@pytest.fixture
def brief_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every run on the CPU as brief, however long a busy machine takes for it."""
    for name in ("_BRIEF_SECONDS", "_LIGHT_SECONDS"):
        monkeypatch.setattr(cpu_execution, name, math.inf)
