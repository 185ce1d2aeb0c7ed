"""Good files of weights and states, and the models they belong to."""

from __future__ import annotations

import functools
import io

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save

WIDTH = 48
# One that is mapped, one that is small enough to be read at once, one of another type.
WEIGHTS = {"w": (WIDTH, WIDTH), "b": (WIDTH,), "h": (WIDTH, WIDTH)}


def make_arrays(seed: int) -> dict[str, np.ndarray]:
    """Return weights by name."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    return arrays | {"h": arrays["h"].astype(np.float16)}


@functools.cache
def make_model() -> onnx.ModelProto:
    """Return ``next = held + (x @ w + b) @ h`` and ``y = -next``; ``next`` may be kept as ``held`` from run to run."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="first"),
        helper.make_node("Add", ["p", "b"], ["q"], name="shift"),
        helper.make_node("Cast", ["h"], ["wide"], name="widen", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["q", "wide"], ["r"], name="second"),
        helper.make_node("Add", ["held", "r"], ["next"], name="sum"),
        helper.make_node("Neg", ["next"], ["y"], name="turn"),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, WIDTH]) for name in ("x", "held", "next", "y")]
    initializers = [numpy_helper.from_array(array, name) for name, array in make_arrays(0).items()]
    graph = helper.make_graph(nodes, "weighted", ports[:2], ports[2:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@functools.cache
def make_safetensors() -> bytes:
    """Return other weights as safetensors."""
    return save(make_arrays(1), {"of": "a test"})


@functools.cache
def make_npz() -> bytes:
    """Return other weights as an ``.npz`` file."""
    file = io.BytesIO()
    np.savez(file, **make_arrays(1))
    return file.getvalue()


@functools.cache
def make_state() -> bytes:
    """Return a state as safetensors."""
    return save({"held": np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)})


@functools.cache
def make_beside() -> bytes:
    """Return the content of all weights one behind another, as external data."""
    return b"".join(array.tobytes() for array in make_arrays(0).values())
