"""Plan template of a size class, and its variants.

    plan_graph(graph, inputs, target) -> Template      (a Plan laid out at the upper end of the class)
    Template.specialise(inputs)       -> Variant       (the commands of one size; nothing is compiled, no buffer moves)

Both analyse, lower, settle and resolve. The upper end decides the layout; a variant must agree with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, PlanError
from gpuexec.ir.arena_drawing import ARENA_ALIGNMENT
from gpuexec.ir.command import Command
from gpuexec.ir.geometry import round_up
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.plan import ArenaLayout, Buffer, Plan, Port, Role, Segment, Variant, format_command
from gpuexec.ir.plan_json import encode
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import SymbolicTrace, UntraceableError
from gpuexec.ir.target import Target
from gpuexec.planner.analyse import Analyser, Analysis, list_kept, put_symbols
from gpuexec.planner.caches import Caches, find_caches, grown_ends
from gpuexec.planner.classes import DeclaredDims, upper_ends
from gpuexec.planner.edges import Conflicts
from gpuexec.planner.layout import check_room, lay_out
from gpuexec.planner.lower import Lowered, Lowering
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.resolve import Resolver
from gpuexec.planner.settle import OutputCopies, Settlement, settle
from gpuexec.planner.symbolic_variant import SymbolicVariant
from gpuexec.planner.verify import Verifier
from gpuexec.system.phases import phase


def plan_graph(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    target: Target,
    declared: DeclaredDims | None = None,
    *,
    free: AbstractSet[tuple[str, int]] = frozenset(),
    slack: int = 1,
    grows: bool = False,
    admit: Callable[[Plan], None] | None = None,
    fixes_division: bool = False,
    providers: Providers = NO_PROVIDERS,
    unknown: AbstractSet[str] = frozenset(),
    inferences: Inferences | None = None,
) -> Template:
    """Plan a graph for the size class these inputs fall in, or for the whole range where dimensions are bounded.

    Args:
        graph: Checked, and through the load passes.
        inputs: Spec of each input, with content where it is on the host.
        target: Target to plan for.
        declared: Dimensions the caller fixed or bounded.
        free: Axes (input, axis) that change though nothing declares them.
        slack: How many times the bytes it needs each buffer gets: room for extents that content decides.
        grows: Whether memories lie in bytes of their whole capacity, to be appended to.
        admit: Raises OutOfMemoryError where a plan takes too much; a smaller upper end is tried then.
        fixes_division: Whether work is divided at all sizes of a class as at its upper end.
        providers: What products and convolutions may be emitted by, beside our kernels.
        unknown: Names of values whose content is left to the device, though the host could know it.
        inferences: What is known already of the graph.

    Raises:
        InputError: The inputs don't fit the graph; names the node.
        UnsupportedError: Operators without a lowering; lists all.
        OutOfMemoryError: The plan for these very inputs takes too much.
    """
    caches = find_caches(graph) if grows else {}
    *larger, exact = list_ends(graph, inputs, declared or {}, free, caches, is_whole=True, inferences=inferences)

    def make(ends: Mapping[str, TensorSpec]) -> Template:
        return Template(
            graph,
            ends,
            target,
            slack,
            caches=caches,
            fixes_division=fixes_division,
            providers=providers,
            unknown=unknown,
            inferences=inferences,
        )

    for ends in larger:
        try:
            template = make(ends)
            template.specialise(inputs)
            if admit is not None:
                admit(template.plan)
        except (GpuexecError, ValueError):
            # Sizes depend on each other in a way that this guess of an upper end breaks; a graph's own error is raised
            # below.
            continue
        return template
    template = make(exact)
    if admit is not None:
        admit(template.plan)
    return template


def list_ends(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    declared: DeclaredDims,
    free: AbstractSet[tuple[str, int]],
    caches: Caches,
    *,
    is_whole: bool,
    inferences: Inferences | None = None,
) -> Iterator[dict[str, TensorSpec]]:
    """Yield specs that a plan for these inputs may be laid out for, the best first; the last are the inputs' own.

    Args:
        graph: Whose inputs they are.
        inputs: Specs by name, with content where it is on the host.
        declared: Dimensions the caller fixed or bounded.
        free: Axes (input, axis) that change though nothing declares them.
        caches: Inputs that are memories with room for more rows.
        is_whole: Whether a declared range is one class.
        inferences: What is known already of the graph.
    """
    *larger, exact = upper_ends(graph, inputs, declared, free, is_whole=is_whole)
    if caches:
        specs = Analyser(graph, inferences=inferences).run(inputs).specs
        larger = [*grown_ends(graph, inputs, declared, caches, specs), *larger]
    for ends in larger:
        raised = _raise_scalar_bounds(graph, inputs, ends, inferences)
        if raised is not None:
            yield raised
        yield ends
    yield exact


class Template:
    """Plan of a size class, with all that specialising it takes. Shared between threads.

    Attributes:
        plan: The plan, laid out at the upper end of the class.
        ends: The shapes at the upper end, by input.
        chosen: What lowerings decided by extents at the upper end; empty where none did.
        offers: The providers that nodes could choose from there, by the node's name; empty where there were none.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, TensorSpec],
        target: Target,
        slack: int = 1,
        stored: Plan | None = None,
        caches: Caches | None = None,
        *,
        fixes_division: bool = False,
        providers: Providers = NO_PROVIDERS,
        unknown: AbstractSet[str] = frozenset(),
        inferences: Inferences | None = None,
    ) -> None:
        self._graph, self._target, self._caches = graph, target, caches or {}
        self._unknown = unknown
        self._fixes_division, self._providers = fixes_division, providers
        self._specs = {value.name: _bare(inputs[value.name]) for value in graph.inputs}
        self.ends = {name: spec.shape for name, spec in self._specs.items()}
        self._lock = threading.Lock()
        self._analyser, self._lowering = Analyser(graph, unknown, inferences), self._make_lowering()
        with phase("analyse", graph.name):
            analysis = self._analyser.run(inputs)
        with phase("lower", graph.name):
            lowered = self._lowering.run(analysis)
        self.chosen, self.offers = self._lowering.chosen, tuple(self._lowering.offers)
        self._copies = OutputCopies(graph, target)
        settlement = self._settlement = settle(lowered, graph, target, self._copies).enlarge(slack)
        self._resolver = Resolver(settlement, target)
        self.plan = self._make_plan(analysis, lowered, settlement, stored)
        self._reads = {read.input for read in self.plan.reads}
        self._verifier = Verifier(self.plan)
        # The variant made last, if specs alone determine it: it read no content. The first is that of the upper end.
        self._last: Variant | None = None
        if not self.plan.reads:
            ends, results = (tuple([port.spec for port in ports]) for ports in (self.plan.inputs, self.plan.outputs))
            self._last = Variant(self.plan.segment.commands, ends, results)

    @property
    def graph(self) -> Graph:
        """Return the graph that is planned."""
        return self._graph

    def infer(self, inputs: Mapping[str, TensorSpec]) -> Mapping[Value, TensorSpec]:
        """Return the specs of all values for inputs of a size of the class.

        Raises:
            GpuexecError: As `specialise`.
        """
        with self._lock:
            return dict(self._analyser.run(inputs).specs)

    def covers(self, inputs: Mapping[str, TensorSpec]) -> bool:
        """Return whether these inputs have the plan's dtypes and ranks, and fit its layout."""
        for name, end in self._specs.items():
            spec = inputs[name]
            if spec.dtype != end.dtype or len(spec.shape) != len(end.shape):
                return False
            if any(have > largest for have, largest in zip(spec.shape, end.shape, strict=True)):
                return False
        return True

    def specialise(self, inputs: Mapping[str, TensorSpec]) -> Variant:
        """Return the commands for inputs of another size of the class.

        A command that is the same as in the last variant is the same object.

        Raises:
            PlanError: This size needs other commands or more room than the plan has; plan it by itself.
            InputError: The inputs don't fit the graph.
        """
        with self._lock:
            specs = [_bare(inputs[port.name]) for port in self.plan.inputs]
            if self._last is not None and list(self._last.inputs) == specs:
                return self._last
            analysis = self._analyser.run(inputs)
            lowered = self._lowering.run(analysis)
            self._copies.add(lowered, self._settlement.promoted)
            commands = self._resolver.resolve(lowered.unpacked)
            if any(read.input not in self._reads for read in analysis.reads):
                raise PlanError("Planning reads the content of inputs that it did not read at the upper end.")
            self._verifier.check_variant(commands)
            outputs = tuple([_bare(slot.spec) for slot in lowered.outputs])
            variant = Variant(commands, tuple(specs), outputs, tuple(analysis.reads))
            self._last = None if variant.reads else variant
            return variant

    def trace(self, inputs: Mapping[str, TensorSpec], groups: Sequence[Sequence[tuple[str, int]]]) -> SymbolicVariant:
        """Return the variants of all sizes that take the same way through the planner as these inputs do.

        Args:
            inputs: Specs by name, of a size of the class.
            groups: Axes (input, axis) whose extents change; those of a group are equal.

        Raises:
            UntraceableError: There are none: a step of the planner needs these very extents.
            GpuexecError: As `specialise`.
        """
        trace = SymbolicTrace()
        extents: dict[tuple[str, int], Any] = {}
        for group in groups:
            (name, axis), *_ = group
            extents.update(dict.fromkeys(group, trace.variable(inputs[name].shape[axis])))
        with self._lock:
            given = {name: put_symbols(name, spec, extents) for name, spec in inputs.items()}
            analysis = self._analyser.run(given, is_symbolic=True)
            if analysis.reads:
                raise UntraceableError("planning reads content of inputs")
            lowered = self._lowering.run(analysis, is_symbolic=True)
            self._copies.add(lowered, self._settlement.promoted, is_symbolic=True)
            commands = self._resolver.resolve(lowered.unpacked, is_symbolic=True)
            self._verifier.check_symbolic(commands)
        specs = tuple([_bare(given[port.name]) for port in self.plan.inputs])
        outputs = tuple([_bare(slot.spec) for slot in lowered.outputs])
        return SymbolicVariant(trace, commands, specs, outputs, tuple(map(tuple, groups)))

    def narrow(
        self, inputs: Mapping[str, TensorSpec], declared: DeclaredDims, free: AbstractSet[tuple[str, int]]
    ) -> Template:
        """Return a template for the size class that inputs fall in by themselves; this one where it chooses alike.

        This one covers them, as one of a larger class or of a whole range does.

        Args:
            inputs: Specs by name, with content where it is on the host.
            declared: Dimensions the caller fixed or bounded.
            free: Axes (input, axis) that change though nothing declares them.
        """
        *larger, exact = list_ends(self._graph, inputs, declared, free, self._caches, is_whole=False)
        # Where no guess holds, sizes of a range are planned by its end, others by themselves.
        has_ranges = any(isinstance(bound, tuple) for bound in declared.values())
        for ends in larger if larger and has_ranges else (*larger, exact):
            try:
                lowering = self._make_lowering()
                lowering.run(Analyser(self._graph, self._unknown).run(ends))
                if lowering.chosen == self.chosen:
                    return self
                template = Template(
                    self._graph,
                    ends,
                    self._target,
                    caches=self._caches,
                    fixes_division=self._fixes_division,
                    providers=self._providers,
                    unknown=self._unknown,
                )
                template.specialise(inputs)
            except (GpuexecError, ValueError):
                # As in `plan_graph`: this guess of an upper end breaks how sizes depend on each other.
                continue
            return template
        return self

    def _make_lowering(self) -> Lowering:
        return Lowering(
            self._graph,
            self._target,
            self._caches,
            fixes_division=self._fixes_division,
            providers=self._providers,
        )

    def _make_plan(self, analysis: Analysis, lowered: Lowered, settlement: Settlement, stored: Plan | None) -> Plan:
        commands = self._resolver.resolve(lowered.unpacked)
        numbers = settlement.numbers
        # The first output of the graph that lies in a buffer names it.
        outputs: dict[int, str] = {}
        for value, buffer in zip(self._graph.outputs, settlement.outputs, strict=True):
            outputs.setdefault(buffer, value.name)
        buffers = []
        for old, new in numbers.items():
            held = settlement.buffers[old]
            role, name = held.role, held.name
            if old in outputs and role is not Role.STATE:
                role, name = Role.OUTPUT, outputs[old]
            weight = held
            while weight.packed is not None:
                weight = settlement.buffers[weight.packed[0]]
                name = weight.name
            buffers.append(Buffer(new, role, held.nbytes, name, held.data, held.form))
        if stored is None:
            with phase("layout", self._graph.name):
                conflicts = Conflicts(commands)
                layout = lay_out(buffers, commands, conflicts)
            places = {i: (start, start + buffers[i].nbytes) for i, start in layout.offsets if buffers[i].nbytes}
            edges = conflicts.find_edges(places)
        else:
            layout, edges = _take_over(stored, buffers, commands)
        origins = tuple(pick.origin for pick in settlement.picks for _ in pick.positions)
        check_room(buffers, commands, origins, layout, self._target)
        slots = lowered.inputs
        return Plan(
            target=self._target.name,
            buffers=tuple(buffers),
            layout=layout,
            segment=Segment(commands, edges, origins),
            inputs=tuple(
                [
                    Port(name, numbers.get(slots[name].buffer) if name in slots else None, spec)
                    for name, spec in self._specs.items()
                ]
            ),
            outputs=tuple(
                [
                    Port(value.name, numbers[buffer], _bare(slot.spec))
                    for value, buffer, slot in zip(
                        self._graph.outputs, settlement.outputs, lowered.outputs, strict=True
                    )
                ]
            ),
            reads=tuple(analysis.reads),
            host_values=list_kept(self._graph, analysis),
        )


