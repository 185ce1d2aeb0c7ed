"""The pass fuse_epilogues: fusion of a producer and the elementwise operators behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ir.graphs import Graph, Node, check
from gpuexec.ir.operator import describe
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from tests.model.small_models import CPU
from tests.ops.chains import MADE, VALUE, chain
from tests.ops.tolerance import to_bits
from tests.passes.harness import load, operators

BACKENDS = (CPU, gx.BackendType.SIMULATOR)
RELU = ("Relu", (), (VALUE,))
CONSTANTS = (
    "float[4] v = {1, 2, 3, 4}, float[4, 1, 1] slope = {0.1, 0.2, 0.3, 0.4}, float zero = {0}, float six = {6}, "
    "float[1] half = {0.5}, float[1, 1, 1, 1, 1] deep = {0.5}, float three = {3}, int64[4] same = {1, 1, 1, 1}"
)


def spec(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


SPECS = {
    "x": spec(2, 4, 5, 6),
    "k": spec(4, 4, 1, 1),
    "low": spec(),
    "few": spec(2, 4, 1, 6),
    "many": spec(3, 2, 4, 5, 6),
}


def text_of(body: str, outputs: str = "float[n, c, h, w] y", more: str = "") -> str:
    """Return x -> Conv -> p -> Conv -> c, read by the body; e is another convolution's result, beside the two."""
    return f"""agraph (float[n, 4, h, w] x, float[4, 4, 1, 1] k{more}) => ({outputs}) <{CONSTANTS}>
        {{ e = Conv (x, k) p = Conv (x, k, v) c = Conv (p, k) {body} }}"""


def fuse(body: str, outputs: str = "float[n, c, h, w] y", more: str = "") -> Graph:
    before = load(text_of(body, outputs, more))
    graph = fuse_epilogues(before, SPECS)
    check(graph)
    return graph


def find_fused(graph: Graph) -> Node:
    """Return the one node that has an epilogue."""
    (node,) = [node for node in graph.nodes if "Fused" in node.operator.name]
    return node


def steps_of(graph: Graph) -> Any:
    """Return the steps of the one node that has an epilogue, and the names of its inputs."""
    node = find_fused(graph)
    return dict(describe(node.operator)[1])["steps"], [None if v is None else v.name for v in node.inputs]


def name_results(graph: Graph) -> list[str]:
    """Return the names of what the one node that has an epilogue gives out."""
    return [value.name for value in find_fused(graph).outputs if value is not None]


@pytest.mark.parametrize(
    ("body", "steps", "inputs"),
    [
        ("y = Relu (c)", (RELU,), ["p", "k"]),
        ("y = LeakyRelu <alpha = 0.5> (c)", (("LeakyRelu", (("alpha", 0.5),), (VALUE,)),), ["p", "k"]),
        ("y = Clip (c, zero, six)", (("Clip", (), (VALUE, "0.0", "6.0")),), ["p", "k"]),
        ("y = Clip (c, , half)", (("Clip", (), (VALUE, None, "0.5")),), ["p", "k"]),
        ("y = Mul (half, c)", (("Mul", (), ("0.5", VALUE)),), ["p", "k"]),
        ("y = PRelu (c, slope)", (("PRelu", (), (VALUE, 2)),), ["p", "k", "slope"]),
        ("y = Add (c, x)", (("Add", (), (VALUE, 2)),), ["p", "k", "x"]),
        ("y = Sub (p, c)", (("Sub", (), (2, VALUE)),), ["p", "k", "p"]),
        ("s = Add (c, p) y = Relu (s)", (("Add", (), (VALUE, 2)), RELU), ["p", "k", "p"]),
        ("s = Sigmoid (c) y = Mul (c, s)", (("Sigmoid", (), (VALUE,)), ("Mul", (), (MADE, VALUE))), ["p", "k"]),
        (
            "a = Add (c, three) b = Clip (a, zero, six) d = Mul (c, b) y = Div (d, six)",
            (
                ("Add", (), (VALUE, "3.0")),
                ("Clip", (), (VALUE, "0.0", "6.0")),
                ("Mul", (), (MADE, VALUE)),
                ("Div", (), (VALUE, "6.0")),
            ),
            ["p", "k"],
        ),
    ],
)
def test_steps_say_what_follows(body: str, steps: Any, inputs: Sequence[str]) -> None:
    assert steps_of(fuse(body)) == (chain(steps)["steps"], inputs)


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("z = MaxPool <kernel_shape = [1, 1]> (x) t = Concat <axis = 1> (z, x) y = Sub (c, t)", "float[n, d, h, w] y"),
        ("y = Concat <axis = 1> (c, c)", "float[n, d, h, w] y"),
        ("s = Sign (x) y = Relu (s)", "float[n, d, h, w] y"),
        ("y = Greater (c, three)", "bool[n, d, h, w] y"),
        ("d = Mul (x, three) y = Relu (d)", "float[n, d, h, w] y"),
    ],
    ids=["made_later", "moves", "no_producer", "no_float", "unused"],
)
def test_what_must_stay_stays(body: str, outputs: str) -> None:
    graph = load(text_of(body, outputs))
    assert fuse_epilogues(graph, SPECS) is graph


