"""Gradient nodes, against differences in double and derivatives worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ops.training import DOMAIN

Array = np.ndarray[Any, Any]
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
STEP = 1e-6


def sample(*shape: int, seed: int = 0) -> Array:
    """Numbers from 0.5 to 1.5, where everything here has a derivative."""
    return np.asarray(np.random.default_rng([*shape, seed]).uniform(0.5, 1.5, shape))


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def gradient(inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Gradient", inputs.split(), outputs.split(), name="slopes", domain=DOMAIN, **attributes)


def make(nodes: list[onnx.NodeProto], inputs: dict[str, Array], outputs: list[str], **constants: Any) -> bytes:
    graph = helper.make_graph(
        nodes,
        "differentiated",
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, x.shape) for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
    )
    return bytes(helper.make_model(graph, opset_imports=OPSETS, ir_version=10).SerializeToString())


def run(model: bytes, inputs: dict[str, Array], backend: gx.BackendType = gx.BackendType.CPU) -> list[Array]:
    with gx.Worker(gx.load(model), backend=backend) as worker:
        found = worker.run(inputs)
        report = worker.report()
    assert not report.host_calls
    return (
        list(found.values())
        if isinstance(found, dict)
        else list(found)
        if isinstance(found, (list, tuple))
        else [found]
    )


def differences(model: bytes, inputs: dict[str, Array], name: str) -> Array:
    """The derivative of the sum of the model's output by one input, by differences."""
    slopes = np.zeros_like(inputs[name])
    with gx.Worker(gx.load(model), backend=gx.BackendType.CPU) as worker:

        def total(shift: float, place: tuple[int, ...]) -> float:
            moved = inputs[name].copy()
            moved[place] += shift
            return float(np.sum(worker.run({**inputs, name: moved})))

        for place in np.ndindex(*slopes.shape):
            slopes[place] = (total(STEP, place) - total(-STEP, place)) / (2 * STEP)
    return slopes


