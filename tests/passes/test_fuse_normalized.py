"""The pass fuse_normalized: fusion of convolutions with the InstanceNormalization of what they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from gpuexec.passes.fuse_normalized import fuse_normalized
from gpuexec.passes.fuse_rounding import fuse_rounding
from tests.ir.graph_builder import compute_graph
from tests.model.small_models import CPU
from tests.ops.tolerance import to_bits
from tests.passes.harness import load

NAME = "gpuexec.NormalizedConv"
HALF = np.dtype(np.float16)
SHAPES = {"x": (1, 8, 72, 64), "w": (16, 8, 3, 3), "s": (16,), "b": (16,)}
SPECS = {name: TensorSpec(shape, HALF) for name, shape in SHAPES.items()}
WHOLE = "p = Conv <pads = [1, 1, 1, 1]> (x, w) a = Relu (p) c = InstanceNormalization (a, s, b) y = Sigmoid (c)"
Y = "float16[n, o, h, v] y"


def text_of(body: str, outputs: str = Y) -> str:
    parameters = "float16[n, c, h, v] x, float16[16, 8, 3, 3] w, float16[o] s, float16[o] b"
    return f"agraph ({parameters}) => ({outputs}) {{ {body} }}"


def fuse(text: str | Graph, **specs: TensorSpec) -> Graph:
    given, before = SPECS | specs, load(text) if isinstance(text, str) else text
    graph = fuse_normalized(fuse_epilogues(before, given), given)
    check(graph)
    return graph


def names(graph: Graph) -> list[str]:
    return [node.operator.name for node in graph.nodes]


def test_pairs_become_one_node_named_by_both() -> None:
    (node,) = fuse(text_of(WHOLE)).nodes
    assert node.operator.name == NAME
    rows = [name for name, _, _ in node.operator.steps]  # type: ignore[attr-defined]
    assert rows == ["gpuexec.FusedConv", "gpuexec.FusedInstanceNormalization"]
    assert [value.name for value in node.inputs if value is not None] == ["x", "w", "s", "b"]
    assert "+" in node.name and node.outputs[0].name == "y"  # type: ignore[union-attr]


@pytest.mark.parametrize("body", [WHOLE, "p = Conv <pads = [1, 1, 1, 1]> (x, w) y = InstanceNormalization (p, s, b)"])
def test_results_stay(body: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(HALF) for name, shape in SHAPES.items()}
    before = load(text_of(body))
    after = fuse(before)
    assert NAME in names(after) and after.inputs == before.inputs
    results = [compute_graph(graph, feeds)[0] for graph in (before, after)]
    np.testing.assert_array_equal(*map(to_bits, results))


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("p = Conv <pads = [1, 1, 1, 1]> (x, w) y = InstanceNormalization (p, s, b)", f"{Y}, float16[n, o, h, v] p"),
        (
            "p = Conv <pads = [1, 1, 1, 1]> (x, w) c = InstanceNormalization (p, s, b) m = Neg (p) y = Add (c, m)",
            Y,
        ),
        ("p = Conv <strides = [2, 2]> (x, w) y = InstanceNormalization (p, s, b)", Y),
        ("p = Conv <pads = [0, 0, 0, 1]> (x, w) y = InstanceNormalization (p, s, b)", Y),
        ("p = Conv (x, w) y = Relu (p)", Y),
    ],
    ids=["given out", "read beside", "small", "odd positions", "no second"],
)
def test_others_stay_apart(body: str, outputs: str) -> None:
    assert NAME not in names(fuse(text_of(body, outputs)))


def test_floats_products_and_odd_channels_stay_apart() -> None:
    text = text_of('p = Conv <auto_pad = "SAME_UPPER"> (x, w) y = InstanceNormalization (p, s, b)')
    assert NAME in names(fuse(text))
    floats = {name: TensorSpec(shape, np.dtype(np.float32)) for name, shape in SHAPES.items()}
    graph = load(text.replace("float16", "float"))
    assert fuse_normalized(graph, floats) is graph
    odd = {"w": TensorSpec((12, 8, 3, 3), HALF), "s": TensorSpec((12,), HALF), "b": TensorSpec((12,), HALF)}
    assert NAME not in names(fuse(text, **odd))
    single = {"x": TensorSpec((1, 8, 72, 64), HALF), "w": TensorSpec((16, 8, 1, 1), HALF)}
    assert NAME not in names(fuse(text, **single))


def test_roundings_between_steps_are_left_out_within() -> None:
    (node,) = fuse_rounding(fuse(text_of(WHOLE))).nodes
    rows = [dict(attributes) for _, attributes, _ in node.operator.steps]  # type: ignore[attr-defined]
    assert [row["rounds"] for row in rows] == [False, False]


def make(disabled: Sequence[str] = ()) -> gx.Model:
    text = f'<ir_version: 10, opset_import: ["": 18]> {text_of(WHOLE)}'
    return gx.load(parser.parse_model(text), disabled_passes=disabled)


def feeds_of(height: int) -> dict[str, Any]:
    rng = np.random.default_rng(height)
    shapes = SHAPES | {"x": (1, 8, height, 64)}
    return {name: rng.standard_normal(shape).astype(HALF) for name, shape in shapes.items()}


@pytest.mark.parametrize("backend", [CPU, gx.BackendType.SIMULATOR])
def test_bits_stay_at_all_sizes(backend: gx.BackendType) -> None:
    """Of large images of whole tiles and not, and of small ones, some of which a larger one's plan covers."""
    with (
        gx.Worker(make(), backend=backend) as fused,
        gx.Worker(make(["fuse_normalized"]), backend=backend) as apart,
    ):
        for height in (72, 73, 20, 96, 88, 80, 104, 72):
            got, expected = (each.run(feeds_of(height))[0] for each in (fused, apart))
            np.testing.assert_array_equal(to_bits(np.asarray(got)), to_bits(np.asarray(expected)))
        if backend is not CPU:
            sources = [[kernel.source for plan in each.plans for kernel in plan.kernels()] for each in (fused, apart)]
            assert ["conv_normalized.cu" in each for each in sources] == [True, False]