@pytest.mark.parametrize(
    ("body", "outputs", "results"),
    [
        ("y = Relu (c)", "float[n, d, h, w] y, float[n, d, h, w] c", ["c", "y"]),
        ("y = Relu (c) z = Concat <axis = 1> (c, y)", "float[n, d, h, w] z", ["c", "y"]),
        ("s = Sigmoid (c) t = Tanh (s) y = Mul (s, t)", "float[n, d, h, w] y, float[n, d, h, w] t", ["t", "y"]),
        ("y = Relu (c) z = Tanh (y)", "float[n, d, h, w] y, float[n, d, h, w] z", ["y", "z"]),
        ("y = Cast <to = 10> (c) z = Neg (c)", "float16[n, d, h, w] y, float[n, d, h, w] z", ["y", "z"]),
        ("b = Greater (c, three) y = Where (b, c, p)", "float[n, d, h, w] y, bool[n, d, h, w] b", ["b", "y"]),
        ("y = Add (c, c)", "float[n, d, h, w] y", ["y"]),
        ("y = Sin (c)", "float[n, d, h, w] y", ["y"]),
        ("y = Clip (c, low, six)", "float[n, d, h, w] y", ["y"]),
    ],
    ids=["output", "read", "inner", "both", "cast", "where", "twice", "sine", "number"],
)
def test_all_that_others_read_is_stored(body: str, outputs: str, results: list[str]) -> None:
    graph = fuse(body, outputs, ", float low")
    assert name_results(graph) == results
    assert operators(graph)[:3] == ["Conv", "Conv", "gpuexec.FusedConv"]


def test_a_number_of_more_axes_than_the_result_is_no_step() -> None:
    assert operators(fuse("y = Mul (c, deep)"))[-1] == "Mul"


def test_no_more_results_than_kernels_store() -> None:
    outputs = ", ".join(f"float[n, d, h, w] {name}" for name in "abdf")
    graph = fuse("a = Relu (c) b = Tanh (a) d = Neg (b) f = Exp (d)", outputs)
    assert name_results(graph) == ["a", "b", "d"] and operators(graph)[-1] == "Exp"


def test_what_is_stored_as_no_float_alone_is_left_out() -> None:
    graph = fuse("a = Relu (c) y = Greater (a, three)", "bool[n, d, h, w] y")
    assert name_results(graph) == ["a"] and operators(graph)[-1] == "Greater"


def test_of_two_the_later_has_the_step() -> None:
    graph = fuse("d = Conv (c, k) y = Add (p, d)")
    assert [node.outputs[0].name for node in graph.nodes if node.outputs[0] is not None] == ["e", "p", "c", "y"]
    assert operators(graph) == ["Conv", "Conv", "Conv", "gpuexec.FusedConv"]


def test_a_branch_that_takes_no_longer_is_waited_for() -> None:
    """As a residual that is convolved: behind fewer operators than the sum it is added to, wherever it stands."""
    for body in ("d = Conv (c, k) y = Add (d, e)", "d = Conv (c, k) f = Sqrt (e) y = Add (d, f)"):
        assert operators(fuse(body))[-1] == "gpuexec.FusedConv"
    late = fuse("d = Conv (c, k) z = MaxPool <kernel_shape = [1, 1]> (x) y = Add (d, z)")
    assert sorted(operators(late)) == ["Conv", "Conv", "Conv", "MaxPool", "gpuexec.FusedConv"]
    assert operators(late)[-1] == "gpuexec.FusedConv"


