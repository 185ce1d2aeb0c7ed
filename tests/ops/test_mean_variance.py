"""MeanVarianceNormalization against its formula in double."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.nn.mean_variance import MeanVarianceNormalization
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 4]).normal(0.5, 2, shape).astype(dtype)


def mvn(id: str, x: Array, axes: tuple[int, ...] | None = None, **options: Any) -> Case:
    chosen = (0, 2, 3) if axes is None else axes or tuple(range(x.ndim))
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        centred = wide - wide.mean(chosen, keepdims=True) if x.size else wide
        expected = centred / (np.sqrt((centred**2).mean(chosen, keepdims=True)) + 1e-9) if x.size else wide
    count = max(1, int(np.prod([x.shape[axis] for axis in chosen])))
    attributes = {} if axes is None else {"axes": list(axes)}
    inputs = (x,)
    return Case(
        id,
        "MeanVarianceNormalization",
        inputs,
        attributes,
        expected=(expected.astype(x.dtype),),
        terms=count,
        **options,
    )


CASES = [
    *(mvn(np.dtype(t).name, sample(3, 4, 5, 6, dtype=t)) for t in FLOATS),
    *(mvn(f"axes{axes}", sample(3, 4, 5, 6), axes) for axes in ((0,), (1,), (3,), (-1,), (-2, 0))),
    *(mvn(f"axes{axes}", sample(3, 4, 5, 6), axes) for axes in ((1, 2, 3), (2, 1), ())),
    mvn("long_rows", sample(2, 3, 20, 30), (2, 3)),
    mvn("many_rows", sample(5000, 3), (1,)),
    mvn("many_columns", sample(3, 5000), (0,)),
    mvn("rank8", sample(2, 3, 1, 2, 2, 2, 2, 2), (0, 2, 5, 7)),
    mvn("one_axis", sample(30), (0,)),
    mvn("far_from_zero", (sample(2, 3, 8, 8) * 0.01 + 1000).astype(np.float64)),
    mvn("constant", np.full((2, 3, 4, 4), 7, np.float32)),
    mvn("nan", np.array([[1, np.nan, 2], [1, 2, 3]], np.float32), (1,)),
    mvn("infinite", np.array([[1, np.inf, 2], [1, 2, 3]], np.float32), (1,)),
    mvn("empty", np.zeros((2, 0, 3, 3), np.float32)),
    mvn("empty_rows", np.zeros((2, 3, 0, 3), np.float32)),
    mvn("strided", sample(6, 8, 5, 7)[::-2, ::3].transpose(0, 1, 3, 2)),
    mvn("opset9", sample(3, 4, 5, 6), (0, 2, 3), opset=9),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_mean_variance(checks: str, case: Case) -> None:
    run_case(case, checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("MeanVarianceNormalization").attributes
    assert {name: tuple(each.default_value.ints) for name, each in attributes.items()} == {"axes": (0, 2, 3)}
    assert MeanVarianceNormalization() == MeanVarianceNormalization(axes=(0, 2, 3))


def test_infer_refuses() -> None:
    with pytest.raises(InputError, match="out of range"):
        build("MeanVarianceNormalization", {}).infer(TensorSpec((2, 3), np.dtype(np.float32)))
    with pytest.raises(InputError, match="input of type"):
        build("MeanVarianceNormalization", {}).infer(TensorSpec((2, 3, 4, 4), np.dtype(np.int32)))
