"""Size classes of operators: one plan's kernels and memory serve every size of the class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import Tolerance, build
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Array
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(23)
SCALE, ZERO = np.array(0.1, np.float32), np.array(9, np.uint8)
PACKED = {"K": 20, "N": 3, "block_size": 16}
LIMIT, THRESHOLD, DEPTH = np.array([7]), np.array([0.4], np.float32), np.array(5)


def numbers(*shape: int) -> Array:
    return RNG.integers(0, 40, shape).astype(np.float32)


def small(*shape: int) -> Array:
    return RNG.uniform(-0.5, 0.5, shape).astype(np.float32)


def eighths(*shape: int) -> Array:
    return RNG.integers(-4, 5, shape).astype(np.float32) / 8


def codes(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def places(*shape: int) -> Array:
    return RNG.integers(0, 4, shape)


# Operator, attributes, inputs whose first axis is free, and the constants behind them.
CASES: list[tuple[str, dict[str, Any], Callable[[int], list[Array]], list[Array]]] = [
    ("gpuexec.Compact", {}, lambda n: [numbers(n, 3)], []),
    ("gpuexec.Unravel", {}, lambda n: [places(n)], [np.array([2, 3, 4])]),
    ("gpuexec.FindUnique", {}, lambda n: [numbers(n)], []),
    ("gpuexec.FindUnique", {"sorted": 0, "axis": 0}, lambda n: [numbers(n, 2)], []),
    ("gpuexec.SelectBoxes", {}, lambda n: [numbers(n, 6, 4), numbers(n, 1, 6)], [LIMIT, THRESHOLD]),
    ("TopK", {"axis": 0}, lambda n: [numbers(n)], [np.array([2])]),
    ("TopK", {"axis": 1, "largest": 0}, lambda n: [numbers(n, 9)], [np.array([4])]),
    ("ScatterElements", {}, lambda n: [numbers(n, 2), places(n, 2) % 2, numbers(n, 2)], []),
    ("ScatterElements", {"reduction": "mul"}, lambda n: [numbers(n, 2), places(n, 2) % 2, numbers(n, 2)], []),
    ("ScatterND", {}, lambda n: [numbers(n), places(n, 1) % 2, numbers(n)], []),
    ("ScatterND", {"reduction": "add"}, lambda n: [numbers(n), places(n, 1) % 2, numbers(n)], []),
    ("OneHot", {}, lambda n: [places(n)], [DEPTH, np.array([0, 9])]),
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1}, lambda n: [numbers(n, 4), places(n)], []),
    ("GridSample", {"mode": "cubic"}, lambda n: [numbers(n, 2, 3, 4), small(n, 2, 2, 2)], []),
    ("GridSample", {"mode": "nearest"}, lambda n: [numbers(n, 2, 3, 4), small(n, 2, 2, 2)], []),
    ("RoiAlign", {"output_width": 2}, lambda n: [numbers(n, 2, 3, 4), numbers(n, 4) / 9, 0 * places(n)], []),
    ("MaxRoiPool", {"pooled_shape": (1, 2)}, lambda n: [numbers(n, 2, 3, 4), small(n, 5)], []),
    ("MaxUnpool", {"kernel_shape": (2,), "strides": (2,)}, lambda n: [numbers(n, 1, 2), places(n, 1, 2)], []),
    ("Col2Im", {}, lambda n: [numbers(n, 4, 4)], [np.array([3, 3]), np.array([2, 2])]),
    ("TensorScatter", {}, lambda n: [numbers(n, 5, 2), numbers(n, 2, 2), places(n)], []),
    ("CenterCropPad", {"axes": (0,)}, lambda n: [numbers(n, 3)], [np.array([100])]),
    # The class chooses in which order a product adds; sums of eighths are exact in any.
    ("LSTM", {}, lambda n: [eighths(n, 2, 3)], [eighths(1, 40, 3), eighths(1, 40, 10)]),
    ("GRU", {"layout": 1, "hidden_size": 10}, lambda n: [small(n, 5, 3)], [small(1, 30, 3), small(1, 30, 10)]),
    ("CausalConvWithState", {}, lambda n: [small(n, 2, 3)], [small(2, 1, 4)]),
    ("DynamicQuantizeLinear", {}, lambda n: [small(n, 30)], []),
    ("MatMul", {}, lambda n: [numbers(n, 300)], [numbers(300, 9)]),
    ("MatMul", {}, lambda n: [numbers(n, 70)], [numbers(70, 2)]),
    ("MatMul", {}, lambda n: [numbers(n, 9, 33), numbers(n, 33, 5)], []),
    ("Gemm", {"transA": 1}, lambda n: [numbers(n, 40), numbers(n, 36)], []),
    ("Gemm", {"transB": 1}, lambda n: [numbers(n, 33)], [numbers(50, 33), numbers(50)]),
    ("MatMulInteger", {}, lambda n: [codes(n, 9)], [codes(9, 4), codes(1)]),
    ("Conv", {"pads": (1, 1, 1, 1)}, lambda n: [numbers(n, 3, 4, 4)], [numbers(5, 3, 3, 3), numbers(5)]),
    ("Conv", {}, lambda n: [numbers(n, 24, 1, 3)], [numbers(70, 24, 1, 1)]),
    ("Conv", {"group": 3, "pads": (1, 1, 1, 1)}, lambda n: [numbers(n, 3, 5, 4)], [numbers(3, 1, 3, 3)]),
    ("ConvTranspose", {"strides": (2, 2)}, lambda n: [numbers(n, 3, 3, 2)], [numbers(3, 8, 3, 3)]),
    ("ConvInteger", {}, lambda n: [codes(n, 2, 4, 4)], [codes(3, 2, 3, 3), codes(1)]),
    ("com.microsoft.QLinearAdd", {}, lambda n: [codes(n, 3)], [SCALE, ZERO, codes(3), SCALE, ZERO, SCALE, ZERO]),
    ("com.microsoft.MatMulNBits", PACKED, lambda n: [small(n, 20)], [codes(3, 2, 8), small(3, 2)]),
    ("Einsum", {"equation": "nij,kj->nik"}, lambda n: [small(n, 3, 4)], [small(5, 4)]),
    ("Einsum", {"equation": "nij,nji->n"}, lambda n: [small(n, 3, 4), small(n, 4, 3)], []),
    ("Einsum", {"equation": "nijk,jki->ni"}, lambda n: [small(n, 3, 4, 2)], [small(4, 2, 3)]),
    ("Einsum", {"equation": "nij->j"}, lambda n: [small(n, 3, 4)], []),
    ("DFT", {}, lambda n: [small(n, 12, 1)], []),
    ("DFT", {}, lambda n: [small(n, 37, 2)], []),
    ("STFT", {}, lambda n: [small(n, 30, 1)], [np.array(4), small(8)]),
    ("Det", {}, lambda n: [small(n, 3, 3)], []),
    ("MeanVarianceNormalization", {"axes": (0, 2)}, lambda n: [small(n, 3, 4)], []),
    ("SwiGLU", {}, lambda n: [small(n, 3), small(n, 3)], []),
    ("NegativeLogLikelihoodLoss", {"reduction": "none"}, lambda n: [small(n, 4), places(n)], []),
    ("SoftmaxCrossEntropyLoss", {"reduction": "none"}, lambda n: [small(n, 4), places(n)], [small(4)]),
    (
        "LinearAttention",
        {"q_num_heads": 2, "kv_num_heads": 1, "update_rule": "linear"},
        lambda n: [small(n, 3, 8), small(n, 3, 4), small(n, 3, 5)],
        [],
    ),
]
# Whose kernels do the same for each place of the first axis, and take long: a smaller class does.
ALIKE = frozenset({"gpuexec.SelectBoxes", "Det", "RoiAlign", "LinearAttention", "LSTM", "GRU", "Conv", "ConvTranspose"})


@pytest.mark.parametrize(
    ("name", "attributes", "make", "constants"), CASES, ids=lambda item: "" if callable(item) else str(item)[:30]
)
def test_one_plan_serves_all_sizes(
    name: str, attributes: dict[str, Any], make: Callable[[int], list[Array]], constants: list[Array]
) -> None:
    device, op = open_device("simulator"), build(name, attributes)
    end, sizes = (512, (400, 256, 257, 70, 2)) if name in ALIKE else (1280, (1200, 1024, 1025, 70, 2))
    largest = make(sizes[0])
    graph_of = GraphBuilder()
    values = [graph_of.input(f"x{i}", "n", *x.shape[1:], dtype=x.dtype) for i, x in enumerate(largest)]
    known = [graph_of.constant(array) for array in constants]
    outputs = graph_of.nodes(op, *values, *known, count=len(op.compute(*largest, *constants)))
    graph = graph_of.graph(*outputs)

    def feed(n: int) -> dict[str, Array]:
        return {f"x{i}": x for i, x in enumerate(make(n))}

    template = plan_graph(graph, specs_of(feed(sizes[0])), device.target)
    assert {shape[0] for shape in template.ends.values()} == {end}
    for n in sizes:
        feeds = feed(n)
        expected = op.compute(*feeds.values(), *constants)
        if op.tolerance is not Tolerance.EXACT:  # what a plan of its own gives
            expected = tuple(run_template(plan_graph(graph, specs_of(feeds), device.target), graph, feeds, device))
        for got, wanted in zip(run_template(template, graph, feeds, device), expected, strict=True):
            assert wanted is not None
            np.testing.assert_array_equal(to_bits(got), to_bits(wanted), err_msg=f"{name} of {n}")
