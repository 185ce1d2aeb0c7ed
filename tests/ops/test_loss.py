"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss against loops over labels in double."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
NLL, SCE = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 6]).normal(0, 2, shape).astype(dtype)


def labels(classes: int, *shape: int, dtype: Any = np.int64, ignored: int | None = None) -> Array:
    rng = np.random.default_rng([classes, *shape])
    found = rng.integers(0, classes, shape)
    if ignored is not None:
        found = np.where(rng.random(shape) < 0.3, ignored, found)
    return np.asarray(found).astype(dtype)


def loss(
    id: str,
    name: str,
    x: Array,
    target: Array,
    weights: Array | None = None,
    reduction: str = "mean",
    ignored: int | None = None,
    **options: Any,
) -> Case:
    """A case worked out label by label."""
    wide = x.astype(np.float64)
    factors = np.ones(x.shape[1]) if weights is None else weights.astype(np.float64)
    with np.errstate(all="ignore"):
        if name == SCE:
            wide = wide - wide.max(1, keepdims=True, initial=-np.inf)
            wide = wide - np.log(np.exp(wide).sum(1, keepdims=True))
        losses, counted = np.zeros(target.shape), np.zeros(target.shape)
        for place in np.ndindex(*target.shape):
            if target[place] != ignored:
                counted[place] = factors[target[place]]
                losses[place] = -wide[place[0], target[place], *place[1:]] * counted[place]
        total = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counted.sum()}[reduction]
        expected = (np.asarray(total).astype(x.dtype), wide.astype(x.dtype))[: 2 if name == SCE else 1]
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    inputs = (x, target, weights) if weights is not None else (x, target)
    options.setdefault("outputs", (True,) * len(expected))
    terms = max(1, target.size + x.shape[1])
    return Case(f"{name[:3]}-{id}", name, inputs, attributes, expected=expected, terms=terms, **options)


def usual(name: str, x: Array, reduction: str, is_weighed: bool, ignored: int | None) -> Case:
    classes = x.shape[1]
    target = labels(classes, x.shape[0], *x.shape[2:], ignored=ignored)
    weights = np.abs(sample(classes, dtype=x.dtype)) if is_weighed else None
    id = f"{x.dtype.name}{list(x.shape)}-{reduction}{'-weighed' * is_weighed}{'' if ignored is None else f'-{ignored}'}"
    return loss(id, name, x, target, weights, reduction, ignored)


