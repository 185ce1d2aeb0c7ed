"""Models with replaceable weights, and their expected outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

import gpuexec as gx
from tests.model.small_models import make_model, ramp

X = ramp(2, 3)
FIRST, SECOND = ramp(3, 5), ramp(5, 2)
OTHER = np.full((3, 5), 2, np.float32)
IN_BODY = """<ir_version: 10, opset_import: ["": 18]> agraph (float[2] x, bool c) => (float[2] y) {
  y = If (c) <then_branch = t () => (float[2] p) <float[2] w = {1, 2}> { p = Add (x, w) },
              else_branch = e () => (float[2] q) <float[2] v = {3, 4}> { q = Add (x, v) }>
}"""
LOOPS = """<ir_version: 10, opset_import: ["": 18]> agraph (float[2] x, int64 n) => (float[2] y) {
  y = Loop (n, , x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] s) <float[2] w = {1, 2}> {
    on = Identity (go) s = Add (v, w)
  }>
}"""


def expect(first: Any, second: Any = SECOND) -> Any:
    return np.maximum(X @ first, 0) @ second


def sloping(alpha: float) -> gx.Model:
    """Return two layers with a slope between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="first"),
        helper.make_node("LeakyRelu", ["a"], ["b"], name="relu", alpha=alpha),
        helper.make_node("MatMul", ["b", "second"], ["y"], name="second"),
    ]
    return make_model(nodes, {"x": (2, 3)}, {"y": (2, 2)}, first=FIRST, second=SECOND)


def scaled() -> gx.Model:
    """Return a model that multiplies rows by one weight, ``wide``: 4096 ones."""
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    return make_model(nodes, {"x": ("n", 4096)}, {"y": ("n", 4096)}, wide=np.ones(4096, np.float32))
