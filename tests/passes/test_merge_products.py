"""The pass merge_products: products of one value with constant weights become one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.precision import Precision
from gpuexec.ops.linalg.matmul import Gemm
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.passes.lower_precision import list_known
from gpuexec.passes.merge_products import merge_products
from tests.ir.graph_builder import GraphBuilder
from tests.model.small_models import CPU, make_model
from tests.passes.harness import Array, check_same, load, operators

RNG = np.random.default_rng(3)
WIDTHS = {"q": 16, "k": 8, "v": 8, "odd": 6}


def weights(dtype: Any = np.float32) -> dict[str, Array]:
    """Return weights of 12 rows, turned ones, and vectors for their columns."""
    made = {f"w{name}": RNG.normal(size=(12, width)) for name, width in WIDTHS.items()}
    made |= {f"t{name}": RNG.normal(size=(width, 12)) for name, width in WIDTHS.items()}
    made |= {f"b{name}": RNG.normal(size=width) for name, width in WIDTHS.items()}
    return {name: array.astype(dtype) for name, array in made.items()}


def merge(body: str, outputs: str) -> tuple[Graph, Graph]:
    """Return a graph of x and constant weights, and the same with its products merged, which computes the same."""
    given = ", ".join(f"float[{', '.join(map(str, a.shape))}] {name}" for name, a in weights().items())
    before = load(f"agraph (float[2, 5, 12] x, float[5, 12] m, {given}) => ({outputs}) {{ {body} }}")
    constants = {value: weights()[value.name] for value in before.inputs if value.name in weights()}
    inputs = tuple(value for value in before.inputs if value not in constants)
    before = Graph(
        **{**{f: getattr(before, f) for f in ("nodes", "outputs", "name")}, "inputs": inputs, "constants": constants}
    )
    after = merge_products(before)
    check(after)
    feeds = {"x": RNG.normal(size=(2, 5, 12)).astype(np.float32), "m": RNG.normal(size=(5, 12)).astype(np.float32)}
    check_same(before, after, 1e-5, **{value.name: feeds[value.name] for value in inputs})
    return before, after


THREE = "float[2, 5, 16] y0, float[2, 5, 8] y1, float[2, 5, 8] y2"


def test_products_with_their_vectors_become_one() -> None:
    _, after = merge(
        """p = MatMul (x, wq) y0 = Add (p, bq) q = MatMul (x, wk) y1 = Add (bk, q)
        r = MatMul (x, wv) y2 = Add (r, bv)""",
        THREE,
    )
    assert operators(after) == ["MatMul", "Add", "Split"]
    assert [value.name for value in after.nodes[-1].outputs if value] == ["y0", "y1", "y2"]


def test_products_without_vectors_are_merged_by_themselves() -> None:
    _, after = merge("y0 = MatMul (x, wq) p = MatMul (x, wk) y1 = Add (p, bk) y2 = MatMul (x, wv)", THREE)
    assert sorted(operators(after)) == ["Add", "MatMul", "MatMul", "Split"]


def test_weights_that_are_turned_are_joined_as_they_are_stored() -> None:
    _, after = merge(
        """a = Transpose (tq) y0 = MatMul (x, a) b = Transpose (tk) y1 = MatMul (x, b)
        c = Transpose (tv) y2 = MatMul (x, c)""",
        THREE,
    )
    assert sorted(operators(after)) == ["MatMul", "Split", *["Transpose"] * 4], "three that nothing reads"
    (weight,) = (array for value, array in after.constants.items() if value.name.endswith(".weight"))
    assert weight.shape == (32, 12)


@pytest.mark.parametrize(("letter", "turned"), [("w", 0), ("t", 1)])
def test_gemms_become_one(letter: str, turned: int) -> None:
    body = " ".join(
        f"y{n} = Gemm <transB = {turned}, alpha = 0.5, beta = 2.0> (m, {letter}{name}, b{name})"
        for n, name in enumerate("qkv")
    )
    _, after = merge(body, "float[5, 16] y0, float[5, 8] y1, float[5, 8] y2")
    assert operators(after) == ["Gemm", "Split"]
    assert after.nodes[0].operator == Gemm(0.5, 2.0, 0, turned)


@pytest.mark.parametrize(
    "body",
    [
        "y0 = MatMul (x, wq) y1 = MatMul (x, wodd)",  # columns that begin anywhere
        "y0 = MatMul (x, wq) a = Neg (x) y1 = MatMul (a, wk)",
        "y0 = MatMul (x, wq) a = Neg (wk) y1 = MatMul (x, a)",
        "y0 = Gemm (m, wq) y1 = Gemm <alpha = 2.0> (m, wk)",
        "y0 = Gemm (m, wq, bq) y1 = Gemm (m, wk)",
    ],
)
def test_what_has_little_in_common_stays(body: str) -> None:
    rank = "5" if "Gemm" in body else "2, 5"
    before, after = merge(body, f"float[{rank}, 16] y0, float[{rank}, {6 if 'odd' in body else 8}] y1")
    assert after is before


def test_a_product_with_another_reader_beside_its_vector_keeps_it() -> None:
    _, after = merge(
        "p = MatMul (x, wq) y0 = Add (p, bq) y2 = Exp (p) y1 = MatMul (x, wk)", THREE.replace("8] y2", "16] y2")
    )
    assert operators(after) == ["MatMul", "Split", "Add", "Exp"]


def test_merged_nodes_are_kept_in_float_by_the_name_of_a_part() -> None:
    _, after = merge("y0 = MatMul (x, wq) y1 = MatMul (x, wk)", THREE.partition(", float[2, 5, 8] y2")[0])
    name = after.nodes[0].name
    part = name.split("+")[1]
    assert Precision("fp16", frozenset({part})).keeps(name) and not Precision("fp16", frozenset({"other"})).keeps(name)
    assert list_known(after, [part, name, "MatMul_*", "other"]) == [part, name, "MatMul_*"]


POOLED = "y0 = MaxPool <kernel_shape = [1, 1]> (r0) y1 = MaxPool <kernel_shape = [1, 1]> (r1)"
CONVS = {
    "same activation": (f"a = Conv (x, w0, b0) r0 = Relu (a) b = Conv (x, w1, b1) r1 = Relu (b) {POOLED}", True),
    "no activation": (f"r0 = Conv (x, w0) r1 = Conv (x, w1) {POOLED}", True),
    "added to what comes later": (
        f"a = Conv (x, w0) r1 = Conv (x, w1) c = Conv (r1, w2) d = Conv (c, w3) r0 = Add (d, a) {POOLED}",
        True,
    ),
    "added to what is there": (f"z = Exp (x) a = Conv (x, w0) r0 = Add (a, b0) r1 = Conv (x, w1) {POOLED}", False),
    "other activations": (f"a = Conv (x, w0) r0 = Relu (a) b = Conv (x, w1) r1 = Tanh (b) {POOLED}", False),
    "one activation": (f"a = Conv (x, w0) r0 = Relu (a) r1 = Conv (x, w1) {POOLED}", False),
    "two activations": (f"a = Conv (x, w0) c = Abs (a) r0 = Relu (c) b = Conv (x, w1) r1 = Abs (b) {POOLED}", False),
    "strides": (f"r0 = Conv (x, w0) r1 = Conv <strides = [2, 2]> (x, w1) {POOLED}", False),
    "pads": (f"r0 = Conv (x, w0) r1 = Conv <pads = [1, 1, 1, 1]> (x, w1) {POOLED}", False),
    "one bias": (f"r0 = Conv (x, w0, b0) r1 = Conv (x, w1) {POOLED}", False),
    "outputs": ("y0 = Conv (x, w0) y1 = Conv (x, w1)", False),
}


@pytest.mark.parametrize(("body", "is_merged"), CONVS.values(), ids=CONVS)
def test_convolutions_of_single_positions_become_one(body: str, is_merged: bool) -> None:
    shapes = {"w0": (16, 4, 1, 1), "w1": (8, 4, 1, 1), "w2": (8, 8, 1, 1), "w3": (16, 8, 1, 1), "b0": (16,), "b1": (8,)}
    if "Add (a, b0)" in body:
        shapes["b0"] = (16, 1, 1)
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    given = ", ".join(f"float[{', '.join(map(str, shape))}] {name}" for name, shape in shapes.items())
    whole = load(f"agraph (float[2, 4, 3, 4] x, {given}) => (float[2, 16, a, b] y0, float[2, 8, c, d] y1) {{ {body} }}")
    constants = {value: arrays[value.name] for value in whole.inputs if value.name in arrays}
    inputs = tuple(value for value in whole.inputs if value not in constants)
    before = Graph(nodes=whole.nodes, outputs=whole.outputs, name=whole.name, inputs=inputs, constants=constants)
    after = merge_products(before)
    check(after)
    assert ("Split" in operators(after)) == is_merged and (after is before) != is_merged
    x = RNG.normal(size=(2, 4, 3, 4)).astype(np.float32)
    check_same(before, after, 1e-5, x=x)


def test_weights_in_files_are_joined_up_to_a_limit(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import helper

    own = {name: RNG.normal(size=(64, 64)).astype(np.float32) for name in ("wq", "wk", "wv")}
    nodes = [helper.make_node("MatMul", ["x", name], [f"y{name}"]) for name in own]
    outputs = {f"y{name}": ("n", 64) for name in own}
    make_model(nodes, {"x": ("n", 64)}, outputs, **own).save(tmp_path / "m.onnx", external_data=True)
    x = RNG.normal(size=(4, 64)).astype(np.float32)
    for limit, count in ((1 << 20, 1), (100, 3)):
        monkeypatch.setattr(sys.modules[merge_products.__module__], "_COPIED_NBYTES", limit)
        model = gx.load(tmp_path / "m.onnx")
        assert operators(model.graph).count("MatMul") == count
        with gx.Worker(model, backend=CPU) as worker:
            for got, name in zip(worker.run(x), own, strict=True):
                np.testing.assert_allclose(got, x @ own[name], rtol=1e-4, atol=1e-4)


def merge_coded(bits: int, *, has_zeros: bool, groups: bool = False, widths: tuple[int, ...] = (16, 8)) -> Graph:
    """Return the graph of products with codes over one input after the pass, which computes the same."""
    build, rng = GraphBuilder(), np.random.default_rng(bits)
    x, results = build.input("x", 3, 40), []
    for width in widths:
        codes = rng.integers(0, 256, (width, 2, 4 * bits)).astype(np.uint8)
        scales = rng.uniform(0.1, 0.2, width * 2).astype(np.float32)
        zeros = rng.integers(0, 256, (width, -(-2 * bits // 8))).astype(np.uint8)
        given = [build.constant(codes), build.constant(scales), build.constant(zeros) if has_zeros else None]
        given.append(build.constant(np.arange(40, dtype=np.int32) // 32) if groups else None)
        given.append(build.constant(rng.normal(size=width).astype(np.float32)))
        results.append(build.node(MatMulNBits(K=40, N=width, block_size=32, bits=bits), x, *given))
    before = build.graph(*results)
    after = merge_products(before)
    check(after)
    check_same(before, after, 1e-6, x=RNG.normal(size=(3, 40)).astype(np.float32))
    return after


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_codes_become_one(bits: int, has_zeros: bool) -> None:
    after = merge_coded(bits, has_zeros=has_zeros)
    assert operators(after) == [MatMulNBits.name, "Split"]
    (product, _) = after.nodes
    assert isinstance(product.operator, MatMulNBits) and product.operator.N == 24


def test_codes_whose_places_have_an_order_of_their_own_stay_as_they_are() -> None:
    assert operators(merge_coded(4, has_zeros=False, groups=True)) == [MatMulNBits.name] * 2


def test_widths_of_codes_that_end_amid_a_vector_stay_as_they_are() -> None:
    assert operators(merge_coded(4, has_zeros=True, widths=(16, 12, 8))) == [
        MatMulNBits.name,
        "Split",
        MatMulNBits.name,
    ]
