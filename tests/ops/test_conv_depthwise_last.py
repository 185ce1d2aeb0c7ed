"""Depthwise convolutions channels last: random windows to the bit, requests of memory, plans that launch them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.conv_depthwise_last import LAST_FORMS, LAST_TYPES
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner.memory_format import count_transposes
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ops.chains import chain
from tests.ops.test_conv_simt import CheckingEmitter

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
PRECISIONS = {HALF: "fp16", BFLOAT16: "bf16"}


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    return rng.integers(-3, 4, shape).astype(dtype)


def turn(x: Array) -> Array:
    """Return an equal array whose channels lie last."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


def convolve(emit: CheckingEmitter, op: Operator, x: Array, *others: Array | None) -> Array:
    """Return what the kernels make of an image whose channels lie last."""
    slots = [None if each is None else emit.slot(each) for each in (turn(x), *others)]
    (spec,) = op.infer(*(None if slot is None else slot.spec for slot in slots))
    y = emit.slot(turn(np.full(spec.shape, np.nan, spec.dtype)))
    assert op.lower is not None
    op.lower(emit, tuple(slots), (y,))
    return emit.read(y).copy()


def make(pick: random.Random, form: tuple[int, int], types: tuple[Any, Any]) -> tuple[Conv, Array, Array, Array | None]:
    rng, (dtype, result) = np.random.default_rng(pick.getrandbits(32)), types
    rank, channels = pick.choice([1, 2, 2]), pick.choice([8, 16, 24, 72, 136])
    columns, stride = (pick.choice([1, 2, 4, 5, 7]), pick.choice([1, 2, 3])) if form == LAST_FORMS[0] else form
    kernel = (pick.choice([1, 3, 5]), columns)[2 - rank :]
    strides = (pick.choice([1, 2]), stride)[2 - rank :]
    dilations = (pick.choice([1, 2]), pick.choice([1, 3]) if form == LAST_FORMS[0] else 1)[2 - rank :]
    pads = tuple([pick.choice([0, 1, 2]) for _ in range(2 * rank)])
    extents = [d * (k - 1) + 1 + pick.randrange(12) for k, d in zip(kernel, dilations, strict=True)]
    precision = PRECISIONS[dtype] if result != dtype else ""
    op = Conv(group=channels, strides=strides, dilations=dilations, pads=pads, precision=precision)
    x, w = integers(rng, (pick.choice([1, 3]), channels, *extents), dtype), integers(rng, (channels, 1, *kernel), dtype)
    return op, x, w, integers(rng, (channels,), result) if pick.random() < 0.5 else None


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("form", LAST_FORMS, ids=str)
def test_random_convolutions_are_exact(form: tuple[int, int], mode: str) -> None:
    pick = random.Random(f"{form}")
    for number in range(15 if mode == "plain" else 5):
        op, x, w, bias = make(pick, form, LAST_TYPES[number % len(LAST_TYPES)])
        emit = CheckingEmitter(number, has_weights=number % 3 > 0, mode=mode)
        np.testing.assert_array_equal(convolve(emit, op, x, w, bias), op.compute(x, w, bias)[0], err_msg=f"{op}")
        assert emit.names == ["conv_depthwise_last"]


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT16])
def test_results_are_those_of_row_major_images(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    op = Conv(group=16, pads=(1,) * 4, strides=(2, 2))
    x, w, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 16, 13, 11), (16, 1, 3, 3), (16,)))
    row_major = CheckingEmitter(mode="plain")
    expected = row_major.run(op, (x, w, bias))
    assert row_major.names == ["conv_depthwise"]
    np.testing.assert_array_equal(convolve(CheckingEmitter(mode="plain"), op, x, w, bias), expected)


@pytest.mark.parametrize(("channels", "stride"), [(16, 1), (64, 1), (144, 2)])
def test_images_take_the_least_sectors(channels: int, stride: int) -> None:
    rng, emit = np.random.default_rng(0), CheckingEmitter(mode="count")
    op = Conv(group=channels, pads=(1,) * 4, strides=(stride,) * 2)
    x, w = integers(rng, (1, channels, 16, 16), HALF), integers(rng, (channels, 1, 3, 3), HALF)
    convolve(emit, op, x, w, None)
    kinds = set()
    for line in emit.counts[0].lines:
        if line.counts.nbytes:
            kinds.add((line.space, line.access, line.width))
            assert line.counts.ratio == 1.0, line
    assert kinds == {("global", "read", 16), ("global", "write", 16)}


