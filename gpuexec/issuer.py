"""Putting bound runs on a stream in order: from the caller where nothing is missing, else from the driver thread."""

from __future__ import annotations

import contextlib
import threading

from gpuexec.binding import Bound
from gpuexec.driver_thread import DriverThread
from gpuexec.errors import CancelledError
from gpuexec.fence import Fence
from gpuexec.plan_cache import PlanCache
from gpuexec.run import Run
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Stream


class Issuer:
    """The way onto a Worker's stream. ``lock`` is held by whoever puts work there or changes recordings."""

    def __init__(self, backend: Backend, stream: Stream, plans: PlanCache) -> None:
        self._backend, self._stream, self._plans = backend, stream, plans
        self.lock = threading.RLock()
        self.driver = DriverThread()

    def can_issue(self, bound: Bound) -> bool:
        """Return whether a run can go onto the stream now, in its turn and without waiting."""
        return bound.is_ready() and not self.driver.is_busy()

    def put(self, bound: Bound) -> bool:
        """Put a run on the stream, or behind what it waits for; return whether it is on the stream.

        Raises:
            GpuexecError: It can't be; the run ends with the same error.
        """
        if self.can_issue(bound):
            self.issue(bound, None)
            return True
        self.driver.put(lambda: self._advance(bound))
        return False

    def issue(self, bound: Bound, last: int | None) -> None:
        """Put the commands of a run up to ``last`` on the stream; None ends it.

        Raises:
            GpuexecError: It can't be; the run ends with the same error.
        """
        with self.lock:
            try:
                first = bound.position
                if first is None:
                    bound.recording = self._plans.record(bound.choice, self._stream)
                    self._wait_for_sources(bound)
                    if bound.upload is not None:
                        bound.upload()
                assert bound.recording is not None
                bound.recording.submit(self._stream, bound.bindings, first or 0, last)
            except BaseException as error:
                self.end(bound, error)
                raise
            bound.position = last
            if last is None:
                self.end(bound, None)

    def end(self, bound: Bound, error: BaseException | None) -> None:
        """Say that nothing more of a run will come; what it uses is free once the work issued so far is done."""
        try:
            event = self._backend.device.create_event()
            self._stream.record(event)
            bound.reading.issue((event,))
            for finish in bound.finish:
                finish(event)
            self._backend.keeper.hold(event, *bound.keep)
            # The stream waited for the sources: their events need not go along; in a chain of runs they would pile up.
            bound.run._fence.issue((event,) if error is None else (), error)
        except BaseException as lost:
            bound.reading.issue(())
            bound.run._fence.issue((), error or lost)
            if error is None:
                raise

    def cancel(self, run: Run, why: str) -> bool:
        """Give up a run that waits on the driver thread, which will see; False if it is on the stream."""
        with self.lock:
            if run._fence.is_issued():
                return False
            run._is_cancelled = True
            return run._fence.issue((), CancelledError(why))

    def drop(self, bound: Bound, why: str) -> None:
        """Give up a run of which a part may be on the stream."""
        with self.lock:
            if not self.cancel(bound.run, why):
                return
            if self.driver.is_busy():
                # The bytes it holds may be those of a run before it that is still waiting.
                self.driver.put(lambda: self.end(bound, bound.run._fence.failure))
            else:
                self.end(bound, bound.run._fence.failure)

    def mark(self) -> Fence:
        """Return a fence for all that was issued so far, runs on the driver thread and single layers included."""
        mark = Fence()

        def issue() -> None:
            try:
                with self.lock:
                    event = self._backend.device.create_event()
                    self._stream.record(event)
                mark.issue((event,))
            except BaseException as error:
                mark.issue((), error)

        if self.driver.is_busy():
            self.driver.put(issue)
        else:
            issue()
        return mark

    def _advance(self, bound: Bound) -> None:
        """On the driver thread: wait for what the run needs from elsewhere, then put it on the stream."""
        try:
            bound.wait_ready()
        except BaseException as error:
            with self.lock:
                self.end(bound, error)
            return
        with self.lock, contextlib.suppress(BaseException):
            # The run's fence tells its error to whoever asks.
            if bound.run._is_cancelled:
                self.end(bound, bound.run._fence.failure)
            else:
                self.issue(bound, None)

    def _wait_for_sources(self, bound: Bound) -> None:
        bound.frame.readers.hold_back(self._stream, bound.write)
        for fence in bound.sources:
            if fence.failure is not None:
                raise fence.failure
            for each in fence.events:
                self._stream.wait(each)
