"""NonZero, Compress and their component operators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.tensor.nonzero import Compact, Compress, Unravel, add_up_counts
from tests.ops.decomposed import check_parts, list_launches
from tests.ops.direct import DirectEmitter
from tests.ops.harness import Array, Case, run_case


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 3]).integers(0, 3, shape).astype(dtype)


def nonzero(id: str, x: Array, **more: Any) -> Case:
    return Case(f"nonzero_{id}", "NonZero", (x,), **more)


def compress(id: str, x: Array, condition: Any, axis: int | None = None, **more: Any) -> Case:
    attributes = {} if axis is None else {"axis": axis}
    return Case(f"compress_{id}", "Compress", (x, np.array(condition, np.bool_)), attributes, **more)


SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-45, -1.0, 0.0], np.float32)
DECOMPOSED = [
    *(nonzero(row.name, sample(4, 5, dtype=row.numpy)) for row in COMPUTED),
    *(nonzero(f"special_{np.dtype(t)}", SPECIAL.astype(t)) for t in (np.float16, ml_dtypes.bfloat16, np.float64)),
    nonzero("special", SPECIAL),
    nonzero("scalar", np.array(3.0)),
    nonzero("scalar_zero", np.array(0)),
    nonzero("vector", sample(9)),
    nonzero("rank_five", sample(2, 3, 2, 3, 2)),
    nonzero("none_found", np.zeros((3, 4), np.int8)),
    nonzero("all_found", np.ones((3, 4), np.int8)),
    *(nonzero(f"empty{shape}", np.zeros(shape, np.float32)) for shape in [(0,), (0, 3), (3, 0)]),
    *(nonzero(f"length{n}", sample(n, dtype=np.uint8)) for n in (1, 15, 17, 4095, 4096, 4097, 9000)),
    nonzero("strided", sample(6, 8, 4)[::-2, ::3].T),
    nonzero("old", sample(3, 4), opset=9),
    compress("rows", sample(4, 5), [0, 1, 0, 1], 0),
    compress("columns", sample(4, 5), [0, 1, 0, 1, 1], 1),
    compress("last", sample(2, 3, 4), [1, 0, 1, 0], -1),
    compress("negative", sample(2, 3, 4), [1, 0, 1], -2),
    compress("flat", sample(2, 3), [0, 1, 1, 0, 0, 1]),
    compress("flat_strided", sample(5, 4).T[::-1], [0, 1, 1, 0, 0, 1]),
    compress("short", sample(4, 5), [0, 1], 0),
    compress("short_flat", sample(4, 5), [1, 0, 1]),
    compress("longer", sample(2, 3), [0, 1, 0, 0], 0),
    compress("beyond_the_axis", sample(2, 3), [0, 1, 0, 1], 0, expected=(sample(2, 3)[1:],)),
    compress("none_kept", sample(3, 2), [0, 0, 0], 0),
    compress("no_condition", sample(3, 2), [], 0),
    compress("empty", np.zeros((0, 2), np.float32), [], 0),
    compress("empty_flat", np.zeros((0, 2), np.float32), []),
    compress("old", sample(3, 2), [1, 0, 1], 0, opset=9),
    *(compress(row.name, sample(4, 5, dtype=row.numpy), [1, 0, 1, 1], 0) for row in COMPUTED),
]


@pytest.mark.parametrize("case", DECOMPOSED, ids=lambda case: case.id)
def test_operator_and_parts(case: Case) -> None:
    check_parts(case)


def compact(id: str, x: Array) -> Case:
    found = [i for i, item in enumerate(x.reshape(-1).tolist()) if item != 0]
    positions = np.array(found + [0] * (x.size - len(found)), np.int64)
    expected = (positions, np.array([len(found)], np.int64))
    return Case(f"compact_{id}", "gpuexec.Compact", (x,), outputs=(True, True), expected=expected)


def unravel(id: str, positions: Array, shape: tuple[int, ...]) -> Case:
    expected = (
        np.array([np.unravel_index(each, shape) for each in positions], np.int64).reshape(len(positions), len(shape)).T
    )
    inputs = (positions, np.array(shape, np.int64))
    return Case(f"unravel_{id}", "gpuexec.Unravel", inputs, const=(1,), expected=(expected,))


PARTS = [
    *(compact(row.name, sample(4, 5, dtype=row.numpy)) for row in COMPUTED),
    compact("special", SPECIAL),
    compact("tiles", sample(3, 3000)),
    compact("scalar", np.array(2.5)),
    compact("empty", np.zeros((0, 2), np.float32)),
    compact("strided", sample(6, 8, 4)[::-2, ::3].T),
    unravel("matrix", np.array([5, 0, 11]), (3, 4)),
    unravel("rank_eight", np.array([255, 1, 128]), (2,) * 8),
    unravel("nothing", np.zeros(0, np.int64), (3, 4)),
    unravel("no_axes", np.zeros(2, np.int64), ()),
    unravel("strided", np.arange(12)[::-3], (3, 4)),
]


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case.id)
def test_parts(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_counts_of_many_tiles_are_added_up() -> None:
    emit, counts = DirectEmitter(), np.arange(600) % 7
    total = emit.fresh((1,), np.int64)
    offsets = add_up_counts(emit, emit.slot(counts), total)
    np.testing.assert_array_equal(emit.read(offsets), np.cumsum(counts) - counts)
    assert emit.read(total).tolist() == [counts.sum()]


def test_launches_are_the_same_for_every_size() -> None:
    expected = ["nonzero.cu:count_nonzero<u32>", "nonzero.cu:add_up_counts", "nonzero.cu:write_positions<u32>"]
    for n in (0, 1, 5000):
        assert list_launches(Compact(), [sample(n)]) == expected


def test_attributes_are_those_of_the_standard() -> None:
    assert not onnx.defs.get_schema("NonZero").attributes
    attributes = onnx.defs.get_schema("Compress").attributes
    assert {name: each.required for name, each in attributes.items()} == {"axis": False}
    assert Compress() == Compress(axis=None)


@pytest.mark.parametrize("op", ["NonZero", "Compress"])
def test_infer_asks_for_the_content(op: str) -> None:
    specs = [TensorSpec((3,), np.dtype(np.bool_))] * (1 + (op == "Compress"))
    with pytest.raises(NeedsHostValue, match="X" if op == "NonZero" else "condition"):
        build(op, {}).infer(*specs)


@pytest.mark.parametrize(
    ("op", "attributes", "arrays", "message"),
    [
        ("Compress", {"axis": 2}, (np.zeros((2, 3)), np.zeros(2, np.bool_)), "axis is out of range"),
        ("Compress", {}, (np.zeros((2, 3)), np.zeros(2, np.int32)), "expects condition of type bool"),
        ("Compress", {}, (np.zeros((2, 3)), np.zeros((2, 1), np.bool_)), "a condition of one axis, got"),
        ("gpuexec.Unravel", {}, (np.zeros(2), np.array([2])), "expects positions of type int64"),
        ("gpuexec.Unravel", {}, (np.zeros((2, 1), np.int64), np.array([2])), "positions of one axis"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], arrays: tuple[Array, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*map(TensorSpec.of, arrays))


def test_unravel_refuses_more_axes_than_kernels_take() -> None:
    with pytest.raises(InputError, match="at most 8 axes on a device, got 9"):
        list_launches(Unravel(), [np.zeros(1, np.int64), np.ones(9, np.int64)], known=[1])
