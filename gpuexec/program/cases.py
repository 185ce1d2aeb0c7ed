"""Test cases of a method: inputs, expected outputs, and the error allowed.

Loops are limited for made-up inputs, with which one might never end.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import pack
from gpuexec.ir.graphs import Array, Graph, Node, bodies, walk, with_bodies
from gpuexec.ir.operator import Operator, Tolerance
from gpuexec.ir.spec import UNKNOWN, TensorSpec, dtype_row, eps_of, is_container, is_host_object
from gpuexec.model.initial_state import find_initial_specs
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.ops.control.control import Loop
from gpuexec.ops.control.interpret import compute_graph
from gpuexec.program.contents import Allowance, StoredCase, check_allowed

_ULPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Inputs to test a method with, and the outputs expected; None: what the CPU makes of the inputs.

    ``rtol`` and ``atol`` say how far outputs may be off; None: what suits the operators' tolerance class.

    Raises:
        InputError: One is negative or not finite, or inputs or outputs are given without names.

    Example:
        >>> case = gx.Case({"image": x[:1]}, rtol=1e-3)
        >>> program = gx.Program.build({"forward": model}, cases={"forward": [case]}, backend="cpu")
        >>> program.contents.methods["forward"].cases[0].outputs["logits"].shape
        (1, 10)
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array] | None = None
    rtol: float | None = None
    atol: float | None = None

    def __post_init__(self) -> None:
        for what, arrays in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not isinstance(arrays, Mapping) and (arrays is not None or what == "inputs"):
                raise InputError(f"A case has its {what} by name, {{'x': array}}; got a {type(arrays).__name__}.")
        for name, number in (("rtol", self.rtol), ("atol", self.atol)):
            if number is not None:
                check_allowed(name, number)


def make_case(model: Model, case: Case, *, max_trips: int | None = None) -> StoredCase:
    """Return a case with outputs and what is allowed of each.

    Args:
        model: Whose case.
        case: What is given of it.
        max_trips: How many trips the model's Loops may make together while outputs are computed; None: any number.

    Raises:
        InputError: Inputs or outputs are not the model's, and are named; or the Loops make more trips.
    """
    if not isinstance(case, Case):
        raise InputError(f"A case is a Case(inputs, outputs), got a {type(case).__name__}.")
    inputs = _check_arrays(case.inputs, model.inputs, "input")
    missing = [port.name for port in model.inputs if port.name not in inputs]
    if missing:
        raise InputError(f"A case lacks the inputs {', '.join(missing)}.", value=missing[0])
    if case.outputs is None:
        graph = model.graph if max_trips is None else limit_trips(model.graph, max_trips)
        outputs = _compute(model, graph, inputs)
    else:
        outputs = _check_arrays(case.outputs, model.outputs, "output")
    if not outputs:
        raise InputError("A case has no expected outputs.")
    allowances = {name: _allow(model, array, case) for name, array in outputs.items()}
    return StoredCase(inputs, outputs, allowances, "cpu" if case.outputs is None else "given")


def limit_trips(graph: Graph, max_trips: int) -> Graph:
    """Return a graph whose Loops, to any depth, make at most ``max_trips`` trips together, each time it is made.

    It is for `compute_graph` alone: one more trip raises an InputError that names the Loop, and nothing else is
    changed.
    """
    return _limit(graph, _Trips(max_trips))


def _compute(model: Model, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what NumPy makes of the inputs, and of memories that hold nothing yet."""
    specs = {name: TensorSpec.of(array) for name, array in inputs.items()}
    starts = find_initial_specs(model.graph, model.memories, model.dims, specs) if model.memories else {}
    given = {**inputs, **{name: np.zeros(spec.shape, spec.dtype) for name, spec in starts.items()}}
    made = compute_graph(graph, [given[value.name] for value in graph.inputs])
    named = dict(zip([value.name for value in graph.outputs], made, strict=True))
    return {port.name: np.array(named[port.name], order="C") for port in model.outputs}


def _allow(model: Model, expected: Array, case: Case) -> Allowance:
    """Return how far an output may be off: as the user says, else by the operators of the model."""
    if case.rtol is not None or case.atol is not None:
        return Allowance(float(case.rtol or 0.0), float(case.atol or 0.0), "given")
    classes = {node.operator.tolerance for graph in walk(model.graph) for node in graph.nodes}
    if dtype_row(expected.dtype).kind != "float" or classes <= {Tolerance.EXACT}:
        return Allowance(0.0, 0.0, Tolerance.EXACT.value)
    types = {port.spec.dtype for port in (*model.inputs, *model.outputs)} - {UNKNOWN}
    types |= {array.dtype for graph in walk(model.graph) for array in graph.constants.values()}
    eps = max(eps_of(dtype) for dtype in types | {expected.dtype} if dtype_row(dtype).kind == "float")
    wide = np.abs(expected.astype(np.float64))
    scale = float(np.max(wide[np.isfinite(wide)], initial=0.0))
    if Tolerance.REDUCTION in classes:
        return Allowance(eps**0.5, eps**0.5 * scale, Tolerance.REDUCTION.value)
    # Each node may add what one may be off by.
    rtol = _ULPS * eps * sum(len(graph.nodes) for graph in walk(model.graph))
    return Allowance(rtol, min(rtol * scale, sys.float_info.max), Tolerance.ROUNDING.value)


def _check_arrays(arrays: Mapping[str, Array], ports: Sequence[ModelPort], what: str) -> dict[str, Array]:
    known = {port.name: port for port in ports}
    checked = {}
    for name, given in arrays.items():
        if name not in known:
            raise InputError(f"A case has an {what} {name!r}; the model has {', '.join(known)}.", value=name)
        spec = known[name].spec
        if is_container(spec.dtype):
            raise InputError(f"A case can't hold the {what} {name!r}, which is {spec}; only tensors.", value=name)
        array = pack(given, spec) if is_host_object(spec.dtype) else np.array(given, order="C")
        if spec.dtype not in (UNKNOWN, array.dtype):
            raise InputError(f"A case has the {what} {name!r} as {array.dtype}, the model as {spec.dtype}.", value=name)
        dims = spec.dims
        fits = dims is None or len(dims) == array.ndim
        if not fits or any(isinstance(d, int) and d != n for d, n in zip(dims or (), array.shape, strict=False)):
            raise InputError(f"A case has the {what} {name!r} as {list(array.shape)}, the model as {spec}.", value=name)
        checked[name] = array
    return checked


class _Trips:
    """Counts the trips that are left."""

    def __init__(self, max_trips: int) -> None:
        self._max_trips, self._left = max_trips, max_trips

    def take(self) -> None:
        if not self._left:
            raise InputError(f"Loops made {self._max_trips:,} trips without an end; give inputs with which they end.")
        self._left -= 1


@dataclass(frozen=True, slots=True, eq=False)
class _Trip(Operator):
    """Stands first in the body of a Loop, and counts."""

    trips: _Trips
    name: ClassVar[str] = "body"

    def compute(self, *inputs: Any, **named: Any) -> tuple[()]:
        """Count a trip."""
        self.trips.take()
        return ()


def _limit(graph: Graph, trips: _Trips) -> Graph:
    nodes = []
    for node in graph.nodes:
        inner = [_limit(body, trips) for body in bodies(node.operator)]
        if isinstance(node.operator, Loop):
            inner = [replace(body, nodes=(Node(_Trip(trips), (), (), body.name), *body.nodes)) for body in inner]
        nodes.append(replace(node, operator=with_bodies(node.operator, inner)) if inner else node)
    return replace(graph, nodes=tuple(nodes))
