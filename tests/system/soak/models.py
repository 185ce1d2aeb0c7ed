"""Models of soak tests, with inputs of changing shapes and the answers expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from examples.digits import HERE

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(0)


@dataclass
class SoakModel:
    """A model, the shapes its input takes, and what it answers for each (worked out once, by ONNX's own reference)."""

    name: str
    proto: onnx.ModelProto
    shapes: Sequence[tuple[int, ...]]
    _cases: dict[tuple[int, ...], tuple[Array, list[Array]]] = field(default_factory=dict)

    def case(self, shape: tuple[int, ...]) -> tuple[Array, list[Array]]:
        """Return an input of a shape, and the outputs for it."""
        if shape not in self._cases:
            x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
            name = self.proto.graph.input[0].name
            self._cases[shape] = (x, ReferenceEvaluator(self.proto).run(None, {name: x}))
        return self._cases[shape]


def digits() -> SoakModel:
    """The net that reads digits, over batches of 1 to 40."""
    return SoakModel("digits", onnx.load(HERE / "models" / "digits.onnx"), [(n, 1, 8, 8) for n in range(1, 41)])


def convolution() -> SoakModel:
    """Convolution, pooling and a softmax, over pictures of many sizes."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"], name="mean"),
        helper.make_node("Flatten", ["g"], ["f"], name="flatten"),
        helper.make_node("Softmax", ["f"], ["y"], name="softmax"),
    ]
    weights = {"w": _random(4, 3, 3, 3), "b": _random(4)}
    shapes = [(1 + n % 2, 3, 4 + n, 24 - n) for n in range(20)]
    return _make("convolution", nodes, ["n", 3, "h", "w_"], ["n", 4], weights, shapes)


def recurrent() -> SoakModel:
    """An LSTM over sequences of many lengths."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["h"], name="lstm", hidden_size=6),
        helper.make_node("Squeeze", ["h", "axis"], ["y"], name="squeeze"),
    ]
    weights = {"w": _random(1, 24, 5), "r": _random(1, 24, 6), "b": _random(1, 48), "axis": np.array([1])}
    shapes = [(1 + n, 1 + n % 3, 5) for n in range(20)]
    return _make("recurrent", nodes, ["s", "n", 5], ["s", "n", 6], weights, shapes)


MODELS: dict[str, Callable[[], SoakModel]] = {"digits": digits, "convolution": convolution, "recurrent": recurrent}


def exact_layers() -> tuple[onnx.ModelProto, Callable[[Array], tuple[Array, Array]]]:
    """Return a model whose results are the same bits in any order of sums, and NumPy's way to them.

    It multiplies by whole numbers, and asks which elements are not zero: how many, only the data tells.
    """
    first, second = (np.random.default_rng(each).integers(-3, 4, size) for each, size in ((1, (6, 9)), (2, (9, 4))))
    weights = {"first": first.astype(np.float32), "second": second.astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "second"], ["y"], name="second"),
        helper.make_node("NonZero", ["y"], ["found"], name="found"),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("found", TensorProto.INT64, [2, "m"]),
    ]
    proto = _wrap("exact", nodes, ["n", 6], outputs, weights)

    def expect(x: Array) -> tuple[Array, Array]:
        y = np.maximum(x @ weights["first"], 0) @ weights["second"]
        return y, np.stack(np.nonzero(y))

    return proto, expect


def exact_sum() -> tuple[onnx.ModelProto, Callable[[Array, Array], tuple[Array, Array]]]:
    """Return a model that adds a product to what it holds, in whole numbers, and NumPy's way to (y, total)."""
    weight = np.random.default_rng(3).integers(-3, 4, (6, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["a"], name="product"),
        helper.make_node("Add", ["a", "held"], ["total"], name="sum"),
        helper.make_node("Relu", ["total"], ["y0"], name="relu"),
    ]
    # So many that a graph of them is worth patching for each run; an even number of turns changes nothing.
    names = [*(f"y{n}" for n in range(16)), "y"]
    for before, after in pairwise(names):
        nodes.append(helper.make_node("MatMul", [before, "turn"], [after], name=f"turn {after}"))
    spec = helper.make_tensor_value_info
    outputs = [spec(name, TensorProto.FLOAT, ["n", 4]) for name in ("y", "total")]
    proto = _wrap(
        "sums", nodes, ["n", 6], outputs, {"weight": weight, "turn": np.eye(4, dtype=np.float32)[::-1].copy()}
    )
    proto.graph.input.append(spec("held", TensorProto.FLOAT, ["n", 4]))

    def expect(x: Array, held: Array) -> tuple[Array, Array]:
        total = x @ weight + held
        return np.maximum(total, 0), total

    return proto, expect


def _make(
    name: str,
    nodes: Sequence[Any],
    shape: Sequence[int | str],
    made: Sequence[int | str],
    weights: dict[str, Array],
    shapes: Sequence[tuple[int, ...]],
) -> SoakModel:
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)]
    return SoakModel(name, _wrap(name, nodes, shape, outputs, weights), shapes)


def _wrap(
    name: str, nodes: Sequence[Any], shape: Sequence[int | str], outputs: Sequence[Any], weights: dict[str, Array]
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    constants = [onnx.numpy_helper.from_array(array, key) for key, array in weights.items()]
    graph = helper.make_graph(list(nodes), name, inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _random(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32) * np.float32(0.4)
