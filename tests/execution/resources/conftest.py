"""Devices with caller streams."""

from __future__ import annotations

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.small_models import CPU

SIMULATOR = gx.BackendType.SIMULATOR


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(CPU if request.param == "cpu" else SIMULATOR)
