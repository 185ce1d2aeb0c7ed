"""Transposed convolutions on tensor cores: random shapes to the bit, and the plans that launch them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph
from gpuexec.ir.operator import build
from gpuexec.ir.precision import Precision
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import LAUNCH_NBYTES
from gpuexec.ops.nn.conv import ConvTranspose
from gpuexec.passes.lower_precision import lower_precision
from gpuexec.planner.memory_format import count_transposes
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder, compute_graph

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = HALF) -> Array:
    return rng.integers(-2, 3, shape).astype(dtype)


def plan(graph: Graph, x: Array, target: str = "sm_90") -> tuple[list[Array], list[str], int]:
    """Return the results on the simulator, the kernels launched, and how many transposes there are."""
    device = make_simulator(target=target, check_kernels=True)
    plan = plan_graph(graph, {"x": TensorSpec(x.shape, x.dtype)}, device.target).plan
    with LoadedPlan(plan, {value.name: array for value, array in graph.constants.items()}, device) as loaded:
        results = loaded.run({"x": x})
    device.close()
    commands = plan.segment.commands
    names = [each.kernel.expression.partition("<")[0] for each in commands if isinstance(each, Launch)]
    return list(results), names, count_transposes(commands)[0]


@pytest.mark.parametrize("seed", range(8))
def test_random_convolutions_are_exact(seed: int) -> None:
    """Of one to three axes, channels padded or not."""
    pick, rng, graph = random.Random(seed), np.random.default_rng(seed), GraphBuilder()
    dtype, rank = pick.choice([HALF, BFLOAT16]), seed % 3 + 1
    channels, outs = pick.choice([3, 8, 12, 24, 40]), pick.choice([1, 5, 8, 24, 72])
    kernel = tuple([pick.choice([1, 2, 2, 3, 4]) for _ in range(rank)])
    extents = tuple([pick.choice([1, 3, 5, 9]) for _ in range(rank)])
    x, w = (
        integers(rng, (pick.choice([1, 3]), channels, *extents), dtype),
        integers(rng, (channels, outs, *kernel), dtype),
    )
    value = graph.node(build("Relu", {}), graph.input("x", *x.shape, dtype=dtype))
    bias = [graph.constant(integers(rng, (outs,), dtype))] if seed % 2 else []
    made = graph.graph(graph.node(build("ConvTranspose", {"strides": kernel}), value, graph.constant(w), *bias))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert {"mma_gemm", "mma_few"} & set(names)


@pytest.mark.parametrize("seed", range(6))
def test_random_convolutions_of_tf32_are_exact(seed: int) -> None:
    """Of few columns or output channels, which take other kernels, too."""
    pick, rng, graph = random.Random(f"tf32 {seed}"), np.random.default_rng(seed), GraphBuilder()
    rank = seed % 3 + 1
    channels, outs = pick.choice([3, 4, 12, 24, 40]), pick.choice([1, 5, 12, 24, 72])
    kernel = tuple([pick.choice([1, 2, 2, 3, 4]) for _ in range(rank)])
    extents = (*[pick.choice([1, 3, 5]) for _ in range(rank - 1)], pick.choice([5, 12, 33]))
    x = integers(rng, (pick.choice([1, 3]), channels, *extents), FLOAT)
    value = graph.node(build("Relu", {}), graph.input("x", *x.shape))
    given = [graph.constant(integers(rng, (channels, outs, *kernel), FLOAT))]
    given += [graph.constant(integers(rng, (outs,), FLOAT))] if seed % 2 else []
    made = graph.graph(graph.node(build("ConvTranspose", {"strides": kernel}), value, *given))
    made = lower_precision(made, Precision("tf32"))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert ("mma_gemm" in names) is (min(extents[-1], outs) > 8)


@pytest.mark.parametrize("channels", [8, 12])
def test_weights_that_are_computed_are_packed_by_a_copy(channels: int) -> None:
    rng, graph = np.random.default_rng(5), GraphBuilder()
    x = integers(rng, (channels, 8, 2, 2))
    image = graph.node(build("Relu", {}), graph.constant(integers(rng, (1, channels, 5, 6))))
    weight = graph.node(build("Neg", {}), graph.input("x", *x.shape, dtype=HALF))
    made = graph.graph(graph.node(build("ConvTranspose", {"strides": (2, 2)}), image, weight))
    got, names, _ = plan(made, x)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert {"mma_gemm", "mma_few"} & set(names)


@pytest.mark.parametrize("precision", ["", "fp16", "tf32"])
def test_images_are_turned_at_the_ends_alone(precision: str) -> None:
    rng, graph = np.random.default_rng(3), GraphBuilder()
    dtype = FLOAT if precision else HALF
    x = integers(rng, (2, 16, 5, 12), dtype)
    value = graph.input("x", *x.shape, dtype=dtype)
    value = graph.node(
        build("Relu", {}), graph.node(build("Conv", {}), value, graph.constant(integers(rng, (24, 16, 3, 3), dtype)))
    )
    up = graph.constant(integers(rng, (24, 16, 2, 2), dtype)), graph.constant(integers(rng, (16,), dtype))
    attributes = {"strides": (2, 2), "kernel_shape": (2, 2)}
    value = graph.node(build("Relu", {}), graph.node(build("ConvTranspose", attributes), value, *up))
    made = graph.graph(graph.node(build("Conv", {}), value, graph.constant(integers(rng, (8, 16, 3, 3), dtype))))
    expected = compute_graph(made, {"x": x})[0]
    if precision:
        made = lower_precision(made, Precision(precision))
    got, names, transposes = plan(made, x)
    np.testing.assert_array_equal(got[0], expected)
    assert names.count("conv_mma") == 2 and names.count("mma_gemm") == 1 and transposes == 2


@pytest.mark.parametrize(
    ("target", "attributes", "kernel"),
    [
        ("sm_75", {"strides": (2, 2)}, (2, 2)),
        ("sm_90", {"strides": (2, 2), "group": 2}, (2, 2)),
        ("sm_90", {"strides": (2, 2)}, (3, 3)),  # whose taps overlap
        ("sm_90", {"strides": (2, 2), "pads": (1, 0, 0, 0)}, (2, 2)),
        ("sm_90", {"strides": (2, 2), "output_padding": (1, 0)}, (2, 2)),
        ("sm_90", {"strides": (2, 2), "dilations": (2, 2)}, (2, 2)),
    ],
    ids=["sm_75", "groups", "overlap", "pads", "output-padding", "dilation"],
)
def test_other_convolutions_keep_their_kernels(
    target: str, attributes: dict[str, Any], kernel: tuple[int, ...]
) -> None:
    rng, graph = np.random.default_rng(4), GraphBuilder()
    x = integers(rng, (1, 16, 5, 6))
    weight = graph.constant(integers(rng, (16, 8, *kernel)))
    made = graph.graph(graph.node(build("ConvTranspose", attributes), graph.input("x", *x.shape, dtype=HALF), weight))
    got, names, _ = plan(made, x, target)
    np.testing.assert_array_equal(got[0], compute_graph(made, {"x": x})[0])
    assert "mma_gemm" not in names


def test_convolutions_gain_what_their_transposes_move() -> None:
    image, weight = TensorSpec((1, 16, 56, 56), HALF), TensorSpec((16, 8, 2, 2), HALF)
    result = TensorSpec((1, 8, 112, 112), HALF)
    op = ConvTranspose(strides=(2, 2))
    gains = [op.count_format_gain((image, weight), (result,), Target.named(name)) for name in ("sm_90", "sm_75")]
    assert gains == [2 * (image.nbytes + result.nbytes + LAUNCH_NBYTES), 0]


def test_attributes_say_whether_operands_are_stored_narrow() -> None:
    assert ConvTranspose(strides=(2, 2), kernel_shape=(2, 2)).takes_narrow
    assert not ConvTranspose(strides=(2, 2), kernel_shape=(3, 3)).takes_narrow
    assert not ConvTranspose(strides=(2, 2), kernel_shape=(2, 2), pads=(1, 1, 1, 1)).takes_narrow
    assert not ConvTranspose(strides=(2, 2)).takes_narrow  # the weight alone says its extents
