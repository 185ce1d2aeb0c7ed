"""SumTo, and what Gradient refuses; what it computes is shown by tests/passes/test_differentiate.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.operator import build
from gpuexec.ops.gradient import Gradient
from gpuexec.ops.training import DOMAIN
from gpuexec.spec import TensorSpec
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(np.random.default_rng([*shape, 2]).normal(0, 1, shape)).astype(dtype)


def sum_to(id: str, x: Array, *shape: int) -> Case:
    lead = x.ndim - len(shape)
    axes = tuple(axis for axis, extent in enumerate(x.shape) if axis < lead or shape[axis - lead] != extent)
    expected = x.astype(np.float64).sum(axis=axes).reshape(shape).astype(x.dtype)
    inputs = (x, np.zeros(shape, x.dtype))
    terms = max(1, int(np.prod([x.shape[axis] for axis in axes])))
    return Case(id, "SumTo", inputs, domain="gpuexec", expected=(expected,), terms=terms, opset=1)


CASES = [
    *(sum_to(np.dtype(t).name, sample(5, 3, 4, dtype=t), 3, 1) for t in FLOATS),
    sum_to("same", sample(3, 4), 3, 4),
    sum_to("to_one_number", sample(3, 4)),
    sum_to("inner", sample(3, 4, 5), 3, 1, 5),
    sum_to("ones", sample(1, 4, 1), 1, 1, 1),
    sum_to("empty", sample(0, 4), 1, 4),
    sum_to("rank8", sample(2, 1, 3, 2, 1, 2, 2, 2), 1, 3, 1, 1, 2, 1, 2),
    sum_to("strided", sample(6, 8, 4)[::-2, ::3].transpose(2, 1, 0), 3, 1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_sum_to(case: Case) -> None:
    run_case(case)


def test_sum_to_refuses_what_does_not_stretch() -> None:
    x, like = (TensorSpec(shape, np.dtype(np.float32)) for shape in ((3, 4), (3, 5)))
    with pytest.raises(InputError, match=r"\[3, 5\] does not broadcast to \[3, 4\]"):
        build("gpuexec.SumTo", {}).infer(x, like)


def test_gradient_has_the_attributes_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("Gradient", domain=DOMAIN).attributes
    assert {name for name, each in attributes.items() if each.required} == {"xs", "y"}
    assert Gradient(("a",), "c") == Gradient(xs=("a",), y="c", zs=())


def test_gradient_alone_is_refused() -> None:
    with pytest.raises(InputError, match="an input for each of xs and zs, got 1"):
        Gradient(("a", "b"), "c").infer(TensorSpec((2,), np.dtype(np.float32)))
    with pytest.raises(UnsupportedError, match="the pass 'differentiate'"):
        Gradient(("a",), "c").compute(sample(2))
