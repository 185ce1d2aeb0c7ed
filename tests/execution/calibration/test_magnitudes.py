"""Magnitudes: ranges and histograms over batches, and the thresholds that the methods take from them."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.execution.calibration.magnitudes import BINS, Magnitudes

Array = np.ndarray[Any, Any]


def gather(*batches: Any) -> Magnitudes:
    seen = Magnitudes()
    for batch in batches:
        assert seen.add(np.asarray(batch, getattr(batch, "dtype", np.float32)))
    return seen


def draw(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def measure(counts: Array, end: int, levels: int) -> float:
    """Return the divergence of a threshold, part by part as the paper says it."""
    kept = [float(count) for count in counts[:end]]
    groups: dict[int, list[int]] = {}
    for place, count in enumerate(kept):
        if count:
            groups.setdefault(place * levels // end, []).append(place)
    spread = {place: sum(kept[i] for i in group) / len(group) for group in groups.values() for place in group}
    kept[-1] += float(sum(counts[end:]))
    total, spread_total = sum(kept), sum(spread.values())
    return sum(kept[i] / total * math.log(kept[i] / total / (spread[i] / spread_total)) for i in spread)


def test_range_and_type_are_those_of_all_batches() -> None:
    seen = gather([[1, -2]], [], [0.5], [3, 0])
    assert (seen.least, seen.most, seen.largest, seen.dtype) == (-2, 3, 3, np.dtype(np.float32))
    assert Magnitudes().largest == 0


@pytest.mark.parametrize("array", [[1, np.nan], [np.inf, 0], [-np.inf]])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_batch_that_is_not_finite_is_refused_and_not_added(array: list[float], dtype: Any) -> None:
    seen = gather([1, 2])
    assert not seen.add(np.array(array, dtype))
    assert seen.largest == 2 and seen.counts.sum() == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_types_of_floats_are_counted_alike(dtype: Any) -> None:
    array = np.array([0.25, -0.5, 1, 0, 2], dtype)
    assert gather(array).counts.tolist() == gather(array.astype(np.float32)).counts.tolist()


def test_histogram_grows_to_that_of_all_batches_at_once() -> None:
    width = 2.0**-5
    places = np.random.default_rng(0).integers(0, BINS, 20000)
    values = ((places + 0.5) * width).astype(np.float32)
    order = np.argsort(values, kind="stable")
    values[1::2] *= -1
    seen = Magnitudes()
    seen.limit = BINS * width / 2**12  # as if a batch of tiny magnitudes had come before
    for part in np.array_split(values[order], 7):
        assert seen.add(part)
    assert seen.limit == BINS * width
    assert np.array_equal(seen.counts, np.bincount(places, minlength=BINS))


def test_half_of_the_histogram_at_least_is_of_what_was_seen() -> None:
    for factor in (1.001, 2, 3, 1e3, 1e30):
        seen = gather([1.0], [factor])
        assert seen.limit / 2 < seen.largest <= seen.limit
        assert seen.counts.sum() == 2 and np.nonzero(seen.counts)[0][-1] >= BINS // 2 - 1


def test_first_limit_is_the_largest_magnitude_of_the_first_batch_that_is_not_zero() -> None:
    seen = gather([0, 0], [-5, 0, 1])
    assert seen.limit == 5 and seen.counts.sum() == 2 and seen.counts[-1] == 1


@pytest.mark.parametrize("values", [[1e-45], [1e-45, 3e38], [3.4e38]])
def test_extremes_of_a_type_are_counted(values: list[float]) -> None:
    seen = gather(*[[value] for value in values])
    assert seen.counts.sum() == len(values)
    assert seen.take_percentile(100) == seen.largest == np.float32(values[-1])


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9, 100])
def test_percentile_is_that_of_the_magnitudes(percentile: float) -> None:
    values = np.arange(1, 1001, dtype=np.float32) * np.where(np.arange(1000) % 2, 1, -1).astype(np.float32)
    got = gather(values[:300], values[300:]).take_percentile(percentile)
    assert percentile * 10 <= got <= percentile * 10 + 2000 / BINS


def test_percentile_leaves_outliers_and_zeros_out() -> None:
    values = np.concatenate([np.linspace(0.001, 1, 9990), np.full(10, 50.0), np.zeros(100000)]).astype(np.float32)
    got = gather(values).take_percentile(99.9)
    assert 1 <= got <= 1 + 100 / BINS
    assert gather(values).take_percentile(99.95) == 50


def test_entropy_cuts_outliers_off() -> None:
    values = np.concatenate([draw(100000), np.array([40, -60], np.float32)])
    got = gather(values).minimise_divergence(128)
    assert 2.5 < got < 8


def test_entropy_leaves_zeros_out() -> None:
    values = draw(20000)
    padded = np.concatenate([values, np.zeros(10**6, np.float32)])
    assert gather(padded).minimise_divergence(128) == gather(values).minimise_divergence(128)


def test_entropy_keeps_all_where_levels_hold_all() -> None:
    seen = Magnitudes()
    seen.limit = 128.0
    assert seen.add(np.repeat(np.arange(128) + 0.5, 7).astype(np.float32))
    assert seen.minimise_divergence(128) == seen.largest == 127.5


@pytest.mark.parametrize("levels", [128, 256])
def test_entropy_takes_the_end_of_least_divergence(levels: int) -> None:
    rng = np.random.default_rng(levels)
    places = np.unique(rng.integers(0, BINS, 300))[-200:]
    counts = np.ceil(1000 * np.exp(-places / 700) * rng.uniform(0.5, 1.5, len(places))).astype(int)
    values = np.repeat((places + 0.5) / BINS, counts).astype(np.float32)
    seen = gather([1.0], values)
    got = seen.minimise_divergence(levels)
    filled = [int(place) + 1 for place in np.nonzero(seen.counts)[0] if place >= levels - 1]
    divergences = {end: measure(seen.counts, end, levels) for end in filled}
    assert len(divergences) < 256  # so that all are tried
    assert got * BINS == pytest.approx(min(divergences, key=lambda end: (divergences[end], -end)))
    assert max(divergences.values()) > min(divergences.values())


def test_one_magnitude_is_its_own_threshold() -> None:
    seen = gather([0.7, -0.7], [0.7])
    assert seen.take_percentile(99) == seen.minimise_divergence(128) == np.float32(0.7)


def test_without_a_histogram_the_range_is_there() -> None:
    seen = Magnitudes(has_histogram=False)
    assert seen.add(draw(100)) and seen.largest > 1 and not seen.counts.any()
