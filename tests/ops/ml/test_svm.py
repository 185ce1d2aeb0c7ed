"""SVMClassifier and SVMRegressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

import gpuexec as gx
from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case
from tests.ops.ml.cases import INPUTS, make_model, ml, run_model

RNG = np.random.default_rng(11)
X = RNG.normal(size=(6, 4)).astype(np.float32)
KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]
TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]


def floats(*shape: int) -> list[float]:
    return [float(number) for number in RNG.normal(size=shape).astype(np.float32).reshape(-1)]


def machine(counts: list[int], features: int = 4, kernel: str = "RBF", prob: bool = False) -> dict[str, Any]:
    """Return the attributes of a classifier with so many support vectors of each class."""
    classes, total = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    attributes: dict[str, Any] = {
        "vectors_per_class": counts,
        "support_vectors": floats(total, features),
        "coefficients": floats(classes - 1, total),
        "rho": floats(pairs),
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.25, 3.0],
        "classlabels_ints": [10 * (place + 1) for place in range(classes)],
    }
    return attributes | ({"prob_a": [-abs(a) for a in floats(pairs)], "prob_b": floats(pairs)} if prob else {})


def regression(kernel: str = "RBF", supports: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "n_supports": supports,
        "support_vectors": floats(supports, 4),
        "coefficients": floats(supports),
        "rho": [0.3],
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.25, 3.0],
        **more,
    }


def svc(id: str, x: Array, attributes: dict[str, Any], **more: Any) -> Case:
    more.setdefault("oracle", "onnxruntime")
    return ml(id, "SVMClassifier", x, outputs=2, terms=64, **attributes, **more)


def svr(id: str, x: Array, attributes: dict[str, Any], **more: Any) -> Case:
    return ml(id, "SVMRegressor", x, terms=64, **attributes, **more)


LINEAR = {"coefficients": floats(3, 4), "rho": [0.1], "classlabels_ints": [4, 5, 6]}


def products(x: Array) -> Array:
    return x.astype(np.float64) @ np.array(LINEAR["coefficients"]).reshape(3, 4).T + np.float64(np.float32(0.1))


CASES = [
    *(svc(f"classifier_{kernel}", X, machine([2, 3, 1], kernel=kernel)) for kernel in KERNELS),
    *(svc(f"classifier_{t.__name__}", (X * 2).astype(t), machine([2, 3, 1])) for t in INPUTS),
    *(svc(f"classifier_{p}", X, machine([2, 1, 2]), post_transform=p) for p in TRANSFORMS[:4]),
    *(svc(f"probabilities_{p}", X, machine([2, 1, 2], prob=True), post_transform=p) for p in TRANSFORMS[:4]),
    *(svc(f"probabilities_of_{n}", X, machine([1] * n, prob=True)) for n in (2, 4, 7)),
    svc("probabilities_of_nan", np.where(X[1, 2] == X, np.float32(np.nan), X), machine([2, 1, 2], prob=True)),
    *(svc(f"two_classes_{p}", X, machine([3, 2]), post_transform=p) for p in ("NONE", "LOGISTIC")),
    svc("two_classes_reference", X, machine([3, 2]), oracle="reference"),
    svc("classes_without_vectors", X, machine([2, 0, 3, 1])),
    svc("reference", X, machine([2, 3, 1, 2], kernel="LINEAR"), oracle="reference"),
    svc("strided", np.repeat(X, 2, 1)[::-1, ::2], machine([2, 3, 1])),
    svc("vector", X[0], machine([2, 3, 1])),
    svc("empty", X[:0], machine([2, 3]), expected=(np.zeros(0, np.int64), np.zeros((0, 2), np.float32))),
    svc(
        "without_vectors",
        X,
        LINEAR,
        expected=(np.array([4, 5, 6])[products(X).argmax(1)], products(X).astype(np.float32)),
    ),
    *(svr(f"regressor_{kernel}", X, regression(kernel)) for kernel in KERNELS),
    *(svr(f"regressor_onnxruntime_{kernel}", X, regression(kernel), oracle="onnxruntime") for kernel in KERNELS),
    svr("regressor_without_vectors", X, {"coefficients": floats(4), "rho": [0.3]}),
    svr("one_class", X, regression(one_class=1)),
    svr("one_class_linear", X, {"coefficients": floats(4), "rho": [0.3], "one_class": 1}),
    svr("regressor_many", X, regression(supports=70)),
    svr("regressor_empty", X[:0], regression()),
]
for _dtype in INPUTS:  # onnx.reference answers in the type of the input, the standard in float
    _attributes = regression()
    _x = (X * 2).astype(_dtype)
    _op = ReferenceEvaluator(make_model("SVMRegressor", _x.astype(np.float32), 1, **_attributes))
    _y = _op.run(None, {"x": _x.astype(np.float32)})
    CASES.append(svr(f"regressor_{_dtype.__name__}", _x, _attributes, expected=tuple(_y)))
_SCORES = regression()
_OF_FIVE = ReferenceEvaluator(make_model("SVMRegressor", X, 1, **_SCORES)).run(None, {"x": X})[0]
CASES.append(
    svr("regressor_LOGISTIC", X, _SCORES, post_transform="LOGISTIC", expected=((1 / (1 + np.exp(-_OF_FIVE))),))
)


CASES += [
    replace(svc(f"wants_{what}", X, machine([2, 1, 2])), outputs=outputs)
    for what, outputs in (("labels", (True, False)), ("scores", (False, True)))
]
UNDECIDED = machine([1, 1, 1], kernel="LINEAR") | {"coefficients": [0.0] * 6}
CASES += [
    svc("first_of_equal_votes", X[:2], UNDECIDED | {"rho": [1.0, -1.0, 1.0]}),
    svr("whole_tiles", np.tile(X, (7, 1)), regression(supports=32)),
    svc("scores_of_zero", X[:2], UNDECIDED | {"rho": [0.0] * 3}),
    svr(
        "one_class_at_zero",
        np.array([[0.0], [1.0]], np.float32),
        {"coefficients": [1.0], "rho": [0.0], "one_class": 1},
        expected=(np.array([[-1], [1]], np.float32),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_svm(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=8, derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(1, 40), st.booleans(), st.sampled_from(KERNELS)
)
def test_machines_of_any_size(checks: str, counts: list[int], features: int, prob: bool, kernel: str) -> None:
    attributes = machine(counts, features, kernel, prob)
    attributes["kernel_params"] = [0.05, 0.25, 2.0]
    x = RNG.normal(size=(9, features)).astype(np.float32)
    case = svc("random", x, attributes)
    run_case(replace(case, terms=4 * (features + sum(counts))), checks)


@pytest.mark.parametrize("place", [0.0, 3e7])
@pytest.mark.parametrize("count", [1, 30])
def test_far_vectors_are_as_alike_as_near_ones(checks: str, place: float, count: int) -> None:
    attributes = regression(supports=9)
    vectors = (RNG.normal(size=(9, 4)) + [place, 0, 0, 0]).astype(np.float32)
    x = (vectors[RNG.integers(0, 9, count)] + RNG.normal(0, 0.5, (count, 4))).astype(np.float32)
    attributes |= {"support_vectors": vectors.reshape(-1).tolist(), "rho": [0.0]}
    distances = np.square(x[:, None].astype(np.float64) - vectors).sum(2)
    expected = np.exp(-0.5 * distances) @ np.array(attributes["coefficients"])[:, None]
    (y,) = build("ai.onnx.ml.SVMRegressor", attributes).compute(x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]
    run_case(svr("far", x, attributes, expected=(expected.astype(np.float32),)), checks)


@pytest.mark.parametrize("transform", ["SOFTMAX", "SOFTMAX_ZERO"])
def test_one_score_of_two_classes_is_transformed_as_a_pair(transform: str) -> None:
    attributes = machine([3, 2])
    plain = build("ai.onnx.ml.SVMClassifier", attributes).compute(X)[1]
    assert plain is not None
    powers = np.exp(plain.astype(np.float64))
    expected = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    made = build("ai.onnx.ml.SVMClassifier", attributes | {"post_transform": transform}).compute(X)[1]
    assert made is not None
    np.testing.assert_allclose(made, expected, rtol=1e-5)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_labels_that_are_strings_are_looked_up_on_the_host_alone(backend: gx.BackendType) -> None:
    attributes = machine([2, 3, 1])
    numbers = build("ai.onnx.ml.SVMClassifier", attributes).compute(X)
    del attributes["classlabels_ints"]
    model = make_model("SVMClassifier", X, 2, classlabels_strings=["u", "v", "w"], **attributes)
    (labels, scores), host = run_model(backend, model, X)
    assert numbers[0] is not None and numbers[1] is not None
    assert labels.tolist() == [{10: "u", 20: "v", 30: "w"}[label] for label in numbers[0].tolist()]
    np.testing.assert_allclose(scores, numbers[1], rtol=1e-5, atol=1e-6)
    assert host == ["ai.onnx.ml.LabelEncoder"]


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        ("SVMClassifier", {"kernel_type": "CUBIC"}, "kernel_type expects LINEAR, POLY, RBF, SIGMOID, got 'CUBIC'"),
        ("SVMClassifier", {"kernel_params": [1.0]}, "gamma, coef0 and degree"),
        ("SVMClassifier", {"rho": [1.0]}, "rho expects 3 numbers, got 1"),
        ("SVMClassifier", {"coefficients": [1.0]}, "coefficients expects 12 numbers, got 1"),
        ("SVMClassifier", {"vectors_per_class": [2, 4]}, "a count for each of 3 classes"),
        ("SVMClassifier", {"support_vectors": [1.0] * 7}, "6 vectors of one length, got 7"),
        ("SVMClassifier", {"prob_a": [1.0] * 3}, "prob_a and prob_b or neither"),
        ("SVMClassifier", {"classlabels_ints": ()}, "expected labels"),
        ("SVMRegressor", {"rho": ()}, "rho expects 1 numbers, got 0"),
        ("SVMRegressor", {"coefficients": [1.0]}, "coefficients expects 5 numbers, got 1"),
        ("SVMRegressor", {"post_transform": "EXP"}, "post_transform expects"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(op: str, change: dict[str, Any], message: str) -> None:
    attributes = machine([2, 3, 1]) if op == "SVMClassifier" else regression()
    with pytest.raises(InputError, match=message):
        build(f"ai.onnx.ml.{op}", attributes | change)


@pytest.mark.parametrize("op", ["SVMClassifier", "SVMRegressor"])
def test_an_input_of_other_features_is_refused(op: str) -> None:
    made = build(f"ai.onnx.ml.{op}", machine([2, 3, 1]) if op == "SVMClassifier" else regression())
    with pytest.raises(InputError, match=r"expects an input \[rows, 4\] or \[4\], got float32\[2,3\]"):
        made.infer(TensorSpec((2, 3), np.dtype(np.float32)))
