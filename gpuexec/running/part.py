"""A graph that is still to run, with what was found out about it: how it is cut, and its plans.

How a graph is cut depends on dtypes and ranks, and on whose content is on the host; branches besides on content, or on
extents. All of it is remembered, so that a run like an earlier one decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from gpuexec.errors import NeedsHostValue
from gpuexec.graphs import Graph, Value
from gpuexec.inspecting.exposing import Exposed, Exposure
from gpuexec.planner.cut import Cut
from gpuexec.planner.cutter import find_cut
from gpuexec.running.plan_cache import Choice, PlanCache
from gpuexec.running.site import Site
from gpuexec.running.stopwatch import LayerTimes
from gpuexec.spec import TensorSpec, is_host_object

_Specs = Mapping[Value, TensorSpec]
_CUTS_KEPT = 64
_PLAIN = Exposure()


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One cut of a part: the plans of what is ready, the part that is left, and what is looked at of what is ready."""

    cut: Cut
    plans: PlanCache | None
    rest: Part | None
    conditions: tuple[tuple[Value, bytes], ...]
    shapes: tuple[tuple[int, ...], ...] | None
    exposed: Exposed | None = None
    # What nodes take that the host computes.
    times: LayerTimes = field(default_factory=LayerTimes)

    def fits(self, specs: _Specs) -> bool:
        """Return whether what decided the cut is the same for inputs of these specs."""
        if self.shapes is not None and self.shapes != tuple([spec.shape for spec in specs.values()]):
            return False
        for value, content in self.conditions:
            known = specs[value].value
            if known is None or known.array.tobytes() != content:
                return False
        return True


class Part:
    """A graph, its cuts and the plans of each.

    Args:
        is_body: It is the body of a loop, or what is left of one.
        condition: The output of a body that says whether to go on.
        grows: Memories grow where they lie, if one plan does it all: what another plan takes up is dense.
        untold: Inputs and weights that no tap told of before: what a plan left, or a body takes from around it, was
            told of where it was made. None: all.
    """

    def __init__(
        self,
        graph: Graph,
        site: Site,
        *,
        is_body: bool = False,
        condition: Value | None = None,
        grows: bool = False,
        untold: AbstractSet[Value] | None = None,
    ) -> None:
        self.graph = graph
        self._untold = frozenset((*graph.inputs, *graph.constants)) if untold is None else untold
        self._grows = grows
        self._site, self._is_body, self._condition = site, is_body, condition
        self._stages: dict[object, list[Stage]] = {}
        self._wholes: dict[Exposure, PlanCache] = {}

    def choose(
        self, given: _Specs, computed: AbstractSet[Value], exposure: Exposure = _PLAIN
    ) -> tuple[Stage, Choice | None]:
        """Return how to go on from inputs of these specs: the next stage, and the plan of what is ready in it.

        Args:
            given: Specs by value (others than the graph's inputs too), with content where it is on the host.
            computed: Values whose content the run computed itself.
            exposure: What is looked at in the run, from its beginning to its end.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            UnsupportedError: Operators that nothing here can run; lists all.
        """
        specs = {value: given[value] for value in self.graph.inputs}
        news = computed & specs.keys()
        stage = self._find(specs, news, exposure) or self._make(specs, news, exposure, is_exact=False)
        try:
            return stage, self._plan(stage, given)
        except NeedsHostValue:
            if stage.shapes is not None:
                raise
            # Extents decide here what the host can know: cut for these alone.
            stage = self._make(specs, news, exposure, is_exact=True)
            return stage, self._plan(stage, given)

    def _plan(self, stage: Stage, given: _Specs) -> Choice | None:
        if stage.plans is None or stage.cut.ready is None:
            return None
        return stage.plans.choose({value.name: given[value] for value in stage.cut.ready.inputs})

    def _find(self, specs: _Specs, computed: AbstractSet[Value], exposure: Exposure) -> Stage | None:
        key = _key(specs, computed, exposure)
        return next((stage for stage in self._stages.get(key, ()) if stage.fits(specs)), None)

    def _make(self, specs: _Specs, computed: AbstractSet[Value], exposure: Exposure, *, is_exact: bool) -> Stage:
        cut = find_cut(
            self.graph,
            specs,
            self._site.backend.device.target,
            computed=computed,
            is_body=self._is_body,
            condition=self._condition,
            host_work=self._site.host_work,
        )
        plans = None
        is_whole = cut.ready is self.graph
        exposed = None
        if exposure and cut.ready is not None:
            exposed = exposure.expose(cut.ready, self._untold)
            cut = replace(cut, ready=exposed.graph)
        if is_whole and cut.ready is not None:
            # Whose content is on the host makes no difference where nothing is cut.
            plans = self._wholes.get(exposure)
            if plans is None:
                # What is kept is copied, and a cache that grows lies where it is.
                grows = self._grows and not exposure.keeps_all
                plans = self._wholes[exposure] = PlanCache(cut.ready, self._site, grows=grows)
        elif cut.ready is not None:
            plans = PlanCache(cut.ready, self._site)
        rest = None
        if cut.rest is not None:
            told = () if cut.ready is None else (*cut.ready.inputs, *cut.ready.constants)
            untold = self._untold - set(told)
            rest = Part(cut.rest, self._site, is_body=self._is_body, condition=self._condition, untold=untold)
        by_name = {value.name: value for value in specs}
        conditions = []
        for name in cut.decided_by:
            content = specs[by_name[name]].value
            assert content is not None
            conditions.append((by_name[name], content.array.tobytes()))
        shapes = tuple([spec.shape for spec in specs.values()]) if is_exact or cut.is_by_shape else None
        stage = Stage(cut, plans, rest, tuple(conditions), shapes, exposed)
        stages = self._stages.setdefault(_key(specs, computed, exposure), [])
        stages.insert(0, stage)
        del stages[_CUTS_KEPT:]
        return stage


def _key(specs: _Specs, computed: AbstractSet[Value], exposure: Exposure) -> object:
    # Host objects are always on the host once there is a run: whether planning sees them makes no difference.
    kinds = tuple(
        [
            (s.dtype, len(s.shape), s.value is not None and not is_host_object(s.dtype), v in computed)
            for v, s in specs.items()
        ]
    )
    return kinds, exposure