def _bare(spec: TensorSpec) -> TensorSpec:
    """Return the spec without content: a plan is data of its class, not of one run."""
    return spec if spec.value is None else TensorSpec(spec.shape, spec.dtype)


def _take_over(
    stored: Plan, buffers: Sequence[Buffer], commands: Sequence[Command]
) -> tuple[ArenaLayout, tuple[tuple[int, int], ...]]:
    """Return layout and edges of a stored plan for the buffers and commands that lowering gave now.

    So packing is done once, where the plan was made. A layout taken over is not trusted: the resulting plan is
    verified like any other.

    Raises:
        PlanError: They are others than the stored plan's (an operator is lowered in another way than when it was
            made), or its arena is larger than all its buffers.
    """
    if len(stored.segment.commands) != len(commands) or len(stored.buffers) != len(buffers):
        raise PlanError(
            f"The stored plan has {len(stored.segment.commands)} commands on {len(stored.buffers)} buffers, lowering "
            f"gives {len(commands)} on {len(buffers)}."
        )
    for kept, buffer in zip(stored.buffers, buffers, strict=True):
        if kept != buffer:
            raise PlanError(f"The stored plan has buffer %{buffer.id} of other size, role or content than lowering.")
    for number, (kept_command, command) in enumerate(zip(stored.segment.commands, commands, strict=True)):
        # Scalars that are no number are equal only as text.
        if kept_command != command and encode(kept_command) != encode(command):
            raise PlanError(f"The stored plan has another command {number} than {format_command(command)[:80]}.")
    room = sum(round_up(buffer.nbytes, ARENA_ALIGNMENT) for buffer in buffers if buffer.role is Role.TEMP)
    if not 0 <= stored.layout.nbytes <= room:
        raise PlanError(f"The stored plan has an arena of {stored.layout.nbytes} bytes for {room} of buffers.")
    if sorted(number for number, _ in stored.layout.offsets) != [b.id for b in buffers if b.role is Role.TEMP]:
        raise PlanError("The stored plan gives places to other buffers than the temporaries.")
    return stored.layout, stored.segment.edges


