"""Submission of runs to the stream of an engine, in order: whole, or step by step as the caller asks.

A run goes onto the stream within the call while nothing must be waited for; the driver thread does the rest.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial

from gpuexec.devices.backend import Backend
from gpuexec.devices.latch import Wakeup
from gpuexec.devices.work_thread import WorkThread
from gpuexec.devices.working_here import wake_deferred
from gpuexec.errors import CancelledError, GpuexecError, StaleError, as_failure
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.memory_usage import MemoryUsage
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.pacing import Pacer
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import following
from gpuexec.execution.runs.run import Issued, MustWait, Run, RunProgress, Step
from gpuexec.execution.runs.run_executor import RunExecutor
from gpuexec.execution.runs.stopwatch import Stopwatch
from gpuexec.system.threads import end_computing


class Submitter:
    """Puts runs on the stream of an engine. Issuing and changing recordings need the context's lock."""

    def __init__(self, backend: Backend, context: ExecutionContext) -> None:
        self._backend, self._stream, self._context = backend, context.stream, context
        self.lock: threading.RLock = context.lock
        self.driver = DriverThread()

    def put(self, prepared: PreparedRun) -> bool:
        """Execute a run as far as nothing has to be waited for; the driver thread does the rest.

        Returns:
            Whether the run is wholly on the stream.

        Raises:
            GpuexecError: It can't be run, as is known before anything has to be waited for; the run ends with the same
                error.
        """
        remaining = prepared.remaining = self.take(prepared, None)
        has_waited = False
        try:
            for progress in remaining:
                if isinstance(progress, MustWait):
                    if progress.is_work or not progress.is_over():
                        if not self._context.is_synchronous:
                            prepared.is_driven = True
                            self.driver.put(partial(self._drive, prepared, progress))
                            return False
                        progress.wait()
                    has_waited = True
        except GpuexecError as error:
            self.end(prepared, error)
            # Whether the caller or the driver thread gets this far is chance: either way it is the run that reports it.
            if self._context.is_synchronous or not has_waited:
                raise
        if self._context.is_synchronous:
            prepared.run.wait()
        return True

    def take(self, prepared: PreparedRun, pacer: Pacer | None) -> Iterator[RunProgress]:
        """Execute a run after the runs before it; yields its progress."""
        try:
            while not self._is_next(prepared):
                yield MustWait(lambda: self._is_next(prepared), lambda: self._wait_until_next(prepared))
                _check_cancelled(prepared.run)
            for progress in RunExecutor(self._context, prepared, pacer).execute():
                yield progress
                _check_cancelled(prepared.run)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.end(prepared, error)
            raise
        self.end(prepared, None)

    def _is_next(self, prepared: PreparedRun) -> bool:
        return prepared.is_ready() and (not self.driver.is_busy() or self.driver.is_current())

    def _wait_until_next(self, prepared: PreparedRun) -> None:
        if not self.driver.is_current():
            self.driver.synchronize()
        prepared.wait_ready()

    def _drive(self, prepared: PreparedRun, progress: RunProgress | None) -> None:
        """Execute a run to its end on the driver thread, with its waits."""
        # The run's fence reports its error to whoever asks.
        with contextlib.suppress(BaseException), following(prepared.profile):
            try:
                while progress is not None:
                    if isinstance(progress, MustWait):
                        progress.wait()
                    progress = next(prepared.remaining, None)
            except BaseException as error:
                # A wait that fails ends the run as work that fails does.
                self.end(prepared, error)
                # Whoever waits keeps the error, which should keep nothing of the run but where it came about.
                traceback.clear_frames(error.__traceback__)

    def end(self, prepared: PreparedRun, error: BaseException | None) -> None:
        """End a run: its resources are free once the work issued so far is done."""
        with self.lock:
            if not prepared.is_over:
                self._end(prepared, error)

    def _end(self, prepared: PreparedRun, error: BaseException | None) -> None:
        failure = None if error is None else as_failure(error, f"Run {prepared.run.number}")
        # The generator holds the run, which holds it: nothing should wait for a garbage collection.
        prepared.is_over, prepared.remaining = True, iter(())
        try:
            if prepared.profile is not None:
                prepared.profile.end()
            event = self._backend.device.create_event()
            self._stream.record(event)
            prepared.reading.issue((event,))
            prepared.note_end(event)
            # Whoever drops the Worker without closing it does not free what its runs still use.
            planning = self._context.planning
            self._backend.deferred_free.hold(
                event, *prepared.keep, prepared.frame, planning.arena, planning.weights, self._context.pool
            )
            if error is None:
                prepared.run._settle(prepared.values, self._context.planning.framed)
                if prepared.commit is not None:
                    prepared.commit()
            prepared.carry = prepared.commit = None
            prepared.values.clear()
            # The stream waited for the sources: their events need not go along; in a chain of runs they would pile up.
            prepared.run._fence.issue((event,) if failure is None else (), failure)
        except BaseException as lost:
            if not isinstance(lost, Exception):
                # `break_off`, which follows, begins anew.
                raise
            prepared.reading.issue(())
            prepared.run._fence.issue((), failure or lost)
            if failure is None:
                raise
        self._context.under_way.pop(id(prepared), None)

    def cancel(self, run: Run, why: str) -> bool:
        """Cancel a run that waits on the driver thread; False if it is on the stream."""
        with self.lock:
            if run._fence.is_issued():
                return False
            run._is_cancelled = True
            return run._fence.issue((), CancelledError(why))

    def drop(self, prepared: PreparedRun, why: str) -> None:
        """Cancel a run that may be partly on the stream."""
        with self.lock:
            if not self.cancel(prepared.run, why):
                return
            if self.driver.is_busy():
                # The bytes it holds may be those of a run before it that is still waiting.
                self.driver.put(partial(self.end, prepared, prepared.run._fence.failure))
            else:
                self.end(prepared, prepared.run._fence.failure)

    def give_up_since(self, number: int, why: str) -> None:
        """Cancel runs of this number and later that are not wholly on the stream."""
        for prepared in list(self._context.under_way.values()):
            if prepared.run.number >= number:
                self.cancel(prepared.run, why)

    def give_up_unwanted(self, why: str) -> list[int]:
        """Cancel runs that nobody waits for; return their numbers."""
        prepared_runs = list(self._context.under_way.values())
        return [b.run.number for b in prepared_runs if not b.run._fence.is_wanted() and self.cancel(b.run, why)]

    def is_wanted(self) -> bool:
        """Return whether somebody waits for a run that is not wholly on the stream."""
        return any(
            b.run._fence.is_wanted() and not b.run._fence.is_issued() for b in list(self._context.under_way.values())
        )

    def break_off(self, why: str) -> None:
        """End all runs at once, after an interrupt: nothing more of them is issued.

        What is on the stream goes on; it outlives whoever lets go of the engine.
        """
        failure = CancelledError(why)
        for prepared in list(self._context.under_way.values()):
            prepared.run._is_cancelled = True
            prepared.run._fence.issue((), failure)
            # One on the driver thread ends there, once that gets round to it.
            if not prepared.is_driven:
                prepared.is_over = False  # it may be half ended
                with contextlib.suppress(GpuexecError):
                    self.end(prepared, failure)

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


