"""OneHotEncoder: integers on every device, strings on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import INPUTS, make_model, ml, run_model

CATEGORIES = [3, -1, 7, 0]
X = np.array([[3, 7, 2], [0, -1, 3]])


def marked(x: Array, categories: list[int]) -> tuple[Array, ...]:
    return ((x[..., None] == np.array(categories)).astype(np.float32),)


def one_hot(id: str, x: Array, categories: list[int] = CATEGORIES, **more: Any) -> Case:
    more.setdefault("expected", marked(x, categories))
    return ml(id, "OneHotEncoder", x, cats_int64s=categories, **more)


CASES = [
    *(one_hot(f"input_{t.__name__}", X.astype(t)) for t in INPUTS),
    ml("reference", "OneHotEncoder", X, cats_int64s=CATEGORIES),
    one_hot("truncated", np.array([3.9, -1.9, 7.5, -0.5]), expected=(np.eye(4, dtype=np.float32),)),
    one_hot(
        "special",
        np.array([np.nan, np.inf, -np.inf, 3], np.float32),
        expected=marked(np.array([0, 1, 1, 3]), CATEGORIES),
    ),
    one_hot("last_of_equal", X, [3, 7, 3], expected=((X[..., None] == np.array([99, 7, 3])).astype(np.float32),)),
    one_hot("extremes", np.array([-(2**63), 2**63 - 1, 0]), [2**63 - 1, -(2**63)]),
    one_hot("all_known", X[1], zeros=0),
    one_hot("unknown", X, zeros=0, refusal="expects categories (zeros=0), got 2, which is none"),
    one_hot("scalar", np.array(7)),
    one_hot("empty", X[:0]),
    one_hot("strided", np.arange(48).reshape(6, 8)[::-2, ::3] % 8),
    one_hot("rank7", np.arange(24).reshape(1, 2, 1, 3, 1, 4, 1) % 8),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_integers(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_strings_are_compared_on_the_host(backend: gx.BackendType) -> None:
    x = np.array([["b", "x"], ["a", "b"]], object)
    (y,), host = run_model(backend, make_model("OneHotEncoder", x, 1, cats_strings=["a", "b"]), x)
    assert y.dtype == np.float32
    assert y.tolist() == [[[0, 1], [0, 0]], [[1, 0], [0, 1]]]
    assert host == ["ai.onnx.ml.OneHotEncoder"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="cats_int64s or cats_strings, got 0 and 0"):
        build("ai.onnx.ml.OneHotEncoder", {})
    with pytest.raises(InputError, match="expects input of type"):
        build("ai.onnx.ml.OneHotEncoder", {"cats_int64s": (1,)}).infer(TensorSpec((2,), np.dtype(np.int8)))
