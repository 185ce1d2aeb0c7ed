"""Cases of ai.onnx.ml, and models of one node of it, run whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

import gpuexec as gx
from tests.ops.harness import Array, Case

DOMAIN = "ai.onnx.ml"
INPUTS = (np.float32, np.float64, np.int64, np.int32)


def ml(id: str, op: str, *inputs: Array, opset: int = 1, outputs: int = 1, **more: Any) -> Case:
    """Return a case; what is no field of it is an attribute."""
    fields = {key: more.pop(key) for key in ("expected", "oracle", "terms", "refusal") if key in more}
    return Case(id, op, inputs, more, opset=opset, domain=DOMAIN, outputs=(True,) * outputs, **fields)


def make_model(op: str, x: Array, outputs: int, opset: int = 1, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node whose input has free dimensions; of two outputs the first are labels."""
    names = [f"y{i}" for i in range(outputs)]
    types = [onnx.TensorProto.UNDEFINED]
    if outputs == 2:
        is_named = "classlabels_strings" in attributes
        types = [onnx.TensorProto.STRING if is_named else onnx.TensorProto.INT64, onnx.TensorProto.FLOAT]
    node = helper.make_node(op, ["x"], names, "node", domain=DOMAIN, **attributes)
    given = helper.np_dtype_to_tensor_dtype(x.dtype) if x.dtype != object else onnx.TensorProto.STRING
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", given, [None] * x.ndim)],
        [helper.make_tensor_value_info(name, code, None) for name, code in zip(names, types, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, opset)])


def run_model(backend: gx.BackendType, model: onnx.ModelProto, x: Array) -> tuple[list[Array], list[str]]:
    """Return the outputs, and what a device with kernels left to the host."""
    with gx.Worker(gx.load(model), backend=backend) as worker:
        outputs = worker.schedule(x).outputs
        arrays = [y.readback_and_clone() for y in outputs.values()]
        return arrays, [row.operator for row in worker.report().host_calls]
