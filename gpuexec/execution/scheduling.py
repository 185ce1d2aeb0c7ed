"""Scheduling of runs and access to their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuexec.errors import StateError
from gpuexec.execution.engine import Engine
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.results.copying import copy_tensor
from gpuexec.execution.results.given import Inputs
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.pacing import check_budget
from gpuexec.execution.runs.run import Run, Step
from gpuexec.model.outputs import Outputs

Array = np.ndarray[Any, Any]


class Scheduling:
    """Schedules runs of an engine, whole or step by step, and gives the outputs of the last."""

    _engine: Engine
    _last: Run | None
    _progress: float

    # ---- running

    def schedule(self, inputs: Inputs | None = None, *, copy: bool = True, stream: object = None) -> Run:
        """Put a run on the stream and return at once.

        Args:
            inputs: One array, a list in the model's order, or ``{"name": array}``. Host arrays are copied before this
                returns; device arrays and Tensors (pending ones too) are borrowed until the run is done. Inputs left
                out stay as they were in the run before. One given under the name of a memory's input replaces what the
                state holds, for this run; the next goes on from its result.
            copy: False borrows host arrays too, where they are dense: leave them as they are until the run is done.
            stream: A stream of yours (of CuPy, torch, the device, a handle, anything with ``__cuda_stream__``): the run
                comes after what is on it now, and what you put on it afterwards comes after the run. The run itself
                stays on the Worker's stream; nothing waits but streams, unless the run must wait for the host.

        Raises:
            InputError: An input is missing, misspelt, or of the wrong dtype or shape, or ``stream`` is none; nothing
                was done.
            StateError: The stream is capturing a graph.
        """
        with self._engine.entering():
            self._last = self._engine.schedule(inputs, copy=copy, stream=stream)
            self._progress = 1.0
            return self._last

    def run(self, inputs: Inputs | None = None, *, copy: bool = True, stream: object = None) -> Outputs[Any]:
        """Run and block for all outputs: a tuple that also knows names, whether they are one or several.

        Each is an array of the caller's own. Strings are an array of str, a sequence is a list, an optional what it
        holds or None, a map a dict. Arguments are those of `schedule`. A KeyboardInterrupt cancels the run.
        """
        with self._engine.giving_up():
            run = self.schedule(inputs, copy=copy, stream=stream)
            # Nobody else asks for these: their pinned memory goes back with them.
            requests = {name: tensor._content.read_privately() for name, tensor in run.outputs.items()}
            return Outputs({name: request.result() for name, request in requests.items()})

    def schedule_iterable(
        self,
        inputs: Inputs | None = None,
        *,
        copy: bool = True,
        budget_ms: float | None = None,
        stream: object = None,
    ) -> Iterator[Step]:
        """Put a run on the stream step by step, each issued when the iterator is advanced.

        Inputs are taken at the call. A step may say that it is ``waiting`` for an input from elsewhere, or for content
        that the host needs, having issued nothing. A newer run makes the iterator stale: advancing it raises
        StaleError.

        Args:
            inputs: As for `schedule`.
            copy: As for `schedule`.
            budget_ms: Put as many layers into a step as take no longer than this on the device (or on the host, where
                they run there), and at least one. Layers are timed while they run with a budget; those that were not
                yet have a step each. None: every layer has.
            stream: As for `schedule`; it waits for the run from the last step on.

        Raises:
            InputError: An input does not fit, or the budget is below 0.
        """
        check_budget(budget_ms)
        with self._engine.entering():
            self._last, steps = self._engine.begin(inputs, copy=copy, budget_ms=budget_ms, stream=stream)
            self._progress = 0.0
            return self._follow(steps)

    def _follow(self, steps: Iterator[tuple[Step, int]]) -> Iterator[Step]:
        for step, left in steps:
            issued = step.index + len(step.nodes)
            # How long loops run is not known beforehand; what was shown is not taken back.
            self._progress = max(self._progress, issued / max(issued + left, 1))
            yield step
        self._progress = 1.0

    @property
    def schedule_progress(self) -> float:
        """Share of the present run's layers that are on the stream, 0 to 1; 0 as soon as a manual schedule starts."""
        return self._progress

    def cancel(self) -> bool:
        """Give up the present run if it is not wholly on the stream; the Worker stays usable."""
        with self._engine.entering():
            return self._last is not None and self._last.cancel()

    # ---- results

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output of the last run (the first, without a name); it may be pending. No copy, no wait."""
        return self._require_run().peek_output(name)

    def read_output(self, name: str | None = None) -> Array:
        """Block for an output of the last run as an array of the caller's own; see `run`."""
        return self.peek_output(name).readback_and_clone()

    def copy_output(self, name: str | None = None, out: Tensor | None = None, *, stream: object = None) -> Tensor:
        """Copy an output of the last run on the device, without waiting; the copy is the caller's.

        Args:
            name: Which output; None: the first.
            out: A tensor that `copy_output` made before, of the same dtype and shape, to copy into.
            stream: A stream of yours: the copy comes after what is on it now, and what you put on it afterwards comes
                after the copy.

        Raises:
            InputError: ``out`` does not fit, ``stream`` is none, or the output is strings or a container, which lie on
                the host.
        """
        with self._engine.entering():
            caller = None if stream is None else CallerStream.of(self._engine.backend, stream)
            return copy_tensor(self._require_run().peek_output(name), out, self._engine.backend, caller)

    def _require_run(self) -> Run:
        self._engine.check_open()
        if self._last is None:
            raise StateError("No run was scheduled yet; call schedule(inputs) first.")
        return self._last