FEW = sample(3, 4)
CASES = [
    *(usual(name, sample(5, 6, 3, dtype=t), reduction, True, 2)
      for name in (NLL, SCE) for t in FLOATS for reduction in ("none", "sum", "mean")),
    *(usual(name, sample(4, 5), reduction, is_weighed, ignored)
      for name in (NLL, SCE) for reduction in ("none", "mean") for is_weighed in (False, True)
      for ignored in (None, -5, 99)),
    *(usual(name, sample(2, 3, 2, 1, 2, 3, 2), "mean", True, None) for name in (NLL, SCE)),
    *(usual(name, sample(2, 3, 2, 1, 2, 3, 2, 2), "none", False, 1) for name in (NLL, SCE)),
    *(usual(name, sample(9000, 2, 2), reduction, True, 1) for name in (NLL, SCE) for reduction in ("sum", "mean")),
    *(usual(name, sample(3, 700), "mean", False, None) for name in (NLL, SCE)),
    *(loss("int32", name, sample(4, 5), labels(5, 4, dtype=np.int32)) for name in (NLL, SCE)),
    *(loss("all_ignored", name, FEW, np.full(3, 1), None, "mean", 1) for name in (NLL, SCE)),
    *(loss("no_rows", name, np.zeros((0, 4), np.float32), np.zeros(0, np.int64), None, reduction)
      for name in (NLL, SCE) for reduction in ("none", "sum", "mean")),
    *(loss("no_places", name, np.zeros((2, 4, 0), np.float32), np.zeros((2, 0), np.int64), None, "none")
      for name in (NLL, SCE)),
    *(loss("strided", name, sample(8, 6, 10)[::-2, :, ::3].transpose(0, 2, 1), labels(4, 8, 12)[::2, ::2], None, "none")
      for name in (NLL, SCE)),
    *(loss("infinite", name, np.array([[0, -np.inf, 1], [np.nan, 2, 1]], np.float32), np.array([1, 1]), None, "none")
      for name in (NLL, SCE)),
    *(loss(f"opset{opset}", name, FEW, labels(4, 3), opset=opset) for name in (NLL, SCE) for opset in (12, 13)),
    loss("large_scores", SCE, np.array([[1e4, -1e4], [88, 89]], np.float32), np.array([1, 0]), None, "none"),
    loss("half_scores", SCE, np.array([[60000, -60000], [300, 301]], np.float16), np.array([1, 0]), None, "none"),
    loss("only_the_loss", SCE, FEW, labels(4, 3), outputs=(True, False)),
    loss("only_the_logarithms", SCE, FEW, labels(4, 3), outputs=(False, True)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_loss(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("name", [NLL, SCE])
@pytest.mark.parametrize("label", [4, -1])
def test_label_that_is_no_class(checks: str, name: str, label: int) -> None:
    expected: tuple[Array, ...] = (np.array([np.nan, 0], np.float32),)
    attributes = {"reduction": "none", "ignore_index": 7}
    refusal = f"{name} expects labels from 0 to 3, got {label}"
    x, target = np.zeros((2, 4), np.float32), np.array([label, 7])
    if name == SCE:
        expected = (*expected, np.full((2, 4), -np.log(4), np.float32))
    run_case(
        Case("outside", name, (x, target), attributes, (), (True,) * len(expected), expected=expected, refusal=refusal),
        checks,
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    name=st.sampled_from((NLL, SCE)),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 9)),
    reduction=st.sampled_from(("none", "sum", "mean")),
    is_weighed=st.booleans(),
    ignored=st.none() | st.integers(-2, 3),
)
def test_any_loss(
    checks: str, name: str, shape: tuple[int, int, int], reduction: str, is_weighed: bool, ignored: int | None
) -> None:
    run_case(usual(name, sample(*shape), reduction, is_weighed, ignored), checks)


@pytest.mark.parametrize("cls", [NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss])
def test_attributes_are_those_of_the_standard(cls: Any) -> None:
    attributes = onnx.defs.get_schema(cls.name).attributes
    assert set(attributes) == {"ignore_index", "reduction"}
    assert cls() == cls(ignore_index=None, reduction=attributes["reduction"].default_value.s.decode())
    assert not attributes["ignore_index"].default_value.name


def spec(*shape: int, dtype: Any = np.float32) -> TensorSpec:
    return TensorSpec(shape, np.dtype(dtype))


@pytest.mark.parametrize("name", [NLL, SCE])
@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ({}, (spec(4), spec(4, dtype=np.int64)), "scores [n, classes, ...] and labels [n, ...], got float32[4]"),
        ({}, (spec(4, 3), spec(3, dtype=np.int64)), "got float32[4,3] and labels int64[3]"),
        ({}, (spec(4, 3, 2), spec(4, dtype=np.int64)), "got float32[4,3,2] and labels int64[4]"),
        ({}, (spec(4, 3), spec(4)), "labels of type int32, int64"),
        ({}, (spec(4, 3), spec(4, dtype=np.int64), spec(4)), "a weight for each of 3 classes, got float32[4]"),
        ({}, (spec(4, 3), spec(4, dtype=np.int64), spec(3, dtype=np.float64)), "weights of type float32"),
        ({"reduction": "max"}, (spec(4, 3), spec(4, dtype=np.int64)), "none, sum or mean, got 'max'"),
        ({}, (spec(4, 3, dtype=np.int32), spec(4, dtype=np.int64)), "of type float32"),
    ],
)
def test_infer_refuses(name: str, attributes: dict[str, Any], inputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(name, attributes).infer(*inputs)
    assert message in str(caught.value)
