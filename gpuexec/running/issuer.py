"""Taking bound runs along in order: from the caller as far as nothing is missing, then on the driver thread."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Iterator
from functools import partial

from gpuexec.errors import CancelledError, GpuexecError, as_failure
from gpuexec.resources.fence import Fence
from gpuexec.running.bound import Bound
from gpuexec.running.course import Course
from gpuexec.running.driver_thread import DriverThread
from gpuexec.running.pacing import Pacer
from gpuexec.running.profiled import following
from gpuexec.running.road import Road
from gpuexec.running.run import Pause, Run, Turn
from gpuexec.runtime.backend import Backend


class Issuer:
    """The way onto a Worker's stream. The road's lock is held by whoever puts work there or changes recordings."""

    def __init__(self, backend: Backend, road: Road) -> None:
        self._backend, self._stream, self._road = backend, road.stream, road
        self.lock: threading.RLock = road.lock
        self.driver = DriverThread()

    def put(self, bound: Bound) -> bool:
        """Take a run along as far as nothing has to be waited for, and let the driver thread do the rest.

        Returns:
            Whether the run is wholly on the stream.

        Raises:
            GpuexecError: It can't be run, as is known before anything has to be waited for; the run ends with the same
                error.
        """
        turns = bound.turns = self.take(bound, None)
        has_waited = False
        try:
            for turn in turns:
                if isinstance(turn, Pause):
                    if turn.is_work or not turn.is_over():
                        if not self._road.is_synchronous:
                            bound.is_driven = True
                            self.driver.put(partial(self._drive, bound, turn))
                            return False
                        turn.wait()
                    has_waited = True
        except GpuexecError as error:
            self.end(bound, error)
            # Whether the caller or the driver thread gets this far is chance: either way it is the run that tells.
            if self._road.is_synchronous or not has_waited:
                raise
        if self._road.is_synchronous:
            bound.run.wait()
        return True

    def take(self, bound: Bound, pacer: Pacer | None) -> Iterator[Turn]:
        """Yield the turns of a run, in its place among the runs; the run ends with them."""
        try:
            while not self._is_turn_of(bound):
                yield Pause(lambda: self._is_turn_of(bound), lambda: self._wait_for_turn(bound))
                _check_cancelled(bound.run)
            for turn in Course(self._road, bound, pacer).follow():
                yield turn
                _check_cancelled(bound.run)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.end(bound, error)
            raise
        self.end(bound, None)

    def _is_turn_of(self, bound: Bound) -> bool:
        return bound.is_ready() and (self.driver.is_current() or not self.driver.is_busy())

    def _wait_for_turn(self, bound: Bound) -> None:
        if not self.driver.is_current():
            self.driver.synchronize()
        bound.wait_ready()

    def _drive(self, bound: Bound, turn: Turn | None) -> None:
        """On the driver thread: take a run along to its end, waiting where it has to."""
        # The run's fence tells its error to whoever asks.
        with contextlib.suppress(BaseException), following(bound.profile):
            try:
                while turn is not None:
                    if isinstance(turn, Pause):
                        turn.wait()
                    turn = next(bound.turns, None)
            except BaseException as error:
                # A wait that fails ends the run as work that fails does.
                self.end(bound, error)
                # Whoever waits keeps the error, which should keep nothing of the run but where it came about.
                traceback.clear_frames(error.__traceback__)

    def end(self, bound: Bound, error: BaseException | None) -> None:
        """Say that nothing more of a run will come; what it uses is free once the work issued so far is done."""
        with self.lock:
            if not bound.is_over:
                self._end(bound, error)

    def _end(self, bound: Bound, error: BaseException | None) -> None:
        failure = None if error is None else as_failure(error, f"Run {bound.run.number}")
        # The turns hold the run, which holds them: nothing should wait for a collection.
        bound.is_over, bound.turns = True, iter(())
        try:
            if bound.profile is not None:
                bound.profile.end()
            event = self._backend.device.create_event()
            self._stream.record(event)
            bound.reading.issue((event,))
            bound.note_end(event)
            # Whoever drops the Worker without closing it does not free what its runs still use.
            site = self._road.site
            self._backend.keeper.hold(event, *bound.keep, bound.frame, site.arena, site.weights, self._road.pool)
            if error is None:
                bound.run._settle({value.name: bound.env[value] for value in self._road.site.model.graph.outputs})
                if bound.commit is not None:
                    bound.commit()
            bound.carry = bound.commit = None
            bound.env.clear()
            # The stream waited for the sources: their events need not go along; in a chain of runs they would pile up.
            bound.run._fence.issue((event,) if failure is None else (), failure)
        except BaseException as lost:
            if not isinstance(lost, Exception):
                # `break_off`, which follows, begins anew.
                raise
            bound.reading.issue(())
            bound.run._fence.issue((), failure or lost)
            if failure is None:
                raise
        self._road.under_way.pop(id(bound), None)

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
                self.driver.put(partial(self.end, bound, bound.run._fence.failure))
            else:
                self.end(bound, bound.run._fence.failure)

    def give_up_since(self, number: int, why: str) -> None:
        """Give up the runs of this number and later that are not wholly on the stream."""
        for bound in list(self._road.under_way.values()):
            if bound.run.number >= number:
                self.cancel(bound.run, why)

    def give_up_unwanted(self, why: str) -> list[int]:
        """Give up the runs that nobody waits for; return their numbers."""
        bounds = list(self._road.under_way.values())
        return [b.run.number for b in bounds if not b.run._fence.is_wanted() and self.cancel(b.run, why)]

    def is_wanted(self) -> bool:
        """Return whether somebody waits for a run that is not wholly on the stream."""
        return any(
            b.run._fence.is_wanted() and not b.run._fence.is_issued() for b in list(self._road.under_way.values())
        )

    def break_off(self, why: str) -> None:
        """End all runs, whatever they were in the middle of: the stream takes nothing of them any more.

        What is on the stream goes on; it outlives whoever lets go of the engine.
        """
        failure = CancelledError(why)
        for bound in list(self._road.under_way.values()):
            bound.run._is_cancelled = True
            bound.run._fence.issue((), failure)
            # One on the driver thread ends there, once that gets round to it.
            if not bound.is_driven:
                bound.is_over = False  # it may be half ended
                with contextlib.suppress(GpuexecError):
                    self.end(bound, failure)

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
                mark.issue((), as_failure(error, "The wait"))
                if not isinstance(error, Exception):
                    raise

        if self.driver.is_busy():
            self.driver.put(issue)
        else:
            issue()
        return mark


class GivingUp:
    """A call that waits for its own run: whatever ends the call, the run is cancelled if it is not on the stream.

    Args:
        issuer: Whose runs.
        number: Of the run, before which others are not touched.
    """

    __slots__ = ("_issuer", "_number")

    def __init__(self, issuer: Issuer, number: int) -> None:
        self._issuer, self._number = issuer, number

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._issuer.give_up_since(self._number, f"Its caller was interrupted ({kind.__name__}).")


def _check_cancelled(run: Run) -> None:
    if run._is_cancelled and run._fence.failure is not None:
        raise run._fence.failure
