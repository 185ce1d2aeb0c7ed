"""Small models of a product or a convolution, all of which a library can compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from gpuexec.model.loading import load
from gpuexec.model.model import Model

_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def ramp(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return small integers of both signs, whose sums of products are exact in any order."""
    size = int(np.prod(shape))
    return ((np.arange(size) * 7 % 11) - 5).reshape(shape).astype(dtype)


def make_model(nodes: list[Any], x: tuple[Any, ...], weights: dict[str, np.ndarray], dtype: str = "float32") -> Model:
    """Return a model of the input ``x`` and the output ``y``."""
    kind = _TYPES[dtype]
    graph = helper.make_graph(
        nodes,
        "library",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString())


def product(rows: Any = 5, inner: int = 6, columns: int = 7, dtype: str = "float32") -> Model:
    """Return ``y = relu(x @ w + b)``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    weights = {"w": ramp(inner, columns, dtype=dtype), "b": ramp(columns, dtype=dtype)}
    return make_model(nodes, (rows, inner), weights, dtype)


def expect_product(x: np.ndarray, columns: int = 7) -> np.ndarray:
    w, b = (ramp(*shape).astype(np.float32) for shape in ((x.shape[1], columns), (columns,)))
    return np.maximum(x.astype(np.float32) @ w + b, 0).astype(x.dtype)  # type: ignore[no-any-return]
