"""Inspection settings of a Worker: taps, watches and checks of its runs, and where a tapped name stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuexec.errors import InputError
from gpuexec.execution.inspection.exposing import Exposure, Tap
from gpuexec.execution.inspection.statistics import MOMENTS, Reducer, check_reducers
from gpuexec.ir.graphs import Graph, Node, Value, walk
from gpuexec.model.model import Model

WATCHES = ("raise", "report")


@dataclass(slots=True, eq=False)
class Inspector:
    """Inspection settings for runs that begin now.

    Attributes:
        exposure: The observed values.
        raises: A NaN or infinity that a node makes ends the run with an error.
        reducers: Of the caller's own, by the name of the tap.
    """

    exposure: Exposure = field(default_factory=Exposure)
    raises: bool = False
    reducers: Mapping[str, tuple[Reducer, ...]] = field(default_factory=dict)

    @staticmethod
    def of(watch: str | None, *, keeps_all: bool = False) -> Inspector:
        """Return an inspector without taps.

        Raises:
            InputError: ``watch`` is none of WATCHES.
        """
        if watch not in (None, *WATCHES):
            raise InputError(f"watch takes None, 'raise' or 'report', got {watch!r}.")
        return Inspector(Exposure(keeps_all, watch is not None), raises=watch == "raise")

    def tap(self, model: Model, wanted: Mapping[str, object]) -> None:
        """Set the taps of later runs, replacing those before.

        Raises:
            InputError: The model has no such value or node, or there is no such reducer; taps stay as they were.
        """
        if not isinstance(wanted, Mapping):
            raise InputError(f"tap takes reducers by name, {{'value': ['mean']}}, got a {type(wanted).__name__}.")
        given = {name: check_reducers(name, reducers) for name, reducers in wanted.items()}
        for name in given:
            check_name(model, name)
        taps = [
            Tap(name, bool(MOMENTS & set(each)), "histogram" in each, any(callable(reducer) for reducer in each))
            for name, each in given.items()
        ]
        self.exposure = replace(self.exposure, taps=tuple(taps))
        self.reducers = {
            name: tuple([reducer for reducer in each if not isinstance(reducer, str)]) for name, each in given.items()
        }


def check_name(model: Model, name: str) -> None:
    """Check that a value or node of this name exists when the model runs.

    Raises:
        InputError: It is not: passes fused or removed it (says what is nearest), or it never was.
    """
    if any(_find(graph, name) for graph in walk(model.graph)):
        return
    for graph in walk(model.info.graph):
        if found := _find(graph, name):
            near = _find_nearest(graph, found, _names(model.graph))
            raise InputError(
                f"{name!r} is not there when the model runs: passes fused or removed it."
                + (f" The nearest value behind it is {near!r}." if near else "")
                + f" To see it all the same, load the model with {name!r} among outputs=, or with"
                " disabled_passes=[...].",
                value=name,
            )
    raise InputError(f"The model has no value or node {name!r}.", value=name)


def _find(graph: Graph, name: str) -> list[Value]:
    """Return the values that a name stands for: the value itself, or all outputs of the node."""
    if not name:
        return []
    values = [value for value in graph.values() if value.name == name]
    return values or [v for node in graph.nodes if node.name == name for v in node.outputs if v is not None]


def _names(graph: Graph) -> set[str]:
    return {value.name for each in walk(graph) for value in each.values()}


def _find_nearest(graph: Graph, values: list[Value], known: set[str]) -> str:
    """Return the name of the first known value downstream of these."""
    consumers = graph.consumers()
    reached, seen = list(values), set(values)
    for value in reached:
        if value.name in known:
            return value.name
        following: list[Node] = consumers.get(value, [])
        new = [made for node in following for made in node.outputs if made is not None and made not in seen]
        seen.update(new)
        reached.extend(new)
    return ""
