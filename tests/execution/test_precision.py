"""Precision of a run: numbers rounded where it is said, the same on every backend, kept in programs, and measured."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.ir.command import Launch
from gpuexec.ir.plan_json import from_json, to_json
from gpuexec.model.model import choose_precision
from gpuexec.ops.elementwise.epilogue import without_epilogue
from gpuexec.ops.lib.rounding import round_to
from tests.bench.architectures import SMALL_ARCHITECTURES
from tests.devices.opening import make_simulator
from tests.model.small_models import make_model

Array = np.ndarray[Any, Any]
BACKENDS = ("cpu", "simulator")
SINGLE = ("tf32", "fp16", "bf16")  # rounded number by number
ROUNDED = (*SINGLE, "fp8")
RNG = np.random.default_rng(0)
FIRST, SECOND = (RNG.standard_normal(shape).astype(np.float32) for shape in ((48, 70), (70, 33)))
KERNEL, POINTS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((24, 16, 3, 3), (24, 24, 1, 1)))
X = RNG.standard_normal((20, 48)).astype(np.float32)
IMAGE = RNG.standard_normal((2, 16, 9, 9)).astype(np.float32)
# A bit of what is summed may decide how the next operand is rounded.
LOSS = {"tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8, "fp8": 2**-4}


def layers() -> gx.Model:
    """x -> MatMul -> Relu -> MatMul -> Add."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "second"], ["p"], name="two"),
        helper.make_node("Add", ["p", "bias"], ["y"], name="add"),
    ]
    weights = {"first": FIRST, "second": SECOND, "bias": SECOND[0]}
    return make_model(nodes, {"x": ["n", 48]}, {"y": ["n", 33]}, **weights)


def round_by_hand(x: Array, precision: str, axis: int | None) -> Array:
    """Return an operand rounded; in fp8 with a scale for all of it, or for all places along ``axis`` together."""
    if precision != "fp8":
        return round_to(x, precision)
    scale = np.abs(x).max(axis, keepdims=True) / np.float32(448)
    return np.asarray((x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale)


def expect_layers(x: Array, precision: str, keep: tuple[str, ...] = ()) -> Array:
    """Return what the layers make of operands rounded by hand, in doubles."""

    def multiply(a: Array, b: Array, name: str) -> Array:
        rounded = (a, b) if name in keep else (round_by_hand(a, precision, None), round_by_hand(b, precision, 0))
        product: Array = rounded[0].astype(np.float64) @ rounded[1].astype(np.float64)
        return product.astype(np.float32)

    return multiply(np.maximum(multiply(x, FIRST, "one"), 0), SECOND, "two") + SECOND[0]


CONVOLUTIONS = (
    helper.make_node("Conv", ["x", "kernel"], ["a"], name="conv", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["r"], name="relu"),
    helper.make_node("Conv", ["r", "points"], ["p"], name="point"),
)


def convolutions() -> gx.Model:
    """x -> Conv -> Relu -> Conv -> Add of what Relu gave -> MatMul over the last axis."""
    nodes = [
        *CONVOLUTIONS,
        helper.make_node("Add", ["p", "r"], ["s"], name="add"),
        helper.make_node("LayerNormalization", ["s", "scale"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "last"], ["y"], name="last"),
    ]
    weights = {"kernel": KERNEL, "points": POINTS, "scale": FIRST[0, :9], "last": FIRST[:9, :7]}
    return make_model(nodes, {"x": [2, 16, 9, 9]}, {"y": [2, 24, 9, 7]}, **weights)


def run(model: gx.Model, x: Array, backend: str, **options: Any) -> Array:
    with gx.Worker(model, backend=backend, **options) as worker:
        (y,) = worker.run(x)
        return np.asarray(y)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ROUNDED)
def test_operands_of_products_are_rounded_as_by_hand(precision: str, backend: str) -> None:
    expected = expect_layers(X, precision)
    got = run(layers(), X, backend, precision=precision)
    # Sums in float round a few operands of the second product otherwise.
    np.testing.assert_allclose(got, expected, rtol=0, atol=LOSS[precision] * float(np.abs(expected).max()) / 8)
    other = expect_layers(X, "fp16" if precision == "bf16" else "bf16")
    assert np.abs(other - got).max() > 3 * np.abs(expected - got).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", SINGLE)
