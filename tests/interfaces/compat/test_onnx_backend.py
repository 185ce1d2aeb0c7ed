"""The interface of onnx.backend.base over a Worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx.backend import base

import gpuexec as gx
from gpuexec.compat import onnx_backend

F32 = np.float32
X = np.array([[-1, 2], [3, -4]], F32)
B = np.array([1, -1], F32)


def parse(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


def two_outputs() -> onnx.ModelProto:
    return parse("g (float[n, 2] x, float[2] b) => (float[n, 2] y, float[n, 2] z) { y = Add (x, b) z = Neg (y) }")


@pytest.mark.parametrize("device", ["CPU", "SIMULATOR", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_prepared_model_runs_again_and_again(device: str) -> None:
    assert onnx_backend.supports_device(device)
    with onnx_backend.prepare(two_outputs(), device) as prepared:
        for x in (X, X[:1], X):
            outputs = prepared.run([x, B])
            np.testing.assert_array_equal(outputs[0], x + B)
            np.testing.assert_array_equal(outputs.z, -(x + B))
            np.testing.assert_array_equal(outputs["y"], x + B)
        report = prepared.report()
    assert report.runs == 3
    assert report.host_calls == ()
    with pytest.raises(gx.ClosedError):
        prepared.run([X, B])


def test_backend_is_what_onnx_asks_for() -> None:
    assert issubclass(onnx_backend.GpuexecBackend, base.Backend)
    prepared = onnx_backend.prepare(two_outputs())
    assert isinstance(prepared, base.BackendRep)
    prepared.close()


@pytest.mark.parametrize(
    "inputs",
    [
        {"b": B, "x": X},
        (X, B),
        [numpy_helper.from_array(X), B],
    ],
    ids=["by name", "tuple", "proto"],
)
def test_inputs_have_many_forms(inputs: Any) -> None:
    np.testing.assert_array_equal(onnx_backend.run_model(two_outputs(), inputs)[0], X + B)


def test_single_input_and_scalars_need_no_list() -> None:
    model = parse("g (float x) => (float y) { y = Neg (x) }")
    assert onnx_backend.run_model(model, F32(2))[0] == F32(-2)
    assert onnx_backend.run_model(model, [2.0]).y == F32(-2)


def test_outputs_of_odd_names_keep_their_positions() -> None:
    model = parse("g (float[2] x) => (float[2] a) { a = Neg (x) }")
    model.graph.node[0].output[0] = model.graph.output[0].name = "0"
    assert onnx_backend.run_model(model, [B])["0"].tolist() == [-1, 1]


def test_initializers_listed_as_inputs_are_none() -> None:
    model = two_outputs()
    model.graph.initializer.append(numpy_helper.from_array(B, "b"))
    np.testing.assert_array_equal(onnx_backend.run_model(model, [X])[0], X + B)


def test_containers_none_and_text_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    text = np.array(["a", "b"], object)
    model = gx.load(two_outputs().SerializeToString())
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        tensor = worker.schedule([X, B]).outputs["y"]
        answers = {"y": [tensor, text], "z": {"key": tensor, "none": None}}

        class Recorder:
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def schedule(self, inputs: Any) -> Any:
                given.append(inputs)
                return SimpleNamespace(outputs=answers)

        monkeypatch.setattr(onnx_backend, "Worker", Recorder)
        prepared = onnx_backend.prepare(two_outputs())
        y, z = prepared.run([[F32(1), [X]], None])
        prepared.run({"x": {"a": numpy_helper.from_array(X)}, "b": text})
    assert isinstance(given[0][0][0], np.ndarray)
    assert given[0][0][1][0] is X
    assert given[0][1] is None
    assert given[1]["x"]["a"].tolist() == X.tolist()
    assert given[1]["b"] is text
    np.testing.assert_array_equal(y[0], X + B)
    assert y[1] is text
    np.testing.assert_array_equal(z["key"], X + B)
    assert z["none"] is None


def test_model_is_compatible_when_all_of_it_is_supported() -> None:
    assert onnx_backend.is_compatible(two_outputs())
    unknown = parse("g (float[2] x) => (float[2] y) { y = Neg (x) }")
    unknown.graph.node[0].op_type = "Unheard"
    assert not onnx_backend.is_compatible(unknown)
    with pytest.raises(gx.UnsupportedError, match="Unheard"):
        onnx_backend.prepare(unknown)
    with pytest.raises(gx.ModelError):
        onnx_backend.is_compatible(onnx.ModelProto())


def test_devices_are_known_by_name() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("TPU")
    assert not onnx_backend.supports_device("CUDA:7")
    with pytest.raises(gx.InputError, match="'TPU'"):
        onnx_backend.prepare(two_outputs(), "TPU")


def test_wrong_inputs_are_refused_by_name() -> None:
    with onnx_backend.prepare(two_outputs()) as prepared:
        with pytest.raises(gx.InputError, match="'b'"):
            prepared.run([X])
        with pytest.raises(gx.InputError, match="float64"):
            prepared.run([X, B.astype(np.float64)])
        np.testing.assert_array_equal(prepared.run([X, B])[0], X + B)


NODES: list[tuple[str, onnx.NodeProto, Any, dict[str, Any], Any]] = [
    ("one", helper.make_node("Relu", ["x"], ["y"]), [X], {}, [np.maximum(X, 0)]),
    ("bare", helper.make_node("Relu", ["x"], ["y"]), X, {}, [np.maximum(X, 0)]),
    ("absent input", helper.make_node("Clip", ["x", "", "m"], ["y"]), [X, F32(1)], {}, [np.minimum(X, 1)]),
    ("shape by content", helper.make_node("Reshape", ["x", "s"], ["y"]), {"x": X, "s": np.array([4])}, {}, [X.ravel()]),
    ("twice", helper.make_node("Mul", ["x", "x"], ["y"]), [X], {}, [X * X]),
    ("two outputs", helper.make_node("Split", ["x"], ["y", "z"], num_outputs=2), [X], {}, [X[:1], X[1:]]),
    ("old form", helper.make_node("Squeeze", ["x"], ["y"], axes=[0]), [X[:1]], {"opset_version": 11}, [X[0]]),
    (
        "old meaning",
        helper.make_node("Hardmax", ["x"], ["y"]),
        [X[None]],
        {"opset_version": 9},
        [np.array([[[0, 0], [1, 0]]], F32)],
    ),
    (
        "map of words",
        helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["b", "a"]),
        [{"a": 1.5}],
        {},
        [np.array([[0, 1.5]])],
    ),
    (
        "map of integers",
        helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", cast_to="TO_INT64"),
        [{7: F32(2.5), 3: F32(-1)}],
        {},
        [np.array([[-1, 2]])],
    ),
    (
        "typed by the caller",
        helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT32),
        [X],
        {"outputs_info": [(np.int32, (2, 2))]},
        [X.astype(np.int32)],
    ),
]


@pytest.mark.parametrize(("node", "inputs", "options", "expected"), [n[1:] for n in NODES], ids=[n[0] for n in NODES])
def test_node_runs_by_itself(node: onnx.NodeProto, inputs: Any, options: dict[str, Any], expected: list[Any]) -> None:
    outputs = onnx_backend.run_node(node, inputs, **options)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize(
    ("node", "inputs", "error", "message"),
    [
        (helper.make_node("Unheard", ["x"], ["y"]), [X], gx.ModelError, "no such operator in any opset of ai.onnx"),
        (helper.make_node("Relu", ["x"], ["y"]), [X, X], gx.InputError, "has 1 inputs, got 2"),
        (helper.make_node("Add", ["x", "z"], ["y"]), {"x": X}, gx.InputError, "lacks its input %z"),
        (helper.make_node("Add", ["x"], ["y"]), [X], gx.ModelError, "Add ''"),
        (helper.make_node("Add", ["x", "z"], ["y"]), [X, X[:, :1].astype(int)], gx.ModelError, "Add ''"),
        (helper.make_node("SequenceLength", ["x"], ["y"]), [[]], gx.InputError, "an empty list"),
        (
            helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml"),
            [{}],
            gx.InputError,
            "an empty dict, which has no type",
        ),
        (helper.make_node("Neg", ["x"], ["y"]), [None], gx.InputError, "is None"),
        (helper.make_node("Neg", ["x"], ["y"]), [np.zeros(2, complex)], gx.GpuexecError, "complex128"),
    ],
    ids=["operator", "too many", "lacking", "too few", "types", "empty list", "empty dict", "none", "dtype"],
)
def test_bad_node_is_refused(node: onnx.NodeProto, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        onnx_backend.run_node(node, inputs)
