"""Planning context of an engine: model, backend, weights, arena, and the plans made so far."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field

from gpuexec.devices.backend import Backend
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.execution.inspection.inspector import Inspector
from gpuexec.execution.resources.memory import Arena
from gpuexec.execution.resources.weights import Share
from gpuexec.execution.runs.background_compiler import BackgroundCompiler
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.ir.graphs import Value, list_made
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.plan import Plan
from gpuexec.ir.provider import Offer
from gpuexec.model.model import Model
from gpuexec.planner.analyse import HOST_WORK_LIMIT
from gpuexec.planner.providers import NO_PROVIDERS, Providers
from gpuexec.planner.template import Template
from gpuexec.system.progress import Listener

_log = logging.getLogger("gpuexec")


@dataclass(slots=True)
class PlanCounters:
    """Counts of plans and variants made so far; times in milliseconds.

    ``restored`` are plans of which a program brought the layout; ``refused`` says why those it brought did not do.
    ``unfused`` are runs in which a plan stood for one whose kernels were not compiled yet; ``uncompiled`` says why
    kernels can't be compiled in the background.
    """

    plans: int = 0
    variants: int = 0
    restored: int = 0
    refused: list[str] = field(default_factory=list)
    plan_ms: float = 0.0
    compile_ms: float = 0.0
    unfused: int = 0
    uncompiled: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class PlanningContext:
    """Model, backend, weights and arena that the plan caches of an engine share.

    Only `adopt` changes it, between runs.
    """

    model: Model
    backend: Backend
    weights: Share
    arena: Arena
    counters: PlanCounters = field(default_factory=PlanCounters)
    # All plans made, newest first.
    plans: list[Plan] = field(default_factory=list)
    # The outputs of each node that was planned, by names.
    planned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Plans the model brought along that turned out to be of other commands.
    unfit: list[Plan] = field(default_factory=list)
    # Subgraphs of loop bodies, kept from run to run; see `gpuexec.execution.runs.loops`.
    bodies: dict[object, object] = field(default_factory=dict)
    # Taps and watches on inner values.
    inspector: Inspector = field(default_factory=Inspector)
    graphs: GraphCache = field(init=False)
    # The limit on memory, if there is one.
    limit: MemoryLimit | None = None
    # Whether plans take no more room than they need, since that was declared beforehand.
    is_exact: bool = False
    # Whether work is divided at all sizes of a class as at its upper end.
    fixes_division: bool = False
    # What products and convolutions may be emitted by, and what each node of the plans could choose from, newest last.
    providers: Providers = NO_PROVIDERS
    offers: list[tuple[str, Offer]] = field(default_factory=list)
    # Bytes that a node may touch to be light work, for the host to do.
    host_work: int = HOST_WORK_LIMIT
    # Compiles kernels of generated text while plans without them run; None: they are compiled before the first run.
    compiler: BackgroundCompiler | None = None
    # Notified of weights that are uploaded and kernels that are compiled.
    listener: Listener = field(default_factory=Listener)
    # What steps of planning infer, until a plan is made.
    inferences: Inferences = field(default_factory=Inferences)
    # Outputs that lie in frames; those that become memories outlive the next run of theirs.
    framed: dict[Value, None] = field(init=False)

    def __post_init__(self) -> None:
        self.graphs = GraphCache(revision=self.backend.memory_revision)
        self._find_framed()

    def add_plan(self, template: Template) -> None:
        """Add a plan that was made, with what libraries offered for its nodes."""
        plan = template.plan
        self.plans.insert(0, plan)
        self.planned.update(list_made(template.graph))
        self.offers += template.offers
        self.counters.plans += 1
        _log.info(
            "planned %s for %s: %d commands, arena %d bytes",
            template.graph.name,
            plan.target,
            len(plan.segment.commands),
            plan.layout.nbytes,
        )

    def note_loaded(self, name: str, kernels: int, took_ms: float) -> None:
        """Count the time in which the kernels of a plan were compiled, or found in a cache, and loaded."""
        self.counters.compile_ms += took_ms
        if kernels:
            _log.info("loaded %d kernels of %s in %.1f ms", kernels, name, took_ms)

    def note_refused(self, name: str, why: str) -> None:
        """Note why a plan that a program brought does not do, and is made again."""
        self.counters.refused.append(why)
        _log.info("a plan of %s from the program is made again: %s", name, why)

    def adopt(self, model: Model, weights: Share) -> None:
        """Make plans of another model from now on, over its weights: it differs in the content of constants alone.

        Layouts of plans made so far are taken over where the same commands come out.
        """
        name = self.backend.device.target.name
        known = [plan for plan in self.model._plans.get(name, ()) if all(plan is not each for each in self.unfit)]
        plans = (*self.plans, *(plan for plan in known if plan not in self.plans))
        self.weights = weights
        self.model = copy.copy(model)
        self.model._plans = {**model._plans, name: plans}
        self._find_framed()
        self.plans.clear()
        self.planned.clear()
        self.unfit.clear()
        self.bodies.clear()
        self.graphs.clear()
        if self.limit is not None:
            self.limit.forget_plans()

    def _find_framed(self) -> None:
        carried = {memory.output for memory in self.model.memories}
        self.framed = dict.fromkeys([value for value in self.model.graph.outputs if value.name not in carried])
