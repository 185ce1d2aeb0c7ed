"""Statistics and Histogram, against exact sums."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.reduce.statistics import FIRST_INF, FIRST_NAN, WORDS, HistogramOperator, StatisticsOperator
from tests.ops.harness import Array, Case, run_case


def expect_words(x: Array, moments: bool = True) -> Array:
    """Return the words by Python's exact sums."""
    items = [float(item) for item in x.reshape(-1).tolist()]
    finite = [item for item in items if math.isfinite(item)]
    first_nan = next((i for i, item in enumerate(items) if math.isnan(item)), -1)
    first_inf = next((i for i, item in enumerate(items) if math.isinf(item)), -1)
    words = [sum(map(math.isnan, items)), items.count(math.inf), items.count(-math.inf), first_nan, first_inf]
    if not finite:
        return np.array([*words, *[math.nan] * 4])
    mean = math.fsum(finite) / len(finite)
    deviation = math.sqrt(math.fsum((item - mean) ** 2 for item in finite) / len(finite))
    return np.array([*words, min(finite), max(finite), *((mean, deviation) if moments else [math.nan] * 2)])


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 5]).integers(0, 200, shape).astype(dtype)


def statistics(id: str, x: Array, moments: int = 1) -> Case:
    expected = (expect_words(x, bool(moments)),)
    return Case(
        f"statistics_{id}", "gpuexec.Statistics", (x,), {"moments": moments}, expected=expected, terms=max(x.size, 1)
    )


E4M3, E5M2, INT4 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4))
MIXED = np.array([1.5, np.inf, -2.0, np.nan, -np.inf, np.nan, 7.0, np.inf], np.float32)
# Far from zero, and close together: squares of the elements themselves would leave no digit of the deviation.
FAR = (1e6 + np.random.default_rng(3).normal(size=300)).astype(np.float32)
LONG = np.random.default_rng(4).normal(2, 3, 9001).astype(np.float32)
LATE = LONG.copy()
LATE[[8000, 8500]] = np.nan
LATE[[4099, 8999]] = np.inf
STATISTICS = [
    *(statistics(row.name, sample(4, 75, dtype=row.numpy)) for row in COMPUTED),
    *(statistics(f"mixed_{np.dtype(t)}", MIXED.astype(t)) for t in (np.float16, ml_dtypes.bfloat16, np.float64)),
    *(statistics(f"narrow_{t.name}", MIXED.astype(t)) for t in (E4M3, E5M2, INT4)),
    statistics("mixed", MIXED),
    statistics("mixed_without_moments", MIXED, 0),
    statistics("begins_with_nan", MIXED[3:]),
    statistics("nothing_finite", np.array([np.nan, -np.inf], np.float32)),
    statistics("far_from_zero", FAR),
    statistics("far_from_zero_behind_what_is_not_finite", np.concatenate([[np.nan, np.inf], FAR, FAR[:7]]) * 64),
    statistics("several_blocks_far_from_zero", np.concatenate([[-np.inf], 1e8 + LONG.astype(np.float64)])),
    statistics("several_blocks", LONG),
    statistics("several_blocks_nonfinite", LATE),
    statistics("several_blocks_without_moments", LATE, 0),
    # Rounding leaves a variance below 0.
    statistics("alike", np.array([np.nan, 9.45, 9.45, 9.45])),
    statistics("scalar", np.array(-3.0)),
    statistics("zeros", np.array([0.0, -0.0])),
    statistics("empty", np.zeros((0, 3), np.float32)),
    statistics("strided", sample(6, 8, 4)[::-2, ::3].T),
    *(statistics(f"length{n}", sample(n, dtype=np.float64)) for n in (1, 255, 257, 4095, 4096, 4097)),
]


NOTHING = np.array([0, 0, 0, -1, -1, *[np.nan] * 4])
LEFT_OUT = [
    Case(
        "statistics_left_out",
        "gpuexec.Statistics",
        (sample(30, dtype=np.int32),),
        {"floats_only": 1},
        expected=(NOTHING,),
    ),
    Case(
        "statistics_not_left_out",
        "gpuexec.Statistics",
        (MIXED,),
        {"floats_only": 1},
        expected=(expect_words(MIXED),),
        terms=8,
    ),
    Case(
        "statistics_of_narrow_floats_not_left_out",
        "gpuexec.Statistics",
        (MIXED.astype(E5M2),),
        {"floats_only": 1},
        expected=(expect_words(MIXED.astype(E5M2)),),
        terms=8,
    ),
]


def histogram(id: str, x: Array, bins: int = 5) -> Case:
    words = expect_words(x)
    counts = [0] * bins
    for item in x.reshape(-1).tolist():
        if math.isfinite(item):
            width = words[6] - words[5]
            counts[min(int((item - words[5]) / width * bins), bins - 1) if width else 0] += 1
    expected = (np.array(counts, np.int64),)
    return Case(f"histogram_{id}", "gpuexec.Histogram", (x, words), {"bins": bins}, expected=expected)


HISTOGRAMS = [
    *(histogram(row.name, sample(4, 75, dtype=row.numpy)) for row in COMPUTED),
    histogram("mixed", MIXED),
    *(histogram(f"narrow_{t.name}", MIXED.astype(t)) for t in (E4M3, E5M2, INT4)),
    histogram("several_blocks", LATE, 64),
    histogram("most_bins", LONG, 256),
    histogram("one_bin", LONG[:40], 1),
    histogram("one_number", np.full(300, 2.5, np.float32)),
    histogram("nothing_finite", np.array([np.nan, np.inf], np.float32)),
    histogram("empty", np.zeros((0, 3), np.float32)),
    histogram("strided", sample(6, 8, 4)[::-2, ::3].T),
]


@pytest.mark.parametrize("case", [*STATISTICS, *LEFT_OUT, *HISTOGRAMS], ids=lambda case: case.id)
def test_operator(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_places_are_those_in_row_major_order() -> None:
    x = np.zeros((3, 4), np.float32)
    x[1, 2], x[2, 0] = np.nan, np.inf
    (words,) = StatisticsOperator().compute(x)
    assert (words[FIRST_NAN], words[FIRST_INF]) == (6, 8)


@pytest.mark.parametrize("bins", [0, 257])
def test_bins_are_as_many_as_a_block_holds(bins: int) -> None:
    with pytest.raises(InputError, match=f"1 to 256 bins, got {bins}"):
        HistogramOperator(bins).infer(
            TensorSpec((3,), np.dtype(np.float32)), TensorSpec((WORDS,), np.dtype(np.float64))
        )


def test_a_histogram_takes_the_words_of_its_tensor() -> None:
    with pytest.raises(InputError, match="9 words"):
        HistogramOperator().infer(TensorSpec((3,), np.dtype(np.float32)), TensorSpec((3,), np.dtype(np.float64)))