class Stepping:
    """Manual scheduling of an engine's runs. ``prepared`` is the run in the middle of its steps, if there is one.

    Args:
        submitter: Executes runs.
        stopwatch: Times layers.
        memory_usage: Observes memory after each step.
        exclusive: Entered to advance the steps.
    """

    def __init__(
        self, submitter: Submitter, stopwatch: Stopwatch, memory_usage: MemoryUsage, exclusive: ExclusiveCaller
    ) -> None:
        self._submitter, self._stopwatch, self._memory_usage, self._exclusive = (
            submitter,
            stopwatch,
            memory_usage,
            exclusive,
        )
        self.prepared: PreparedRun | None = None

    def begin(self, prepared: PreparedRun, budget_ms: float | None) -> Iterator[tuple[Step, int]]:
        """Return the steps of a run, a layer each or as many as fit the budget, each with a guess of how many follow.

        The run before, if it is in the middle of its steps, was dropped by the caller.
        """
        prepared.run._fence.stepper = prepared.reading.stepper = threading.get_ident()
        prepared.remaining = self._submitter.take(prepared, Pacer(self._stopwatch, budget_ms))
        self.prepared = prepared
        return self._step(prepared)

    def give_up(self, run: Run) -> bool:
        """Cancel a run unless it is wholly on the stream; False if it is."""
        with self._submitter.lock:
            if self.prepared is None or self.prepared.run is not run:
                return self._submitter.cancel(run, f"Run {run.number} was cancelled.")
            self.drop("its caller")
            return True

    def drop(self, reason: str) -> None:
        """Cancel the run in the middle of its steps, if there is one."""
        with self._submitter.lock:
            prepared, self.prepared = self.prepared, None
            if prepared is not None:
                self._submitter.drop(prepared, f"Run {prepared.run.number} was given up for {reason}.")

    def _step(self, prepared: PreparedRun) -> Iterator[tuple[Step, int]]:
        index = 0
        pause: MustWait | None = None
        while True:
            if pause is not None and not pause.is_work and not pause.is_over():
                with self._exclusive:
                    self._check_present(prepared)
                yield Step(index, (), True), 1
                continue
            with self._exclusive, following(prepared.profile):
                self._check_present(prepared)
                progress = self._take(prepared)
                if progress is None:
                    return
                pause = progress if isinstance(progress, MustWait) else None
            if isinstance(progress, Issued):
                self._memory_usage.observe(prepared.run.number, progress.nodes[-1] if progress.nodes else "")
                yield Step(index, progress.nodes, False), progress.left
                index += len(progress.nodes)

    def _check_present(self, prepared: PreparedRun) -> None:
        """Check that a run may go on.

        Raises:
            StaleError: It is not the present one any more.
        """
        if self.prepared is not prepared:
            raise StaleError("A newer run has begun, or this one was cancelled; this iterator can't go on.")

    def _take(self, prepared: PreparedRun) -> RunProgress | None:
        """Return the next progress of the present run; None after the last."""
        try:
            progress = next(prepared.remaining, None)
        except BaseException:
            self.prepared = None
            raise
        if progress is None:
            self.prepared = None
        return progress


