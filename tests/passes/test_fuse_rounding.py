"""The pass fuse_rounding: a normalization whose result is read as float and in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.fuse_rounding import fuse_rounding
from tests.ir.graph_builder import compute_graph
from tests.ops.tolerance import to_bits
from tests.passes.harness import load, operators

NORM = "h = LayerNormalization <epsilon = 0.01> (x, s, b)"
X = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
SPECS = {"x": TensorSpec(X.shape, X.dtype)}


def make(nodes: str, outputs: str = "float[4, 6] y, float16[4, 6] z") -> Graph:
    constants = "float[6] s = {0.5, 1, 2, 1, 0.5, 3}, float[6] b = {1, 2, 3, 4, 5, 6}"
    return load(f"agraph (float[4, 6] x) => ({outputs}) <{constants}> {{ {nodes} }}", opset=23)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{NORM} z = Cast <to = 10> (h) y = Add (h, x)", "float[4, 6] y, float16[4, 6] z"),
        ("h = RMSNormalization (x, s) z = Cast <to = 16> (h) y = Add (h, x)", "float[4, 6] y, bfloat16[4, 6] z"),
        (f"{NORM} z = Cast <to = 10> (h)", "float[4, 6] h, float16[4, 6] z"),
    ],
    ids=["residual", "RMS", "output"],
)
def test_a_rounding_beside_other_readers_is_one_with_the_normalization(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    after = fuse_rounding(graph, SPECS)
    check(after)
    assert operators(after)[0] == "gpuexec.RoundedNormalization" and "Cast" not in operators(after)
    for got, expected in zip(*(compute_graph(each, {"x": X}) for each in (after, graph)), strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{NORM} z = Cast <to = 10> (h)", "float16[4, 6] z"),
        (f"{NORM} z = Cast <to = 11> (h) y = Add (h, x)", "float[4, 6] y, double[4, 6] z"),
        (
            "h, m = LayerNormalization (x, s, b) z = Cast <to = 10> (h) y = Add (h, m)",
            "float[4, 6] y, float16[4, 6] z",
        ),
        ("h = Softmax (x) z = Cast <to = 10> (h) y = Add (h, x)", "float[4, 6] y, float16[4, 6] z"),
    ],
    ids=["nothing else reads it", "another type", "its mean is read", "no normalization"],
)
def test_others_stay(nodes: str, outputs: str) -> None:
    graph = make(nodes, outputs)
    assert fuse_rounding(graph, SPECS) is graph
