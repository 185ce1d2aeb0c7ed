"""The pass remove_noops: removal of operators without effect."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.passes.remove_noops import remove_noops
from tests.passes.harness import check_same, load, operators

X = np.array([[-0.0, 1.5, -2.5], [0.0, 3.0, np.inf]], np.float32)
CONSTANTS = (
    "<float one = {1.0}, float zero = {0.0}, float minus_zero = {-0.0}, float two = {2.0}, float[1] ones = {1.0}, "
    "int64[4] no_pads = {0, 0, 0, 0}, int64[4] pads = {0, 1, 0, 0}, bool no = {0}, bool yes = {1}>"
)


@pytest.mark.parametrize("node", ["Cos (x)", "ReduceMax <keepdims = 1> (x)", "LogSoftmax (x)", "Sum (x, x)"])
def test_cast_behind_what_keeps_the_type_goes(node: str) -> None:
    graph = load(f"agraph (float[2, 3] x) => (float[m, n] y) {{ a = {node} b = Cast <to = 1> (a) y = Neg (b) }}")
    after = remove_noops(graph)
    assert operators(after) == [node.split()[0], "Neg"]
    check_same(graph, after, x=X)


@pytest.mark.parametrize(
    "node",
    [
        "Identity (a)",
        "Cast <to = 1> (a)",
        "CastLike (a, two)",
        "Transpose <perm = [0, 1]> (a)",
        "Add (a, minus_zero)",
        "Sub (a, zero)",
        "Mul (a, one)",
        "Div (a, one)",
        "Sum (a)",
        "Max (a)",
        "Mean (a)",
        "Concat <axis = 0> (a)",
        "Pad (a, no_pads)",
    ],
)
def test_noop_goes(node: str) -> None:
    graph = load(f"agraph (float[2, 3] x) => (float[2, 3] y) {CONSTANTS} {{ a = Abs (x) b = {node} y = Neg (b) }}")
    after = remove_noops(graph)
    assert operators(after) == ["Abs", "Neg"]
    check_same(graph, after, x=X)


def test_cast_to_an_unknown_type_stays() -> None:
    """A double, and a type that only shapes and operators tell."""
    text = """agraph (double[2, 3] x, float[2, 3] z) => (float[2, 3] y) {
        a = Abs (x) like = Sign (z) b = CastLike (a, like) y = Neg (b) }"""
    graph = load(text)
    after = remove_noops(graph)
    assert operators(after) == operators(graph)
    check_same(graph, after, x=X.astype(np.float64), z=X)


@pytest.mark.parametrize(
    "node",
    [
        "Cast <to = 11> (a)",
        "Transpose <perm = [1, 0]> (a)",
        "Transpose (a)",
        "Add (a, zero)",  # makes 0.0 of -0.0
        "Sub (a, minus_zero)",
        "Mul (a, two)",
        "Mul (a, ones)",  # would make rank 1 of rank 0
        "Div (one, a)",
        "Sum (a, two)",
        'Clip (a, "", "")',  # makes the largest number of inf
        "Pad (a, pads)",
    ],
)
def test_what_changes_something_stays(node: str) -> None:
    graph = load(f"agraph (float[2, 3] x) => (y) {CONSTANTS} {{ a = Abs (x) b = {node} y = Neg (b) }}")
    assert len(remove_noops(graph).nodes) == 3


def test_integers_have_one_zero() -> None:
    graph = load("agraph (int64[3] x) => (int64[3] y) <int64 zero = {0}> { a = Abs (x) b = Add (a, zero) y = Neg (b) }")
    assert operators(remove_noops(graph)) == ["Abs", "Neg"]


@pytest.mark.parametrize(
    ("inputs", "is_removed"),
    [("a", True), ("a, one", True), ("a, one, no", True), ("a, one, yes", False), ("a, one, t", False)],
)
def test_dropout_goes_where_it_is_surely_inference(inputs: str, is_removed: bool) -> None:
    graph = load(
        f"agraph (float[2, 3] x, bool t) => (float[2, 3] y) {CONSTANTS} "
        f"{{ a = Abs (x) b = Dropout ({inputs}) y = Neg (b) }}"
    )
    assert ("Dropout" not in operators(remove_noops(graph))) is is_removed


def test_dropout_whose_mask_is_read_stays() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y, bool[2, 3] m) { a = Abs (x) b, m = Dropout (a) y = Neg (b) }"
    )
    assert "Dropout" in operators(remove_noops(graph))


def test_old_dropout_goes() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) { a = Abs (x) b = Dropout <ratio = 0.5> (a) y = Neg (b) }", opset=9
    )
    assert operators(remove_noops(graph)) == ["Abs", "Neg"]


def test_chain_of_noops_goes() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) { a = Identity (x) b = Identity (a) c = Identity (b) y = Neg (c) }"
    )
    after = remove_noops(graph)
    assert operators(after) == ["Neg"]
    check_same(graph, after, x=X)


def test_producer_makes_the_graph_output_instead() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) "
        "{ a = Abs (x) b = Identity (a) y = Identity (b) z = Neg (a) }"
    )
    after = remove_noops(graph)
    assert operators(after) == ["Abs", "Neg"]
    assert after.outputs == graph.outputs
    check_same(graph, after, x=X)


def test_second_output_from_one_value_keeps_its_identity() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) { a = Abs (x) y = Identity (a) z = Identity (a) }"
    )
    after = remove_noops(graph)
    assert operators(after) == ["Abs", "Identity"]
    check_same(graph, after, x=X)


def test_output_that_is_an_input_keeps_its_identity() -> None:
    graph = load("agraph (float[2, 3] x) => (float[2, 3] y) { y = Identity (x) }")
    assert operators(remove_noops(graph)) == ["Identity"]


def test_output_that_is_another_output_keeps_its_identity() -> None:
    graph = load("agraph (float[2, 3] x) => (float[2, 3] a, float[2, 3] y) { a = Abs (x) y = Identity (a) }")
    after = remove_noops(graph)
    assert operators(after) == ["Abs", "Identity"]
    check_same(graph, after, x=X)


def test_cast_of_a_value_of_unknown_type_stays() -> None:
    graph = load("agraph (float[2, 3] x) => (int64[1, 3] y) { a = ArgMax (x) y = Cast <to = 7> (a) }")
    assert operators(remove_noops(graph)) == ["ArgMax", "Cast"]


def test_types_that_operators_name_are_known() -> None:
    text = "{ a = IsNaN (x) b = Cast <to = 9> (a) c = Where (b, x, x) y = Cast <to = 1> (c) }"
    graph = load(f"agraph (float[2, 3] x) => (float[2, 3] y) {text}")
    assert operators(remove_noops(graph)) == ["IsNaN", "Where"]


def test_cast_to_double_of_what_has_no_known_type_stays() -> None:
    # To NumPy, None equals float64.
    graph = load("agraph (int64[2, 3] x) => (double y) { a = ReduceProd <keepdims = 0> (x) y = Cast <to = 11> (a) }")
    assert operators(remove_noops(graph)) == ["ReduceProd", "Cast"]
