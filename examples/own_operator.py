"""A model with a custom operator that gpuexec does not have."""

from __future__ import annotations

import numpy as np
import snake  # noqa: F401  registers com.example.Snake
from onnx import TensorProto, helper

import gpuexec as gx


def make_model() -> bytes:
    """Return a model of one Snake node: [n, 3, width] and three frequencies, which the model holds."""
    node = helper.make_node("Snake", ["x", "frequency"], ["y"], domain="com.example")
    graph = helper.make_graph(
        [node],
        "snake",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, "width"])],
        [helper.make_tensor("frequency", TensorProto.FLOAT, [3], [0.5, 1.0, 2.0])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def main() -> None:
    """Run it where there is a device for it, and say where that was."""
    with gx.Worker(gx.load(make_model())) as worker:
        x = np.linspace(-3, 3, 15, dtype=np.float32).reshape(1, 3, 5)
        print(worker.run(x)[0], worker.report().backend)


if __name__ == "__main__":
    main()
