"""Pacing of a run: steps of as many layers as fit a time budget, by measured layer times."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from gpuexec.devices.device import TimedEvent
from gpuexec.errors import InputError
from gpuexec.execution.runs.run import Issued
from gpuexec.execution.runs.stopwatch import LayerTimes, Stopwatch


def check_budget(budget_ms: object) -> None:
    """Check that a budget is a time, or None.

    Raises:
        InputError: It is something else, or below 0.
    """
    if budget_ms is not None and not (isinstance(budget_ms, (int, float, np.number)) and budget_ms >= 0):
        raise InputError(f"budget_ms must be a time in milliseconds, 0 or more, got {budget_ms!r}.")


class Pacer:
    """Decides where the steps of one run end.

    A layer goes into the present step if with it the step still fits the budget, by what was measured; a layer that
    was not measured has a step of its own. So a step exceeds the budget only where a single layer does, or takes longer
    than it did.

    Args:
        budget_ms: How long a step may take; None: every layer is a step, and nothing is timed.
    """

    def __init__(self, stopwatch: Stopwatch, budget_ms: float | None) -> None:
        self._stopwatch, self._budget_ms = stopwatch, budget_ms
        self._nodes: list[str] = []
        self._expected_ms = 0.0
        self._is_full = False

    @property
    def has_layers(self) -> bool:
        """True once the present step has put something on the stream."""
        return bool(self._nodes)

    @property
    def is_full(self) -> bool:
        """True where the step ends here."""
        return self._is_full

    def fits(self, times: LayerTimes, layer: Hashable) -> bool:
        """Return whether a layer goes into the present step."""
        if not self._nodes:
            self._stopwatch.collect()
            return True
        expected_ms = times.find(layer)
        if self._budget_ms is None or expected_ms is None:
            return False
        return self._expected_ms + expected_ms <= self._budget_ms

    def begin(self) -> TimedEvent | None:
        """Begin to time a layer whose commands come next on the stream; return the argument for `end`."""
        return None if self._budget_ms is None else self._stopwatch.mark()

    def end(self, start: TimedEvent | None, times: LayerTimes, layer: Hashable) -> None:
        """End the timing of a layer whose commands are all on the stream."""
        if start is not None:
            self._stopwatch.expect(times, layer, start, self._stopwatch.mark())

    def add(self, node: str, times: LayerTimes, layer: Hashable) -> None:
        """Count a layer to the present step."""
        expected_ms = times.find(layer)
        self._nodes.append(node)
        if self._budget_ms is None or expected_ms is None:
            self._is_full = True
        else:
            self._expected_ms += expected_ms
            self._is_full = self._expected_ms >= self._budget_ms

    def take(self, left: int) -> Issued:
        """End the step and return it; ``left`` guesses how many layers follow."""
        issued = Issued(tuple(self._nodes), left)
        self._nodes, self._expected_ms, self._is_full = [], 0.0, False
        return issued
