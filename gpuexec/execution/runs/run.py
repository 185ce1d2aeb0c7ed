"""Run handle: outputs at once, work that is waited for only on demand."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuexec.devices.backend import Backend
from gpuexec.errors import InputError, StateError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.syncs import are_syncs_allowed
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inspection import Inspection
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Value
from gpuexec.system.pickling import not_picklable


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a run scheduled piece by piece.

    ``index`` counts the layers before it; ``nodes`` are those the step put on the stream, or that the host computed,
    one for each layer. A step that is ``waiting`` put none there: the layer of that index needs something from
    elsewhere that has not come yet.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     steps = list(worker.schedule_iterable(x))
        >>> steps[0].index, steps[0].waiting, sum(len(step.nodes) for step in steps)
        (0, False, 7)
    """

    index: int
    nodes: tuple[str, ...]
    waiting: bool


@dataclass(frozen=True, slots=True)
class Issued:
    """Nodes just put on the stream, or computed on the host; ``left`` estimates how many layers follow."""

    nodes: tuple[str, ...]
    left: int


@dataclass(frozen=True, slots=True)
class MustWait:
    """A wait for something outside the stream, or for work that another thread should do.

    ``is_over`` tells whether it has and never waits; ``wait`` does. ``is_work``: what comes next keeps the thread busy.
    """

    is_over: Callable[[], bool]
    wait: Callable[[], object]
    is_work: bool = False


RunProgress = Issued | MustWait
# No wait: a point at which a cancelled run stops.
CANCELLATION_POINT = MustWait(lambda: True, lambda: None)


@not_picklable("Send arrays: peek_output(name).readback_and_clone().")
class Run:
    """One run in flight. Its outputs are Tensors at once; `wait`, `await`, or poll `is_done` for the work.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     run = worker.schedule(x)  # at once
        ...     run.wait(), run.is_done(), run.outputs["logits"].shape
        (True, True, (8, 10))
    """

    def __init__(self, number: int, backend: Backend, give_up: Callable[[Run], bool]) -> None:
        self.number = number
        self._backend, self._give_up = backend, give_up
        self._fence = Fence()
        self._outputs: dict[str, Tensor] = {}
        self._is_cancelled = False
        self._inspection: Inspection | None = None
        # Whether it may wait for the device, on whatever thread, without having been asked to.
        self._allows_syncs = are_syncs_allowed()

    @property
    def outputs(self) -> dict[str, Tensor]:
        """The outputs by name."""
        return dict(self._outputs)

    def peek_output(self, name: str | None = None) -> Tensor:
        """Return an output (the first, without a name); it may be pending.

        Raises:
            InputError: There is no output of that name.
        """
        self._backend.check_process()
        if name is None:
            return next(iter(self._outputs.values()))
        if name not in self._outputs:
            raise InputError(f"There is no output {name!r}; the model has {', '.join(self._outputs)}.", value=name)
        return self._outputs[name]

    @property
    def inspection(self) -> Inspection:
        """Results of the taps and watches of this run; they may be pending.

        Raises:
            StateError: There were neither when the run was scheduled.
        """
        if self._inspection is None:
            raise StateError("Nothing of this run was looked at; use Worker(watch=...) or worker.tap(...) before it.")
        return self._inspection

    def is_done(self) -> bool:
        """Return whether all work is done, or given up; never waits."""
        self._backend.check_process()
        return self._fence.is_done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            CancelledError: The run was cancelled.
            GpuexecError: What the work raised.
        """
        self._backend.check_process()
        return self._fence.synchronize(timeout_s)

    def cancel(self) -> bool:
        """Cancel the run; False if its work is done, or wholly on the stream and can't be taken back."""
        self._backend.check_process()
        return self._give_up(self)

    def is_cancelled(self) -> bool:
        """Return whether the run was given up."""
        return self._is_cancelled

    def _settle(self, values: Mapping[Value, ValueLocation], outputs: Iterable[Value]) -> None:
        """Set specs and bytes of the outputs: all of the run is on its stream."""
        for value in outputs:
            location = values[value]
            region, array = location.region, location.array
            assert region is not None or array is not None, "an output is nowhere"
            # Strings and containers have no bytes on a device.
            content = self._outputs[value.name]._content
            if not content.is_closed:
                content.place.settle(location.spec, region, array if region is None else None)

    def __await__(self) -> Generator[Any, None, Run]:
        self._backend.check_process()
        yield from self._fence.wait(self._backend.completion).__await__()
        return self

    def __repr__(self) -> str:
        state = "cancelled" if self._is_cancelled else "done" if self._fence.is_done() else "pending"
        return f"Run({self.number}, {state})"
