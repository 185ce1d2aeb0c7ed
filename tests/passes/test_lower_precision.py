"""The pass lower_precision: where operands are rounded, what stays float, and what is told to keep its order."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.graphs import Graph, Node, bodies, check
from gpuexec.ir.operator import build, describe
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.passes.fold_constants import fold_constants
from gpuexec.passes.fold_shapes import fold_shapes
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.passes.narrow_weights import narrow_weights
from gpuexec.passes.remove_noops import find_dtypes
from tests.ir.graph_builder import GraphBuilder
from tests.passes.harness import load, operators

WEIGHTS = "float[2, 2] w = {1, 2, 3, 4.0001}, float[2, 2, 1, 1] k = {1, 2, 3, 4.0001}, float[2] b = {1, 2}"


def lower(text: str, name: str = "fp16", keep: tuple[str, ...] = ()) -> Graph:
    graph = lower_precision(load(text), Precision.of(name, keep))
    check(graph)
    return graph


def matrix(body: str, outputs: str = "float[2, 2] y") -> str:
    return f"agraph (float[2, 2] x) => ({outputs}) <{WEIGHTS}> {{ {body} }}"


def image(body: str, outputs: str = "float[1, 2, 3, 3] y") -> str:
    return f"agraph (float[1, 2, 3, 3] x) => ({outputs}) <{WEIGHTS}> {{ {body} }}"


def reads(graph: Graph, operator: str) -> list[list[str | None]]:
    """Return the names of what the nodes of an operator read."""
    return [[value and value.name for value in node.inputs] for node in graph.nodes if node.operator.name == operator]


def list_axes(graph: Graph) -> list[object]:
    """Return the axes that scales of weights run along."""
    return [dict(describe(node.operator)[1])["axis"] for node in find(graph, "gpuexec.RoundWeight")]


def find(graph: Graph, operator: str) -> list[Node]:
    return [node for node in graph.nodes if node.operator.name == operator]


def test_operands_of_a_product_are_cast_behind_what_makes_them_and_its_result_is_float() -> None:
    graph = lower(matrix("a = Relu (x) p = MatMul (a, w) y = Tanh (p)"))
    assert operators(graph) == ["Relu", "Cast", "gpuexec.RoundWeight", "MatMul", "Tanh"]
    assert reads(graph, "MatMul") == [["a.fp16", "w.fp16"]]
    assert reads(graph, "Tanh") == [["p"]]
    (weight,) = find(graph, "gpuexec.RoundWeight")
    assert describe(weight.operator)[1] == (("to", "fp16"), ("is_stored", 1))


def test_a_value_is_cast_once_for_all_products() -> None:
    graph = lower(matrix("a = Relu (x) p = MatMul (a, w) q = MatMul (a, a) y = Add (p, q)"))
    assert len(find(graph, "Cast")) == 1
    assert reads(graph, "MatMul") == [["a.fp16", "w.fp16"], ["a.fp16", "a.fp16"]]


def test_residuals_around_a_product_stay_float() -> None:
    graph = lower(matrix("a = Relu (x) p = MatMul (a, w) y = Add (p, a)"))
    assert reads(graph, "Add") == [["p", "a"]]


@pytest.mark.parametrize(
    ("operator", "precision", "residual"),
    [
        ("ConvTranspose", "fp16", "a.fp16"),
        ("ConvTranspose", "bf16", "a.bf16"),
        ("ConvTranspose", "tf32", "a"),
        ("Conv", "tf32", "a"),
    ],
)
def test_residuals_in_front_of_a_convolution_are_rounded_where_one_tensor_does_for_both(
    operator: str, precision: str, residual: str
) -> None:
    graph = lower(image(f"a = Relu (x) p = {operator} (a, k) y = Add (p, a)"), precision)
    assert operators(graph) == ["Relu", "gpuexec.RoundOperand", "gpuexec.RoundWeight", operator, "Add"]
    assert reads(graph, operator) == [[f"a.{precision}", f"k.{precision}"]]
    assert reads(graph, "Add") == [["p", residual]]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_operands_of_a_convolution_of_one_group_are_cast_and_its_residuals_stay_float(precision: str) -> None:
    graph = lower(image("a = Relu (x) p = Conv (a, k) y = Add (p, a)"), precision)
    assert operators(graph) == ["Relu", "Cast", "gpuexec.RoundWeight", "Conv", "Add"]
    assert reads(graph, "Conv") == [[f"a.{precision}", f"k.{precision}"]]
    assert reads(graph, "Add") == [["p", "a"]]


def test_operands_of_a_convolution_of_groups_are_cast_too() -> None:
    text = image("a = Relu (x) p = Conv <group = 2> (a, g) y = Relu (p)")
    graph = lower(text.replace("float[2] b", "float[2, 1, 1, 1] g = {1, 2.0001}, float[2] b"))
    assert operators(graph) == ["Relu", "Cast", "gpuexec.RoundWeight", "Conv", "Relu"]


@pytest.mark.parametrize(
    ("attributes", "rounding"),
    [("kernel_shape = [1, 1], strides = [1, 1]", "Cast"), ("strides = [1, 1]", "gpuexec.RoundOperand")],
)
def test_operands_of_a_transposed_convolution_are_cast_where_attributes_say_that_taps_are_apart(
    attributes: str, rounding: str
) -> None:
    graph = lower(image(f"a = Relu (x) p = ConvTranspose <{attributes}> (a, k) y = Relu (p)"))
    assert operators(graph) == ["Relu", rounding, "gpuexec.RoundWeight", "ConvTranspose", "Relu"]


def test_outputs_and_inputs_of_the_model_stay_float() -> None:
    graph = lower(image("a = Relu (x) p = Conv (a, k) q = Conv (x, k) y = Sum (p, q, x)", "float[1, 2, 3, 3] y, a"))
    assert [value.name for value in graph.outputs] == ["y", "a"]
    assert reads(graph, "Sum") == [["p", "q", "x"]]
    assert reads(graph, "Conv") == [["a.fp16", "k.fp16"], ["x.fp16", "k.fp16"]]


def test_values_are_rounded_in_front_of_views_that_products_alone_read() -> None:
    body = "a = Relu (x) t = Transpose <perm = [1, 0]> (a) p = MatMul (t, w) {}"
    graph = lower(matrix(body.format("y = Tanh (p)")))
    assert operators(graph) == ["Relu", "Cast", "Transpose", "gpuexec.RoundWeight", "MatMul", "Tanh"]
    graph = lower(matrix(body.format("y = Add (p, t)")))
    assert operators(graph) == ["Relu", "Transpose", "Cast", "gpuexec.RoundWeight", "MatMul", "Add"]


def test_all_parts_of_a_split_are_rounded_in_front_of_it() -> None:
    body = "a = Relu (x) s, t = Split <num_outputs = 2, axis = 1> (a) u = Transpose (t) y = MatMul (s, u)"
    assert operators(lower(matrix(body))) == ["Relu", "Cast", "Split", "Transpose", "MatMul"]


def test_a_split_whose_parts_are_read_as_they_are_too_is_made_twice() -> None:
    body = (
        "p = MatMul (x, w) a = Relu (p) s, t = Split <num_outputs = 2, axis = 1> (a)"
        " y = MatMul (w, s) u = MatMul (w, t) z = Exp (s)"
    )
    graph = lower(matrix(body, "float[2, 1] y, float[2, 1] u, float[2, 1] z"))
    names = [name for name in operators(graph) if name in ("Relu", "Cast", "Split", "Exp")]
    assert names == ["Cast", "Relu", "Cast", "Split", "Split", "Exp"]
    assert reads(graph, "Split") == [["a"], ["a.fp16"]]
    assert reads(graph, "MatMul")[1][1] == "s.fp16" and reads(graph, "Exp") == [["s"]]


def test_a_bias_is_not_rounded() -> None:
    graph = lower(matrix("y = Gemm (x, w, b)"))
    assert reads(graph, "Gemm") == [["x.fp16", "w.fp16", "b"]]


def test_kept_nodes_read_what_they_did() -> None:
    text = matrix("[first] p = MatMul (x, w) [second] y = MatMul (p, w)")
    assert reads(lower(text, keep=("first",)), "MatMul") == [["x", "w"], ["p.fp16", "w.fp16"]]
    assert operators(lower(text, keep=("*",))) == ["MatMul", "MatMul"]


def test_a_name_to_keep_must_be_that_of_a_node() -> None:
    with pytest.raises(gx.InputError, match="keep names 'third', and the model has no node of such a name"):
        lower(matrix("[first] y = MatMul (x, w)"), keep=("first", "third"))


def test_other_types_stay() -> None:
    body = "{ y = MatMul (x, x) j = MatMul (i, i) }"
    text = f"agraph (double[2, 2] x, int64[2, 2] i) => (double[2, 2] y, int64[2, 2] j) {body}"
    assert operators(lower(text)) == ["MatMul", "MatMul"]


def test_bodies_are_rounded_too() -> None:
    text = f"""agraph (float[2, 2] x, bool c) => (float[2, 2] y) <{WEIGHTS}> {{
        y = If (c) <then_branch = t () => (float[2, 2] p) {{ p = MatMul (x, w) }},
                    else_branch = e () => (float[2, 2] q) {{ q = Relu (x) }}> }}"""
    then, other = bodies(find(lower(text), "If")[0].operator)
    # What a body takes from outside is an input of it, weights too.
    assert operators(then) == ["Cast", "Cast", "MatMul"] and operators(other) == ["Relu"]


def test_weights_of_both_forms_are_rounded_for_each() -> None:
    graph = lower(f"""agraph (float[1, 2, 2, 2] x) => (float[1, 2, 2, 2] y) <{WEIGHTS}> {{
        c = ConvTranspose (x, k) p = MatMul (c, k) q = MatMul (p, w) y = MatMul (q, w) }}""")
    assert [describe(node.operator)[1] for node in find(graph, "gpuexec.RoundWeight")] == [
        (("to", "fp16"),),
        (("to", "fp16"), ("is_stored", 1)),
        (("to", "fp16"), ("is_stored", 1)),
    ]


def test_nothing_computes_a_weight_beforehand() -> None:
    """Weights are exchanged under plans, which would keep what was made of the ones before."""
    graph = lower(matrix("y = MatMul (x, w)"))
    assert fold_constants(graph) is graph
    assert fold_shapes(graph, {"x": TensorSpec((2, 2), np.dtype(np.float32))}) is graph


def test_weights_have_a_scale_for_each_output_channel_in_fp8() -> None:
    body = "p = MatMul (x, w) q = MatMul (w, p) r = Gemm <transB = 1> (q, w) y = Gemm (r, w)"
    assert list_axes(lower(matrix(body), "fp8")) == [0, 1]
    assert list_axes(lower(image("p = Conv (x, k) y = ConvTranspose (p, k)"), "fp8")) == [0, 1]


def test_products_of_fp8_take_what_is_stored_in_8_bits_with_scales() -> None:
    body = "a = Relu (x) p = MatMul (a, w) q = Gemm <transB = 1, beta = 0.5> (a, w, b) y = Add (p, q)"
    graph = lower(matrix(body), "fp8")
    weights = ["gpuexec.RoundWeight"] * 2  # scales run along other axes
    products = ["gpuexec.ScaledMatMul"] * 2
    assert operators(graph) == ["Relu", "gpuexec.ScaleToFloat8", *weights, *products, "Add"]
    (first, second) = reads(graph, "gpuexec.ScaledMatMul")
    assert first[0] == second[0] and first[2] == second[2], "a is rounded once for both"
    assert first[1::2] == ["w.fp8.2", "w.fp8_scales.2"] and second[1::2] == ["w.fp8", "w.fp8_scales"]
    assert second[4] == "b"
    made = find(graph, "gpuexec.ScaledMatMul")
    assert [describe(node.operator)[1] for node in made] == [(), (("beta", 0.5), ("transB", 1))]
    assert [node.name for node in made] == [node.name for node in find(load(matrix(body)), "MatMul")] + [
        node.name for node in find(load(matrix(body)), "Gemm")
    ]


def test_views_of_what_is_stored_in_8_bits_have_its_scale() -> None:
    body = "a = Relu (x) t = Transpose <perm = [1, 0]> (a) y = MatMul (t, w)"
    graph = lower(matrix(body), "fp8")
    names = ["Relu", "gpuexec.ScaleToFloat8", "Transpose", "gpuexec.RoundWeight", "gpuexec.ScaledMatMul"]
    assert operators(graph) == names
    ((left, _, scale, _),) = reads(graph, "gpuexec.ScaledMatMul")
    (scaled,) = find(graph, "gpuexec.ScaleToFloat8")
    assert left == "t" and scaled.outputs[1] is not None and scale == scaled.outputs[1].name


def test_convolutions_of_fp8_take_floats_and_share_the_scale_with_products() -> None:
    graph = lower(image("a = Relu (x) p = Conv (a, k) q = MatMul (a, m) y = Mul (p, q)").replace(
        "float[2] b", "float[3, 3] m = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[2] b"), "fp8")  # fmt: skip
    assert len(find(graph, "gpuexec.ScaleToFloat8")) == 1
    ((narrow, _),) = reads(graph, "Conv")
    assert narrow == reads(graph, "Mul")[0][0] or find(graph, "Conv")[0].inputs[0] is find(graph, "Mul")[0].outputs[0]
    assert len(find(graph, "gpuexec.ScaledMatMul")) == 1


def test_strict_changes_nothing_and_reference_tells_products_to_keep_their_order() -> None:
    text = matrix("a = MatMul (x, w) y = Relu (a)")
    before = load(text)
    assert lower_precision(before, Precision()) is before
    graph = lower(text, "reference")
    assert operators(graph) == ["MatMul", "Relu"]
    assert getattr(graph.nodes[0].operator, "precision", None) == "reference"


def test_int8_takes_a_model_that_says_how_values_are_scaled() -> None:
    with pytest.raises(gx.InputError, match=r"takes a model that says by QuantizeLinear.*gpuexec\.calibrate"):
        lower(matrix("y = MatMul (x, w)"), "int8")
    quantized = matrix("s = Constant <value_float = 0.5> () q = QuantizeLinear (x, s) y = DequantizeLinear (q, s)")
    assert operators(lower(quantized, "int8")) == operators(load(quantized))


def packed() -> Graph:
    """x -> Relu -> MatMulNBits, with codes, scales and a bias."""
    make, float32 = GraphBuilder(), np.dtype(np.float32)
    weights = (np.zeros((6, 2, 16), np.uint8), np.ones((6, 2), float32), None, None, np.ones(6, float32))
    given = [None if each is None else make.constant(each) for each in weights]
    relu = make.node(build("Relu", {}), make.input("x", 5, 40, dtype=float32))
    return make.graph(make.node(MatMulNBits(K=40, N=6, block_size=32), relu, *given))


def narrow(weight: str, scales: str = ", float s = {0.5}", widen: str = "DequantizeLinear (w, s)") -> Graph:
    """x -> Relu -> MatMul with a weight that the graph has in few bits, fused."""
    return narrow_weights(
        load(f"""agraph (float[2, 2] x) => (float[2, 2] y) <{weight}{scales}> {{
            a = Relu (x) v = {widen} y = MatMul (a, v) }}""")
    )


INT8 = "int8[2, 2] w = {1, 2, 3, 4}"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("graph", "operator"), [(packed(), "com.microsoft.MatMulNBits"), (narrow(INT8), "gpuexec.NarrowMatMul")]
)
def test_what_is_multiplied_with_weights_of_few_bits_is_cast_and_they_stay(
    graph: Graph, operator: str, precision: str
) -> None:
    lowered = lower_precision(graph, Precision.of(precision))
    check(lowered)
    assert [each for each in operators(lowered) if each != "DequantizeLinear"] == ["Relu", "Cast", operator]
    ((before, after),) = zip(find(graph, operator), find(lowered, operator), strict=True)
    assert after.inputs[1:] == before.inputs[1:]
    assert getattr(after.operator, "precision", None) == precision
    assert find_dtypes(lowered)[after.outputs[0]] == np.float32


@pytest.mark.parametrize("precision", ["tf32", "fp8"])
@pytest.mark.parametrize("graph", [packed(), narrow(INT8)])
def test_no_kernel_gains_by_other_roundings_beside_weights_of_few_bits(graph: Graph, precision: str) -> None:
    assert lower_precision(graph, Precision.of(precision)) is graph


def test_weights_of_half_go_with_fp16_alone() -> None:
    graph = narrow("float16[2, 2] w = {1, 2, 3, 4}", "", "Cast <to = 1> (w)")
    assert operators(graph)[-1] == "gpuexec.NarrowMatMul"
    assert reads(lower_precision(graph, Precision.of("fp16")), "gpuexec.NarrowMatMul")[0][0] == "a.fp16"
    assert lower_precision(graph, Precision.of("bf16")) is graph


def test_reference_tells_products_with_narrow_weights_to_keep_their_order_too() -> None:
    (node,) = find(lower_precision(narrow(INT8), Precision.of("reference")), "gpuexec.NarrowMatMul")
    assert getattr(node.operator, "precision", None) == "reference"
