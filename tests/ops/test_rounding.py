"""Rounding to types of fewer bits: by hand, on every device, and of weights once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.ir.precision import ROUNDED, STORED
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ir.weight_forms import ColumnsFirst, PackedForm
from gpuexec.ops.lib.rounding import round_to
from gpuexec.ops.quant.rounded_weight import Float8Scales, Rounded, ScaledFloat8, round_to_scaled
from tests.ops.harness import Case, run_case
from tests.ops.tolerance import to_bits

SINGLE = ("fp16", "bf16", "tf32")
ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519, 65520, 1e-8, 3e-5, 3.4e38, -3.4e38], np.float32)


@pytest.mark.parametrize(
    ("precision", "given", "expected"),
    [
        # Ties: to even in half and bfloat16, away from zero in tf32.
        ("fp16", 1 + 2**-11, 1),
        ("fp16", 1 + 3 * 2**-11, 1 + 2**-9),
        ("fp16", 65520, np.inf),
        ("fp16", 2**-25, 0),
        ("bf16", 1 + 2**-8, 1),
        ("bf16", 1 + 3 * 2**-8, 1 + 2**-6),
        ("bf16", 3.4e38, np.inf),
        ("tf32", 1 + 2**-11, 1 + 2**-10),
        ("tf32", -1 - 2**-11, -1 - 2**-10),
        ("tf32", 1 + 2**-11 - 2**-20, 1),
        ("tf32", 1 + 3 * 2**-11, 1 + 2**-9),
    ],
)
def test_ties_and_ends_are_rounded_as_by_hand(precision: str, given: float, expected: float) -> None:
    assert round_to(np.array([given], np.float32), precision)[0] == np.float32(expected)


def cases() -> list[Case]:
    """Return roundings of odd numbers and of normal ones, as operands and as weights."""
    x = np.concatenate([ODD, np.random.default_rng(0).standard_normal(501).astype(np.float32)])
    w = np.random.default_rng(1).standard_normal((33, 50)).astype(np.float32)
    made = [Case(f"operand-{to}", "RoundOperand", (x,), {"to": to}, expected=(round_to(x, to),)) for to in SINGLE]
    for dtype in (np.float16, ml_dtypes.bfloat16):
        with np.errstate(over="ignore"):
            narrow = x.astype(dtype)
            expected = {to: round_to(narrow.astype(np.float32), to).astype(dtype) for to in SINGLE}
        made += [
            Case(f"operand-{to}-{np.dtype(dtype)}", "RoundOperand", (narrow,), {"to": to}, expected=(expected[to],))
            for to in SINGLE
        ]
    for to in SINGLE:
        for stored in {0, int(to in STORED)}:
            dtype = dtype_row(STORED[to]).numpy if stored else np.dtype(np.float32)
            expected = round_to(w, to).astype(dtype)
            made.append(
                Case(f"weight-{to}-{dtype}", "RoundWeight", (w,), {"to": to, "is_stored": stored}, expected=(expected,))
            )
    return [replace(case, domain="gpuexec") for case in made]


@pytest.mark.parametrize("each", cases(), ids=lambda each: each.id)
def test_operands_and_weights_are_rounded_alike_on_every_device(checks: str, each: Case) -> None:
    run_case(each, checks)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weights_of_fp8_are_stored_alike_on_every_device(checks: str, axis: int | None) -> None:
    """Packed alone: nothing scales them in a run."""
    w = np.random.default_rng(2).standard_normal((33, 50)).astype(np.float32)
    scales = np.abs(w).max(None if axis is None else 1 - axis, keepdims=True) / np.float32(448)
    expected = ((w / scales).astype(ml_dtypes.float8_e4m3fn), scales.reshape(() if axis is None else -1))
    attributes = {"to": "fp8", "is_stored": 1, **({} if axis is None else {"axis": axis})}
    name = "gpuexec.RoundWeight"
    run_case(Case("weight", name, (w,), attributes, (0,), (True, True), expected=expected), checks)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_weights_are_packed_in_the_type_of_the_precision(precision: str, dtype: Any) -> None:
    w = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)
    form = PackedForm.of(Rounded(ROUNDED.index(precision), 1), TensorSpec.of(w), (0, 1))
    packed = form.pack(w)
    assert form.spec.dtype == packed.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(to_bits(packed), to_bits(w.astype(dtype)))


def test_each_place_along_an_axis_has_a_scale_in_fp8() -> None:
    w = np.array([[448, 1, 0], [-1, 1.06, 0], [17, 1.07, 0]], np.float32)
    scale = np.float32(1.07) / np.float32(448)  # of the second column, whose numbers are 416 and 448 times that
    expected = np.array([[448, 416 * scale, 0], [-1, 448 * scale, 0], [16, 448 * scale, 0]], np.float32)
    np.testing.assert_array_equal(round_to_scaled(w, 1), expected)
    np.testing.assert_array_equal(round_to_scaled(w)[:, 1], [1, 1, 1.125])
    form = PackedForm.of(ScaledFloat8(1), TensorSpec.of(w), (0, 1))
    np.testing.assert_array_equal(form.pack(w), expected)
    stored = PackedForm.of(ScaledFloat8(1, 1), TensorSpec.of(w), (0, 1)).pack(w)
    scales = PackedForm.of(Float8Scales(1), TensorSpec.of(w), (0, 1)).pack(w)
    assert stored.dtype == np.dtype(ml_dtypes.float8_e4m3fn) and scales.shape == (3,)
    np.testing.assert_array_equal(stored.astype(np.float32) * scales, expected)
    assert scales[2] == np.float32(2.0**-100)  # of a column of zeros


def test_a_packed_weight_is_packed_again() -> None:
    w = np.linspace(-3, 3, 35, dtype=np.float32).reshape(5, 7)
    rounded = PackedForm.of(Rounded(ROUNDED.index("tf32"), 0), TensorSpec.of(w), (0, 1))
    turned = PackedForm.of(ColumnsFirst(), rounded.spec, (0, 1), rounded)
    np.testing.assert_array_equal(turned.pack(w), round_to(w, "tf32").T)
    assert str(turned) == f"{rounded}, columns_first()"
