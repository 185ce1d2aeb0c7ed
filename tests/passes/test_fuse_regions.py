"""The pass fuse_regions: fusion of neighbouring operators on elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.region import Region
from gpuexec.passes.fuse_regions import fuse_regions
from tests.model.small_models import CPU
from tests.ops.tolerance import to_bits
from tests.passes.harness import load, operators

SIMULATOR = gx.BackendType.SIMULATOR
NAMES = {"x": (4, 6), "row": (6,), "column": (4, 1), "one": (), "k": (6, 6), "flag": (4, 6)}
CONSTANTS = "<float half = {0.5}, float[1, 1, 1] deep = {2}, float[2] shape = {3, 4}>"


def fuse(body: str, outputs: str = "float[4, 6] y") -> Graph:
    """Return x and others through the body, fused."""
    text = f"""agraph (float[4, 6] x, float[6] row, float[4, 1] column, float one, float[6, 6] k, bool[4, 6] flag)
        => ({outputs}) {CONSTANTS} {{ {body} }}"""
    graph = fuse_regions(load(text), {name: spec(name) for name in NAMES})
    check(graph)
    return graph


def spec(name: str) -> TensorSpec:
    return TensorSpec(NAMES[name], np.dtype(np.bool_ if name == "flag" else np.float32))


def steps(graph: Graph) -> list[tuple[list[str], list[str], list[str]]]:
    """Return the operators, inputs and outputs of each region."""
    return [
        (
            [row[0] for row in node.operator.steps],
            [str(v.name) for v in node.inputs if v],
            [str(v.name) for v in node.outputs if v],
        )
        for node in graph.nodes
        if isinstance(node.operator, Region)
    ]


def test_chain_becomes_one_region() -> None:
    graph = fuse("a = Mul (x, row) b = Add (column, a) c = Where (flag, b, x) d = Relu (c) y = Sub (d, half)")
    assert steps(graph) == [(["Mul", "Add", "Where", "Relu", "Sub"], ["x", "row", "column", "flag"], ["y"])]
    (node,) = graph.nodes
    assert isinstance(node.operator, Region) and node.operator.steps[-1][2] == (-4, "float32 0.5")


def test_values_with_readers_elsewhere_are_results() -> None:
    graph = fuse("a = Neg (x) b = Exp (a) c = MatMul (a, k) y = Add (b, c)", "float[4, 6] y, float[4, 6] b")
    assert steps(graph) == [(["Neg", "Exp"], ["x"], ["a", "b"])]
    assert operators(graph) == ["gpuexec.Region", "MatMul", "Add"]


def test_no_way_leads_out_of_a_region_and_back() -> None:
    graph = fuse("a = Neg (x) c = MatMul (a, k) b = Exp (a) y = Add (b, c)")
    assert steps(graph) == [(["Neg", "Exp"], ["x"], ["a", "b"])]
    # Two chains that read from each other can't both be whole.
    crossed = fuse(
        """a = Neg (x) b = Relu (x) p = MatMul (a, k) q = MatMul (b, k)
        c = Add (a, q) d = Add (b, p) y = Mul (c, d)"""
    )
    assert sum(len(row[0]) for row in steps(crossed)) >= 4


def test_siblings_and_their_readers_are_ordered_anew() -> None:
    graph = fuse("a = Neg (x) c = MatMul (a, k) b = Exp (a) d = MatMul (b, k) e = Add (b, x) y = Sum (c, d, e)")
    assert steps(graph) == [(["Neg", "Exp", "Add"], ["x"], ["a", "b", "e"])]
    assert operators(graph)[0] == "gpuexec.Region"


def test_one_operator_on_a_large_transposed_view_is_a_region() -> None:
    def fuse_view(rows: int, columns: int, perm: str) -> list[tuple[list[str], list[str], list[str]]]:
        body = f"t = Transpose <perm = {perm}> (x) y = Relu (t)"
        graph = load(f"agraph (float[{rows}, {columns}] x) => (float[p, q] y) {{ {body} }}")
        return steps(fuse_regions(graph, {"x": TensorSpec((rows, columns), np.dtype(np.float32))}))

    assert fuse_view(512, 300, "[1, 0]") == [(["Relu"], ["t"], ["y"])]
    assert fuse_view(512, 300, "[0, 1]") == fuse_view(51, 30, "[1, 0]") == []


def test_shapes_of_a_region_are_one() -> None:
    graph = fuse("a = Exp (row) b = Neg (a) c = Add (x, b) y = Relu (c)")
    assert steps(graph) == [(["Exp", "Neg"], ["row"], ["b"]), (["Add", "Relu"], ["x", "b"], ["y"])]


def test_numbers_that_would_stretch_stay_inputs() -> None:
    graph = fuse("a = Relu (x) y = Mul (a, deep)", "float[1, 4, 6] y")
    assert steps(graph) == []
    graph = fuse("a = Neg (one) y = Mul (a, half)", "float y")
    assert steps(graph) == [(["Neg", "Mul"], ["one"], ["y"])]


def test_values_that_shapes_depend_on_stay() -> None:
    text = """agraph (float[4, 6] x, int64[2] n) => (float[p, q] y) {
        a = Add (n, n) s = Sub (a, n) z = Reshape (x, s) c = Neg (z) y = Exp (c) }"""
    specs = {"x": spec("x"), "n": TensorSpec((2,), np.dtype(np.int64))}
    graph = fuse_regions(load(text), specs)
    assert operators(graph) == ["Add", "Sub", "Reshape", "Neg", "Exp"], "no shape is known behind the Reshape"
    specs["n"] = specs["n"].with_value(np.array([8, 3]))
    assert operators(fuse_regions(load(text), specs)) == ["Add", "Sub", "Reshape", "gpuexec.Region"]


def test_other_operators_and_roundings_of_operands_stay() -> None:
    assert steps(fuse("a = Neg (x) b = Softmax (a) y = Exp (b)")) == []
    graph = load(
        "agraph (float[4, 6] x, float[6, 6] k) => (float[4, 6] y) { a = Neg (x) r = Relu (a) y = MatMul (r, k) }"
    )
    rounding = replace(graph.nodes[1], operator=build("gpuexec.RoundOperand", {"to": "tf32"}))
    graph = replace(graph, nodes=(graph.nodes[0], rounding, graph.nodes[2]))
    assert fuse_regions(graph, {"x": spec("x"), "k": spec("k")}) is graph


DTYPES = {"float": TensorProto.FLOAT, "half": TensorProto.FLOAT16, "long": TensorProto.INT64}
UNARY = {"float": ["Neg", "Exp", "Relu", "Sigmoid", "Floor"], "half": ["Neg", "Tanh", "Abs"], "long": ["Neg", "Abs"]}
BINARY = ["Add", "Mul", "Sub", "Max"]
EXTENTS = st.sampled_from([0, 1, 2, 3, 7, 8, 31])


@st.composite
def make_models(draw: Any) -> tuple[bytes, dict[str, Any]]:
    """Return a model of random operators on elements, with products between, and inputs."""
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    inputs: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(list(DTYPES)))
        own = tuple(draw(st.sampled_from([1, extent])) for extent in shape) if number else shape
        dtype = helper.tensor_dtype_to_np_dtype(DTYPES[kind])
        inputs[f"x{number}"] = np.asarray(random.normal(size=own) * 3).astype(dtype)
        kinds[f"x{number}"] = kind
    nodes = []
    for number in range(draw(st.integers(2, 9))):
        first = draw(st.sampled_from(sorted(kinds)))
        kind, name = kinds[first], f"v{number}"
        match draw(st.sampled_from(["unary", "binary", "binary", "cast", "cut"])):
            case "unary":
                nodes.append(helper.make_node(draw(st.sampled_from(UNARY[kind])), [first], [name]))
            case "binary":
                second = draw(st.sampled_from(sorted(each for each in kinds if kinds[each] == kind)))
                nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [first, second], [name]))
            case "cast":
                kind = draw(st.sampled_from(list(DTYPES)))
                nodes.append(helper.make_node("Cast", [first], [name], to=DTYPES[kind]))
            case _:  # what is in no region
                nodes.append(helper.make_node("CumSum", [first, "axis"], [name]))
        kinds[name] = kind
    wanted = draw(st.sets(st.sampled_from(sorted(k for k in kinds if k[0] == "v")), min_size=1)) | {nodes[-1].output[0]}
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, DTYPES[kinds[name]], [None] * x.ndim) for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, DTYPES[kinds[name]], None) for name in sorted(wanted)],
        [helper.make_tensor("axis", TensorProto.INT64, [], [0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString(), inputs


def check_bits(model: tuple[bytes, dict[str, Any]], backend: gx.BackendType) -> None:
    data, inputs = model
    results = []
    for disabled in ((), ("fuse_rows", "fuse_regions")):
        with gx.Worker(gx.load(data, disabled_passes=disabled), backend=backend) as worker:
            results.append(worker.run(inputs))
            smaller = {name: x[: max(1, x.shape[0] // 2)] if x.shape[0] > 1 else x for name, x in inputs.items()}
            results.append(worker.run(smaller))
    for fused, apart in zip(results[:2], results[2:], strict=True):
        for got, expected in zip(fused, apart, strict=True):
            np.testing.assert_array_equal(to_bits(got), to_bits(expected))


@settings(max_examples=150, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_host(model: tuple[bytes, dict[str, Any]]) -> None:
    check_bits(model, CPU)


@settings(max_examples=10, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_simulator(model: tuple[bytes, dict[str, Any]]) -> None:
    check_bits(model, SIMULATOR)
