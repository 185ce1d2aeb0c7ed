"""Lane: runs computed in the call that waits for them, over arrays that were bound once; on devices that record calls.

Such a run holds inputs against those of a run before, copies them in, makes the calls of one plan and copies outputs
out; what is large is read where it lies, and written where it stays. It has no event, fence or readback; a `Run` is
made of it where somebody asks for an output by name afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.device import Device, Region
from gpuexec.execution.resources.frames import Frame, Lease
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.bound_plan import BoundPlan, bind_plan
from gpuexec.execution.runs.execution_context import ExecutionContext
from gpuexec.execution.runs.in_place import GrownMemories
from gpuexec.execution.runs.inputs import IN_PLACE_NBYTES, HostArray, name_inputs
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.run import Run
from gpuexec.execution.runs.storage import Storage
from gpuexec.execution.runs.subgraph import Stage
from gpuexec.ir.graphs import Value
from gpuexec.ir.plan import Read
from gpuexec.ir.size_layout import SizedVariant
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model
from gpuexec.planner.caches import Cache
from gpuexec.system.threads import computing

Array = np.ndarray[Any, Any]

_MOST_TRACKS = 4
# Runs of a size after each of which it is tried to bind them, since the first take longer; then at powers of two.
_FIRST_TRIES = 6


class HeldMemories(Protocol):
    """What memories hold between runs."""

    outputs: frozenset[Value]

    def list_arrays(self, names: Sequence[str]) -> Sequence[Array] | None:
        """Return what memories hold, by their inputs, where all of it lies on the host and nothing is under way."""

    def list_grown(self, caches: Mapping[Value, Cache]) -> Sequence[GrownMemories] | None:
        """Return the memories that grow, where the next run may append to all of them as they lie."""

    def leave(self, arrays: Mapping[str, Array], grown: Sequence[tuple[GrownMemories, TensorSpec]]) -> None:
        """Let all memories hold what a run made that is over."""


class _Track:
    """One size of inputs, with all that its runs need; where memories grow, all sizes of one plan.

    Args:
        bound: What its runs call.
        stage: Whose plan.
        own: The inputs of the run that it is made of, by name, in the model's order.
        reads: What planning and branches read of inputs, each with what it found.
        framed: The outputs that are no memories.
        left: Of the memories that are copied, the output and the input of each.
        grown: The memories that are appended to.

    Attributes:
        bound: As above.
        reads: As above.
        inputs: Name, shape, type and the array that each is copied to; None: it is read where it lies.
        outputs: Where calls leave outputs, by name; not those that are lent memory.
        lent_inputs: The inputs that are read where they lie, each with its buffer.
        lent_outputs: The outputs that are written where they stay: name, spec, buffer and its bytes.
        names: The inputs that are memories and copied.
        memories: The array that each of them is copied to, and the one that its next content is in.
        kept: The inputs, for a later run that leaves some out.
        grows: Whether memories grow.
    """

    def __init__(
        self,
        bound: BoundPlan,
        stage: Stage,
        own: Mapping[str, TensorSpec],
        reads: tuple[tuple[Read, bytes], ...],
        framed: Sequence[Value],
        left: Mapping[str, str],
        grown: Sequence[GrownMemories],
    ) -> None:
        graph = stage.partition.ready
        assert graph is not None and stage.plans is not None
        self.bound, self.reads, self.names, self.grows = bound, reads, tuple(left.values()), bool(grown)
        self._plans, self._graph, self._framed, self._left = stage.plans, graph, framed, left
        self._regions = [each.regions for each in grown]
        places = {value: place for place, value in enumerate(graph.outputs)}
        self._grown_outputs = [[places[output] for output in each.outputs] for each in grown]
        # By input of the graph: which of the memories that grow, or what else it is.
        kinds = {value: kind for kind, each in enumerate(grown) for value in each.inputs}
        self._shapes = [(kinds.get(value, -1), value.name) for value in graph.inputs]
        self._own = own
        plan, variant, lent = bound.planned.compiled.plan, bound.planned.variant, bound.lent
        self.lent_inputs = [(value.name, lent[value]) for value in graph.inputs if value in lent]
        self.lent_outputs = [
            (value.name, spec, lent[value], plan.buffers[lent[value]].nbytes)
            for value, spec in zip(graph.outputs, variant.outputs, strict=True)
            if value in lent
        ]
        self._fitted: tuple[object, object] = None, None
        self._fit()

    def grow(self, named: Mapping[str, Any], memories: HeldMemories) -> Sequence[GrownMemories] | None:
        """Take the size of inputs and of memories that grow; the caller holds the lock for issuing.

        Returns:
            The memories, as they are before the run; None: the size is none of the plan, or they lie elsewhere.
        """
        grown = memories.list_grown(self._plans.caches)
        if grown is None or [id(each.regions) for each in grown] != [id(regions) for regions in self._regions]:
            return None
        given = {name: x.shape for name, x in named.items()}
        given |= {name: array.shape for name, (array, _) in zip(self.names, self.memories, strict=True)}
        shapes = tuple([given[name] if kind < 0 else grown[kind].spec.shape for kind, name in self._shapes])
        planned = self._plans.find(shapes)
        if planned is None or not self.bound.resize(planned):
            return None
        self._fit()
        return grown if all(named[name].shape == shape for name, shape, _, _ in self.inputs) else None

    def list_left(self, grown: Sequence[GrownMemories]) -> list[tuple[GrownMemories, TensorSpec]]:
        """Return memories that a run has appended to, with the specs that they have now."""
        outputs = self.bound.planned.variant.outputs
        return [(each, outputs[places[0]]) for each, places in zip(grown, self._grown_outputs, strict=True)]

    def _fit(self) -> None:
        """Take the arrays of the size that is bound, if they are others."""
        bound, graph, known = self.bound, self._graph, self._fitted
        if known[0] is bound.inputs and known[1] is bound.outputs:
            return
        self._fitted = bound.inputs, bound.outputs
        variant = bound.planned.variant
        given = {value.name: x for value, x in zip(graph.inputs, bound.inputs, strict=True) if x is not None}
        made = {value.name: x for value, x in zip(graph.outputs, bound.outputs, strict=True) if x is not None}
        shapes = {value.name: spec.shape for value, spec in zip(graph.inputs, variant.inputs, strict=True)}
        own = {name: spec.with_shape(shapes.get(name, spec.shape)) for name, spec in self._own.items()}
        for name, spec in own.items():
            if name not in given and spec.nbytes < IN_PLACE_NBYTES:
                given[name] = np.empty(spec.shape, spec.dtype)
        self.inputs = tuple([(name, spec.shape, spec.dtype, given.get(name)) for name, spec in own.items()])
        self.outputs = {value.name: made[value.name] for value in self._framed if value.name in made}
        self.memories = tuple([(given[name], made[output]) for output, name in self._left.items()])
        self.kept = {name: HostArray(spec, given.get(name), is_kept=name in given) for name, spec in own.items()}

    def lend(self, named: Mapping[str, Any], device: Device) -> dict[str, Array]:
        """Give large inputs and outputs their places for a run, and return the arrays of those outputs by name.

        Args:
            named: The inputs.
            device: Where memory of outputs comes from.

        Raises:
            OutOfMemoryError: There is no room for an output.
        """
        places, arrays = self.bound.places, dict[str, Array]()
        for name, buffer in self.lent_inputs:
            x = named[name]
            places[buffer] = Region(BorrowedMemory.of(x), 0, x.nbytes)
        for name, spec, buffer, nbytes in self.lent_outputs:
            memory = device.allocate(nbytes)
            places[buffer] = region = Region(memory, 0, nbytes)
            arrays[name] = region.view(spec)
        return arrays

    def end_loan(self) -> None:
        """Forget the places of large inputs and outputs."""
        for buffer in self.bound.lent.values():
            self.bound.places.pop(buffer, None)


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

    def run(self, model: Model, inputs: object, *, copies: bool) -> LastLap | None:
        """Compute a run; None: it has to be scheduled, for it is another one, or failed, and scheduled tells why.

        The caller has seen to it that nothing is under way. An interrupt loses the inputs that a later run may leave
        out.

        Args:
            model: Whose inputs.
            inputs: As of `Worker.run`.
            copies: Whether large inputs and outputs are copied too.
        """
        if not self._tracks:
            return None
        named = name_inputs(model, inputs)
        track = self._find(named)
        if track is None or (copies and track.bound.lent):
            return None
        grown: Sequence[GrownMemories] | None = ()
        if track.grows:
            with self._context.lock:
                grown = track.grow(named, self._memories)
            if grown is None:
                return None
        held = self._memories.list_arrays(track.names) if track.names else ()
        if held is None or any(a.shape != b.shape for a, (b, _) in zip(held, track.memories, strict=True)):
            return None
        run_counter, binder = self._storage.run_counter, self._storage.binder
        with run_counter.lock:
            number = run_counter.advance()
        binder.kept = {}
        for name, _, _, array in track.inputs:
            if array is not None:
                array[...] = named[name]
        for (array, _), content in zip(track.memories, held, strict=True):
            array[...] = content
        try:
            lent = track.lend(named, self._planning.backend.device)
            with np.errstate(all="ignore"), computing(self._planning.backend.threads):
                for call in track.bound.calls:
                    call()
        except Exception:
            self.forget()
            return None
        finally:
            track.end_loan()
        binder.kept = dict(track.kept)
        if track.names or grown:
            copied = {name: array.copy() for name, (_, array) in zip(track.names, track.memories, strict=True)}
            self._memories.leave(copied, track.list_left(grown or ()))
        arrays = {name: array.copy() for name, array in track.outputs.items()}
        return LastLap(self, {**track.outputs, **lent}, number, arrays | lent)

    def note(self, stage: Stage, planned: PlannedVariant | None) -> None:
        """Bind what a run needs that was scheduled, is done, and is of a size that comes again."""
        self._count = self._count + 1 if self._are_alike(planned, self._seen) else 0
        self._seen = planned
        is_rare = self._count > _FIRST_TRIES and self._count & (self._count - 1)
        if planned is None or not self._count or is_rare:
            return
        self._tracks = [track for track in self._tracks if not self._are_alike(track.bound.planned, planned)]
        track = self._bind(stage, planned)
        if track is not None:
            self._tracks = [track, *self._tracks[: _MOST_TRACKS - 1]]
            self._planning.backend.memory_revision.number += 1

    def _are_alike(self, planned: PlannedVariant | None, other: PlannedVariant | None) -> bool:
        """Return whether one track serves both: where memories grow, all sizes that share their commands."""
        if planned is other or planned is None or other is None or planned.compiled is not other.compiled:
            return planned is other
        grows = any(memory.axis is not None for memory in self._planning.model.memories)
        return grows and isinstance(planned.variant, SizedVariant) and isinstance(other.variant, SizedVariant)

    def _make_run(self, arrays: Mapping[str, Array], number: int) -> Run:
        backend, run_counter, stream = self._planning.backend, self._storage.run_counter, self._context.stream
        run, frame = Run(number, backend, self._give_up), Frame(backend)
        run._fence.issue(())
        lease = Lease(backend, frame, run_counter, number)
        for value in self._planning.framed:
            array = arrays[value.name]
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
            for name, shape, dtype, array in track.inputs:
                x = named.get(name)
                if type(x) is not np.ndarray or x.dtype != dtype or (x.shape != shape and not track.grows):
                    break
                if array is None and not (x.flags.c_contiguous and x.flags.aligned):
                    break  # it can't be read where it lies
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
        grown: Sequence[GrownMemories] = ()
        if any(memory.axis is not None for memory in model.memories):
            found = None if stage.plans is None else self._memories.list_grown(stage.plans.caches)
            if found is None or planned.variant.reads or stage.conditions or stage.shapes is not None:
                return None
            grown = found
        elsewhere = {
            value: region
            for each in grown
            for values in (each.inputs, each.outputs)
            for value, region in zip(values, each.regions, strict=True)
        }
        kept = {
            name: item.array
            for name, item in self._storage.binder.kept.items()
            if isinstance(item, HostArray) and item.array is not None
        }
        own = [port.name for port in model.inputs]
        lent = {
            name for name, item in self._storage.binder.kept.items() if isinstance(item, HostArray) and not item.is_kept
        }
        if not kept.keys() | lent >= {*own}:
            return None
        wholes = [Read(value.name, "", "a branch") for value, _ in stage.conditions]
        reads = [*planned.variant.reads, *wholes]
        if any(read.input not in own or read.input in lent for read in reads):
            return None
        with self._context.lock, computing(self._planning.backend.threads):
            lendable = () if grown else (*own, *[value.name for value in self._planning.framed])
            bound = bind_plan(self._planning.backend.device, self._context.stream, stage, planned, elsewhere, lendable)
        if bound is None:
            return None
        return _Track(
            bound,
            stage,
            {name: self._storage.binder.kept[name].spec for name in own},
            tuple([(read, read.extract(kept[read.input])) for read in reads]),
            tuple(self._planning.framed),
            {output: name for output, name in left.items() if output not in {v.name for v in elsewhere}},
            grown,
        )


@dataclass(slots=True, eq=False)
class LastLap:
    """A run that was computed in the call.

    Attributes:
        arrays: The outputs by name, which are the caller's.
    """

    _lane: Lane
    _made: Mapping[str, Array]
    _number: int
    arrays: dict[str, Array]

    def make_run(self) -> Run:
        """Return the run, its outputs in memory of their own; no other has begun since."""
        return self._lane._make_run(self._made, self._number)