def _raise_scalar_bounds(
    graph: Graph,
    inputs: Mapping[str, TensorSpec],
    ends: Mapping[str, TensorSpec],
    inferences: Inferences | None = None,
) -> dict[str, TensorSpec] | None:
    """Return an upper end whose scalars are raised by as much as their lower bounds were.

    A number that counts only above a bound, like the rows that a cache must have room for, grows with the extents that
    it is compared with; an upper end with larger extents and the number of a smaller size would have no room for the
    last size of its class.

    Args:
        graph: Whose inputs they are.
        inputs: Specs at hand, by name, with content where it is on the host.
        ends: Specs at an upper end.
        inferences: What is known already of the graph.

    Returns:
        The specs; None where there is nothing to raise, or the graph refuses that upper end.
    """
    if not any(map(_may_count, inputs.values())):
        return None
    try:
        before = _find_bounds(graph, inputs, inferences)
        after = _find_bounds(graph, ends, inferences) if before else {}
    except GpuexecError:
        return None
    steps: dict[str, int] = {}
    for key in before.keys() & after.keys():
        steps[key[0]] = max(steps.get(key[0], 0), after[key] - before[key])
    raised = dict(ends)
    for name, step in steps.items():
        spec = ends[name]
        if step > 0 and spec.value is not None:
            number = min(int(spec.value.array.reshape(())) + step, np.iinfo(spec.dtype).max)
            raised[name] = spec.with_value(np.full(spec.shape, number, spec.dtype))
    return raised if any(raised[name] is not ends[name] for name in raised) else None


def _may_count(spec: TensorSpec) -> bool:
    return spec.value is not None and spec.size == 1 and spec.dtype.kind in "iu"


def _find_bounds(
    graph: Graph, specs: Mapping[str, TensorSpec], inferences: Inferences | None
) -> dict[tuple[str, str], int]:
    """Return the bounds that scalars are compared with, by input and the node that reads it."""
    reads = Analyser(graph, inferences=inferences).run(specs).reads
    return {(read.input, read.node): read.least for read in reads if read.least is not None}
