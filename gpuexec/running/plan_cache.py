"""The plans of a graph: found by what planning read, made when they are new, recorded when they first run.

The key of a plan holds the shapes of the inputs and the content of those that planning read. One plan serves a size
class; each size of it is a variant, for which nothing is compiled.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuexec.errors import InputError, OutOfMemoryError, PlanError
from gpuexec.graphs import Array, Graph, Value
from gpuexec.passes import run_passes
from gpuexec.phases import phase
from gpuexec.plan import Plan, Read, Variant
from gpuexec.planner.caches import find_caches
from gpuexec.planner.template import Template, plan_graph
from gpuexec.resources.weights import Share
from gpuexec.running.restoring import Restored, restore
from gpuexec.running.site import Site
from gpuexec.running.stopwatch import LayerTimes
from gpuexec.runtime.device import Memory, Recording, Region, Stream
from gpuexec.runtime.graph_cache import GraphCache
from gpuexec.runtime.recording import record_segment
from gpuexec.spec import TensorSpec

_VARIANTS_KEPT = 256
# Room that a plan gets whose forerunner was too small for content: so it is made anew a few times, not with every run.
_SLACK = 2
_Shapes = tuple[tuple[int, ...], ...]
_Contents = tuple[tuple[str, int | None, bytes], ...]
_Axis = tuple[str, int]


@dataclass(slots=True, eq=False)
class Prepared:
    """A template with its weights by name and its recording: made when first run, made again when the arena moves.

    ``times`` are those of its layers, by number.
    """

    template: Template
    constants: Mapping[str, Array]
    recording: Recording | None = None
    generation: int = -1
    current: Variant | None = None
    times: LayerTimes = field(default_factory=LayerTimes)

    @property
    def plan(self) -> Plan:
        """The plan at the upper end of the class."""
        return self.template.plan


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What to run: a prepared plan, and the variant for the sizes at hand."""

    prepared: Prepared
    variant: Variant


