"""The devices that edited models run on."""

from __future__ import annotations

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend


@pytest.fixture(params=("cpu", "simulator"))
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that the test's parameter names."""
    return open_backend(gx.BackendType(request.param))