def test_a_product_of_operands_that_lose_bits_is_that_of_the_rounded_to_the_bit(precision: str, backend: str) -> None:
    """Integers that a sum holds exactly, but for the bits that rounding takes."""
    a = RNG.integers(-8, 9, (5, 64)).astype(np.float32) * np.float32(1 + 2**-15)
    b = RNG.integers(-8, 9, (64, 40)).astype(np.float32) * np.float32(1 + 2**-15)
    model = make_model([helper.make_node("MatMul", ["x", "b"], ["y"])], {"x": [5, 64]}, {"y": [5, 40]}, b=b)
    got = run(model, a, backend, precision=precision)
    np.testing.assert_array_equal(got, np.rint(a) @ np.rint(b))
    assert (run(model, a, backend) != got).any()


@pytest.mark.parametrize("precision", ["strict", "reference", *ROUNDED])
def test_answers_of_cpu_and_simulator_agree(precision: str) -> None:
    for model, x in ((layers(), X), (convolutions(), IMAGE)):
        answers = [run(model, x, backend, precision=precision) for backend in BACKENDS]
        share = LOSS.get(precision, 2**-19)
        np.testing.assert_allclose(*answers, rtol=0, atol=share * float(np.abs(answers[0]).max()))


@pytest.mark.parametrize("name", ["resnet50_b1", "mobilenet_v2", "unet_512"])
def test_networks_of_convolutions_in_tf32_agree_where_images_lie_channels_last(name: str) -> None:
    bench = replace(SMALL_ARCHITECTURES[name](), precision="tf32")
    (x,) = bench.inputs.values()
    answers = []
    for backend in BACKENDS:
        with gx.Worker(bench.load(), backend=backend) as worker:
            answers.append(np.asarray(worker.run(x)[0]))
            kernels = [
                each.kernel for plan in worker.plans for each in plan.segment.commands if isinstance(each, Launch)
            ]
        assert any(kernel.source == "conv_mma.cu" for kernel in kernels) is (backend == "simulator")
        assert not any(kernel.source == "conv_simt.cu" for kernel in kernels)
    np.testing.assert_allclose(*answers, rtol=0, atol=LOSS["tf32"] * float(np.abs(answers[0]).max()))