@pytest.mark.parametrize(
    ("form", "mode"), [*((form, "check") for form in LAST_FORMS), (LAST_FORMS[0], "plain")], ids=str
)
@pytest.mark.parametrize("types", LAST_TYPES, ids=str)
def test_epilogues_are_exact(form: tuple[int, int], types: tuple[Any, Any], mode: str) -> None:
    """In check mode, and the form of any extent as users run it, without the checks."""
    rng, (dtype, result) = np.random.default_rng(2), types
    extent, stride = form if form != LAST_FORMS[0] else (4, 3)
    x, w = integers(rng, (2, 16, 9, 10), dtype), integers(rng, (16, 1, extent, extent), dtype)
    bias, scale = integers(rng, (16,), result), integers(rng, (16, 1, 1), result)
    steps: tuple[Any, ...] = (("Mul", (), (-1, 3)), ("Relu", (), (-1,)), ("Add", (), (-1, -2)))
    attributes: dict[str, Any] = {"group": 16, "strides": (stride,) * 2, "pads": (1,) * 4}
    if result != dtype:
        attributes["precision"] = PRECISIONS[dtype]
        steps += (("Cast", (("to", dtype_row(dtype).code),), (-1,)),)
    op, emit = build("gpuexec.FusedConv", {**attributes, **chain(steps)}), CheckingEmitter(mode=mode)
    np.testing.assert_array_equal(convolve(emit, op, x, w, bias, scale), op.compute(x, w, bias, scale)[0])
    assert emit.names == ["conv_depthwise_last"]


def plan(graph: Graph, x: Array, target: str) -> tuple[list[Array], list[str], int]:
    """Return the results on the simulator, the kernels launched, and how many transposes there are."""
    device = make_simulator(target=target, check_kernels=True)
    plan = plan_graph(graph, {"x": TensorSpec(x.shape, x.dtype)}, device.target).plan
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        results = loaded.run({"x": x})
    device.close()
    commands = plan.segment.commands
    names = [each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)]
    return list(results), names, count_transposes(commands)[0]


@pytest.mark.parametrize("precision", ["", "fp16"])
def test_blocks_of_a_mobile_net_are_turned_at_the_ends_alone(precision: str) -> None:
    rng, graph = np.random.default_rng(3), GraphBuilder()
    dtype = FLOAT if precision else HALF
    x = integers(rng, (2, 8, 9, 10), dtype)
    value = graph.input("x", *x.shape, dtype=dtype)
    for shape, group in (((16, 8, 1, 1), 1), ((16, 1, 3, 3), 16), ((8, 16, 1, 1), 1)):
        pads = (shape[-1] // 2,) * 4
        made = graph.node(
            build("Conv", {"pads": pads, "group": group}), value, graph.constant(integers(rng, shape, dtype))
        )
        value = graph.node(build("Relu", {}), made)
    made_graph = graph.graph(value)
    expected = compute_graph(made_graph, {"x": x})[0]
    if precision:
        made_graph = lower_precision(made_graph, Precision(precision))
    got, names, transposes = plan(made_graph, x, "sm_90")
    np.testing.assert_array_equal(got[0], expected)
    products = names.count("mma_gemm") + names.count("mma_few")
    assert products == 2 and names.count("conv_depthwise_last") == 1 and transposes == 2


def test_convolutions_of_stored_types_gain_what_widening_moves() -> None:
    image, weight = TensorSpec((1, 16, 56, 56), HALF), TensorSpec((16, 1, 3, 3), HALF)
    result = TensorSpec(image.shape, FLOAT)
    ops = [Conv(pads=(1,) * 4, group=16, precision=precision) for precision in ("fp16", "")]
    target = Target.named("sm_75")
    gains = [op.count_format_gain((image, weight), (y,), target) for op, y in zip(ops, (result, image), strict=True)]
    assert gains == [4 * image.nbytes + LAUNCH_NBYTES, 0]


@pytest.mark.parametrize("channels", [12, 16], ids=["odd", "row-major"])
def test_stored_types_are_widened_where_there_is_no_kernel_for_them(channels: int) -> None:
    rng, graph = np.random.default_rng(4), GraphBuilder()
    x = integers(rng, (1, channels, 7, 9), HALF)
    weight = graph.constant(integers(rng, (channels, 1, 3, 3), HALF))
    op = build("Conv", {"group": channels, "precision": "fp16"})
    made = graph.graph(graph.node(op, graph.input("x", *x.shape, dtype=HALF), weight))
    got, names, _ = plan(made, x, "sm_90")
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert names[-1] == "conv_depthwise"
