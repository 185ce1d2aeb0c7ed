"""Reductions against onnx.reference; worked by hand where its answer is not followed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops.reduce.reduce  # noqa: F401  (registers the operators)
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.reduce.reduce import CHUNK_TERMS
from tests.ops.harness import Array, Case, run_case

BF16 = ml_dtypes.bfloat16
NAN, INF = np.nan, np.inf
FLOATS = (np.float32, np.float64, np.float16, BF16)
INTS = (np.int32, np.int64, np.uint32, np.uint64)


def sample(shape: tuple[int, ...], dtype: Any = np.float32, low: float = -3.0, high: float = 3.0) -> Array:
    """Return reproducible values; small integers for integer types."""
    rng = np.random.default_rng([*shape, 7])
    if np.dtype(dtype) == np.bool_:
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -9), 10, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def axes_of(*axes: int) -> Array:
    return np.array(axes, np.int64)


def reduction(op: str, id: str, x: Array, *axes: int, **more: Any) -> Case:
    """Return a case with axes as a constant input; ``terms`` covers the squares and products of small samples."""
    attributes = more.pop("attributes", {})
    return Case(
        f"{op}-{id}", op, (x, axes_of(*axes)), attributes, const=(1,), terms=more.pop("terms", max(1, x.size)), **more
    )


SUMS = ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare")
FLOAT_ONLY = ("ReduceLogSum", "ReduceLogSumExp")
EXTREMA = ("ReduceMax", "ReduceMin")


def cases() -> list[Case]:
    rows = []
    for op in (*SUMS, *FLOAT_ONLY, *EXTREMA, "ReduceProd"):
        low = 0.5 if op in ("ReduceLogSum", "ReduceProd") else -3.0
        high = 1.5 if op == "ReduceProd" else 3.0
        x = sample((3, 4, 5), low=low, high=high)
        rows += [
            reduction(op, "last", x, -1),
            reduction(op, "first", x, 0),
            reduction(op, "middle-squeezed", x, 1, attributes={"keepdims": 0}),
            reduction(op, "two", x, 2, -3),
            reduction(op, "all-squeezed", x, 0, 1, 2, attributes={"keepdims": 0}),
            reduction(op, "empty-axes-are-all", x),
            Case(f"{op}-absent-axes", op, (x,), terms=60),
            # Of a 0-d input onnx.reference refuses some reductions.
            Case(f"{op}-0d", op, (np.asarray(np.float32(-2)),), expected=(np.asarray(np.float32(MAPPED[op][0])),)),
            reduction(
                op, "0d-empty-axes", np.asarray(np.float32(3)), expected=(np.asarray(np.float32(MAPPED[op][1])),)
            ),
            *(
                reduction(
                    op,
                    f"0d-axes{axes}-keepdims{keep}",
                    np.asarray(np.float32(-2)),
                    *axes,
                    attributes={"keepdims": keep},
                    expected=(np.asarray(np.float32(MAPPED[op][0])),),
                )
                for axes in ((0,), (-1,), (0, -1))
                for keep in (0, 1)
            ),
            Case(
                f"{op}-0d-opset11",
                op,
                (np.asarray(np.float32(-2)),),
                {"axes": [-1], "keepdims": 0},
                opset=11,
                expected=(np.asarray(np.float32(MAPPED[op][0])),),
            ),
            reduction(op, "no-rows", x[:, :0], 0),
            reduction(op, "axis-of-1", x[:, :1], 1),
        ]
        dtypes = [t for t in FLOATS if t != np.float32]
        if op not in FLOAT_ONLY:
            dtypes += INTS
        if op in EXTREMA:
            dtypes += [np.int8, np.uint8, np.bool_]
        for dtype in dtypes:
            y = sample((3, 4, 5), dtype, low, high)
            rows.append(reduction(op, np.dtype(dtype).name, y, 1, expected=by_hand(op, y, (1,))))
            rows.append(reduction(op, f"{np.dtype(dtype).name}-all", y[0], 0, 1, expected=by_hand(op, y[0], (0, 1))))
    return rows


def by_hand(op: str, x: Array, axes: tuple[int, ...]) -> tuple[Array] | None:
    """Return what onnx.reference does not answer as we do: it adds halves in half, and widens 32-bit types."""
    if x.dtype in (BF16, np.float16):
        return by_float32(op, x, axes)
    if x.dtype.kind in "iu" and op == "ReduceMean":
        total = x.sum(axes, dtype=x.dtype, keepdims=True)
        return (np.trunc(total / (x.size // total.size)).astype(x.dtype),)
    if x.dtype.kind in "iu" and op == "ReduceSumSquare":
        return (np.sum(x * x, axis=axes, dtype=x.dtype, keepdims=True),)
    return None


def by_float32(op: str, x: Array, axis: tuple[int, ...]) -> tuple[Array]:
    """Return a half or bfloat16 result worked out in float32."""
    wide = x.astype(np.float32)
    table = {
        "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod,
        "ReduceL1": lambda a, **k: np.sum(np.abs(a), **k),
        "ReduceL2": lambda a, **k: np.sqrt(np.sum(a * a, **k)),
        "ReduceSumSquare": lambda a, **k: np.sum(a * a, **k),
        "ReduceLogSum": lambda a, **k: np.log(np.sum(a, **k)),
        "ReduceLogSumExp": lambda a, **k: np.log(np.sum(np.exp(a), **k)),
    }  # fmt: skip
    return (table[op](wide, axis=axis, keepdims=True).astype(x.dtype),)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


EMPTY = {
    "ReduceSum": 0.0, "ReduceMean": NAN, "ReduceProd": 1.0, "ReduceL1": 0.0, "ReduceL2": 0.0, "ReduceSumSquare": 0.0,
    "ReduceLogSum": -INF, "ReduceLogSumExp": -INF, "ReduceMax": -INF, "ReduceMin": INF,
}  # fmt: skip
# Over no axes nothing is summed, but the map is applied.
MAPPED = {
    "ReduceSum": (-2.0, 3.0), "ReduceMean": (-2.0, 3.0), "ReduceProd": (-2.0, 3.0), "ReduceL1": (2.0, 3.0),
    "ReduceL2": (2.0, 3.0),
    "ReduceSumSquare": (4.0, 9.0), "ReduceLogSum": (NAN, np.log(np.float32(3))), "ReduceLogSumExp": (-2.0, 3.0),
    "ReduceMax": (-2.0, 3.0), "ReduceMin": (-2.0, 3.0),
}  # fmt: skip


def worked_out() -> list[Case]:
    rows = [
        reduction(op, "of-nothing", np.zeros((2, 0, 3), np.float32), 1, expected=(np.full((2, 1, 3), v, np.float32),))
        for op, v in EMPTY.items()
    ]
    rows += [
        reduction(op, "noop", f32(-2, 3), attributes={"noop_with_empty_axes": 1}, expected=(f32(*v),))
        for op, v in MAPPED.items()
    ]
    rows += [
        Case(f"{op}-noop-absent", op, (f32(-2, 3),), {"noop_with_empty_axes": 1}, expected=(f32(*MAPPED[op]),))
        for op in ("ReduceSum", "ReduceL1")
    ]
    rows += [
        reduction(op, "noop-of-minus-zero", f32(-0.0), attributes={"noop_with_empty_axes": 1}, expected=(f32(-0.0),))
        for op in ("ReduceSum", "ReduceMean", "ReduceMax")
    ]
    rows += [
        reduction("ReduceMax", "nan-wins", f32(1, NAN, 3), 0, expected=(f32(NAN),)),
        reduction("ReduceMin", "nan-wins", f32(NAN, 1, -INF), 0, expected=(f32(NAN),)),
        reduction("ReduceMax", "positive-zero", f32(0.0, -0.0, -1.0, -0.0), 0, expected=(f32(0.0),)),
        reduction("ReduceMax", "negative-zero", f32(-0.0, -0.0), 0, expected=(f32(-0.0),)),
        reduction("ReduceMin", "negative-zero", f32(0.0, -0.0, 1.0, 0.0), 0, expected=(f32(-0.0),)),
        reduction("ReduceMin", "positive-zero", f32(0.0, 2.0), 0, expected=(f32(0.0),)),
        reduction(
            "ReduceMax",
            "int-of-nothing",
            np.zeros((0, 2), np.int32),
            0,
            expected=(np.full((1, 2), -(2**31), np.int32),),
        ),
        reduction("ReduceProd", "all-of-nothing", f32(), 0, expected=(f32(1),)),
        reduction("ReduceMin", "bool-of-nothing", np.zeros((0, 2), np.bool_), 0, expected=(np.ones((1, 2), np.bool_),)),
        reduction(
            "ReduceMean", "int-truncates", np.array([1, 2, -5, -1], np.int32), 0, expected=(np.array([0], np.int32),)
        ),
        reduction(
            "ReduceMean", "int-wraps", np.array([2**31 - 1] * 2, np.int32), 0, expected=(np.array([-1], np.int32),)
        ),
        reduction(
            "ReduceMean", "int-of-nothing", np.zeros((0, 2), np.int64), 0, expected=(np.zeros((1, 2), np.int64),)
        ),
        reduction("ReduceLogSumExp", "all-minus-inf", f32(-INF, -INF), 0, expected=(f32(-INF),)),
        reduction("ReduceLogSumExp", "inf", f32(1, INF, -INF), 0, expected=(f32(INF),)),
        reduction("ReduceLogSumExp", "nan", f32(1, NAN, INF), 0, expected=(f32(NAN),)),
        reduction("ReduceLogSumExp", "large", f32(1000, 1000), 0, expected=(f32(1000 + np.log(2)),)),
        reduction("ReduceLogSumExp", "far-apart", f32(-INF, -200, -200, -INF), 0, expected=(f32(-200 + np.log(2)),)),
        reduction(
            "ReduceSum", "half-in-float", np.full(4096, 1, np.float16), 0, expected=(np.array([4096], np.float16),)
        ),
    ]
    for dtype in INTS:
        logs = np.array([[[2, 9], [18, 0]], [[1000, 3], [148, 1]]], dtype)  # sums to 20, 9, 1148 and 4
        rows += [
            reduction(op, f"{np.dtype(dtype).name}-truncates", logs, 1, expected=(np.array(by_rows, dtype),), opset=18)
            for op, by_rows in (("ReduceLogSum", [[[2, 2]], [[7, 1]]]), ("ReduceLogSumExp", [[[18, 9]], [[1000, 3]]]))
        ] + [
            reduction(op, f"{np.dtype(dtype).name}-all", logs, 0, 1, 2, expected=(np.array(by_all, dtype),), opset=18)
            for op, by_all in (("ReduceLogSum", [[[7]]]), ("ReduceLogSumExp", [[[1000]]]))
        ]
    below = np.array([[-3, 2, -8], [-1, -1, -1]], np.int32)
    rows += [
        reduction("ReduceLogSum", "int-of-a-negative-sum", below, 1, expected=(np.zeros((2, 1), np.int32),), opset=11),
        reduction(
            "ReduceLogSumExp", "int-truncates-to-zero", below, 1, expected=(np.array([[2], [0]], np.int32),), opset=11
        ),
        Case(
            "ReduceLogSumExp-int-old", "ReduceLogSumExp", (below,), {"axes": [0], "keepdims": 0}, opset=7,
            expected=(np.array([0, 2, 0], np.int32),),
        ),
    ]  # fmt: skip
    return rows


def layouts() -> list[Case]:
    """Return shapes that take teams of every size, both layouts of a team, several runs, and chunks."""
    rows = []
    for op in ("ReduceSum", "ReduceMax", "ReduceLogSumExp"):
        rows += [
            reduction(op, "long-row", sample((2, 3000)), 1, terms=3000),
            reduction(op, "long-column", sample((2000, 3)), 0, terms=2000),
            reduction(op, "wide-columns", sample((5, 300)), 0, terms=5),
            reduction(op, "many-short-rows", sample((600, 3)), 1, terms=3),
            reduction(op, "two-chunks", sample((20, 1000)), 0, 1, terms=20000),
            reduction(op, "alternating", sample((3, 4, 5, 6)), 0, 2, terms=15),
            reduction(op, "alternating-other", sample((3, 4, 5, 6)), 1, 3, attributes={"keepdims": 0}, terms=24),
        ]
    # As many chunks as fill their buffer to its end.
    rows.append(reduction("ReduceLogSumExp", "whole-chunks", sample((32, CHUNK_TERMS)), 0, 1, terms=32 * CHUNK_TERMS))
    return rows


def upgraded() -> list[Case]:
    rows = []
    for op, newest in (("ReduceSum", 13), ("ReduceMean", 18), ("ReduceMax", 18), ("ReduceLogSumExp", 18)):
        x = sample((3, 4, 5))
        for opset in (11, newest - 1):
            rows += [
                Case(f"{op}-opset{opset}", op, (x,), {"axes": [1, -1], "keepdims": 0}, opset=opset, terms=60),
                Case(f"{op}-opset{opset}-all", op, (x,), {}, opset=opset, terms=60),
            ]
        rows.append(
            Case(f"{op}-opset7", op, (x,), {"axes": [0, 2]}, opset=7, terms=60, expected=by_numpy(op, x, (0, 2)))
        )
    return rows


def by_numpy(op: str, x: Array, axes: tuple[int, ...]) -> tuple[Array]:
    if op == "ReduceLogSumExp":
        return (np.log(np.exp(x.astype(np.float64)).sum(axes, keepdims=True)).astype(x.dtype),)
    return ({"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max}[op](x, axis=axes, keepdims=True),)


def pools() -> list[Case]:
    """onnx.reference knows only rank 4 here, so onnxruntime answers for the others."""
    rows = []
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        rows += [
            Case(f"{op}-2d", op, (sample((2, 3, 7, 7)),), terms=49),
            Case(f"{op}-1d", op, (sample((2, 3, 70)),), terms=70, oracle="onnxruntime", opset=17),
            Case(f"{op}-3d", op, (sample((1, 2, 3, 4, 5)),), terms=60, oracle="onnxruntime", opset=17),
            Case(f"{op}-no-space", op, (sample((2, 3)),), expected=(sample((2, 3)),)),
            Case(f"{op}-no-batch", op, (sample((0, 3, 2)),), expected=(np.zeros((0, 3, 1), np.float32),)),
            Case(f"{op}-f64", op, (sample((2, 3, 4, 4), np.float64),), terms=16),
            Case(f"{op}-f16", op, (sample((2, 3, 4, 4), np.float16),), terms=16),
            Case(f"{op}-opset7", op, (sample((2, 3, 4, 4)),), terms=16, opset=7),
        ]
        wide = sample((2, 3, 4, 4), BF16).astype(np.float32)
        mean_or_max = (wide.mean if op == "GlobalAveragePool" else wide.max)(axis=(2, 3), keepdims=True)
        rows.append(Case(f"{op}-bf16", op, (wide.astype(BF16),), terms=16, expected=(mean_or_max.astype(BF16),)))
    x = sample((2, 3, 4, 5))
    for p in (1, 2, 3):
        expected = (np.abs(x.astype(np.float64)) ** p).sum((2, 3), keepdims=True) ** (1 / p)
        rows.append(
            Case(
                f"GlobalLpPool-p{p}", "GlobalLpPool", (x,), {"p": p}, terms=60, expected=(expected.astype(np.float32),)
            )
        )
    for dtype in (np.float64, np.float16, BF16):
        given = sample((2, 3, 4, 5), dtype)
        expected = np.sqrt(np.square(given.astype(np.float64)).sum((2, 3), keepdims=True)).astype(dtype)
        rows.append(
            Case(f"GlobalLpPool-{np.dtype(dtype).name}", "GlobalLpPool", (given,), terms=60, expected=(expected,))
        )
    return rows


def places() -> list[Case]:
    rows = []
    ties = np.array([[2, 1, 2, 1], [0, 3, 3, 0]])
    for op in ("ArgMax", "ArgMin"):
        for dtype in (*FLOATS[:3], *INTS, np.int8, np.uint8, np.int16, np.uint16):
            rows.append(Case(f"{op}-{np.dtype(dtype).name}", op, (ties.astype(dtype),), {"axis": 1}))
        find = np.argmax if op == "ArgMax" else np.argmin
        rows += [
            Case(f"{op}-bfloat16", op, (ties.astype(BF16),), {"axis": 1}, expected=(find(ties, axis=1)[:, None],)),
            Case(f"{op}-last", op, (ties.astype(np.float32),), {"axis": -1, "select_last_index": 1}),
            Case(f"{op}-default-axis", op, (sample((4, 3, 2)),), {}),
            Case(f"{op}-squeezed", op, (sample((4, 3, 2)),), {"axis": 1, "keepdims": 0}),
            Case(f"{op}-long", op, (sample((3, 1000)),), {"axis": 1}),
            Case(f"{op}-column", op, (sample((100, 40)),), {"axis": 0}),
            Case(f"{op}-vector", op, (sample((50,)),), {"axis": 0, "keepdims": 0}),
            Case(f"{op}-no-rows", op, (sample((0, 3)),), {"axis": 1}),
            Case(
                f"{op}-opset7",
                op,
                (sample((4, 5)),),
                {"axis": 1},
                opset=7,
                expected=(find(sample((4, 5)), axis=1)[:, None],),
            ),
            Case(f"{op}-opset11", op, (sample((4, 5)),), {"axis": -1}, opset=11),
            Case(f"{op}-nan", op, (f32(1, NAN, 3, NAN),), {}, expected=(np.array([1]),)),
            Case(f"{op}-nan-last", op, (f32(1, NAN, 3, NAN, 0),), {"select_last_index": 1}, expected=(np.array([3]),)),
            Case(f"{op}-zeros-are-equal", op, (f32(-0.0, 0.0, -0.0),), {}, expected=(np.array([0]),)),
            Case(
                f"{op}-large-int64",
                op,
                (np.array([2**62, 2**62 + 1, 2**62 - 1]),),
                {},
                expected=(np.array([1 if op == "ArgMax" else 2]),),
            ),
        ]
    return rows


ALL = [*cases(), *worked_out(), *layouts(), *upgraded(), *pools(), *places()]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_reduction(checks: str, case: Case) -> None:
    run_case(case, checks)


def views() -> list[Case]:
    """Return inputs whose strides are not those of a dense tensor; terms and rows swap places in memory."""
    x = sample((4, 5, 6, 7))
    shown = {
        "transposed": x.transpose(3, 1, 0, 2),
        "channels-last": x.transpose(0, 3, 1, 2),
        "reversed": x[:, ::-1, :, ::-1],
        "every-other": x[::2, :, 1::3],
        "broadcast": np.broadcast_to(x[:, :1], (4, 9, 6, 7)),
    }
    rows = []
    for name, view in shown.items():
        for axes in ((0,), (3,), (1, 2), (0, 3), (0, 1, 2, 3)):
            rows += [
                reduction(op, f"{name}-{axes}", view, *axes) for op in ("ReduceSum", "ReduceMin", "ReduceLogSumExp")
            ]
        rows.append(Case(f"ArgMax-{name}", "ArgMax", (view,), {"axis": 1, "select_last_index": 1}))
        for op in ("GlobalAveragePool", "GlobalLpPool"):
            expected = (np.sqrt(np.square(view).sum((2, 3), keepdims=True)),) if op == "GlobalLpPool" else None
            rows.append(Case(f"{op}-{name}", op, (view,), terms=100, expected=expected))
    return rows


@pytest.mark.parametrize("case", views(), ids=lambda case: case.id)
def test_views(checks: str, case: Case) -> None:
    run_case(case, checks)


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


def test_infer_asks_for_axes_when_unknown() -> None:
    with pytest.raises(NeedsHostValue, match="axes"):
        build("ReduceSum", {}).infer(spec(2, 3), spec(1, dtype=np.int64))


def test_infer_reads_no_content_when_axes_are_empty() -> None:
    (result,) = build("ReduceSum", {}).infer(spec(2, 3), spec(0, dtype=np.int64))
    assert result.shape == (1, 1)


@pytest.mark.parametrize(
    ("op", "attributes", "specs", "message"),
    [
        ("ReduceSum", {}, (spec(2, dtype=np.int8),), "ReduceSum expects input of type"),
        ("ReduceLogSum", {}, (spec(2, dtype=np.int16),), "ReduceLogSum expects input of type"),
        ("ReduceMax", {}, (spec(2), TensorSpec.of(axes_of(1))), "out of range"),
        ("ReduceMax", {}, (spec(2), TensorSpec.of(axes_of(0, -1))), "once"),
        ("ReduceSum", {}, (spec(), TensorSpec.of(axes_of(1))), "out of range"),
        ("ReduceL1", {}, (spec(), TensorSpec.of(axes_of(0, -2))), "out of range"),
        ("ReduceSum", {}, (spec(2), TensorSpec.of(np.array([0], np.float32))), "expects axes of type"),
        ("ReduceSum", {}, (spec(2), spec(0)), "expects axes of type"),
        ("ArgMax", {"axis": 2}, (spec(2, 3),), "out of range"),
        ("ArgMin", {"axis": 1}, (spec(2, 0),), "at least one element"),
        ("ArgMax", {}, (spec(2, dtype=np.bool_),), "ArgMax expects input of type"),
        ("GlobalMaxPool", {}, (spec(3),), "rank 2 or more"),
        ("GlobalAveragePool", {}, (spec(1, 2, 3, dtype=np.int32),), "GlobalAveragePool expects input of type"),
    ],
)
def test_infer_refuses(op: str, attributes: dict[str, Any], specs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(op, attributes).infer(*specs)
