"""FusedMatMul: transposed operands, and a factor."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.harness import Case, run_case
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.microsoft.samples import NARROW, SINGLE, sample


def product_cases() -> list[Case]:
    cases = []
    for dtype in (SINGLE, np.dtype(np.float64)):
        forms = {
            "plain": (sample(2, 4, 3, dtype=dtype), sample(2, 3, 5, dtype=dtype, seed=1), {"alpha": 0.5}),
            "turned": (sample(2, 3, 4, dtype=dtype), sample(5, 3, dtype=dtype, seed=1), {"transA": 1, "transB": 1}),
            "batch": (sample(4, 2, 3, dtype=dtype), sample(2, 3, 5, dtype=dtype), {"transBatchA": 1, "alpha": -2.0}),
            "both": (
                sample(3, 2, 6, 4, dtype=dtype),
                sample(5, 2, 6, 3, dtype=dtype),
                {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1},
            ),
        }
        for name, (a, b, fields) in forms.items():
            cases.append(
                Case(
                    f"{name}-{dtype}",
                    "FusedMatMul",
                    (a, b),
                    fields,
                    opset=1,
                    oracle="onnxruntime",
                    terms=8,
                    domain=DOMAIN,
                )
            )
    for dtype in NARROW[1:]:
        a, b = sample(4, 3, dtype=dtype), sample(3, 5, dtype=dtype)
        y = (a.astype(np.float32) @ b.astype(np.float32) * np.float32(0.5)).astype(dtype)
        cases.append(
            Case(f"{dtype}", "FusedMatMul", (a, b), {"alpha": 0.5}, opset=1, expected=(y,), terms=8, domain=DOMAIN)
        )
    a, b = sample(7), sample(7, 3, seed=1)
    cases.append(
        Case(
            "row",
            "FusedMatMul",
            (a, b),
            {"alpha": 3.0, "transA": 1},
            opset=1,
            expected=(3 * (a @ b),),
            terms=8,
            domain=DOMAIN,
        )
    )
    nothing = np.zeros((2, 3), np.float32)
    cases.append(
        Case(
            "nothing",
            "FusedMatMul",
            (nothing[:, :0], nothing[:0]),
            opset=1,
            expected=(np.zeros((2, 3), np.float32),),
            domain=DOMAIN,
        )
    )
    return cases


@pytest.mark.parametrize("case", product_cases(), ids=lambda case: case.id)
def test_product(checks: str, case: Case) -> None:
    run_case(case, checks)
