"""Chains of matrix products, whose results can't be made in place, and plans of them."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from onnx import helper

import gpuexec as gx
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.model.small_models import make_model

FLOAT = np.dtype(np.float32)


def tower(height: int, side: int = 64) -> gx.Model:
    """A chain of products, whose results can't be made in place."""
    nodes = [
        helper.make_node(
            "MatMul", [f"v{i}" if i else "x", "w"], ["y" if i == height - 1 else f"v{i + 1}"], name=f"m{i}"
        )
        for i in range(height)
    ]
    return make_model(nodes, {"x": ("n", side)}, {"y": ("n", side)}, w=np.eye(side, dtype=np.float32))


def plan_of(model: gx.Model, shape: tuple[int, ...], target: str = "cpu") -> Plan:
    """Return the plan of a model whose inputs all have this shape."""
    specs = {value.name: TensorSpec(shape, FLOAT) for value in model.graph.inputs}
    return plan_graph(model.graph, specs, Target.named(target), model.dims).plan


def tower_proto() -> onnx.ModelProto:
    """A tower of four products as a file has it, with a free dimension."""
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(["x", "a", "b", "c", "y"])]
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("x", 1, ("n", 64))],
        [helper.make_tensor_value_info("y", 1, ("n", 64))],
        [helper.make_tensor("w", 1, (64, 64), np.eye(64, dtype=np.float32).tobytes(), raw=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
