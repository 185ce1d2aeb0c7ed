"""CUDA events: waits that poll for a while, then block. Statuses come from a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.cuda.cuda_context import NOT_READY, SUCCESS
from gpuexec.devices.cuda.cuda_event import CudaEvent
from gpuexec.errors import DeviceLostError
from tests.devices.cupy_standin import Standin, install

EVER_US = 1e12


class Waited:
    """Event of the stand-in that counts queries and waits, and returns given statuses."""

    def __init__(self, device: CudaDevice, standin: Standin, statuses: list[int]) -> None:
        self.polls = self.blocks = 0
        self._statuses = iter(statuses)
        self.event: CudaEvent = device.create_event()
        standin.cupy.cuda.runtime.eventQuery = self._query
        self.event.event.synchronize = self._block

    def _query(self, handle: int) -> int:
        self.polls += 1
        return next(self._statuses)

    def _block(self) -> None:
        self.blocks += 1


@pytest.fixture
def device(standin: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    made = CudaDevice()
    yield made
    made.close()


def test_event_done_at_the_third_poll_is_never_blocked_on(device: CudaDevice, standin: Standin) -> None:
    device.spin_us = EVER_US
    waited = Waited(device, standin, [NOT_READY, NOT_READY, SUCCESS])
    waited.event.command = "the last command"
    assert waited.event.synchronize()
    assert (waited.polls, waited.blocks) == (3, 0)
    assert device.context.done == "the last command"


def test_event_that_takes_longer_is_blocked_on_once(device: CudaDevice, standin: Standin) -> None:
    device.spin_us = 1e-9  # over after the first poll
    waited = Waited(device, standin, [NOT_READY] * 9)
    assert waited.event.synchronize()
    assert (waited.polls, waited.blocks) == (1, 1)


@pytest.mark.parametrize("value", ["0", "0.0"])
def test_event_is_never_polled_with_the_knob_at_0(
    standin: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str
) -> None:
    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUEXEC_SPIN_US", value)
    device = CudaDevice()
    waited = Waited(device, standin, [])
    assert waited.event.synchronize()
    assert (waited.polls, waited.blocks) == (0, 1)
    device.close()


def test_timeout_that_is_over_ends_the_polling_too(device: CudaDevice, standin: Standin) -> None:
    device.spin_us = EVER_US
    waited = Waited(device, standin, [NOT_READY] * 1_000_000)
    assert waited.event.synchronize(timeout_s=1e-4) is False
    assert waited.blocks == 0


def test_fault_found_by_polling_is_raised_at_once(device: CudaDevice, standin: Standin) -> None:
    device.spin_us = EVER_US
    waited = Waited(device, standin, [NOT_READY, 719])
    with pytest.raises(DeviceLostError, match="asking whether work is done"):
        waited.event.synchronize()
    assert (waited.polls, waited.blocks) == (2, 0)
