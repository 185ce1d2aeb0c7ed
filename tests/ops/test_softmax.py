"""Softmax, LogSoftmax, Hardmax against onnx.reference; the flattening forms against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec.ops.nn.softmax  # noqa: F401  (registers the operators)
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case

BF16 = ml_dtypes.bfloat16
NAN, INF = np.nan, np.inf
OPS = ("Softmax", "LogSoftmax", "Hardmax")


def sample(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 3]).normal(0, 2, shape).astype(dtype)


def by_hand(op: str, x: Array, axis: int) -> tuple[Array]:
    """Return the operator's result, worked out in double."""
    wide = x.astype(np.float64)
    if op == "Hardmax":
        result = (
            np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
            == wide.argmax(axis, keepdims=True)
        ) * 1.0
    else:
        result = np.exp(wide) / np.exp(wide).sum(axis, keepdims=True)
        result = np.log(result) if op == "LogSoftmax" else result
    return (result.astype(x.dtype),)


def flattened(op: str, x: Array, axis: int) -> tuple[Array]:
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    return (by_hand(op, rows, 1)[0].reshape(x.shape),)


def cases() -> list[Case]:
    rows = []
    for op in OPS:
        x = sample((3, 4, 5))
        rows += [
            Case(f"{op}-default", op, (x,), terms=5),
            *(Case(f"{op}-axis{axis}", op, (x,), {"axis": axis}, terms=5) for axis in (0, 1, 2, -2)),
            Case(f"{op}-vector", op, (sample((7,)),), terms=7),
            Case(f"{op}-axis-of-1", op, (sample((3, 1)),), terms=1),
            Case(f"{op}-single", op, (sample((1,)),), terms=1),
            Case(f"{op}-f64", op, (sample((3, 40), np.float64),), terms=40),
            Case(
                f"{op}-f16",
                op,
                (sample((3, 40), np.float16),),
                terms=40,
                expected=by_hand(op, sample((3, 40), np.float16), 1),
            ),
            Case(f"{op}-bf16", op, (sample((3, 40), BF16),), terms=40, expected=by_hand(op, sample((3, 40), BF16), 1)),
            Case(f"{op}-no-rows", op, (np.zeros((0, 3), np.float32),), expected=(np.zeros((0, 3), np.float32),)),
            Case(f"{op}-no-columns", op, (np.zeros((3, 0), np.float32),), expected=(np.zeros((3, 0), np.float32),)),
            # one lane to many, in registers and beyond, rows dense and side by side
            Case(f"{op}-short-rows", op, (sample((300, 3)),), terms=3),
            Case(f"{op}-warp-row", op, (sample((9, 130)),), terms=130),
            Case(f"{op}-block-row", op, (sample((2, 1000)),), terms=1000),
            Case(f"{op}-columns", op, (sample((20, 70)),), {"axis": 0}, terms=20),
            Case(f"{op}-columns-of-many", op, (sample((2, 300, 3)),), {"axis": 1}, terms=300),
            Case(f"{op}-long-columns", op, (sample((2, 513, 5)),), {"axis": 1}, terms=513),
        ]
        if op == "Softmax":
            # The most that is short, that a block holds, and one more; one row, since blits fold it for every texel.
            rows += [Case(f"{op}-{n}-in-a-row", op, (sample((1, n)),), terms=n) for n in (1024, 1025, 4096, 4097)]
            for dtype in (np.float16, BF16, np.float64):
                long = sample((2, 1025), dtype)
                name = f"{op}-{np.dtype(dtype).name}-1025"
                rows.append(Case(name, op, (long,), terms=1025, expected=by_hand(op, long, 1)))
        for opset in (7, 11, 12):
            expected = {axis: flattened(op, x, axis) for axis in (0, 1, 2)}
            rows += [
                Case(f"{op}-opset{opset}-default", op, (x,), {}, opset=opset, terms=20, expected=expected[1]),
                Case(f"{op}-opset{opset}-axis0", op, (x,), {"axis": 0}, opset=opset, terms=60, expected=expected[0]),
                Case(f"{op}-opset{opset}-axis2", op, (x,), {"axis": 2}, opset=opset, terms=5, expected=expected[2]),
            ]
        rows.append(
            Case(f"{op}-opset11-negative", op, (x,), {"axis": -2}, opset=11, terms=20, expected=flattened(op, x, 1))
        )
    return rows


def row(*values: float) -> Array:
    return np.array([values], np.float32)


def special() -> list[Case]:
    n = (NAN,) * 3
    log2 = float(np.log(2))
    rows = []
    for op, all_nan, hidden, large in (
        ("Softmax", n, (0.5, 0.0, 0.5), (0.5, 0.5)),
        ("LogSoftmax", n, (-log2, -INF, -log2), (-log2, -log2)),
    ):
        rows += [
            Case(f"{op}-all-minus-inf", op, (row(-INF, -INF, -INF),), expected=(row(*all_nan),)),
            Case(f"{op}-inf", op, (row(1, 2, NAN),), expected=(row(*all_nan),)),
            Case(f"{op}-masked", op, (row(1, -INF, 1),), terms=3, expected=(row(*hidden),)),
            Case(f"{op}-large", op, (row(1e30, 1e30),), terms=2, expected=(row(*large),)),
        ]
    long = np.full((513, 5), -INF, np.float32)
    rows.append(
        Case("Softmax-long-all-minus-inf", "Softmax", (long,), {"axis": 0}, expected=(np.full_like(long, NAN),))
    )
    long = sample((513, 5))
    long[512] = INF
    rows.append(Case("Softmax-long-inf", "Softmax", (long,), {"axis": 0}, expected=(softmax_with_inf(long),)))
    rows.append(Case("Hardmax-ties", "Hardmax", (row(2, 5, 5, 1),), expected=(row(0, 1, 0, 0),)))
    rows.append(Case("Hardmax-nan", "Hardmax", (row(2, NAN, 5, NAN),), expected=(row(0, 1, 0, 0),)))
    return rows


def softmax_with_inf(x: Array) -> Array:
    return np.full_like(x, NAN)


@pytest.mark.parametrize("case", [*cases(), *special()], ids=lambda case: case.id)
def test_row_map(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_views(checks: str, op: str, axis: int) -> None:
    x = sample((4, 5, 6))
    for view in (x.transpose(2, 0, 1), x[:, ::-1, ::2], np.broadcast_to(x[:, :1], (4, 7, 6))):
        run_case(Case(op, op, (view,), {"axis": axis}, terms=7), checks)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec((3,), np.dtype(np.int32)), "Softmax expects input of type"),
        (TensorSpec((3,), np.dtype(np.float32)), "out of range"),
    ],
)
def test_infer_refuses(spec: TensorSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("Softmax", {"axis": 1}).infer(spec)
