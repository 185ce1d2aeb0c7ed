"""Choice of a test's backends: by default the CPU and the simulator."""

from __future__ import annotations

from typing import Any

import pytest

from gpuexec.devices.backend import Backend
from gpuexec.devices.recorder.tracer import TracerDevice

BACKENDS = ("cpu", "simulator")


def on(*names: str) -> Any:
    """Return a mark that runs a test with the fixture ``backend`` on these only: ``cpu``, ``simulator``, ``tracer``."""
    return pytest.mark.parametrize("backend", names, indirect=True)


def is_tracer(backend: Backend) -> bool:
    """Return whether the backend only writes down what it is told."""
    return isinstance(backend.device, TracerDevice)
