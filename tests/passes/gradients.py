"""Models with Gradients in double, and numerical derivatives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ops.nn.training import DOMAIN

Array = np.ndarray[Any, Any]
OPSETS = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid(DOMAIN, 1)]
STEP = 1e-6


def sample(*shape: int, seed: int = 0) -> Array:
    """Return numbers from 0.5 to 1.5, all different, where every curve has a slope."""
    return np.asarray(np.random.default_rng([*shape, seed]).uniform(0.5, 1.5, shape))


def node(op: str, inputs: str, output: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return a node; ``_`` among the inputs is an absent one. It is called after its first output."""
    names = ["" if name == "_" else name for name in inputs.split()]
    outputs = output.split()
    return helper.make_node(op, names, outputs, name=outputs[0], domain=domain, **attributes)


def gradient(inputs: str, outputs: str, name: str = "slopes", **attributes: Any) -> onnx.NodeProto:
    """Return a Gradient."""
    return helper.make_node("Gradient", inputs.split(), outputs.split(), name=name, domain=DOMAIN, **attributes)


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 24,
) -> onnx.ModelProto:
    """Return a model of inputs of the shapes and types of these arrays."""
    graph = helper.make_graph(
        list(nodes),
        "differentiated",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *OPSETS[1:]]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(
    model: onnx.ModelProto | gx.Model, inputs: Mapping[str, Array], backend: gx.BackendType = gx.BackendType.CPU
) -> list[Array]:
    """Return the outputs of a run in which the host computed nothing."""
    model = model if isinstance(model, gx.Model) else gx.load(model)
    with gx.Worker(model, backend=backend) as worker:
        found = worker.run(dict(inputs))
        assert not worker.report().host_calls
    return list(found)


def differences(model: onnx.ModelProto, inputs: Mapping[str, Array], names: Iterable[str]) -> list[Array]:
    """Return the derivatives of the sum of the model's output by some of its inputs, by differences."""
    found = []
    with gx.Worker(gx.load(model), backend=gx.BackendType.CPU) as worker:

        def total(name: str, shift: float, place: tuple[int, ...]) -> float:
            moved = inputs[name].copy()
            moved[place] += shift
            return float(np.sum(worker.run({**inputs, name: moved})[0]))

        for name in names:
            slopes = np.zeros_like(inputs[name])
            for place in np.ndindex(*slopes.shape):
                slopes[place] = (total(name, STEP, place) - total(name, -STEP, place)) / (2 * STEP)
            found.append(slopes)
    return found


def branch(nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    """Return a body without inputs."""
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(output, TensorProto.DOUBLE, None)])
