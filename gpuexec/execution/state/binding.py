"""State binding of a run: the content its memories start from, and the content it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.place import Place
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray, check_ports
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.execution.state.bytes import CacheBytes, copy_rows
from gpuexec.execution.state.carried import Carried, has_failed
from gpuexec.execution.state.state import State, check_fits
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory, check_held, check_left
from gpuexec.planner.caches import Cache


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
        self._rows = [(memory, inputs[memory.input], outputs[memory.output]) for memory in model.memories]
        self.outputs = frozenset([output for _, _, output in self._rows])
        self.inputs = frozenset([value for _, value, _ in self._rows])

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

    def fill(self, given: dict[str, GivenInput], without: Fence | None) -> None:
        """Add what the memories hold to a run's inputs, where the caller gave nothing for them.

        Args:
            given: Inputs by name.
            without: Of a run that is about to be given up.

        Raises:
            InputError: What is given or held does not fit the model.
            StateError: A memory holds nothing yet, and nothing tells its shape.
        """
        checks, found = _Checks(check_held), self._find_all(given, without)
        for memory, _, _ in self._rows:
            held = found.get(memory.input)
            if memory.input in given:
                checks.check(memory, given[memory.input].spec)
            elif held is not None:
                given[memory.input] = (
                    DeviceArray(held.place, held, held.fence)
                    if held.array is None
                    else HostArray(held.place.spec, held.array)
                )
        specs = {name: item.spec for name, item in given.items()}
        starts = find_initial_specs(self._model.graph, self._model.memories, self._model.dims, specs)
        for name, spec in starts.items():
            given[name] = DeviceArray(Place(name, spec), _ZEROS, Fence.of())
        check_ports(self._model, self._model.ports, {name: item.spec for name, item in given.items()})

    def list_given(self, given: Mapping[str, GivenInput]) -> tuple[Value, ...]:
        """Return the inputs of the graph that are bound as the caller, or the host, gave them."""
        return tuple([value for value in self._model.graph.inputs if not is_held(given[value.name])])

    def bind(self, prepared: PreparedRun, given: Mapping[str, GivenInput], specs: Mapping[Value, TensorSpec]) -> None:
        """Bind the memories of a run, and let the state be what it will leave.

        Args:
            prepared: The run, its other inputs bound.
            given: Its inputs by name.
            specs: Of those outputs that are known already.

        Raises:
            ModelError: An output is of another type than the memory it goes to.
        """
        checks = _Checks(check_left)
        for memory, _, output in self._rows:
            if (known := specs.get(output)) is not None:
                checks.check(memory, known)
        carried, sources = {}, prepared.sources
        for memory, value, output in self._rows:
            item = given[memory.input]
            if is_held(item):
                assert isinstance(item, DeviceArray)
                prepared.values[value] = ValueLocation(item.spec)
                if not sources or sources[-1] is not item.fence:
                    sources.append(item.fence)
            # The same plan serves a state that comes from the host.
            prepared.values[value].array = None
            known = specs.get(output)
            spec = known if known is not None else _find_fixed(memory)
            carried[memory.input] = Carried(Place(memory.input, spec), prepared.run._fence, self._stream)
        prepared.carry = partial(self._carry, prepared, dict(given), carried)
        prepared.commit = partial(self._commit, prepared, carried)
        self.state._begin(carried, prepared.run._fence)
        self.state._note({memory.input: given[memory.input].spec for memory, _, _ in self._rows})

    def _find_all(self, given: Mapping[str, GivenInput], without: Fence | None) -> dict[str, Carried]:
        """Return what the memories hold that are not given, by input, their shapes known."""
        wanted = [memory.input for memory, _, _ in self._rows if memory.input not in given]
        while True:
            found = self.state._find_all(wanted, without)
            unknown = next((name for name, held in found.items() if not held.place.has_spec), None)
            if unknown is None:
                return found
            self._syncs.note_wait(unknown, "its shape is an input of another run")
            fence = found[unknown].fence
            try:
                fence.wait_issued()
            except GpuexecError:
                if not has_failed(fence):
                    raise

    def _carry(self, prepared: PreparedRun, given: Mapping[str, GivenInput], carried: Mapping[str, Carried]) -> None:
        """On the stream, all inputs being there: bring memories to where the plan wants them."""
        caches = {} if prepared.stage.plans is None else prepared.stage.plans.caches
        for memory, value, _ in self._rows:
            item, held, cache = given[memory.input], prepared.values[value], caches.get(value)
            before = item.source if isinstance(item, DeviceArray) and isinstance(item.source, Carried) else None
            if before is not None:
                held.region, held.owner = before.place.region, before.owner
                if before.stream is not self._stream:
                    # Its bytes are not given back before this run is through with them.
                    prepared.keep += [before.owner, before.cache, held.region.memory]
            if cache is not None:
                opened = self._open(cache, held, before)
                held.region, held.owner = opened.owner.region, opened.owner
                made = carried[memory.input]
                made.cache = opened
                opened.hold(made)
            elif held.region is None or (before is not None and before.cache is not None):
                self._make_dense(held, before)

    def _commit(self, prepared: PreparedRun, carried: Mapping[str, Carried]) -> None:
        """The run being wholly on its stream: say where it leaves its memories, whose types are known by now."""
        checks, values = _Checks(check_left), prepared.values
        for memory, _, output in self._rows:
            checks.check(memory, values[output].spec)
        for memory, _, output in self._rows:
            made, held = values[output], carried[memory.input]
            assert made.region is not None
            held.owner = made.owner
            held.place.settle(made.spec, made.region)
        self.state._note({memory.input: values[output].spec for memory, _, output in self._rows})

    def _open(self, cache: Cache, held: ValueLocation, before: Carried | None) -> CacheBytes:
        """Return bytes with room for rows behind those there are: theirs where nobody else goes on from them."""
        length = held.spec.shape[cache.axis]
        if before is not None and before.cache is not None:
            kept = before.cache
            fits = kept.whole.dtype == held.spec.dtype and kept.whole.shape == cache.whole_shape(held.spec.shape)
            if fits and kept.stream is self._stream and _is_tip(kept, before, length):
                return kept
        whole = cache.whole(held.spec)
        opened = CacheBytes(self._pool.lend(whole.nbytes, is_exact=True), whole, cache.axis, self._stream)
        address = opened.owner.region.address
        if held.spec.size:
            if held.region is None:
                self._stream.fill(address, b"\0", whole.nbytes)
            else:
                extent = length if before is None or before.cache is None else before.cache.whole.shape[cache.axis]
                source, target = (held.region.address, extent), (address, cache.capacity)
                copy_rows(self._stream, held.spec, cache.axis, source, target)
        return opened

    def _make_dense(self, held: ValueLocation, before: Carried | None) -> None:
        """Make dense bytes for a memory: zeros, or rows that lie apart from each other."""
        lent = self._pool.lend(held.spec.nbytes)
        if before is not None and before.cache is not None:
            cache, axis = before.cache, before.cache.axis
            if held.spec.size:
                source, target = (before.place.region.address, cache.whole.shape[axis]), held.spec.shape[axis]
                copy_rows(self._stream, held.spec, axis, source, (lent.region.address, target))
        elif held.spec.nbytes:
            self._stream.fill(lent.region.address, b"\0", held.spec.nbytes)
        held.region, held.owner = lent.region, lent


class _Checks:
    """Checks of memories, which are many that are alike: each kind once for a spec.

    Args:
        check: Raises where a memory can't hold a tensor.
    """

    def __init__(self, check: Callable[[Memory, TensorSpec], None]) -> None:
        self._check = check
        self._done: set[tuple[object, ...]] = set()

    def check(self, memory: Memory, spec: TensorSpec) -> None:
        """Check one."""
        key = (memory.shape, memory.dtype, memory.axis, memory.capacity, spec.shape, spec.dtype)
        if key not in self._done:
            self._check(memory, spec)
            self._done.add(key)


_ZEROS = object()


def is_held(item: GivenInput) -> bool:
    """Return whether an input is what a memory holds on the device, or zeros, and not what the caller gave."""
    return isinstance(item, DeviceArray) and (item.source is _ZEROS or isinstance(item.source, Carried))


def _is_tip(cache: CacheBytes, before: Carried, length: int) -> bool:
    """Return whether nobody holds rows behind these, so that others may lie there."""
    for other in cache.list_held():
        if other is before or has_failed(other.fence):
            continue
        if not other.place.has_spec or other.place.spec.shape[cache.axis] > length:
            return False
    return True


def _find_fixed(memory: Memory) -> TensorSpec | None:
    """Return the spec of a memory whose extents are all known beforehand."""
    fixed = tuple([extent for extent in memory.shape if isinstance(extent, int)])
    return TensorSpec(fixed, memory.dtype) if len(fixed) == len(memory.shape) else None
