"""Convolutions of patches apart: one product, over a copy that lays patches out as rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ir.target import Target
from tests.ops.case import Case
from tests.ops.direct import DirectEmitter
from tests.ops.harness import run_case

Array = np.ndarray[Any, Any]
HALF = np.dtype(np.float16)
RNG = np.random.default_rng(8)


def make(
    id: str,
    image: Sequence[int],
    outs: int,
    kernel: Sequence[int],
    dtype: Any = HALF,
    precision: str = "",
    has_bias: bool = True,
    **attributes: Any,
) -> Case:
    """Return a case of whole numbers, of which sums are exact in any order."""
    x = RNG.integers(-2, 3, image).astype(dtype)
    w = RNG.integers(-1, 2, (outs, image[1], *kernel)).astype(dtype)
    result = np.dtype(np.float32) if precision else np.dtype(dtype)
    bias = RNG.integers(-9, 9, outs).astype(result)
    counts = [extent // step for extent, step in zip(image[2:], kernel, strict=True)]
    inside = x[(slice(None), slice(None), *(slice(c * k) for c, k in zip(counts, kernel, strict=True)))]
    apart = inside.reshape(*image[:2], *(each for pair in zip(counts, kernel, strict=True) for each in pair))
    axes = range(len(kernel))
    rows = apart.transpose(0, *(2 + 2 * a for a in axes), 1, *(3 + 2 * a for a in axes)).astype(np.float64)
    y = rows.reshape(image[0], prod(counts), -1) @ w.reshape(outs, -1).T.astype(np.float64) + has_bias * bias
    expected = y.swapaxes(1, 2).reshape(image[0], outs, *counts).astype(result)
    attributes = {"strides": list(kernel), "precision": precision, **attributes}
    return Case(id, "Conv", (x, w, bias)[: 2 + has_bias], attributes, expected=(expected,), oracle="expected")


CASES = [
    make("pixels", (2, 8, 33, 34), 20, (16, 16)),
    make("stored as float", (1, 8, 32, 48), 9, (16, 16), precision="fp16"),
    make("bfloat16", (1, 8, 24, 33), 5, (12, 11), BFLOAT16, "bf16", has_bias=False),
    make("samples", (2, 8, 300), 7, (144,)),
    make("frames", (1, 8, 9, 12, 8), 3, (9, 4, 4)),
]
FLOAT = np.dtype(np.float32)
FLOAT_CASES = [
    make("pixels of floats", (2, 3, 97, 80), 20, (16, 16), FLOAT),
    make("samples of floats", (2, 4, 300), 7, (144,), FLOAT, has_bias=False),
    make("patches of weights of odd length", (1, 3, 26, 22), 5, (13, 11), FLOAT),  # which take the general kernel
]


@pytest.mark.parametrize("case", [*CASES, *FLOAT_CASES], ids=lambda case: case.id)
def test_patches(checks: str, case: Case) -> None:
    run_case(case, checks)


def lower(case: Case, target: str = "sm_90") -> list[str]:
    """Return the names of the kernels that a case is lowered to."""
    emit = DirectEmitter()
    emit.target = Target.named(target)
    op = build(case.op, case.attributes)
    assert op.lower is not None and case.expected is not None
    y = emit.fresh(case.expected[0].shape, case.expected[0].dtype)
    op.lower(emit, tuple(emit.slot(x) for x in case.inputs if x is not None), (y,))
    return [kernel.expression.partition("<")[0] for kernel, _ in emit.launches]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_patches_are_a_copy_and_a_product_on_tensor_cores(case: Case) -> None:
    assert lower(case)[-1] in ("mma_gemm", "mma_few")
    assert not {"mma_gemm", "mma_few"} & set(lower(case, "sm_75"))


def test_floats_of_more_taps_than_their_kernels_have_tables_for_are_a_copy_and_a_product() -> None:
    for target in ("sm_75", "sm_90"):
        assert [lower(case, target)[-1] for case in FLOAT_CASES] == ["simt_gemm", "gemv_along_k", "conv_gemm"]
    reference = make("reference", (2, 3, 33, 34), 20, (16, 16), FLOAT, "reference")
    assert lower(reference)[-1] == "conv_gemm"
    assert lower(make("few", (2, 3, 32, 32), 20, (8, 8), FLOAT))[-1] == "simt_conv"
