"""ScatterElements, ScatterND and legacy Scatter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import Operator, build
from gpuexec.ir.spec import COMPUTED, TensorSpec, accumulator
from gpuexec.ops.tensor.scatter import ScatterElements, ScatterND
from tests.devices.opening import make_simulator
from tests.ops.decomposed import list_launches
from tests.ops.harness import Array, Case, plan_case, run_case, run_planned

REDUCTIONS = ("none", "add", "mul", "min", "max")
SMALL_FLOATS = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def sample(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng([*shape, seed]).integers(0, 5, shape).astype(dtype)


def picks(*shape: int, extent: int, dtype: Any = np.int64) -> Array:
    """Indices with duplicates, negative ones among them."""
    return np.random.default_rng([*shape, extent]).integers(-extent, extent, shape).astype(dtype)


def fold(a: Any, b: Any, reduction: str) -> Any:
    with np.errstate(all="ignore"):
        match reduction:
            case "add":
                return a + b
            case "mul":
                return a * b
            case "min":
                return np.minimum(a, b)
            case "max":
                return np.maximum(a, b)
    return b


def elements(id: str, data: Array, indices: Any, updates: Array, axis: int = 0, reduction: str = "none") -> Case:
    indices = np.asarray(indices)
    result = data.astype(data.dtype if reduction == "none" else accumulator(data.dtype))
    for place in np.ndindex(indices.shape):
        target = (*place[: axis % data.ndim], int(indices[place]), *place[axis % data.ndim + 1 :])
        result[target] = fold(result[target], updates[place].astype(result.dtype), reduction)
    inputs = (data, indices, updates)
    attributes = {"axis": axis, "reduction": reduction}
    with np.errstate(all="ignore"):
        expected = (result.astype(data.dtype),)
    return Case(f"elements_{id}_{reduction}", "ScatterElements", inputs, attributes, expected=expected)


def slices(id: str, data: Array, indices: Any, updates: Array, reduction: str = "none") -> Case:
    indices = np.asarray(indices)
    result = data.astype(data.dtype if reduction == "none" else accumulator(data.dtype))
    for place in np.ndindex(indices.shape[:-1]):
        target = tuple(indices[place].tolist())
        result[target] = fold(result[target], updates[place].astype(result.dtype), reduction)
    with np.errstate(all="ignore"):
        inputs, expected = (data, indices, updates), (result.astype(data.dtype),)
    return Case(f"nd_{id}_{reduction}", "ScatterND", inputs, {"reduction": reduction}, expected=expected)


SPECIAL = np.array([0.0, -0.0, np.nan, 1.0, -np.inf, np.inf, 0.0, -0.0], np.float32)
NOISE = np.random.default_rng(9).normal(0, 100, (3, 400)).astype(np.float32)
CASES = [
    *(
        case
        for row in COMPUTED
        for reduction in REDUCTIONS
        for case in (
            elements(
                row.name,
                sample(4, 3, dtype=row.numpy),
                picks(9, 3, extent=4),
                sample(9, 3, dtype=row.numpy, seed=1),
                reduction=reduction,
            ),
            slices(
                row.name,
                sample(4, 3, dtype=row.numpy),
                picks(9, 1, extent=4),
                sample(9, 3, dtype=row.numpy, seed=1),
                reduction=reduction,
            ),
        )
    ),
    *(
        case
        for reduction in REDUCTIONS
        for case in (
            elements("axis1", sample(3, 4), picks(3, 9, extent=4), sample(3, 9), 1, reduction),
            elements("middle", sample(2, 3, 4), picks(2, 5, 4, extent=3), sample(2, 5, 4), 1, reduction),
            elements("beside_less", sample(5, 4), picks(2, 6, extent=4), sample(2, 6), -1, reduction),
            elements("int32", sample(5, 4), picks(2, 4, extent=5, dtype=np.int32), sample(2, 4), 0, reduction),
            elements("strided", sample(8, 5).T[::-1], picks(6, 2, extent=8).T, sample(2, 12)[:, ::2], 1, reduction),
            elements("nothing", sample(3, 4), np.zeros((0, 4), np.int64), sample(0, 4), 0, reduction),
            elements("empty", sample(0, 4), np.zeros((0, 4), np.int64), sample(0, 4), 1, reduction),
            elements("in_order", NOISE[:, :7], picks(3, 400, extent=7), NOISE, 1, reduction),
            elements(
                "in_order_half",
                NOISE[:, :7].astype(np.float16),
                picks(3, 90, extent=7),
                (NOISE[:, :90] / 50).astype(np.float16),
                1,
                reduction,
            ),
            elements("merged", sample(50), picks(3000, extent=50), sample(3000), 0, reduction),
            slices("tuples", sample(3, 4), picks(12, 2, extent=3), sample(12), reduction),
            slices("blocks", sample(4, 2, 3), picks(2, 5, 1, extent=4), sample(2, 5, 2, 3), reduction),
            slices("rank_three", sample(2, 3, 4), picks(7, 3, extent=2), sample(7), reduction),
            slices("int32", sample(5, 4), picks(6, 1, extent=5, dtype=np.int32), sample(6, 4), reduction),
            slices("one_tuple", sample(3, 4), np.array([1, -1]), np.array(9, np.float32), reduction),
            slices("empty_tuples", sample(2, 3), np.zeros((4, 0), np.int64), sample(4, 2, 3), reduction),
            slices("nothing", sample(2, 3), np.zeros((0, 1), np.int64), sample(0, 3), reduction),
            slices("empty_slices", sample(2, 0), picks(5, 1, extent=2), sample(5, 0), reduction),
            slices("strided", sample(8, 5).T[::-1], picks(1, 6, extent=5).T, sample(6, 16)[:, ::2], reduction),
            slices("in_order", NOISE[:, :9], picks(40, 1, extent=3), np.tile(NOISE[:, :9], (14, 1))[:40], reduction),
        )
    ),
    *(
        elements(f"special{shift}", SPECIAL, np.arange(8), np.roll(SPECIAL, shift), 0, reduction)
        for shift in (2, 3, 5)
        for reduction in ("none", "add", "mul")
    ),
    elements("wraps", np.full(2, 2**31 - 1, np.int32), [0, 0, 1], np.full(3, 3, np.int32), 0, "add"),
    elements("wraps", np.full(2, 200, np.uint8), [0, 0, 1], np.full(3, 3, np.uint8), 0, "mul"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_scatter(checks: str, case: Case) -> None:
    run_case(case, checks)


POSITIVE, NEGATIVE = 0.0, -0.0
EXTREMA = [
    (
        "max",
        [NEGATIVE, NEGATIVE, POSITIVE, -1, np.nan, 2],
        [POSITIVE, NEGATIVE, NEGATIVE, NEGATIVE, 1, np.nan],
        [POSITIVE, NEGATIVE, POSITIVE, NEGATIVE, np.nan, np.nan],
    ),
    (
        "min",
        [NEGATIVE, NEGATIVE, POSITIVE, 1, np.nan, 2],
        [POSITIVE, NEGATIVE, NEGATIVE, POSITIVE, 1, np.nan],
        [NEGATIVE, NEGATIVE, NEGATIVE, POSITIVE, np.nan, np.nan],
    ),
]


@pytest.mark.parametrize("dtype", [row.numpy for row in COMPUTED if row.kind == "float"], ids=str)
@pytest.mark.parametrize(("reduction", "data", "updates", "expected"), EXTREMA, ids=["max", "min"])
def test_extrema_order_zeros_and_keep_nan(
    checks: str, reduction: str, data: list[float], updates: list[float], expected: list[float], dtype: Any
) -> None:
    x, y, wanted = (np.array(each, dtype) for each in (data, updates, expected))
    inputs = (x, np.arange(6), y)
    run_case(Case(reduction, "ScatterElements", inputs, {"reduction": reduction}, expected=(wanted,)), checks)


REFERENCE = [
    *(
        Case(f"{op}_{reduction}", op, inputs, {} if reduction == "none" else {"reduction": reduction}, opset=opset)
        for op, inputs in [
            ("ScatterElements", (sample(3, 4), np.array([[1, 0, 2, 0], [0, 2, 1, 1]]), sample(2, 4))),
            ("ScatterND", (sample(4, 4, 4), np.array([[0], [2]]), sample(2, 4, 4))),
        ]
        for reduction, opset in [("none", 11), ("none", 13), ("add", 16), ("mul", 16), ("min", 18), ("max", 24)]
    ),
    Case(
        "scatter9",
        "Scatter",
        (sample(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), sample(2, 3)),
        opset=9,
        oracle="onnxruntime",
    ),
    Case(
        "scatter10",
        "Scatter",
        (sample(1, 5), np.array([[1, 3]]), sample(1, 2)),
        {"axis": 1},
        opset=10,
        oracle="onnxruntime",
    ),
]


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case.id)
def test_scatter_beside_another_engine(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_launches_are_the_same_for_every_size() -> None:
    for reduction, number in (("none", 2), ("add", 10)):
        for op, width in ((ScatterElements(reduction=reduction), ()), (ScatterND(reduction), (1,))):
            found = [list_launches(op, [sample(4), np.zeros((n, *width), np.int64), sample(n)]) for n in (0, 1, 3000)]
            assert found[0] == found[1] == found[2] and len(found[0]) == number


def run_shuffled(op: Operator, inputs: tuple[Array, ...]) -> list[Array]:
    """Return what kernels make of arrays in check mode: threads in random order, no access out of bounds."""
    device = make_simulator(check_kernels=True)
    return run_planned(plan_case(Case("case", op.name, inputs), op, inputs, set(), device.target), device)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_order_of_threads_does_not_matter(reduction: str) -> None:
    indices, updates = picks(300, extent=5), np.random.default_rng(2).normal(0, 1, 300).astype(np.float32)
    inputs = (np.ones(5, np.float32), indices, updates)
    op = ScatterElements(reduction=reduction)
    (y,) = run_shuffled(op, inputs)
    np.testing.assert_array_equal(y, op.compute(*inputs)[0])


OUTSIDE = [
    ("ScatterElements", {}, np.array([[0], [3]]), sample(2, 1), "index 3 is out of range for axis 0 of extent 3"),
    ("ScatterElements", {"axis": 1}, np.array([[-5]]), sample(1, 1), "index -5 is out of range for axis 1 of extent 4"),
    ("ScatterND", {}, np.array([[0, 1], [2, 4]]), sample(2), "index 4 is out of range for axis 1 of extent 4"),
]


@pytest.mark.parametrize("reduction", ["none", "max"])
@pytest.mark.parametrize(("op", "attributes", "indices", "updates", "message"), OUTSIDE)
def test_index_out_of_range(
    checks: str, op: str, attributes: dict[str, Any], indices: Array, updates: Array, message: str, reduction: str
) -> None:
    data, updates = sample(3, 4), updates + 10
    expected = data.copy()
    if len(indices) > 1:
        expected[tuple(indices[0]) if op == "ScatterND" else (0, 0)] = updates.flat[0]
    inputs, attributes = (data, indices, updates), {**attributes, "reduction": reduction}
    run_case(Case("beyond", op, inputs, attributes, expected=(expected,), refusal=message), checks)


def test_attributes_are_those_of_the_standard() -> None:
    for op, built in (("ScatterElements", ScatterElements()), ("ScatterND", ScatterND())):
        attributes = onnx.defs.get_schema(op).attributes
        assert built == build(op, {"reduction": attributes["reduction"].default_value.s.decode()})
        assert getattr(built, "axis", 0) == (attributes["axis"].default_value.i if "axis" in attributes else 0)


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("ScatterElements", {}, (spec(3), spec(2), spec(2)), "must be int32 or int64, got float32"),
        ("ScatterElements", {}, (spec(3), spec(2, dtype=np.int64), spec(2, dtype=np.int8)), "updates of the type of"),
        ("ScatterElements", {}, (spec(3, 4), spec(2, dtype=np.int64), spec(2)), "indices of the rank of data"),
        ("ScatterElements", {}, (spec(3, 4), spec(2, 5, dtype=np.int64), spec(2, 5)), "no larger than data"),
        ("ScatterElements", {}, (spec(3), spec(2, dtype=np.int64), spec(3)), "an update per index"),
        ("ScatterElements", {"axis": 1}, (spec(3), spec(2, dtype=np.int64), spec(2)), "axis is out of range"),
        ("ScatterElements", {"reduction": "sub"}, (spec(3), spec(2, dtype=np.int64), spec(2)), "got 'sub'"),
        ("ScatterND", {}, (spec(3), spec(dtype=np.int64), spec(3)), "tuples of up to 1"),
        ("ScatterND", {}, (spec(3), spec(2, 2, dtype=np.int64), spec(2)), "tuples of up to 1"),
        ("ScatterND", {}, (spec(3, 4), spec(2, 1, dtype=np.int64), spec(2)), r"updates \[2, 4\]"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)


def test_scatter_nd_refuses_more_axes_than_kernels_take() -> None:
    with pytest.raises(InputError, match="at most 8 axes on a device, got 9"):
        list_launches(ScatterND(), [np.zeros((1,) * 9, np.float32), np.zeros((1, 9), np.int64), sample(1)])
