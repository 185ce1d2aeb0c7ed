"""Sort keys in the order of their values, and the launches that sort rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.ir.spec import COMPUTED
from gpuexec.ops.reduce.sort import largest_key, make_keys, sort_keys, sort_rows
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Array

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
RISING = np.array([-np.inf, -3e4, -1.5, -(2.0**-14), 0.0, 2.0**-14, 1.5, 3e4, np.inf, np.nan])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
def test_keys_of_floats_rise_with_them(dtype: Any) -> None:
    keys = sort_keys(RISING.astype(dtype))
    assert (np.diff(keys.astype(object)) > 0).all()
    assert keys.dtype == np.dtype(f"u{np.dtype(dtype).itemsize}")
    assert sort_keys(np.array(-0.0, dtype)) == sort_keys(np.array(0.0, dtype))
    assert sort_keys(-np.array(np.nan, dtype)) == keys[-1]
    assert keys[-2] == largest_key(np.dtype(dtype))


@pytest.mark.parametrize("row", [row for row in COMPUTED if row.kind in ("int", "uint")], ids=lambda row: row.name)
def test_keys_of_integers_rise_with_them(row: Any) -> None:
    bounds = np.iinfo(row.numpy)
    rising = np.unique(np.array([bounds.min, bounds.min + 1, 0, 1, bounds.max - 1, bounds.max], row.numpy))
    assert (np.diff(sort_keys(rising).astype(object)) > 0).all()


@pytest.mark.parametrize("row", COMPUTED, ids=lambda row: row.name)
def test_kernels_make_the_keys_of_the_host(row: Any) -> None:
    with np.errstate(all="ignore"):
        x = np.array([[3, 0, 1], [7, 2, 0]]).astype(row.numpy)
        x = np.concatenate([RISING, -RISING]).astype(row.numpy).reshape(4, 5).T if row.kind == "float" else x[:, ::-1]
    emit = DirectEmitter()
    made, expected, largest = emit.read(make_keys(emit, emit.slot(x))), sort_keys(x), largest_key(row.numpy)
    np.testing.assert_array_equal(made > largest, x != x)
    np.testing.assert_array_equal(made[made <= largest], expected[expected <= largest])


def sort(keys: Array) -> list[int]:
    emit = DirectEmitter()
    order: list[int] = emit.read(sort_rows(emit, emit.slot(keys), *keys.shape)).tolist()
    return order


@pytest.mark.parametrize("rows", [0, 1, 2, 1023, 1024, 1025, 8192, 8193, 20000])
def test_rows_of_one_key_are_sorted_stably(rows: int) -> None:
    keys = np.random.default_rng(rows).integers(0, max(1, rows // 3), (rows, 1)).astype(np.uint32)
    assert sort(keys) == np.argsort(keys[:, 0], kind="stable").tolist()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_rows_are_sorted_by_their_first_difference(dtype: Any) -> None:
    keys = np.random.default_rng(4).integers(0, 3, (1500, 4)).astype(dtype) * dtype(np.iinfo(dtype).max // 2)
    assert sort(keys) == np.lexsort(keys.T[::-1]).tolist()


def test_rows_of_nothing_keep_their_order() -> None:
    assert sort(np.zeros((1100, 0), np.uint32)) == list(range(1100))
