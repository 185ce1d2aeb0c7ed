"""Devices for fault tests: each test has its own, since a fault ends a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.device import Device
from tests.devices.every_device.conftest import standin_device as standin_device
from tests.devices.opening import make_simulator

_TYPES = {
    "cpu": gx.BackendType.CPU,
    "simulator": gx.BackendType.SIMULATOR,
    "standin": gx.BackendType.GPU_COMPUTE,
}


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend of its own on the device that the test's parameter names."""
    name: str = request.param
    if name == "standin":
        device: Device = request.getfixturevalue("standin_device")
    else:
        device = CpuDevice() if name == "cpu" else make_simulator()
    yield Backend(device, _TYPES[name], "for a test")
    if name != "standin":
        device.close()
