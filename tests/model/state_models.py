"""Small models with memories: a running sum, a growing cache, recurrent layers; and their results fed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from tests.model.small_models import DOMAIN, GATES, make_model

Array = np.ndarray[Any, Any]
WIDTH = 3


def running_sum(shape: tuple[int | str, ...] = ("n", WIDTH)) -> gx.Model:
    """total = x + held, y = 2 * total; held <- total."""
    nodes = [
        helper.make_node("Add", ["x", "held"], ["total"], name="add"),
        helper.make_node("Mul", ["total", "two"], ["y"], name="double"),
    ]
    return make_model(nodes, {"x": shape, "held": shape}, {"y": shape, "total": shape}, two=np.float32(2)).bind_state(
        {"total": "held"}
    )


def gated_sum() -> tuple[gx.Model, int]:
    """total = gate(x) + held, y = 2 * total; and the number of the gate."""
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["passed"], name="gate", domain=DOMAIN, number=number),
        helper.make_node("Add", ["passed", "held"], ["total"], name="add"),
        helper.make_node("Mul", ["total", "two"], ["y"], name="double"),
    ]
    shape = ("n", WIDTH)
    model = make_model(nodes, {"x": shape, "held": shape}, {"y": shape, "total": shape}, two=np.float32(2))
    return model.bind_state({"total": "held"}), number


def cache(axis: int = 1, *, is_read: bool = True, is_cut: bool = False) -> gx.Model:
    """present = [past, 2 * x] along an axis, y = its sum there; unbound.

    ``is_read``: what is there before is an output too, doubled. ``is_cut``: so are the sums that are above 0, which the
    host has to count in the middle of a run.
    """
    past: list[int | str] = [2, 2, WIDTH]
    rows: list[int | str] = list(past)
    past[axis], rows[axis] = "past", "new"
    whole = [*past[:axis], "all", *past[axis + 1 :]]
    left = [*past[:axis], *past[axis + 1 :]]
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["rows"], name="double"),
        helper.make_node("Concat", ["past", "rows"], ["present"], name="join", axis=axis),
        helper.make_node("ReduceSum", ["present", "axes"], ["y"], name="sum", keepdims=0),
    ]
    outputs: dict[str, Any] = {"y": left, "present": whole}
    if is_read:
        nodes.append(helper.make_node("Mul", ["past", "two"], ["before"], name="double before"))
        outputs["before"] = past
    if is_cut:
        nodes += [
            helper.make_node("Greater", ["y", "zero"], ["is above"], name="compare"),
            helper.make_node("Compress", ["y", "flat"], ["above"], name="take"),
        ]
        nodes.insert(-1, helper.make_node("Reshape", ["is above", "all"], ["flat"], name="flatten"))
        outputs["above"] = ["count"]
    constants: dict[str, Array] = {"two": np.array(2, np.float32), "axes": np.array([axis], np.int64)}
    if is_cut:
        constants |= {"zero": np.array(0, np.float32), "all": np.array([-1], np.int64)}
    return make_model(nodes, {"x": rows, "past": past}, outputs, **constants)


def caches(layers: int) -> gx.Model:
    """present.i = [past.i, (i + 2) * x] along axis 1, and y.i its sum there, of some layers; unbound."""
    nodes = []
    past, whole = ["batch", "past", WIDTH], ["batch", "all", WIDTH]
    inputs: dict[str, Any] = {"x": ["batch", "new", WIDTH]}
    outputs: dict[str, Any] = {}
    constants: dict[str, Array] = {"axes": np.array([1], np.int64)}
    for layer in range(layers):
        constants[f"factor.{layer}"] = np.array(layer + 2, np.float32)
        nodes += [
            helper.make_node("Mul", ["x", f"factor.{layer}"], [f"rows.{layer}"], name=f"scale {layer}"),
            helper.make_node(
                "Concat", [f"past.{layer}", f"rows.{layer}"], [f"present.{layer}"], name=f"join {layer}", axis=1
            ),
            helper.make_node(
                "ReduceSum", [f"present.{layer}", "axes"], [f"y.{layer}"], name=f"sum {layer}", keepdims=0
            ),
        ]
        inputs[f"past.{layer}"] = past
        outputs |= {f"y.{layer}": ["batch", WIDTH], f"present.{layer}": whole}
    return make_model(nodes, inputs, outputs, **constants)


def masked_attention() -> gx.Model:
    """y = softmax(x @ keys' + mask) @ keys over keys = present = [past, x] of a batch; a mask of 0 takes a key out."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], name="join", axis=1),
        helper.make_node("Transpose", ["present"], ["keys"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"], name="meet"),
        helper.make_node("Sub", ["mask", "one"], ["missing"], name="less one"),
        helper.make_node("Mul", ["missing", "much"], ["bias"], name="make large"),
        helper.make_node("Unsqueeze", ["bias", "axes"], ["of all"], name="widen"),
        helper.make_node("Add", ["scores", "of all"], ["masked"], name="take out"),
        helper.make_node("Softmax", ["masked"], ["weights"], name="weigh", axis=-1),
        helper.make_node("MatMul", ["weights", "present"], ["y"], name="mix"),
    ]
    past, rows, whole = ["batch", "past", WIDTH], ["batch", "new", WIDTH], ["batch", "all", WIDTH]
    inputs = {"x": rows, "past": past, "mask": ["batch", "all"]}
    constants: dict[str, Array] = {"one": np.array(1, np.float32), "much": np.array(1e9, np.float32)}
    constants["axes"] = np.array([1], np.int64)
    return make_model(nodes, inputs, {"y": rows, "present": whole}, **constants)


def recurrent() -> bytes:
    """An LSTM and a GRU behind it, neither with a state of its own; the GRU's last h is used and is an output too."""
    rng = np.random.default_rng(7)
    shapes = {"W": (1, 16, 5), "R": (1, 16, 4), "B": (1, 32), "W2": (1, 9, 4), "R2": (1, 9, 3)}
    constants: dict[str, Array] = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    constants["axes"] = np.array([1], np.int64)
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["a"], name="lstm", hidden_size=4),
        helper.make_node("Squeeze", ["a", "axes"], ["b"], name="squeeze"),
        helper.make_node("GRU", ["b", "W2", "R2"], ["", "h"], name="gru", hidden_size=3),
        helper.make_node("Neg", ["h"], ["y"], name="negate"),
    ]
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", 5])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "batch", 3]) for name in ("y", "h")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    content: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return content
