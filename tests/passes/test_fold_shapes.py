"""The pass fold_shapes: constant folding of shape arithmetic once every extent is known."""

from __future__ import annotations

import numpy as np

from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.passes.fold_shapes import fold_shapes
from tests.passes.harness import check_same, load, operators

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
BODY = (
    "<int64[1] zero = {0}, int64[1] last = {2}, int64[1] rest = {-1}> { s = Shape (x) a = Gather <axis = 0> (s, zero) "
    "b = Gather <axis = 0> (s, last) t = Concat <axis = 0> (a, rest, b) m = Mul (t, one) y = Reshape (x, m) }"
).replace("rest = {-1}", "rest = {-1}, int64[1] one = {1}")


def specs(**arrays: np.ndarray) -> dict[str, TensorSpec]:
    return {name: TensorSpec(array.shape, array.dtype) for name, array in arrays.items()}


def test_shape_arithmetic_becomes_a_constant() -> None:
    graph = load(f"agraph (float[2, 3, 4] x) => (float[a, b, c] y) {BODY}")
    folded = run_passes(graph, AT_PLAN, specs=specs(x=X))
    assert operators(folded) == ["Reshape"]
    assert [array.tolist() for array in folded.constants.values()] == [[2, -1, 4]]
    check_same(graph, folded, x=X)


def test_graph_with_a_free_dimension_stays() -> None:
    for dims in ("n, 3, 4", "?, 3, 4"):
        graph = load(f"agraph (float[{dims}] x) => (float[a, b, c] y) {BODY}")
        assert fold_shapes(graph, specs(x=X)) is graph


def test_what_depends_on_data_stays() -> None:
    graph = load(
        "agraph (float[2, 3] x, int64[2] s) => (float[a, b] y) "
        "{ t = Abs (s) u = Reshape (x, t) v = Shape (u) y = Expand (u, v) }"
    )
    folded = fold_shapes(graph, specs(x=X[0, :2, :3], s=np.array([3, 2])))
    assert operators(folded) == operators(graph)


def test_content_of_inputs_is_not_looked_at() -> None:
    graph = load("agraph (int64[2] s) => (int64[2] y) { y = Neg (s) }")
    given = {"s": TensorSpec((2,), np.dtype(np.int64)).with_value(np.array([3, 2]))}
    assert operators(fold_shapes(graph, given)) == ["Neg"]


def test_node_that_can_not_be_inferred_is_left() -> None:
    graph = load(
        "agraph (float[2, 3] x) => (float[2, 3] y) { a = Add (x, w) b = Shape (a) y = Expand (x, b) } ".replace(
            "{ a", "<float[4] w = {1, 2, 3, 4}> { a", 1
        )
    )
    folded = fold_shapes(graph, specs(x=X[0, :2, :3]))
    assert operators(folded) == operators(graph)


def test_output_that_follows_from_shapes_keeps_its_name() -> None:
    graph = load("agraph (float[2, 3] x) => (int64[2] y) { y = Shape (x) }")
    folded = fold_shapes(graph, specs(x=X[0, :2, :3]))
    assert isinstance(folded, Graph)
    assert folded.outputs == graph.outputs
    assert folded.constants[folded.outputs[0]].tolist() == [2, 3]
