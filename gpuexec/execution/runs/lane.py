"""Lane: runs computed in the call that waits for them, over arrays that were bound once; on devices that record calls.

Such a run holds inputs against those of a run before, copies them in, makes the calls of one plan and copies outputs
out. It has no event, fence or readback; a `Run` is made of it where somebody asks for an output by name afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.device import CallRecording, MemoryBlock, Region
from gpuexec.execution.resources.frames import Frame, Lease
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES, GivenInput, HostArray, name_inputs
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.run import Run
from gpuexec.execution.runs.storage import Storage
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.plan import Port, Read
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.model.model import Model

Array = np.ndarray[Any, Any]

_MOST_TRACKS = 4
# First runs take longer than those behind them; what is too long after so many stays so.
_MOST_TRIES = 6
# A run longer than this gains nothing here, and may gain from commands side by side.
_MOST_SECONDS = 3e-3


@dataclass(frozen=True, slots=True, eq=False)
class _Track:
    """One size of inputs, with all that its runs need.

    Attributes:
        planned: What its runs are by.
        recording: Whose calls they are; another one has other memory.
        inputs: Name, shape, type and the array that each is copied to.
        reads: What planning read of inputs, each with what it found.
        calls: What a run calls.
        outputs: Where it leaves outputs, by name.
        kept: The inputs, for a later run that leaves some out.
        blocks: The memory of inputs and outputs.
    """

    planned: PlannedVariant
    recording: CallRecording
    inputs: tuple[tuple[str, tuple[int, ...], np.dtype[Any], Array], ...]
    reads: tuple[tuple[Read, bytes], ...]
    calls: Sequence[Callable[[], object]]
    outputs: Mapping[str, Array]
    kept: Mapping[str, GivenInput]
    blocks: tuple[MemoryBlock, ...]


class Lane:
    """Runs of an engine that are computed in the call.

    Args:
        context: Plans, stream and lock of the engine.
        storage: Its memory.
        give_up: Called by a run that its caller gives up.
    """

    def __init__(self, context: ExecutionContext, storage: Storage, give_up: Callable[[Run], bool]) -> None:
        self._context, self._planning, self._storage, self._give_up = context, context.planning, storage, give_up
        self._tracks: list[_Track] = []
        # What the last run was by that was scheduled, and how many before it in a row.
        self._seen: PlannedVariant | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and outputs."""
        return sum(block.nbytes for track in self._tracks for block in track.blocks)

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
        run_counter, binder = self._storage.run_counter, self._storage.binder
        with run_counter.lock:
            number = run_counter.advance()
        binder.kept = {}
        for name, _, _, array in track.inputs:
            array[...] = named[name]
        try:
            with np.errstate(all="ignore"):
                for call in track.calls:
                    call()
        except Exception:
            self.forget()
            return None
        binder.kept = dict(track.kept)
        arrays = {name: array.copy() for name, array in track.outputs.items()}
        return LastLap(self, track, number, arrays)

    def note(self, stage: Stage, planned: PlannedVariant | None) -> None:
        """Bind what a run needs that was scheduled, is done, and is of a size that comes again."""
        self._count = self._count + 1 if planned is self._seen else 0
        self._seen = planned
        if planned is None or not 0 < self._count < _MOST_TRIES:
            return
        self._tracks = [track for track in self._tracks if track.planned is not planned]
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
            memory, spec = region.memory.array, TensorSpec(array.shape, array.dtype)
            assert memory is not None
            memory[: array.nbytes] = array.reshape(-1).view(np.uint8)
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
                if track.planned.compiled.recording is not track.recording:
                    self.forget()
                    return None
                if place:
                    self._tracks.insert(0, self._tracks.pop(place))
                return track
        return None

    def _bind(self, stage: Stage, planned: PlannedVariant) -> _Track | None:
        """Return a run's track; None where it is none of one plan over small arrays of the host."""
        recording = planned.compiled.recording
        graph, plan, variant = stage.partition.ready, planned.compiled.plan, planned.variant
        if graph is None or stage.rest is not None or stage.partition.host_nodes or planned.stands_for is not None:
            return None
        if stage.plans is None or not isinstance(recording, CallRecording) or not recording.seconds < _MOST_SECONDS:
            return None
        framed = self._planning.framed
        names = {value.name for value in graph.inputs}
        if {*graph.outputs} != {*framed} or names != {port.name for port in self._planning.model.inputs}:
            return None
        specs = [*variant.inputs, *variant.outputs]
        if any(is_host_object(spec.dtype) or spec.nbytes >= IN_PLACE_NBYTES for spec in specs):
            return None
        if any(value in graph.inputs for value in graph.outputs):
            return None
        kept = self._storage.binder.kept
        found = [(read, kept.get(read.input)) for read in variant.reads]
        reads = [(read, item.array) for read, item in found if isinstance(item, HostArray) and item.array is not None]
        if len(reads) < len(found):
            return None
        blocks: dict[int, MemoryBlock] = {}

        def open_array(port: Port, spec: TensorSpec) -> Array:
            """Return the array of a port, in a block that its buffer is bound to."""
            number = -1 - len(blocks) if port.buffer is None else port.buffer
            if number not in blocks:
                nbytes = spec.nbytes if port.buffer is None else plan.buffers[port.buffer].nbytes
                blocks[number] = self._planning.backend.device.allocate(max(1, nbytes))
            memory = blocks[number].array
            assert memory is not None
            array: Array = memory[: spec.nbytes].view(spec.dtype).reshape(spec.shape)
            return array

        given = [open_array(port, spec) for port, spec in zip(plan.inputs, variant.inputs, strict=True)]
        made = [open_array(port, spec) for port, spec in zip(plan.outputs, variant.outputs, strict=True)]
        with self._context.lock, np.errstate(all="ignore"):
            stage.plans.record(planned, self._context.stream)
            calls = recording.bind({number: Region(block, 0, block.nbytes) for number, block in blocks.items()})
        inputs = zip(graph.inputs, variant.inputs, given, strict=True)
        return _Track(
            planned,
            recording,
            tuple([(value.name, spec.shape, spec.dtype, array) for value, spec, array in inputs]),
            tuple([(read, read.extract(array)) for read, array in reads]),
            calls,
            {value.name: array for value, array in zip(graph.outputs, made, strict=True)},
            {v.name: HostArray(s, x) for v, s, x in zip(graph.inputs, variant.inputs, given, strict=True)},
            tuple(blocks.values()),
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
