"""The pass recognise_normalizations: normalizations and softmax in the nodes that exporters write them as."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.importer import to_model
from gpuexec.ir.graphs import Array, Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.passes.recognise_normalizations import recognise_normalizations
from gpuexec.passes.remove_dead import remove_dead
from tests.passes.harness import check_computed, load, operators

RANDOM = np.random.default_rng(5)
X = (3 * RANDOM.standard_normal((2, 3, 6)) + 1).astype(np.float32)
IMAGE = (3 * RANDOM.standard_normal((2, 4, 5, 6)) + 1).astype(np.float32)
LISTED = "{2, 0.5, 1, -1, 3, 0.25}"
NUMBERS = (
    f"float[6] w = {LISTED}, float[6] b = {{1, 0, -1, 0.5, 2, 3}}, float eps = {{0.00001}}, float one = {{1}}, "
    "float two = {2}, float three = {3}, float minus_half = {-0.5}, float half = {0.5}, float low = {-inf}, "
    "int64 whole = {2}, "
    "int64[1] last = {-1}, int64[1] axis2 = {2}, int64[1] axis1 = {1}, int64[2] pair = {1, 2}, int64[2] space = {2, 3}"
)
CENTERED = "m = ReduceMean (x, last) d = Sub (x, m) p = Pow (d, two) v = ReduceMean (p, last)"
DEVIATION = "e = Add (v, eps) s = Sqrt (e)"
LAYER = f"{CENTERED} {DEVIATION} n = Div (d, s) k = Mul (n, w) y = Add (k, b)"
SQUARES = "p = Pow (x, two) v = ReduceMean (p, last)"
RMS = f"{SQUARES} {DEVIATION} r = Div (one, s) n = Mul (x, r) y = Mul (w, n)"
SOFTMAX = "m = ReduceMax (x, last) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, last) y = Div (e, s)"
FORMS = {
    "LayerNormalization": {
        "as PyTorch writes it": LAYER,
        "axis from the front": LAYER.replace("last", "axis2"),
        "two differences": f"{CENTERED} {DEVIATION} d2 = Sub (x, m) n = Div (d2, s) k = Mul (w, n) y = Add (b, k)",
        "squared by itself": LAYER.replace("Pow (d, two)", "Mul (d, d)"),
        "reciprocal": f"{CENTERED} {DEVIATION} r = Reciprocal (s) q = Mul (r, w) k = Mul (d, q) y = Add (k, b)",
        "as TensorFlow writes it": f"{CENTERED} {DEVIATION} r = Reciprocal (s) q = Mul (r, w) k = Mul (x, q) "
        "q2 = Mul (m, q) c = Sub (b, q2) y = Add (k, c)",
        "no bias": f"{CENTERED} {DEVIATION} n = Div (d, s) y = Mul (n, w)",
        "no scale": f"{CENTERED} {DEVIATION} n = Div (d, s) y = Add (n, b)",
        "neither": f"{CENTERED} {DEVIATION} y = Div (d, s)",
        "several axes": f"{CENTERED} {DEVIATION} n = Div (d, s) k = Mul (n, w) y = Add (k, b)".replace("last", "pair"),
        "axes that are dropped": "m0 = ReduceMean <keepdims = 0> (x, last) m = Unsqueeze (m0, last) d = Sub (x, m) "
        f"p = Mul (d, d) v0 = ReduceMean <keepdims = 0> (p, last) v = Unsqueeze (v0, last) {DEVIATION} "
        "n = Div (d, s) k = Mul (n, w) y = Add (k, b)",
    },
    "RMSNormalization": {
        "as Transformers writes it": RMS,
        "reciprocal": f"{SQUARES} {DEVIATION} r = Reciprocal (s) n = Mul (x, r) y = Mul (w, n)",
        "divided": f"{SQUARES} {DEVIATION} n = Div (x, s) y = Mul (n, w)",
        "power": f"{SQUARES} e = Add (eps, v) r = Pow (e, minus_half) n = Mul (r, x) y = Mul (n, w)",
        "squared by itself": RMS.replace("Pow (x, two)", "Mul (x, x)"),
        "power of an integer": RMS.replace("two", "whole"),
        "no scale": f"{SQUARES} {DEVIATION} y = Div (x, s)",
        "several axes": RMS.replace("last", "pair"),
    },
    "Softmax": {
        "last axis": SOFTMAX,
        "another axis": SOFTMAX.replace("last", "axis1"),
        "as JAX writes it": "m0 = ReduceMax <keepdims = 0> (x, last) m1 = Max (low, m0) m = Unsqueeze (m1, last) "
        "d = Sub (x, m) e = Exp (d) s0 = ReduceSum <keepdims = 0> (e, last) s = Unsqueeze (s0, last) y = Div (e, s)",
    },
    "LogSoftmax": {
        "last axis": SOFTMAX.replace("y = Div (e, s)", "l = Log (s) y = Sub (d, l)"),
    },
}
EACH = [(name, form) for name, forms in FORMS.items() for form in forms]


def make(nodes: str, outputs: str = "float[2, 3, 6] y", numbers: str = NUMBERS, opset: int = 18) -> Graph:
    return load(f"agraph (float[2, 3, 6] x) => ({outputs}) <{numbers}> {{ {nodes} }}", opset)


def recognise(graph: Graph, **feeds: Array) -> Graph:
    specs = {name: TensorSpec.of(array) for name, array in feeds.items()}
    return remove_dead(recognise_normalizations(graph, specs))


@pytest.mark.parametrize(("name", "form"), EACH)
def test_nodes_of_a_normalization_become_one(name: str, form: str) -> None:
    graph = make(FORMS[name][form])
    after = recognise(graph, x=X)
    assert operators(after) == [name]
    assert after.nodes[0].name == graph.nodes[-1].name
    check_computed(graph, after, rtol=2e-6, x=X)


@pytest.mark.parametrize("name", ["LayerNormalization", "RMSNormalization"])
def test_they_run_on_the_simulator_without_scale(name: str) -> None:
    form = "neither" if name == "LayerNormalization" else "no scale"
    graph = make(FORMS[name][form])
    (expected,) = gx.Worker(gx.load(to_model(graph)), backend=gx.BackendType.CPU).run(X)
    with gx.Worker(gx.load(to_model(graph)), backend=gx.BackendType.SIMULATOR) as worker:
        plan = worker.prepare(X)
        assert plan is not None and len(plan.segment.commands) == 1
        np.testing.assert_allclose(worker.run(X)[0], np.asarray(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nodes", [LAYER, RMS, SOFTMAX])
def test_a_plan_serves_other_sizes(nodes: str) -> None:
    text = f"agraph (float[n, t, 6] x) => (float[n, t, 6] y) <{NUMBERS}> {{ {nodes} }}"
    models = [gx.load(to_model(load(text)), disabled_passes=each) for each in ((), ("recognise_normalizations",))]
    with (
        gx.Worker(models[0], backend=gx.BackendType.SIMULATOR) as one,
        gx.Worker(models[1], backend=gx.BackendType.CPU) as apart,
    ):
        for shape in ((4, 3), (2, 3), (1, 1), (9, 5)):
            x = RANDOM.standard_normal((*shape, 6)).astype(np.float32)
            np.testing.assert_allclose(one.run(x)[0], apart.run(x)[0], rtol=1e-5, atol=1e-6)
        assert all(len(plan.segment.commands) == 1 for plan in one.plans)


@pytest.mark.parametrize("form", ["Mul (d, q)", "Mul (n, w3)"])
def test_space_of_images_becomes_an_instance_normalization(form: str) -> None:
    numbers = f"{NUMBERS}, float[4, 1, 1] w3 = {{1, 2, -1, 3}}, float[1, 4, 1, 1] b3 = {{0, 1, 2, 3}}"
    end = "n = Div (d, s) k = Mul (n, w3)" if "n" in form else "q = Div (w3, s) k = Mul (d, q)"
    nodes = f"{CENTERED} {DEVIATION} {end} y = Add (k, b3)".replace("last", "space")
    graph = load(f"agraph (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y) <{numbers}> {{ {nodes} }}")
    after = recognise(graph, x=IMAGE)
    assert operators(after) == ["InstanceNormalization"]
    check_computed(graph, after, rtol=2e-6, x=IMAGE)


def make_groups(groups: int, nodes: str, scale: str = "w3") -> Graph:
    ones, zeros = ", ".join("1" * groups), ", ".join("0" * groups)
    numbers = (
        f"{NUMBERS}, float[4, 1, 1] w3 = {{1, 2, -1, 3}}, float[4, 1, 1] b3 = {{0, 1, 2, 3}}, "
        f"int64[3] split = {{0, {groups}, -1}}, float[{groups}] ones = {{{ones}}}, float[{groups}] zeros = {{{zeros}}}"
    )
    text = (
        f"g = Reshape (x, split) {nodes} shape = Shape (x) j = Reshape (n, shape) k = Mul (j, {scale}) y = Add (k, b3)"
    )
    return load(f"agraph (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y) <{numbers}> {{ {text} }}")


INSTANCE = "n = InstanceNormalization <epsilon = 0.00001> (g, ones, zeros)"


@pytest.mark.parametrize("nodes", [INSTANCE, f"{CENTERED} {DEVIATION} n = Div (d, s)".replace("x", "g")])
@pytest.mark.parametrize(("groups", "name"), [(2, "GroupNormalization"), (4, "InstanceNormalization")])
def test_groups_between_reshapes_become_a_normalization_of_channels(nodes: str, groups: int, name: str) -> None:
    graph = make_groups(groups, nodes)
    after = recognise(graph, x=IMAGE)
    assert operators(after) == [name]
    check_computed(graph, after, rtol=2e-6, x=IMAGE)


@pytest.mark.parametrize(
    "graph",
    [
        make_groups(2, INSTANCE.replace("zeros", "ones")),
        make_groups(2, INSTANCE, scale="w"),
        make_groups(2, "a = Add (g, half) n = InstanceNormalization (a, ones, zeros)"),
        make_groups(2, f"{INSTANCE.replace('n = I', 'n0 = I')} n = Relu (n0)"),
    ],
)
def test_other_groups_stay(graph: Graph) -> None:
    assert recognise_normalizations(graph, {"x": TensorSpec.of(IMAGE)}) is graph


def test_what_half_rounds_at_the_ends_alone_is_taken_with_it() -> None:
    weights = f"float16[6] h = {{15360, 14336, 15360, 48128, 16896, 13312}}, {NUMBERS}"
    head = f"agraph (float16[2, 3, 6] x) => (float16[2, 3, 6] y) <{weights}>"
    nodes = f"u = Cast <to = 1> (x) {SQUARES.replace('(x', '(u')} {DEVIATION} r = Reciprocal (s) n = Mul (u, r)"
    x, graph = X.astype(np.float16), load(f"{head} {{ {nodes} c = Cast <to = 10> (n) y = Mul (h, c) }}")
    after = recognise(graph, x=x)
    assert operators(after) == ["RMSNormalization"]
    check_computed(graph, after, rtol=1e-3, x=x)
    graph = load(f"{head} {{ {nodes} k = Mul (n, w) y = Cast <to = 10> (k) }}")
    after = recognise(graph, x=x)
    assert operators(after) == ["RMSNormalization", "Cast"]
    check_computed(graph, after, rtol=1e-3, x=x)


def test_what_is_reduced_in_half_or_rounded_before_stays() -> None:
    bits = "float16 two = {16384}, float16 eps = {1}, int64[1] last = {-1}"
    halves = f"agraph (float16[2, 3, 6] x) => (float16[2, 3, 6] y) <{bits}> {{ {SQUARES} {DEVIATION} y = Div (x, s) }}"
    graph = load(halves)
    assert recognise_normalizations(graph, {"x": TensorSpec.of(X.astype(np.float16))}) is graph
    rounded = f"c = Cast <to = 10> (x) u = Cast <to = 1> (c) {RMS.replace('(x', '(u')}"
    assert operators(recognise(make(rounded), x=X)) == ["Cast", "RMSNormalization"]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (LAYER.replace("v = ReduceMean (p, last)", "v = ReduceMean (p, axis1)"), "float[2, 3, 6] y"),
        (LAYER.replace("last", "axis1"), "float[2, 3, 6] y"),
        (LAYER.replace("Pow (d, two)", "Pow (d, three)"), "float[2, 3, 6] y"),
        (f"{CENTERED} {DEVIATION} n = Div (x, s) k = Mul (n, w) y = Add (k, b)", "float[2, 3, 6] y"),
        (f"{CENTERED} s = Sqrt (v) n = Div (d, s) k = Mul (n, w) y = Add (k, b)", "float[2, 3, 6] y"),
        (LAYER.replace("ReduceMean (p", "ReduceSum (p"), "float[2, 3, 6] y"),
        (f"{LAYER} z = Neg (s)", "float[2, 3, 6] y, float[2, 3, 1] z"),
        (LAYER, "float[2, 3, 6] y, float[2, 3, 1] v"),
        (RMS.replace("Sqrt (e)", "Neg (e)"), "float[2, 3, 6] y"),
        (f"o = Abs (x) {RMS.replace('Mul (x, r)', 'Mul (o, r)')}", "float[2, 3, 6] y"),
        (SOFTMAX.replace("ReduceSum (e, last)", "ReduceSum (e, axis1)"), "float[2, 3, 6] y"),
        (SOFTMAX.replace("ReduceMax (x, last)", "ReduceMax (x, axis1)"), "float[2, 3, 6] y"),
        (SOFTMAX.replace("last", "pair"), "float[2, 3, 6] y"),
        ("e = Exp (x) s = ReduceSum (e, last) y = Div (e, s)", "float[2, 3, 6] y"),
        (SOFTMAX, "float[2, 3, 6] y, float[2, 3, 6] e"),
        ("m = ReduceMean (x, last) d = Sub (x, m) y = Mul (d, w)", "float[2, 3, 6] y"),
    ],
)
def test_other_formulas_and_what_gives_out_more_stay(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    assert recognise_normalizations(graph, {"x": TensorSpec.of(X)}) is graph


def test_what_is_centered_by_another_value_is_normalized_by_its_squares() -> None:
    graph = make(f"o = Abs (x) {LAYER.replace('ReduceMean (x', 'ReduceMean (o')}")
    after = recognise(graph, x=X)
    assert operators(after) == ["Abs", "ReduceMean", "Sub", "RMSNormalization", "Add"]
    check_computed(graph, after, rtol=2e-6, x=X)


def test_no_more_is_taken_than_nothing_else_reads() -> None:
    graph = make(f"{LAYER} z = Neg (n)", "float[2, 3, 6] y, float[2, 3, 6] z")
    after = recognise(graph, x=X)
    assert operators(after) == ["LayerNormalization", "Mul", "Add", "Neg"]
    check_computed(graph, after, rtol=2e-6, x=X)


def test_what_a_scale_stretches_stays() -> None:
    text = f"agraph (float[2, 3, 1] x) => (float[2, 3, 6] y) <{NUMBERS}> {{ {LAYER} }}"
    after = recognise(load(text), x=X[..., :1])
    assert operators(after)[-2:] == ["Mul", "Add"]


def test_a_residual_is_no_bias() -> None:
    nodes = f"{CENTERED} {DEVIATION} n = Div (d, s) k = Mul (n, w) z = Add (k, r)"
    text = f"agraph (float[1, 1, 6] x, float[1, 1, 6] r) => (float[1, 1, 6] z) <{NUMBERS}> {{ {nodes} }}"
    x, graph = X[:1, :1], load(text)
    after = recognise(graph, x=x, r=x)
    assert operators(after) == ["LayerNormalization", "Add"]
    check_computed(graph, after, rtol=2e-6, x=x, r=x)


def test_attention_is_recognised_around_a_softmax_that_is_spelled_out() -> None:
    softmax = SOFTMAX.replace("y =", "a =")
    nodes = f"k2 = Transpose <perm = [0, 2, 1]> (k) x = MatMul (q, k2) {softmax} y = MatMul (a, v)"
    text = (
        f"agraph (float[2, 5, 4] q, float[2, 6, 4] k, float[2, 6, 4] v) => (float[2, 5, 4] y) <{NUMBERS}> {{ {nodes} }}"
    )
    graph = load(text)
    specs = {name: TensorSpec.of(np.zeros((2, rows, 4), np.float32)) for name, rows in (("q", 5), ("k", 6), ("v", 6))}
    after = remove_dead(run_passes(graph, AT_PLAN, specs=specs))
    assert operators(after) == ["Transpose", ScaledDotProductAttention.name]


@pytest.mark.parametrize(("number", "is_taken"), [("eps = {0.0000101}", True), ("two = {2.02}", False)])
def test_a_number_that_is_off_by_a_hundredth_is_taken_where_the_operator_takes_any(number: str, is_taken: bool) -> None:
    name = number.partition(" ")[0]
    graph = make(LAYER, numbers=NUMBERS.replace({"eps": "eps = {0.00001}", "two": "two = {2}"}[name], number))
    after = recognise_normalizations(graph, {"x": TensorSpec.of(X)})
    assert ("LayerNormalization" in operators(after)) == is_taken
    check_computed(graph, after, rtol=2e-6, x=X)


def test_what_is_tapped_by_name_is_still_there() -> None:
    with gx.Worker(gx.load(to_model(make(LAYER))), backend=gx.BackendType.CPU) as worker:
        worker.tap({"v": ["mean"]})
        seen = worker.schedule(X).inspection
        assert seen.history("v")[0].mean == pytest.approx(float(X.var(-1).mean()), rel=1e-5)
