"""Narrow weights: dequantized constants stay narrow where kernels can read them, else are widened at load."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx

RNG = np.random.default_rng(2)
X = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)


def make(nodes: list[onnx.NodeProto], constants: dict[str, Any], **outputs: list[int]) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(name, 1, dims) for name, dims in outputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [3, 6])], ports, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def dequantize(axis: int = 1, **attributes: int) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=axis, **attributes)


MATMUL = helper.make_node("MatMul", ["x", "v"], ["y"], name="m")
S8, U8 = RNG.integers(-128, 128, (6, 4), np.int8), RNG.integers(0, 256, (6, 4), np.uint8)


def weights(w: Any, s: Any, z: Any) -> dict[str, Any]:
    return {"w": w, "s": np.asarray(s, np.float32), "z": np.asarray(z, w.dtype)}


ROW, COLUMN = np.linspace(0.1, 0.9, 4), np.linspace(0.1, 0.9, 6)
FUSED = {
    "per_tensor": ([dequantize(), MATMUL], weights(S8, 0.1, 3)),
    "vector_of_one": ([dequantize(), MATMUL], weights(S8, [0.1], [3])),
    "columns": ([dequantize(1), MATMUL], weights(S8, ROW, [0, 1, -2, 3])),
    "last_axis": ([dequantize(-1), MATMUL], weights(S8, ROW, np.zeros(4))),
    "rows": ([dequantize(0), MATMUL], weights(S8, COLUMN, np.zeros(6))),
    "uint8": ([dequantize(1), MATMUL], weights(U8, ROW, [128, 127, 0, 255])),
    "uint8_per_tensor": ([dequantize(), MATMUL], weights(U8, 0.1, 100)),
    "int4": ([dequantize(1), MATMUL], weights(RNG.integers(-8, 8, (6, 4)).astype(ml_dtypes.int4), ROW, [0, 1, -2, 3])),
    "uint4": ([dequantize(), MATMUL], weights(RNG.integers(0, 16, (6, 4)).astype(ml_dtypes.uint4), 0.1, 9)),
    "no_zero": (
        [helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=1), MATMUL],
        {"w": U8, "s": ROW.astype(np.float32)},
    ),
    "transposed": (
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["t"], axis=0),
            helper.make_node("Transpose", ["t"], ["v"], perm=[1, 0]),
            MATMUL,
        ],
        weights(np.ascontiguousarray(S8.T), ROW, [0, 1, -2, 3]),
    ),
    "transposed_by_default": (
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["t"], axis=0),
            helper.make_node("Transpose", ["t"], ["v"]),
            MATMUL,
        ],
        weights(np.ascontiguousarray(S8.T), ROW, [0, 1, -2, 3]),
    ),
    "gemm": (
        [dequantize(1), helper.make_node("Gemm", ["x", "v"], ["y"], name="m", alpha=0.5)],
        weights(S8, ROW, [1] * 4),
    ),
    "half": ([helper.make_node("Cast", ["w"], ["v"], to=1), MATMUL], {"w": RNG.standard_normal((6, 4)).astype("f2")}),
    "two_readers": (
        [
            dequantize(1),
            helper.make_node("MatMul", ["x", "v"], ["a"], name="m"),
            helper.make_node("Gemm", ["x", "v"], ["b"], name="n"),
            helper.make_node("Add", ["a", "b"], ["y"]),
        ],
        weights(S8, ROW, np.zeros(4)),
    ),
}
LEFT = {
    "blocks": ([dequantize(0, block_size=3), MATMUL], weights(S8, RNG.uniform(0.1, 1, (2, 4)), np.zeros((2, 4)))),
    "int16": ([dequantize(), MATMUL], weights(S8.astype(np.int16), 0.1, 3)),
    "other_reader": (
        [dequantize(1), MATMUL, helper.make_node("Relu", ["v"], ["z2"])],
        weights(S8, ROW, np.zeros(4)),
    ),
    "left_operand": (
        [
            helper.make_node("Transpose", ["x"], ["t"]),
            dequantize(1),
            helper.make_node("MatMul", ["v", "t2"], ["y"], name="m"),
        ],
        weights(np.ascontiguousarray(S8.T), COLUMN, np.zeros(6)),
    ),
}
LEFT["left_operand"][0][0].output[0] = "t2"


def narrow(model: gx.Model) -> list[str]:
    return [node.name for node in model.graph.nodes if node.operator.name.startswith("gpuexec.Narrow")]


def expect(source: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(source.SerializeToString(), options).run(["y"], {"x": X})[0]


def source_of(rows: dict[str, Any], name: str) -> onnx.ModelProto:
    nodes, constants = rows[name]
    more = {"z2": [6, 4]} if name == "other_reader" else {}
    return make(nodes, constants, y=[4, 3] if name == "left_operand" else [3, 4], **more)


@pytest.mark.parametrize("name", FUSED)
def test_weight_is_read_as_it_is_stored(name: str) -> None:
    source = source_of(FUSED, name)
    model = gx.load(source)
    assert narrow(model) == (["m", "n"] if name == "two_readers" else ["m"])
    assert not any(node.operator.name in ("DequantizeLinear", "Cast", "Transpose") for node in model.graph.nodes)
    assert all(array.dtype.itemsize < 4 for array in model.graph.constants.values() if array.size > 6)
    for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
        with gx.Worker(model, backend=backend) as worker:
            np.testing.assert_allclose(worker.run(X)[0], expect(source), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", LEFT)
def test_what_kernels_do_not_know_is_widened_while_loading(name: str) -> None:
    source = source_of(LEFT, name)
    model = gx.load(source)
    assert not narrow(model) and "DequantizeLinear" not in [node.operator.name for node in model.graph.nodes]
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        run = worker.schedule(X)
        np.testing.assert_allclose(run.outputs["y"].readback_and_clone(), expect(source), rtol=1e-5, atol=1e-4)


def test_scales_that_do_not_fit_are_left_to_planning() -> None:
    source = source_of({"bad": ([dequantize(1), MATMUL], weights(S8, [0.1, 0.2], [0, 0]))}, "bad")
    model = gx.load(source)
    with (
        gx.Worker(model, backend=gx.BackendType.CPU) as worker,
        pytest.raises(gx.InputError, match=r"DequantizeLinear.*got scales of \[2\]"),
    ):
        worker.run(X)
