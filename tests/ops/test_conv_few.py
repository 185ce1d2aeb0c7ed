"""Convolutions of few channels on tensor cores: the kernel over random images, windows and slices, to the bit, whatever
they are stored in and however they lie; and the plans that launch it."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import numpy as np
import pytest
from onnx import helper

from gpuexec.errors import InputError
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import build
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ops.lib.rounding import round_to
from gpuexec.ops.lib.windows import Windows, resolve_windows
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.conv_few import MAX_CHANNELS, fits_few, takes_few
from gpuexec.ops.nn.conv_host import convolve
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan, run_template
from tests.devices.opening import make_simulator, open_device
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.model.small_models import make_model
from tests.ops.chains import chain
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats
from tests.ops.harness import Case, compile_first, run_case

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
STORED = {"fp16": HALF, "bf16": np.dtype(BFLOAT16), "tf32": FLOAT}
CAST = {name: ("Cast", (("to", dtype_row(STORED[name]).code),), (-1,)) for name in ("fp16", "bf16")}
STEPS = (("Mul", (), (-1, 3)), ("Relu", (), (-1,)))
# Types of image and weights, and the precision; without one the result is of their type.
FORMS = [
    *((dtype, dtype, "") for dtype in (HALF, BFLOAT16)),
    *((image, STORED[precision], precision) for precision in ("fp16", "bf16") for image in (STORED[precision], FLOAT)),
    (FLOAT, FLOAT, "tf32"),
]
NAMES = [f"{image}-{precision or 'own'}" for image, _, precision in FORMS]


def integers(*shape: int, dtype: Any = FLOAT) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def convolve_exactly(x: Array, w: Array, bias: Array | None, windows: Windows) -> Array:
    given = [None if each is None else each.astype(np.float64) for each in (x, w, bias)]
    return convolve(given[0], given[1], given[2], windows, 1, None)  # type: ignore[arg-type]


def make_case(
    pick: random.Random, form: tuple[Any, Any, str], rank: int
) -> tuple[tuple[Any, ...], dict[str, Any], Array]:
    """Return operands, whose sums are exact in any order, attributes, and the result."""
    image, weight, precision = form
    kernel = [pick.choice([1, 2, 3, 5, 7] if rank < 3 else [1, 2, 3]) for _ in range(rank)]
    strides, dilations = ([pick.choice([1, 1, 2, 3]) for _ in range(rank)] for _ in range(2))
    pads = [pick.choice([0, 0, 1, 2]) for _ in range(2 * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extents = [each + pick.randrange(9 if rank == 1 else 5) for each in reach]
    channels, outs = pick.randint(1, MAX_CHANNELS), pick.choice([1, 5, 8, 16, 69])
    x = integers(pick.choice([1, 2, 3]), channels, *extents, dtype=image)
    w, result = integers(outs, channels, *kernel, dtype=weight), FLOAT if precision else weight
    bias = integers(outs, dtype=result) if pick.random() < 0.5 else None
    windows = resolve_windows(extents, kernel, strides, dilations, pads, "NOTSET")
    if image == FLOAT:  # what is rounded away: half are ties or above, half are below
        bits = {"fp16": 11, "bf16": 8, "tf32": 11}[precision]
        share = np.where(np.arange(x.size).reshape(x.shape) % 3, 2.0**-bits * 0.75, 2.0 ** -(bits + 1))
        x = (x * (1 + share)).astype(FLOAT)
    x = round_to(x, "tf32") if precision == "tf32" else x  # of other precisions the operator rounds an image of floats
    expected = convolve_exactly(x.astype(weight), w, bias, windows).astype(result)
    named = {"strides": tuple(strides), "dilations": tuple(dilations), "pads": tuple(pads)}
    given = (x, w) if bias is None else (x, w, bias)
    return given, named | ({"precision": precision} if precision else {}), expected


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_random_convolutions(checks: str, form: tuple[Any, Any, str], seed: int) -> None:
    """To the bit, since sums of integers are exact in any order."""
    given, attributes, expected = make_case(random.Random(f"{form} {seed}"), form, seed + 1)
    run_case(Case("few", "Conv", given, attributes, expected=(expected,), terms=prod(given[1].shape[1:])), checks)


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("extent", [16, 32], ids=["patches", "many-taps"])
def test_patches_are_read_by_vectors(checks: str, form: tuple[Any, Any, str], extent: int) -> None:
    """Of dense images: with gaps between elements they are read one by one."""
    image, weight, precision = form
    x = integers(2, 3, 2 * extent, extent + extent // 2 * 2, dtype=image)
    w, result = integers(5, 3, extent, extent, dtype=weight), FLOAT if precision else weight
    windows = resolve_windows(x.shape[2:], (extent,) * 2, (extent,) * 2, (1, 1), (0,) * 4, "NOTSET")
    expected = convolve_exactly(x, w, None, windows).astype(result)
    attributes = {"strides": (extent,) * 2} | ({"precision": precision} if precision else {})
    run_case(Case("patches", "Conv", (x, w), attributes, expected=(expected,), terms=3 * extent**2), checks)


def make_finished(form: tuple[Any, Any, str], kernel: int, is_stored: bool) -> Case:
    image, weight, precision = form
    result = FLOAT if precision else weight
    x, w = integers(2, 3, 16, 24, dtype=image), integers(9, 3, kernel, kernel, dtype=weight)
    scale = integers(9, 1, 1, dtype=result)
    windows = resolve_windows((16, 24), (kernel,) * 2, (kernel,) * 2, (1, 1), (0,) * 4, "NOTSET")
    steps, expected = STEPS, np.maximum(convolve_exactly(x, w, None, windows) * scale, 0).astype(result)
    if is_stored and precision in ("fp16", "bf16"):
        steps, expected = (*STEPS, CAST[precision]), expected.astype(weight)
    attributes = {"strides": (kernel,) * 2, **chain(steps)} | ({"precision": precision} if precision else {})
    return Case(
        "steps", "gpuexec.FusedConv", (x, w, None, scale), attributes, expected=(expected,), terms=3 * kernel**2
    )


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
@pytest.mark.parametrize("kernel", [3, 8], ids=["elements", "vectors"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["floats", "stored"])
def test_results_are_finished(checks: str, form: tuple[Any, Any, str], kernel: int, is_stored: bool) -> None:
    forms = (make_finished(each, taps, stored) for each in FORMS for taps in (3, 8) for stored in (False, True))
    compile_first("conv_few", forms, checks)
    run_case(make_finished(form, kernel, is_stored), checks)


def plan(graph: Graph, x: Array, target: str = "sm_90") -> tuple[list[Array], list[str]]:
    """Return the results on the simulator, and the kernels launched."""
    device = make_simulator(target=target, check_kernels=True)
    plan = plan_graph(graph, {"x": TensorSpec(x.shape, x.dtype)}, device.target).plan
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        results = loaded.run({"x": x})
    device.close()
    launches = [each for each in plan.segment.commands if isinstance(each, Launch)]
    return list(results), [each.kernel.expression.partition("<")[0] for each in launches]


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(FLOAT)


def lower(graph: Graph, precision: str) -> Graph:
    return lower_precision(graph, Precision.of(precision))


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("channels", range(1, MAX_CHANNELS + 1))
def test_an_image_of_floats_is_one_launch(precision: str, channels: int) -> None:
    graph, x = GraphBuilder(), normal(2, channels, 9, 8)
    weight = graph.constant(normal(8, channels, 3, 3))
    made = graph.graph(graph.node(build("Conv", {"pads": (1,) * 4}), graph.input("x", *x.shape), weight))
    lowered = lower(made, precision)
    got, names = plan(lowered, x)
    assert names == ["conv_few"]
    np.testing.assert_allclose(got[0], compute_graph(lowered, {"x": x})[0], rtol=0, atol=2e-5)
    older = plan_graph(lowered, {"x": TensorSpec(x.shape, x.dtype)}, Target.named("sm_75")).plan
    assert not [each for each in older.kernels() if each.source == "conv_few.cu"]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_bits_are_those_of_an_image_that_was_rounded_by_a_launch(precision: str) -> None:
    """As it is where something else reads it rounded, too; and however image and result lie."""
    x, w, points = normal(2, 3, 13, 16), normal(12, 3, 5, 3), normal(4, 12, 1, 1)
    answers = []
    for is_read in (False, True):
        for is_turned in (False, True):
            graph = GraphBuilder()
            value = graph.node(build("Relu", {}), graph.input("x", *x.shape))
            if is_turned:
                value = graph.node(build("Transpose", {"perm": (0, 2, 3, 1)}), value)
                value = graph.node(build("Transpose", {"perm": (0, 3, 1, 2)}), value)
            made = graph.node(build("Conv", {"pads": (1,) * 4}), value, graph.constant(w))
            outputs = [made, graph.node(build("Conv", {}), made, graph.constant(points))]
            if is_read:
                outputs.append(graph.node(build("MatMul", {}), value, graph.constant(normal(16, 5))))
            got, names = plan(lower(graph.graph(*outputs), precision), x)
            assert "conv_few" in names
            answers.append(got[0])
    for other in answers[1:]:
        np.testing.assert_array_equal(other, answers[0])


def test_numbers_are_rounded_to_tf32_with_ties_away_from_zero() -> None:
    x = np.array([[1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf, -np.inf, np.nan, 2.0**-130]], FLOAT)
    graph = GraphBuilder()
    weight = graph.constant(np.ones((1, 1, 1), FLOAT))
    got, _ = plan(lower(graph.graph(graph.node(build("Conv", {}), graph.input("x", 1, 1, 7), weight)), "tf32"), x[None])
    np.testing.assert_array_equal(got[0], round_to(x[None], "tf32"))
    assert got[0][0, 0, 0] == 1 + 2.0**-10


def test_weights_that_are_computed_are_aligned_by_a_copy() -> None:
    graph, x = GraphBuilder(), integers(8, 3, 3, 3, dtype=HALF)
    image = graph.node(build("Relu", {}), graph.constant(integers(1, 3, 9, 8, dtype=HALF)))
    made = graph.graph(
        graph.node(build("Conv", {}), image, graph.node(build("Neg", {}), graph.input("x", *x.shape, dtype=HALF)))
    )
    got, names = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "conv_few" in names


@pytest.mark.parametrize(("precision", "kernel"), [("fp16", 3), ("fp16", 8), ("tf32", 3), ("tf32", 4)])
def test_all_sizes_of_a_class_take_its_kernel(precision: str, kernel: int) -> None:
    """Fewer images and smaller ones, in as many slices as there is room for."""
    w, padding = integers(24, 3, kernel, kernel), kernel % 2
    dims: list[str | int] = ["n", 3, "height", "width"]
    strides = [1 if padding else kernel] * 2
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[padding] * 4, strides=strides)
    model = make_model([node], {"x": dims}, {"y": ["n", 24, "h", "v"]}, helper.np_dtype_to_tensor_dtype(FLOAT), w=w)
    graph = lower(model.graph, precision)
    template = plan_graph(graph, {"x": TensorSpec((4, 3, 24, 24), FLOAT)}, Target.named("sm_90"), model.dims)
    for n, height, width in ((4, 24, 24), (3, 24, 16), (1, 8, 24), (1, 8, 8)):
        x = integers(n, 3, height, width)
        windows = resolve_windows((height, width), (kernel,) * 2, strides, (1, 1), (padding,) * 4, "NOTSET")
        (y,) = run_template(template, graph, {"x": x}, open_device("simulator"))
        np.testing.assert_array_equal(y, convolve_exactly(x, w, None, windows))
        kernels = {str(each.kernel) for each in template.plan.segment.commands if isinstance(each, Launch)}
        assert len(kernels) == 1 and f", {8 if kernel == 8 else 4 if kernel == 4 else 1}>" in kernels.pop()


def test_which_convolutions_it_takes() -> None:
    def takes(
        channels: int = 3,
        kernel: int = 7,
        pad: int = 3,
        groups: int = 1,
        precision: str = "fp16",
        target: str = "sm_90",
    ) -> bool:
        windows = resolve_windows((224, 224), (kernel,) * 2, (2, 2), (1, 1), (pad,) * 4, "NOTSET")
        dtypes = STORED[precision], FLOAT
        return takes_few(dtypes, windows, channels, groups, Target.named(target), precision)

    assert takes() and takes(channels=1) and takes(channels=7) and takes(precision="tf32") and takes(precision="bf16")
    assert takes(kernel=16, pad=0) and takes(kernel=15)
    assert not takes(channels=8) and not takes(groups=3) and not takes(target="sm_75") and not takes(target="cpu")
    assert not takes(kernel=16)  # more taps than a number has bits
    assert not takes(kernel=32, pad=0)  # more places than shared memory is left


def test_images_beyond_the_numbers_of_the_kernel_keep_others() -> None:
    small, large = ((1, 3, extent, extent) for extent in (1 << 9, 1 << 15))
    for shape, is_able in ((small, True), (large, False)):
        windows = resolve_windows(shape[2:], (3, 3), (1, 1), (1, 1), (1,) * 4, "NOTSET")
        assert fits_few(TensorSpec(shape, FLOAT), windows, 8) is is_able
        rounded = Conv(pads=(1,) * 4, precision="fp16").rounds_to(
            0, (TensorSpec(shape, HALF), TensorSpec((8, 3, 3, 3), HALF)), Target.named("sm_90")
        )
        assert rounded == ("fp16" if is_able else "")


def test_an_image_of_floats_goes_with_weights_that_a_precision_stores() -> None:
    x, w = TensorSpec((1, 16, 5, 5), FLOAT), TensorSpec((4, 16, 3, 3), HALF)
    assert Conv(precision="fp16").infer(x, w)[0].dtype == FLOAT
    for precision in ("", "bf16", "tf32"):
        with pytest.raises(InputError, match="of one type"):
            Conv(precision=precision).infer(x, w)
    given = integers(1, 16, 5, 5), integers(4, 16, 3, 3, dtype=HALF)
    windows = resolve_windows((5, 5), (3, 3), (1, 1), (1, 1), (0,) * 4, "NOTSET")
    expected = convolve_exactly(*given, None, windows).astype(FLOAT)
    run_case(Case("stored", "Conv", given, {"precision": "fp16"}, expected=(expected,), terms=144), "simulator")


def count(
    shape: tuple[int, ...], outs: int, kernel: int, pad: int, stride: int, precision: str = "fp16"
) -> CountedCase:
    attributes = {"pads": (pad,) * 4, "strides": (stride,) * 2}
    weights = {"w": floats(outs, shape[1], kernel, kernel)}
    return CountedCase("Conv", "conv_few", {"x": shape}, weights, attributes, precision=precision)


@pytest.mark.parametrize(
    "case",
    [
        count((1, 3, 56, 112), 64, 7, 3, 2),
        count((1, 3, 56, 112), 64, 7, 3, 2, precision="tf32"),  # in slices
        count((2, 3, 32, 64), 64, 3, 1, 1),
        count((1, 3, 128, 128), 128, 16, 0, 16),
        count((1, 3, 128, 128), 128, 16, 0, 16, precision="tf32"),
    ],
    ids=str,
)
def test_launches_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.matrix_products == found.counts.multiply_adds.issued * (2 if case.precision == "tf32" else 1)
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    shared = [line.counts for line in found.counts.lines if line.space == "shared" and line.counts.nbytes]
    assert all(each.ratio == 1.0 for each in shared)
    # Count mode has no L1, which answers most taps of a place after the first.
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert 0.35 * counted <= found.work.l2_nbytes <= 1.05 * counted
