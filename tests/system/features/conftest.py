"""Devices that feature tests run on."""

from __future__ import annotations

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.small_models import make_tracer
from tests.system.features.marks import DEVICES


@pytest.fixture(params=DEVICES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that the test's parameter names."""
    if request.param == "tracer":
        return make_tracer()
    return open_backend(gx.BackendType(request.param))
