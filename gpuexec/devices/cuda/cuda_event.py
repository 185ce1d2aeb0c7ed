"""CUDA events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpuexec.devices.cuda.spinning import spin
from gpuexec.devices.device import TimedEvent

if TYPE_CHECKING:
    from gpuexec.devices.cuda.cuda import CudaDevice

_LONGEST_POLL_S = 1e-3


class CudaEvent:
    """A CUDA event, by default without timing. A wait for it polls for GPUEXEC_SPIN_US and then sleeps."""

    def __init__(self, device: CudaDevice, *, is_timed: bool = False) -> None:
        self._device = device
        with device.calling("creating an event"):
            self.event = device.cupy.cuda.Event(block=True, disable_timing=not is_timed)
        self.command: object = None  # the last launch before the record

    def is_done(self) -> bool:
        """Return whether the work recorded is done; never waits."""
        is_done = self._device.is_success(self._device.cupy.cuda.runtime.eventQuery(self.event.ptr))
        if is_done and self.command is not None:
            self._device.note_done(self.command)
        return is_done

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out. CUDA knows no timeout, so with one this polls."""
        spin_us = self._device.spin_us
        end = time.monotonic() + (timeout_s or 0.0)
        if spin(self.is_done, spin_us if timeout_s is None else min(spin_us, timeout_s * 1e6)):
            return True
        if timeout_s is None:
            with self._device.calling("waiting for an event"):
                self.event.synchronize()
            self._device.note_done(self.command)
            return True
        pause = 1e-5
        while not self.is_done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_POLL_S)
        return True


class CudaTimedEvent(CudaEvent):
    """An event with the GPU's timestamp, precise to about half a microsecond."""

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device, is_timed=True)

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return how much later than ``since`` the GPU reached this."""
        assert isinstance(since, CudaTimedEvent)
        with self._device.calling("reading the time of events"):
            return float(self._device.cupy.cuda.get_elapsed_time(since.event, self.event))