def test_branches_side_by_side_stay_such() -> None:
    """With the sum in one of two kernels that could run at a time, that would wait for the other."""
    assert operators(fuse("r = Conv (p, k) y = Add (c, r)"))[-1] == "Add"
    both = fuse("r = Relu (c) d = Conv (p, k) s = Tanh (d) y = Add (r, s)")
    assert operators(both)[2:] == ["gpuexec.FusedConv", "gpuexec.FusedConv", "Add"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("y = Mul (c, few)", "Mul"),
        ("y = Mul (c, many)", "Mul"),
        ("g = GlobalAveragePool (c) s = Conv (g, k) y = Mul (s, p)", "Mul"),
        ("d = Shape (x) r = Reshape (x, d) e2 = Conv (r, k) y = Mul (e2, r)", "gpuexec.FusedConv"),
        ("d = Shape (x) o = Mul (d, same) r = Reshape (x, o) e2 = Conv (r, k) y = Mul (e2, r)", "gpuexec.FusedConv"),
        ("t = NonZero (low) r = Reshape (x, t) e2 = Conv (r, k) y = Mul (e2, r)", "Mul"),
        ("t = NonZero (low) r = Reshape (x, t) e2 = Conv (r, k) y = Mul (e2, slope)", "Mul"),
    ],
    ids=["scattered", "stretches", "gate", "by_shape", "by_arithmetic", "unknown", "unknown_constant"],
)
def test_what_would_stretch_the_result_stays(body: str, name: str) -> None:
    """What nobody knows the shape of before a run is left alone."""
    more = ", float[a, b, g, h] few, float[i, a, b, g, h] many, float low"
    assert operators(fuse(body, more=more))[-1] == name


def test_no_more_steps_than_kernels_take() -> None:
    rows = " ".join(f"c{i} = Relu (c{i - 1})" for i in range(1, 26)).replace("c0 ", "c ").replace("(c0)", "(c)")
    graph = fuse(f"{rows} y = Tanh (c25)")
    assert len(steps_of(graph)[0]) == 24
    assert operators(graph)[3:] == ["Relu", "Tanh"]


def test_no_more_operands_than_kernels_take() -> None:
    graph = fuse(
        "a = Add (c, p) b = Add (a, x) d = Mul (b, p) f = Mul (d, slope) y = Mul (f, few)",
        more=", float[a, b, g, h] few",
    )
    steps, inputs = steps_of(graph)
    assert [name for name, _, _ in steps] == ["Add", "Add", "Mul", "Mul"]
    assert inputs == ["p", "k", "p", "x", "slope"]


def test_names_report_all_nodes() -> None:
    text = (
        "agraph (float[2, 3] x, float[3, 4] k) => (float[2, 4] y) { [first] c = MatMul (x, k) [second] y = Relu (c) }"
    )
    (node,) = fuse_epilogues(load(text), {"x": spec(2, 3), "k": spec(3, 4)}).nodes
    assert node.name == "first+second"


def test_measured_statistics_that_are_read_keep_a_normalization() -> None:
    text = """agraph (float[2, 4] x, float[4] s) => (float[2, 4] y, float[2, 1] m)
        { c, m = LayerNormalization (x, s) y = Relu (c) }"""
    graph = load(text)
    assert fuse_epilogues(graph, {"x": spec(2, 4), "s": spec(4)}) is graph


BODIES = {
    "residual": "s = Add (c, p) y = Relu (s)",
    "gated": "s = Sigmoid (c) y = Mul (c, s)",
    "hard": "a = Add (c, three) b = Clip (a, zero, six) d = Mul (c, b) y = Div (d, six)",
    "deep": "a = Mul (c, deep) y = Reshape (a, shape)",
}
SHAPE = ", int64[4] shape"


