"""Devices of this suite: those of a process, and the CUDA device over a stand-in for CuPy and the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpuexec.devices.device import Device
from tests.devices.opening import open_device


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """The device that the test's parameter names."""
    if request.param in ("standin", "standin_pixel"):
        found: Device = request.getfixturevalue(f"{request.param}_device")
        return found
    return open_device(request.param)


@pytest.fixture
def standin_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The code for GPUs over a simulator of its own."""
    from gpuexec.devices.cuda.cuda import CudaDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.opening import make_simulator

    below = make_simulator()
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    made = CudaDevice()
    yield made
    made.close()
    below.close()


@pytest.fixture
def standin_pixel_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The code for GPUs with textures over a simulator of its own."""
    from gpuexec.devices.cuda.cuda_pixel import CudaPixelDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.opening import make_simulator

    below = make_simulator(target="pixel_80")
    install(monkeypatch, Standin(below, architecture=(8, 0)))
    made = CudaPixelDevice()
    yield made
    made.close()
    below.close()
