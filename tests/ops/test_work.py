"""Closed forms of launches: their flops, bytes and wavefronts are those that formulas of operators and count mode give.

Products and convolutions are of halves, whose sums are floats. The host compiler takes a vector of four floats that
machine code reads at once from shared memory as four accesses, each of as many wavefronts: so reads are counted four
times there, but for those that are of one float in machine code too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.kernels.kernel_source import find_kernels, find_source
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, list_forms
from gpuexec.passes import run_passes
from gpuexec.planner.launch_work import describe_work
from gpuexec.planner.template import plan_graph
from tests.devices.execute import specs_of
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts, floats

F16, F64, U8 = np.float16, np.float64, np.uint8


def gemm(rows: int, inner: int, columns: int, *, turned: int = 0) -> CountedCase:
    """Return a product of halves where there are no tensor cores for it."""
    weight = floats(*((columns, inner) if turned else (inner, columns)), dtype=F16)
    return CountedCase("Gemm", "gemm", {"x": (rows, inner)}, {"w": weight}, {"transB": turned}, F16, target="sm_75")


def conv(
    batch: int, ins: int, outs: int, extent: int, taps: int, stride: int = 1, group: int = 1, dtype: type = F16
) -> CountedCase:
    """Return a convolution padded so that its middle tap is inside; one by tiles where there are no tensor cores."""
    attributes = {"strides": [stride] * 2, "pads": [taps // 2] * 4, "group": group}
    kernel = "conv_direct" if group in (ins, outs) else "conv_gemm"
    weight = floats(outs, ins // group, taps, taps, dtype=dtype)
    target = "sm_75" if kernel == "conv_gemm" else "sm_90"
    inputs = {"x": (batch, ins, extent, extent)}
    return CountedCase("Conv", kernel, inputs, {"w": weight}, attributes, dtype, target=target)


NORM = CountedCase("LayerNormalization", "normalize_short_rows", {"x": (64, 256)}, {"s": floats(256), "b": floats(256)})
TRANSPOSED = CountedCase(
    "ConvTranspose",
    "conv_transpose",
    {"x": (1, 8, 8, 8)},
    {"w": floats(8, 16, 2, 2, dtype=F64)},
    {"strides": [2, 2]},
    F64,
)


def attention(batch: int, heads: int, queries: int, keys: int, depth: int) -> CountedCase:
    shapes = {"q": queries, "k": keys, "v": keys}
    return CountedCase("Attention", "attend", {name: (batch, heads, rows, depth) for name, rows in shapes.items()})


@pytest.mark.parametrize(
    "case",
    [
        gemm(64, 16, 64),
        gemm(64, 32, 64, turned=1),
        gemm(48, 48, 80),
        gemm(112, 48, 144, turned=1),
        gemm(144, 16, 16),
    ],
    ids=str,
)
def test_tiled_products_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    assert found.work.wavefronts == count_wavefronts(found.counts, 4)
    assert found.work.l2_nbytes == found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes


def turn(*shape: int, dtype: type = np.float32) -> CountedCase:
    """Return a sum with an operand whose last two axes are exchanged in memory."""
    *lead, rows, columns = shape
    inputs = {"x": (*lead, columns, rows), "z": shape}
    perm = (*range(len(lead)), len(lead) + 1, len(lead))
    return CountedCase("Add", "tiled", inputs, dtype=dtype, turned={"x": perm})


@pytest.mark.parametrize(
    "case",
    [
        turn(512, 256), turn(512, 512, dtype=F16), turn(512, 512, dtype=F64), turn(512, 512, dtype=U8),
        turn(2, 3, 128, 256),
    ],
    ids=str,
)  # fmt: skip
def test_squares_are_whole_sectors_and_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.counts.total("global").ratio == 1.0 and not found.counts.total("shared").requests
    assert found.work.l2_nbytes == found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes


@pytest.mark.parametrize("dtype", [np.float32, F16, F64, U8], ids=lambda dtype: dtype.__name__)
def test_staged_tiles_have_no_bank_conflicts(dtype: type) -> None:
    found = compare(turn(517, 387, dtype=dtype))
    assert found.counts.total("shared").requests and found.counts.total("shared").ratio == 1.0
    # Rows begin within sectors, and tiles end there.
    assert found.counts.total("global").ratio <= {np.float32: 1.26, F16: 1.55, F64: 1.15, U8: 1.95}[dtype]


@pytest.mark.parametrize("case", [gemm(1, 64, 32), gemm(4, 64, 16), gemm(2, 64, 24, turned=1)], ids=str)
def test_products_of_few_rows_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    assert found.work.l2_nbytes == found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes


@pytest.mark.parametrize(
    "case", [conv(1, 16, 64, 8, 1), conv(1, 32, 64, 16, 3), conv(1, 32, 72, 16, 3, 2), conv(2, 8, 32, 12, 3, 1, 2)],
    ids=str,
)  # fmt: skip
def test_convolutions_by_tiles_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    assert found.work.wavefronts == count_wavefronts(found.counts, 4)
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes
    # Count mode has no L1, which answers most taps of a place after the first.
    counted = found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert 0.35 * counted <= found.work.l2_nbytes <= 1.01 * counted


@pytest.mark.parametrize(
    "case",
    [
        conv(1, 32, 32, 12, 3, 1, 32, F64),
        TRANSPOSED,
        CountedCase("MaxPool", "max_pool", {"x": (1, 8, 16, 16)}, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        CountedCase("Softmax", "softmax", {"x": (8, 1040)}),
        CountedCase("Softmax", "softmax_short", {"x": (64, 128)}),
        NORM,
        CountedCase("ReduceSum", "reduce", {"x": (64, 256)}, {"a": np.array([1])}, {"keepdims": 0}),
        CountedCase("Gather", "gather_slices", {"x": (50, 64)}, {"i": np.array([1, 7, 3, 0])}),
    ],
    ids=str,
)  # fmt: skip
def test_other_launches_move_what_is_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.operand_nbytes == pytest.approx(
        found.counts.dram_read_nbytes + found.counts.dram_written_nbytes, rel=0.01
    )
    assert found.work.l2_nbytes <= 1.01 * (found.counts.l2_read_nbytes + found.counts.l2_written_nbytes)


@pytest.mark.parametrize(
    "case",
    [
        conv(1, 32, 32, 9, 1, 1, 32, F64),
        TRANSPOSED,
        NORM,
    ],
    ids=str,
)  # fmt: skip
def test_flops_are_those_of_the_operator(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.flops == found.flops
    assert found.work.needed_multiply_adds == found.counts.multiply_adds.taken


@pytest.mark.parametrize("case", [attention(1, 2, 64, 64, 32), attention(1, 1, 100, 128, 64)], ids=str)
def test_attention_is_as_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.l2_nbytes == found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert found.operand_nbytes == found.counts.dram_read_nbytes + found.counts.dram_written_nbytes
    assert found.work.wavefronts == pytest.approx(count_wavefronts(found.counts, 4), rel=0.15)
    assert found.work.multiply_adds == pytest.approx(found.counts.multiply_adds.calls, rel=0.25)


def test_steps_of_an_epilogue_are_work() -> None:
    product, step = helper.make_node("Gemm", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])
    plain, finished = (_describe(nodes) for nodes in ([product], [product, step]))
    assert finished.flops == plain.flops + 64 * 64
    assert finished.instructions > plain.instructions


def _describe(nodes: Sequence[onnx.NodeProto]) -> Work:
    """Return the work of the one launch that nodes become."""
    output = helper.make_tensor_value_info(nodes[-1].output[0], 1, None)
    weight = onnx.numpy_helper.from_array(floats(32, 64), "w")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [64, 32])], [output], [weight])
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    specs = specs_of({"x": floats(64, 32)})
    ready = run_passes(model.graph, model._plan_passes, model.disabled_passes, specs)
    (command,) = plan_graph(ready, specs, Target.named("sm_90")).plan.segment.commands
    return describe_work(command)


def test_recurrent_layers_issue_what_is_counted() -> None:
    weights = {"w": floats(1, 256, 32), "r": floats(1, 256, 64)}
    found = compare(CountedCase("LSTM", "recur", {"x": (4, 8, 32)}, weights, {"hidden_size": 64}))
    assert found.work.multiply_adds == found.counts.multiply_adds.calls
    assert found.counts.issue_ratio == 1.0


def test_every_form_is_of_a_kernel_that_there_is() -> None:
    kernels = {(source, each.partition("<")[0]) for source, listed in kernel_table().items() for each in listed}
    # Instances of these are generated.
    for source in ("flat.cu", "mma_rows.cu", "mma_rows_nbits.cu", "rows.cu", "tiled.cu"):
        kernels |= {(source, name) for name in find_kernels(find_source(source))}
    assert {each for each in list_forms() if each[0] != "made_up.cu"} <= kernels
