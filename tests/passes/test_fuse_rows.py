"""The pass fuse_rows: fusion of reductions of rows with what stands around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.region import RowRegion
from gpuexec.passes import AT_PLAN, run_passes
from gpuexec.passes.fuse_rows import fuse_rows
from gpuexec.planner.template import plan_graph
from tests.model.small_models import CPU
from tests.passes.harness import compile_together, load, operators
from tests.passes.test_fuse_regions import check_bits

SIMULATOR, PIXEL = gx.BackendType.SIMULATOR, gx.BackendType.SIMULATOR_PIXEL
NAMES = {"x": (4, 6, 32), "z": (4, 6, 32), "row": (32,), "wide": (4, 1, 32), "k": (32, 32), "image": (2, 3, 5, 7)}
CONSTANTS = """<int64[1] last = {-1}, int64[2] plane = {2, 3}, int64[1] first = {0}, float epsilon = {0.00001},
    int64[1] count = {1}, int64[1] two_elements = {2}, float two = {2}, float one = {1},
    float[3, 1, 1] scale = {1, 2, 3}, float[3] channel = {1, 2, 3},
    float[3, 3, 1, 1] weight = {1, 2, 3, 4, 5, 6, 7, 8, 9}>"""


def fuse(body: str, outputs: str = "float[4, 6, 32] y") -> Graph:
    """Return x and others through the body, fused."""
    inputs = ", ".join(f"float{list(shape)} {name}" for name, shape in NAMES.items())
    graph = fuse_rows(load(f"agraph ({inputs}) => ({outputs}) {CONSTANTS} {{ {body} }}"), SPECS)
    check(graph)
    return graph


SPECS = {name: TensorSpec(shape, np.dtype(np.float32)) for name, shape in NAMES.items()}


def regions(graph: Graph) -> list[tuple[str, list[str], list[str]]]:
    """Return the operators, inputs and outputs of each region."""
    return [
        (
            " ".join(row[0] for row in node.operator.steps),
            [str(v.name) for v in node.inputs if v],
            [str(v.name) for v in node.outputs if v],
        )
        for node in graph.nodes
        if isinstance(node.operator, RowRegion)
    ]


# As exporters write them: each is one launch.
DECOMPOSED = {
    "layer_norm": """m = ReduceMean (x, last) d = Sub (x, m) s = Pow (d, two) v = ReduceMean (s, last)
        e = Add (v, epsilon) r = Sqrt (e) n = Div (d, r) w = Mul (n, row) y = Add (w, row)""",
    "layer_norm_of_sum": """u = Add (x, z) m = ReduceMean (u, last) d = Sub (u, m) s = Mul (d, d)
        v = ReduceMean (s, last) e = Add (v, epsilon) r = Sqrt (e) n = Div (d, r) w = Mul (n, row) y = Add (w, row)""",
    "layer_norm_behind_a_step": "m = Neg (x) y = LayerNormalization (m, row, row)",
    "rms_norm": """s = Mul (x, x) v = ReduceMean (s, last) e = Add (v, epsilon) r = Sqrt (e) i = Div (one, r)
        n = Mul (x, i) y = Mul (n, row)""",
    "rms_norm_by_power": """s = Pow (x, two) v = ReduceMean (s, last) e = Add (v, epsilon) r = Sqrt (e)
        i = Reciprocal (r) n = Mul (x, i) y = Mul (row, n)""",
    "softmax": """m = ReduceMax (x, last) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, last) y = Div (e, s)""",
    "log_softmax": """m = ReduceMax (x, last) d = Sub (x, m) e = Exp (d) s = ReduceSum (e, last) l = Log (s)
        y = Sub (d, l)""",
    "softmax_with_mask": "m = Mul (x, two) a = Add (m, wide) y = Softmax <axis = -1> (a)",
    "l2_norm": "n = ReduceL2 (x, last) c = Max (n, epsilon) y = Div (x, c)",
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_exporters_take_apart_is_one_launch(name: str) -> None:
    graph = fuse(DECOMPOSED[name])
    ((names, _, results),) = regions(graph)
    assert (
        len(graph.nodes) == 1
        and results == ["y"]
        and len(names.split()) == DECOMPOSED[name].count("=") - ("axis" in DECOMPOSED[name])
    )
    (launch,) = plan(graph)
    assert launch.kernel.source == "rows.cu"


def test_instance_norm_that_is_taken_apart_is_one_launch() -> None:
    graph = fuse(
        """m = ReduceMean (image, plane) d = Sub (image, m) s = Mul (d, d) v = ReduceMean (s, plane)
        e = Add (v, epsilon) r = Sqrt (e) n = Div (d, r) w = Mul (n, scale) y = Add (w, scale)""",
        "float[2, 3, 5, 7] y",
    )
    assert operators(graph) == ["gpuexec.RowRegion"]
    assert [each.kernel.source for each in plan(graph)] == ["rows.cu"]


def plan(graph: Graph) -> list[Launch]:
    """Return the launches of a graph."""
    commands = plan_graph(graph, SPECS, Target.named("sm_90")).plan.segment.commands
    return [command for command in commands if isinstance(command, Launch)]


def test_a_sum_in_front_is_a_result_too() -> None:
    graph = fuse("s = Add (x, z) n = LayerNormalization (s, row) y = Relu (n)", "float[4, 6, 32] y, float[4, 6, 32] s")
    assert regions(graph) == [("Add LayerNormalization Relu", ["x", "z", "row"], ["s", "y"])]


def test_what_an_epilogue_takes_stays_there() -> None:
    product = "p = MatMul (x, k) s = Add (p, z) n = ReduceMax (s, last) y = Relu (n)"
    assert regions(fuse(product, "float[4, 6, 1] y")) == []
    after = run_passes(fuse(product, "float[4, 6, 1] y"), AT_PLAN, specs=SPECS)
    assert operators(after) == ["gpuexec.FusedMatMul", "gpuexec.FusedReduceMax"]


def test_norms_are_regions_with_what_an_epilogue_would_take() -> None:
    product = "p = MatMul (x, k) s = Add (p, z) n = LayerNormalization (s, row) y = Relu (n)"
    assert regions(fuse(product)) == [("LayerNormalization Relu", ["s", "row"], ["y"])]
    assert regions(fuse("n = Softmax <axis = -1> (x) y = Mul (n, two)")) == [("Softmax Mul", ["x"], ["y"])]


def test_reductions_of_the_same_rows_are_one_region() -> None:
    body = "a = ReduceMax <keepdims = 0> (x, last) b = ReduceMin <keepdims = 0> (x, last) y = Sub (a, b)"
    assert regions(fuse(body, "float[4, 6] y")) == [("ReduceMax ReduceMin Sub", ["x"], ["y"])]
    alone = fuse("a = ReduceSum (x, last) b = ArgMax <axis = 2> (x) y = Abs (b)", "int64[4, 6, 1] y, float[4, 6, 1] a")
    assert regions(alone) == [("ReduceSum ArgMax Abs", ["x"], ["a", "y"])]


def test_rows_of_a_region_are_the_same() -> None:
    other = "a = ReduceMean (x, first) b = Sub (x, a) c = ReduceMean (b, last) y = Sub (b, c)"
    assert regions(fuse(other)) == [("Sub ReduceMean Sub", ["x", "a"], ["y"])]
    # A mean without its axis goes with other rows, where it stretches.
    square = "a = ReduceMean <keepdims = 0> (k, last) b = Neg (k) y = Sub (b, a)"
    assert regions(fuse(square, "float[32, 32] y")) == []
    # All elements are reduced in chunks.
    assert regions(fuse("a = Neg (x) b = ReduceSum (a) y = Sub (x, b)")) == []


def test_no_way_leads_out_of_a_region_and_back() -> None:
    body = "a = Neg (x) p = MatMul (a, k) b = Softmax <axis = -1> (a) y = Add (b, p)"
    graph = fuse(body)
    assert regions(graph) == [("Neg Softmax", ["x"], ["a", "b"])]
    assert operators(graph)[0] == "gpuexec.RowRegion"


def test_few_long_rows_are_left_alone() -> None:
    text = "agraph (float[rows, columns] x) => (float[rows, columns] y) { a = Neg (x) y = Softmax <axis = -1> (a) }"
    for rows, columns, is_fused in ((4, 8192, True), (4, 8193, False), (128, 8193, True)):
        specs = {"x": TensorSpec((rows, columns), np.dtype(np.float32))}
        assert len(regions(fuse_rows(load(text), specs))) == is_fused


def test_first_of_each_row_is_a_step() -> None:
    body = "n = Neg (x) v, i = TopK <axis = 2> (n, count) y = Abs (v)"
    (region,) = regions(fuse(body, "float[4, 6, 1] y, int64[4, 6, 1] i"))
    assert region == ("Neg gpuexec.TopElement ArgMax Abs", ["x"], ["i", "y"])
    assert [each.kernel.source for each in plan(fuse(body, "float[4, 6, 1] y, int64[4, 6, 1] i"))] == ["rows.cu"]
    both = fuse("y, i = TopK <largest = 0> (x, count)", "float[4, 6, 1] y, int64[4, 6, 1] i")
    assert regions(both) == [("gpuexec.TopElement gpuexec.TopPlace", ["x"], ["y", "i"])]
    # One alone takes a kernel of its own.
    for largest, name, source in ((1, "ArgMax", "reduce.cu"), (0, "gpuexec.TopPlace", "topk.cu")):
        one = fuse(f"v, y = TopK <largest = {largest}> (x, count)", "int64[4, 6, 1] y")
        assert operators(one) == [name] and [each.kernel.source for each in plan(one)] == [source]


@pytest.mark.parametrize(
    "body",
    ["n = Neg (x) y, i = TopK (n, two_elements)", "n = Neg (x) y, i = TopK <axis = 1> (n, count)"],
    ids=["several", "another axis"],
)
def test_other_elements_of_each_row_are_no_step(body: str) -> None:
    assert operators(fuse(body, "float[a, b, c] y")) == ["Neg", "TopK"]


def test_instance_norm_is_a_step_where_no_image_lies_channels_last() -> None:
    norm = "n = Neg (image) i = InstanceNormalization (n, channel, channel)"
    assert regions(fuse(f"{norm} y = Mul (i, image)", "float[2, 3, 5, 7] y")) == [
        ("Neg InstanceNormalization Mul", ["image", "channel"], ["y"])
    ]
    graph = fuse(f"{norm} r = Mul (i, image) y = Conv (r, weight)", "float[2, 3, 5, 7] y")
    assert operators(graph) == ["Neg", "InstanceNormalization", "Mul", "Conv"]


def test_axes_that_are_no_constant_stay() -> None:
    text = """agraph (float[4, 6, 32] x, int64[1] axes) => (float[a, b, c] y) {
        m = ReduceMean (x, axes) d = Sub (x, m) y = Relu (d) }"""
    specs = {"x": SPECS["x"], "axes": TensorSpec((1,), np.dtype(np.int64)).with_value(np.array([-1]))}
    assert regions(fuse_rows(load(text), specs)) == []


DTYPES = {"float": TensorProto.FLOAT, "half": TensorProto.FLOAT16, "long": TensorProto.INT64}
UNARY = {"float": ["Neg", "Exp", "Relu", "Sigmoid"], "half": ["Neg", "Tanh", "Abs"], "long": ["Neg", "Abs"]}
BINARY = ["Add", "Mul", "Sub", "Max"]
REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]
MAPS = ["Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"]
EXTENTS = st.sampled_from([0, 1, 2, 3, 7, 8, 37])


@st.composite
def make_models(draw: Any) -> tuple[bytes, dict[str, Any]]:
    """Return a model of random operators on rows and elements, and inputs."""
    shape = tuple(draw(st.lists(EXTENTS, min_size=2, max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    inputs: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(list(DTYPES)))
        own = tuple(draw(st.sampled_from([1, extent])) for extent in shape) if number else shape
        dtype = helper.tensor_dtype_to_np_dtype(DTYPES[kind])
        inputs[f"x{number}"] = np.asarray(random.normal(size=own) * 3).astype(dtype)
        kinds[f"x{number}"], ranks[f"x{number}"] = kind, len(shape)
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [draw(st.sampled_from([-1, -1, -1, 0]))])
    nodes = []
    for number in range(draw(st.integers(2, 9))):
        first = draw(st.sampled_from(sorted(kinds)))
        kind, rank, name = kinds[first], ranks[first], f"v{number}"
        kinds_of_nodes = ["unary", "binary", "binary", "cast", "reduce", "reduce", "reduce", "map", "map", "first"]
        match draw(st.sampled_from(kinds_of_nodes)):
            case "unary":
                nodes.append(helper.make_node(draw(st.sampled_from(UNARY[kind])), [first], [name]))
            case "binary":
                second = draw(st.sampled_from(sorted(k for k in kinds if kinds[k] == kind and ranks[k] == rank)))
                nodes.append(helper.make_node(draw(st.sampled_from(BINARY)), [first, second], [name]))
            case "cast":
                kind = draw(st.sampled_from(list(DTYPES)))
                nodes.append(helper.make_node("Cast", [first], [name], to=DTYPES[kind]))
            case "reduce":
                kept = rank < len(shape) or draw(st.booleans())
                operator = draw(st.sampled_from(REDUCTIONS))
                nodes.append(helper.make_node(operator, [first, "axes"], [name], keepdims=int(kept)))
                rank -= not kept
            case "first" if 0 not in shape:
                is_place, largest = draw(st.booleans()), draw(st.integers(0, 1))
                outputs = [f"{name}_other", name] if is_place else [name, f"{name}_other"]
                nodes.append(helper.make_node("TopK", [first, "count"], outputs, largest=largest))
                kind = "long" if is_place else kind
            case _:
                operator = draw(st.sampled_from(MAPS)) if kind != "long" else "ArgMax"
                more = {} if operator != "ArgMax" else {"axis": rank - 1}
                if rank == 3 and operator == "LayerNormalization" and draw(st.booleans()):
                    names = [f"channels_{kind}"] * 2
                    nodes.append(helper.make_node("InstanceNormalization", [first, *names], [name]))
                elif operator.endswith("Normalization"):
                    nodes.append(helper.make_node(operator, [first, f"scale_{kind}"], [name]))
                elif operator == "ArgMax" and 0 in shape:
                    nodes.append(helper.make_node("Neg", [first], [name]))
                else:
                    nodes.append(helper.make_node(operator, [first], [name], **more))
        kinds[name], ranks[name] = kind, rank
    wanted = draw(st.sets(st.sampled_from(sorted(k for k in kinds if k[0] == "v")), min_size=1)) | {name}
    ones = np.ones(shape[1])
    scales = [helper.make_tensor(f"channels_{kind}", DTYPES[kind], ones.shape, ones) for kind in ("float", "half")]
    scales += [helper.make_tensor("count", TensorProto.INT64, [1], [1])]
    scales += [helper.make_tensor(f"scale_{kind}", DTYPES[kind], [1], [0.5]) for kind in ("float", "half")]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, DTYPES[kinds[name]], [None] * x.ndim) for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, DTYPES[kinds[name]], None) for name in sorted(wanted)],
        [axes, *scales],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]).SerializeToString(), inputs


@settings(max_examples=150, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_host(model: tuple[bytes, dict[str, Any]]) -> None:
    check_bits(model, CPU)


@settings(max_examples=12, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_simulator(model: tuple[bytes, dict[str, Any]]) -> None:
    check_bits(model, SIMULATOR)


@settings(max_examples=2, deadline=None)
@given(st.lists(make_models(), min_size=10, max_size=10))
def test_random_graphs_give_the_same_bits_as_blits(models: list[tuple[bytes, dict[str, Any]]]) -> None:
    compile_together(models, PIXEL)
    for model in models:
        check_bits(model, PIXEL)