A, B, ROW, SQUARE = sample(3, 4), sample(3, 4, seed=1), sample(4), sample(4, 4)
CURVES = ("Identity", "Neg", "Abs", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tanh", "Sigmoid", "Relu")
PAIRS = ((A, B), (A, ROW), (sample(3, 1), A))
CUBE, MIXED = sample(2, 3, 4), sample(2, 3, 5)
Example = tuple[str, list[onnx.NodeProto], dict[str, Array], dict[str, Any]]


def weighted(name: str, inputs: dict[str, Array], weight: Array, op: str = "", **more: Any) -> Example:
    """An operator whose result is weighted, so that its elements don't count alike."""
    constants = {key: more.pop(key) for key in ("to", "axes") if key in more and isinstance(more[key], np.ndarray)}
    made = node(op or name, " ".join([*inputs, *constants]), "y0", **more)
    return name, [made, node("Mul", "y0 weight", "y")], inputs, {**constants, "weight": weight}


def make_gemm(transposed: int) -> Example:
    a_turned, b_turned = transposed & 1, transposed >> 1
    inputs = {
        "a": sample(4, 3) if a_turned else A,
        "b": sample(5, 4) if b_turned else sample(4, 5),
        "c": sample(5),
    }
    name, attributes = f"Gemm{transposed}", {"transA": a_turned, "transB": b_turned, "alpha": 0.5, "beta": 2.0}
    return weighted(name, inputs, sample(3, 5), "Gemm", **attributes)


LAST = np.array([-1])
CASES: list[Example] = [
    *((op, [node(op, "a", "y")], {"a": A - 1 if op in ("Abs", "Relu", "Tanh", "Sigmoid") else A}, {}) for op in CURVES),
    *(weighted(f"{op}{x.shape}{y.shape}", {"a": x, "b": y}, B, op)
      for op in ("Add", "Sub", "Mul", "Div", "Sum") for x, y in PAIRS),
    ("square", [node("Mul", "a a", "y")], {"a": A}, {}),
    ("Pow", [node("Pow", "a three", "y")], {"a": A}, {"three": np.float32(3)}),
    ("Where", [node("Greater", "a b", "c"), node("Where", "c a b", "w"), node("Exp", "w", "y")], {"a": A, "b": B}, {}),
    ("step", [node("Cast", "a", "s", to=7), node("Cast", "s", "t", to=11), node("Mul", "t a", "y")], {"a": A * 3}, {}),
    weighted("MatMul", {"a": A, "b": SQUARE}, B),
    weighted("batches", {"a": CUBE, "b": sample(4, 5)}, MIXED, "MatMul"),
    *map(make_gemm, range(4)),
    weighted("Transpose", {"a": CUBE}, sample(4, 2, 3), perm=[2, 0, 1]),
    weighted("reversed", {"a": CUBE}, sample(4, 3, 2), "Transpose"),
    weighted("Reshape", {"a": A}, sample(2, 6), to=np.array([2, 6])),
    weighted("Unsqueeze", {"a": A}, sample(3, 4, 5), axes=LAST),
    weighted("Squeeze", {"a": sample(3, 1)}, sample(3), axes=LAST),
    weighted("Flatten", {"a": sample(3, 2, 2)}, B),
    weighted("Expand", {"a": sample(3, 1)}, CUBE, to=np.array([2, 3, 4])),
    *(weighted(f"{op}{keeps}", {"a": A}, sample(3, 1) if keeps else sample(3), op, axes=LAST, keepdims=keeps)
      for op in ("ReduceSum", "ReduceMean") for keeps in (0, 1)),
    ("ReduceMean_all", [node("ReduceMean", "a", "s", keepdims=0), node("Mul", "s s", "y")], {"a": A}, {}),
    *(weighted(op, {"a": A}, B, axis=0) for op in ("Softmax", "LogSoftmax")),
    ("chain", [node("MatMul", "a b", "h"), node("Tanh", "h", "t"), node("Mul", "t t", "u"), node("Add", "u a", "y")],
     {"a": sample(4, 4, seed=3), "b": SQUARE}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes", "inputs", "constants"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=lambda each: each.name)
def test_slopes_are_those_of_differences(
    backend: gx.BackendType, name: str, nodes: list[onnx.NodeProto], inputs: dict[str, Array], constants: dict[str, Any]
) -> None:
    slopes = [f"slope_{key}" for key in inputs]
    whole = gradient(" ".join(inputs), " ".join(slopes), xs=list(inputs), y="y")
    found = run(make([*nodes, whole], inputs, slopes, **constants), inputs, backend)
    forward = make(nodes, inputs, ["y"], **constants)
    for key, got in zip(inputs, found, strict=True):
        np.testing.assert_allclose(got, differences(forward, inputs, key), rtol=1e-6, atol=1e-7, err_msg=key)


def test_slopes_pass_a_cast_between_floats() -> None:
    a = np.round(A * 4)  # the same in float
    nodes = [node("Cast", "a", "s", to=1), node("Cast", "s", "t", to=11), node("Mul", "t a", "y")]
    (slope,) = run(make([*nodes, gradient("a", "g", xs=["a"], y="y")], {"a": a}, ["g"]), {"a": a})
    np.testing.assert_array_equal(slope, 2 * a)


def test_slopes_at_other_values() -> None:
    """y = a * b + a, asked at p and q: q + 1 and p; y itself stays what it is."""
    nodes = [node("Mul", "a b", "m"), node("Add", "m a", "y")]
    nodes.append(gradient("p q", "by_a by_b", xs=["a", "b"], y="y"))
    inputs = {"a": A, "b": B, "p": A + 2, "q": B + 3}
    y, by_a, by_b = run(make(nodes, inputs, ["y", "by_a", "by_b"]), inputs)
    np.testing.assert_allclose(y, A * B + A)
    np.testing.assert_allclose(by_a, inputs["q"] + 1)
    np.testing.assert_allclose(by_b, inputs["p"])


def test_what_is_held_has_no_slope_and_a_value_between_may_be_asked_for() -> None:
    nodes = [node("Exp", "a", "h"), node("Mul", "h b", "y"), gradient("h b", "by_h", xs=["h"], zs=["b"], y="y")]
    (by_h,) = run(make(nodes, {"a": A, "b": B}, ["by_h"]), {"a": A, "b": B})
    np.testing.assert_allclose(by_h, B)


def test_second_derivatives() -> None:
    """The sum of a^3 + a * row: 3 a^2 + row, then 6 a and, by the row, ones summed over rows."""
    nodes = [
        node("Mul", "a a", "s"),
        node("Mul", "s a", "c"),
        node("Mul", "a r", "d"),
        node("Add", "c d", "y"),
        gradient("a r", "by_a", xs=["a"], zs=["r"], y="y"),
        helper.make_node(
            "Gradient", ["a", "r"], ["by_aa", "by_ar"], name="twice", domain=DOMAIN, xs=["a", "r"], y="by_a"
        ),
    ]
    inputs = {"a": A, "r": ROW}
    by_a, by_aa, by_ar = run(make(nodes, inputs, ["by_a", "by_aa", "by_ar"]), inputs)
    np.testing.assert_allclose(by_a, 3 * A**2 + ROW)
    np.testing.assert_allclose(by_aa, 6 * A)
    np.testing.assert_allclose(by_ar, np.full(4, 3.0))


def test_what_does_not_matter_has_slope_0() -> None:
    nodes = [node("Exp", "a", "y"), gradient("a b", "by_a by_b", xs=["a", "b"], y="y")]
    by_a, by_b = run(make(nodes, {"a": A, "b": ROW}, ["by_a", "by_b"]), {"a": A, "b": ROW})
    np.testing.assert_allclose(by_a, np.exp(A))
    np.testing.assert_array_equal(by_b, np.zeros(4))


def asked(op: str, inputs: str, given: str = "a", **names: Any) -> list[onnx.NodeProto]:
    return [node(op, inputs, "y"), gradient(given, "g", **{"xs": ["a"], "y": "y", **names})]


REFUSALS: list[tuple[list[onnx.NodeProto], type[Exception], str]] = [
    (asked("Shrink", "a"), gx.UnsupportedError, "Gradient 'slopes': Shrink 'y' has no derivative here"),
    (asked("Exp", "a", y="z"), gx.ModelError, "Gradient 'slopes': input %z is made by no node"),
    (asked("Exp", "a", xs=["b"]), gx.ModelError, "Gradient 'slopes': input %b is made by no node"),
    (asked("Exp", "a", given="a a"), gx.ModelError, "an input for each of xs and zs, got 2"),
]


@pytest.mark.parametrize(("nodes", "error", "message"), REFUSALS, ids=lambda item: str(item)[:20])
def test_load_refuses(nodes: list[onnx.NodeProto], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gx.load(make(nodes, {"a": A}, ["g"]))


def test_operators_off_the_way_need_no_rule() -> None:
    nodes = [node("Shrink", "b", "e"), node("Mul", "a e", "y"), gradient("a b", "g", xs=["a"], zs=["b"], y="y")]
    e, g = run(make(nodes, {"a": A, "b": B}, ["e", "g"]), {"a": A, "b": B})
    np.testing.assert_allclose(g, e)
