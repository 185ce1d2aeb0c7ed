"""LinearClassifier and LinearRegressor, and with them the transforms of scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference.ops.aionnxml._common_classifier import probit

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.ml.scores import Transform, transform_scores
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import INPUTS, make_model, ml, run_model

RNG = np.random.default_rng(3)
X = (RNG.normal(size=(7, 4)) * 2).astype(np.float32)
WEIGHTS = RNG.normal(size=(3, 4)).astype(np.float32)
SHIFTS = [0.5, -0.25, 0.125]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
LABELS = [10, -20, 30]


def classifier(
    id: str, x: Array, weights: Array = WEIGHTS, shifts: Any = SHIFTS, labels: Any = LABELS, **more: Any
) -> Case:
    flat = [float(number) for number in weights.reshape(-1)]
    given = {"coefficients": flat, "intercepts": shifts, "classlabels_ints": labels}
    return ml(
        id, "LinearClassifier", x, outputs=2, terms=32, **{k: v for k, v in given.items() if v is not None}, **more
    )


def regressor(id: str, x: Array, weights: Array = WEIGHTS, shifts: Any = SHIFTS, **more: Any) -> Case:
    flat = [float(number) for number in weights.reshape(-1)]
    given = {"coefficients": flat, "targets": len(weights), **({} if shifts is None else {"intercepts": shifts})}
    return ml(id, "LinearRegressor", x, terms=32, **given, **more)


def raw(x: Array, weights: Array = WEIGHTS, shifts: Any = SHIFTS) -> Array:
    scores = x.astype(np.float32).astype(np.float64) @ weights.T.astype(np.float64)
    return scores if shifts is None else scores + np.float32(shifts)


def pair(score: Array, transform: str) -> tuple[Array, ...]:
    """Return labels and scores of two classes by one column, worked out in double."""
    s = score.reshape(-1)
    if transform == "NONE":
        both = np.stack((1 - s, s), 1)
    elif transform == "PROBIT":
        with np.errstate(all="ignore"):
            both = probit(np.stack((1 - s, s), 1))
    elif transform == "LOGISTIC":
        both = 1 / (1 + np.exp(np.stack((s, -s), 1)))
    else:
        powers = np.exp(np.stack((-s, s), 1))
        both = powers / powers.sum(1, keepdims=True)
    return np.where(s > 0, 20, 10), both.astype(np.float32)


SMALL = WEIGHTS[:1] / 40  # so that one score lies between 0 and 1, as PROBIT wants it
ONE = X[:5].copy()
CASES = [
    *(classifier(f"classifier_{t.__name__}", (X * 4).astype(t), oracle="onnxruntime") for t in INPUTS),
    *(
        classifier(f"classifier_{transform}", X / 8, oracle="onnxruntime", post_transform=transform)
        for transform in TRANSFORMS[:4]
    ),
    classifier("classifier_reference", X, post_transform="SOFTMAX", multi_class=1),
    *(
        classifier(
            f"two_classes_{transform}",
            ONE,
            SMALL,
            [0.5],
            [10, 20],
            post_transform=transform,
            expected=pair(raw(ONE, SMALL, [0.5]), transform),
        )
        for transform in TRANSFORMS
    ),
    *(
        classifier(
            f"two_classes_onnxruntime_{transform}",
            X,
            SMALL,
            [-0.05],
            [10, 20],
            post_transform=transform,
            oracle="onnxruntime",
        )
        for transform in ("NONE", "LOGISTIC")
    ),
    classifier(
        "one_class",
        X,
        SMALL,
        [-0.05],
        [5],
        expected=(np.where(raw(X, SMALL, [-0.05])[:, 0] > 0, 5, 0), raw(X, SMALL, [-0.05]).astype(np.float32)),
    ),
    classifier(
        "no_intercepts",
        X,
        shifts=None,
        expected=(np.array(LABELS)[raw(X, shifts=None).argmax(1)], raw(X, shifts=None).astype(np.float32)),
    ),
    classifier("vector", X[0], expected=(np.array(LABELS)[raw(X[:1]).argmax(1)], raw(X[:1]).astype(np.float32))),
    classifier("strided", np.repeat(X, 2, 1)[::-1, ::2], oracle="onnxruntime"),
    classifier("empty", X[:0], expected=(np.zeros(0, np.int64), np.zeros((0, 3), np.float32))),
    classifier(
        "first_of_equal_and_nan",
        np.array([[1.0], [np.nan]], np.float32),
        np.array([[1.0], [2.0], [2.0]], np.float32),
        [0.0, 0.0, 0.0],
        expected=(np.array([-20, 10]), np.array([[1, 2, 2], [np.nan] * 3], np.float32)),
    ),
    classifier(
        "at_the_threshold",
        np.array([[0.0], [1.0]], np.float32),
        np.ones((1, 1), np.float32),
        [0.0],
        [10, 20],
        expected=(np.array([10, 20]), np.array([[1, 0], [0, 1]], np.float32)),
    ),
    *(
        regressor(f"regressor_{t.__name__}", (X * 4).astype(t), expected=(raw((X * 4).astype(t)).astype(np.float32),))
        for t in INPUTS
    ),
    regressor("regressor_reference", X),
    *(
        regressor(f"regressor_{transform}", X / 8, oracle="onnxruntime", post_transform=transform)
        for transform in TRANSFORMS[:4]
    ),
    regressor(
        "regressor_PROBIT",
        ONE,
        SMALL,
        [0.5],
        post_transform="PROBIT",
        expected=(probit(raw(ONE, SMALL, [0.5])).astype(np.float32),),
    ),
    regressor(
        "regressor_one_LOGISTIC",
        ONE,
        SMALL,
        None,
        post_transform="LOGISTIC",
        expected=((1 / (1 + np.exp(-raw(ONE, SMALL, None)))).astype(np.float32),),
    ),
    # What is as far from 0 as counts as 0 takes part by itself, not by its power.
    regressor(
        "regressor_SOFTMAX_ZERO_at_its_bounds",
        np.array([[1e-7, 1.0], [-1e-7, 1.0]], np.float32),
        np.eye(2, dtype=np.float32),
        None,
        post_transform="SOFTMAX_ZERO",
        expected=(np.array([[1e-7 / np.e, 1.0], [-1e-7 / np.e, 1.0]], np.float32),),
    ),
    regressor("regressor_vector", X[0], expected=(raw(X[:1]).astype(np.float32),)),
    regressor("regressor_empty", X[:0]),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_linear(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=10, derandomize=True, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(2, 70), st.integers(0, 2**32 - 1))
def test_products_of_any_size(checks: str, rows: int, features: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weights = (rng.normal(size=(n, features)).astype(np.float32) for n in (rows, columns))
    expected = (raw(x, weights, None).astype(np.float32),)
    case = regressor("random", x, weights, None, expected=expected)
    run_case(replace(case, terms=4 * features), checks)


def test_softmax_zero_leaves_zeros_and_rows_of_zeros() -> None:
    rows = np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]], np.float32)
    y = transform_scores(rows, Transform.SOFTMAX_ZERO)
    powers = np.exp(np.array([-1.0, 0.0]))
    np.testing.assert_allclose(y, [[0, *(powers / powers.sum())], [0.5] * 3], rtol=1e-6)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
@pytest.mark.parametrize("classes", [3, 2, 1])
def test_labels_that_are_strings_are_looked_up_on_the_host_alone(backend: gx.BackendType, classes: int) -> None:
    weights = WEIGHTS if classes == 3 else WEIGHTS[:1]
    model = make_model(
        "LinearClassifier",
        X,
        2,
        coefficients=weights.reshape(-1).tolist(),
        intercepts=SHIFTS[: len(weights)],
        classlabels_strings=["u", "v", "w"][:classes],
    )
    (labels, scores), host = run_model(backend, model, X)
    expected = raw(X, weights, SHIFTS[: len(weights)])
    names = {3: ["u", "v", "w"], 2: ["u", "v"], 1: ["", "u"]}[classes]
    places = expected.argmax(1) if classes == 3 else (expected[:, 0] > 0).astype(int)
    assert labels.tolist() == [names[place] for place in places]
    np.testing.assert_allclose(scores[:, -1], expected[:, -1], rtol=1e-5, atol=1e-5)
    assert host == ["ai.onnx.ml.LabelEncoder"]


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("LinearClassifier", {"coefficients": (1.0,)}, "expected labels"),
        ("LinearClassifier", {"coefficients": (), "classlabels_ints": (1,)}, "expected coefficients, got none"),
        (
            "LinearClassifier",
            {"coefficients": (1.0,), "classlabels_ints": (1,), "classlabels_strings": ("a",)},
            "expected labels",
        ),
        ("LinearRegressor", {"coefficients": (1.0,), "post_transform": "TANH"}, "post_transform expects NONE, SOFTMAX"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(op: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"ai.onnx.ml.{op}", attributes)


@pytest.mark.parametrize(
    ("op", "attributes", "x", "message"),
    [
        ("LinearRegressor", {"coefficients": (1.0, 2.0)}, (3, 3), "that 2 coefficients fit, got"),
        ("LinearRegressor", {"coefficients": (1.0, 2.0), "intercepts": (1.0, 2.0)}, (3, 2), "in 2 columns"),
        ("LinearRegressor", {"coefficients": (1.0, 2.0)}, (3, 1), "2 columns of coefficients for 1 targets"),
        ("LinearRegressor", {"coefficients": (1.0, 2.0)}, (3, 1, 2), "expects an input"),
        ("LinearClassifier", {"coefficients": (1.0, 2.0), "classlabels_ints": (1, 2, 3)}, (3, 1), "3 labels for 2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    op: str, attributes: dict[str, Any], x: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build(f"ai.onnx.ml.{op}", attributes).infer(TensorSpec(x, np.dtype(np.float32)))
