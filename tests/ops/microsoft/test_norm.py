"""SkipLayerNormalization and its kin: by onnxruntime, and their statistics in double."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.harness import Array, Case, run_case
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.microsoft.samples import HALF, NARROW, SINGLE, ours, sample


def norm_cases() -> list[Case]:
    cases = []
    two = (True, False, False, True)
    for dtype in (SINGLE, HALF):
        x, skip = sample(2, 3, 40, dtype=dtype), sample(2, 3, 40, dtype=dtype, seed=1)
        gamma, beta, bias = (sample(40, dtype=dtype, seed=seed) for seed in (2, 3, 4))
        forms = {
            "all": (skip, gamma, beta, bias),
            "shared": (skip[:1], gamma, beta),
            "two axes": (skip[0], gamma, None, bias),
            "plain": (skip, gamma),
        }
        for name, rest in forms.items():
            for wanted in ((True,), two):
                cases.append(norm(f"{name}-{dtype}-{len(wanted)}", "SkipLayerNormalization", (x, *rest), wanted))
        root = (x, skip, gamma, bias)
        cases += [norm(f"root-{dtype}", "SkipSimplifiedLayerNormalization", root, two)]
        cases += [norm(f"root-plain-{dtype}", "SkipSimplifiedLayerNormalization", root[:3], (True,))]
        alone = (True, False, False, False)
        cases += [norm(f"alone-{dtype}", "SkipLayerNormalization", (x, *forms["plain"]), alone)]
    long = (sample(3, 5000), sample(3, 5000, seed=1), sample(5000, seed=2))
    cases.append(norm("long", "SkipLayerNormalization", long, two, terms=5000))
    tiny = (sample(2, 1, 1), sample(2, 1, 1, seed=1), sample(1))
    return [*cases, norm("one", "SkipLayerNormalization", tiny, (True,), epsilon=0.5)]


def norm(
    name: str, op: str, inputs: tuple[Array | None, ...], wanted: tuple[bool, ...], terms: int = 40, **fields: float
) -> Case:
    """Return a case of a normalised sum, which onnxruntime knows."""
    return Case(name, op, inputs, fields, outputs=wanted, opset=1, oracle="onnxruntime", terms=terms, domain=DOMAIN)


def statistics_cases() -> list[Case]:
    cases = []
    for dtype in NARROW:
        x, skip, gamma = (
            sample(2, 3, 8, dtype=dtype),
            sample(2, 3, 8, dtype=dtype, seed=1),
            sample(8, dtype=dtype, seed=2),
        )
        total = x.astype(np.float64) + skip.astype(np.float64)
        mean = total.mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(np.square(total - mean).mean(-1, keepdims=True) + 0.25)
        y = (total - mean) * inverse * gamma.astype(np.float64)
        made = (y.astype(dtype), mean.astype(np.float32), inverse.astype(np.float32), total.astype(dtype))
        given = (x, skip, gamma)
        cases.append(
            Case(
                f"all-{dtype}",
                "SkipLayerNormalization",
                given,
                {"epsilon": 0.25},
                outputs=(True,) * 4,
                opset=1,
                expected=made,
                terms=24,
                domain=DOMAIN,
            )
        )
        last = (False, False, False, True)
        cases.append(
            Case(
                f"sum-{dtype}",
                "SkipLayerNormalization",
                given,
                outputs=last,
                opset=1,
                expected=made,
                terms=24,
                domain=DOMAIN,
            )
        )
        root = 1 / np.sqrt(np.square(x.astype(np.float64)).mean(-1, keepdims=True) + 0.25)
        made = (
            (x.astype(np.float64) * root * gamma.astype(np.float64)).astype(dtype),
            np.zeros((2, 3, 1), np.float32),
            root.astype(np.float32),
            x,
        )
        cases.append(
            ours(f"root-{dtype}", "NormalizeRootMeanSquare", (x, gamma), made, attributes={"epsilon": 0.25}, terms=24)
        )
    return cases


@pytest.mark.parametrize("case", [*norm_cases(), *statistics_cases()], ids=lambda case: f"{case.op}-{case.id}")
def test_normalized_sum(checks: str, case: Case) -> None:
    run_case(case, checks)
