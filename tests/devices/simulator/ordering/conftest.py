"""A simulator with order checking."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuexec.devices.simulator.device import SimulatorDevice
from tests.devices.simulator.conftest import instantiations
from tests.devices.simulator.ordering.issuing import ADD, Begin, go, hold


@pytest.fixture
def device() -> Iterator[SimulatorDevice]:
    device = SimulatorDevice(instantiations, check_order=True)
    device.load([ADD])
    yield device
    device.close()


@pytest.fixture(params=[hold, go])
def begin(request: pytest.FixtureRequest) -> Begin:
    """Execution of issued operations: held until the device is closed, or at once."""
    return request.param  # type: ignore[no-any-return]
