"""JSON form of graphs: round trip, and refusal of bad data by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.graph_json import decode_graph, encode_graph
from gpuexec.ir.graphs import Graph, Node, Value, check, walk
from gpuexec.ir.operator import Operator, Tolerance, describe, operator
from gpuexec.ops.control.interpret import compute_graph
from tests.model.control_models import MODELS
from tests.program.program_seeds import load_halves, load_linear

Array = np.ndarray[Any, Any]


def pass_through(graph: Graph) -> Graph:
    """Return the graph after JSON, with the same arrays."""
    arrays: list[Array] = []

    def keep(array: Array, name: str) -> int:
        arrays.append(array)
        return len(arrays) - 1

    text = json.dumps(encode_graph(graph, keep), allow_nan=False)
    return decode_graph(json.loads(text), arrays)


def show(graph: Graph) -> Any:
    """Return all that a graph says, as data that compares."""
    rows = []
    for inner in walk(graph):
        for node in inner.nodes:
            name, attributes = describe(node.operator)
            plain = [(key, None if isinstance(value, Graph) else value) for key, value in attributes]
            rows.append((node.name, name, plain, [str(v) for v in node.inputs], [str(v) for v in node.outputs]))
    ports = [(v.name, v.declared) for inner in walk(graph) for v in (*inner.inputs, *inner.outputs)]
    constants = [(v.name, v.declared, id(a)) for inner in walk(graph) for v, a in inner.constants.items()]
    return graph.name, rows, ports, constants


@pytest.mark.parametrize("name", sorted(MODELS))
def test_graph_with_bodies_comes_back(name: str) -> None:
    graph = gx.load(MODELS[name].parse()).graph
    again = pass_through(graph)
    check(again)
    assert show(again) == show(graph)


@pytest.mark.parametrize("load", [load_linear, load_halves])
def test_graph_comes_back_and_computes_alike(load: Callable[[], gx.Model]) -> None:
    graph = load().graph
    again = pass_through(graph)
    assert show(again) == show(graph)
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    for expected, got in zip(compute_graph(graph, [x]), compute_graph(again, [x]), strict=True):
        np.testing.assert_array_equal(expected, got)


@operator("Odd", "gpuexec.test.json")
@dataclass(frozen=True, slots=True)
class Odd(Operator):
    """Attributes of all kinds."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    low: float = 0.0
    high: float = 1.0
    rows: tuple[tuple[int, str], ...] = ()
    dtype: np.dtype[Any] | None = None
    raw: bytes | None = None
    whatever: Any = None
    axis: int = 0


def graph_of(op: Operator) -> Graph:
    x, y = Value("x"), Value("y")
    return Graph((x,), (y,), (Node(op, (x, None), (y, None), "odd"),), {}, "g")


def test_attributes_of_all_kinds_come_back() -> None:
    given = Odd(-math.inf, math.nan, ((1, "a"), (2, "b")), np.dtype(np.float16), b"\0\xff", (True, None, 1.5, -0.0))
    (node,) = pass_through(graph_of(given)).nodes
    got = node.operator
    assert isinstance(got, Odd)
    assert math.isnan(got.high) and math.copysign(1, got.whatever[3]) == -1
    assert (got.low, got.rows, got.dtype, got.raw) == (given.low, given.rows, given.dtype, given.raw)
    assert [type(v) for v in got.whatever] == [bool, type(None), float, float]
    assert [v and v.name for v in (*node.inputs, *node.outputs)] == ["x", None, "y", None]


def test_nodes_still_know_what_they_are_part_of() -> None:
    graph = graph_of(Odd())
    part = replace(graph, nodes=(replace(graph.nodes[0], part_of="Whole 'w'"),))
    assert [node.part_of for node in pass_through(part).nodes] == ["Whole 'w'"]


def test_attribute_that_is_no_data_is_refused_with_its_node() -> None:
    with pytest.raises(gx.InputError, match="Odd 'odd': an attribute is a set") as caught:
        encode_graph(graph_of(Odd(whatever={1})), lambda array, name: 0)
    assert caught.value.node == "odd"


def altered(change: Callable[[Any], None]) -> Any:
    data = json.loads(json.dumps(encode_graph(graph_of(Odd()), lambda array, name: 0)))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["nodes"][0][2].update(axis=1.0), "attribute axis is '1.0', expected int"),
        (lambda d: d["nodes"][0][2].update(axis=True), "attribute axis is 'True', expected int"),
        (lambda d: d["nodes"][0][2].update(rows=[[1, 2]]), "attribute rows"),
        (lambda d: d["nodes"][0][2].update(raw={"$": "bytes", "v": "zz"}), "An attribute can't be read"),
        (lambda d: d["nodes"][0][2].update(raw={"$": "code", "v": "1"}), "unknown form"),
        (lambda d: d["nodes"][0][2].update(raw={"$": "graph", "v": []}), "A graph has no name"),
        (lambda d: d["nodes"][0].pop(), "expected a list of 5"),
        (lambda d: d["nodes"].append({}), "expected a list of 5"),
        (lambda d: d.pop("values"), "no values"),
        (lambda d: d["inputs"].append(True), "True is no number of 2"),
        (lambda d: d["inputs"].append(2), "2 is no number of 2"),
        (lambda d: d["constants"].append([0, 0]), "0 is no number of 0"),
        (lambda d: d["values"].append(["v", ["float32", [True]]]), "declares dims that are none"),
        (lambda d: d["values"].append(["v", ["float32", [1] * 65]]), "more than 64"),
        (lambda d: d["values"].append(["v", ["object", []]]), "Element type 'object' is not supported"),
        (lambda d: d["values"].append([3, None]), "the name of a value is '3'"),
        (lambda d: d.update(parts_of=3), "no parts_of"),
        (lambda d: d.update(parts_of=[]), "of each node what it is part of"),
        (lambda d: d.update(parts_of=[3]), "of each node what it is part of"),
    ],
)
def test_data_that_is_no_graph_is_refused(change: Callable[[Any], None], message: str) -> None:
    with pytest.raises(gx.ModelError, match=message):
        decode_graph(altered(change), [])


def test_all_unknown_operators_are_listed() -> None:
    data = altered(lambda d: d["nodes"].append(["other", "Second", {"a": 1}, [], []]))
    data["nodes"][0][1] = "First"
    with pytest.raises(gx.UnsupportedError, match=r"not registered here: First \('odd'\), Second \('other'\)"):
        decode_graph(data, [])


def test_bodies_within_bodies_have_an_end() -> None:
    data = altered(lambda d: None)
    for _ in range(40):
        data = altered(lambda d, inner=data: d["nodes"][0][2].update(whatever={"$": "graph", "v": inner}))
    with pytest.raises(gx.ModelError, match="more than 32 others"):
        decode_graph(data, [])
