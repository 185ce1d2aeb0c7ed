"""The plans of a Worker: found by what planning read, made when they are new, recorded when they first run.

The key of a plan holds the shapes of the inputs and the content of those that planning read. One plan serves a size
class; each size of it is a variant, for which nothing is compiled.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from gpuexec.errors import InputError, PlanError
from gpuexec.inputs import GivenInput, HostArray
from gpuexec.memory import Arena, Weights
from gpuexec.model import Model
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.plan import Plan, Segment, Variant
from gpuexec.planner.template import Template, plan_graph
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Recording, Region, Stream
from gpuexec.spec import TensorSpec

_VARIANTS_KEPT = 256
_Shapes = tuple[tuple[int, ...], ...]
_Contents = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class PlanCounters:
    """What a cache has made so far; times in milliseconds."""

    plans: int = 0
    variants: int = 0
    plan_ms: float = 0.0
    compile_ms: float = 0.0


@dataclass(slots=True, eq=False)
class Prepared:
    """A template with its recordings: made when first run, made again when the arena moves."""

    template: Template
    recordings: list[Recording] | None = None
    generation: int = -1
    current: Variant | None = None

    @property
    def plan(self) -> Plan:
        """The plan at the upper end of the class."""
        return self.template.plan

    @property
    def segment(self) -> Segment:
        """The plan's one segment: models without host reads have no other step."""
        (segment,) = (step for step in self.plan.steps if isinstance(step, Segment))
        return segment


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What to run: a prepared plan, and the variant for the sizes at hand."""

    prepared: Prepared
    variant: Variant


class PlanCache:
    """Finds, makes and records plans of a model on a backend. The only caller of the planner."""

    def __init__(self, model: Model, backend: Backend, weights: Weights, arena: Arena) -> None:
        self._model, self._backend, self._weights, self._arena = model, backend, weights, arena
        self._prepared: list[Prepared] = []
        self._choices: OrderedDict[tuple[_Shapes, _Contents], Choice] = OrderedDict()
        # Which inputs' contents plans of these shapes depend on.
        self._reads: dict[_Shapes, set[tuple[str, ...]]] = {}
        self.counters = PlanCounters()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, newest first."""
        return tuple(prepared.plan for prepared in self._prepared)

    def choose(self, given: Mapping[str, GivenInput]) -> Choice:
        """Return the plan and variant for these inputs, making them if they are new.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            UnsupportedError: Operators without a lowering; lists all.
        """
        shapes = tuple(given[port.name].spec.shape for port in self._model.inputs)
        for names in self._reads.get(shapes, ()):
            contents = _contents(given, names)
            choice = None if contents is None else self._choices.get((shapes, contents))
            if choice is not None and contents is not None:
                self._choices.move_to_end((shapes, contents))
                return choice
        choice = self._make(given)
        names = tuple(sorted({read.input for read in choice.prepared.plan.reads}))
        contents = _contents(given, names)
        assert contents is not None, "planning read what is not on the host"
        self._reads.setdefault(shapes, set()).add(names)
        self._choices[shapes, contents] = choice
        if len(self._choices) > _VARIANTS_KEPT:
            (oldest, _), _ = self._choices.popitem(last=False)
            if all(kept != oldest for kept, _ in self._choices):
                del self._reads[oldest]
        return choice

    def record(self, choice: Choice, stream: Stream) -> Recording:
        """Return the recording of the choice's plan, set to its variant; new weights are uploaded on ``stream``."""
        prepared, plan = choice.prepared, choice.prepared.plan
        memory = self._arena.reserve(plan.layout.nbytes)
        if prepared.recordings is None or prepared.generation != self._arena.generation:
            places = self._weights.place(plan.buffers, stream)
            places.update({b: Region(memory, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets})
            prepared.recordings = [self._backend.device.record(prepared.segment, places)]
            prepared.generation, prepared.current = self._arena.generation, None
        (recording,) = prepared.recordings
        if prepared.current is not choice.variant:
            recording.patch(choice.variant.segments[0])
            prepared.current = choice.variant
        return recording

    def _make(self, given: Mapping[str, GivenInput]) -> Choice:
        start, compiled = time.perf_counter(), self.counters.compile_ms
        specs = {name: _spec_of(item) for name, item in given.items()}
        choice = self._specialise(specs) or self._plan(specs)
        self.counters.plan_ms += (time.perf_counter() - start) * 1e3 - (self.counters.compile_ms - compiled)
        self.counters.variants += 1
        return choice

    def _specialise(self, specs: Mapping[str, TensorSpec]) -> Choice | None:
        for prepared in self._prepared:
            if not prepared.template.covers(specs):
                continue
            try:
                return Choice(prepared, prepared.template.specialise(specs))
            except (PlanError, InputError):
                # This size needs a plan of its own; a fault of the inputs comes up again there.
                continue
        return None

    def _plan(self, specs: Mapping[str, TensorSpec]) -> Choice:
        graph = run_passes(self._model.graph, AT_PLAN, self._model.disabled_passes, specs)
        self._weights.include(graph.constants)
        template = plan_graph(graph, specs, self._backend.device.target, self._model.dims)
        variant = template.specialise(specs)
        start = time.perf_counter()
        self._backend.device.load(template.plan.kernels())
        self.counters.compile_ms += (time.perf_counter() - start) * 1e3
        prepared = Prepared(template)
        self._prepared.insert(0, prepared)
        self.counters.plans += 1
        return Choice(prepared, variant)


def _spec_of(item: GivenInput) -> TensorSpec:
    return item.spec.with_value(item.array) if isinstance(item, HostArray) else item.spec


def _contents(given: Mapping[str, GivenInput], names: tuple[str, ...]) -> _Contents | None:
    """Return the content of these inputs; None where one is not on the host."""
    rows = []
    for name in names:
        item = given[name]
        if not isinstance(item, HostArray) or item.array is None:
            return None
        rows.append((name, item.array.tobytes()))
    return tuple(rows)
