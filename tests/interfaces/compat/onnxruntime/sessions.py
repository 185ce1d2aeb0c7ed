"""Sessions and models shared by these tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, parser

import gpuexec.compat.onnxruntime as ort
from tests.model.small_models import DOMAIN

F32 = np.float32
CPU, SIMULATOR = "CPUExecutionProvider", "GpuexecSimulatorExecutionProvider"
X = np.array([[-1, 2], [3, -4], [5, 6]], F32)
B = np.array([1, -1], F32)
FEED = {"x": X, "b": B}
TWO_OUTPUTS = "g (float[n, 2] x, float[2] b) => (float[n, 2] y, float[n, 2] z) { y = Add (x, b) z = Neg (y) }"
WITH_DEFAULT = "g (float[n, 2] x, float[2] b = {1, 2}) => (float[n, 2] y) { y = Add (x, b) }"
# The host has to read what the product is, to know how much the last node makes.
COUNTED = (
    "g (float[n, n] x) => (int64[k] y) <int64 zero = {0}, int64 one = {1}>"
    " { a = MatMul (x, x) s = ReduceMax <keepdims = 0> (a) t = Cast <to = 7> (s) y = Range (zero, t, one) }"
)
NONZERO = "g (float[n] x) => (int64[1, k] y) { y = NonZero (x) }"


def make_bytes(text: str = TWO_OUTPUTS, head: str = "") -> bytes:
    """Return a model written down in ONNX's text, as bytes."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]{head}> {text}').SerializeToString()  # type: ignore[no-any-return]


def make_session(
    text: str = TWO_OUTPUTS, provider: str = CPU, options: ort.SessionOptions | None = None, **kwargs: Any
) -> ort.InferenceSession:
    """Return a session over such a model."""
    return ort.InferenceSession(make_bytes(text), options, providers=[provider], **kwargs)


def make_gated(gate: int) -> bytes:
    """Return COUNTED behind a gate."""
    model = onnx.load_from_string(make_bytes(COUNTED))
    model.graph.node[0].input[0] = "a0"
    model.graph.node.insert(0, helper.make_node("Gate", ["x"], ["a0"], name="gate", domain=DOMAIN, number=gate))
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model.SerializeToString()
