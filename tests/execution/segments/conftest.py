"""Models whose runs take several plans, and backends of a test's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from tests.devices.opening import make_simulator
from tests.model.small_models import CPU
from tests.model.staged_models import MODELS, StagedModel

BACKENDS = {"cpu": CPU, "simulator": gx.BackendType.SIMULATOR}


@pytest.fixture(params=MODELS)
def staged(request: pytest.FixtureRequest) -> StagedModel:
    return MODELS[request.param]


@pytest.fixture(params=BACKENDS)
def own_backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend of the test's own, so that no other memory is counted."""
    type = BACKENDS[request.param]
    device = CpuDevice() if type is CPU else make_simulator()
    yield Backend(device, type, "for a test")
    device.close()
