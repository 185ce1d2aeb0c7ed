"""Small programs for tests: two methods that share weights, graphs within graphs, element types of every size."""

from __future__ import annotations

import functools
import io
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import gpuexec as gx
from gpuexec.devices.kernels.kernel_cache import make_key
from gpuexec.devices.kernels.kernel_source import find_source, flatten
from gpuexec.devices.kernels.nvrtc import OPTIONS
from gpuexec.devices.kernels.stored_code import StoredCode, StoredKernel
from gpuexec.ir.command import Kernel
from gpuexec.model.model import Model
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case
from gpuexec.program.container import write_contents
from gpuexec.program.contents import Contents
from tests.model.control_models import NESTED

Array = np.ndarray[Any, Any]
KERNEL = Kernel("softmax.cu", "softmax<float>")
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
HALVES = """(float[n, 4] x) => (float[n, 4] y, bool[n, 4] is_small) {
  h = Cast <to = 16> (x)
  s = Add (h, bf)
  f = Cast <to = 1> (s)
  y = Where (mask, f, x)
  is_small = LessOrEqual (y, x)
}"""


def load_text(text: str, *, arrays: dict[str, Array] | None = None, **options: Any) -> Model:
    """Load a graph in ONNX's text form, with constants by name."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> agraph {text}')
    for name, array in (arrays or {}).items():
        model.graph.initializer.append(make_tensor(name, array))
    return gx.load(model, **options)


def make_tensor(name: str, array: Array) -> onnx.TensorProto:
    """Return an initializer, of bfloat16 too."""
    if array.dtype == ml_dtypes.bfloat16:
        return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
    return numpy_helper.from_array(array, name)


def load_linear(**options: Any) -> Model:
    """``y = softmax(x @ w)`` for x [n, 4]."""
    text = "(float[n, 4] x) => (float[n, 3] y) { m = MatMul (x, w)  y = Softmax <axis = 1> (m) }"
    return load_text(text, arrays={"w": WEIGHT}, **options)


def load_twin(**options: Any) -> Model:
    """``z = relu(x @ w) / 8`` with a weight of equal content, and one of its own."""
    text = "(float[n, 4] x) => (float[n, 3] z) { m = MatMul (x, v)  r = Relu (m)  z = Mul (r, eighth) }"
    return load_text(text, arrays={"v": WEIGHT.copy(), "eighth": np.array(0.125, np.float32)}, **options)


def load_halves(**options: Any) -> Model:
    """A graph with constants of bfloat16 and bool, and outputs of float and bool."""
    arrays = {"bf": np.array([1, -2, 0.5, 3], ml_dtypes.bfloat16), "mask": np.array([True, False, True, True])}
    return load_text(HALVES, arrays=arrays, **options)


def load_nested(**options: Any) -> Model:
    """An If within a Scan, with a Loop within."""
    return load_text(NESTED, **options)


def make_code() -> StoredCode:
    """Return code that stands for a kernel, without a compiler."""
    text = flatten(find_source(KERNEL.source))
    kernels = []
    for architecture in ("compute_80", "sm_80"):
        key = make_key(text, (KERNEL.expression,), architecture, OPTIONS, "nvrtc-1.0")
        image = memoryview(f"{architecture} image".encode())
        kernels.append(StoredKernel(key, KERNEL, architecture, "nvrtc-1.0", "softmax", image, 8, 0, 256))
    return StoredCode(tuple(kernels))


def build_program() -> Contents:
    """Return a program of four methods with plans for the CPU, cases and code."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    models = {
        "forward": load_linear(dims={"n": (1, 8)}),
        "twin": load_twin(dims={"n": (1, 8)}),
        "halves": load_halves(dims={"n": 3}),
        "nested": load_nested(dims={"n": 3, "k": 4}),
    }
    cases = {
        "forward": [Case({"x": x}), Case({"x": x[:1]}, {"y": np.full((1, 3), 1 / 3, np.float32)}, rtol=2.0, atol=0.5)],
        "halves": [Case({"x": x})],
        "nested": [Case({"x": x, "limit": np.array(0.5, np.float32)})],
    }
    built = build_contents(models, cases=cases, writer="tests")
    code = make_code()
    for method in built.methods.values():
        method.model._code = code
    return Contents(built.methods, code, writer="tests")


@functools.cache
def program_bytes() -> bytes:
    """Return the program as a file."""
    file = io.BytesIO()
    write_contents(build_program(), file)
    return file.getvalue()
