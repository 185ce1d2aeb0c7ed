"""Quantisation of products: which are found, what is written in front of them, and the scales of ranges."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.importer import run_oracle, to_model
from gpuexec.ir.graphs import Graph, Value, check
from gpuexec.passes import settle
from gpuexec.passes.quantize_products import QuantizableProduct, find_products, make_scale, quantize_products
from tests.passes.harness import load, operators

FLOAT, I8, U8 = np.dtype(np.float32), np.dtype(np.int8), np.dtype(np.uint8)
HEAD = "(float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, -2, 3, 4, 0.5, 6}"
X = np.array([[0.5, -1, 2], [1, 0, -2]], np.float32)


def body(nodes: str, more: str = "") -> Graph:
    return load(f"g {HEAD}{more}> {{ {nodes} }}", 21)


def describe(products: tuple[QuantizableProduct, ...]) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(each.node.operator.name, each.weights, each.activations) for each in products]


def scale_all(products: tuple[QuantizableProduct, ...], most: float = 2) -> dict[Value, Any]:
    made = make_scale(-most, most, FLOAT, I8)
    return {value: made for product in products for value in product.list_activations()}


def test_products_of_activations_are_found_with_their_weights() -> None:
    graph = body(
        "a = Transpose(x) b = MatMul(x, a) c = MatMul(b, x) d = Relu(c) e = MatMul(w, w2) y = Gemm(d, w)",
        ", float[2, 3] w2 = {1, 2, 3, 4, 5, 6}",
    )
    assert describe(find_products(graph)) == [("MatMul", (), (0, 1)), ("MatMul", (), (0, 1)), ("Gemm", (1,), (0,))]


@pytest.mark.parametrize(
    "nodes",
    [
        "v = DequantizeLinear(q, s) y = MatMul(x, v)",
        "t = DequantizeLinear(p, s) v = Transpose(t) y = MatMul(x, v)",
        "u = QuantizeLinear(x, s) v = DequantizeLinear(u, s) y = MatMul(v, w)",
    ],
    ids=["weight", "weight_transposed", "activation"],
)
def test_product_of_what_is_quantised_is_none(nodes: str) -> None:
    stored = ", int8[3, 2] q = {1, 2, 3, 4, 5, 6}, int8[2, 3] p = {1, 2, 3, 4, 5, 6}, float s = {0.5}"
    graph = settle(body(nodes, stored))
    assert find_products(graph) == () and "DequantizeLinear" in operators(graph)


def test_weights_and_activations_go_through_integers() -> None:
    graph = body("y = MatMul(x, w)")
    products = find_products(graph)
    made, quantized = quantize_products(graph, products, scale_all(products))
    check(made)
    assert quantized == products
    assert operators(made) == ["DequantizeLinear", "QuantizeLinear", "DequantizeLinear", "MatMul"]
    constants = {value.name: array for value, array in made.constants.items()}
    assert {name: array.dtype.name for name, array in constants.items()} == {
        "w.int8": "int8",
        "w.scale": "float32",
        "x.scale": "float32",
        "x.zero": "int8",
    }
    wanted = np.rint(X * 63.5) / 63.5 @ (constants["w.int8"] * constants["w.scale"])
    np.testing.assert_allclose(run_oracle(to_model(made), {"x": X})[1]["y"], wanted, rtol=1e-5)


def test_one_scale_for_a_weight() -> None:
    graph = body("y = MatMul(x, w)")
    products = find_products(graph)
    made, _ = quantize_products(graph, products, scale_all(products), per_channel=False)
    (scale,) = (array for value, array in made.constants.items() if value.name == "w.scale")
    assert scale == np.float32(6 / 127)


@pytest.mark.parametrize(
    ("equation", "scales"),
    [("ni,io->no", (2,)), ("ni,io", (2,)), ("ni,io->on", (2,)), ("ni,oi->no", (3,)), ("n...,...o->no", ())],
)
def test_channels_of_an_equation_are_those_that_the_weight_alone_has(equation: str, scales: tuple[int, ...]) -> None:
    side = 2 if "oi" in equation else 3
    graph = load(
        f"g (float[n, {side}] x) => (float y) <float[3, 2] w = {{1, -2, 3, 4, 0.5, 6}}>"
        f' {{ y = Einsum<equation = "{equation}">(x, w) }}',
        21,
    )
    products = find_products(graph)
    made, _ = quantize_products(graph, products, scale_all(products))
    (scale,) = (array for value, array in made.constants.items() if value.name == "w.scale")
    assert scale.shape == scales
    given = {"x": X[:, :side]}
    wide, got = (run_oracle(to_model(each), given)[1]["y"] for each in (graph, made))
    np.testing.assert_allclose(got, wide, atol=0.2)


@pytest.mark.parametrize(
    ("weight", "why"),
    [("float[3, 2] v = {1, 2, 3, 4, nan, 6}", "not finite"), ("double[3, 2] v = {1, 2, 3, 4, 5, 6}", "double")],
)
def test_product_with_a_weight_that_no_byte_stands_for_stays(weight: str, why: str) -> None:
    if "nan" in weight:
        graph = body("y = MatMul(x, v)", ", float[3, 2] v = {1, 2, 3, 4, 5, 6}")
        broken = {value: np.full((3, 2), np.nan, np.float32) for value in graph.constants if value.name == "v"}
        graph = Graph(graph.inputs, graph.outputs, graph.nodes, {**graph.constants, **broken}, graph.name)
    else:
        graph = body("z = Cast<to = 11>(x) t = MatMul(z, v) y = Cast<to = 1>(t)", f", {weight}")
    products = find_products(graph)
    made, quantized = quantize_products(graph, products, scale_all(products))
    assert (len(products), quantized) == (1, ()) and operators(made) == operators(graph), why


def test_product_without_a_scale_stays_beside_others() -> None:
    graph = body("a = MatMul(x, w) b = Relu(a) y = MatMul(b, v)", ", float[2, 2] v = {1, 2, 3, 4}")
    products = find_products(graph)
    made, quantized = quantize_products(graph, products, scale_all(products[1:]))
    assert quantized == products[1:] and operators(made)[0] == "MatMul"
    check(made)


@pytest.mark.parametrize(
    ("least", "most", "integers", "scale", "zero"),
    [
        (-1, 2, I8, 2 / 127, 0),
        (-4, 2, I8, 4 / 127, 0),
        (0, 2, I8, 2 / 127, 0),
        (0, 5, U8, 5 / 255, 0),
        (1, 5, U8, 5 / 255, 0),
        (-5, -1, U8, 5 / 255, 255),
        (-1, 4, U8, 5 / 255, 51),
    ],
)
def test_scale_of_a_range_holds_zero(least: float, most: float, integers: Any, scale: float, zero: int) -> None:
    made = make_scale(least, most, FLOAT, integers)
    assert (made.scale, made.zero) == (np.float32(scale), zero) and made.zero.dtype == integers
    assert not made.scale.flags.writeable and not made.zero.flags.writeable


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_scale_of_the_smallest_range_is_above_zero(dtype: Any) -> None:
    made = make_scale(0, float(ml_dtypes.finfo(dtype).smallest_subnormal), np.dtype(dtype), I8)  # type: ignore[no-untyped-call]
    assert made.scale.dtype == dtype and made.scale > 0
