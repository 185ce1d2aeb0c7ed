"""CUDA events, and spin-waiting for them: polling for a short time before a thread is put to sleep.

Waking a thread costs more than most runs. Spinning is worth it only where the work is not this process's own, as on a
GPU. On the CPU device a waiting thread that polls takes the interpreter's lock from the thread that works: a run of the
digits model, one image, took 0.61 to 0.65 ms with 50 us of polling and 0.56 to 0.59 without (three rounds in turn, best
of 400 runs each, two cores, CPython 3.11). On the simulator nothing was gained. What it gains on a GPU is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuexec.devices.cuda.cuda_context import CudaContext
from gpuexec.devices.device import TimedEvent

_LONGEST_POLL_S = 1e-3


class CudaEvent:
    """A CUDA event, by default without timing. A wait for it polls for ``spin_us`` microseconds and then sleeps."""

    def __init__(self, context: CudaContext, spin_us: float, *, is_timed: bool = False) -> None:
        self._context, self._spin_us = context, spin_us
        with context.calling("creating an event"):
            self.event = context.cupy.cuda.Event(block=True, disable_timing=not is_timed)
        self.command: object = None  # the last launch before the record

    def is_done(self) -> bool:
        """Return whether the work recorded is done; never waits."""
        is_done = self._context.is_success(self._context.cupy.cuda.runtime.eventQuery(self.event.ptr))
        if is_done and self.command is not None:
            self._context.note_done(self.command)
        return is_done

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out. CUDA knows no timeout, so with one this polls."""
        spin_us = self._spin_us
        end = time.monotonic() + (timeout_s or 0.0)
        if spin(self.is_done, spin_us if timeout_s is None else min(spin_us, timeout_s * 1e6)):
            return True
        if timeout_s is None:
            with self._context.calling("waiting for an event"):
                self.event.synchronize()
            self._context.note_done(self.command)
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

    def __init__(self, context: CudaContext, spin_us: float) -> None:
        super().__init__(context, spin_us, is_timed=True)

    def elapsed_ms(self, since: TimedEvent) -> float:
        """Return how much later than ``since`` the GPU reached this."""
        assert isinstance(since, CudaTimedEvent)
        with self._context.calling("reading the time of events"):
            return float(self._context.cupy.cuda.get_elapsed_time(since.event, self.event))


def spin(is_done: Callable[[], bool], limit_us: float, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Poll until something is done or the time is up; never sleeps.

    The interpreter's lock is given up between polls, so that a thread which has to run first gets to run.

    Args:
        is_done: The function polled; its exceptions are passed on.
        limit_us: For how long; 0: not at all.
        clock: Clock in seconds.

    Returns:
        Whether it is done; False where it may still be under way.
    """
    if limit_us <= 0:
        return False
    end = clock() + limit_us * 1e-6
    while not is_done():
        if clock() >= end:
            return False
        time.sleep(0)
    return True
