"""Memory plan of a method, made without its device: the plan at the upper bounds, and its gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuexec.devices.device import align
from gpuexec.errors import GpuexecError, StateError
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.runs.plan_cache import restore
from gpuexec.ir.graphs import Graph
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory
from gpuexec.passes import run_passes
from gpuexec.planner.analyse import Analyser
from gpuexec.planner.caches import Cache, find_caches
from gpuexec.planner.partition import Partition
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import plan_graph
from gpuexec.program.bounds import Bounds, find_bounds

# What a run starts from, what it leaves, and what one before it left, which is kept until the next is sure.
_SWAPPED = 3
# What grows where it lies, and what takes its place after a reset while work still reads it.
_GROWN = 2


@dataclass(frozen=True, slots=True)
class OutputNeed:
    """The largest an output can be, and the bytes its buffer takes; None where only a run knows."""

    spec: TensorSpec | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The bytes of a memory at its largest: dense ones that runs exchange, or such as it grows in."""

    name: str
    nbytes: int
    grows: bool

    @property
    def held_nbytes(self) -> int:
        """Bytes of all blocks it takes."""
        if self.grows:
            return _GROWN * _align(self.nbytes)
        return _SWAPPED * _align(ExchangePool.round_up(self.nbytes))


@dataclass(frozen=True, slots=True, eq=False)
class MethodPlan:
    """A model planned for the upper bounds of its inputs.

    Attributes:
        bounds: Of its inputs.
        plan: What it begins with; None where an input has no bound, or it begins on the host.
        outputs: The needs of the model's outputs.
        gaps: Why the plan does not say all: inputs without bounds, values read on the host, and so on. Where there are
            none, the plan is the whole method.
        host_calls: Nodes that the host computes because the device has no kernel for them.
        memories: What outlives a run needs.
        starts: What memories hold when the largest run begins, by input.
    """

    bounds: tuple[Bounds, ...]
    plan: Plan | None
    outputs: tuple[OutputNeed, ...]
    gaps: tuple[str, ...]
    host_calls: tuple[str, ...]
    memories: tuple[MemoryNeed, ...] = ()
    starts: Mapping[str, TensorSpec] = field(default_factory=dict)

    @property
    def has_bounds(self) -> bool:
        """True where every input has bounds."""
        return all(each.largest is not None for each in self.bounds)


def plan_method(model: Model, target: Target) -> MethodPlan:
    """Plan a model for the largest inputs its bounds allow.

    Raises:
        InputError: Inputs that large don't fit together; names the node.
        UnsupportedError: Operators that nothing here can run; lists all.
        OutOfMemoryError: The plan needs more than the target has.
    """
    bounds = find_bounds(model)
    calls = tuple(str(node) for node in model.graph.nodes if target.has_kernels and node.operator.lower is None)
    unknown = tuple(OutputNeed(None, None) for _ in model.outputs)
    gaps = tuple(each.describe_gap() for each in bounds if each.largest is None)
    if gaps:
        return MethodPlan(bounds, None, unknown, gaps, calls)
    largest = {each.name: each.largest for each in bounds if each.largest is not None}
    try:
        starts = _fill_memories(model, largest)
        largest.update(starts)
    except StateError as error:
        return MethodPlan(bounds, None, unknown, (str(error),), calls)
    specs = {value: largest[value.name] for value in model.graph.inputs}
    partition = find_partition(model.graph, specs, target)
    gaps = _list_gaps(partition)
    calls = tuple(str(node) for node in partition.host_calls) or (calls if gaps else ())
    foreseen = {**(partition.bounds or {}), **(partition.foreseen or {})}
    needs = {value.name: OutputNeed(spec, None) for value, spec in foreseen.items()}
    plan = None
    if partition.ready is not None:
        given = {value.name: specs[value] for value in partition.ready.inputs}
        plan = _plan(model, partition.ready, given, target, grows=partition.ready is model.graph)
        for value, port in zip(partition.ready.outputs, plan.outputs, strict=True):
            assert port.buffer is not None
            needs[value.name] = OutputNeed(port.spec, plan.buffers[port.buffer].nbytes)
    outputs = tuple(needs.get(port.name, OutputNeed(None, None)) for port in model.outputs)
    memories = []
    for memory in model.memories:
        if memory.axis is not None and memory.capacity is None:
            gaps += (f"memory {memory.input!r} grows without a capacity",)
        end = needs.get(memory.output, OutputNeed(None, None)).spec
        memories.append(find_need(memory, largest[memory.input], end))
    return MethodPlan(bounds, plan, outputs, gaps, calls, tuple(memories), starts)


