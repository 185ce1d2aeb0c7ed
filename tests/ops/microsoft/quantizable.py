"""Small models for quantizers, with their inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


def make_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Array], weights: dict[str, Array], opset: int = 17
) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(x, n) for n, x in weights.items()]
    graph = helper.make_graph(nodes, "sample", infos, [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


RNG = np.random.default_rng(20)


def floats(*shape: int, spread: float = 1.0) -> Array:
    return RNG.normal(0, spread, shape).astype(np.float32)


def images() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Convolutions, activations, pools, a residual, a concatenation, and a classifier."""
    weights = {
        "w1": floats(8, 3, 3, 3, spread=0.3),
        "b1": floats(8, spread=0.1),
        "w2": floats(8, 8, 3, 3, spread=0.2),
        "w3": floats(8, 1, 3, 3, spread=0.3),
        "wc": floats(16, 10, spread=0.3),
        "bc": floats(10, spread=0.1),
        "shape": np.array([0, -1], np.int64),
        "half": np.array([0.5], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c2"], ["l2"], "leaky", alpha=0.1),
        helper.make_node("Add", ["l2", "r1"], ["a2"], "add"),
        helper.make_node("Conv", ["a2", "w3"], ["c3"], "conv3", group=8, strides=[2, 2]),
        helper.make_node("Sigmoid", ["c3"], ["s3"], "sigmoid"),
        helper.make_node("Mul", ["c3", "s3"], ["m3"], "mul"),
        helper.make_node("AveragePool", ["m3"], ["p3"], "pool", kernel_shape=[2, 2]),
        helper.make_node("MaxPool", ["m3"], ["q3"], "maxpool", kernel_shape=[2, 2]),
        helper.make_node("Concat", ["p3", "q3"], ["k3"], "concat", axis=1),
        helper.make_node("GlobalAveragePool", ["k3"], ["g3"], "global"),
        helper.make_node("Reshape", ["g3", "shape"], ["f3"], "flat"),
        helper.make_node("Gemm", ["f3", "wc", "bc"], ["z"], "classify"),
        helper.make_node("Softmax", ["z"], ["y"], "softmax", axis=-1),
    ]
    inputs = {"x": floats(2, 3, 12, 12)}
    return make_model(nodes, inputs, weights), inputs


def layers() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Products of matrices with constants and with each other, and a choice."""
    weights = {
        "w1": floats(32, 24, spread=0.2),
        "w2": floats(24, 40, spread=0.2),
        "mask": RNG.integers(0, 2, (6, 1)).astype(np.bool_),
        "low": floats(1, spread=0.5),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Transpose", ["m1"], ["t1"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["m1", "t1"], ["s1"], "scores"),
        helper.make_node("Where", ["mask", "s1", "low"], ["v1"], "choose"),
        helper.make_node("MatMul", ["v1", "m1"], ["h1"], "attend"),
        helper.make_node("MatMul", ["h1", "w2"], ["y"], "second"),
    ]
    inputs = {"x": floats(2, 6, 32)}
    return make_model(nodes, inputs, weights), inputs


def recurrent() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """An LSTM of both directions."""
    weights = {
        "w": floats(2, 24, 8, spread=0.3),
        "r": floats(2, 24, 6, spread=0.3),
        "b": floats(2, 48, spread=0.1),
    }
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], "lstm", hidden_size=6, direction="bidirectional")]
    inputs = {"x": floats(9, 1, 8)}
    return make_model(nodes, inputs, weights, 11), inputs


def moved() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of operators that move or compare elements and need no scale of their own."""
    weights = {
        "w": floats(4, 3, 1, 1, spread=0.5),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "value": np.array(0.25, np.float32),
        "factors": np.array([1, 1, 2, 2], np.float32),
        "rows": np.array([2, 0], np.int64),
        "axes": np.array([0], np.int64),
        "shape": np.array([0, -1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("MaxPool", ["c"], ["m"], "pool", kernel_shape=[2, 2]),
        helper.make_node("Pad", ["m", "pads", "value"], ["p"], "pad"),
        helper.make_node("Resize", ["p", "", "factors"], ["r"], "resize", mode="nearest"),
        helper.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 3, 1]),
        helper.make_node("Split", ["t"], ["first", "second"], "split", axis=3),
        helper.make_node("Gather", ["first", "rows"], ["g"], "gather", axis=1),
        helper.make_node("Unsqueeze", ["g", "axes"], ["u"], "unsqueeze"),
        helper.make_node("Squeeze", ["u", "axes"], ["s"], "squeeze"),
        helper.make_node("Reshape", ["s", "shape"], ["y"], "reshape"),
    ]
    inputs = {"x": floats(2, 3, 6, 6)}
    return make_model(nodes, inputs, weights), inputs
