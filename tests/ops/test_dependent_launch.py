"""Kernels that wait for predecessors: each behind another launch that it overlaps, in the simulator's check mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.kernels.kernel_source import find_source, find_waiting_kernels, flatten
from gpuexec.devices.recorder.tracer import DEPENDENT, TracerDevice
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.ir.command import Command, Kernel, Launch
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise import prologue
from gpuexec.planner.template import plan_graph
from tests.devices.execute import LoadedPlan
from tests.devices.opening import make_simulator
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ops.harness import TARGETS, keep_plans

SHAPE = (6, 2, 130)
RNG = np.random.default_rng(9)
X = RNG.normal(0.5, 1.5, SHAPE).astype(np.float32)
ROW = np.linspace(0.5, 2, SHAPE[-1], dtype=np.float32)
FLOAT8, FLOAT, UINT8, INT8, INT32, INT64, BOOL, DOUBLE, INT4 = 17, 1, 2, 3, 6, 7, 9, 11, 22
FLOAT16 = 10
SCALAR = np.array(0.25, np.float32)
PREDECESSOR = "unary"
ROWS, IMAGE, LINE = (12, 130), (1, 8, 15, 13), (1, X.size)
EIGHT = np.linspace(0.5, 2, 8, dtype=np.float32)  # of the channels of an image
LONG = np.linspace(0.5, 2, X.size, dtype=np.float32)

Build = Callable[[GraphBuilder, Value], Sequence[Value]]


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return random whole numbers, 1 to 9: sums of products of such are exact in any order."""
    return RNG.integers(1, 10, shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def then(
    name: str,
    *others: Any,
    at: int = 0,
    shape: tuple[int, ...] | None = None,
    cast: int | None = None,
    count: int = 1,
    wide: int | None = None,
    absent: tuple[int, ...] = (),
    is_whole: bool = False,
    **attributes: Any,
) -> Build:
    """Return what adds an operator of the value that the launch before makes.

    Args:
        name: The operator.
        others: Its other inputs, in order: constants, or None for one that is left out.
        at: Where the value stands among the inputs.
        shape: What the value is reshaped to.
        cast: The type that it is cast to.
        count: Outputs.
        wide: The type that the first output is cast to, where NumPy knows none like it.
        absent: Outputs that are left out.
        is_whole: Whether the value is made whole numbers.
        attributes: Of the operator.
    """

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        if shape is not None:
            before = graph.node(build("Reshape", {}), before, graph.constant(ints(*shape)))
        if is_whole:
            before = graph.node(build("Cast", {"to": FLOAT}), graph.node(build("Cast", {"to": INT8}), before))
        if cast is not None:
            before = graph.node(build("Cast", {"to": cast}), before)
        inputs = [None if each is None else graph.constant(each) for each in others]
        inputs.insert(at, before)
        made = graph.nodes(build(name, attributes), *inputs, count=count, absent=absent)
        made = [each for index, each in enumerate(made) if index not in absent]
        return made if wide is None else [graph.node(build("Cast", {"to": wide}), made[0]), *made[1:]]

    return add


def multiply(name: str, *others: Any, **more: Any) -> Build:
    """Return what adds an operator whose sums of products are exact."""
    return then(name, *others, is_whole=True, **more)


def choose(graph: GraphBuilder, before: Value) -> Sequence[Value]:
    condition = graph.node(build("Greater", {}), before, graph.constant(SCALAR))
    return [graph.node(build("Where", {}), condition, before, graph.constant(X))]


def convolve_and(name: str, *others: Any, **attributes: Any) -> Build:
    """Return what adds a convolution of half into float, and an operator of the image, whose channels lie last."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        ones = np.ones((8, 8, 1, 1), np.float16)
        made = multiply("Conv", ones, shape=IMAGE, cast=FLOAT16, precision="fp16")(graph, before)
        return then(name, *others, **attributes)(graph, made[0])

    return add


def expand_and(name: str, *others: Any) -> Build:
    """Return what adds an operator of an image with channels of 4680 positions."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        made = then("Expand", ints(1, 8, 195, 24), shape=(1, 8, 195, 1))(graph, before)
        return then(name, *others)(graph, made[0])

    return add


def normalize_convolved() -> Build:
    """Return what adds a convolution of half images of 4608 positions, and the normalisation of what it makes."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        ones = (np.ones(8, np.float16),) * 2
        rows = (("Conv", (), (0, 1)), ("InstanceNormalization", (), (-1, 2, 3)))
        made = then("Expand", ints(1, 8, 195, 24), shape=(1, 8, 195, 1))(graph, before)
        cast = graph.node(build("Cast", {"to": FLOAT16}), made[0])
        weight = graph.constant(numbers(8, 8, 4, 1, dtype=np.float16))
        return [graph.node(build("gpuexec.NormalizedConv", {"steps": rows}), cast, weight, *map(graph.constant, ones))]

    return add


def copy_and(name: str, *others: Any) -> Build:
    """Return what adds an operator of a dense image, whose channels have 4680 positions."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        shown = then("Expand", ints(1, 8, 195, 24), shape=(1, 8, 195, 1))(graph, before)
        return then(name, *others)(graph, graph.node(build("Relu", {}), shown[0]))

    return add


def make_beside(name: str, *constants: Any) -> Build:
    """Return what adds an operator of constants alone, whose result the host knows: a launch stores it."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        return [before, graph.node(build(name, {}), *(graph.constant(each) for each in constants))]

    return add


def scatter_into_transposed(name: str, indices: np.ndarray, updates: np.ndarray) -> Build:
    """Return what adds updates to the transposed value: a launch copies it before they are located."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        rows = graph.node(build("Reshape", {}), before, graph.constant(ints(*ROWS)))
        data = graph.node(build("Transpose", {"perm": (1, 0)}), rows)
        scatter = build(name, {"reduction": "add"})
        return [graph.node(scatter, data, graph.constant(indices), graph.constant(updates))]

    return add


def find_coordinates(graph: GraphBuilder, before: Value) -> Sequence[Value]:
    flat = graph.node(build("Reshape", {}), before, graph.constant(ints(-1)))
    positions, count = graph.nodes(build("gpuexec.Compact", {}), flat, count=2)
    return [graph.node(build("gpuexec.Unravel", {}), positions, graph.constant(ints(*SHAPE))), count]


def turn(*, is_odd: bool) -> Build:
    """Return what adds a sum with a transposed view, of more than the flat kernel takes across."""

    def add(graph: GraphBuilder, before: Value) -> Sequence[Value]:
        tall = graph.node(build("Tile", {}), before, graph.constant(ints(1, SHAPE[-1] // SHAPE[1], 1)))
        starts, ends = (graph.constant(ints(*row)) for row in ((is_odd, is_odd), (SHAPE[-1], SHAPE[-1])))
        tall = graph.node(build("Slice", {}), tall, starts, ends, graph.constant(ints(1, 2)))
        turned = graph.node(build("Transpose", {"perm": (0, 2, 1)}), tall)
        steps = (("Add", (), (0, 1)), ("Relu", (), (-1,)))
        return [graph.node(build("gpuexec.Region", {"steps": steps, "results": (1,)}), turned, tall)]

    return add


# By the kernel, and where one has several ways to read its operands, by a word behind it.
CASES: dict[str, Build] = {
    "unary": then("Relu"),
    "binary": then("Add", ROW),
    "power": then("Pow", np.array(2.0, np.float32)),
    "fold": then("Max", ROW, SCALAR),
    "convert": then("Cast", to=BOOL),
    "convert_narrow": then("Cast", wide=FLOAT, to=FLOAT8),
    "clip": then("Clip", SCALAR, None),
    "where": choose,
    "flat": then("gpuexec.Region", ROW, steps=(("Add", (), (0, 1)), ("Relu", (), (-1,))), results=(1,)),
    "rows": then("gpuexec.RowRegion", ROW, steps=(("Add", (), (0, 1)), ("Softmax", (), (-1,))), results=(1,)),
    "tiled": turn(is_odd=False),
    "tiled staged": turn(is_odd=True),
    "swiglu": then("SwiGLU", X),
    # Rows.
    "softmax": then("Softmax", shape=LINE, axis=-1),
    "softmax_short": then("Softmax", axis=-1),
    "hardmax": then("Hardmax", axis=-1),
    "normalize_rows": then("LayerNormalization", LONG, LONG, shape=LINE),
    "normalize_short_rows": then("LayerNormalization", ROW, ROW),
    "normalize_large_channels": expand_and("InstanceNormalization", EIGHT, EIGHT),
    "normalize_small_channels": convolve_and("InstanceNormalization", EIGHT, EIGHT),
    "normalize_and_measure_rows": then("LayerNormalization", ROW, ROW, count=2),
    "normalize_summed_rows": then("com.microsoft.SkipLayerNormalization", X, ROW),
    "normalize_channels": then("BatchNormalization", *(numbers(8) for _ in range(4)), shape=IMAGE),
    "measure_channels": then(
        "BatchNormalization", *(numbers(8) for _ in range(4)), shape=IMAGE, count=3, training_mode=1
    ),
    "normalize_neighbours": then("LRN", shape=IMAGE, size=3),
    "normalize_mean_variance": then("MeanVarianceNormalization", shape=IMAGE),
    "reduce": then("ReduceSum", ints(-1)),
    "reduce_chunks": then("ReduceSum"),
    "reduce_partials": then("ReduceSum"),
    "find_extremum": then("ArgMax", axis=-1),
    "lp_norm": then("GlobalLpPool", p=3),
    "cumulative": then("CumSum", np.array(2, np.int64)),
    # Products.
    "simt_gemm": multiply("MatMul", numbers(130, 9), shape=ROWS),
    "simt_gemm vectors": multiply("MatMul", numbers(40, 64), shape=(39, 40)),
    "simt_gemm left": multiply("MatMul", numbers(20, 39), at=1, shape=(39, 40)),
    "mma_gemm": multiply("MatMul", numbers(40, 64, dtype=np.float16), shape=(39, 40), cast=FLOAT16),
    "mma_gemm elements": multiply("MatMul", numbers(130, 9, dtype=np.float16), shape=ROWS, cast=FLOAT16),
    "mma_few": multiply("MatMul", numbers(520, 64, dtype=np.float16), shape=(3, 520), cast=FLOAT16),
    "mma_of_rows": multiply(
        "gpuexec.ProductOfRows",
        numbers(520, 64, dtype=np.float16),
        shape=(3, 520),
        maker=(
            "gpuexec.Region",
            (("steps", (("Abs", (), (0,)), ("Cast", (("to", FLOAT16),), (-1,)))), ("results", (1,))),
        ),
        product=("MatMul", (("precision", "fp16"),)),
        taken=1,
    ),
    "gemv_along_k": multiply("Gemm", numbers(9, 260), shape=(6, 260), transB=1),
    "gemv_along_k elements": multiply("Gemm", numbers(9, 195), shape=(8, 195), transB=1),
    "gemv_along_columns": multiply("MatMul", numbers(260, 16), shape=(6, 260)),
    "gemv_along_columns elements": multiply("MatMul", numbers(195, 9), shape=(8, 195)),
    "gemm": multiply("MatMul", numbers(130, 9, dtype=np.float64), shape=ROWS, cast=DOUBLE),
    "gemm few": multiply("MatMul", numbers(390, 9, dtype=np.float64), shape=(4, 390), cast=DOUBLE),
    "gemm_narrow": multiply(
        "gpuexec.NarrowMatMul", numbers(130, 9, dtype=np.int8), numbers(130), shape=ROWS, to=FLOAT, scale_axis=0
    ),
    "simt_gemm_narrow": multiply("gpuexec.NarrowMatMul", numbers(130, 9, dtype=np.int8), SCALAR, shape=ROWS, to=FLOAT),
    "gemv_along_k_narrow": multiply(
        "gpuexec.NarrowGemm", numbers(9, 260, dtype=np.int8), None, SCALAR, shape=(6, 260), transB=1, to=FLOAT
    ),
    "gemv_along_columns_narrow": multiply(
        "gpuexec.NarrowMatMul", numbers(260, 16, dtype=np.int8), SCALAR, shape=(6, 260), to=FLOAT
    ),
    "matmul_nbits": multiply(
        "com.microsoft.MatMulNBits",
        RNG.integers(0, 256, (9, 9, 8), np.uint8),
        np.full((9, 9), SCALAR),
        shape=ROWS,
        K=130,
        N=9,
        bits=4,
        block_size=16,
    ),
    "mma_narrow": multiply(
        "gpuexec.NarrowMatMul",
        numbers(40, 9, dtype=np.int8),
        SCALAR.astype(np.float16),
        shape=(39, 40),
        cast=FLOAT16,
        to=FLOAT16,
    ),
    "mma_float8": multiply(
        "gpuexec.ScaledMatMul",
        np.ones((40, 9), dtype_row(FLOAT8).numpy),
        SCALAR,
        SCALAR,
        shape=(39, 40),
        cast=FLOAT8,
    ),
    "few_nbits": multiply(
        "com.microsoft.MatMulNBits",
        np.arange(9 * 17 * 16).astype(np.uint8).reshape(9, 17, 16),
        np.full((9, 17), 0.5, np.float32),
        shape=(3, 520),
        K=520,
        N=9,
        bits=4,
        block_size=32,
    ),
    "mma_few_nbits": multiply(
        "com.microsoft.MatMulNBits",
        np.arange(9 * 17 * 16).astype(np.uint8).reshape(9, 17, 16),
        np.full((9, 17), 0.5, np.float16),
        shape=(3, 520),
        cast=FLOAT16,
        K=520,
        N=9,
        bits=4,
        block_size=32,
    ),
    "mma_of_rows_nbits": multiply(
        "gpuexec.ProductOfRows",
        np.arange(9 * 17 * 16).astype(np.uint8).reshape(9, 17, 16),
        np.full((9, 17), 0.5, np.float32),
        shape=(3, 520),
        maker=(
            "gpuexec.Region",
            (("steps", (("Abs", (), (0,)), ("Cast", (("to", FLOAT16),), (-1,)))), ("results", (1,))),
        ),
        product=(
            "com.microsoft.MatMulNBits",
            (("K", 520), ("N", 9), ("bits", 4), ("block_size", 32), ("precision", "fp16")),
        ),
        taken=1,
    ),
    "mma_nbits": multiply(
        "com.microsoft.MatMulNBits",
        RNG.integers(0, 256, (9, 2, 16), np.uint8),
        np.full((9, 2), 0.5, np.float16),
        shape=(39, 40),
        cast=FLOAT16,
        K=40,
        N=9,
        bits=4,
        block_size=32,
    ),
    "integer_mma": multiply("MatMulInteger", numbers(130, 9, dtype=np.int8), shape=ROWS, cast=INT8),
    "integer_gemm": multiply("MatMulInteger", numbers(26, 9, dtype=np.int8), shape=(60, 26), cast=INT8),
    "integer_gemv": multiply("MatMulInteger", numbers(390, 9, dtype=np.int8), shape=(4, 390), cast=INT8),
    "pack_byte_rows": multiply("MatMulInteger", numbers(130, 9, dtype=np.int8), shape=ROWS, cast=INT8),
    "pack_byte_columns": multiply("MatMulInteger", numbers(20, 26, dtype=np.int8), at=1, shape=(26, 60), cast=INT8),
    "pack_byte_lines": multiply("MatMulInteger", numbers(20, 39, dtype=np.int8), at=1, shape=(39, 40), cast=INT8),
    # Convolutions.
    "simt_conv": multiply("Conv", numbers(5, 8, 3, 3), numbers(5), shape=IMAGE),
    "conv_mma": multiply("Conv", numbers(64, 8, 3, 3, dtype=np.float16), shape=IMAGE, cast=FLOAT16),
    "conv_few": multiply("Conv", numbers(64, 3, 3, 3, dtype=np.float16), shape=(1, 3, 26, 20), cast=FLOAT16),
    "pad_channels": multiply("Conv", numbers(8, 12, 3, 3, dtype=np.float16), shape=(1, 12, 13, 10), cast=FLOAT16),
    "conv_depthwise_last": convolve_and("Conv", numbers(8, 1, 3, 3), group=8),
    "conv_separable": multiply(
        "gpuexec.SeparableConv",
        np.ones((8, 1, 3, 3), np.float16),
        numbers(24, 8, 1, 1, dtype=np.float16),
        shape=IMAGE,
        cast=FLOAT16,
        steps=(("Conv", (("group", 8),), (0, 1)), ("Conv", (), (-1, 2))),
    ),
    "conv_normalized": normalize_convolved(),
    "simt_conv taps": multiply("Conv", numbers(5, 2, 3, 3), shape=(1, 2, 26, 30)),
    "simt_conv points": multiply("Conv", numbers(5, 8, 1, 1), shape=IMAGE, strides=(2, 2)),
    "simt_conv positions": copy_and("Conv", numbers(5, 8, 1, 1)),
    "simt_conv_transpose": multiply("ConvTranspose", numbers(8, 9, 3, 3), shape=IMAGE, strides=(2, 2)),
    "pack_conv_weights": multiply("Conv", numbers(1, 3, 20, 20), at=1, shape=(40, 3, 13, 1)),
    "conv_depthwise": multiply("Conv", numbers(8, 1, 3, 3), shape=IMAGE, group=8),
    "conv_depthwise weights": multiply("Conv", numbers(1, 40, 20, 20), at=1, shape=(40, 1, 3, 13), group=40),
    "conv_gemm": multiply("Conv", numbers(5, 8, 3, 3, dtype=np.float64), shape=IMAGE, cast=DOUBLE),
    "conv_direct": multiply("Conv", numbers(2, 4, 3, 3), shape=IMAGE, group=2),
    "conv_transpose": multiply("ConvTranspose", numbers(8, 3, 3, 3), shape=IMAGE),
    "conv_gemm_narrow": multiply(
        "gpuexec.NarrowConv", numbers(5, 8, 13, 11, dtype=np.int8), None, SCALAR, shape=IMAGE, to=FLOAT
    ),
    "simt_conv_narrow": multiply(
        "gpuexec.NarrowConv", numbers(5, 8, 3, 3, dtype=np.int8), None, SCALAR, shape=IMAGE, to=FLOAT
    ),
    "simt_conv_transpose_narrow": multiply(
        "gpuexec.NarrowConvTranspose",
        *(numbers(8, 9, 3, 3, dtype=np.int8), None, SCALAR),
        shape=IMAGE,
        strides=(2, 2),
        to=FLOAT,
    ),
    "conv_direct_narrow": multiply(
        "gpuexec.NarrowConv", numbers(8, 1, 3, 3, dtype=np.int8), None, SCALAR, shape=IMAGE, group=8, to=FLOAT
    ),
    "conv_transpose_narrow": multiply(
        "gpuexec.NarrowConvTranspose", numbers(8, 3, 3, 3, dtype=np.int8), None, SCALAR, shape=IMAGE, to=FLOAT
    ),
    "integer_conv_mma": multiply("ConvInteger", numbers(5, 8, 3, 3, dtype=np.int8), shape=IMAGE, cast=INT8),
    "integer_conv": multiply("ConvInteger", numbers(5, 3, 3, 3, dtype=np.int8), shape=(1, 3, 26, 20), cast=INT8),
    "pack_byte_windows": multiply("ConvInteger", numbers(5, 8, 3, 3, dtype=np.int8), shape=IMAGE, cast=INT8),
    "pack_conv_bytes": multiply(
        "ConvInteger", numbers(1, 2, 20, 20, dtype=np.int8), at=1, shape=(60, 2, 13, 1), cast=INT8
    ),
    "pack_conv_lines": multiply(
        "ConvInteger", numbers(1, 3, 20, 20, dtype=np.int8), at=1, shape=(40, 3, 13, 1), cast=INT8
    ),
    "integer_conv_direct": multiply("ConvInteger", numbers(8, 1, 3, 3, dtype=np.int8), shape=IMAGE, cast=INT8, group=8),
    "max_pool": then("MaxPool", shape=IMAGE, kernel_shape=(3, 3)),
    "average_pool": then("AveragePool", shape=IMAGE, kernel_shape=(3, 3)),
    "lp_pool": then("LpPool", shape=IMAGE, kernel_shape=(3, 3), p=2),
    # Attention.
    "attend": then("Attention", numbers(1, 2, 5, 130), numbers(1, 2, 5, 130), shape=(1, 2, 6, 130)),
    "attend_merge": then("Attention", numbers(1, 1, 300, 130), numbers(1, 1, 300, 7), shape=(1, 12, 1, 130)),
    "attend_mma": then(  # keys alike weigh alike, so that sums are exact
        "Attention",
        np.ones((1, 1, 64, 24), np.float16),
        numbers(1, 1, 64, 8, dtype=np.float16),
        shape=(1, 1, 65, 24),
        cast=FLOAT16,
    ),
    "attend_few": then(  # of one key, so that the result is its value
        "gpuexec.ScaledDotProductAttention",
        np.ones((1, 65, 1, 24), np.float32),
        np.ones((1, 65, 24, 1), np.float32),
        at=2,
        shape=(1, 65, 1, 24),
        precision="fp16",
    ),
    "attention_scores": then(
        "Attention", numbers(1, 2, 5, 130), numbers(1, 2, 5, 130), shape=(1, 2, 6, 130), count=4, absent=(1, 2)
    ),
    "rotate": then("RotaryEmbedding", numbers(2, 2, 65), numbers(2, 2, 65), shape=(2, 3, 2, 130)),
    # Copies and what moves elements.
    "copy_strided": then("Transpose", perm=(2, 0, 1)),
    "gather_slices": then("Gather", ints(2, 0, -1), axis=1, shape=(2, 6, 130)),
    "gather_slices indices": then("Gather", numbers(9, 5), at=1, cast=INT64),
    "gather_elements": then("GatherElements", numbers(6, 1, 130, dtype=np.int64) % 2, axis=1),
    "gather_narrow": then("gpuexec.NarrowGather", numbers(20, 5, dtype=np.int8), SCALAR, at=1, cast=INT64, to=FLOAT),
    "gather_blocks": then(
        "com.microsoft.GatherBlockQuantized",
        RNG.integers(0, 256, (20, 32), np.uint8),
        np.full((20, 4), SCALAR),
        at=1,
        cast=INT64,
        block_size=16,
        bits=4,
    ),
    "resize_nearest": then("Resize", None, np.array([1, 1, 1.5, 2], np.float32), shape=IMAGE, mode="nearest"),
    "resize_units": then("Resize", None, np.array([1, 2, 1], np.float32), shape=(3, 13, 40), mode="linear"),
    "resize_blend": then("Resize", None, np.array([1, 1, 1.5, 2], np.float32), shape=IMAGE, mode="linear"),
    "pad": then("Pad", ints(0, 1, 2, 3, 0, 1)),
    "one_hot": then("OneHot", np.array(5, np.int64), np.array([2, 3], np.float32), cast=INT64),
    "trilu": then("Trilu"),
    "reverse_sequence": then("ReverseSequence", ints(1, 4), batch_axis=1, time_axis=0),
    "tensor_scatter": then("TensorScatter", numbers(6, 1, 130), ints(0, 1, 1, 0, 0, 1)),
    "range": make_beside("Range", np.array(0.5, np.float32), np.array(3000.0, np.float32), np.array(1.5, np.float32)),
    "store": make_beside("Shape", X),
    "locate_elements": scatter_into_transposed("ScatterElements", numbers(9, 12, dtype=np.int64), numbers(9, 12)),
    "locate_slices": scatter_into_transposed("ScatterND", numbers(9, 1, dtype=np.int64), numbers(9, 12)),
    "write_latest": then("ScatterElements", numbers(5, 130, dtype=np.int64), numbers(5, 130), shape=ROWS),
    "fold_updates": then(
        "ScatterElements", numbers(5, 130, dtype=np.int64), numbers(5, 130), shape=ROWS, reduction="add"
    ),
    "cache_places": then("gpuexec.CachePlaces", numbers(1560, 3), shape=(1560,), cast=INT64, count=3),
    "place_rows": then("gpuexec.PlaceRows", numbers(2, 2, 9, 130), ints(4, 6), at=1, shape=(2, 2, 3, 130)),
    "mask_bias": then(
        "gpuexec.MaskBias", numbers(12, 2, 8), numbers(12, 1, 130, 4), at=2, shape=ROWS, cast=INT32, filter=-10.0
    ),
    "causal_conv": multiply("CausalConvWithState", numbers(6, 1, 4), shape=(2, 6, 130), count=2),
    # Order, and what is not zero.
    "topk": then("TopK", ints(4), count=2),
    "sample_token": then(
        "gpuexec.SampleToken", None, np.array(9), None, numbers(6, 5, dtype=np.int64), np.array(2, np.float32)
    ),
    "topk long": then("TopK", ints(4), shape=(1560,), count=2),
    **dict.fromkeys(
        ("make_keys", "sort_tiles", "merge_runs", "mark_heads", "write_runs", "take_firsts"),
        then("gpuexec.FindUnique", count=5),
    ),
    **dict.fromkeys(("count_nonzero", "add_up_counts", "write_positions", "unravel"), find_coordinates),
    # Numbers of eight and four bits.
    "quantize": then("QuantizeLinear", SCALAR, np.array(3, np.int8)),
    "dequantize": then("DequantizeLinear", SCALAR, cast=INT8),
    "quantize_narrow": then("QuantizeLinear", SCALAR, output_dtype=INT4, wide=FLOAT),
    "dequantize_narrow": then("DequantizeLinear", SCALAR, cast=INT4),
    "find_range": then("DynamicQuantizeLinear", count=3),
    "quantize_by_range": then("DynamicQuantizeLinear", count=3),
    "find_largest": then("gpuexec.ScaleToFloat8", count=2, wide=FLOAT),
    "round_by_largest": then("gpuexec.ScaleToFloat8", count=2, wide=FLOAT),
}


def make_graph(case: str) -> Graph:
    graph = GraphBuilder()
    before = graph.node(build("Neg", {}), graph.input("x", *SHAPE))
    return graph.graph(*CASES[case](graph, before))


def name_kernel(row: tuple[Any, ...]) -> str:
    return str(row[1]).partition("<")[0].rpartition(":")[2]


def list_launches(graph: Graph) -> list[tuple[str, bool]]:
    """Return the kernels that a plan launches, and whether each begins before the one before it is complete."""
    device = TracerDevice("sm_90")
    plan = plan_graph(graph, {"x": TensorSpec(SHAPE, X.dtype)}, device.target).plan
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(plan, constants, device) as loaded:
        loaded.run({"x": X})
    return [(name_kernel(row), DEPENDENT in row[5:]) for row in device.log if row[0] == "launch"]


def test_every_kernel_that_waits_has_a_case() -> None:
    generated = ("flat.cu", "mma_rows.cu", "mma_rows_nbits.cu", "rows.cu", "tiled.cu")  # have no listed instances
    sources = [*(source for source in kernel_table() if ":" not in source), *generated]
    waiting = {name for source in sources for name in find_waiting_kernels(find_source(source))}
    assert waiting == {case.partition(" ")[0] for case in CASES}


@pytest.mark.plans
@pytest.mark.parametrize("case", CASES)
def test_kernel_waits_for_the_launch_it_overlaps(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "_is_worth", lambda *_: True)  # rows are made by the product's own blocks
    graph = make_graph(case)
    if TARGETS:  # planned alone, for mutants that wait no more
        keep_plans(graph, {"x": TensorSpec(SHAPE, X.dtype)})
        return
    launches = list_launches(graph)
    assert launches[0] == (PREDECESSOR, False) and (case.partition(" ")[0], True) in launches[1:]
    expected = compute_graph(graph, {"x": X})
    constants = {value.name: array for value, array in graph.constants.items()}
    # One order of threads is enough: check mode finds what is read before the wait in any of them.
    device = make_simulator(Schedule("random", 0), target="sm_90", check_kernels=True)
    plan = plan_graph(graph, {"x": TensorSpec(SHAPE, X.dtype)}, device.target).plan
    with LoadedPlan(plan, constants, device) as loaded:
        got = loaded.run({"x": X})
    for each, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(
            each.astype(np.float64), right.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    device.close()


@pytest.mark.parametrize("is_late", [False, True], ids=["as it is", "wait behind its copies"])
@pytest.mark.parametrize("case", ["simt_gemm", "simt_gemm vectors"])
def test_product_whose_copies_begin_before_its_wait_gives_wrong_numbers(
    case: str, is_late: bool, tmp_path: Path
) -> None:
    """Without check mode too, although its copies are waited for long behind it."""
    source = "simt_gemm.cu"
    text = flatten(find_source(source))
    late, count = re.subn(
        r"( +)wait\(\);\n +(multiply_slabs<Tile[^>]*>\(left, right, range, ring, sums\);)", r"\1\2\n\1wait();", text
    )
    assert count == 2
    path = tmp_path / source
    path.write_text(late if is_late else text)

    def move(command: Command) -> Command:
        is_product = isinstance(command, Launch) and command.kernel.source == source
        return replace(command, kernel=Kernel(str(path), command.kernel.expression)) if is_product else command

    graph, table = make_graph(case), kernel_table()
    (expected,) = compute_graph(graph, {"x": X})
    constants = {value.name: array for value, array in graph.constants.items()}
    for seed in range(3):
        device = SimulatorDevice(
            lambda name: table[Path(name).name], "sm_90", schedule=Schedule("random", seed), check_kernels=False
        )
        plan = plan_graph(graph, {"x": TensorSpec(SHAPE, X.dtype)}, device.target).plan
        moved = replace(plan, segment=replace(plan.segment, commands=tuple(map(move, plan.segment.commands))))
        with LoadedPlan(moved, constants, device) as loaded:
            (got,) = loaded.run({"x": X})
        assert (got == expected).all() != is_late
        device.close()