@pytest.mark.parametrize("precision", ROUNDED)
def test_every_layer_is_what_numpy_makes_of_the_same_inputs(precision: str) -> None:
    for model, x in ((layers(), X), (convolutions(), IMAGE)):
        with gx.Worker(model, backend="simulator", precision=precision, compare_with="cpu") as worker:
            worker.run(x)
            assert worker.report().compared >= len(model.graph.nodes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_looks_at_values_changes_none(backend: str) -> None:
    answers = [
        run(convolutions(), IMAGE, backend, precision="fp16", **options) for options in ({}, {"watch": "report"})
    ]
    np.testing.assert_array_equal(*answers)


def test_weights_are_on_the_device_in_the_type_alone() -> None:
    with gx.Worker(layers(), backend="cpu", precision="bf16") as worker:
        worker.run(X)
        assert worker.memory_stats()["weights"] < (FIRST.nbytes + SECOND.nbytes) * 0.6


@pytest.mark.parametrize(("target", "count"), [("sm_75", 3), ("sm_80", 1)])
def test_products_of_narrow_operands_run_on_tensor_cores_or_as_floats_widened_once(target: str, count: int) -> None:
    device = make_simulator(target=target)
    with gx.Worker(layers(), backend=Backend(device, gx.BackendType.SIMULATOR, "tested"), precision="bf16") as worker:
        (found,) = worker.run(X)
        (plan,) = worker.plans
        launches = [each.kernel for each in plan.segment.commands if isinstance(each, Launch)]
    device.close()
    np.testing.assert_allclose(found, expect_layers(X, "bf16"), rtol=LOSS["bf16"], atol=LOSS["bf16"])
    converts = [each for each in launches if each.source == "elementwise_cast.cu"]
    assert len(converts) == count, "the input is cast, and what two products read of it is widened for lack of others"
    assert sum(each.source == "mma_gemm.cu" for each in launches) == (0 if target == "sm_75" else 2)


@pytest.mark.parametrize(("target", "on_tensor_cores"), [("sm_75", 0), ("sm_80", 2)])
def test_products_of_tf32_run_on_tensor_cores_with_weights_that_lie_along_the_inner_extent(
    target: str, on_tensor_cores: int
) -> None:
    device = make_simulator(target=target)
    with gx.Worker(layers(), backend=Backend(device, gx.BackendType.SIMULATOR, "tested"), precision="tf32") as worker:
        (found,) = worker.run(X)
        (plan,) = worker.plans
        kernels = [each.kernel for each in plan.segment.commands if isinstance(each, Launch)]
    device.close()
    np.testing.assert_allclose(found, expect_layers(X, "tf32"), rtol=LOSS["tf32"], atol=LOSS["tf32"])
    assert sum(each.source == "mma_gemm.cu" for each in kernels) == on_tensor_cores
    forms = [str(buffer.form) for buffer in plan.buffers if buffer.form is not None]
    assert sum("padded_rows" in form for form in forms) == on_tensor_cores


@pytest.mark.parametrize(
    ("target", "kernel"),
    [
        ("sm_75", "simt_gemm<"),
        ("sm_80", "mma_float8<WidenedE4m3"),
        ("sm_89", "mma_float8<E4m3"),
        ("sm_90", "mma_float8"),
    ],
)
def test_products_of_fp8_run_on_tensor_cores_or_as_floats(target: str, kernel: str) -> None:
    """The bias joins their epilogue; weights are on the device in 8 bits alone, once more where they are widened."""
    device = make_simulator(target=target)
    with gx.Worker(layers(), backend=Backend(device, gx.BackendType.SIMULATOR, "tested"), precision="fp8") as worker:
        (found,) = worker.run(X)
        (plan,) = worker.plans
        launches = [each.kernel.expression for each in plan.segment.commands if isinstance(each, Launch)]
        nbytes = worker.memory_stats()["weights"]
        assert from_json(to_json(plan)) == plan
    device.close()
    expected = expect_layers(X, "fp8")
    np.testing.assert_allclose(found, expected, rtol=0, atol=LOSS["fp8"] * float(np.abs(expected).max()) / 8)
    products = [each for each in launches if each.startswith(kernel)]
    assert len(products) == 2
    if target != "sm_75":
        assert without_epilogue(products[1]) != products[1]
        # Rows of both are aligned, and each has its scales; the bias stays float.
        assert nbytes < 1.3 * (FIRST.size + SECOND.size) + 4 * (70 + 33 + 33) + 2048


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89"])
def test_products_of_fp8_agree_on_every_device(target: str) -> None:
    """Of both operands made in the run, weights on the left and behind views, batches, alpha, and an addend."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="one"),
        helper.make_node("Transpose", ["a"], ["t"], name="turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["a", "t"], ["s"], name="both"),
        helper.make_node("MatMul", ["left", "s"], ["l"], name="left"),
        helper.make_node("Flatten", ["l"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "last", "c"], ["y"], name="gemm", transB=1, alpha=0.5, beta=2.0),
    ]
    weights = {"first": FIRST, "left": SECOND[:7, :20], "last": KERNEL.reshape(24, 144)[:9, :140], "c": SECOND[0, :9]}
    model = make_model(nodes, {"x": [2, 20, 48]}, {"y": [2, 9]}, **weights)
    assert {node.operator.name for node in choose_precision(model, "fp8").graph.nodes} >= {"gpuexec.ScaledMatMul"}
    x = np.stack([X, X[::-1] / 3])
    device = make_simulator(target=target, check_kernels=True)
    with gx.Worker(model, backend=Backend(device, gx.BackendType.SIMULATOR, "tested"), precision="fp8") as worker:
        (found,) = worker.run(x)
    device.close()
    expected = run(model, x, "cpu", precision="fp8")
    np.testing.assert_allclose(found, expected, rtol=0, atol=LOSS["fp8"] * float(np.abs(expected).max()))
    exact = run(model, x, "cpu")
    assert 1e-3 < np.abs(expected - exact).max() / np.abs(exact).max() < 0.2


def test_roundings_join_the_epilogue_of_what_is_in_front_of_them() -> None:
    plain = make_model([*CONVOLUTIONS], {"x": [2, 16, 9, 9]}, {"p": [2, 24, 9, 9]}, kernel=KERNEL, points=POINTS)
    for each, origin, kernel in (
        (convolutions(), "norm+n.to_fp16", "normalize_short_rows"),
        (plain, "conv+relu+r.to_fp16", "conv_mma"),  # whose result nothing else reads as float
    ):
        with gx.Worker(each, backend="simulator", precision="fp16") as worker:
            worker.run(IMAGE)
            (plan,) = worker.plans
            assert origin in plan.segment.origins
            kernels = [c.kernel for c in plan.segment.commands if isinstance(c, Launch)]
            assert any(each.expression.startswith(kernel) and "half" in each.text for each in kernels)


def test_plans_name_both_forms_of_a_weight_that_is_rounded_and_packed() -> None:
    with gx.Worker(convolutions(), backend="simulator", precision="bf16") as worker:
        worker.run(IMAGE)
        (plan,) = worker.plans
        forms = [str(buffer.form) for buffer in plan.buffers if buffer.form is not None]
        assert any("rounded" in form and "conv_lines" in form for form in forms)
        assert from_json(to_json(plan)) == plan


def test_reference_adds_in_one_order_however_few_tiles_there_are() -> None:
    deep = RNG.standard_normal((4096, 8)).astype(np.float32)
    model = make_model([helper.make_node("MatMul", ["x", "b"], ["y"])], {"x": ["n", 4096]}, {"y": ["n", 8]}, b=deep)
    x = RNG.standard_normal((3, 4096)).astype(np.float32)
    expected = np.zeros((3, 8), np.float32)
    for k in range(4096):  # one fused multiply-add after the other
        exact = x[:, k, None].astype(np.float64) * deep[None, k].astype(np.float64) + expected
        expected = exact.astype(np.float32)
    np.testing.assert_array_equal(run(model, x, "simulator", precision="reference"), expected)
    assert (run(model, x, "simulator") != expected).any()


NARROW = {
    "w": RNG.integers(-127, 128, (48, 64)).astype(np.int8),
    "w_scale": (1 / RNG.integers(300, 400, 64)).astype(np.float32),
    "codes": RNG.integers(0, 256, (40, 2, 32)).astype(np.uint8),
    "scales": (1 / RNG.integers(3000, 4000, (40, 2))).astype(np.float32),
    "half": RNG.standard_normal((40, 33)).astype(np.float16),
    "bias": SECOND[0],
}


def narrow_layers() -> gx.Model:
    """x -> MatMul with a dequantized weight -> Relu -> MatMulNBits -> MatMul with a weight of half -> Add."""
    codes = {"K": 64, "N": 40, "bits": 8, "block_size": 32}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["first"], axis=1),
        helper.make_node("MatMul", ["x", "first"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMulNBits", ["r", "codes", "scales"], ["b"], name="two", domain="com.microsoft", **codes),
        helper.make_node("Cast", ["half"], ["third"], to=1),
        helper.make_node("MatMul", ["b", "third"], ["c"], name="three"),
        helper.make_node("Add", ["c", "bias"], ["y"], name="add"),
    ]
    return make_model(nodes, {"x": ["n", 48]}, {"y": ["n", 33]}, **NARROW)


def expect_narrow_layers(x: Array, precision: str) -> Array:
    """Return what they make of activations rounded by hand, where there are kernels for that, and weights as stored."""
    w, w_scale, codes, scales, half, bias = (array.astype(np.float64) for array in NARROW.values())
    weights = (w * w_scale, ((codes.reshape(40, 64) - 128) * scales.repeat(32, 1)).T, half)

    def multiply(a: Array, place: int) -> Array:
        is_rounded = precision == "fp16" or place < 2
        a = round_to(a, precision) if is_rounded else a
        return (a.astype(np.float64) @ weights[place]).astype(np.float32)

    return multiply(multiply(np.maximum(multiply(x, 0), 0), 1), 2) + bias.astype(np.float32)


@pytest.mark.parametrize(
    ("backend", "target"), [("cpu", "sm_90"), ("simulator", "sm_75"), ("simulator", "sm_80"), ("simulator", "sm_90")]
)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_operands_beside_weights_in_few_bits_are_rounded_as_by_hand(precision: str, backend: str, target: str) -> None:
    model = narrow_layers()
    expected = expect_narrow_layers(X, precision)
    device: Any = "cpu"
    if backend == "simulator":
        device = Backend(make_simulator(target=target), gx.BackendType.SIMULATOR, "tested")
    with gx.Worker(model, backend=device, precision=precision) as worker:
        (got,) = worker.run(X)
        (plan,) = worker.plans
    sources = [each.kernel.source for each in plan.segment.commands if isinstance(each, Launch)]
    if backend == "simulator":
        device.device.close()
        on_tensor_cores = [each for each in sources if each.startswith("mma_")]
        expected_sources = ["mma_narrow.cu", "mma_nbits.cu", *(["mma_gemm.cu"] if precision == "fp16" else [])]
        assert on_tensor_cores == (expected_sources if target != "sm_75" else [])
    largest = float(np.abs(expected).max())
    np.testing.assert_allclose(got, expected, rtol=0, atol=LOSS[precision] * largest / 8)
    assert np.abs(run(model, X, "cpu") - got).max() > LOSS[precision] * largest / 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_kept_layers_are_computed_in_float(backend: str) -> None:
    got = run(layers(), X, backend, precision="bf16", keep={"tw*"})
    expected = expect_layers(X, "bf16", ("two",))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2**-19 * float(np.abs(expected).max()))


def test_sizes_of_a_class_are_rounded_alike() -> None:
    with gx.Worker(layers(), backend="simulator", precision="fp16") as worker:
        for rows in (20, 3, 20, 1):
            (y,) = worker.run(X[:rows])
            np.testing.assert_allclose(y, expect_layers(X, "fp16")[:rows], rtol=0, atol=2e-2)


def test_errors_say_what_there_is() -> None:
    with pytest.raises(gx.InputError, match=r"precision takes one of 'reference', 'strict', 'tf32', .* got 'half'"):
        gx.Worker(layers(), precision="half")
    with pytest.raises(gx.InputError, match="keep names 'three', and the model has no node of such a name"):
        gx.Worker(layers(), precision="fp16", keep={"three"})
    with pytest.raises(gx.InputError, match=r"keep takes names of nodes or patterns of them, .* got 'two'"):
        gx.Worker(layers(), precision="fp16", keep="two")
    with pytest.raises(gx.InputError, match=r"'small' has none\. gpuexec\.calibrate\(model, batches\) makes one"):
        gx.Worker(layers(), precision="int8")


def test_int8_runs_what_calibration_made() -> None:
    quantized = gx.calibrate(layers(), [X])
    expected = run(quantized, X, "cpu")
    np.testing.assert_array_equal(run(quantized, X, "cpu", precision="int8"), expected)
    assert np.abs(expected - run(layers(), X, "cpu")).max() < 0.05 * np.abs(expected).max()


def test_the_report_names_the_precision() -> None:
    with gx.Worker(layers(), backend="cpu", precision="fp16", keep={"two"}) as worker:
        worker.run(X)
        assert worker.report().precision == "fp16, but for two"
        assert "precision fp16, but for two" in worker.summary()
        assert worker.model.precision.name == "fp16"
    with gx.Worker(layers(), backend="cpu") as worker:
        assert worker.report().precision == "strict" and "precision" not in worker.summary()


def test_models_of_another_precision_leave_the_one_they_are_made_of() -> None:
    model = layers()
    with gx.Worker(model, backend="cpu", precision="bf16") as worker:
        worker.run(X)
        other = run(worker.model, X, "cpu", precision="strict")
    np.testing.assert_array_equal(other, run(model, X, "cpu"))
    assert model.precision.name == "strict"


def test_edits_and_pickles_keep_the_precision() -> None:
    with gx.Worker(layers(), backend="cpu", precision="bf16") as worker:
        model = worker.model
    expected = run(model, X, "cpu")
    np.testing.assert_array_equal(run(pickle.loads(pickle.dumps(model)), X, "cpu"), expected)
    np.testing.assert_array_equal(run(model.rename({"x": "given"}), X, "cpu"), expected)
    replaced = model.with_weights({"first": FIRST * 2})
    np.testing.assert_array_equal(run(replaced, X / 2, "cpu"), expected)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_keeps_its_precision(backend: str, precision: str) -> None:
    shapes = {"forward": {"x": ((1, 32), 48)}}
    program = gx.Program.build({"forward": layers()}, shapes=shapes, precision=precision, keep={"two"})
    stored = io.BytesIO()
    program.save(stored)
    loaded = gx.Program.load(stored.getvalue())
    with gx.Module(loaded, backend=backend) as module:
        (y,) = module.forward(X)
        model = loaded.contents.methods["forward"].model
        assert str(model.precision) == f"{precision}, but for two"
        expected = run(layers(), X, backend, precision=precision, keep={"two"})
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)
    match = f"Method 'forward' was made in precision {precision}, but for two, not in fp16"
    with pytest.raises(gx.InputError, match=match):
        gx.Module(loaded, precision="fp16")


def test_a_module_of_a_model_takes_a_precision(tmp_path: Path) -> None:
    layers().save(tmp_path / "layers.onnx")
    shapes = {"x": (20, 48)}
    with gx.Module(tmp_path / "layers.onnx", backend="cpu", precision="tf32", keep={"one"}, shapes=shapes) as module:
        (y,) = module.forward(X)
    np.testing.assert_array_equal(y, run(layers(), X, "cpu", precision="tf32", keep={"one"}))
    with pytest.raises(gx.InputError, match="keep goes with a precision"):
        gx.Module(tmp_path / "layers.onnx", keep={"one"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_overflow_of_fp16_is_found_with_its_cure(backend: str) -> None:
    cure = r"rounded to fp16, whose largest number is 65504, as an operand of MatMul 'two': keep=\{'two'\} leaves that"
    with (
        gx.Worker(layers(), backend=backend, precision="fp16", watch="raise") as worker,
        pytest.raises(gx.NonFiniteError, match=cure),
    ):
        worker.run(X * 6000)
    for options in ({"precision": "bf16"}, {"precision": "fp16", "keep": {"two"}}):
        assert np.isfinite(run(layers(), X * 6000, backend, watch="raise", **options)).all()


def test_an_overflow_of_a_weight_is_found_too() -> None:
    model = layers().with_weights({"second": SECOND * 1e5})
    with (
        gx.Worker(model, backend="cpu", precision="fp16", watch="raise") as worker,
        pytest.raises(gx.NonFiniteError, match=r"RoundWeight .* operand of MatMul 'two': keep=\{'two'\}"),
    ):
        worker.run(X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gap_of_a_precision_names_the_layers_that_lose_most(backend: str) -> None:
    spread = FIRST * np.geomspace(1, 1e4, 48, dtype=np.float32)[:, None] ** np.float32(0)
    model = layers().with_weights({"first": spread})
    report = gx.measure_gap(model, X, backend, precision="bf16")
    assert report.precision == "bf16" and report.against == "strict precision"
    losing = [row for row in report.rows if row.alone is not None and row.alone.max_abs > 0]
    assert {row.node for row in losing} == {"one", "two"} == {row.node for row in report.rows[:2]}
    assert report.worst(1) == report.rows[:1]
    assert all(row.alone is not None and 0.001 < row.alone.mean_rel < 0.1 for row in losing)
    assert {row.node for row in report.rows} == {"one", "relu", "two", "add"}
    kept = gx.measure_gap(model, X, backend, precision="bf16", keep={"one", "two"})
    assert kept.is_close and all(row.alone is not None and row.alone.max_rel < 1e-3 for row in kept.rows)
    assert "in bf16, but for one, two against strict precision" in str(kept)


def test_the_gap_of_a_precision_counts_an_operand_behind_a_view() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="one"),
        helper.make_node("Transpose", ["a"], ["t"], name="turn"),
        helper.make_node("MatMul", ["a", "t"], ["y"], name="two"),
    ]
    model = make_model(nodes, {"x": [20, 48]}, {"y": [20, 20]}, first=FIRST)
    rows = {row.node: row for row in gx.measure_gap(model, X, "cpu", precision="bf16").rows}
    assert rows.keys() == {"one", "two"}
    alone = rows["two"].alone
    a = X @ FIRST
    rounded = round_to(a, "bf16") @ round_to(a, "bf16").T
    assert alone is not None and alone.max_abs > 0.3 * float(np.abs(rounded - a @ a.T).max())


def test_the_gap_of_fp16_names_all_layers_beyond_its_range() -> None:
    """At once, from a run in float: a run in fp16 gets no further than the first."""
    model = layers().with_weights({"first": FIRST * np.float32(1e6)})
    report = gx.measure_gap(model, X, "cpu", precision="fp16")
    assert report.overflows == {"one", "two"}
    assert str(report).endswith("beyond fp16's largest number, 65504: one, two")
    assert gx.measure_gap(model, X, "cpu", precision="bf16").overflows == frozenset()
    assert gx.measure_gap(model, X, "cpu", precision="fp16", keep={"o*"}).overflows == {"two"}
    with gx.Worker(model, backend="cpu", precision="fp16", keep=report.overflows, watch="raise") as worker:
        np.testing.assert_array_equal(worker.run(X)[0], run(model, X, "cpu"))
    assert gx.measure_gap(layers(), X, "cpu", precision="fp16").overflows == frozenset()


def test_a_gap_is_of_a_precision_or_against_something() -> None:
    with pytest.raises(gx.InputError, match="A precision is measured against the same model in float"):
        gx.measure_gap(layers(), X, "cpu", "onnxruntime", precision="fp16")
    with pytest.raises(gx.InputError, match="keep goes with a precision"):
        gx.measure_gap(layers(), X, "cpu", keep={"one"})
