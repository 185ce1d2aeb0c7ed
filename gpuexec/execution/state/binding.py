"""State binding of a run: the content its memories start from, and the content it leaves.

Memories that are declared alike are bound together, those that lie in place without a look at each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.runs.in_place import GrownMemories, InPlaceMemories
from gpuexec.execution.runs.inputs import GivenInput, HostArray, check_ports
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.execution.state.bytes import CacheBytes, RowHolders, copy_rows
from gpuexec.execution.state.carried import Carried
from gpuexec.execution.state.state import State, check_fits
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory, check_held, check_left
from gpuexec.planner.caches import Cache

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _MemoryKind:
    """Memories of a model that are declared alike.

    Attributes:
        memories: In the model's order.
        names: Their inputs.
        inputs: The inputs as values of the graph.
        outputs: The outputs.
        read: The inputs, as a set.
    """

    memories: tuple[Memory, ...]
    names: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    read: frozenset[Value]

    @classmethod
    def of(cls, rows: Sequence[tuple[Memory, Value, Value]]) -> _MemoryKind:
        """Return the kind of memories with their values."""
        memories = tuple([memory for memory, _, _ in rows])
        inputs, outputs = tuple([value for _, value, _ in rows]), tuple([output for _, _, output in rows])
        return cls(memories, tuple([memory.input for memory in memories]), inputs, outputs, frozenset(inputs))

    def divide(self, specs: Mapping[Value, TensorSpec]) -> Iterable[tuple[_MemoryKind, TensorSpec | None]]:
        """Return those whose outputs have one spec, with it: mostly all; None: it is not known."""
        known = [specs.get(output) for output in self.outputs]
        first = known[0]
        if first is not None and known.count(first) == len(known):
            return ((self, first),)
        rows = zip(zip(self.memories, self.inputs, self.outputs, strict=True), known, strict=True)
        return [(_MemoryKind.of([row]), spec) for row, spec in rows]


@dataclass(slots=True, eq=False)
class _Left:
    """What a run leaves in memories: of a kind, or of a part of one.

    Attributes:
        kind: The memories.
        carried: The content.
        bytes: Where the run appends to them, all of them there already, so that nothing is to be said of each.
    """

    kind: _MemoryKind
    carried: Carried
    bytes: tuple[Region, ...] | None = None


# What memories hold, or zeros: contents, each with the memories whose newest it is.
HeldContents = Sequence[tuple[Carried, tuple[str, ...]]]


class StateBinder:
    """Binds the memories of a model, run after run, to what the run before left, without a copy."""

    def __init__(self, model: Model, backend: Backend, stream: Stream, pool: ExchangePool, syncs: SyncLog) -> None:
        self._backend, self._stream, self._pool, self._syncs = backend, stream, pool, syncs
        self.adopt(model)
        self.state = State(model, backend)

    def adopt(self, model: Model) -> None:
        """Bind the memories of a model, which has those that the state holds."""
        self._model, graph = model, model.graph
        inputs, outputs = {v.name: v for v in graph.inputs}, {v.name: v for v in graph.outputs}
        alike: dict[tuple[object, ...], list[tuple[Memory, Value, Value]]] = {}
        for memory in model.memories:
            row = memory, inputs[memory.input], outputs[memory.output]
            declared = row[2].declared
            left = None if declared is None else declared.dims
            key = (memory.shape, memory.dtype, memory.axis, memory.capacity, memory.is_implicit, left)
            alike.setdefault(key, []).append(row)
        self._kinds = tuple([_MemoryKind.of(rows) for rows in alike.values()])
        self._by_names = {id(kind.names): kind for kind in self._kinds}
        self._memories = {memory.input: memory for memory in model.memories}
        self._values = inputs
        self._ports = {port.name: port for port in model.ports}
        # Those that the run before appended to in place, with the kinds and the bytes that they are.
        self._in_place: tuple[list[object], InPlaceMemories] = [], InPlaceMemories()
        self.outputs = frozenset([output for kind in self._kinds for output in kind.outputs])
        self.inputs = frozenset([value for kind in self._kinds for value in kind.inputs])

    def replace(self, state: State) -> None:
        """Go on from another state.

        Raises:
            InputError: It holds other memories, or lies on another device.
        """
        if not self._model.memories:
            raise InputError(f"{self._model.graph.name!r} has no memories that {state!r} could hold.")
        check_fits(state.memories, state.backend, self._model.memories, self._backend, "The state")
        self.state = state

    def forget(self) -> None:
        """Drop the state, which others may still use."""
        self.state = State(self._model, self._backend)

    def list_arrays(self, names: Sequence[str]) -> Sequence[Array] | None:
        """Return what memories hold, by their inputs, where all of it lies on the host and nothing is under way."""
        return self.state._list_arrays(names)

    def list_grown(self, caches: Mapping[Value, Cache]) -> Sequence[GrownMemories] | None:
        """Return the memories that grow, where the next run may append to all as they lie; None: it may not.

        Args:
            caches: Inputs that its plan appends to.
        """
        kinds = [kind for kind in self._kinds if kind.memories[0].axis is not None]
        held = {id(carried.names): carried for carried in self.state._list_grown()} if kinds else {}
        found = []
        for kind in kinds:
            carried = held.get(id(kind.names))
            if carried is None or carried.caches is None or carried.regions is None or carried.starts:
                return None
            cache = caches.get(kind.inputs[0])
            if cache is None or not self._has_room(cache, carried.caches[0], carried.known):
                return None
            found.append(GrownMemories(kind.inputs, kind.outputs, carried.known, carried.regions, carried))
        return found

    def leave(self, arrays: Mapping[str, Array], grown: Sequence[tuple[GrownMemories, TensorSpec]] = ()) -> None:
        """Let all memories hold what a run made that is over.

        Args:
            arrays: By input.
            grown: What lay with room for the run's rows, each with its spec now.
        """
        fence, made = Fence.of(), []
        for each, spec in grown:
            before = each.held
            assert isinstance(before, Carried) and before.caches is not None
            now = Carried(before.names, spec, fence, self._stream, regions=before.regions, caches=before.caches)
            before.caches[0].holders.add(now)
            made.append(now)
        self.state._leave(arrays, made)

    def fill(self, given: dict[str, GivenInput], without: Fence | None) -> HeldContents:
        """Return what the memories hold, where the caller gave nothing for them, all specs known.

        Args:
            given: Inputs by name; what memories hold on the host is added.
            without: Of a run that is about to be given up.

        Raises:
            InputError: What is given or held does not fit the model.
            StateError: A memory holds nothing yet, and nothing tells its shape.
        """
        own = self._memories.keys() & given.keys()
        for name in own:
            check_held(self._memories[name], given[name].spec)
        held: list[tuple[Carried, tuple[str, ...]]] = []
        specs = {name: item.spec for name, item in given.items()}
        checked, count = [*given], len(own)
        for carried, all_names in self._find_all(own, without):
            names = all_names if own.isdisjoint(all_names) else tuple([name for name in all_names if name not in own])
            count += len(names)
            if carried.array is not None:
                given.update({name: HostArray(carried.known, carried.array) for name in names})
            if names:
                held.append((carried, names))
            specs.update(dict.fromkeys(names, carried.known))
            checked += names[:1] if id(names) in self._by_names else names
        if count < len(self._memories):
            starts = find_initial_specs(self._model.graph, self._model.memories, self._model.dims, specs)
            held += self._begin_zeros(starts)
            specs.update(starts)
            checked += starts
        check_ports(self._model, [self._ports[name] for name in checked], specs)
        return held

    def add_specs(self, specs: dict[Value, TensorSpec], held: HeldContents) -> None:
        """Add the specs of what memories hold."""
        for carried, names in held:
            specs.update(dict.fromkeys(self._list_values(names), carried.known))

    def bind(
        self,
        prepared: PreparedRun,
        given: Mapping[str, GivenInput],
        held: HeldContents,
        specs: Mapping[Value, TensorSpec],
    ) -> None:
        """Bind the memories of a run, and let the state be what it will leave.

        Args:
            prepared: The run, its other inputs bound.
            given: These by name.
            held: What `fill` returned.
            specs: Of those outputs that are known already.

        Raises:
            ModelError: An output is of another type than the memory it goes to.
        """
        left = []
        for kind in self._kinds:
            for part, spec in kind.divide(specs):
                if spec is not None:
                    check_left(part.memories[0], spec)
                else:
                    spec = _find_fixed(part.memories[0])
                made = Carried(part.names, spec, prepared.run._fence, self._stream)
                if part.memories[0].axis is not None and any(carried.starts for carried, _ in held):
                    made.starts = _find_starts(part.names, held)
                left.append(_Left(part, made))
        for carried, _ in held:
            if not prepared.sources or prepared.sources[-1] is not carried.fence:
                prepared.sources.append(carried.fence)
        for name in self._memories.keys() & given.keys():
            # The same plan serves a state that comes from the host.
            prepared.values[self._values[name]].array = None
        # What the host holds is bound as what it gives.
        on_device = [row for row in held if row[0].array is None]
        prepared.carry = partial(self._carry, prepared, on_device, left)
        prepared.commit = partial(self._commit, prepared, left)
        self.state._begin([each.carried for each in left], prepared.run._fence)

    def _find_all(self, own: AbstractSet[str], without: Fence | None) -> HeldContents:
        """Return what memories hold, but for those given, the specs known."""
        while True:
            found = self.state._find_all(without)
            unknown = next((carried for carried, names in found if carried.spec is None and not own >= {*names}), None)
            if unknown is None:
                return [row for row in found if row[0].spec is not None]
            self._syncs.note_wait(unknown.names[0], "its shape is an input of another run")
            try:
                unknown.fence.wait_issued()
            except GpuexecError:
                if not unknown.fence.has_failed():
                    raise

    def _begin_zeros(self, starts: Mapping[str, TensorSpec]) -> HeldContents:
        """Return zeros of these specs by memory, those together that are of a kind and of one spec."""
        alike: dict[tuple[int, TensorSpec], list[str]] = {}
        for number, kind in enumerate(self._kinds):
            for name in kind.names:
                if name in starts:
                    alike.setdefault((number, starts[name]), []).append(name)
        rows = []
        for (number, spec), found in alike.items():
            whole = self._kinds[number].names
            names = whole if len(found) == len(whole) else tuple(found)
            rows.append((Carried(names, spec, Fence.of()), names))
        return rows

    def _list_values(self, names: tuple[str, ...]) -> Sequence[Value]:
        kind = self._by_names.get(id(names))
        return [self._values[name] for name in names] if kind is None else kind.inputs

    def _carry(self, prepared: PreparedRun, held: HeldContents, left: Sequence[_Left], is_plain: bool) -> None:
        """On the stream, all inputs being there: bring memories to where the plan wants them.

        Args:
            prepared: The run.
            held: What the memories hold on the device.
            left: What the run leaves.
            is_plain: Whether nobody asks for the locations of memories that stay in place.
        """
        caches = {} if prepared.stage.plans is None else prepared.stage.plans.caches
        whole = {id(names): carried for carried, names in held}
        rows: dict[str, tuple[Carried, int]] = {}
        kept: list[_Left] = []
        for each in left:
            source = whole.get(id(each.kind.names))
            if source is not None and self._stays(source, each, caches):
                assert source.caches is not None and source.regions is not None
                each.carried.caches = source.caches
                source.caches[0].holders.add(each.carried)
                if is_plain:
                    each.bytes = source.regions
                    kept.append(each)
                    continue
            if not rows:
                for carried, names in held:
                    places = {name: place for place, name in enumerate(carried.names)}
                    rows.update({name: (carried, places[name]) for name in names})
            self._carry_each(prepared, rows, each, caches)
        if kept:
            prepared.in_place = self._keep(kept)

    def _stays(self, source: Carried, left: _Left, caches: Mapping[Value, Cache]) -> bool:
        """Return whether memories stay where they are, with room behind the rows that nobody else has taken."""
        if source.names is not left.kind.names or left.carried.spec is None:
            return False
        if source.caches is None or source.regions is None or not caches.keys() >= left.kind.read:
            return False
        return self._has_room(caches[left.kind.inputs[0]], source.caches[0], source.known)

    def _has_room(self, cache: Cache, kept: CacheBytes, spec: TensorSpec) -> bool:
        fits = kept.whole.dtype == spec.dtype and kept.whole.shape == cache.whole_shape(spec.shape)
        return fits and kept.stream is self._stream and _is_tip(kept.holders, cache.axis, spec.shape[cache.axis])

    def _keep(self, kept: Sequence[_Left]) -> InPlaceMemories:
        """Return the memories that stay in place: mostly those of the run before."""
        key: list[object] = [part for each in kept for part in (each.kind, each.carried.caches)]
        known, found = self._in_place
        if len(known) != len(key) or any(a is not b for a, b in zip(known, key, strict=True)):
            found = InPlaceMemories(
                row for each in kept for row in zip(each.kind.inputs, each.kind.outputs, each.bytes or (), strict=True)
            )
            self._in_place = key, found
        return found

    def _carry_each(
        self,
        prepared: PreparedRun,
        rows: Mapping[str, tuple[Carried, int]],
        left: _Left,
        caches: Mapping[Value, Cache],
    ) -> None:
        """Bring memories to where the plan wants them, one by one.

        Args:
            prepared: The run.
            rows: By memory, the content that holds it and its place there; others were given for this run.
            left: What the run leaves in them.
            caches: Inputs that the plan appends to.
        """
        opened: list[CacheBytes] = []
        for name, value in zip(left.kind.names, left.kind.inputs, strict=True):
            source, place = rows.get(name, (None, 0))
            kept = None
            if source is None:
                location = prepared.values[value]
            else:
                location = prepared.values[value] = ValueLocation(source.known)
                kept = None if source.caches is None else source.caches[place]
                location.region = None if source.regions is None else source.regions[place]
                location.owner = None if source.owners is None else source.owners[place]
                if source.stream is not self._stream and location.region is not None:
                    # Its bytes are not given back before this run is through with them.
                    prepared.keep += [location.owner, kept, location.region.memory]
            cache = caches.get(value)
            if cache is not None:
                in_it = left.carried.caches
                found = self._open(cache, location, kept) if in_it is None else in_it[len(opened)]
                location.region, location.owner = found.owner.region, found.owner
                opened.append(found)
            elif location.region is None or kept is not None:
                self._make_dense(location, kept)
        if opened and left.carried.caches is None:
            for found in opened[1:]:
                opened[0].holders.join(found.holders)
            left.carried.caches = tuple(opened)
            opened[0].holders.add(left.carried)

    def _commit(self, prepared: PreparedRun, left: Sequence[_Left]) -> None:
        """The run being wholly on its stream: say where it leaves its memories, whose types are known by now."""
        values = prepared.values
        made = {id(each): [values[output] for output in each.kind.outputs] for each in left if each.bytes is None}
        for each in left:
            for memory, location in zip(each.kind.memories, made.get(id(each), ())):
                check_left(memory, location.spec)
        for each in left:
            each.carried.regions = each.bytes
            if each.bytes is None:
                locations = made[id(each)]
                each.carried.spec = locations[0].spec
                each.carried.regions = tuple([_find_region(location) for location in locations])
                each.carried.owners = tuple([location.owner for location in locations])
        self.state._note([each.carried for each in left])

    def _open(self, cache: Cache, location: ValueLocation, kept: CacheBytes | None) -> CacheBytes:
        """Return bytes with room for rows behind those there are: theirs where nobody else goes on from them.

        Args:
            cache: How the plan wants them.
            location: Where the rows are.
            kept: The bytes with room that they are in; None: they are dense.
        """
        spec, axis = location.spec, cache.axis
        if kept is not None and self._has_room(cache, kept, spec):
            return kept
        whole = cache.whole(spec)
        opened = CacheBytes(self._pool.lend(whole.nbytes, is_exact=True), whole, axis, self._stream)
        address = opened.owner.region.address
        if spec.size:
            if location.region is None:
                self._stream.fill(address, b"\0", whole.nbytes)
            else:
                extent = spec.shape[axis] if kept is None else kept.whole.shape[axis]
                copy_rows(self._stream, spec, axis, (location.region.address, extent), (address, cache.capacity))
        return opened

    def _make_dense(self, location: ValueLocation, kept: CacheBytes | None) -> None:
        """Make dense bytes for a memory: zeros, or rows that lie apart from each other."""
        spec, lent = location.spec, self._pool.lend(location.spec.nbytes)
        if kept is not None:
            if spec.size:
                assert location.region is not None
                source, extent = (location.region.address, kept.whole.shape[kept.axis]), spec.shape[kept.axis]
                copy_rows(self._stream, spec, kept.axis, source, (lent.region.address, extent))
        elif spec.nbytes:
            self._stream.fill(lent.region.address, b"\0", spec.nbytes)
        location.region, location.owner = lent.region, lent


def _find_starts(names: Sequence[str], held: HeldContents) -> tuple[int, ...]:
    """Return the rows in front that are none of any memory's sequences; none where one was given anew."""
    found = {name: carried.starts for carried, all_names in held for name in all_names}
    starts = [found.get(name, ()) for name in names]
    return tuple([min(each) for each in zip(*starts, strict=True)]) if all(starts) else ()


def _find_region(location: ValueLocation) -> Region:
    assert location.region is not None
    return location.region


def _is_tip(holders: RowHolders, axis: int, length: int) -> bool:
    """Return whether nobody holds rows behind these, so that others may lie there."""
    for other in holders.list_held():
        is_longer = other.spec is None or other.spec.shape[axis] > length
        if is_longer and not other.fence.has_failed():
            return False
    return True


def _find_fixed(memory: Memory) -> TensorSpec | None:
    """Return the spec of a memory whose extents are all known beforehand."""
    fixed = tuple([extent for extent in memory.shape if isinstance(extent, int)])
    return TensorSpec(fixed, memory.dtype) if len(fixed) == len(memory.shape) else None
