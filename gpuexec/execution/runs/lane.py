"""Lane: runs computed in the call that waits for them, over arrays that were bound once; on devices that record calls.

Such a run holds inputs against those of a run before, copies them in, makes the calls of one plan and copies outputs
out. It has no event, fence or readback; a `Run` is made of it where somebody asks for an output by name afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.device import Region
from gpuexec.execution.resources.frames import Frame, Lease
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.bound_plan import BoundPlan, bind_plan
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES, GivenInput, HostArray, name_inputs
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.run import Run
from gpuexec.execution.runs.storage import Storage
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.graphs import Value
from gpuexec.ir.plan import Read
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model
from gpuexec.system.threads import computing

Array = np.ndarray[Any, Any]

_MOST_TRACKS = 4
# Runs of a size after each of which it is tried to bind them, since the first take longer; then at powers of two.
_FIRST_TRIES = 6


@dataclass(frozen=True, slots=True, eq=False)
class _Track:
    """One size of inputs, with all that its runs need.

    Attributes:
        bound: What its runs call.
        inputs: Name, shape, type and the array that each is copied to.
        reads: What planning and branches read of inputs, each with what it found.
        outputs: Where calls leave outputs, by name.
        names: The inputs that are memories.
        memories: The array that each of them is copied to, and the one that its next content is in.
        kept: The inputs, for a later run that leaves some out.
    """

    bound: BoundPlan
    inputs: tuple[tuple[str, tuple[int, ...], np.dtype[Any], Array], ...]
    reads: tuple[tuple[Read, bytes], ...]
    outputs: Mapping[str, Array]
    names: tuple[str, ...]
    memories: tuple[tuple[Array, Array], ...]
    kept: Mapping[str, GivenInput]


class HeldMemories(Protocol):
    """What memories hold between runs."""

    outputs: frozenset[Value]

    def list_arrays(self, names: Sequence[str]) -> Sequence[Array] | None:
        """Return what memories hold, by their inputs, where all of it lies on the host and nothing is under way."""

    def leave(self, arrays: Mapping[str, Array]) -> None:
        """Let all memories hold what a run made that is over."""


class Lane:
    """Runs of an engine that are computed in the call.

    Args:
        context: Plans, stream and lock of the engine.
        storage: Its memory.
        memories: Its memories.
        give_up: Called by a run that its caller gives up.
    """

    def __init__(
        self, context: ExecutionContext, storage: Storage, memories: HeldMemories, give_up: Callable[[Run], bool]
    ) -> None:
        self._memories = memories
        self._context, self._planning, self._storage, self._give_up = context, context.planning, storage, give_up
        self._tracks: list[_Track] = []
        # What the last run was by that was scheduled, and how many before it in a row.
        self._seen: PlannedVariant | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and outputs."""
        return sum(track.bound.nbytes for track in self._tracks)

    def forget(self) -> None:
        """Let go of all that is bound: memory or weights are others now."""
        if self._tracks:
            self._planning.backend.memory_revision.number += 1
        self._tracks, self._seen = [], None

    def run(self, model: Model, inputs: object) -> LastLap | None:
        """Compute a run; None: it has to be scheduled, for it is another one, or failed, and scheduled tells why.

        The caller has seen to it that nothing is under way. An interrupt loses the inputs that a later run may leave
        out.

        Args:
            model: Whose inputs.
            inputs: As of `Worker.run`.
        """
        if not self._tracks:
            return None
        named = name_inputs(model, inputs)
        track = self._find(named)
        if track is None:
            return None
        held = self._memories.list_arrays(track.names) if track.names else ()
        if held is None or any(a.shape != b.shape for a, (b, _) in zip(held, track.memories, strict=True)):
            return None
        run_counter, binder = self._storage.run_counter, self._storage.binder
        with run_counter.lock:
            number = run_counter.advance()
        binder.kept = {}
        for name, _, _, array in track.inputs:
            array[...] = named[name]
        for (array, _), content in zip(track.memories, held, strict=True):
            array[...] = content
        try:
            with np.errstate(all="ignore"), computing(self._planning.backend.threads):
                for call in track.bound.calls:
                    call()
        except Exception:
            self.forget()
            return None
        binder.kept = dict(track.kept)
        if track.names:
            self._memories.leave(
                {name: array.copy() for name, (_, array) in zip(track.names, track.memories, strict=True)}
            )
        arrays = {name: array.copy() for name, array in track.outputs.items()}
        return LastLap(self, track, number, arrays)

    def note(self, stage: Stage, planned: PlannedVariant | None) -> None:
        """Bind what a run needs that was scheduled, is done, and is of a size that comes again."""
        self._count = self._count + 1 if planned is self._seen else 0
        self._seen = planned
        is_rare = self._count > _FIRST_TRIES and self._count & (self._count - 1)
        if planned is None or not self._count or is_rare:
            return
        self._tracks = [track for track in self._tracks if track.bound.planned is not planned]
        track = self._bind(stage, planned)
        if track is not None:
            self._tracks = [track, *self._tracks[: _MOST_TRACKS - 1]]
            self._planning.backend.memory_revision.number += 1

    def _make_run(self, track: _Track, number: int) -> Run:
        backend, run_counter, stream = self._planning.backend, self._storage.run_counter, self._context.stream
        run, frame = Run(number, backend, self._give_up), Frame(backend)
        run._fence.issue(())
        lease = Lease(backend, frame, run_counter, number)
        for value in self._planning.framed:
            array = track.outputs[value.name]
            region = frame.output(value.name, array.nbytes)
            spec = TensorSpec(array.shape, array.dtype)
            region.view(spec)[...] = array
            place = Place(value.name, spec, Region(region.memory, 0, spec.nbytes))
            content = Content(value.name, backend, place, run._fence, lease, stream)
            run._outputs[value.name] = Tensor(content)
        return run

    def _find(self, named: Mapping[str, object]) -> _Track | None:
        """Return the track of such inputs, which are arrays."""
        for place, track in enumerate(self._tracks):
            if len(named) != len(track.inputs):
                continue
            for name, shape, dtype, _ in track.inputs:
                x = named.get(name)
                if type(x) is not np.ndarray or x.shape != shape or x.dtype != dtype:
                    break
            else:
                if not all(read.extract(named[read.input]) == found for read, found in track.reads):  # type: ignore[arg-type]
                    continue
                if not track.bound.is_valid:
                    self.forget()
                    return None
                if place:
                    self._tracks.insert(0, self._tracks.pop(place))
                return track
        return None

    def _bind(self, stage: Stage, planned: PlannedVariant) -> _Track | None:
        """Return a run's track; None where it is none of one plan over small arrays of the host."""
        graph, model = stage.partition.ready, self._planning.model
        if graph is None or stage.rest is not None or stage.partition.host_nodes:
            return None
        left = {memory.output: memory.input for memory in model.memories}
        if {*graph.outputs} != {*self._planning.framed, *self._memories.outputs}:
            return None
        if any(memory.axis is not None for memory in model.memories):
            return None
        kept = {
            name: item.array
            for name, item in self._storage.binder.kept.items()
            if isinstance(item, HostArray) and item.array is not None
        }
        own = [port.name for port in model.inputs]
        if not kept.keys() >= {*own} or any(kept[name].nbytes >= IN_PLACE_NBYTES for name in own):
            return None
        wholes = [Read(value.name, "", "a branch") for value, _ in stage.conditions]
        reads = [*planned.variant.reads, *wholes]
        if any(read.input not in own for read in reads):
            return None
        with self._context.lock, computing(self._planning.backend.threads):
            bound = bind_plan(self._planning.backend.device, self._context.stream, stage, planned)
        if bound is None:
            return None
        given = {
            value.name: array for value, array in zip(graph.inputs, bound.inputs, strict=True) if array is not None
        }
        made = {value.name: array for value, array in zip(graph.outputs, bound.outputs, strict=True)}
        given |= {name: np.empty(kept[name].shape, kept[name].dtype) for name in own if name not in given}
        return _Track(
            bound,
            tuple([(name, given[name].shape, given[name].dtype, given[name]) for name in own]),
            tuple([(read, read.extract(kept[read.input])) for read in reads]),
            {value.name: made[value.name] for value in self._planning.framed},
            tuple(left.values()),
            tuple([(given[name], made[output]) for output, name in left.items()]),
            {name: HostArray(TensorSpec(given[name].shape, given[name].dtype), given[name]) for name in own},
        )


@dataclass(slots=True, eq=False)
class LastLap:
    """A run that was computed in the call.

    Attributes:
        arrays: The outputs by name, which are the caller's.
    """

    _lane: Lane
    _track: _Track
    _number: int
    arrays: dict[str, Array]

    def make_run(self) -> Run:
        """Return the run, its outputs in memory of their own; no other has begun since."""
        return self._lane._make_run(self._track, self._number)