class CancelOnError:
    """Context of a call that waits for its own run: an exception cancels the run if it is not on the stream.

    Args:
        submitter: Whose runs.
        number: Of the run, before which others are not touched.
    """

    __slots__ = ("_number", "_submitter")

    def __init__(self, submitter: Submitter, number: int) -> None:
        self._submitter, self._number = submitter, number

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            end_computing()
            self._submitter.give_up_since(self._number, f"Its caller was interrupted ({kind.__name__}).")


class DriverThread:
    """Thread that makes calls in order. Starts with the first call; calls don't raise."""

    def __init__(self) -> None:
        self._thread = WorkThread("gpuexec-driver")
        self._finished = Wakeup()

    def put(self, call: Callable[[], None]) -> None:
        """Add a call.

        Raises:
            OutOfMemoryError: The thread can't be started; the call will not be made.
        """

        def work() -> Callable[[], None]:
            call()
            return self._finished.notify

        self._thread.put(work)

    def is_busy(self) -> bool:
        """Return whether calls are waiting here; what must come after them has to queue behind."""
        return not self._thread.is_done()

    def is_current(self) -> bool:
        """Return whether this is the driver thread itself."""
        return self._thread.is_current()

    def synchronize(self, timeout_s: float | None = None) -> bool:
        """Wait until no call is waiting here; False when the time ran out."""
        if self.is_busy():
            wake_deferred()
        return self._finished.wait_for(self._thread.is_done, timeout_s)

    def close(self) -> None:
        """End the thread once its calls are through."""
        self._thread.stop()


def _check_cancelled(run: Run) -> None:
    if run._is_cancelled and run._fence.failure is not None:
        raise run._fence.failure
