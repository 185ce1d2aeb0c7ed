"""Normalisation of channels: the same bits row-major and channels last, requests of memory, and plans."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import BFLOAT16, dtype_row
from gpuexec.ops.nn import norm_channels_launch
from tests.ir.graph_builder import GraphBuilder, compute_graph
from tests.ops.chains import chain
from tests.ops.test_conv_depthwise_last import convolve, plan
from tests.ops.test_conv_simt import CheckingEmitter
from tests.ops.tolerance import assert_close

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
KERNELS = ["normalize_large_channels"]


def make(dtype: Any, *shape: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(len(shape))
    x = rng.standard_normal(shape) * 3 + 50 * np.arange(shape[1]).reshape(1, -1, *(1,) * (len(shape) - 2)) % 7
    return tuple(a.astype(dtype) for a in (x, rng.random(shape[1]), rng.random(shape[1])))  # type: ignore[return-value]


def normalize(op: Operator, given: tuple[Array, ...], mode: str) -> tuple[Array, Array]:
    """Return what kernels make of a row-major image, and of one whose channels lie last."""
    row_major, last = CheckingEmitter(3, mode=mode), CheckingEmitter(4, mode=mode)
    results = row_major.run(op, given), convolve(last, op, *given)
    assert row_major.names == last.names == KERNELS
    for zeros in (*row_major.zeros, *last.zeros):
        assert mode == "count" or not row_major.read(zeros).any()
    return results


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize("shape", [(1, 8, 4100), (2, 16, 68, 64), (1, 72, 17, 16, 20)], ids=str)
def test_results_do_not_depend_on_how_images_lie(shape: tuple[int, ...], dtype: Any, mode: str) -> None:
    if mode == "check" and (len(shape) != 4 or dtype == BFLOAT16):
        shape = (1, 8, 4100)
    op, given = build("InstanceNormalization", {"epsilon": 1e-3}), make(dtype, *shape)
    row_major, last = normalize(op, given, mode)
    np.testing.assert_array_equal(row_major, last)
    expected = op.compute(*given)[0]
    assert expected is not None
    assert_close("the result", op, given, 0, last, expected, prod(shape[2:]))


@pytest.mark.parametrize("mode", ["plain", "check"])
def test_parts_are_more_than_chains_and_channels_no_whole_tile(mode: str) -> None:
    op, given = build("InstanceNormalization", {}), make(FLOAT, 1, 24, 9 * 1024 + 4)
    row_major, last = normalize(op, given, mode)
    np.testing.assert_array_equal(row_major, last)
    expected = op.compute(*given)[0]
    assert expected is not None
    assert_close("the result", op, given, 0, last, expected, 9 * 1024)


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("is_last", [False, True])
def test_units_that_are_mapped_while_others_are_measured(
    is_last: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, given = build("InstanceNormalization", {}), make(FLOAT, 3, 24, 5 * 1024 + 8)
    expected = normalize(op, given, "plain")[is_last]  # all are measured before the first one is mapped
    monkeypatch.setattr(norm_channels_launch, "_L2_SHARE", 1 << 40)  # a tile, then
    np.testing.assert_array_equal(normalize(op, given, mode)[is_last], expected)


def test_means_far_from_zero_leave_the_variance_its_digits() -> None:
    x = (np.random.default_rng(0).standard_normal((1, 8, 64, 128)) + 4096).astype(FLOAT)
    op, ones = build("InstanceNormalization", {}), np.ones(8, FLOAT)
    got = normalize(op, (x, ones, ones), "plain")[1]
    wide = x.astype(np.float64)
    exact = (wide - wide.mean((2, 3), keepdims=True)) / np.sqrt(wide.var((2, 3), keepdims=True) + op.epsilon) + 1  # type: ignore[attr-defined]
    assert np.abs(got - exact).max() < 2e-3


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_images_take_the_least_sectors(dtype: Any) -> None:
    op = build("InstanceNormalization", {})
    emitters = CheckingEmitter(mode="count"), CheckingEmitter(mode="count")
    given = make(dtype, 1, 64, 72, 64)
    emitters[0].run(op, given)
    convolve(emitters[1], op, *given)
    for emit in emitters:
        for launch, name in zip(emit.counts, emit.names, strict=True):
            for line in launch.lines:
                is_image = line.space == "global" and line.counts.nbytes >= given[0].nbytes
                assert not is_image or line.counts.ratio == 1.0, (name, line)


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_epilogues(dtype: Any) -> None:
    steps: tuple[Any, ...] = (("LeakyRelu", (("alpha", 0.1),), (-1,)), ("Mul", (), (-1, 3)))
    if dtype == FLOAT:
        steps += (("Cast", (("to", dtype_row(HALF).code),), (-1,)),)
    scale = np.random.default_rng(5).random((16, 1, 1)).astype(dtype)
    given = (*make(dtype, 1, 16, 68, 64), scale)
    op = build("gpuexec.FusedInstanceNormalization", chain(steps))
    row_major, last = normalize(op, given, "plain")
    np.testing.assert_array_equal(row_major, last)
    expected = op.compute(*given)[0]
    assert expected is not None and last.dtype == HALF
    assert_close("the result", op, given, 0, last, expected, 4352)


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize("positions", [1, 3, 5, 31, 64, 130, 500, 1023, 1500, 4096])
def test_small_channels_that_lie_last_are_added_as_rows_are(positions: int, dtype: Any) -> None:
    op, given = build("InstanceNormalization", {}), make(dtype, 2, 24, positions, 2)
    if positions == 4096:
        op, given = build("InstanceNormalization", {}), make(dtype, 2, 8, 64, 64)
    is_checked = positions < 200 or (positions == 4096 and dtype == FLOAT)  # of the most lanes
    row_major, last = CheckingEmitter(3, mode="plain"), CheckingEmitter(4, mode="check" if is_checked else "plain")
    expected = row_major.run(op, given)
    np.testing.assert_array_equal(convolve(last, op, *given), expected)
    rows = "normalize_short_rows" if given[0][0, 0].size <= 1024 else "normalize_rows"
    assert row_major.names == [rows] and last.names == ["normalize_small_channels"]


def test_epilogue_of_small_channels() -> None:
    steps = (("LeakyRelu", (("alpha", 0.1),), (-1,)), ("Cast", (("to", dtype_row(HALF).code),), (-1,)))
    op, given = build("gpuexec.FusedInstanceNormalization", chain(steps)), make(FLOAT, 2, 16, 9, 7)
    row_major, last = CheckingEmitter(mode="plain"), CheckingEmitter(mode="check")
    np.testing.assert_array_equal(convolve(last, op, *given), row_major.run(op, given))
    assert last.names == ["normalize_small_channels"]


@pytest.mark.parametrize(
    "shape", [(1, 16, 64, 64), (1, 12, 68, 64), (1, 16, 67, 65)], ids=["small", "channels", "positions"]
)
def test_other_channels_are_rows_of_a_team(shape: tuple[int, ...]) -> None:
    emit = CheckingEmitter(mode="plain")
    emit.run(build("InstanceNormalization", {}), make(FLOAT, *shape))
    assert emit.names == ["normalize_rows"]


def test_images_between_convolutions_stay_channels_last() -> None:
    rng, graph = np.random.default_rng(3), GraphBuilder()
    x = rng.integers(-2, 3, (1, 8, 66, 68)).astype(HALF)
    value = graph.input("x", *x.shape, dtype=HALF)
    for _ in range(2):
        weight, ones = graph.constant(rng.integers(-1, 2, (8, 8, 1, 1)).astype(HALF)), graph.constant(np.ones(8, HALF))
        value = graph.node(build("Conv", {}), value, weight)
        value = graph.node(build("InstanceNormalization", {}), value, ones, graph.constant(np.zeros(8, HALF)))
    made = graph.graph(value)
    got, names, transposes = plan(made, x, "sm_90")
    assert names.count("normalize_large_channels") == 2 and transposes == 2
    np.testing.assert_allclose(got[0].astype(FLOAT), compute_graph(made, {"x": x})[0].astype(FLOAT), atol=0.02)
