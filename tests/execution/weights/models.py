"""Models with weights of some size, in files beside them, in their own file, and as programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx

SIDE = 200


def make_chain(layers: int, side: int = SIDE, seed: int = 0) -> onnx.ModelProto:
    """Return ``y = x @ w0 @ w1 ...``, of weights w0, w1, ... of ``[side, side]``."""
    rng = np.random.default_rng(seed)
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"m{i}") for i in range(layers)]
    weights = [
        numpy_helper.from_array((rng.standard_normal((side, side)) / np.sqrt(side)).astype(np.float32), f"w{i}")
        for i in range(layers)
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in "xy"]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def save_beside(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a model with its weights in ``weights.bin``; return its path."""
    path = folder / "beside.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def save_inside(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a model in one file; return its path."""
    path = folder / "inside.onnx"
    onnx.save(model, path)
    return path


def save_program(model: onnx.ModelProto, folder: Path) -> Path:
    """Write a program of a model; return its path."""
    path = folder / "model.gxp"
    gx.Program.build({"forward": gx.load(save_beside(model, folder))}, backend=gx.BackendType.CPU).save(path)
    return path