def feeds(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    x, k = rng.standard_normal((rows, 4, 5, 4)), rng.standard_normal((4, 4, 1, 1))
    return {"x": x.astype(np.float32), "k": k.astype(np.float32), "shape": np.array([rows, 4, 5, 4])}


def make(body: str, disabled: Sequence[str] = ()) -> gx.Model:
    head = '<ir_version: 10, opset_import: ["": 18]>'
    return gx.load(parser.parse_model(f"{head} {text_of(body, more=SHAPE)}"), disabled_passes=disabled)


def run(model: gx.Model, backend: gx.BackendType, rows: int) -> tuple[Any, int]:
    with gx.Worker(model, backend=backend) as worker:
        y = worker.run(feeds(rows))[0]
        return y, sum(len(plan.segment.commands) for plan in worker.plans)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("body", BODIES)
def test_bits_stay(body: str, backend: gx.BackendType) -> None:
    fused, apart = make(BODIES[body]), make(BODIES[body], ["fuse_epilogues"])
    for rows in (2, 5):
        (got, few), (expected, many) = run(fused, backend, rows), run(apart, backend, rows)
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))
        assert few < many or body == "deep"


@pytest.mark.parametrize("backend", BACKENDS)
def test_operand_that_stretches_at_one_size_only(backend: gx.BackendType) -> None:
    """With one row the other input has the result's shape; with more it stretches it."""
    head = '<ir_version: 10, opset_import: ["": 18]>'
    text = (
        "agraph (float[n, 3] x, float[3, 4] k, float[m, 4] z) => (float[r, 4] y) { c = MatMul (x, k) y = Add (c, z) }"
    )
    rng = np.random.default_rng(0)
    x, k, z = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 3), (3, 4), (5, 4)))
    with gx.Worker(gx.load(parser.parse_model(f"{head} {text}")), backend=backend) as worker:
        for rows in (1, 5, 2, 1):
            got = worker.run({"x": x, "k": k, "z": z[:rows]})[0]
            np.testing.assert_allclose(got, x @ k + z[:rows], rtol=1e-5, atol=1e-5)


LINEAR = "int64[3] rows = {-1, 1, 4}, int64[2] flat = {-1, 4}, float[4] b = {1, 2, 3, 4}"
RESHAPED = {
    "activation": ("r = Reshape (g, rows) y = Relu (r)", 1),
    "residual": ("r = Reshape (g, rows) y = Add (r, z)", 1),
    "of a MatMul": ("m = MatMul (x, k) r = Reshape (m, rows) a = Relu (r) y = Mul (a, z)", 1),
    "and what the view makes twice": ("r = Reshape (g, rows) s = Sigmoid (r) y = Mul (r, s)", 1),
    "view alone": ("y = Reshape (g, rows)", 0),
    "unknown shape": ("e = Shape (z) r = Reshape (g, e) y = Relu (r)", 0),
    "view of an activation": ("a = Relu (g) r = Reshape (a, rows) y = Add (r, z)", 1),
    "read beside the view": ("r = Reshape (g, rows) f = Relu (r) h = Neg (g) i = Reshape (h, rows) y = Add (f, i)", 1),
}


def reshaped_text(body: str) -> str:
    return f"""agraph (float[n, 4] x, float[4, 4] k, float[m, 1, 4] z) => (float[o, 1, 4] y) <{LINEAR}>
        {{ g = Gemm (x, k, b) {body} }}"""


@pytest.mark.parametrize("kind", RESHAPED)
def test_steps_behind_a_product_see_its_result_under_another_shape(kind: str) -> None:
    body, fused = RESHAPED[kind]
    specs = {"x": spec(6, 4), "k": spec(4, 4), "z": spec(6, 1, 4)}
    graph = fuse_epilogues(load(reshaped_text(body)), specs)
    check(graph)
    views = [dict(describe(node.operator)[1]).get("view") for node in graph.nodes if "Fused" in node.operator.name]
    assert views == [None if kind in ("view of an activation", "read beside the view") else (-1, 1, 4)] * fused


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", RESHAPED)
def test_bits_stay_under_another_shape(kind: str, backend: gx.BackendType) -> None:
    """At sizes where the other operand stretches what is made, too."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {reshaped_text(RESHAPED[kind][0])}')
    rng = np.random.default_rng(1)
    with (
        gx.Worker(gx.load(proto), backend=backend) as fused,
        gx.Worker(gx.load(proto, disabled_passes=["fuse_epilogues"]), backend=backend) as apart,
    ):
        for rows, others in ((3, 3), (1, 5 if "unknown" not in kind else 1), (6, 6), (1, 1)):
            shapes = {"x": (rows, 4), "k": (4, 4), "z": (others, 1, 4)}
            feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            got, expected = fused.run(feeds)[0], apart.run(feeds)[0]
            np.testing.assert_array_equal(to_bits(got), to_bits(expected))
