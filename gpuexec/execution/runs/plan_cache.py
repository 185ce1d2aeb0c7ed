"""Plan cache of a graph: plans by shapes and by the content that planning read, recorded at their first run.

The key of a plan holds the shapes of the inputs and the content of those that planning read. One plan serves a size
class; each size of it is a variant, for which nothing is compiled.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod

from gpuexec.devices.device import MemoryBlock, Recording, Region, Stream
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.devices.recording import record_segment
from gpuexec.errors import DeviceNotFoundError, GpuexecError, InputError, OutOfMemoryError, PlanError
from gpuexec.execution.resources.weights import Share
from gpuexec.execution.runs.background_compiler import BackgroundCompiler, Compilation
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.size_traces import Shapes, SizeTraces
from gpuexec.execution.runs.stopwatch import LayerTimes
from gpuexec.ir.graphs import Array, Graph, Value
from gpuexec.ir.plan import Plan, Read, Role, Variant
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.model import Model
from gpuexec.passes import GENERATING, run_passes
from gpuexec.planner.analyse import find_growing_content
from gpuexec.planner.caches import find_caches, has_growth
from gpuexec.planner.classes import find_class_ranges, find_ends, free_axes, range_ends, with_extents
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.template import Template, plan_graph
from gpuexec.system.phases import phase
from gpuexec.system.progress import Progress

_VARIANTS_KEPT = 256
# Room that a plan gets whose forerunner was too small for content: so it is made anew a few times, not with every run.
_SLACK = 2
_Contents = tuple[tuple[str, int | None, bytes], ...]
_Axis = tuple[str, int]
_Ends = tuple[tuple[_Axis, int], ...]
# The most classes of a declared range that are planned at once; those of more are planned when they are met.
_CLASSES_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class CompiledPlan:
    """A template with its weights by name and its recording: made when first run, made again when the arena moves.

    ``times`` are those of its layers, by number. ``classes`` are the plans, this one or others, of sizes that this one
    covers, by the upper ends of their classes. A plan of a class of a declared range has in ``whole`` the plan of all
    of it: what is reserved for that serves all.
    """

    template: Template
    constants: Mapping[str, Array]
    recording: Recording | None = None
    generation: int = -1
    current: Variant | None = None
    times: LayerTimes = field(default_factory=LayerTimes)
    classes: dict[_Ends, CompiledPlan] = field(default_factory=dict)
    whole: CompiledPlan | None = None
    # Its kernels, while they are compiled in the background; None: they are loaded. It may turn out that they can't be.
    compilation: Compilation | None = None
    is_refused: bool = False
    # Variants of all sizes that are planned alike, once sizes keep changing, and the one found last.
    traces: SizeTraces | None = None
    sized: PlannedVariant | None = None
    # The plan at the upper end of the class.
    plan: Plan = field(init=False)

    def __post_init__(self) -> None:
        self.plan = self.template.plan

    @property
    def widest(self) -> CompiledPlan:
        """The plan by which memory is reserved."""
        return self if self.whole is None else self.whole


@dataclass(frozen=True, slots=True, eq=False)
class PlannedVariant:
    """A compiled plan, and its variant for the sizes at hand.

    ``stands_for`` is what it runs in place of, until the kernels of that are compiled.
    """

    compiled: CompiledPlan
    variant: Variant
    stands_for: PlannedVariant | None = None


class PlanCache:
    """Finds, makes and records plans of a graph. The only caller of the planner.

    Args:
        graph: What is planned.
        planning: Model and device.
        grows: Whether memories grow where they lie.
        disabled: Passes that are left out; None: those that the model leaves out.
        compiler: Compiles what is missing of kernels of generated text in the background; a plan is not to be recorded
            before `load`. None: they are compiled when a plan is made.
        is_stand_in: Whether the plans run in place of others, which count.
    """

    def __init__(
        self,
        graph: Graph,
        planning: PlanningContext,
        *,
        grows: bool = False,
        disabled: AbstractSet[str] | None = None,
        compiler: BackgroundCompiler | None = None,
        is_stand_in: bool = False,
    ) -> None:
        self._graph, self._planning, self._grows = graph, planning, grows
        self._disabled = planning.model.disabled_passes if disabled is None else disabled
        self._compiler, self._is_stand_in = compiler, is_stand_in
        # Inputs that are memories with room for more rows.
        self.caches = find_caches(graph) if grows else {}
        self._compiled: list[CompiledPlan] = []
        self._variants: OrderedDict[tuple[Shapes, _Contents], PlannedVariant] = OrderedDict()
        # The reads of input content that plans of these shapes depend on.
        self._reads: dict[Shapes, set[tuple[Read, ...]]] = {}
        # Axes of undeclared inputs that were met with two extents, and the shapes met first.
        self._free: set[_Axis] = set()
        # Names of values that grow with sizes that keep changing, which are left to the device.
        self._unknown: frozenset[str] = frozenset()
        # Plans the model brought along that are not what lowering gives.
        self._unfit: list[Plan] = []
        self._first: Shapes | None = None

    def choose(self, specs: Mapping[str, TensorSpec]) -> PlannedVariant:
        """Return the plan and variant for inputs of these specs (with content where it is on the host), or make them.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            NeedsHostValue: A shape depends on content that is not on the host.
        """
        shapes = _shapes(self._graph, specs)
        found = self.find(shapes)
        if found is not None:
            return found
        for reads in self._reads.get(shapes, ()):
            contents = _contents(specs, reads) if reads else ()
            planned = None if contents is None else self._variants.get((shapes, contents))
            if planned is not None and contents is not None:
                self._variants.move_to_end((shapes, contents))
                return planned
        found = self._find_sized(shapes) if shapes in self._reads else None
        if found is not None:
            return found
        planned = self._make(specs, shapes)
        reads = tuple({(read.input, read.least): read for read in planned.variant.reads}.values())
        contents = _contents(specs, reads)
        assert contents is not None, "planning read what is not on the host"
        self._reads.setdefault(shapes, set()).add(reads)
        self._variants[shapes, contents] = planned
        if not reads:
            self._trace(planned, specs, shapes)
        if len(self._variants) > _VARIANTS_KEPT:
            (oldest, _), _ = self._variants.popitem(last=False)
            if all(kept != oldest for kept, _ in self._variants):
                del self._reads[oldest]
        return planned

    def find(self, shapes: Shapes) -> PlannedVariant | None:
        """Return the plan and variant for inputs of these shapes, in order, where that reads no content."""
        known = self._reads.get(shapes)
        if known is None:
            return self._find_sized(shapes)
        if known != {()}:
            return None
        found = self._variants.get((shapes, ()))
        if found is not None:
            self._variants.move_to_end((shapes, ()))
        return found

    def _find_sized(self, shapes: Shapes) -> PlannedVariant | None:
        """Return a plan and variant by a trace, None where none holds for these shapes."""
        for compiled in self._compiled:
            if compiled.traces is None or compiled.is_refused or compiled.compilation is not None:
                continue
            variant = compiled.traces.find(shapes, partial(self._find_class_ranges, compiled))
            if variant is not None:
                last = compiled.sized
                if last is None or last.variant is not variant:
                    last = compiled.sized = PlannedVariant(compiled, variant)
                return last
        return None

    def _find_class_ranges(
        self, compiled: CompiledPlan, specs: Mapping[str, TensorSpec]
    ) -> Mapping[_Axis, tuple[int, int]] | None:
        """Return the extents within which sizes belong to the class of these; None where that has another plan.

        That is not known before sizes of the class were planned.
        """
        graph, declared, free = compiled.template.graph, self._planning.model.dims, frozenset(self._free)
        for wide in self._compiled:
            if wide is compiled and not self._has_classes(wide):
                return {}
            ends = find_ends(graph, specs, declared, free, is_whole=False)
            if wide.classes.get(tuple(sorted(ends.items()))) is compiled:
                return find_class_ranges(graph, specs, declared, free)
        return None

    def _trace(self, planned: PlannedVariant, specs: Mapping[str, TensorSpec], shapes: Shapes) -> None:
        """Note a size that was planned by itself, and trace the plan where sizes keep changing."""
        compiled = planned.compiled
        if compiled.compilation is not None or self._is_stand_in:
            return
        if compiled.traces is None:
            compiled.traces = SizeTraces(compiled.template)
        compiled.traces.learn(compiled.template.graph, specs, shapes)
        is_bounded = _has_ranges(self._planning.model)  # all its plans are there, and nothing is compiled later
        if compiled.traces.growing and not is_bounded and compiled in self._compiled:
            # Sizes to come have a plan in which the device makes what grows with them.
            self._unknown |= compiled.traces.growing
            self._compiled.remove(compiled)

    def reserve(self, planned: PlannedVariant, stream: Stream) -> Recording:
        """Return the recording of a planned variant's plan, whichever size it is set to now.

        If there is none over the arena as it is, it is made; weights that are new are uploaded on ``stream``. All plans
        of a declared range are recorded together, so that no size of it takes memory later.

        Raises:
            OutOfMemoryError: The device has no room for the arena or the weights.
        """
        compiled, planning = planned.compiled, self._planning
        # A recording over the arena as it is has room there.
        if compiled.recording is None or compiled.generation != planning.arena.generation:
            widest = compiled.widest
            together = (compiled, widest, *[each for each in widest.classes.values() if each.whole is widest])
            memory, beside = planning.arena.reserve(widest.plan.layout.nbytes), widest.plan.layout.nbytes
            wanted = max(each.plan.counters_nbytes for each in together)
            counters = planning.arena.reserve_counters(wanted, beside, stream)
            self._drop_outdated()
            for each in together:
                if each.recording is None and each.compilation is None:
                    each.recording = record_plan(each, planning, memory, counters, stream, planning.graphs)
                    each.generation, each.current = planning.arena.generation, None
        assert compiled.recording is not None
        return compiled.recording

    def record(self, planned: PlannedVariant, stream: Stream) -> Recording:
        """Return the recording of a planned variant, set to its sizes, for what comes next on a stream.

        See `reserve`.
        """
        compiled, recording = planned.compiled, planned.compiled.recording
        if recording is None or compiled.generation != self._planning.arena.generation:
            recording = self.reserve(planned, stream)
        self._planning.arena.clear_counters(stream)
        if compiled.current is not planned.variant:
            recording.resize(planned.variant)
            compiled.current = planned.variant
        return recording

    @property
    def is_waiting(self) -> bool:
        """Whether the kernels of a plan are not loaded yet."""
        return any(each.compilation is not None for each in self._compiled)

    @property
    def has_recordings(self) -> bool:
        """Whether a plan is recorded."""
        return any(each.recording is not None for each in self._compiled)

    def drop_recordings(self) -> None:
        """Drop all recordings; what runs by one of the plans all the same records it anew."""
        for each in self._compiled:
            if each.recording is not None:
                each.recording.close()
                each.recording = None

    def _drop_outdated(self) -> None:
        """Drop recordings over outgrown arenas, and these arenas with them."""
        for each in self._compiled:
            if each.recording is not None and each.generation != self._planning.arena.generation:
                each.recording.close()
                each.recording = None

    def _make(self, specs: Mapping[str, TensorSpec], shapes: Shapes) -> PlannedVariant:
        counters = self._planning.counters
        start, compiled = time.perf_counter(), counters.compile_ms
        self._learn(shapes)
        try:
            with phase("plan", self._graph.name):
                planned, is_outgrown = self._specialise(specs)
                if planned is None:
                    planned = self._plan(specs, _SLACK if is_outgrown and not self._planning.is_exact else 1)
                    self._plan_range(planned.compiled, specs)
                planned = self._narrow(planned, specs)
        finally:
            self._planning.inferences.clear()
        counters.plan_ms += (time.perf_counter() - start) * 1e3 - (counters.compile_ms - compiled)
        counters.variants += not self._is_stand_in
        return planned

    def _learn(self, shapes: Shapes) -> None:
        """Note which axes change: those that the model does not declare are known to be free once they did."""
        if self._first is None:
            self._first = shapes
        for value, before, now in zip(self._graph.inputs, self._first, shapes, strict=True):
            if value.declared is None and before != now and len(before) == len(now):
                self._free.update((value.name, axis) for axis in range(len(now)) if before[axis] != now[axis])

    def _specialise(self, specs: Mapping[str, TensorSpec]) -> tuple[PlannedVariant | None, bool]:
        """Return a variant of a plan there is, or None and whether one had room for the inputs but not for the rest."""
        is_outgrown = False
        for compiled in self._compiled:
            if not compiled.template.covers(specs):
                continue
            try:
                return PlannedVariant(compiled, compiled.template.specialise(specs)), False
            except PlanError:
                is_outgrown = True
            except InputError:
                # A fault of the inputs comes up again when they are planned by themselves.
                continue
        return None, is_outgrown

    def _narrow(self, planned: PlannedVariant, specs: Mapping[str, TensorSpec]) -> PlannedVariant:
        """Return the variant of a plan for the class of these sizes, where that chooses otherwise than the plan given.

        That one was made for a larger class, or for the whole of a declared range.
        """
        wide, planning = planned.compiled, self._planning
        if not self._has_classes(wide):
            return planned
        declared, free = planning.model.dims, frozenset(self._free)
        ends = find_ends(wide.template.graph, specs, declared, free, is_whole=False)
        key = tuple(sorted(ends.items()))
        found = wide.classes.get(key)
        if found is None:
            found = wide.classes[key] = self._find_class(wide, specs)
        found.classes.setdefault(key, found)
        if found is wide or not found.template.covers(specs):
            return planned
        try:
            return PlannedVariant(found, found.template.specialise(specs))
        except (PlanError, InputError):
            return planned

    def _has_classes(self, wide: CompiledPlan) -> bool:
        """Return whether sizes that a plan covers may have plans of their own: kernels of it depend on extents.

        Where memory was planned for one plan, or its kernels came with the model, it serves all the same.
        """
        planning = self._planning
        has_kernels = bool(planning.model._code.kernels) and not planning.fixes_division
        return bool(wide.template.chosen) and not planning.is_exact and not has_kernels

    def _find_class(self, wide: CompiledPlan, specs: Mapping[str, TensorSpec]) -> CompiledPlan:
        """Return the plan for the class of these sizes: the one given, another there is, or a new one."""
        template = wide.template.narrow(specs, self._planning.model.dims, frozenset(self._free))
        if template is wide.template:
            return wide
        is_range = _has_ranges(self._planning.model)
        for each in self._compiled:
            is_alike = each.template.chosen == template.chosen and each.template.covers(specs)
            if is_alike and (each.widest is wide.widest or not is_range):
                return each
        if is_range and template.plan.layout.nbytes > wide.widest.plan.layout.nbytes:
            return wide  # what the range has reserved is enough for all its sizes
        try:
            self._admit(template.plan, wide.template.graph.constants)
            compiled = self._compile(template, wide.constants)
        except (OutOfMemoryError, DeviceNotFoundError):
            return wide  # there is no memory for it, or no compiler
        compiled.whole = wide.widest if is_range else None
        return compiled

    def _plan_range(self, wide: CompiledPlan, specs: Mapping[str, TensorSpec]) -> None:
        """Plan all classes of the declared ranges that these sizes lie in, unless they are many."""
        declared, graph = self._planning.model.dims, wide.template.graph
        if not self._has_classes(wide):
            return
        axes: dict[str, list[_Axis]] = {}
        for axis, dim in free_axes(graph, declared).items():
            if isinstance(declared.get(dim), tuple):
                axes.setdefault(dim, []).append(axis)
        ends = {dim: range_ends(*bound) for dim, bound in declared.items() if dim in axes and isinstance(bound, tuple)}
        if not ends or prod(map(len, ends.values())) > _CLASSES_AT_ONCE:
            return
        classes = list(product(*(each[::-1] for each in ends.values())))  # the largest first: it serves more sizes
        for number, chosen in enumerate(classes):
            self._tell_planned(number, len(classes))
            extents = {axis: end for dim, end in zip(ends, chosen, strict=True) for axis in axes[dim]}
            at_end = with_extents(specs, extents)
            try:
                self._narrow(PlannedVariant(wide, wide.template.specialise(at_end)), at_end)
            except GpuexecError:
                continue  # dimensions that are tied do not all reach their ends together
        self._tell_planned(len(classes), len(classes))

    def _tell_planned(self, done: int, total: int) -> None:
        report = self._planning.listener.report
        if report is not None:
            report(Progress("plan", self._graph.name, done_count=done, total_count=total))

    def _plan(self, specs: Mapping[str, TensorSpec], slack: int) -> PlannedVariant:
        """Plan for inputs of these specs; where there is no compiler, without kernels of generated text."""
        try:
            return self._plan_without(self._disabled, specs, slack)
        except DeviceNotFoundError:
            if self._disabled >= GENERATING:
                raise
            return self._plan_without(self._disabled | GENERATING, specs, slack)

    def _plan_without(self, disabled: AbstractSet[str], specs: Mapping[str, TensorSpec], slack: int) -> PlannedVariant:
        planning, target = self._planning, self._planning.backend.device.target
        restored = self._restore(specs) if slack == 1 and not self._unknown else None
        if restored is not None:
            graph, template = restored.graph, restored.template
        else:
            inferences = planning.inferences
            graph = run_passes(self._graph, planning.model._plan_passes, disabled, specs, target, inferences)
            if has_growth(self._graph):
                self._unknown |= find_growing_content(graph, specs, free_axes(graph, planning.model.dims), inferences)
            template = plan_graph(
                graph,
                specs,
                target,
                planning.model.dims,
                free=frozenset(self._free),
                slack=slack,
                grows=self._grows,
                admit=lambda plan: self._admit(plan, graph.constants),
                fixes_division=planning.fixes_division,
                providers=planning.providers,
                unknown=self._unknown,
                inferences=inferences,
            )
        variant = template.specialise(specs)
        compiled = self._compile(template, {value.name: array for value, array in graph.constants.items()})
        return PlannedVariant(compiled, variant)

    def _compile(self, template: Template, constants: Mapping[str, Array]) -> CompiledPlan:
        """Load the kernels of a template, or have them compiled in the background; add it to the plans there are."""
        planning, kernels = self._planning, template.plan.kernels()
        compiled = CompiledPlan(template, constants)
        if self._compiler is not None:
            compiled.compilation = self._compiler.enter(kernels, planning.model._code)
        if compiled.compilation is None:
            self.load(compiled)
        self._compiled.insert(0, compiled)
        planning.add_plan(template)
        return compiled

    def load(self, compiled: CompiledPlan) -> None:
        """Load the kernels of a plan; those that are missing are compiled.

        Raises:
            DeviceNotFoundError: There is no compiler.
            KernelError: One does not compile.
        """
        device, code, kernels = self._planning.backend.device, self._planning.model._code, compiled.plan.kernels()
        start = time.perf_counter()
        with phase("load kernels", self._graph.name):
            device.compile(kernels, code, self._planning.listener.report)
            device.load(kernels, code)
        self._planning.note_loaded(self._graph.name, len(kernels), (time.perf_counter() - start) * 1e3)
        compiled.compilation = None

    def check_beside(self, compiled: CompiledPlan, other: CompiledPlan, input_nbytes: int) -> None:
        """Check that runs of either of two plans stay within the limit there is, with the weights of both.

        Raises:
            OutOfMemoryError: They don't; tells what they need.
        """
        beside = other.widest.plan, other.constants
        self._check_limit(compiled.widest.plan, compiled.constants, input_nbytes, beside)

    def admit(self, planned: PlannedVariant, input_nbytes: int) -> PlannedVariant:
        """Check that a run stays within the limit there is, and return what it runs by.

        Args:
            planned: What was chosen.
            input_nbytes: Bytes that come from the host.

        Raises:
            OutOfMemoryError: It does not; tells what it needs.
        """
        compiled = planned.compiled
        try:
            for each in (compiled, *([] if compiled.whole is None else [compiled.whole])):
                self._check_limit(each.plan, each.constants, input_nbytes)
        except OutOfMemoryError:
            self._forget(compiled)
            if compiled.whole is not None:
                self._forget(compiled.whole)
            raise
        return planned

    def _forget(self, compiled: CompiledPlan) -> None:
        """Forget a plan that nothing ran by, so that smaller sizes, which it would serve, get one of their own."""
        if compiled.recording is None:
            self._compiled = [each for each in self._compiled if each is not compiled]
            self._planning.plans[:] = [plan for plan in self._planning.plans if plan is not compiled.plan]
            for each in self._compiled:
                each.classes = {ends: plan for ends, plan in each.classes.items() if plan is not compiled}
            for key in [key for key, planned in self._variants.items() if planned.compiled is compiled]:
                del self._variants[key]
            kept = {shapes for shapes, _ in self._variants}
            self._reads = {shapes: reads for shapes, reads in self._reads.items() if shapes in kept}

    def _admit(self, plan: Plan, constants: Mapping[Value, Array]) -> None:
        self._check_limit(plan, {value.name: array for value, array in constants.items()})

    def _check_limit(
        self,
        plan: Plan,
        constants: Mapping[str, Array],
        input_nbytes: int = 0,
        beside: tuple[Plan, Mapping[str, Array]] | None = None,
    ) -> None:
        if self._planning.limit is not None:
            results = {value.name for value in set(self._graph.outputs) & set(self._planning.model.graph.outputs)}
            self._planning.limit.check(plan, constants, results, input_nbytes, beside)

    def _restore(self, specs: Mapping[str, TensorSpec]) -> _Restored | None:
        """Return a template from a stored plan of the model, if one fits; each that does not is reported once."""
        planning = self._planning
        is_alone = self._compiler is None and not self._is_stand_in
        found, refused = restore(
            planning.model,
            self._graph,
            specs,
            planning.backend.device.target,
            self._unfit,
            ways=None if is_alone else (self._disabled,),
            fixes_division=planning.fixes_division,
            providers=planning.providers,
        )
        for plan, why in refused:
            self._unfit.append(plan)
            if is_alone:  # else it may be one of the other form
                planning.unfit.append(plan)
                planning.note_refused(self._graph.name, why)
        if found is None:
            return None
        try:
            self._admit(found.template.plan, found.graph.constants)
        except OutOfMemoryError:
            # One made for these very sizes may take less.
            return None
        planning.counters.restored += 1
        return found


def record_plan(
    compiled: CompiledPlan,
    planning: PlanningContext,
    arena: MemoryBlock,
    counters: Region | None,
    stream: Stream,
    graphs: GraphCache | None,
) -> Recording:
    """Return a recording of a plan over an arena; weights that are not there yet are uploaded on ``stream``.

    Args:
        compiled: The plan, at the upper end of its class.
        planning: Whose weights and device.
        arena: Of at least the bytes of the plan's layout.
        counters: Of at least those of its counters; None: it has none.
        stream: What the recording is submitted to comes after what is put here now.
        graphs: Where its graph is counted; None: see `gpuexec.devices.recording.record_segment`.
    """
    plan = compiled.plan
    with phase("place weights"):
        places = planning.weights.place(plan.buffers, compiled.constants, stream, planning.listener.report)
    places.update({b: Region(arena, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets})
    if counters is not None:
        places.update({b.id: counters for b in plan.buffers if b.role is Role.COUNTERS})
    return record_segment(planning.backend.device, plan.segment, places, graphs)


def describe_memory_needs(planned: PlannedVariant | None, weights: Share, frames: int = 1) -> str:
    """Describe the memory a plan needs, for out-of-memory messages; None: the run begins on the host."""
    plan = None if planned is None else planned.compiled.plan
    arena = 0 if plan is None else plan.layout.nbytes + plan.counters_nbytes
    outputs = 0 if plan is None else sum(plan.buffers[p.buffer].nbytes for p in plan.outputs if p.buffer is not None)
    each = f" in each of {frames} frames" if frames > 1 else ""
    return f"The plan needs {arena} bytes of arena and {outputs} of outputs{each}, beside {weights.nbytes} of weights."


@dataclass(frozen=True, slots=True, eq=False)
class _Restored:
    """A template made from a stored plan, and the graph it is of."""

    template: Template
    graph: Graph


def restore(
    model: Model,
    graph: Graph,
    specs: Mapping[str, TensorSpec],
    target: Target,
    tried: Collection[Plan] = (),
    *,
    ways: Sequence[AbstractSet[str]] | None = None,
    fixes_division: bool = False,
    providers: Providers = NO_PROVIDERS,
) -> tuple[_Restored | None, list[tuple[Plan, str]]]:
    """Return a template for inputs of these specs from one of the model's stored plans, and those that don't fit.

    A plan does not fit where operators are lowered in another way than when it was made; it comes with the reason.

    Args:
        model: Whose plans.
        graph: What is to be planned: the model's graph, or a part of it.
        specs: Of its inputs.
        target: What to plan for.
        tried: Plans to leave out.
        ways: Passes that may have been left out when the plan was made, the likeliest first. None: those that the model
            leaves out, or those of `GENERATING` besides, as in plans that an earlier release stored.
        fixes_division: Whether sizes of a class divide work as its upper end.
        providers: What products and convolutions may be emitted by; stored plans hold our kernels alone.
    """
    refused: list[tuple[Plan, str]] = []
    plans = [plan for plan in model._plans.get(target.name, ()) if all(plan is not each for each in tried)]
    # The plan of a declared range comes before those of its classes.
    for plan in sorted(plans, key=lambda plan: plan.layout.nbytes, reverse=_has_ranges(model)):
        ends = _find_ends(plan, graph, specs)
        if ends is None:
            continue
        for disabled in ways or (model.disabled_passes, model.disabled_passes | GENERATING):
            try:
                planned = run_passes(graph, model._plan_passes, disabled, ends, target)
                template = Template(
                    planned, ends, target, stored=plan, fixes_division=fixes_division, providers=providers
                )
                template.specialise(specs)
            except PlanError as error:
                reason = str(error)
            except (GpuexecError, ValueError):
                # A fault of the inputs comes up again when they are planned by themselves.
                break
            else:
                return _Restored(template, planned), refused
        else:
            refused.append((plan, reason))
    return None, refused


def _has_ranges(model: Model) -> bool:
    return any(isinstance(bound, tuple) for bound in model.dims.values())


def _find_ends(plan: Plan, graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec] | None:
    """Return the specs that a plan was laid out for, if the inputs are within them, else None."""
    if [port.name for port in plan.outputs] != [value.name for value in graph.outputs]:
        return None
    if [port.name for port in plan.inputs] != [value.name for value in graph.inputs]:
        return None
    reads = {read.input for read in plan.reads}
    ends = {}
    for port in plan.inputs:
        spec = specs[port.name]
        if spec.dtype != port.spec.dtype or len(spec.shape) != len(port.spec.shape):
            return None
        if any(have > largest for have, largest in zip(spec.shape, port.spec.shape, strict=True)):
            return None
        # What planning read then, it shall read now: the same content gives the same plan.
        ends[port.name] = spec if port.name in reads and spec.shape == port.spec.shape else port.spec
    return ends


def _shapes(graph: Graph, specs: Mapping[str, TensorSpec]) -> Shapes:
    shapes = []
    for value in graph.inputs:
        shapes.append(specs[value.name].shape)
    return tuple(shapes)


def _contents(specs: Mapping[str, TensorSpec], reads: tuple[Read, ...]) -> _Contents | None:
    """Return the content that these reads saw; None where an input is not on the host."""
    rows = []
    for read in reads:
        content = specs[read.input].value
        if content is None:
            return None
        rows.append((read.input, read.least, read.extract(content.array)))
    return tuple(rows)
