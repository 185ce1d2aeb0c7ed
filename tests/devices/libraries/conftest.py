"""The code for GPUs with stand-ins for its libraries, over a simulator."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpuexec.devices.backend import Backend, BackendType


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A GPU of sm_80: its backend and device, and the stand-ins ``cuda``, ``lt`` and ``cudnn``."""
    from gpuexec.devices.cuda.cuda import CudaDevice
    from tests.devices.cupy_standin import Standin, install
    from tests.devices.library_standins import install_libraries
    from tests.devices.opening import make_simulator

    below = make_simulator()
    cuda: Any = Standin(below, architecture=(8, 0))
    install(monkeypatch, cuda)
    libraries = install_libraries(monkeypatch, cuda)
    device = CudaDevice()
    yield SimpleNamespace(
        backend=Backend(device, BackendType.GPU_COMPUTE, "for a test"), device=device, cuda=cuda, **vars(libraries)
    )
    device.close()
    assert not libraries.lt.live, "handles of the library were left"
    below.close()
