"""ArrayFeatureExtractor."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.ml.feature_extractor import ArrayFeatureExtractor
from tests.ops.harness import Case, run_case
from tests.ops.ml.cases import INPUTS, ml

X = np.arange(24).reshape(2, 3, 4)
INDICES = np.array([3, 0, 3])
CASES = [
    *(ml(f"input_{t.__name__}", "ArrayFeatureExtractor", X.astype(t), INDICES) for t in INPUTS),
    ml("vector", "ArrayFeatureExtractor", X[0, 0], INDICES),
    ml("matrix_of_indices", "ArrayFeatureExtractor", X, np.array([[0, 1], [2, 3]])),
    ml("row_of_indices", "ArrayFeatureExtractor", X[0], INDICES[None]),
    ml("scalar_index", "ArrayFeatureExtractor", X, np.array(2)),
    ml("strided", "ArrayFeatureExtractor", X[::-1, ::2, ::3].astype(np.float32), np.array([1, 9, 0, 9])[::2]),
    ml("rank8", "ArrayFeatureExtractor", np.arange(48.0).reshape(1, 2, 1, 2, 1, 2, 2, 3), INDICES % 3),
    ml("no_indices", "ArrayFeatureExtractor", X, INDICES[:0]),
    ml("empty", "ArrayFeatureExtractor", X[:0], INDICES),
    ml(
        "out_of_range",
        "ArrayFeatureExtractor",
        X[0],
        np.array([0, 4]),
        refusal="out of range",
        expected=(np.array([[0, 0], [4, 0], [8, 0]]),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_array_feature_extractor(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_strings_are_picked_too() -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    (y,) = ArrayFeatureExtractor().compute(words, np.array([1]))
    assert y.tolist() == [["b"], ["d"]]


def test_what_does_not_fit_is_refused() -> None:
    op, x = ArrayFeatureExtractor(), TensorSpec((2,), np.dtype(np.float32))
    with pytest.raises(InputError, match="expects Y of type int64"):
        op.infer(x, TensorSpec((1,), np.dtype(np.int32)))
    with pytest.raises(InputError, match="one axis or more"):
        op.infer(x.with_shape(()), TensorSpec((1,), np.dtype(np.int64)))
