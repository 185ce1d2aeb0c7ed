"""Small networks with weights drawn at random, and batches for them: perceptron, convolutions, transformer layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
_WIDTH, _HEADS, _LENGTH = 16, 2, 6
_SHAPES: dict[str, tuple[int, ...]] = {"mlp": (12,), "cnn": (3, 10, 10), "layer": (_LENGTH, _WIDTH)}


def make_mlp() -> ModelProto:
    """Return three dense layers, two of them Gemms with biases."""
    rng = np.random.default_rng(1)
    weights = {
        "w1": _draw(rng, 32, 12),
        "b1": _draw(rng, 32),
        "w2": _draw(rng, 32, 24),
        "b2": _draw(rng, 24),
        "w3": _draw(rng, 24, 5),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"], name="first", transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "w2", "b2"], ["c"], name="second"),
        helper.make_node("Tanh", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w3"], ["y"], name="third"),
    ]
    return _make("mlp", nodes, [5], weights)


def make_cnn() -> ModelProto:
    """Return convolutions, plain with a normalization, by channel and transposed, around a residual."""
    rng = np.random.default_rng(2)
    weights = {
        "w1": _draw(rng, 8, 3, 3, 3),
        "scale": rng.uniform(0.2, 5, 8).astype(np.float32),
        "bias": _draw(rng, 8),
        "mean": _draw(rng, 8),
        "variance": rng.uniform(0.5, 2, 8).astype(np.float32),
        "w2": _draw(rng, 8, 1, 3, 3),
        "b2": _draw(rng, 8),
        "w3": _draw(rng, 8, 4, 2, 2),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "variance"], ["b"], name="norm"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w2", "b2"], ["d"], name="depth", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["f", "w3"], ["y"], name="up", strides=[2, 2]),
    ]
    return _make("cnn", nodes, [4, 10, 10], weights)


def make_layer() -> ModelProto:
    """Return a layer of a transformer: attention of two heads, and two dense layers, each behind a normalization."""
    rng = np.random.default_rng(3)
    head = _WIDTH // _HEADS
    square = {name: _draw(rng, _WIDTH, _WIDTH) for name in ("wq", "wk", "wv", "wo")}
    weights: dict[str, Array] = {
        **square,
        "one": np.ones(_WIDTH, np.float32),
        "up": _draw(rng, _WIDTH, 4 * _WIDTH),
        "down": _draw(rng, 4 * _WIDTH, _WIDTH),
        "heads": np.array([0, 0, _HEADS, head]),
        "whole": np.array([0, 0, _WIDTH]),
        "root": np.array(head**-0.5, np.float32),
    }
    nodes = [helper.make_node("LayerNormalization", ["x", "one"], ["n"])]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["n", f"w{name}"], [f"{name}0"], name=name),
            helper.make_node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [f"{name}2"], perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q2", "k2"], ["s0"], name="scores"),
        helper.make_node("Mul", ["s0", "root"], ["s1"]),
        helper.make_node("Softmax", ["s1"], ["s2"], axis=-1),
        helper.make_node("MatMul", ["s2", "v2"], ["h0"], name="mix"),
        helper.make_node("Transpose", ["h0"], ["h1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["h1", "whole"], ["h2"]),
        helper.make_node("MatMul", ["h2", "wo"], ["h3"], name="out"),
        helper.make_node("Add", ["x", "h3"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "one"], ["m"]),
        helper.make_node("MatMul", ["m", "up"], ["u"], name="up"),
        helper.make_node("Gelu", ["u"], ["g"]),
        helper.make_node("MatMul", ["g", "down"], ["d"], name="down"),
        helper.make_node("Add", ["r", "d"], ["y"]),
    ]
    return _make("layer", nodes, [_LENGTH, _WIDTH], weights)


NETWORKS = {"mlp": make_mlp, "cnn": make_cnn, "layer": make_layer}


def draw_batches(name: str) -> list[Array]:
    """Return two batches of inputs of a network."""
    rng = np.random.default_rng(7)
    return [rng.standard_normal((count, *_SHAPES[name])).astype(np.float32) for count in (16, 4)]


def _draw(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def _make(name: str, nodes: Sequence[NodeProto], output: Sequence[int], weights: dict[str, Array]) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *_SHAPES[name]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", *output])],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
