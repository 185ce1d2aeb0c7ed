"""Gather, GatherElements, GatherND."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec.ops.tensor.gather  # noqa: F401 (registers the operators)
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import COMPUTED, TensorSpec
from tests.ops.harness import Array, Case, run_case


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def pick(id: str, x: tuple[int, ...], indices: Any, axis: int = 0, dtype: Any = np.int64, **more: Any) -> Case:
    return Case(f"gather_{id}", "Gather", (arange(*x), np.array(indices, dtype)), {"axis": axis}, **more)


def pick_elements(id: str, x: tuple[int, ...], indices: Any, axis: int = 0, dtype: Any = np.int64) -> Case:
    data = arange(*x)
    beside = tuple(slice(None) if i == axis % data.ndim else slice(n) for i, n in enumerate(np.shape(indices)))
    expected = np.take_along_axis(data[beside], np.array(indices, np.int64).reshape(np.shape(indices)), axis)
    inputs = (data, np.array(indices, dtype))
    return Case(f"elements_{id}", "GatherElements", inputs, {"axis": axis}, expected=(expected,))


def pick_nd(id: str, x: tuple[int, ...], indices: Any, batch_dims: int = 0, dtype: Any = np.int64) -> Case:
    inputs = (arange(*x), np.array(indices, dtype))
    return Case(f"nd_{id}", "GatherND", inputs, {"batch_dims": batch_dims}, oracle="onnxruntime")


CASES = [
    pick("rows", (5, 3), [0, 4, 2]),
    pick("rows_of_units", (5, 8), [[0, 4], [2, 2]]),
    pick("columns", (5, 4), [3, 0, 3], axis=1),
    pick("middle", (3, 4, 6), [[1, 3], [0, 2]], axis=1),
    pick("negative_axis", (3, 4), [1, 1], axis=-1),
    pick("negative_indices", (5, 3), [-1, -5, 2]),
    pick("int32", (5, 3), [-1, 4], dtype=np.int32),
    pick("scalar_index", (5, 3), 2),
    pick("scalar_from_vector", (5,), -1),
    pick("no_indices", (5, 3), np.zeros((2, 0))),
    pick("nothing_from_empty", (0, 3), np.zeros(0)),
    pick("empty_slices", (5, 0), [1, 2]),
    pick("old", (5, 3), [0, 1], opset=7),
    Case("gather_strided", "Gather", (arange(6, 4).T[::2], np.array([0, 1, 0, 1])[::-1]), {"axis": 0}),
    pick_elements("rows", (3, 3), [[1, 2, 0], [2, 0, 0]]),
    pick_elements("columns", (2, 2), [[0, 0], [1, 0]], axis=1),
    pick_elements("longer", (2, 3), [[0, 1, 0]] * 7),
    pick_elements("beside_less", (4, 5), [[3, 0]], axis=0),
    pick_elements("negative", (3, 4), [[-1, -2], [-4, 3]], axis=-1),
    pick_elements("int32", (3, 3), [[-1, -2, 0]], dtype=np.int32),
    pick_elements("rank_three", (2, 3, 4), np.arange(24).reshape(2, 3, 4) % 3, axis=1),
    pick_elements("nothing", (3, 4), np.zeros((0, 4))),
    Case(
        "elements_strided",
        "GatherElements",
        (arange(4, 3).T, np.array([[2, 1], [0, 0]]).T),
        {"axis": 1},
        expected=(np.array([[6, 0], [4, 1]], np.float32),),
    ),
    pick_nd("elements", (2, 2), [[0, 0], [1, 1]]),
    pick_nd("slices", (2, 2), [[1], [0]]),
    pick_nd("blocks", (2, 2, 8), [[[0, 1]], [[1, 0]]]),
    pick_nd("batches", (2, 2, 2), [[1], [0]], batch_dims=1),
    pick_nd("more_batches", (2, 3, 4, 5), [[[[0], [3]]] * 3, [[[-1], [2]]] * 3], batch_dims=2),
    pick_nd("negative", (3, 4), [[-1, -4], [2, 3]]),
    pick_nd("one_tuple", (3, 4), [2, 1]),
    Case("nd_int32", "GatherND", (arange(3, 4), np.array([[-1, 1]], np.int32)), expected=(np.array([9], np.float32),)),
    Case(
        "nd_empty_tuples",
        "GatherND",
        (arange(2, 3), np.zeros((2, 0), np.int64)),
        expected=(np.stack([arange(2, 3)] * 2),),
    ),
    Case("nd_nothing", "GatherND", (arange(2, 3), np.zeros((0, 1), np.int64)), expected=(arange(0, 3),)),
]
CASES += [
    case
    for row in COMPUTED
    for x in [arange(4, 6).astype(row.numpy)]
    for index in [np.array([3, -2])]
    for case in [
        Case(f"gather_{row.name}", "Gather", (x, index), expected=(x[index],)),
        Case(f"gather_inner_{row.name}", "Gather", (x, index), {"axis": 1}, expected=(x[:, index],)),
        Case(f"elements_{row.name}", "GatherElements", (x, index[None]), expected=(x[index, [0, 1]][None],)),
        Case(f"nd_{row.name}", "GatherND", (x, index), expected=(x[3, -2, ...],)),
    ]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_gather(checks: str, case: Case) -> None:
    run_case(case, checks)


OUTSIDE = [
    ("Gather", {"axis": 1}, np.array([0, 4]), "index 4 is out of range for axis 1 of extent 4"),
    ("Gather", {"axis": 0}, np.array([-4]), "index -4 is out of range for axis 0 of extent 3"),
    ("GatherElements", {"axis": 1}, np.array([[0, 9]]), "index 9 is out of range for axis 1 of extent 4"),
    ("GatherND", {}, np.array([[0, 1], [3, 0]]), "index 3 is out of range for axis 0 of extent 3"),
    ("GatherND", {}, np.array([[0, -5]]), "index -5 is out of range for axis 1 of extent 4"),
]


@pytest.mark.parametrize(("op", "attributes", "indices", "message"), OUTSIDE)
def test_compute_refuses_index_out_of_range(op: str, attributes: dict[str, Any], indices: Array, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).compute(arange(3, 4), indices)


@pytest.mark.parametrize(
    ("op", "attributes", "indices", "expected", "refused"),
    [
        ("Gather", {}, [3, 1, -4], [[0, 0, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0]], 3),
        ("GatherElements", {"axis": 1}, [[4, 1], [-5, -1], [0, 2]], [[0, 2], [0, 8], [9, 11]], 4),
        ("GatherND", {}, [[0, 4], [2, 3], [-4, 0]], [0, 12, 0], -4),
    ],
)
def test_kernels_read_zero_out_of_range(
    checks: str, op: str, attributes: dict[str, Any], indices: Any, expected: Any, refused: int
) -> None:
    inputs, y = (arange(3, 4) + 1, np.array(indices)), np.array(expected, np.float32)
    run_case(Case("beyond", op, inputs, attributes, expected=(y,), refusal=f"index {refused} is out of range"), checks)


def spec(*shape: int, dtype: Any = np.int64) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("Gather", {}, (spec(3, 4), spec(2, dtype=np.float32)), "must be int32 or int64, got float32"),
        ("Gather", {"axis": 2}, (spec(3, 4), spec(2)), "axis is out of range"),
        ("Gather", {}, (spec(), spec(2)), "axis is out of range"),
        ("GatherElements", {}, (spec(3, 4), spec(2)), "of the rank of data"),
        ("GatherElements", {"axis": 1}, (spec(3, 4), spec(4, 4)), "no larger than data"),
        ("GatherND", {}, (spec(3, 4), spec(2, 3)), "picks along 3 axes"),
        ("GatherND", {"batch_dims": 1}, (spec(3, 4), spec(2, 1)), "agree in their first batch_dims = 1"),
        ("GatherND", {"batch_dims": 2}, (spec(3, 4), spec(3, 4)), "to have more"),
        ("GatherND", {}, (spec(3, 4), spec()), "to have more"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)
