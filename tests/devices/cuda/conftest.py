"""Devices over a stand-in for CuPy and the driver, and the GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.cuda.driver import probe
from gpuexec.devices.simulator.device import SimulatorDevice
from tests.devices.cuda.launching import EXPRESSIONS, SOURCE

if TYPE_CHECKING:
    from tests.devices.cupy_standin import Standin


@pytest.fixture
def standin() -> Iterator[Standin]:
    from tests.devices.cupy_standin import Standin

    below = SimulatorDevice(lambda source: EXPRESSIONS)
    yield Standin(below)
    below.close()


@pytest.fixture(params=[False, True], ids=["raw_kernel", "packed"])
def packed(request: pytest.FixtureRequest) -> Any:
    """Launch form: CuPy's RawKernel, or packed arguments."""
    return request.param


@pytest.fixture
def device(standin: Standin, packed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    """A device over the stand-in."""
    from tests.devices.cupy_standin import install

    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    made = CudaDevice(packed_launch=packed)
    yield made
    assert getattr(standin.current, "depth", 0) == 0, "the caller's device was not put back"
    made.close()


@pytest.fixture(params=["standin", pytest.param("gpu", marks=pytest.mark.gpu)])
def any_device(request: pytest.FixtureRequest, packed: bool) -> Iterator[CudaDevice]:
    """A device over the stand-in, and the GPU where there is one."""
    if request.param == "standin":
        yield request.getfixturevalue("device")
        return
    if probe().reason:
        pytest.skip(probe().reason)
    made = CudaDevice(packed_launch=packed)
    yield made
    made.close()


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return str(path)
