"""Dropout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.operator import build
from gpuexec.spec import TensorSpec
from tests.ops.harness import Case, run_case

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
NO = np.array(False)
RATIO = np.array(0.5, np.float32)

CASES = [
    Case("plain", "Dropout", (X,)),
    Case("seed", "Dropout", (X,), {"seed": 3}),
    Case("ratio", "Dropout", (X, RATIO)),
    Case("inference", "Dropout", (X, RATIO, NO), const=(2,)),
    Case("mask", "Dropout", (X, RATIO, NO), const=(2,), outputs=(True, True)),
    Case("mask_alone", "Dropout", (X,), outputs=(False, True), expected=(X, np.ones(X.shape, bool))),
    Case("half", "Dropout", (X.astype(np.float16),), outputs=(True, True)),
    Case("bf16", "Dropout", (X.astype(ml_dtypes.bfloat16),), expected=(X.astype(ml_dtypes.bfloat16),)),
    Case("double", "Dropout", (X.astype(np.float64),)),
    Case("scalar", "Dropout", (np.array(3, np.float32),), outputs=(True, True)),
    Case("empty", "Dropout", (X[:0],), outputs=(True, True)),
    Case("opset10", "Dropout", (X,), {"ratio": 0.25}, opset=10),
    Case("opset7", "Dropout", (X,), {"ratio": 0.25}, opset=7),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_dropout(case: Case) -> None:
    run_case(case)


def test_training_is_refused() -> None:
    spec = TensorSpec.of(X)
    with pytest.raises(InputError, match="inference only"):
        build("Dropout", {}).infer(spec, TensorSpec.of(RATIO), TensorSpec.of(np.array(True)))
