"""State tests: a Worker with a running sum, and a process without a seed of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType
from gpuexec.execution.state import seeds
from tests.model.small_models import CPU
from tests.model.state_models import running_sum

BACKENDS = (CPU, BackendType.SIMULATOR)


@pytest.fixture
def worker(backend: Backend) -> Iterator[gx.Worker]:
    with gx.Worker(running_sum(), backend=backend) as worker:
        yield worker


@pytest.fixture(autouse=True)
def forget_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process's seed as it was."""
    monkeypatch.setattr(seeds, "_seed", None)
    monkeypatch.setattr(seeds, "_drawn", 0)