class PlanCache:
    """Finds, makes and records plans of a graph. The only caller of the planner."""

    def __init__(self, graph: Graph, site: Site, *, grows: bool = False) -> None:
        self._graph, self._site, self._grows = graph, site, grows
        # Inputs that are memories with room for more rows.
        self.caches = find_caches(graph) if grows else {}
        self._prepared: list[Prepared] = []
        self._choices: OrderedDict[tuple[_Shapes, _Contents], Choice] = OrderedDict()
        # What of inputs' contents plans of these shapes depend on.
        self._reads: dict[_Shapes, set[tuple[Read, ...]]] = {}
        # Axes of undeclared inputs that were met with two extents, and the shapes met first.
        self._free: set[_Axis] = set()
        # Plans the model brought along that are not what lowering gives.
        self._unfit: list[Plan] = []
        self._first: _Shapes | None = None

    def choose(self, specs: Mapping[str, TensorSpec]) -> Choice:
        """Return the plan and variant for inputs of these specs (with content where it is on the host), or make them.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            NeedsHostValue: A shape depends on content that is not on the host.
        """
        shapes = tuple([specs[value.name].shape for value in self._graph.inputs])
        for reads in self._reads.get(shapes, ()):
            contents = _contents(specs, reads)
            choice = None if contents is None else self._choices.get((shapes, contents))
            if choice is not None and contents is not None:
                self._choices.move_to_end((shapes, contents))
                return choice
        choice = self._make(specs, shapes)
        reads = tuple({(read.input, read.least): read for read in choice.variant.reads}.values())
        contents = _contents(specs, reads)
        assert contents is not None, "planning read what is not on the host"
        self._reads.setdefault(shapes, set()).add(reads)
        self._choices[shapes, contents] = choice
        if len(self._choices) > _VARIANTS_KEPT:
            (oldest, _), _ = self._choices.popitem(last=False)
            if all(kept != oldest for kept, _ in self._choices):
                del self._reads[oldest]
        return choice

    def reserve(self, choice: Choice, stream: Stream) -> Recording:
        """Return the recording of the choice's plan, whichever size it is set to now.

        If there is none over the arena as it is, it is made; weights that are new are uploaded on ``stream``.

        Raises:
            OutOfMemoryError: The device has no room for the arena or the weights.
        """
        prepared, plan, site = choice.prepared, choice.prepared.plan, self._site
        memory = site.arena.reserve(plan.layout.nbytes)
        if prepared.recording is None or prepared.generation != site.arena.generation:
            self._drop_outdated()
            prepared.recording = record_plan(prepared, site, memory, stream, site.graphs)
            prepared.generation, prepared.current = site.arena.generation, None
        return prepared.recording

    def record(self, choice: Choice, stream: Stream) -> Recording:
        """Return the recording of the choice's plan, set to its variant; see `reserve`."""
        recording, prepared = self.reserve(choice, stream), choice.prepared
        if prepared.current is not choice.variant:
            recording.patch(choice.variant.commands)
            prepared.current = choice.variant
        return recording

    def _drop_outdated(self) -> None:
        """Let go of recordings over arenas that were outgrown, and of these with them."""
        for each in self._prepared:
            if each.recording is not None and each.generation != self._site.arena.generation:
                each.recording.close()
                each.recording = None

    def _make(self, specs: Mapping[str, TensorSpec], shapes: _Shapes) -> Choice:
        counters = self._site.counters
        start, compiled = time.perf_counter(), counters.compile_ms
        self._learn(shapes)
        with phase("plan", self._graph.name):
            choice, is_outgrown = self._specialise(specs)
            if choice is None:
                choice = self._plan(specs, _SLACK if is_outgrown and not self._site.is_exact else 1)
        counters.plan_ms += (time.perf_counter() - start) * 1e3 - (counters.compile_ms - compiled)
        counters.variants += 1
        return choice

    def _learn(self, shapes: _Shapes) -> None:
        """Note which axes change: those that the model does not declare are known to be free once they did."""
        if self._first is None:
            self._first = shapes
        for value, before, now in zip(self._graph.inputs, self._first, shapes, strict=True):
            if value.declared is None and before != now and len(before) == len(now):
                self._free.update((value.name, axis) for axis in range(len(now)) if before[axis] != now[axis])

    def _specialise(self, specs: Mapping[str, TensorSpec]) -> tuple[Choice | None, bool]:
        """Return a variant of a plan there is, or None and whether one had room for the inputs but not for the rest."""
        is_outgrown = False
        for prepared in self._prepared:
            if not prepared.template.covers(specs):
                continue
            try:
                return Choice(prepared, prepared.template.specialise(specs)), False
            except PlanError:
                is_outgrown = True
            except InputError:
                # A fault of the inputs comes up again when they are planned by themselves.
                continue
        return None, is_outgrown

    def _plan(self, specs: Mapping[str, TensorSpec], slack: int) -> Choice:
        site, target = self._site, self._site.backend.device.target
        restored = self._restore(specs) if slack == 1 else None
        if restored is not None:
            graph, template = restored.graph, restored.template
        else:
            graph = run_passes(self._graph, site.model._plan_passes, site.model.disabled_passes, specs)
            template = plan_graph(
                graph,
                specs,
                target,
                site.model.dims,
                free=frozenset(self._free),
                slack=slack,
                grows=self._grows,
                admit=lambda plan: self._admit(plan, graph.constants),
            )
        variant = template.specialise(specs)
        start = time.perf_counter()
        with phase("load kernels", self._graph.name):
            site.backend.device.load(template.plan.kernels(), site.model._code)
        site.counters.compile_ms += (time.perf_counter() - start) * 1e3
        prepared = Prepared(template, {value.name: array for value, array in graph.constants.items()})
        self._prepared.insert(0, prepared)
        site.plans.insert(0, template.plan)
        site.counters.plans += 1
        return Choice(prepared, variant)

    def admit(self, choice: Choice, input_nbytes: int) -> None:
        """Check that a run stays within the limit there is; ``input_nbytes`` come from the host.

        Raises:
            OutOfMemoryError: It does not; tells what it needs.
        """
        try:
            self._check_limit(choice.prepared.plan, choice.prepared.constants, input_nbytes)
        except OutOfMemoryError:
            self._forget(choice.prepared)
            raise

    def _forget(self, prepared: Prepared) -> None:
        """Forget a plan that nothing ran by, so that smaller sizes, which it would serve, get one of their own."""
        if prepared.recording is None:
            self._prepared = [each for each in self._prepared if each is not prepared]
            self._site.plans[:] = [plan for plan in self._site.plans if plan is not prepared.plan]
            for key in [key for key, choice in self._choices.items() if choice.prepared is prepared]:
                del self._choices[key]
            kept = {shapes for shapes, _ in self._choices}
            self._reads = {shapes: reads for shapes, reads in self._reads.items() if shapes in kept}

    def _admit(self, plan: Plan, constants: Mapping[Value, Array]) -> None:
        self._check_limit(plan, {value.name: array for value, array in constants.items()})

    def _check_limit(self, plan: Plan, constants: Mapping[str, Array], input_nbytes: int = 0) -> None:
        if self._site.limit is not None:
            results = {value.name for value in set(self._graph.outputs) & set(self._site.model.graph.outputs)}
            self._site.limit.check(plan, constants, results, input_nbytes)

    def _restore(self, specs: Mapping[str, TensorSpec]) -> Restored | None:
        """Return a template from a plan that the model brought along, if one fits; each that does not is told once."""
        site = self._site
        found, refused = restore(site.model, self._graph, specs, site.backend.device.target, self._unfit)
        for plan, why in refused:
            self._unfit.append(plan)
            site.unfit.append(plan)
            site.counters.refused.append(why)
        if found is None:
            return None
        try:
            self._admit(found.template.plan, found.graph.constants)
        except OutOfMemoryError:
            # One made for these very sizes may take less.
            return None
        site.counters.restored += 1
        return found


