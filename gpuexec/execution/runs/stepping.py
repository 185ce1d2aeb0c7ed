"""Manual scheduling: a run put on the stream step by step, at most one of an engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuexec.errors import StaleError
from gpuexec.execution.resources.exclusive_caller import ExclusiveCaller
from gpuexec.execution.resources.memory_usage import MemoryUsage
from gpuexec.execution.runs.pacing import Pacer
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.profiled import following
from gpuexec.execution.runs.run import Issued, MustWait, Run, RunProgress, Step
from gpuexec.execution.runs.stopwatch import Stopwatch
from gpuexec.execution.runs.submitter import Submitter


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
