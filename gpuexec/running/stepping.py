"""A run that its caller puts on the stream step by step: at most one of an engine, and no newer one beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuexec.errors import StaleError
from gpuexec.resources.entrance import Entrance
from gpuexec.resources.holdings import Holdings
from gpuexec.running.bound import Bound
from gpuexec.running.issuer import Issuer
from gpuexec.running.pacing import Pacer
from gpuexec.running.profiled import following
from gpuexec.running.run import Issued, Pause, Run, Step, Turn
from gpuexec.running.stopwatch import Stopwatch


class Stepping:
    """The steps of an engine's runs. ``bound`` is the run in the middle of them, if there is one.

    Args:
        issuer: The way onto the stream.
        stopwatch: What times layers.
        holdings: Told what each step put on the stream.
        entrance: Where whoever advances the steps enters.
    """

    def __init__(self, issuer: Issuer, stopwatch: Stopwatch, holdings: Holdings, entrance: Entrance) -> None:
        self._issuer, self._stopwatch, self._holdings, self._entrance = issuer, stopwatch, holdings, entrance
        self.bound: Bound | None = None

    def begin(self, bound: Bound, budget_ms: float | None) -> Iterator[tuple[Step, int]]:
        """Return the steps of a run, a layer each or as many as fit the budget, each with a guess of how many follow.

        The run before, if it is in the middle of its steps, was dropped by the caller.
        """
        bound.run._fence.stepper = bound.reading.stepper = threading.get_ident()
        bound.turns = self._issuer.take(bound, Pacer(self._stopwatch, budget_ms))
        self.bound = bound
        return self._step(bound)

    def give_up(self, run: Run) -> bool:
        """Give a run up unless it is wholly on the stream; False if it is."""
        with self._issuer.lock:
            if self.bound is None or self.bound.run is not run:
                return self._issuer.cancel(run, f"Run {run.number} was cancelled.")
            self.drop("its caller")
            return True

    def drop(self, reason: str) -> None:
        """Give up the run in the middle of its steps, if there is one."""
        with self._issuer.lock:
            bound, self.bound = self.bound, None
            if bound is not None:
                self._issuer.drop(bound, f"Run {bound.run.number} was given up for {reason}.")

    def _step(self, bound: Bound) -> Iterator[tuple[Step, int]]:
        index = 0
        pause: Pause | None = None
        while True:
            if pause is not None and not pause.is_work and not pause.is_over():
                with self._entrance:
                    self._check_present(bound)
                yield Step(index, (), True), 1
                continue
            with self._entrance, following(bound.profile):
                self._check_present(bound)
                turn = self._take(bound)
                if turn is None:
                    return
                pause = turn if isinstance(turn, Pause) else None
            if isinstance(turn, Issued):
                self._holdings.observe(bound.run.number, turn.nodes[-1] if turn.nodes else "")
                yield Step(index, turn.nodes, False), turn.left
                index += len(turn.nodes)

    def _check_present(self, bound: Bound) -> None:
        """Check that a run may go on.

        Raises:
            StaleError: It is not the present one any more.
        """
        if self.bound is not bound:
            raise StaleError("A newer run has begun, or this one was cancelled; this iterator can't go on.")

    def _take(self, bound: Bound) -> Turn | None:
        """Take the next turn of the present run; None after the last."""
        try:
            turn = next(bound.turns, None)
        except BaseException:
            self.bound = None
            raise
        if turn is None:
            self.bound = None
        return turn
