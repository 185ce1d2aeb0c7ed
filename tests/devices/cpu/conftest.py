"""A fresh CPU device for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuexec.devices.cpu.cpu import CpuDevice
from tests.ops.operators import CALLED


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(threads=2)
    yield device
    device.close()
    CALLED.clear()
