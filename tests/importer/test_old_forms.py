"""Operator forms before opset 7, as nodes of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx

Array = np.ndarray[Any, Any]
F32 = np.float32


def ramp(*shape: int, dtype: Any = F32) -> Array:
    return (np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape) - 5).astype(dtype)


X = ramp(2, 3, 4)
ROW, CHANNEL, PLANE = ramp(4) / 2, ramp(3) / 2, ramp(3, 4) / 2
YES = ramp(2, 3, 4) > 4
STATISTICS = [ramp(3) + 6, ramp(3), ramp(3) / 4, ramp(3) ** 2]
BY_CHANNEL = [each[:, None] for each in STATISTICS]


def normalize(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    return np.asarray((x - mean) / np.sqrt(variance + F32(1e-5)) * scale + bias, F32)


def case(id: str, opset: int, op: str, inputs: list[Array], attributes: dict[str, Any], expected: Array) -> Any:
    return pytest.param(opset, op, inputs, attributes, expected, id=id)


CASES = [
    case("add_same", 6, "Add", [X, X], {}, X + X),
    case("add_suffix", 6, "Add", [X, PLANE], {"broadcast": 1}, X + PLANE),
    case("add_scalar", 6, "Add", [X, ROW[0]], {"broadcast": 1}, X + ROW[0]),
    case("add_axis", 6, "Add", [X, CHANNEL], {"broadcast": 1, "axis": 1}, X + CHANNEL[:, None]),
    case("add_first_axes", 6, "Add", [X, ramp(2, 3)], {"broadcast": 1, "axis": 0}, X + ramp(2, 3)[..., None]),
    case("add_last_axis", 6, "Add", [X, ROW], {"broadcast": 1, "axis": 2}, X + ROW),
    case("add_negative_axis", 6, "Add", [X, CHANNEL], {"broadcast": 1, "axis": -2}, X + CHANNEL[:, None]),
    case("add_scalar_at_axis", 6, "Add", [X, ROW[0]], {"broadcast": 1, "axis": 0}, X + ROW[0]),
    case("add_axis_unused", 6, "Add", [X, X], {"axis": 1}, X + X),
    case("sub_1", 1, "Sub", [X, CHANNEL], {"broadcast": 1, "axis": 1, "consumed_inputs": [0, 0]}, X - CHANNEL[:, None]),
    case("mul", 6, "Mul", [X, CHANNEL], {"broadcast": 1, "axis": 1}, X * CHANNEL[:, None]),
    case("div", 6, "Div", [X, CHANNEL + 7], {"broadcast": 1, "axis": 1}, X / (CHANNEL + 7)[:, None]),
    case("pow", 5, "Pow", [X, ramp(3) + 5], {"broadcast": 1, "axis": 1}, X ** (ramp(3) + 5)[:, None]),
    case("less", 6, "Less", [X, CHANNEL], {"broadcast": 1, "axis": 1}, CHANNEL[:, None] > X),
    case("greater", 6, "Greater", [X, ROW], {"broadcast": 1}, X > ROW),
    case("equal", 6, "Equal", [X.astype(int), ramp(3, dtype=int)], {"broadcast": 1, "axis": 1}, ramp(3)[:, None] == X),
    case("and", 6, "And", [YES, YES[0, :, 0]], {"broadcast": 1, "axis": 1}, YES & YES[0, :, :1]),
    case("or", 6, "Or", [YES, YES[1, :, 0]], {"broadcast": 1, "axis": 1}, YES | YES[1, :, :1]),
    case("xor", 6, "Xor", [YES, YES[1, 0]], {"broadcast": 1}, YES ^ YES[1, 0]),
    case("prelu_channels", 6, "PRelu", [X, CHANNEL], {}, np.where(X < 0, X * CHANNEL[:, None], X)),
    case("prelu_shared", 6, "PRelu", [X, ROW[:1]], {}, np.where(X < 0, X * ROW[0], X)),
    case("prelu_vector", 1, "PRelu", [ramp(9), ROW[:1]], {}, np.where(ramp(9) < 0, ramp(9) * ROW[0], ramp(9))),
    case("gemm", 6, "Gemm", [PLANE, PLANE.T, CHANNEL], {"broadcast": 1}, PLANE @ PLANE.T + CHANNEL),
    case("batchnorm", 6, "BatchNormalization", [X, *STATISTICS], {"is_test": 1}, normalize(X, *BY_CHANNEL)),
    case(
        "batchnorm_1",
        1,
        "BatchNormalization",
        [X, *STATISTICS],
        {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]},
        normalize(X, *BY_CHANNEL),
    ),
    case(
        "batchnorm_trains",
        6,
        "BatchNormalization",
        [X, *STATISTICS],
        {},
        normalize(X, *BY_CHANNEL[:2], X.mean((0, 2), keepdims=True), X.var((0, 2), keepdims=True)),
    ),
    case("dropout", 6, "Dropout", [X], {"is_test": 1, "ratio": 0.5}, X),
    case("cast", 5, "Cast", [X], {"to": "INT32"}, X.astype(np.int32)),
    case("cast_float", 1, "Cast", [X.astype(np.int64)], {"to": "FLOAT"}, X),
    case("cast_double", 1, "Cast", [X], {"to": "DOUBLE"}, X.astype(np.float64)),
    case("concat", 3, "Concat", [X, X], {}, np.concatenate([X, X], 1)),
    case("concat_axis", 1, "Concat", [X, X], {"axis": 0}, np.concatenate([X, X])),
    case("reshape", 4, "Reshape", [X], {"shape": [0, -1]}, X.reshape(2, 12)),
    case(
        "pad",
        1,
        "Pad",
        [PLANE],
        {"paddings": [1, 0, 0, 2], "value": 1.5},
        np.pad(PLANE, ((1, 0), (0, 2)), constant_values=1.5),
    ),
    case("split", 1, "Split", [X], {"axis": 1, "split": [1, 2]}, X[:, :1]),
    case("selu", 1, "Selu", [X], {}, (F32(1.0507) * np.where(X > 0, X, F32(1.6732) * np.expm1(X))).astype(F32)),
    case("lp_pool", 1, "LpPool", [X], {"kernel_shape": [2], "p": 1.0}, np.abs(X[..., 1:]) + np.abs(X[..., :-1])),
    case("global_lp_pool", 1, "GlobalLpPool", [X], {"p": 1.0}, np.abs(X).sum(2, keepdims=True)),
    case(
        "upsample",
        1,
        "Upsample",
        [X[None]],
        {"height_scale": 2.0, "width_scale": 3.0, "mode": "nearest"},
        X[None].repeat(2, 2).repeat(3, 3),
    ),
    case("relu", 1, "Relu", [X], {"consumed_inputs": [0]}, np.maximum(X, 0)),
    case("sum", 1, "Sum", [X, X, X], {"consumed_inputs": [0, 0, 0]}, 3 * X),
    case("clip", 1, "Clip", [X], {"max": 2.0}, np.minimum(X, 2)),
]


def make_model(opset: int, op: str, inputs: list[Array], attributes: dict[str, Any], outputs: int = 1) -> bytes:
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{index}" for index in range(outputs)], "node", **attributes)
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    # The importer takes the element type of an output from its operator, whatever is declared.
    answer = helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "old", ports, [answer])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3).SerializeToString()


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR], ids=["cpu", "simulator"])
@pytest.mark.parametrize(("opset", "op", "inputs", "attributes", "expected"), CASES)
def test_old_form_keeps_its_meaning(
    opset: int, op: str, inputs: list[Array], attributes: dict[str, Any], expected: Array, backend: gx.BackendType
) -> None:
    outputs = 2 if op == "Split" else 1
    with gx.Worker(gx.load(make_model(opset, op, inputs, attributes, outputs)), backend=backend) as worker:
        got = worker.run([np.array(each) for each in inputs])[0]
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_old_recurrent_form_is_the_newer_one(kind: str, opset: int) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    inputs = [ramp(3, 2, 4) / 8, ramp(1, 5 * gates, 4) / 50, ramp(1, 5 * gates, 5) / 90]
    answers = []
    for version, attributes in ((opset, {"output_sequence": 1}), (14, {})):
        model = gx.load(make_model(version, kind, inputs, {"hidden_size": 5, **attributes}))
        with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
            answers.append(worker.run(inputs)[0])
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("Dropout", [X], {}, "inference only"),
        ("Dropout", [X], {"is_test": 0}, "inference only"),
        ("Tile", [X, np.array(2.0, F32), np.array(0.0, F32)], {}, "tiles and axis"),
        ("LpPool", [X], {"kernel_shape": [2], "p": 1.5}, "integer, got 1.5"),
        ("Cast", [X], {"to": "COMPLEX64"}, "complex64"),
    ],
    ids=["dropout", "dropout_is_test", "tile", "lp_pool", "cast"],
)
def test_old_form_that_can_not_be_kept_is_refused(
    op: str, inputs: list[Array], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(gx.UnsupportedError, match=message) as caught:
        gx.load(make_model(1, op, inputs, attributes))
    assert "node" in str(caught.value)


def test_axis_beyond_the_rank_is_refused_by_name() -> None:
    model = gx.load(make_model(6, "Add", [X, CHANNEL], {"broadcast": 1, "axis": -4}))
    with (
        gx.Worker(model, backend=gx.BackendType.CPU) as worker,
        pytest.raises(gx.InputError, match=r"'node.align'.*axis expects -3 to 3, got -4"),
    ):
        worker.run([X, CHANNEL])


def test_view_in_front_takes_no_name_of_the_model() -> None:
    nodes = [
        helper.make_node("Neg", ["b"], ["b.aligned"], "first.align"),
        helper.make_node("Add", ["x", "b"], ["t"], "first", broadcast=1, axis=1),
        helper.make_node("Add", ["t", "b"], ["u"], "second", broadcast=1, axis=1),
        helper.make_node("Add", ["u", "b.aligned"], ["y"], "third", broadcast=1, axis=1),
    ]
    ports = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", X.shape), ("b", (3,)))]
    graph = helper.make_graph(nodes, "old", ports, [helper.make_tensor_value_info("y", 1, X.shape)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    with gx.Worker(gx.load(model.SerializeToString()), backend=gx.BackendType.CPU) as worker:
        np.testing.assert_array_equal(worker.run([X, CHANNEL])[0], X + CHANNEL[:, None])
