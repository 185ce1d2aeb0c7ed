"""Closeness of results: exact bits, ulps, and rounding in proportion to a sum's terms."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops  # noqa: F401 (registers the operators)
from gpuexec.execution.runs.closeness import Difference, count_terms, find_difference
from gpuexec.ir.operator import build

Array = np.ndarray[Any, Any]
NAN, INF = math.nan, math.inf


def make(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


LARGE = np.abs(make(16, 64)) * 100


def compare(name: str, expected: Any, got: Any, dtype: Any = np.float32) -> Difference | None:
    a, b = np.array(expected, dtype), np.array(got, dtype)
    return find_difference(build(name, {}), [a, a], 0, a, b)


@pytest.mark.parametrize(
    ("expected", "got", "index"),
    [
        ([1.0, NAN, -INF], [1.0, NAN, -INF], None),
        ([1.0, 0.0], [1.0, -0.0], (1,)),
        ([1.0, 2.0], [1.0, np.nextafter(np.float32(2), np.float32(3))], (1,)),
        ([1.0, 2.0], [NAN, 2.0], (0,)),
        ([INF, 2.0], [2.0, 2.0], (0,)),
    ],
)
def test_exact_operators_give_the_same_bits(expected: Any, got: Any, index: tuple[int, ...] | None) -> None:
    found = compare("Add", expected, got)
    assert (None if found is None else found.index) == index


def test_integers_are_exact_beyond_what_floats_distinguish() -> None:
    large = 2**60
    found = compare("Gather", [large, 3], [large + 1, 3], np.int64)
    assert found == Difference((0,), large, large + 1, 0.0, 0.0, 1)
    assert compare("Gather", [large, 3], [large, 3], np.int64) is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize(("ulps", "is_close"), [(0, True), (4, True), (-4, True), (5, False), (-5, False)])
def test_library_functions_may_be_4_ulp_off(dtype: Any, ulps: int, is_close: bool) -> None:
    eps = 2.0**-7 if dtype is ml_dtypes.bfloat16 else float(np.finfo(dtype).eps)
    assert (compare("Exp", [1.0, 8.0], [1.0, 8 * (1 + ulps * eps)], dtype) is None) == is_close


def test_zeros_of_either_sign_are_close_where_rounding_is_allowed() -> None:
    assert compare("Exp", [0.0], [-0.0]) is None


def test_the_largest_error_is_reported() -> None:
    found = compare("Exp", [[1.0, 2.0], [3.0, 4.0]], [[1.5, 2.0], [3.0, 6.0]])
    assert found is not None
    assert (found.index, found.expected, found.got, found.error, found.count) == ((1, 1), 4.0, 6.0, 2.0, 2)
    assert 0 < found.allowed < 1e-5
    found = compare("Exp", [1.0, 2.0], [9.0, NAN])
    assert found is not None and (found.index, found.error) == ((1,), INF)


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "terms"),
    [
        ("MatMul", {}, [make(3, 8), make(8, 4)], 8),
        ("MatMul", {}, [make(1, 8), make(8, 64)], 8),
        ("Conv", {}, [make(1, 2, 9, 9), make(4, 2, 3, 3), None], 18),
        ("LayerNormalization", {}, [make(5, 6, 16), make(16), None], 16),
        ("Softmax", {"axis": 1}, [make(4, 12, 3)], 12),
        ("ReduceSum", {"keepdims": 0}, [make(4, 6), None], 24),
        ("CumSum", {}, [make(10), np.array(0)], 10),
    ],
)
def test_terms_are_counted_and_doubled(name: str, attributes: Any, inputs: list[Array | None], terms: int) -> None:
    counted = count_terms(build(name, attributes), inputs, 0)
    assert terms <= counted <= 4 * terms


def test_all_of_an_input_counts_where_none_of_it_shows() -> None:
    # No window begins at the middle of the input.
    operator = build("AveragePool", {"kernel_shape": (1,), "strides": (4,)})
    assert count_terms(operator, [make(1, 1, 15)], 0) == 15


@pytest.mark.parametrize(
    ("name", "attributes", "inputs"),
    [
        ("MatMul", {}, [make(16, 256), make(256, 16)]),
        ("MatMul", {}, [make(16, 256, dtype=np.float16), make(256, 16, dtype=np.float16)]),
        ("Conv", {}, [make(2, 8, 12, 12), make(4, 8, 3, 3), make(4)]),
        ("LayerNormalization", {}, [make(8, 64), make(64), make(64)]),
        ("Softmax", {}, [make(8, 64)]),
        ("ReduceMean", {}, [make(8, 999), np.array([1])]),
        ("Gemm", {"alpha": -1.0}, [make(8, 16), make(16, 8), make(8)]),
    ],
)
def test_sums_may_round_otherwise_but_not_lose_a_term(name: str, attributes: Any, inputs: list[Array | None]) -> None:
    operator = build(name, attributes)
    dtype = inputs[0].dtype if inputs[0] is not None else None
    (expected, *_) = operator.compute(*inputs)
    assert expected is not None and dtype is not None
    wide = [x if x is None or x.dtype.kind != "f" else x.astype(np.float64) for x in inputs]
    (exact, *_) = operator.compute(*wide)
    assert exact is not None
    assert find_difference(operator, inputs, 0, expected, exact.astype(dtype)) is None
    wrong = expected.copy()
    wrong.reshape(-1)[3] *= 1.1
    found = find_difference(operator, inputs, 0, expected, wrong)
    assert found is not None and found.index == np.unravel_index(3, expected.shape)


@pytest.mark.parametrize(
    ("name", "attributes", "inputs"),
    [
        ("LayerNormalization", {}, [make(8, 8) + 1000, np.ones(8, np.float32), None]),
        ("MatMul", {}, [np.tile(LARGE, (1, 2)), np.concatenate([LARGE.T, -LARGE.T])]),
        ("Gemm", {"alpha": -1.0, "beta": 1000.0}, [LARGE, LARGE.T, LARGE @ LARGE.T / 1000]),
    ],
)
def test_terms_that_cancel_count_by_their_magnitudes(name: str, attributes: Any, inputs: list[Array | None]) -> None:
    operator = build(name, attributes)
    (expected, *_) = operator.compute(*inputs)
    (exact, *_) = operator.compute(*[None if x is None else x.astype(np.float64) for x in inputs])
    assert expected is not None and exact is not None
    assert find_difference(operator, inputs, 0, expected, exact.astype(np.float32)) is None
