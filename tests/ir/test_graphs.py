"""The graph representation and its checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from gpuexec.errors import ModelError
from gpuexec.ir.graphs import (
    Graph,
    Node,
    RawNode,
    Value,
    bodies,
    check,
    find_free,
    list_needed,
    take_free,
    walk,
    with_bodies,
)
from gpuexec.ir.operator import Operator
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import Scale, Sum

X, Y, Z = Value("x"), Value("y"), Value("z")


@dataclass(frozen=True, slots=True)
class Within(Operator):
    """An operator with a body."""

    body: Graph
    size: int = 1


def node(source: Value | None, target: Value | None, name: str = "n") -> Node:
    return Node(Scale(), (source,), (target,), name)


def test_values_and_nodes_are_equal_only_to_themselves() -> None:
    assert Value("x") != Value("x")
    assert node(X, Y) != node(X, Y)
    assert repr(X) == "%x" and repr(node(X, Y)) == "test.Scale 'n'"


def test_graph_in_order_passes() -> None:
    check(Graph((X,), (Z, X), (node(X, Y), node(Y, Z), node(None, None)), {}))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (Graph((X,), (Z,), (node(Y, Z), node(X, Y)), {}), "test.Scale 'n': input %y is not made before it is used"),
        (Graph((X,), (Y,), (node(X, Y), node(X, Y, "m")), {}), "'m': output %y is made twice"),
        (Graph((X,), (X,), (node(X, X),), {}), "output %x is made twice"),
        (Graph((X,), (Y,), (), {}), "output %y is made by no node"),
        (Graph((X, X), (X,), (), {}), "listed twice"),
        (Graph((X,), (X,), (), {X: np.zeros(1)}), "listed twice"),
        (Graph((X, Value("x")), (X,), (), {}), "two inputs are called 'x'"),
        (Graph((X,), (X,), (node(X, Value("x")),), {}), "two values are called 'x'"),
        (Graph((X,), (X,), (), {Value("x"): np.zeros(1)}), "two values are called 'x'"),
        (
            Graph((X,), (Z,), (Node(Within(Graph((X,), (Y,), (), {})), (X,), (Z,), "n"),), {}),
            "'n': .* output %y is made",
        ),
    ],
)
def test_graph_that_breaks_the_grammar_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check(graph)


def test_bodies_are_found_walked_and_replaced() -> None:
    innermost = Graph((X,), (X,), (), {})
    inner = Graph((X,), (Y,), (Node(Within(innermost), (X,), (Y,), "n"),), {})
    outer = Graph((X,), (Y,), (node(X, Z), Node(Within(inner, size=3), (Z,), (Y,), "m")), {})
    check(outer)
    assert list(walk(outer)) == [outer, inner, innermost]
    assert bodies(Scale()) == ()
    changed = with_bodies(outer.nodes[1].operator, [innermost])
    assert changed == Within(innermost, size=3)
    assert repr(inner) == "Graph('', 1 nodes)"


def test_producers_consumers_and_values() -> None:
    build = GraphBuilder()
    x = build.input("x", 2)
    w = build.constant(np.zeros(2, np.float32))
    y = build.node(Sum(), x, x, w)
    z = build.node(Scale(), y)
    graph = build.graph(z)
    first, second = graph.nodes
    assert graph.producers() == {y: first, z: second}
    assert graph.consumers() == {x: [first, first], w: [first], y: [second]}
    assert list(graph.values()) == [x, w, y, z]


RAW = RawNode("Op", "", "n", ("a",), ("o",), {"axis": 1, "old": 2}, 11)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda raw: raw.without("old", "absent").attributes, {"axis": 1}),
        (lambda raw: raw.with_attributes(axis=3, new=4).attributes, {"axis": 3, "old": 2, "new": 4}),
        (lambda raw: raw.with_input(2, np.arange(2)).inputs, ("a", "", "n.Op.input2")),
        (lambda raw: raw.with_input(0, np.arange(2)).inputs, ("n.Op.input0",)),
        (lambda raw: list(raw.with_input(1, np.arange(2)).constants["n.Op.input1"]), [0, 1]),
    ],
)
def test_raw_nodes_are_rewritten_to_new_ones(change: Callable[[RawNode], object], expected: object) -> None:
    assert change(RAW) == expected
    assert RAW.attributes == {"axis": 1, "old": 2} and not RAW.constants


def test_what_outputs_need_is_found_up_to_what_is_given() -> None:
    first, second, aside = node(X, Y, "first"), node(Y, Z, "second"), node(X, Value("w"), "aside")
    assert list_needed([first, second, aside], [Z]) == ([first, second], {X, Y, Z})
    assert list_needed([first, second, aside], [Z], {Y}) == ([second], {Y, Z})
    assert list_needed([first, second, aside], [Z], {Z}) == ([], {Z})


def test_free_names_are_numbered_from_2() -> None:
    taken = {"x", "x.2"}
    assert find_free("y", taken) == "y" and find_free("x", taken, {"x.3"}) == "x.4"
    assert [take_free("x", taken), take_free("x", taken)] == ["x.3", "x.4"]
    assert taken == {"x", "x.2", "x.3", "x.4"}


Body = Graph


def test_bodies_are_found_under_any_type_that_is_not_plain() -> None:
    body = Graph((), (), (), {})

    @dataclass(frozen=True)
    class Aliased:
        repeats: int
        axes: tuple[int, ...]
        inner: Body
        either: Graph | None = None

    class Plain(Aliased):
        pass

    assert bodies(cast(Operator, Aliased(2, (0,), body, body))) == (body, body)
    assert bodies(cast(Operator, Plain(2, (0,), body))) == (body,)
