"""Calibration: scales that follow from batches, weights as stored, accuracy, other engines, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ir.graphs import Graph
from tests.execution.calibration.networks import NETWORKS, draw_batches, make_cnn, make_layer, make_mlp
from tests.model.small_models import CPU, make_model

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[3]
METHODS = ("max", "percentile", "entropy")
RNG = np.random.default_rng(5)
W = RNG.standard_normal((3, 4)).astype(np.float32) * np.array([1, 10, 0.1, 3], np.float32)
X = np.array([[1.0, -2.54, 0.5], [0.25, 0, 2]], np.float32)


def make_product() -> gx.Model:
    """Return ``y = x @ w``."""
    return make_model([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], {"x": ("n", 3)}, {"y": ("n", 4)}, w=W)


def make_pair(middle: str = "Relu", **constants: Array) -> gx.Model:
    """Return ``y = middle(x @ w) @ v``."""
    v = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node(middle, ["a"], ["b"], name="middle"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="second"),
    ]
    return make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 5)}, **{"w": W, "v": v, **constants})


def calibrate(model: Any, batches: Any, **options: Any) -> gx.Model:
    return gx.calibrate(model, batches, backend=CPU, **options)


def run(model: gx.Model, inputs: Any, backend: str = "cpu") -> Any:
    with gx.Worker(model, backend=backend) as worker:
        return worker.run(inputs)


def list_operators(graph: Graph) -> list[str]:
    return [node.operator.name for node in graph.nodes]


def find(model: gx.Model, name: str) -> Array:
    """Return a constant of a model as it would be saved."""
    return next(array for value, array in model.info.graph.constants.items() if value.name == name)


def test_scale_of_an_activation_is_the_largest_magnitude_over_all_batches() -> None:
    model = calibrate(make_product(), [X / 2, X, X / 3])
    assert find(model, "x.scale") == np.float32(2.54 / 127) and find(model, "x.zero") == np.int8(0)
    assert list_operators(model.info.graph) == ["DequantizeLinear", "QuantizeLinear", "DequantizeLinear", "MatMul"]


def test_weights_are_exact_to_the_rounding_with_a_scale_for_each_channel() -> None:
    model = calibrate(make_product(), [X])
    weight, scale = find(model, "w.int8"), find(model, "w.scale")
    np.testing.assert_array_equal(scale, np.abs(W).max(axis=0) / np.float32(127))
    np.testing.assert_array_equal(weight, np.rint(W / scale).astype(np.int8))
    assert np.all(np.abs(weight * scale - W) <= scale / 2 * (1 + 1e-6))
    assert np.all(np.abs(weight).max(axis=0) == 127)


def test_weights_have_one_scale_where_asked() -> None:
    model = calibrate(make_product(), [X], per_channel=False)
    assert find(model, "w.scale") == np.abs(W).max() / np.float32(127)


def test_result_is_that_of_integers_scaled_back() -> None:
    model = calibrate(make_product(), [X])
    scale, weight = find(model, "x.scale"), find(model, "w.int8").astype(np.int32)
    stored = np.clip(np.rint(X / scale), -128, 127).astype(np.int32)
    wanted = (stored @ weight) * (scale * find(model, "w.scale"))
    for backend in ("cpu", "simulator"):
        np.testing.assert_allclose(run(model, X, backend)[0], wanted, rtol=1e-6, atol=1e-6)


def test_percentile_cuts_off_what_lies_beyond() -> None:
    values = np.concatenate([np.linspace(-1, 1, 999), [100]]).astype(np.float32).reshape(-1, 1).repeat(3, axis=1)
    cut = calibrate(make_product(), [values], method="percentile", percentile=99.5)
    assert 127 * find(cut, "x.scale") == pytest.approx(1, abs=0.03)
    whole = calibrate(make_product(), [values], method="percentile", percentile=100)
    assert find(whole, "x.scale") == np.float32(100 / 127)


def test_entropy_cuts_off_what_is_rare() -> None:
    values = np.random.default_rng(1).standard_normal((4000, 3)).astype(np.float32)
    values[0, 0] = 50
    model = calibrate(make_product(), [values], method="entropy")
    assert 2 < 127 * find(model, "x.scale") < 8


def test_bytes_without_sign_begin_at_zero_behind_a_relu_and_hold_it_elsewhere() -> None:
    model = calibrate(make_pair(), [X], activations="uint8")
    (b,) = run(make_pair().keep_outputs(["b"]), X)
    assert find(model, "b.zero") == np.uint8(0) and find(model, "b.scale") == np.float32(b.max() / np.float32(255))
    scale, zero = find(model, "x.scale"), find(model, "x.zero")
    assert scale == np.float32(4.54 / 255) and zero == np.uint8(round(2.54 / 4.54 * 255))
    got, wide = run(model, X)[0], run(make_pair(), X)[0]
    assert np.abs(got - wide).max() < 0.02 * np.abs(wide).max()


@pytest.mark.parametrize(
    "batches",
    [[X], (X,), [{"x": X}], [[X]], [(X,)], ({"x": part} for part in (X[:1], X[1:])), [X.tolist()]],
    ids=["array", "tuple", "names", "list", "pair", "generator", "numbers"],
)
def test_batches_are_given_as_inputs_are(batches: Any) -> None:
    assert find(calibrate(make_product(), batches), "x.scale") == np.float32(2.54 / 127)


def test_batches_are_gone_through_once() -> None:
    taken = []

    def draw() -> Iterator[Array]:
        for count in (1, 2, 5):
            taken.append(count)
            yield np.full((count, 3), count, np.float32)

    model = calibrate(make_pair(), draw(), method="entropy")
    assert taken == [1, 2, 5] and find(model, "x.scale") == np.float32(5 / 127)


def test_model_is_also_given_as_a_file(tmp_path: Path) -> None:
    make_product().save(tmp_path / "m.onnx")
    assert find(calibrate(tmp_path / "m.onnx", [X]), "x.scale") == np.float32(2.54 / 127)


def test_model_stays_as_it_was_and_ports_stay_too() -> None:
    model = gx.load(make_cnn(), dims={"n": (1, 16)})
    before = list_operators(model.graph), list_operators(model.info.graph)
    made = calibrate(model, draw_batches("cnn"))
    assert (list_operators(model.graph), list_operators(model.info.graph)) == before
    assert (made.inputs, made.outputs, made.dims) == (model.inputs, model.outputs, model.dims)


def test_what_is_kept_stays_float() -> None:
    for keep in ({"second"}, ["sec*"]):
        model = calibrate(make_pair(), [X], keep=keep)
        assert list_operators(model.info.graph).count("QuantizeLinear") == 1
        assert "v" in {value.name for value in model.info.graph.constants}
        assert find(model, "x.scale") == np.float32(2.54 / 127)


def test_activation_of_several_products_is_quantised_once_and_others_read_it_wide() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="m1"),
        helper.make_node("MatMul", ["x", "v"], ["b"], name="m2"),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["y"], name="residual"),
    ]
    v = np.eye(3, dtype=np.float32)
    model = calibrate(make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, w=v * 2, v=v), [X])
    graph = model.info.graph
    assert list_operators(graph).count("QuantizeLinear") == 1
    assert next(node for node in graph.nodes if node.name == "residual").inputs[1] is graph.inputs[0]


def test_weight_that_others_read_too_stays_for_them() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed"),
        helper.make_node("Gemm", ["rows", "table"], ["y"], name="head", transB=1),
    ]
    table = RNG.standard_normal((6, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor("table", TensorProto.FLOAT, table.shape, table.tobytes(), raw=True)],
    )
    loaded = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    model = calibrate(loaded, [np.arange(6)])
    np.testing.assert_array_equal(find(model, "table"), table)
    np.testing.assert_array_equal(find(model, "table.scale"), np.abs(table).max(axis=1) / np.float32(127))
    np.testing.assert_allclose(run(model, np.arange(6))[0], table @ table.T, atol=0.05)


def test_normalization_goes_into_the_weights_first_and_biases_stay_float() -> None:
    model = calibrate(gx.load(make_cnn()), draw_batches("cnn"))
    names = list_operators(model.info.graph)
    assert "BatchNormalization" not in names and names.count("QuantizeLinear") == 3
    assert {str(array.dtype) for array in model.info.graph.constants.values()} >= {"int8", "float32"}
    assert not any(array.dtype == np.int32 for array in model.info.graph.constants.values())


def test_products_of_two_activations_are_quantised_where_asked() -> None:
    model, batches = gx.load(make_layer()), draw_batches("layer")
    few, all_of_them = (calibrate(model, batches, products=which) for which in ("weights", "all"))
    counts = [list_operators(each.info.graph).count("QuantizeLinear") for each in (few, all_of_them)]
    assert counts == [4, 8]  # queries, keys, weights of heads and values beside


def test_bodies_of_branches_stay_as_they_are() -> None:
    def decide(x: Any) -> Any:
        inner = gx.fn.cond(x.sum() > 0, lambda x: x @ W[:, :3], lambda x: x, x)
        return inner @ W

    model = calibrate(gx.graph(decide, {"x": ("float32", ("n", 3))}), [X, -X])
    assert list_operators(model.info.graph).count("QuantizeLinear") == 1


def test_state_goes_on_from_batch_to_batch() -> None:
    nodes = [
        helper.make_node("Add", ["x", "past"], ["now"], name="add"),
        helper.make_node("MatMul", ["now", "w"], ["y"], name="m"),
    ]
    shape = (1, 3)
    model = make_model(nodes, {"x": shape, "past": shape}, {"y": (1, 4), "now": shape}, w=W)
    model = model.bind_state({"now": "past"})
    made = calibrate(model, [np.ones(shape, np.float32)] * 4)
    assert find(made, "now.scale") == np.float32(4 / 127) and [each.input for each in made.memories] == ["past"]


def test_activation_that_is_always_zero_leaves_its_product_float() -> None:
    model = calibrate(make_pair(w=np.abs(W)), [-np.abs(X)])
    assert list_operators(model.info.graph).count("QuantizeLinear") == 1
    with pytest.raises(gx.InputError, match=r"'small' has nothing to quantise: of its 1 products .* not always 0"):
        calibrate(make_product(), [np.zeros((2, 3), np.float32), np.zeros((0, 3), np.float32)])


def test_model_in_half_has_scales_in_half() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")]
    half = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 4)}, TensorProto.FLOAT16, w=W.astype(np.float16))
    model = calibrate(half, [X.astype(np.float16)])
    assert find(model, "x.scale") == np.float16(float(np.float16(2.54)) / 127)
    assert find(model, "w.scale").dtype == find(model, "x.scale").dtype == np.float16
    wide = X @ W
    assert np.abs(run(model, X.astype(np.float16))[0] - wide).max() < 0.03 * np.abs(wide).max()


def test_cost_by_layer_is_measured_against_the_model_before() -> None:
    model, batches = gx.load(make_mlp()), draw_batches("mlp")
    report = gx.measure_gap(calibrate(model, batches), batches[0], CPU, against=model)
    assert 20 < report.outputs["y"].snr_db < 60


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_answers_are_near_those_of_floats_and_those_of_onnxruntime(name: str, method: str, tmp_path: Path) -> None:
    batches, path = draw_batches(name), tmp_path / "int8.onnx"
    model = gx.load(NETWORKS[name]())
    quantized = calibrate(model, batches, method=method)
    stored = [node.outputs[0].name for node in quantized.info.graph.nodes if is_quantizing(node)]
    exposed = quantized.expose(*stored)
    exposed.save(path)
    wide, got = run(model, batches[0])[0], run(exposed, batches[0])
    assert gx.gap_of(wide, got[0]).snr_db > (20 if method == "max" else 12)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    theirs = dict(zip(got.names, session.run(list(got.names), {model.inputs[0].name: batches[0]}), strict=True))
    for key in stored:
        apart = np.abs(got[key].astype(int) - theirs[key].astype(int))
        assert apart.max() <= 1 and np.mean(apart > 0) < 0.02, key
    assert gx.gap_of(got[0], theirs[got.names[0]]).snr_db > 35


@pytest.mark.parametrize("name", NETWORKS)
def test_simulator_gives_what_the_host_gives(name: str) -> None:
    batches = draw_batches(name)
    quantized = calibrate(gx.load(NETWORKS[name]()), batches)
    got, wanted = (run(quantized, batches[0], backend)[0] for backend in ("simulator", "cpu"))
    assert gx.gap_of(wanted, got).snr_db > 40


def read_digits() -> tuple[Array, gx.Model]:
    with np.load(ROOT / "examples/data/digits.npz") as data:
        images = data["images"][:, None].astype(np.float32)
    return images, gx.load(ROOT / "examples/models/digits.onnx", outputs=["logits"])


def is_quantizing(node: Any) -> bool:
    return bool(node.operator.name == "QuantizeLinear")


@pytest.mark.parametrize("method", METHODS)
def test_digits_are_all_read_as_before(method: str) -> None:
    images, model = read_digits()
    quantized = calibrate(model, np.array_split(images[:256], 4), method=method)
    before, after = (run(each, images)[0].argmax(axis=1) for each in (model, quantized))
    np.testing.assert_array_equal(after, before)


def test_bytes_without_sign_are_nearer_behind_relus() -> None:
    images, model = read_digits()
    wide = run(model, images)[0]
    near, nearer = (
        gx.gap_of(wide, run(calibrate(model, [images[:256]], activations=kind), images)[0]).snr_db
        for kind in ("int8", "uint8")
    )
    assert nearer > near + 1


def test_option_that_is_none_is_refused_with_those_that_are() -> None:
    for options, message in (
        ({"method": "mse"}, "method takes 'max', 'percentile', 'entropy', got 'mse'"),
        ({"activations": "int4"}, "activations takes 'int8', 'uint8', got 'int4'"),
        ({"products": "none"}, "products takes 'weights' or 'all', got 'none'"),
        ({"percentile": 0}, "percentile is above 0 and at most 100, as in 99.99, got 0"),
        ({"keep": "second"}, "keep takes names of nodes, .*, got 'second'"),
        ({"keep": ["thrid"]}, "no product or convolution is called 'thrid'; there are first, second"),
        ({"keep": ["*"]}, "has nothing to quantise: keep leaves out all of first, second"),
    ):
        with pytest.raises(gx.InputError, match=message):
            calibrate(make_pair(), [X], **options)


def test_batches_that_are_none_are_refused() -> None:
    for batches, message in (
        ([], "Calibration of 'small' needs batches to run, got none"),
        ({"x": X}, "batches are inputs of several runs, .*, got a dict"),
        (X, "got a ndarray"),
        (7, "got a int"),
        ([X, {}], "Batch 2 lacks input x: float32.*; each batch holds all inputs of its run, here x"),
        ([{"z": X}], "Batch 1 lacks input x"),
        ([X, X[:, :2]], "Batch 2: Input 'x' expects"),
        ([[X, X]], "Batch 1: The model has 1 input, got 2"),
    ):
        with pytest.raises(gx.InputError, match=message):
            calibrate(make_product(), batches)


def test_model_without_anything_to_quantise_is_refused() -> None:
    square = make_model([helper.make_node("MatMul", ["x", "x"], ["y"])], {"x": (3, 3)}, {"y": (3, 3)})
    for model, message in (
        (make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": (3,)}, {"y": (3,)}), "no product or convolution"),
        (square, "those of two activations are by products='all'"),
        (calibrate(make_product(), [X]), "that is not quantised already"),
        (make_product().compress_weights("int8"), "that is not quantised already"),
    ):
        with pytest.raises(gx.InputError, match=f"has nothing to quantise: .*{message}"):
            calibrate(model, [X])
    assert "QuantizeLinear" in list_operators(calibrate(square, [np.eye(3, dtype=np.float32)], products="all").graph)


def test_node_that_makes_a_nan_is_named() -> None:
    with pytest.raises(gx.NonFiniteError, match=r"Batch 2: Sqrt 'middle': output 'b' .* has 1 NaN") as caught:
        calibrate(make_pair("Sqrt", w=np.eye(3, 4, dtype=np.float32)), [np.abs(X), np.array([[1, -1, 1]], np.float32)])
    assert (caught.value.node, caught.value.value, caught.value.kind) == ("middle", "b", "NaN")


def test_reader_of_an_infinity_that_was_given_is_named() -> None:
    with pytest.raises(gx.NonFiniteError, match=r"Batch 1: MatMul 'm' multiplies 'x', which holds a NaN or an infin"):
        calibrate(make_product(), [np.array([[np.inf, 0, 1]], np.float32)])
