"""Subgraph still to run: its partitions and their plans.

The partition of a graph depends on dtypes and ranks, and on which content is on the host; branches besides on content,
or on extents. All of it is cached, so that a run like an earlier one decides nothing anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from operator import attrgetter

from gpuexec.errors import NeedsHostValue
from gpuexec.execution.inspection.exposing import Exposed, Exposure
from gpuexec.execution.runs.deferred_plans import Plans, open_plans
from gpuexec.execution.runs.plan_cache import PlannedVariant
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.stopwatch import LayerTimes
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.planner.partition import Partition
from gpuexec.planner.partitioner import find_partition

_Specs = Mapping[Value, TensorSpec]
_STAGES_KEPT = 64
_PLAIN = Exposure()
_SHAPE = attrgetter("shape")


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A partition of a subgraph: the plans of its ready graph, the subgraph left over, and the values exposed."""

    partition: Partition
    plans: Plans | None
    rest: Subgraph | None
    conditions: tuple[tuple[Value, bytes], ...]
    shapes: tuple[tuple[int, ...], ...] | None
    exposed: Exposed | None = None
    # Times of the nodes that the host computes.
    times: LayerTimes = field(default_factory=LayerTimes)

    def fits(self, specs: _Specs) -> bool:
        """Return whether these specs lead to the same partition."""
        if self.shapes is not None and self.shapes != tuple([spec.shape for spec in specs.values()]):
            return False
        for value, content in self.conditions:
            known = specs[value].value
            if known is None or known.array.tobytes() != content:
                return False
        return True


class Subgraph:
    """A graph, its partitions and the plans of each.

    Args:
        is_body: It is the body of a loop, or what is left of one.
        condition: The output of a body that says whether to go on.
        grows: Memories grow where they lie, if one plan does it all: what another plan takes up is dense.
        unreported: Inputs and weights that no tap has reported before: values of an earlier plan, or captures of a
            body, are reported where they are made. None: all.
    """

    def __init__(
        self,
        graph: Graph,
        planning: PlanningContext,
        *,
        is_body: bool = False,
        condition: Value | None = None,
        grows: bool = False,
        unreported: AbstractSet[Value] | None = None,
    ) -> None:
        self.graph = graph
        self._unreported = frozenset((*graph.inputs, *graph.constants)) if unreported is None else unreported
        self._grows = grows
        self._planning, self._is_body, self._condition = planning, is_body, condition
        self._stages: dict[object, list[Stage]] = {}
        # Those found last, whose key is compared before its many dtypes are hashed.
        self._last: tuple[object, list[Stage]] = None, []
        self._wholes: dict[Exposure, Plans] = {}

    def choose(
        self, given: _Specs, computed: AbstractSet[Value], exposure: Exposure = _PLAIN
    ) -> tuple[Stage, PlannedVariant | None]:
        """Return the next stage for inputs of these specs, and the planned variant of its ready graph.

        Args:
            given: Specs by value (others than the graph's inputs too), with content where it is on the host.
            computed: Values whose content the run computed itself.
            exposure: What is looked at in the run, from its beginning to its end.

        Raises:
            InputError: The inputs don't fit the graph; names the node.
            UnsupportedError: Operators that nothing here can run; lists all.
        """
        inputs, specs = self.graph.inputs, given
        if tuple(given) != inputs:
            specs = {value: given[value] for value in inputs}
        news = computed & specs.keys() if computed else computed
        stage = self._find(specs, news, exposure) or self._make(specs, news, exposure, is_exact=False)
        try:
            return stage, self._plan(stage, given)
        except NeedsHostValue:
            if stage.shapes is not None:
                raise
            # Extents decide here what the host can know: partitioned for these alone.
            stage = self._make(specs, news, exposure, is_exact=True)
            return stage, self._plan(stage, given)

    def _plan(self, stage: Stage, given: _Specs) -> PlannedVariant | None:
        if stage.plans is None or stage.partition.ready is None:
            return None
        inputs = stage.partition.ready.inputs
        found = stage.plans.find(tuple(map(_SHAPE, map(given.__getitem__, inputs))))
        return stage.plans.choose({value.name: given[value] for value in inputs}) if found is None else found

    def _find(self, specs: _Specs, computed: AbstractSet[Value], exposure: Exposure) -> Stage | None:
        key = _key(specs, computed, exposure)
        known, stages = self._last
        if key != known:
            found = self._stages.get(key)
            if found is None:
                return None
            self._last = key, found
            stages = found
        for stage in stages:
            if stage.fits(specs):
                return stage
        return None

    def _make(self, specs: _Specs, computed: AbstractSet[Value], exposure: Exposure, *, is_exact: bool) -> Stage:
        partition = find_partition(
            self.graph,
            specs,
            self._planning.backend.device.target,
            computed=computed,
            is_body=self._is_body,
            condition=self._condition,
            host_work=self._planning.host_work,
            inferences=self._planning.inferences,
        )
        plans: Plans | None = None
        is_whole = partition.ready is self.graph
        exposed = None
        if exposure and partition.ready is not None:
            exposed = exposure.expose(partition.ready, self._unreported)
            partition = replace(partition, ready=exposed.graph)
        if is_whole and partition.ready is not None:
            # Which content is on the host makes no difference to a graph that is planned whole.
            plans = self._wholes.get(exposure)
            if plans is None:
                # What is kept is copied, and a cache that grows lies where it is.
                grows = self._grows and not exposure.keeps_all
                plans = self._wholes[exposure] = open_plans(partition.ready, self._planning, grows=grows)
        elif partition.ready is not None:
            plans = open_plans(partition.ready, self._planning)
        rest = None
        if partition.rest is not None:
            reported = () if partition.ready is None else (*partition.ready.inputs, *partition.ready.constants)
            unreported = self._unreported - set(reported)
            rest = Subgraph(
                partition.rest, self._planning, is_body=self._is_body, condition=self._condition, unreported=unreported
            )
        by_name = {value.name: value for value in specs}
        conditions = []
        for name in partition.decided_by:
            content = specs[by_name[name]].value
            assert content is not None
            conditions.append((by_name[name], content.array.tobytes()))
        shapes = tuple([spec.shape for spec in specs.values()]) if is_exact or partition.is_by_shape else None
        stage = Stage(partition, plans, rest, tuple(conditions), shapes, exposed)
        stages = self._stages.setdefault(_key(specs, computed, exposure), [])
        stages.insert(0, stage)
        del stages[_STAGES_KEPT:]
        return stage


def _key(specs: _Specs, computed: AbstractSet[Value], exposure: Exposure) -> object:
    # Host objects are always on the host once there is a run: whether planning sees them makes no difference.
    known = [value for value, spec in specs.items() if spec.value is not None and not is_host_object(spec.dtype)]
    dtypes, ranks = [spec.dtype for spec in specs.values()], [len(spec.shape) for spec in specs.values()]
    return tuple(dtypes), tuple(ranks), tuple(known), frozenset(computed), exposure
