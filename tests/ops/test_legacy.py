"""Operators removed from ONNX: Affine and Crop by cases, all of them in models of old opsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.errors import GpuexecError, InputError, UnsupportedError
from gpuexec.ir.spec import dtype_row, dtypes_of
from gpuexec.ops.tensor.legacy import Crop
from tests.ops.harness import Array, Case, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")
DEVICES = [gx.BackendType.CPU, gx.BackendType.SIMULATOR]


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape]).normal(0, 2, shape).astype(np.float32).astype(dtype)


def affine(id: str, x: Array, **attributes: float) -> Case:
    wide: Array = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    alpha, beta = (float(np.float32(attributes.get(name, default))) for name, default in (("alpha", 1), ("beta", 0)))
    with np.errstate(all="ignore"):
        y = (alpha * wide + beta).astype(x.dtype)
    return Case(id, "Affine", (x,), attributes, expected=(y,))


def crop(id: str, x: Array, y: Array, **attributes: Any) -> Case:
    return Case(id, "Crop", (x,), attributes, expected=(y,))


X = numbers(2, 3, 5, 6)
CASES = [
    *(affine(f"affine_{dtype.name}", numbers(3, 4, dtype=dtype), alpha=1.7, beta=-0.3) for dtype in FLOATS),
    affine("affine_defaults", X),
    affine("affine_special_values", np.array([np.nan, np.inf, -np.inf, -0.0, 3e38], np.float32), alpha=-2.0, beta=1.0),
    affine("affine_scalar", numbers(), alpha=2.0),
    affine("affine_empty", numbers(0, 3), beta=2.0),
    affine("affine_strided", numbers(6, 8)[::-2, ::3].T, alpha=0.5, beta=0.25),
    crop("crop_borders", X, X[:, :, 2:4, 1:3], border=[1, 2, 3, 1]),
    crop("crop_nothing", X, X, border=[0, 0, 0, 0]),
    crop("crop_defaults", X, X),
    crop("crop_to_extents", X, X[:, :, 2:5, 1:3], border=[1, 2, 0, 0], scale=[3, 2]),
    crop("crop_to_nothing", X, X[:, :, 2:2, 1:6], border=[1, 2, 0, 3]),
    crop("crop_strided", X[:, :, ::-1, ::2], X[:, :, ::-1, ::2][:, :, 1:4, 2:3], border=[2, 1, 0, 1]),
    *(crop(f"crop_{dtype.name}", X.astype(dtype), X[:, :, 1:, 1:].astype(dtype), border=[1, 1, 0, 0])
      for dtype in FLOATS),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(checks: str, case: Case) -> None:
    run_case(case, checks)


def make_model(
    op: str, inputs: dict[str, Array], attributes: dict[str, Any], opset: int, dtype: Any
) -> onnx.ModelProto:
    """Return a model of one node."""
    infos = [helper.make_tensor_value_info(name, dtype_row(x.dtype).code, x.shape) for name, x in inputs.items()]
    output = helper.make_tensor_value_info("y", dtype_row(np.dtype(dtype)).code, None)
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"], "node", **attributes)], "old", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)


def run(model: onnx.ModelProto, inputs: dict[str, Array], device: gx.BackendType) -> Array:
    with gx.Worker(gx.load(model), backend=device) as worker:
        y = worker.run(inputs)[0]
    assert isinstance(y, np.ndarray)
    return y


BY_ONNXRUNTIME: list[tuple[str, Array, dict[str, Any], int]] = [
    ("Affine", X, {"alpha": 1.5, "beta": -2.0}, 7),
    ("Crop", X, {"border": [1, 2, 1, 1]}, 7),
    ("Crop", X, {"border": [1, 2, 0, 0], "scale": [2, 3]}, 7),
    ("ImageScaler", X, {"bias": [1.0, -2.0, 3.5], "scale": 0.5}, 7),
    ("ImageScaler", X, {"bias": [1.0, -2.0, 3.5]}, 3),
    ("ParametricSoftplus", X, {"alpha": 1.5, "beta": 2.0}, 7),
    ("ScaledTanh", X, {"alpha": 1.5, "beta": 2.0}, 7),
    ("ThresholdedRelu", X, {"alpha": 0.7}, 7),
    ("MeanVarianceNormalization", X, {}, 7),
    ("MeanVarianceNormalization", X, {"across_channels": 1}, 7),
    ("MeanVarianceNormalization", X, {"across_channels": 1, "normalize_variance": 0}, 7),
]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize(
    ("op", "x", "attributes", "opset"), BY_ONNXRUNTIME, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_model_of_old_gives_what_onnxruntime_gives(
    op: str, x: Array, attributes: dict[str, Any], opset: int, device: gx.BackendType
) -> None:
    model = make_model(op, {"x": x}, attributes, opset, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    np.testing.assert_allclose(run(model, {"x": x}, device), expected, rtol=2e-6, atol=1e-6)


SHAPE, SHAPED = np.array([2, 3], np.int64), np.zeros((2, 3), np.float32)
VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
FILLED = np.array(VALUES, np.float32).reshape(2, 3)
HIDDEN, GATES = numbers(1, 3, 2), numbers(1, 3, 6)
LENGTHS, TIME = np.array([3, 1, 2], np.float32), np.array([1], np.float32)


def step(drops: bool) -> Array:
    update, output = 1 / (1 + np.exp(-GATES[..., 2:4])), np.tanh(GATES[..., 4:])
    state = HIDDEN * update + output * (1 - update)
    return np.where((LENGTHS > 1)[:, None], state, 0 if drops else HIDDEN)


BY_HAND: list[tuple[str, dict[str, Array], dict[str, Any], Array]] = [
    ("Scale", {"x": X}, {"scale": 2.5}, X * np.float32(2.5)),
    ("DynamicSlice", {"x": X, "starts": np.array([1, 2]), "ends": np.array([2, 9])}, {}, X[1:2, 2:9]),
    (
        "DynamicSlice",
        {"x": X, "starts": np.array([1]), "ends": np.array([-1]), "axes": np.array([3])},
        {},
        X[..., 1:-1],
    ),
    ("ConstantFill", {}, {"shape": [2, 3], "value": 1.5}, np.full((2, 3), 1.5, np.float32)),
    ("ConstantFill", {"x": SHAPE}, {"input_as_shape": 1, "dtype": 6, "value": 7.0}, np.full((2, 3), 7, np.int32)),
    ("ConstantFill", {"x": SHAPED}, {"extra_shape": [2], "dtype": 7}, np.zeros((2, 3, 2), np.int64)),
    ("ConstantFill", {"x": SHAPED}, {"value": 1.0, "dtype": 9}, np.ones((2, 3), np.bool_)),
    ("GivenTensorFill", {}, {"shape": [2, 3], "values": VALUES}, FILLED),
    ("GivenTensorFill", {"x": SHAPED}, {"values": VALUES}, FILLED),
    ("GivenTensorFill", {"x": SHAPE}, {"values": VALUES, "input_as_shape": 1, "extra_shape": [1]}, FILLED[..., None]),
    ("GRUUnit", {"h": HIDDEN, "g": GATES, "n": LENGTHS, "t": TIME}, {}, step(drops=False)),
    ("GRUUnit", {"h": HIDDEN, "g": GATES, "n": LENGTHS, "t": TIME}, {"drop_states": 1}, step(drops=True)),
]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"), BY_HAND, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_model_of_old_gives_what_was_said_of_it(
    op: str, inputs: dict[str, Array], attributes: dict[str, Any], expected: Array, device: gx.BackendType
) -> None:
    y = run(make_model(op, inputs, attributes, 7, expected.dtype), inputs, device)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["ImageScaler", "Scale", "ScaledTanh", "DynamicSlice", "GRUUnit", "GivenTensorFill"])
def test_what_opset_10_took_out_is_unknown_to_it(op: str) -> None:
    with pytest.raises(UnsupportedError, match=f"operator {op}: 1"):
        gx.load(make_model(op, {"x": X}, {}, 10, np.float32))


def test_a_scaler_without_biases_is_refused() -> None:
    with pytest.raises(GpuexecError, match="ImageScaler expects a bias for each channel"):
        gx.load(make_model("ImageScaler", {"x": X}, {"scale": 2.0}, 7, np.float32))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("GRUUnit", {"h": HIDDEN}, {}, "GRUUnit expects 4 inputs, hidden state, gates, lengths and time, got 1"),
        ("ImageScaler", {"x": X}, {"bias": "a"}, "ImageScaler: of another form: could not convert string"),
        ("ScaledTanh", {"x": X}, {"alpha": "a"}, "Affine expects alpha to be float, got 'a'"),
        ("Crop", {"x": X}, {"border": 1}, r"Crop expects border to be tuple\[int, ...\], got 1"),
        ("Crop", {"x": X}, {"scale": [1.5, 2.0]}, r"Crop expects scale to be tuple\[int, ...\], got \(1.5, 2.0\)"),
    ],
)
def test_a_node_of_another_form_is_refused_by_name(
    op: str, inputs: dict[str, Array], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"{message}.*: 1 \(node\)"):
        gx.load(make_model(op, inputs, attributes, 7, np.float32))


@pytest.mark.parametrize(
    ("attributes", "x", "message"),
    [
        ({}, "float32[3,4,5]", r"an input \[n, c, h, w\]"),
        ({"border": (1, 1)}, "float32[1,1,4,4]", "four borders"),
        ({"scale": (1,)}, "float32[1,1,4,4]", "two extents"),
        ({"border": (1, 1, 4, 0)}, "float32[1,1,4,4]", "a part of the plane 4 x 4"),
        ({"border": (-1, 0, 0, 0)}, "float32[1,1,4,4]", "a part of the plane 4 x 4"),
        ({"border": (2, 0, 0, 0), "scale": (4, 3)}, "float32[1,1,4,4]", "a part of the plane 4 x 4"),
    ],
)
def test_crop_refuses(attributes: dict[str, Any], x: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Crop(**attributes).infer(parse_spec(x))
