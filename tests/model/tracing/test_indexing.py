"""Indexing and assignment of symbolic arrays, compared with NumPy, with fixed and free extents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuexec as gx
from tests.model.tracing.tracing import Array, check, check_devices, compute, trace

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def ramp(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@st.composite
def parts(draw: st.DrawFn, extent: int, index_shape: tuple[int, ...] | None) -> Any:
    """One part of an index, for an axis of an extent; arrays of positions broadcast to one shape."""
    position = st.integers(-extent, extent - 1)
    bound = st.none() | st.integers(-extent - 2, extent + 2)
    kinds = ["slice", "slice", "int", "full", "array", "mask"] if index_shape is not None else ["slice", "int", "full"]
    match draw(st.sampled_from(kinds)):
        case "slice":
            return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3, -1, -2])))
        case "int":
            return draw(position)
        case "full":
            return slice(None)
        case "mask":
            count = draw(st.integers(1, extent))
            if index_shape != (count,):
                return slice(None)
            return np.isin(np.arange(extent), draw(st.permutations(range(extent)))[:count])
    assert index_shape is not None
    shape = tuple(draw(st.sampled_from([1, n])) for n in index_shape)
    size = int(np.prod(shape))
    return np.array(draw(st.lists(position, min_size=size, max_size=size)), np.int64).reshape(shape)


@st.composite
def indexed(draw: st.DrawFn, with_arrays: bool = True) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and an index that NumPy takes for it."""
    shape = draw(SHAPES)
    arrays = draw(st.lists(st.integers(1, 3), min_size=0, max_size=2).map(tuple)) if with_arrays else None
    count = draw(st.integers(0, len(shape)))
    key: list[Any] = [draw(parts(extent, arrays)) for extent in shape[:count]]
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    if draw(st.booleans()):
        # What stands behind the dots is for the last axes.
        behind = draw(st.integers(0, len(shape) - count))
        key += [..., *(draw(parts(extent, arrays)) for extent in shape[len(shape) - behind :])]
    return shape, tuple(key)


@given(indexed())
@settings(max_examples=400)
def test_indexing_is_numpys(case: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
    shape, key = case
    check(lambda x: x[key], ramp(*shape))


def assign(key: Any, values: Any) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x.copy()
        y[key] = values
        return y

    return function


@given(indexed(), st.randoms(use_true_random=False))
@settings(max_examples=250)
def test_assignment_is_numpys(case: tuple[tuple[int, ...], tuple[Any, ...]], random: Any) -> None:
    shape, key = case
    x = ramp(*shape)
    target = np.arange(x.size).reshape(shape)[key]
    if len(np.unique(target)) != target.size:
        return  # which of two values for one place counts, NumPy does not say
    new = -1 - np.arange(target.size, dtype=np.float32).reshape(target.shape)
    if target.size and target.ndim and random.random() < 0.5:
        new = new[:1] if random.random() < 0.5 else new[0]
    check(assign(key, new), x, may_be_free=False)
    is_mask = any(isinstance(part, np.ndarray) and part.dtype == bool for part in key)
    check(assign(key, 7), x, may_be_free=not is_mask)


def test_masks_choose_and_are_assigned_to() -> None:
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    check(lambda x: x[x > 0], x)
    check(lambda x: x[x[:, 0] > 0], x)
    check(lambda x: x[:, x[0] > 0], x)
    check(lambda x: x[x[:, 0] > 0, 1:], x)
    check(assign(x > 0, 9), x, may_be_free=False)

    def function(x: Any, weights: Any) -> Any:
        y = x.copy()
        y[y < 0] = 0
        y[y > 2] += 1
        y[weights > 0] = weights[weights > 0]
        return y

    check(function, x, np.array([[0, 1, 0], [2, 0, 3]], np.float32))


def test_positions_may_be_symbolic() -> None:
    x, i, n = ramp(4, 5), np.array([[3, 0], [-1, 2]]), np.array(2)
    check(lambda x, i: x[i], x, i)
    check(lambda x, i: x[i, i], x, i)
    check(lambda x, i: x[:, i], x, i)
    check(lambda x, n: x[n], x, n, expected=x[2])
    for free in (False, True):
        model = trace(lambda x, n: (x[:n], x[n:, : n + 1], x[-n:]), x, n, free=free)
        for got, wanted in zip(compute(model, x, n), (x[:2], x[2:, :3], x[-2:]), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_axes_are_turned_from_a_place_counted_from_the_end() -> None:
    def function(x: Any) -> Any:
        return x[-3::-1], x[-3::-2], x[::-1], x[-1::-1], x[:-4:-1], x[2::-1], x[-6::-1]

    model = gx.graph(function, [("float32", ("n",))])
    for length in (0, 1, 2, 3, 5, 9):
        row = ramp(length)
        for each in (model, trace(function, row)):
            for got, wanted in zip(compute(each, row), function(row), strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_places_are_changed_functionally() -> None:
    x = ramp(6)

    def function(x: Any) -> Any:
        added = x.at[[1, 1, 3]].add(10)
        kept = x.at[::2].max(3)
        return added, kept, x.at[1:3].multiply([2, 3]), x.at[-1].min(0), x.at[2].set(-1), x.at[2:4].get(), x

    added, kept, product, least, changed = x.copy(), x.copy(), x.copy(), x.copy(), x.copy()
    np.add.at(added, [1, 1, 3], 10)
    kept[::2] = np.maximum(kept[::2], 3)
    product[1:3] *= [2, 3]
    least[-1], changed[2] = 0, -1
    check(function, x, expected=[added, kept, product, least, changed, x[2:4], x])


def test_assignment_rebinds_the_name_alone() -> None:
    def function(x: Any) -> Any:
        y = x
        z = x + 0
        y[0] = 5
        return x, z

    check(function, ramp(3), expected=[np.array([5, 1, 2], np.float32), ramp(3)])


def test_indexing_runs_on_devices() -> None:
    x, mask = ramp(4, 5), np.array([True, False, True, True])

    def function(x: Any, mask: Any) -> Any:
        y = x.copy()
        y[1:3, ::2] = -y[1:3, ::2]
        return x[::-1, 1], x[[2, 0], [1, -1]], x[mask], y, x.at[mask].set(0), x[:, None, [0, 4]]

    y = x.copy()
    y[1:3, ::2] *= -1
    cleared = x.copy()
    cleared[mask] = 0
    expected = [x[::-1, 1], x[[2, 0], [1, -1]], x[mask], y, cleared, x[:, None, [0, 4]]]
    check_devices(function, x, mask, expected=expected)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (7, r"test_indexing.py:\d+: index 7 is out of range at axis 0"),
        ((0, 0, 0), "has 2 axes, got an index for 3"),
        ((..., ...), "a single ellipsis"),
        (True, "True and False are no index"),
        (1.5, "1.5 is no index"),
        (np.array([0, 9]), "index 9 is out of range"),
        (np.array([True, False]), "does not fit"),
        (slice(None, None, 0), "a slice step must be an integer other than 0"),
        ("a", "'a' is no index"),
    ],
)
def test_what_is_no_index_is_refused_with_its_line(key: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        trace(lambda x: x[key], ramp(4, 5))
