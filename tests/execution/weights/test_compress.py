"""Weight compression: selection, results, files, and the reported gap."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from tests.execution.weights.models import make_chain, save_beside

KINDS = ("fp16", "int8")
# How far outputs may be off, as a share of the largest: half has 11 bits, int8 7, and errors add up over layers.
TOLERANCE = {"fp16": 2e-3, "int8": 5e-2}


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(shape).standard_normal(shape) / 4).astype(np.float32)


def make_mixed() -> onnx.ModelProto:
    """Return a model with a weight of every operator that can read a narrow one."""
    weights = {
        "table": numbers(10, 8),
        "deep": numbers(8, 1, 3),
        "conv_w": numbers(6, 8, 3),
        "conv_b": numbers(6),
        "up_w": numbers(6, 4, 2),
        "gemm_w": numbers(5, 4),
        "gemm_b": numbers(5),
        "mat": numbers(5, 7),
        "shared": numbers(7),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed"),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["columns", "deep"], ["depth"], name="depth", group=8, pads=[1, 1]),
        helper.make_node("Conv", ["depth", "conv_w", "conv_b"], ["conv"], name="conv"),
        helper.make_node("ConvTranspose", ["conv", "up_w"], ["up"], name="up"),
        helper.make_node("ReduceMean", ["up", "axes"], ["mean"], keepdims=0),
        helper.make_node("Gemm", ["mean", "gemm_w", "gemm_b"], ["dense"], name="dense", transB=1),
        helper.make_node("MatMul", ["dense", "mat"], ["product"], name="mat"),
        helper.make_node("Add", ["product", "shared"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 7])],
        [
            *(numpy_helper.from_array(array, name) for name, array in weights.items()),
            numpy_helper.from_array(np.array([2]), "axes"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


IDS = {"ids": np.array([[1, 2, 3, 9, -1, 0], [4, 4, 5, 6, 7, 8]])}
LAYERS = {"embed": "Gather", "depth": "Conv", "conv": "Conv", "up": "ConvTranspose", "dense": "Gemm", "mat": "MatMul"}


def narrow_nodes(model: gx.Model) -> dict[str, str]:
    prefix = "gpuexec.Narrow"
    nodes = [node for node in model.graph.nodes if node.operator.name.startswith(prefix)]
    return {node.name: node.operator.name.removeprefix(prefix) for node in nodes}


def run(model: gx.Model, device: str, inputs: Any = IDS) -> Any:
    with gx.Worker(model, backend=gx.BackendType(device), strict=device != "cpu") as worker:
        return worker.run(inputs)[0]


def count_bytes(model: gx.Model) -> int:
    return sum(array.nbytes for array in model.graph.constants.values())


@pytest.mark.parametrize("device", ["cpu", "simulator"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_read_narrow_and_the_result_is_near(kind: str, device: str) -> None:
    model = gx.load(make_mixed())
    compressed = model.compress_weights(kind)
    assert narrow_nodes(compressed) == LAYERS and not narrow_nodes(model)
    assert len(compressed.graph.nodes) == len(model.graph.nodes)  # nothing is widened by a node of its own
    assert count_bytes(compressed) < count_bytes(model) * (0.6 if kind == "fp16" else 0.55)
    wide, got = run(model, "cpu"), run(compressed, device)
    assert 0 < np.abs(got - wide).max() < TOLERANCE[kind] * np.abs(wide).max()


@pytest.mark.parametrize("kind", KINDS)
def test_result_is_that_of_weights_widened_before(kind: str) -> None:
    model = gx.load(make_mixed(), disabled_passes=["narrow_weights"]).compress_weights(kind)
    assert not narrow_nodes(model)
    wide = run(model, "cpu")
    for device in ("cpu", "simulator"):
        got = run(gx.load(make_mixed()).compress_weights(kind), device)
        np.testing.assert_allclose(got, wide, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_file_says_it_as_onnx_does_and_is_read_narrow_again(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "narrow.onnx"
    compressed = gx.load(make_mixed()).compress_weights(kind)
    compressed.save(path)
    widening = {"fp16": "Cast", "int8": "DequantizeLinear"}[kind]
    assert [node.op_type for node in onnx.load(path).graph.node].count(widening) == len(LAYERS)
    loaded = gx.load(path)
    assert narrow_nodes(loaded) == LAYERS and count_bytes(loaded) == count_bytes(compressed)
    np.testing.assert_array_equal(run(loaded, "cpu"), run(compressed, "cpu"))
    options = onnxruntime.SessionOptions()
    # What it makes of such nodes otherwise rounds activations too.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, IDS)
    np.testing.assert_allclose(run(loaded, "cpu"), expected, rtol=1e-4, atol=1e-5)


def test_program_keeps_weights_narrow(tmp_path: Path) -> None:
    compressed = gx.load(make_mixed()).compress_weights("int8")
    path = tmp_path / "narrow.gxp"
    gx.Program.build({"forward": compressed}, shapes={"forward": {"ids": [2, 6]}}).save(path)
    program = gx.Program.load(path, backend=gx.BackendType.SIMULATOR)
    assert narrow_nodes(program.contents.methods["forward"].model) == LAYERS
    with program.load_method("forward") as method:
        method.set_input(0, IDS["ids"])
        method.execute()
        np.testing.assert_allclose(
            method.get_output(0).readback_and_clone(), run(compressed, "cpu"), rtol=1e-4, atol=1e-5
        )


def test_only_what_is_said_is_compressed() -> None:
    asked = []

    def only(name: str, array: Any) -> bool:
        asked.append((name, array.shape))
        return name.startswith("conv")

    compressed = gx.load(make_mixed()).compress_weights("int8", only=only)
    assert narrow_nodes(compressed) == {"conv": "Conv"}
    assert ("table", (10, 8)) in asked and all(name not in ("conv_b", "shared", "axes") for name, _ in asked)


def test_batch_norm_goes_into_the_weight_first() -> None:
    weights = {"w": numbers(4, 3, 3), "s": np.full(4, 2.0, np.float32), "b": numbers(4), "m": numbers(4)}
    weights["v"] = np.ones(4, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], name="norm"),
    ]
    ports = [helper.make_tensor_value_info("x", 1, [1, 3, 9]), helper.make_tensor_value_info("y", 1, [1, 4, 7])]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    compressed = model.compress_weights("int8")
    assert [node.operator.name for node in compressed.graph.nodes] == ["gpuexec.NarrowConv"]


def one_matmul(weight: Any, *more: Any, reader: str = "MatMul") -> onnx.ModelProto:
    rows = weight.shape[0]
    nodes = [helper.make_node(reader, ["x", "w"], ["y"], name="m"), *more]
    code = helper.np_dtype_to_tensor_dtype(weight.dtype)
    ports = [helper.make_tensor_value_info("x", code, [2, rows]), helper.make_tensor_value_info("y", code, None)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [
        ("fp16", np.full((3, 4), 1e6, np.float32)),
        ("fp16", np.ones((3, 4), np.float16)),
        ("fp16", np.ones((3, 4), np.float64)),
        ("int8", np.full((3, 4), np.inf, np.float32)),
        ("int8", np.full((3, 4), np.nan, np.float32)),
        ("int8", np.ones((3, 4), np.int32)),
    ],
)
def test_weight_that_has_no_narrow_form_stays(kind: str, weight: Any) -> None:
    model = gx.load(one_matmul(weight))
    assert not narrow_nodes(model.compress_weights(kind))


def test_weight_that_others_read_too_stays() -> None:
    more = helper.make_node("Relu", ["w"], ["z"])
    source = one_matmul(numbers(3, 4), more)
    source.graph.output.append(helper.make_tensor_value_info("z", 1, [3, 4]))
    assert not narrow_nodes(gx.load(source, disabled_passes=["fold_constants"]).compress_weights("int8"))


def test_half_models_take_int8() -> None:
    model = gx.load(one_matmul(numbers(32, 4).astype(np.float16)))
    compressed = model.compress_weights("int8")
    assert narrow_nodes(compressed) == {"m": "MatMul"}
    x = numbers(2, 32).astype(np.float16)
    for device in ("cpu", "simulator"):
        np.testing.assert_allclose(run(compressed, device, x), run(model, "cpu", x), atol=0.02)


def test_scales_bound_the_error_of_each_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["gpuexec.passes.compress_weights"], "_BLOCK_NBYTES", 256
    )  # so that it is done in several parts
    weight = numbers(40, 6) * np.array([1e-3, 1, 1e3, 0, 1e-30, 7], np.float32)
    compressed = gx.load(one_matmul(weight)).compress_weights("int8")
    node = compressed.graph.nodes[0]
    narrow, scale = (compressed.graph.constants[value] for value in node.inputs[1:] if value is not None)
    assert narrow.dtype == np.int8 and scale.shape == (6,) and (scale > 0).all()
    error = np.abs(narrow * scale.astype(np.float64) - weight).max(axis=0)
    assert (error <= np.abs(weight).max(axis=0) / 127 / 2 * 1.001).all()


def test_other_kinds_are_refused() -> None:
    with pytest.raises(gx.InputError, match="'fp16' or 'int8', got 'int4'"):
        gx.load(make_mixed()).compress_weights("int4")


def test_weights_of_bodies_are_compressed_too() -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x", "inner"], ["made"], name="inner")],
        "then",
        [],
        [helper.make_tensor_value_info("made", 1, None)],
        [numpy_helper.from_array(numbers(4, 4), "inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "else", [], [helper.make_tensor_value_info("same", 1, None)]
    )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)]
    ports = [helper.make_tensor_value_info("x", 1, [2, 4]), helper.make_tensor_value_info("c", 9, [])]
    graph = helper.make_graph(nodes, "g", ports, [helper.make_tensor_value_info("y", 1, [2, 4])])
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    inputs = {"x": numbers(2, 4), "c": np.array(True)}
    compressed = model.compress_weights("int8")
    assert "NarrowMatMul" in repr(compressed.graph.nodes[0].operator.then_branch.nodes)  # type: ignore[attr-defined]
    np.testing.assert_allclose(run(compressed, "cpu", inputs), run(model, "cpu", inputs), atol=0.05)


def test_gap_reports_layers_outputs_and_bytes() -> None:
    model = gx.load(make_mixed())
    half, eighth = (gx.measure_weights(model, model.compress_weights(kind), IDS) for kind in KINDS)
    assert [(row.node, row.operator) for row in eighth.rows] == list(LAYERS.items())
    assert all(row.weight is not None and row.weight.snr_db > 30 for row in eighth.rows)
    assert all(one.output.mse < other.output.mse for one, other in zip(half.rows, eighth.rows, strict=True))
    assert half.outputs["y"].mse < eighth.outputs["y"].mse
    assert eighth.nbytes < half.nbytes < half.wide_nbytes == count_bytes(model)
    wide, got = run(model, "cpu"), run(model.compress_weights("int8"), "cpu")
    assert eighth.outputs["y"].max_abs == pytest.approx(np.abs(got - wide).max(), rel=1e-3)
    text = str(eighth)
    assert all(name in text for name in (*LAYERS, "y")) and f"{eighth.nbytes:,}" in text


def test_gap_without_inputs_takes_random_ones() -> None:
    model = gx.load(make_chain(2, 16))
    compressed = model.compress_weights("fp16")
    one, same, other = (gx.measure_weights(model, compressed, seed=seed) for seed in (0, 0, 1))
    assert one == same and one != other and one.outputs["y"].max_abs > 0


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "'ids' is missing"),
        ({"ids": IDS["ids"], "z": np.zeros(1)}, "there is no 'z'"),
        ({"ids": np.zeros((1, 6))}, "got float64"),
    ],
)
def test_gap_of_inputs_that_do_not_fit_is_refused(inputs: Any, message: str) -> None:
    model = gx.load(make_mixed())
    with pytest.raises(gx.InputError, match=message):
        gx.measure_weights(model, model.compress_weights("int8"), inputs)


def test_gap_of_strangers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gx.InputError, match="takes other inputs"):
        gx.measure_weights(gx.load(make_mixed()), gx.load(save_beside(make_chain(1), tmp_path)))
