"""TopK."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.reduce.topk import TOPK_DTYPES, TopK
from tests.ops.decomposed import list_launches
from tests.ops.harness import Array, Case, run_case

SPECIAL = np.array([[0.0, np.nan, -0.0, -np.inf, 1.0, np.nan, np.inf, -1.0, 0.0, 1e-45]], np.float32)


def sample(*shape: int, dtype: Any = np.float32, values: int = 9) -> Array:
    return np.random.default_rng([*shape, 5]).integers(-values, values, shape).astype(dtype)


def topk(id: str, x: Array, k: int, axis: int = -1, largest: int = 1, **more: Any) -> Case:
    attributes = {"axis": axis, "largest": largest, **more.pop("attributes", {})}
    name = f"{id}_{'largest' if largest else 'smallest'}"
    more = {"outputs": (True, True), **more}
    return Case(name, "TopK", (x, np.array([k], np.int64)), attributes, const=(1,), **more)


def far_apart(dtype: Any) -> Array:
    """Numbers that differ in their low bits only, beyond what a double holds."""
    top = np.iinfo(dtype).max
    return np.array([top - 1, 3, top, top - 2, top - 1, 0], dtype)


def by_hand(dtype: Any, largest: int) -> tuple[Array, Array]:
    x = SPECIAL.astype(dtype)
    # 1e-45 is 0 in the smaller floats, and comes last of the zeros then.
    falling = [1, 5, 6, 4, *([9, 0, 2, 8] if x[0, 9] else [0, 2, 8, 9]), 7, 3]
    rising = [3, 7, 0, 2, 8, 9, 4, 6, 1, 5]
    places = np.array([falling if largest else rising])
    return np.take(x, places[0], 1), places


CASES = [
    *(
        topk(np.dtype(dtype).name, sample(3, 40, dtype=dtype), 7, largest=largest)
        for dtype in TOPK_DTYPES
        for largest in (1, 0)
    ),
    *(
        topk(
            f"special_{np.dtype(dtype).name}",
            SPECIAL.astype(dtype),
            10,
            largest=largest,
            expected=by_hand(dtype, largest),
        )
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
        for largest in (1, 0)
    ),
    *(topk(f"wide_{np.dtype(t).name}", far_apart(t), 6, largest=n) for t in (np.int64, np.uint64) for n in (1, 0)),
    *(topk(f"axis{axis}", sample(4, 5, 6), 3, axis, largest) for axis in (0, 1, -1, -3) for largest in (1, 0)),
    *(topk(f"k{k}", sample(2, 12), k) for k in (0, 1, 11, 12)),
    *(topk(f"length{n}", sample(2, n), min(n, 5)) for n in (1, 2, 31, 33, 1023, 1024)),
    *(topk(f"searched{n}_k{k}", sample(2, n, values=300), k) for n in (1025, 5000) for k in (1, 9, 1024)),
    *(topk(f"sorted_in_memory_k{k}", sample(2, 5000, values=300), k) for k in (1025, 3000, 5000)),
    topk("searched_bytes", sample(3000, dtype=np.int8), 100, largest=0),
    topk("searched_halves", sample(3000, dtype=np.float16), 100),
    topk("searched_doubles", sample(3000, dtype=np.float64), 100),
    topk("searched_special", np.tile(SPECIAL, (1, 150)), 700),
    topk("searched_column", sample(1500, 3, values=300), 20, axis=0),
    topk("sorted_column", sample(3000, 2, values=300), 2000, axis=0, largest=0),
    topk("all_equal", np.ones((2, 2000), np.float32), 1500),
    topk("strided", sample(6, 8, 4)[::-2, ::3].T, 2, axis=1),
    *(topk(f"empty{shape}", np.zeros(shape, np.float32), 0, axis) for shape, axis in [((0,), 0), ((3, 0), 1)]),
    topk("no_lines", np.zeros((0, 4), np.float32), 2),
    topk("unsorted", sample(3, 20), 4, attributes={"sorted": 0}),
    topk("only_values", sample(3, 20), 4, outputs=(True, False)),
    topk("only_indices", sample(3, 20), 4, outputs=(False, True)),
    Case("opset10", "TopK", (sample(3, 9), np.array([2])), {"axis": 0}, (1,), (True, True), opset=10),
    Case("opset9", "TopK", (sample(3, 9),), {"axis": 1, "k": 4}, (), (True, True), opset=9),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_topk(checks: str, case: Case) -> None:
    run_case(case, checks)


def first(id: str, x: Array, axis: int = -1) -> list[Case]:
    """Return the largest and the smallest element of each line, and their places, as TopK has them."""
    cases = []
    for largest in (1, 0):
        attributes = {"axis": axis, "largest": largest}
        expected = TopK(axis, largest).compute(x, np.array([1]))
        for name, made in zip(("TopElement", "TopPlace"), expected, strict=True):
            cases.append(Case(f"{name}_{id}_{largest}", name, (x,), attributes, expected=(made,), domain="gpuexec"))
    return cases


FIRST = [
    *(case for dtype in TOPK_DTYPES for case in first(np.dtype(dtype).name, sample(3, 40, dtype=dtype))),
    *(
        case
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
        for case in first(f"special_{np.dtype(dtype).name}", np.roll(np.tile(SPECIAL, (3, 1)), 4, 0).astype(dtype))
    ),
    *first("negative_zero", np.array([[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0], [1.0, -0.0, 0.0]], np.float32)),
    *first("nan", np.array([[np.nan, np.nan, 1.0], [2.0, np.nan, 1.0], [np.nan, np.nan, np.nan]], np.float16)),
    *(case for t in (np.int64, np.uint64) for case in first(f"wide_{np.dtype(t).name}", far_apart(t))),
    *(case for axis in (0, 1, -1) for case in first(f"axis{axis}", sample(4, 5, 6), axis)),
    *first("long", sample(2, 9000, values=300)),
    *first("strided", sample(6, 8, 4)[::-2, ::3].T),
    *first("no_lines", np.zeros((0, 4), np.float32)),
]


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.id)
def test_first(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_launches_are_the_same_for_every_size() -> None:
    for n, k in [(0, 0), (1, 1), (2000, 3), (2000, 2000)]:
        assert list_launches(TopK(), [sample(2, n), np.array([k])], known=[1]) == ["topk.cu:topk<float>"]


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("TopK").attributes
    assert TopK(**{name: each.default_value.i for name, each in attributes.items()}) == TopK()


@pytest.mark.parametrize(
    ("x", "k", "axis", "message"),
    [
        (np.zeros((2, 3)), [4], -1, r"from 0 to 3, the extent of its axis, got \[4\]"),
        (np.zeros((2, 3)), [-1], -1, r"got \[-1\]"),
        (np.zeros((2, 3)), [1, 2], -1, r"got \[1, 2\]"),
        (np.zeros((2, 3)), [1], 2, "axis is out of range"),
        (np.zeros(()), [1], -1, "expected no axis at all"),
        (np.zeros(3, np.bool_), [1], 0, "TopK expects input of type"),
        (np.zeros(3), [1.0], 0, "must be a one-dimensional integer tensor"),
    ],
)
def test_infer_refuses(x: Array, k: Any, axis: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TopK(axis).infer(TensorSpec.of(x), TensorSpec.of(np.array(k)))


def test_infer_asks_for_k() -> None:
    with pytest.raises(NeedsHostValue, match="K"):
        build("TopK", {}).infer(TensorSpec((3,), np.dtype(np.float32)), TensorSpec((1,), np.dtype(np.int64)))
