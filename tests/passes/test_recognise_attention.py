"""The pass recognise_attention: attention in the nodes that exporters write it as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ir.graphs import Array, Graph
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.linalg.matmul import MatMul
from gpuexec.ops.nn.dot_product_attention import ScaledDotProductAttention
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.passes.recognise_attention import explain_softmaxes, recognise_attention
from tests.ir.graph_builder import compute_graph
from tests.model.small_models import CPU
from tests.passes.harness import check_computed, load, operators

BATCH, HEADS, ROWS, KEYS, DEPTH, COLUMNS = 2, 3, 5, 7, 4, 6
ATTENTION = ScaledDotProductAttention.name
SPLIT = ", int64[4] split = {0, 0, 3, -1}, int64[3] join = {0, 0, -1}"
NUMBERS = (
    "<float half = {0.5}, float two = {2}, float[1] root = {0.70710678}, float zero = {0}, float lowest = {-3.4e38}, "
    f"float big = {{-1e9}}, float cap = {{3}}, int64[1] one = {{1}}, int64[1] end = {{9223372036854775807}}, "
    f"int64[1] last = {{-1}}{SPLIT}>"
)
HEADED = f"float[b, {HEADS}, q, {DEPTH}] q, float[b, {HEADS}, k, {DEPTH}] k, float[b, {HEADS}, k, {COLUMNS}] v"
FLAT = f"float[b, q, {HEADS * DEPTH}] q, float[b, k, {HEADS * DEPTH}] k, float[b, k, {HEADS * COLUMNS}] v"
KT = "t = Transpose <perm = [0, 1, 3, 2]> (k)"
MIX = "p = Softmax <axis = -1> (%s) y = MatMul (p, v)"


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def make(nodes: str, inputs: str = HEADED, outputs: str = "float[a, b, c, d] y", opset: int = 20) -> Graph:
    return run_passes(load(f"agraph ({inputs}) => ({outputs}) {NUMBERS} {{ {nodes} }}", opset=opset), AT_LOAD)


def heads(**more: Array) -> dict[str, Array]:
    shapes = {"q": (BATCH, HEADS, ROWS, DEPTH), "k": (BATCH, HEADS, KEYS, DEPTH), "v": (BATCH, HEADS, KEYS, COLUMNS)}
    return {name: draw(*shape) for name, shape in shapes.items()} | more


def rows(**more: Array) -> dict[str, Array]:
    shapes = {"q": (BATCH, ROWS, HEADS * DEPTH), "k": (BATCH, KEYS, HEADS * DEPTH), "v": (BATCH, KEYS, HEADS * COLUMNS)}
    return {name: draw(*shape) for name, shape in shapes.items()} | more


def recognise(graph: Graph, feeds: Mapping[str, Array]) -> Graph:
    specs = {name: TensorSpec(array.shape, array.dtype) for name, array in feeds.items()}
    plan = [each for each in AT_PLAN if each.name != "fuse_epilogues"]
    return run_passes(graph, plan, specs=specs)


def find(graph: Graph) -> ScaledDotProductAttention:
    (found,) = (node.operator for node in graph.nodes if isinstance(node.operator, ScaledDotProductAttention))
    return found


def split(name: str, axes: str = "0, 2, 1, 3") -> str:
    return f"{name}_split = Reshape ({name}, split) {name}_heads = Transpose <perm = [{axes}]> ({name}_split)"


def scale_of(name: str) -> str:
    """What TorchScript writes of 1 / sqrt(head size), of which Q and K are multiplied by the square root."""
    return (
        f"{name}_shape = Shape ({name}_heads) {name}_size = Slice ({name}_shape, last, end) "
        f"{name}_float = Cast <to = 1> ({name}_size) {name}_root = Sqrt ({name}_float) "
        f"{name}_inverse = Div (unit, {name}_root) {name}_scale = Sqrt ({name}_inverse)"
    )


BIAS = ", float[of_m, 1, 1, k_of_m] m"
CHOICE = ", bool[q, k] m"
SEEN = np.tril(np.ones((ROWS, KEYS), bool), 2)
PADDED = np.where(np.arange(KEYS) < 5, 0, -3.4e38).astype(np.float32)[None, None, None].repeat(BATCH, 0)
JOIN = "z = Transpose <perm = [0, 2, 1, 3]> (y_heads) y = Reshape (z, join)"
EINSUM = (
    "a = Reshape (q, split) b = Reshape (k, split) c = Reshape (v, split) d = Mul (a, half) "
    'e = Einsum <equation = "aecd,abcd->acbe"> (b, d) p = Softmax (e) f = Einsum <equation = "acbe,aecd->abcd"> (p, c) '
    "y = Reshape (f, join)"
)
GUARDED = "w = Softmax <axis = -1> (%s) n = IsNaN (w) p = Where (n, zero, w) y = MatMul (p, v)"
FLAT_OUT = "float[b, q, c] y"
Form = tuple[str, str, str, Callable[[], dict[str, Array]], dict[str, Any]]
FORMS: dict[str, Form] = {
    "plain": (f"{KT} s = MatMul (q, t) {MIX % 's'}", HEADED, "", heads, {}),
    "eager, of PyTorch": (
        f"{split('q')} {split('k', '0, 2, 3, 1')} {split('v')} s = MatMul (q_heads, k_heads) d = Div (s, two) "
        f"a = Add (d, m) p = Softmax <axis = -1> (a) y_heads = MatMul (p, v_heads) {JOIN}",
        FLAT + BIAS,
        FLAT_OUT,
        lambda: rows(m=PADDED),
        {"scale": 0.5, "score_steps": ("Add",), "perm": (0, 2, 1, 3)},
    ),
    "scaled_dot_product_attention by TorchScript": (
        f"unit = Constant <value_float = 1.0> () {split('q')} {split('k', '0, 2, 3, 1')} {split('v')} {scale_of('q')} "
        "a = Mul (q_heads, q_scale) b = Mul (k_heads, q_scale) s = MatMul (a, b) c = Add (s, m) "
        f"p = Softmax <axis = -1> (c) y_heads = MatMul (p, v_heads) {JOIN}",
        FLAT + BIAS,
        FLAT_OUT,
        lambda: rows(m=PADDED),
        {"score_steps": ("Mul", "Mul", "Add"), "perm": (0, 2, 1, 3)},
    ),
    "scaled_dot_product_attention by dynamo, guarded": (
        f"infinite = Constant <value_float = -inf> () b = Where (m, zero, infinite) a = Mul (q, root) {KT} "
        f"c = Mul (t, root) s = MatMul (a, c) d = Add (s, b) {GUARDED % 'd'}",
        HEADED + CHOICE,
        "",
        lambda: heads(m=SEEN & (np.arange(ROWS) != 1)[:, None]),
        {"scale": 0.5, "score_steps": ("Add",), "is_guarded": 1},
    ),
    "factor of K before its transposition": (
        f"a = Mul (half, k) t = Transpose <perm = [0, 1, 3, 2]> (a) s = MatMul (q, t) {MIX % 's'}",
        HEADED,
        "",
        heads,
        {"scale": 0.5},
    ),
    "GPT-2, causal and padded": (
        f"{KT} s = MatMul (q, t) d = Mul (s, half) c = Where (m, d, lowest) a = Add (c, n) {MIX % 'a'}",
        f"{HEADED}{CHOICE}, float[b, 1, 1, k] n",
        "",
        lambda: heads(m=SEEN, n=PADDED),
        {"scale": 0.5, "score_steps": ("Where", "Add")},
    ),
    "masked_fill": (
        f"{KT} s = MatMul (q, t) d = Mul (s, half) n = Not (m) c = Where (n, big, d) {MIX % 'c'}",
        HEADED + CHOICE,
        "",
        lambda: heads(m=SEEN),
        {"scale": 0.5, "score_steps": ("Fill",)},
    ),
    "masked rows that give NaN": (
        f"infinite = Constant <value_float = -inf> () {KT} s = MatMul (q, t) c = Where (m, s, infinite) {MIX % 'c'}",
        HEADED + CHOICE,
        "",
        lambda: heads(m=SEEN & (np.arange(ROWS) != 1)[:, None]),
        {"score_steps": ("Where",)},
    ),
    "causal by Trilu of ones": (
        "shape = Shape (q) r = Slice (shape, two_i, three_i) shape_k = Shape (k) c = Slice (shape_k, two_i, three_i) "
        "e = Concat <axis = 0> (r, c) o = Expand (lowest, e) u = Trilu <upper = 1> (o, upper) "
        f"{KT} s = MatMul (q, t) d = Mul (s, half) a = Add (d, u) {MIX % 'a'}".replace(
            "shape = Shape (q)",
            "two_i = Constant <value_ints = [2]> () three_i = Constant <value_ints = [3]> () "
            "upper = Constant <value_int = 1> () shape = Shape (q)",
            1,
        ),
        HEADED,
        "",
        heads,
        {"scale": 0.5, "score_steps": ("Add",)},
    ),
    "bmm, of nn.MultiheadAttention": (
        "d = Mul (half, q) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul (d, t) p = Softmax <axis = -1> (s) "
        "w = MatMul (p, v) y = Transpose <perm = [1, 0, 2]> (w)",
        f"float[n, q, {DEPTH}] q, float[n, k, {DEPTH}] k, float[n, k, {COLUMNS}] v",
        FLAT_OUT,
        lambda: {"q": draw(6, ROWS, DEPTH), "k": draw(6, KEYS, DEPTH), "v": draw(6, KEYS, COLUMNS)},
        {"scale": 0.5, "perm": (1, 0, 2)},
    ),
    "matrices": (
        f"t = Transpose (k) s = MatMul (q, t) {MIX % 's'}",
        f"float[q, {DEPTH}] q, float[k, {DEPTH}] k, float[k, {COLUMNS}] v",
        "float[q, c] y",
        lambda: {"q": draw(ROWS, DEPTH), "k": draw(KEYS, DEPTH), "v": draw(KEYS, COLUMNS)},
        {},
    ),
    "Einsum, of Keras": (EINSUM, FLAT, FLAT_OUT, rows, {"scale": 0.5, "perm": (0, 2, 1, 3)}),
    "keys stored transposed": (
        f"s = MatMul (q, k) d = Div (s, two) {MIX % 'd'}",
        HEADED.replace(f"k, {DEPTH}] k", f"{DEPTH}, k] k"),
        "",
        lambda: heads(k=draw(BATCH, HEADS, DEPTH, KEYS)),
        {"scale": 0.5},
    ),
    "softcap, of Gemma": (
        f"{KT} s = MatMul (q, t) d = Div (s, cap) e = Tanh (d) f = Mul (e, cap) a = Add (f, m) {MIX % 'a'}",
        HEADED + BIAS,
        "",
        lambda: heads(m=PADDED),
        {"scale": 1 / 3, "score_steps": ("Tanh", "Mul", "Add")},
    ),
    "biases, of T5": (
        f"{KT} s = MatMul (q, t) a = Add (m, s) {MIX % 'a'}",
        f"{HEADED}, float[1, {HEADS}, q, k] m",
        "",
        lambda: heads(m=draw(1, HEADS, ROWS, KEYS)),
        {"score_steps": ("Add",)},
    ),
    "two biases, of Swin": (
        f"{KT} s = MatMul (q, t) a = Add (s, m) c = Add (a, n) {MIX % 'c'}",
        f"{HEADED}, float[1, {HEADS}, q, k] m, float[b, 1, q, k] n",
        "",
        lambda: heads(m=draw(1, HEADS, ROWS, KEYS), n=draw(BATCH, 1, ROWS, KEYS)),
        {"score_steps": ("Add", "Add")},
    ),
    "scaled behind a bias": (
        f"{KT} s = MatMul (q, t) a = Add (s, m) d = Mul (a, half) {MIX % 'd'}",
        HEADED + BIAS,
        "",
        lambda: heads(m=np.where(PADDED < 0, -50, PADDED).astype(np.float32)),
        {"score_steps": ("Add", "Mul")},
    ),
    "a mask that stretches the batch": (
        f"{KT} s = MatMul (q, t) a = Add (s, m) {MIX % 'a'}",
        f"float[1, {HEADS}, q, {DEPTH}] q, float[1, {HEADS}, k, {DEPTH}] k, float[1, {HEADS}, k, {COLUMNS}] v{BIAS}",
        "",
        lambda: {name: array[:1] for name, array in heads().items()} | {"m": draw(BATCH, 1, 1, KEYS)},
        {"score_steps": ("Add",)},
    ),
}


def of_form(form: str) -> tuple[Graph, dict[str, Array], dict[str, Any]]:
    nodes, inputs, outputs, feeds, expected = FORMS[form]
    return make(nodes, inputs, outputs or "float[a, b, c, d] y"), feeds(), expected


@pytest.mark.parametrize("form", FORMS)
def test_attention_of_an_exporter_is_one_node(form: str) -> None:
    graph, feeds, expected = of_form(form)
    after = recognise(graph, feeds)
    assert not {"Softmax", "MatMul", "Einsum", "IsNaN"} & set(operators(after))
    found = find(after)
    assert replace(found, scale=1.0) == ScaledDotProductAttention(**{**expected, "scale": 1.0})
    assert found.scale == pytest.approx(expected.get("scale", 1.0), rel=1e-6)
    check_computed(graph, after, rtol=1e-6, **feeds)


@pytest.mark.parametrize("precision", ["reference", "fp16"])
def test_products_of_a_precision_stay(precision: str) -> None:
    """They keep the order of their sums, or round their operands."""
    graph, feeds, _ = of_form(next(iter(FORMS)))
    nodes = [
        replace(node, operator=replace(node.operator, precision=precision))
        if isinstance(node.operator, MatMul)
        else node
        for node in graph.nodes
    ]
    assert "Softmax" in operators(recognise(replace(graph, nodes=tuple(nodes)), feeds))


@pytest.mark.parametrize("form", FORMS)
def test_attention_of_a_precision_takes_its_roundings(form: str) -> None:
    """Those of weights, and of a result that goes to a product only; K stored narrow, scores and their masks float."""
    graph, feeds, expected = of_form(form)
    lowered = lower_precision(graph, Precision.of("bf16"))
    before = recognise(lowered, feeds)
    if "Einsum" in operators(graph):
        assert "Softmax" in operators(before)
        return
    found = find(before)
    # Factors of Q and K stay in front of the rounding.
    steps, expected_steps = (
        [step for step in each if step not in ("Mul", "Div")]
        for each in (found.score_steps, expected.get("score_steps", ()))
    )
    assert (found.precision, found.is_narrow, steps) == ("bf16", 0, expected_steps)
    check_alike(lowered, before, feeds)


def check_alike(before: Graph, after: Graph, feeds: dict[str, Array]) -> None:
    """Check what both compute of the same roundings, of which a bit of a sum may decide one."""
    made = [compute_graph(graph, feeds) for graph in (before, after)]
    for got, expected in zip(*made, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2**-8 * float(np.nanmax(np.abs(expected))))


def test_attention_of_a_precision_is_rounded_for_the_product_behind_it() -> None:
    nodes = f"{KT} s = MatMul (q, t) {MIX % 's'} z = Transpose <perm = [0, 2, 1, 3]> (y) w = MatMul (z, k)"
    graph = lower_precision(make(nodes, HEADED.replace("q, 4", "k, 4"), "float[a, b, c, d] w"), Precision.of("fp16"))
    feeds = {name: draw(2, 3, 3, 4) for name in "qkv"} | {"v": draw(2, 3, 3, 3)}
    after = recognise(graph, feeds)
    found = find(after)
    assert (found.is_narrow, found.perm) == (1, (0, 2, 1, 3))
    assert operators(after).count("Cast") == 3
    check_alike(graph, after, feeds)


@pytest.mark.parametrize("form", FORMS)
def test_attention_runs_as_its_nodes_do(form: str) -> None:
    nodes, inputs, outputs, feeds, _ = FORMS[form]
    text = f"agraph ({inputs}) => ({outputs or 'float[a, b, c, d] y'}) {NUMBERS} {{ {nodes} }}"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    made = []
    for disabled in ((), ("recognise_attention",)):
        with gx.Worker(gx.load(proto, disabled_passes=disabled), backend=gx.BackendType.SIMULATOR) as worker:
            made.append(worker.run(feeds())[0])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5, atol=1e-6)


def test_all_sizes_of_a_plan_compute_the_same() -> None:
    """Scales by shape and masks that fit one size only: a node that was made for some sizes holds for others."""
    nodes, inputs, _, feeds, _ = FORMS["scaled_dot_product_attention by TorchScript"]
    text = f"agraph ({inputs}) => ({FLAT_OUT}) {NUMBERS} {{ {nodes} }}"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    given = [feeds()]
    given += [{name: array[:1] for name, array in given[0].items()}]
    given += [given[0] | {"m": np.zeros((1, 1, 1, 1), np.float32)}]
    for backend in (CPU, gx.BackendType.SIMULATOR):
        made = []
        for disabled in ((), ("recognise_attention",)):
            with gx.Worker(gx.load(proto, disabled_passes=disabled), backend=backend) as worker:
                made.append([worker.run(each)[0] for each in given])
        for got, expected in zip(*made, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def repeat(name: str) -> str:
    return (
        f"{name}_apart = Unsqueeze ({name}, axis) {name}_all = Expand ({name}_apart, stretch) "
        f"{name}_joined = Reshape ({name}_all, heads)"
    )


GROUPED = (
    f"axis = Constant <value_ints = [2]> () stretch = Constant <value_ints = [1, 1, {HEADS}, 1, 1]> () "
    f"heads = Constant <value_ints = [0, {2 * HEADS}, -1, 4]> () {repeat('k')} {repeat('v')} "
    "t = Transpose <perm = [0, 1, 3, 2]> (k_joined) s = MatMul (q, t) a = Add (s, m) p = Softmax <axis = -1> (a) "
    "y = MatMul (p, v_joined)"
)
GROUPED_INPUTS = (
    f"float[b, {2 * HEADS}, q, 4] q, float[b, 2, k, 4] k, float[b, 2, k, 4] v, float[of_m, h_of_m, q_of_m, k] m"
)


@pytest.mark.parametrize("of_mask", [(1, 1, 1), (BATCH, 1, ROWS), (1, 2 * HEADS, ROWS)], ids=str)
def test_repeated_heads_are_not_copied(of_mask: tuple[int, ...]) -> None:
    feeds = {"q": draw(BATCH, 2 * HEADS, ROWS, 4), "k": draw(BATCH, 2, KEYS, 4), "v": draw(BATCH, 2, KEYS, 4)}
    feeds["m"] = draw(*of_mask, KEYS)
    graph = make(GROUPED, GROUPED_INPUTS)
    after = recognise(graph, feeds)
    assert operators(after).count("gpuexec.GroupHeads") == 2
    check_computed(graph, after, rtol=1e-6, **feeds)
    text = f"agraph ({GROUPED_INPUTS}) => (float[b, h, q, c] y) {{ {GROUPED} }}"
    model = gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}'))
    with gx.Worker(model, backend=gx.BackendType.SIMULATOR) as worker:
        np.testing.assert_allclose(worker.run(feeds)[0], run_on_cpu(model, feeds), rtol=1e-5, atol=1e-6)
        assert not [each for each in worker.plans[0].segment.commands if "copy" in str(each).lower()]


def run_on_cpu(model: gx.Model, feeds: dict[str, Array]) -> Any:
    with gx.Worker(model, backend=CPU) as worker:
        return worker.run(feeds)[0]


BASE = f"{KT} s = MatMul (q, t) "
LEFT: dict[str, tuple[str, str, str]] = {
    "another axis": (f"{BASE} p = Softmax <axis = 2> (s) y = MatMul (p, v)", "", "over axis 2 of 4, not the last one"),
    "weights are an output": (f"{BASE} {MIX % 's'}", ", float[a, b, c, d] p", "%p is an output"),
    "scores are an output": (f"{BASE} {MIX % 's'}", ", float[a, b, c, d] s", "%s is an output"),
    "scores are read elsewhere": (f"{BASE} {MIX % 's'} x = Neg (s)", ", float[a, b, c, d] x", "%s has other readers"),
    "weights are read elsewhere": (f"{BASE} {MIX % 's'} x = Neg (p)", ", float[a, b, c, d] x", "%p has other readers"),
    "weights are masked": (
        f"{BASE} w = Softmax <axis = -1> (s) p = Mul (w, half) y = MatMul (p, v)",
        "",
        "Mul 'Mul_3' stands between the softmax and the product",
    ),
    "dropout in training": (
        f"yes = Constant <value = bool {{1}}> () {BASE} w = Softmax <axis = -1> (s) "
        "p = Dropout <seed = 1> (w, half, yes) y = MatMul (p, v)",
        "",
        "Dropout 'Dropout_4' stands between the softmax and the product",
    ),
    "a view between": (
        f"flat = Constant <value_ints = [6, -1, {KEYS}]> () whole = Constant <value_ints = [2, 3, -1, {KEYS}]> () "
        f"{BASE} a = Reshape (s, flat) w = Softmax <axis = -1> (a) p = Reshape (w, whole) y = MatMul (p, v)",
        "",
        "Reshape 'Reshape_4' stands between the product and the softmax",
    ),
    "weights on the right": (
        f"{BASE} w = Softmax <axis = -1> (s) u = Transpose <perm = [0, 1, 3, 2]> (v) y = MatMul (u, w)",
        "",
        "its weights are the right operand of a product",
    ),
    "scores added to themselves": (f"{BASE} a = Add (s, s) {MIX % 'a'}", "", "its scores are read twice"),
    "sums over two axes": (
        'e = Einsum <equation = "abqd,abkd->aqk"> (q, k) p = Softmax (e) '
        'y = Einsum <equation = "aqk,abkd->abqd"> (p, v)',
        "",
        "Einsum 'Einsum_0' is no product of heads",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_computes_or_gives_out_more_stays(case: str) -> None:
    nodes, outputs, reason = LEFT[case]
    feeds = heads()
    if case == "weights on the right":
        feeds["k"], feeds["v"] = draw(BATCH, HEADS, KEYS, DEPTH), draw(BATCH, HEADS, ROWS, COLUMNS)
    graph = make(nodes, outputs=f"float[a, b, c, d] y{outputs}")
    specs = {name: TensorSpec(array.shape, array.dtype) for name, array in feeds.items()}
    assert recognise_attention(graph, specs) is graph
    ((_, found),) = explain_softmaxes(graph, specs).items()
    assert reason in found


def test_a_softmax_without_products_has_no_reason() -> None:
    graph = make("p = Softmax <axis = -1> (q) y = Neg (p)", "float[a, b] q", "float[a, b] y")
    specs = {"q": TensorSpec((2, 3), np.dtype(np.float32))}
    assert recognise_attention(graph, specs) is graph and not explain_softmaxes(graph, specs)


def test_numbers_of_16_bits_stay_and_doubles_do_not() -> None:
    for name, dtype in (("float16", np.float16), ("double", np.float64)):
        inputs = HEADED.replace("float", name)
        graph = make(f"{KT} s = MatMul (q, t) {MIX % 's'}", inputs, f"{name}[a, b, c, d] y")
        feeds = {key: array.astype(dtype) for key, array in heads().items()}
        specs = {key: TensorSpec(array.shape, array.dtype) for key, array in feeds.items()}
        after = recognise_attention(graph, specs)
        if dtype == np.float64:
            find(after)
            check_computed(graph, after, rtol=1e-14, **feeds)
        else:
            assert after is graph
            assert list(explain_softmaxes(graph, specs).values()) == [
                "each of its nodes rounds to float16, which one operator would not do"
            ]


def test_a_softmax_of_old_opsets_over_the_last_axis_is_recognised() -> None:
    graph = make(f"{KT} s = MatMul (q, t) p = Softmax <axis = 3> (s) y = MatMul (p, v)", opset=11)
    after = recognise(graph, heads())
    find(after)
    check_computed(graph, after, rtol=1e-6, **heads())
