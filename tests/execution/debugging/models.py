"""A small model for diagnoses, with faults made on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from gpuexec.ir.graphs import Graph, Node
from gpuexec.ir.operator import Emitter
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.elementwise_unary import Relu, Tanh  # type: ignore[attr-defined]
from gpuexec.passes import Pass

Array = np.ndarray[Any, Any]
TEXT = """
<ir_version: 10, opset_import: ["": 21]>
agraph (float[n, 4] x) => (float[n, 3] y)
<float[4, 5] w = {0.5, -1, 2, 0.25, 1, 3, -2, 1, 0.5, 0, 1, 1, -1, 2, 0.5, -0.5, 2, 1, -3, 1},
 float[5, 3] v = {1, 0, -1, 2, 1, 0.5, -1, 0, 1, 0.5, 0.5, 2, -2, 1, 0}> {
  [first] a = MatMul (x, w)
  [tanh] b = Tanh (a)
  [second] c = MatMul (b, v)
  [softmax] y = Softmax <axis = -1> (c)
}
"""
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


def parse() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def wrong_pass(name: str = "relax") -> Pass:
    """Return a pass that takes Relu for Tanh."""

    def relax(graph: Graph) -> Graph:
        """Take Relu for Tanh."""
        return replace(graph, nodes=tuple([_relaxed(node) for node in graph.nodes]))

    return Pass(name, relax)


def wrong_plan_pass() -> Pass:
    """Return one that does so once specs are known."""

    def relax(graph: Graph, specs: dict[str, TensorSpec]) -> Graph:
        """Take Relu for Tanh."""
        assert specs["x"].shape[1] == 4
        return replace(graph, nodes=tuple([_relaxed(node) for node in graph.nodes]))

    return Pass("relax_late", relax, needs_specs=True)


def _relaxed(node: Node) -> Node:
    return replace(node, operator=Relu()) if isinstance(node.operator, Tanh) else node


@contextmanager
def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a device copy where it is to take the hyperbolic tangent: what a wrong kernel looks like."""

    def lower(self: Any, emit: Emitter, inputs: Any, outputs: Any) -> None:
        emit.copy(outputs[0], inputs[0])

    with monkeypatch.context() as patched:
        patched.setattr(Tanh, "lower", lower)
        # Within the kernel of the product there would be nothing to copy.
        patched.setattr(Tanh, "as_pointwise", lambda self, inputs: None)
        yield