def find_need(memory: Memory, start: TensorSpec, end: TensorSpec | None) -> MemoryNeed:
    """Return what a memory needs that starts so, and is left so by the largest run."""
    if memory.capacity is not None and memory.axis is not None:
        whole = (*start.shape[: memory.axis], memory.capacity, *start.shape[memory.axis + 1 :])
        return MemoryNeed(memory.input, start.with_shape(whole).nbytes, True)
    return MemoryNeed(memory.input, max(start.nbytes, 0 if end is None else end.nbytes), False)


def lay_out_state(needs: tuple[MemoryNeed, ...], *, has_kernels: bool) -> tuple[dict[str, tuple[int, int]], int, int]:
    """Return where what the host gives a memory is brought (offset, bytes), where the blocks begin, and all bytes."""
    places, end = {}, 0
    for need in needs if has_kernels else ():
        places[need.name] = (end, need.nbytes)
        end += _align(need.nbytes)
    return places, end, end + sum(need.held_nbytes for need in needs)


def _fill_memories(model: Model, inputs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Return what memories hold before the largest run: those with a capacity are full after it.

    How many rows a run adds only the graph knows; it is the extent of some input.
    """
    starts = find_initial_specs(model.graph, model.memories, model.dims, inputs)
    caches = {value.name: cache for value, cache in find_caches(model.graph).items()}
    extents = sorted({extent for spec in inputs.values() for extent in spec.shape}, reverse=True)
    # Where no extent is that of the rows, one row in memory will do: from there the plan is laid out for all.
    for rows, is_full in [*((extent, True) for extent in extents), (1, False)]:
        filled = dict(starts)
        for name, cache in caches.items():
            held = cache.capacity - rows if is_full else rows
            filled[name] = starts[name].with_shape(_replace_axis(starts[name].shape, cache.axis, held))
        if not caches or all(min(spec.shape, default=0) >= 0 for spec in filled.values()):
            specs = {**inputs, **filled}
            if not caches or _fills(model.graph, specs, caches, is_full=is_full):
                return filled
    return starts


def _fills(graph: Graph, specs: Mapping[str, TensorSpec], caches: Mapping[str, Cache], *, is_full: bool) -> bool:
    """Return whether inputs fit together, and leave every memory full."""
    try:
        found = Analyser(graph).run(specs).specs
    except GpuexecError:
        return False
    ends = [(found[cache.output].shape[cache.axis], cache.capacity) for cache in caches.values()]
    return all(end == capacity if is_full else end <= capacity for end, capacity in ends)


def _replace_axis(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    """Return a shape with another extent along an axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _plan(model: Model, graph: Graph, given: Mapping[str, TensorSpec], target: Target, *, grows: bool) -> Plan:
    """Return the plan of a graph: one the model carries, or a new one."""
    restored, _ = restore(model, graph, given, target)
    if restored is not None:
        return restored.template.plan
    planned = run_passes(graph, model._plan_passes, model.disabled_passes, given, target)
    return plan_graph(planned, given, target, model.dims, grows=grows).plan


def _list_gaps(partition: Partition) -> tuple[str, ...]:
    """List the reasons why a method is not one plan."""
    gaps = [f"{read.reader} reads {read.value} on the host ({read.role})" for read in partition.reads]
    gaps += [f"{node} has no kernel here and runs on the host" for node in partition.host_calls]
    if partition.repeat is not None:
        gaps.append(f"{partition.repeat} runs its body trip by trip")
    if not gaps and (partition.rest is not None or partition.host_nodes):
        gaps.append("what follows the first plan is planned in the run")
    return tuple(gaps)


def _align(nbytes: int) -> int:
    return align(max(nbytes, 1))