def record_plan(prepared: Prepared, site: Site, arena: Memory, stream: Stream, graphs: GraphCache | None) -> Recording:
    """Return a recording of a plan over an arena; weights that are not there yet are uploaded on ``stream``.

    Args:
        prepared: The plan, at the upper end of its class.
        site: Whose weights and device.
        arena: Of at least the bytes of the plan's layout.
        stream: What the recording is submitted to comes after what is put here now.
        graphs: Where its graph is counted; None: see `gpuexec.runtime.recording.record_segment`.
    """
    plan = prepared.plan
    with phase("place weights"):
        places = site.weights.place(plan.buffers, prepared.constants, stream, site.listener.tell)
    places.update({b: Region(arena, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets})
    return record_segment(site.backend.device, plan.segment, places, graphs)


def describe_needs(choice: Choice | None, weights: Share, frames: int = 1) -> str:
    """Say how much memory a plan needs, for the message where there is none; None: the run begins on the host."""
    plan = None if choice is None else choice.prepared.plan
    arena = 0 if plan is None else plan.layout.nbytes
    outputs = 0 if plan is None else sum(plan.buffers[p.buffer].nbytes for p in plan.outputs if p.buffer is not None)
    each = f" in each of {frames} frames" if frames > 1 else ""
    return f"The plan needs {arena} bytes of arena and {outputs} of outputs{each}, beside {weights.nbytes} of weights."


def _contents(specs: Mapping[str, TensorSpec], reads: tuple[Read, ...]) -> _Contents | None:
    """Return what these reads told; None where an input is not on the host."""
    rows = []
    for read in reads:
        content = specs[read.input].value
        if content is None:
            return None
        rows.append((read.input, read.least, read.tell(content.array)))
    return tuple(rows)
